"""Attention over a page table, with the kernels that the machine has."""

from warcore_backend_trtllm_mha.backend import TrtllmMha

__all__ = ["TrtllmMha"]
