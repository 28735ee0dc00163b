"""The device layer: one protocol (base.py), three devices (host.py, cuda.py, virtual.py).

Importing it imports no torch: the devices are loaded when they are first asked for.
"""

from __future__ import annotations

from warcore.device.base import Device, Event, Latch, Pending, Stream, Ticket
from warcore.device.graph import Graph, GraphPool
from warcore.device.observer import Observer
from warcore.device.ring import EventRing
from warcore.errors import ConfigError, DeviceError

__all__ = [
    "Device",
    "Event",
    "EventRing",
    "Graph",
    "GraphPool",
    "Latch",
    "Observer",
    "Pending",
    "Stream",
    "Ticket",
    "open_device",
]

HOST_AUTO = "inline"
"""What `--host auto` takes: on few cores, threads gain nothing back for what they cost."""


def open_device(device: str, host: str = "auto") -> Device:
    """The device that `--device` and `--host` name. The caller closes it.

    device: "auto" (CUDA where torch finds one, else the host), "host" or "cuda".
    host: "auto", "threads", "inline" or "seeded:N"; used only if the device is the host.
    ConfigError for other words, DeviceError if CUDA is asked for and absent.
    """
    if device not in {"auto", "host", "cuda"}:
        raise ConfigError(f"no device is called {device!r}", next="--device auto|host|cuda")
    if device == "cuda":
        require_cuda()
    import torch

    from warcore.device.host import host_device

    if torch.cuda.is_available() and device != "host":
        from warcore.device.cuda import CudaDevice

        return CudaDevice()
    return host_device(HOST_AUTO if host == "auto" else host)


def require_cuda() -> None:
    """DeviceError, with why, where torch finds no CUDA device. Initialises none."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        why = "it finds no GPU or driver" if built else "it is built without CUDA"
        raise DeviceError(
            f"no CUDA device: torch {torch.__version__} is installed, and {why}",
            next="--device host" if built else "install a CUDA build of torch, or --device host",
        )
