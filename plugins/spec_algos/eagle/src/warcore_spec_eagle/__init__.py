"""Eagle, a speculative algorithm for warcore."""

from warcore_spec_eagle.algorithm import Eagle

__all__ = ["Eagle"]
