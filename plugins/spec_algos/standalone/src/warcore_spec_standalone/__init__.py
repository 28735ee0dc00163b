"""Standalone, a speculative algorithm for warcore."""

from warcore_spec_standalone.algorithm import Standalone

__all__ = ["Standalone"]
