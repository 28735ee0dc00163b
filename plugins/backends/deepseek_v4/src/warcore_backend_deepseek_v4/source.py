"""Where positions lie: the live tables, and memory for what a step copies out of them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from warcore import BackendContext


class Source:
    """Turns positions into slots. The only reader of `ctx.shared`."""

    def __init__(self, ctx: BackendContext) -> None:
        windows = [window for window in ctx.spec.windows if window is not None]
        self.window: int | None = max(windows, default=None)
        """The longest window of the model; None: no layer has one, as in some drafts."""
        self.has_full = None in ctx.spec.windows
        """Whether a layer sees whole sequences."""
        self.columns = torch.arange(ctx.spec.max_context, device=ctx.spec.device)
        """[max_context] i64, the positions of a sequence."""
        self.dtype = ctx.spec.dtype
        self._shared = ctx.shared

    @property
    def mapped(self) -> bool:
        """Whether layers with a window have a pool of their own."""
        return self._shared.full_to_swa is not None

    def slots(self, rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """[G, W] i32: the slots of positions `at` [G, W] of `rows` [G]."""
        return self._shared.req_to_token[rows[:, None], at]

    def window_slots(self, rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """The same, where layers with a window keep them."""
        return self.translated(self.slots(rows, at))

    def translated(self, slots: torch.Tensor) -> torch.Tensor:
        """Slots of the full pool as those of the window pool, if there is one."""
        full_to_swa = self._shared.full_to_swa
        return slots if full_to_swa is None else full_to_swa[slots]


class Statics:
    """Memory that a graph finds again: each step's tables are its front."""

    def __init__(self, ctx: BackendContext, source: Source) -> None:
        longest = ctx.spec.max_context
        each = ctx.max_batch * longest
        # A decode step has a window for each token, and a prefill the whole sequences.
        windowed = max(each, ctx.max_tokens * min(source.window or 0, longest))
        sizes = {
            "full": (each if source.has_full else 0, torch.int32),
            "window": (windowed if source.window else 0, torch.int32),
            "out": (ctx.max_tokens if source.mapped else 0, torch.int64),
        }
        self._named = {
            name: ctx.static(f"deepseek_v4.{name}", (size,), dtype)
            for name, (size, dtype) in sizes.items()
        }

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        """The front of `full`, `window` (i32) or `out` (i64), as `shape`."""
        return self._named[name][: prod(shape)].view(shape)


class Anew:
    """Memory of one step alone: for what is looked up outside of graphs."""

    def __init__(self, ctx: BackendContext) -> None:
        self._device = ctx.spec.device

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        """As `Statics` gives it, made anew."""
        dtype = torch.int64 if name == "out" else torch.int32
        return torch.empty(shape, dtype=dtype, device=self._device)
