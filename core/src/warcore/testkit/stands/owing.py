"""What a step owes: attention in float64, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from warcore.testkit.outcome import Failure, Refuted

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.testkit.stands.stand import Stand

TOLERANCE: Final = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 5e-3,
}
"""Of the largest output: kernels sum in an order of their own."""


def owed(stand: Stand, batch: ForwardBatch) -> torch.Tensor:
    """What the output of a step must be, [tokens or requests, width] in float64, on the host."""
    tokens = range(batch.padded_tokens) if batch.logits_at is None else batch.logits_at.tolist()
    rows, positions = batch.rows[batch.q_row].tolist(), batch.positions.tolist()
    found = []
    for token in tokens:
        seen = None if batch.tree_mask is None else _seen(batch, token)
        key = (stand.shape, rows[token], positions[token], seen)
        if key not in _known:
            at = None if seen is None else torch.tensor(seen)
            _known[key] = stand.model.owed(rows[token], positions[token], at).cpu()
        found.append(_known[key])
    return torch.stack(found)


_known: dict[tuple[object, ...], torch.Tensor] = {}
"""What tokens owe: it depends on the shape, the row and the position alone, in every stand."""


def _seen(batch: ForwardBatch, token: int) -> tuple[int, ...]:
    """The positions that a token of a verify batch sees: all before the drafts, and its branch."""
    assert batch.tree_mask is not None
    mask = batch.tree_mask[token].tolist()
    start = int(batch.seq_lens[batch.q_row[token]]) - len(mask)
    return (*range(start), *(start + nth for nth, shown in enumerate(mask) if shown))


def error_of(output: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference, as a part of the largest value; NaN if either holds one."""
    right = right.double().cpu()
    return float((output.double().cpu() - right).abs().max() / right.abs().max())


def compare(
    stand: Stand, batch: ForwardBatch, output: torch.Tensor, cell: str, when: str = ""
) -> None:
    """Refuted unless an output is what attention owes. when: what was special about the step."""
    error = error_of(output, owed(stand, batch))
    limit = TOLERANCE[stand.spec.dtype]
    if error <= limit:
        return
    what = (
        f"an output is off by {error:.2g} of the largest"
        if error == error  # noqa: PLR0124  NaN is what differs from itself
        else "an output is NaN: a slot that nobody owns was read, or a row of no scores"
    )
    claim = f"attention within {limit:g} of the largest output"
    raise Refuted(Failure(claim, f"{when}{what}", cell=cell))
