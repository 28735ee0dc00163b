"""Whole engines around the plugin under check, and what is seen of their steps."""
