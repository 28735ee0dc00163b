"""A model of nothing but attention, and what its output must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore.model import Layer, ModelInfo, Output
from warcore.testkit.outcome import Failure, Refuted

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.batch import ForwardBatch
    from warcore.testkit.stands.cell import Shape

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layer], torch.Tensor]


class Attending:
    """Layers whose queries, keys and values depend on row and position alone.

    So the same token gives the same numbers in whatever batch it is, and what attention owes is
    known without a second engine. Its logits are the outputs of all layers side by side.
    enters: told of each layer's attention, as a part of the body.
    """

    def __init__(self, shape: Shape, device: torch.device, enters: Callable[[str], None]) -> None:
        self._enters = enters
        self.layers = tuple(
            Layer(i, shape.q_heads, shape.kv_heads, shape.head_dim, shape.head_dim**-0.5, window)
            for i, window in enumerate(shape.windows)
        )
        width = len(self.layers) * shape.q_heads * shape.head_dim
        self.info = ModelInfo("attending", self.layers, width, width, shape.context, 0)
        draw = torch.Generator().manual_seed(11)
        dtype: torch.dtype = getattr(torch, shape.dtype)
        size = shape.rows + 1, shape.context
        self._qkv = [
            tuple(
                torch.randn(*size, heads, shape.head_dim, generator=draw).to(dtype).to(device)
                for heads in (shape.q_heads, shape.kv_heads, shape.kv_heads)
            )
            for _ in self.layers
        ]

    def forward(
        self, batch: ForwardBatch, attend: Attend, hidden_layers: tuple[int, ...] = ()
    ) -> Output:
        """The attention of every token, [T or N, layers * heads * head_dim]."""
        del hidden_layers
        row = batch.rows.index_select(0, batch.q_row)
        outs = []
        for layer, tables in zip(self.layers, self._qkv, strict=True):
            q, k, v = (table[row, batch.positions] for table in tables)
            self._enters(f"body, layer {layer.index}")
            outs.append(_shaped(attend(q, k, v, layer), q).flatten(1))
        out = torch.cat(outs, 1)
        return Output(out if batch.logits_at is None else out.index_select(0, batch.logits_at))

    def owed(self, row: int, position: int, seen: torch.Tensor | None = None) -> torch.Tensor:
        """What one token's output must be, in float64; [layers * heads * head_dim].

        seen: the positions that it sees; None: those up to its own.
        """
        outs = []
        for layer, (queries, keys, values) in zip(self.layers, self._qkv, strict=True):
            at = torch.arange(position + 1) if seen is None else seen
            if layer.window is not None:
                at = at[at > position - layer.window]
            at = at.to(keys.device)
            group = layer.q_heads // layer.kv_heads
            k = keys[row, at].double().repeat_interleave(group, 1)
            v = values[row, at].double().repeat_interleave(group, 1)
            scores = torch.einsum("hd,lhd->hl", queries[row, position].double(), k) * layer.scale
            outs.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v).flatten())
        return torch.cat(outs)


def _shaped(output: object, q: torch.Tensor) -> torch.Tensor:
    """What attention gave; Refuted unless it is as wide as the queries."""
    if isinstance(output, torch.Tensor) and output.shape == q.shape:
        return output
    found = f"a tensor {[*output.shape]}" if isinstance(output, torch.Tensor) else repr(output)
    claim = f"an output as wide as the queries, {[*q.shape]}"
    raise Refuted(Failure(claim, f"forward returned {found}"))
