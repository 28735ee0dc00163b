"""What a step found out: packed on the device, read once the host has it, and counted.

A step without drafts gives [B] i64, the sampled tokens. A verify of K drafted tokens gives
[B, K + 3] i64: how many tokens follow, among how many drafted ones they were sought, then the
tokens themselves, K + 1 of which the first count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import torch

    from warcore.device import Device
    from warcore.request import Request


@attrs.frozen
class Found:
    """What a step found out for one entry."""

    tokens: list[int]
    """What follows, at least one."""
    drafted: int | None = None
    """Of how many drafted tokens all but the last of them were taken; None: nothing was verified,
    as in a step with prefills."""


def room(device: Device, size: int, dtype: torch.dtype, drafted: int | None) -> torch.Tensor:
    """Host memory for what a step of `size` requests finds out; drafted: K of a verify, or None."""
    if drafted is None:
        return device.host_buffer(size, dtype)
    return device.host_buffer(size * (drafted + 3), dtype).view(size, drafted + 3)


def pack(lengths: torch.Tensor, sought: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[B, K + 3] of a verify. lengths, sought: [B] i64. tokens: [B, K + 1] i64."""
    import torch

    return torch.cat((lengths[:, None], sought[:, None], tokens), 1)


def read(result: torch.Tensor) -> list[Found]:
    """What came of each request, from what `room` gave. Blocks for nothing: the copy is done."""
    if result.dim() == 1:
        return [Found([token]) for token in result.tolist()]
    return [Found(row[2 : 2 + row[0]], row[1]) for row in result.tolist()]


@attrs.define
class Drafts:
    """What became of drafted tokens."""

    steps: int = 0
    """Verifies, over all requests."""
    drafted: int = 0
    accepted: int = 0

    def count(self, request: Request, found: Found) -> None:
        """What a step found out for one request, if that was by a verify."""
        if found.drafted is None:
            return
        stood = len(found.tokens) - 1
        self.steps += 1
        self.drafted += found.drafted
        self.accepted += stood
        request.drafted += found.drafted
        request.accepted += stood
        request.verifies += 1

    def facts(self) -> dict[str, Any]:
        """{drafted, accepted, accept_length}: the last is tokens per request and verify."""
        length = 1 + self.accepted / self.steps if self.steps else 0.0
        return {"drafted": self.drafted, "accepted": self.accepted, "accept_length": length}
