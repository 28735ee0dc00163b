"""Sample, an attention backend for warcore."""

from warcore_backend_sample.backend import Sample

__all__ = ["Sample"]
