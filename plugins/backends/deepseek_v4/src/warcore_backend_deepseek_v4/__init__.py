"""Attention for models with sliding windows: what a token cannot see is never loaded."""

from warcore_backend_deepseek_v4.backend import DeepseekV4, Options

__all__ = ["DeepseekV4", "Options"]
