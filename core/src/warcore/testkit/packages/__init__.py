"""A plugin's package: its sources, its wheel, and what its import leaves behind."""
