"""The devices, each under its name: `device` runs a test on every one of them."""

from __future__ import annotations

import threading

import pytest
import torch

from warcore.device.host import host_device


def _open(name):
    if name == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here")
        from warcore.device.cuda import CudaDevice

        return CudaDevice()
    if name == "virtual":
        from warcore.device.virtual import VirtualDevice

        return VirtualDevice()
    return host_device(name)


@pytest.fixture(
    params=["threads", "inline", "seeded:1", "virtual", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request):
    with _open(request.param) as device:
        yield device


@pytest.fixture
def stream_threads():
    """The stream threads that are alive, by a call."""

    def alive():
        return [t.name for t in threading.enumerate() if t.name.startswith("warcore-")]

    assert alive() == []
    yield alive
    assert alive() == []
