"""The reference attention backend: gather a request's keys and values, let torch attend."""

from warcore_backend_torch_native.backend import TorchNative

__all__ = ["TorchNative"]
