"""Dense: runs a model over plain caches with dense causal attention, one batch after the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from warcore.batch import ForwardBatch
from warcore.contract import ForwardMode
from warcore.testkit.outcome import Failure, Refuted
from warcore.testkit.packages.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from warcore.model import Layer, Model, Output

    Request = tuple[str, Sequence[int]]
    """The name of a sequence and its new tokens."""

FOREIGN: Final = 1000.0
"""What attention returns for padding tokens, whose output is nobody's business."""


class Dense:
    """Sequences by name, each with the keys and values that its tokens have had so far."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.calls: list[Layer] = []
        """The layers that the latest forward attended with, in order."""
        self.asked: list[torch.Tensor] = []
        """Queries and keys, [tokens, numbers], that each of them came with."""
        self.disturbed: int | None = None
        """A layer whose attention gives something else than it should."""
        self._cached: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._lengths: dict[str, int] = {}

    def forward(
        self,
        *requests: Request,
        hidden_layers: tuple[int, ...] = (),
        logits_at: torch.Tensor | None = None,
        padding: int = 0,
    ) -> Output:
        """One forward over new tokens of `requests`, with `padding` tokens behind them.

        Logits of every token unless `logits_at` says which. Refuted if the model raises.
        """
        return self.run(
            self.batch(*requests, logits_at=logits_at, padding=padding), requests, hidden_layers
        )

    def run(
        self, batch: ForwardBatch, requests: Sequence[Request], hidden_layers: tuple[int, ...] = ()
    ) -> Output:
        """`forward` of a batch that `batch` made of `requests`."""
        starts = [0]
        for _, tokens in requests:
            starts.append(starts[-1] + len(tokens))

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> torch.Tensor:
            self.calls.append(layer)
            _check_shapes(q, k, v, layer, batch.padded_tokens)
            self.asked.append(torch.cat((q.flatten(1), k.flatten(1)), 1))
            spans = zip(requests, starts[:-1], starts[1:], strict=True)
            outs = [self._attend(who, q[a:b], k[a:b], v[a:b], layer) for (who, _), a, b in spans]
            outs.append(torch.full_like(q[starts[-1] :], FOREIGN))
            return torch.cat(outs) + (layer.index == self.disturbed)

        self.calls, self.asked = [], []
        try:
            with torch.inference_mode():
                output = self.model.forward(batch, attend, hidden_layers)
        except Exception as error:
            if isinstance(error, Refuted):
                raise
            raise Refuted(
                Failure(
                    "forward serves any batch of its vocabulary and context",
                    f"it raised {error!r}",
                    _where(error.__traceback__, self.model),
                )
            ) from error
        for who, tokens in requests:
            self._lengths[who] = self._lengths.get(who, 0) + len(tokens)
        return output

    def skip(self, who: str, tokens: int) -> None:
        """Let a new sequence go on behind `tokens` that attention does not know of."""
        self._lengths[who] = tokens

    def batch(
        self, *requests: Request, logits_at: torch.Tensor | None = None, padding: int = 0
    ) -> ForwardBatch:
        """The batch of new tokens of `requests`, in rows 1, 2, ..."""
        old = [self._lengths.get(who, 0) for who, _ in requests]
        sizes = [len(tokens) for _, tokens in requests]
        ends = [a + b for a, b in zip(old, sizes, strict=True)]
        count, size = sum(sizes), len(requests)
        index = torch.arange(size)
        places = [torch.arange(a, b) for a, b in zip(old, ends, strict=True)]
        slots = [
            torch.arange(a, b) + 1 + row * max(ends)
            for row, (a, b) in enumerate(zip(old, ends, strict=True))
        ]

        def there(tensor: torch.Tensor, fill: int = 0, dtype: Any = torch.int64) -> torch.Tensor:
            more = torch.full((padding,), fill)
            return torch.cat((tensor, more)).to(self.device, dtype)

        def of_rows(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        starts = [sum(sizes[:row]) for row in range(size + 1)]
        decodes = set(sizes) == {1} and not padding
        return ForwardBatch(
            mode=ForwardMode.DECODE if decodes else ForwardMode.EXTEND,
            size=size,
            padded_size=size,
            padded_tokens=count + padding,
            tokens=there(torch.tensor([t for _, tokens in requests for t in tokens])),
            rows=of_rows([*range(1, size + 1)], torch.int64),
            seq_lens=of_rows(ends, torch.int32),
            q_start=of_rows(starts, torch.int32),
            q_row=there(torch.repeat_interleave(index, torch.tensor(sizes)), size - 1),
            positions=there(torch.cat(places)),
            out_slots=there(torch.cat(slots)),
            max_seq_len=max(ends),
            max_q_len=max(sizes),
            extend_lens=() if decodes else tuple(sizes),
            logits_at=logits_at,
        )

    def _attend(
        self, who: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer
    ) -> torch.Tensor:
        old = self._cached.get((who, layer.index))
        keys, values = (
            (k.clone(), v.clone())
            if old is None
            else (torch.cat((old[0], k)), torch.cat((old[1], v)))
        )
        self._cached[who, layer.index] = keys, values
        new, total = q.shape[0], keys.shape[0]
        at = torch.arange(total, device=q.device)
        back = at[total - new :, None] - at[None]
        seen = (back >= 0) & (back < (layer.window or total))
        group = layer.q_heads // layer.kv_heads
        keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))
        scores = torch.einsum("thd,lhd->htl", q, keys) * layer.scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("htl,lhd->thd", weights, values)


def _check_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer, tokens: int
) -> None:
    """Refuted for queries, keys or values that are not of the layer's sizes."""
    for name, tensor, heads in (
        ("q", q, layer.q_heads),
        ("k", k, layer.kv_heads),
        ("v", v, layer.kv_heads),
    ):
        wanted = (tokens, heads, layer.head_dim)
        if tuple(tensor.shape) != wanted:
            raise Refuted(
                Failure(
                    f"attend gets {name} of {list(wanted)}: tokens, heads, head_dim",
                    f"layer {layer.index} gives {list(tensor.shape)}",
                    _here(),
                )
            )


def _here() -> str:
    """The line that called `attend`."""
    frame = sys._getframe(3)  # noqa: SLF001 - _here, _check_shapes, attend, the model
    return str(place_of(frame.f_code.co_filename, frame.f_lineno))


def _where(at: TracebackType | None, model: Model) -> str:
    """The deepest line of the model's own package in a traceback."""
    folder = str(Path(type(model).forward.__code__.co_filename).parent)
    place = ""
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if file.startswith(folder):
            place = str(place_of(file, at.tb_lineno))
        at = at.tb_next
    return place
