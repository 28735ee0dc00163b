"""Attention in Triton: kernels over the paged cache, in the memory of a graph or without one."""

from warcore_backend_triton.backend import Triton

__all__ = ["Triton"]
