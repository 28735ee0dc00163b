"""Statics: buffers that the core allocates for a plugin, and the fenced way into them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from warcore.errors import PluginError
from warcore.staging import StagingRing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warcore.device import Device, Stream


class Statics:
    """Static buffers of one plugin: named, zeroed, with one address for life."""

    def __init__(self, device: Device, forward: Stream) -> None:
        self.device = device
        self.staging = StagingRing(device, forward)
        """The host memory behind `stage`."""
        self.named: dict[str, torch.Tensor] = {}
        """What was asked for so far."""

    def static(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        import torch

        known = self.named.get(name)
        if known is None:
            known = torch.zeros(shape, dtype=dtype, device=self.device.torch_device)
            self.named[name] = known
        if tuple(known.shape) != tuple(shape) or known.dtype != dtype:
            raise PluginError(
                f"static {name!r} is {tuple(known.shape)} {known.dtype} and was asked for as "
                f"{tuple(shape)} {dtype}",
                next="ask for a static buffer once, as large as it will ever be",
            )
        return known

    def stage(self, name: str, values: Sequence[int]) -> torch.Tensor:
        known = self.named.get(name)
        if known is None:
            raise PluginError(
                f"no static buffer is called {name!r}", next="take it with ctx.static first"
            )
        if len(values) > known.numel():
            raise PluginError(
                f"static {name!r} holds {known.numel()} values and was given {len(values)}",
                next="ask for a static buffer once, as large as it will ever be",
            )
        front = known.view(-1)[: len(values)]
        front.copy_(self.staging.put(array("q", values)))
        return front
