"""Sample, a speculative algorithm for warcore."""

from warcore_spec_sample.algorithm import Sample

__all__ = ["Sample"]
