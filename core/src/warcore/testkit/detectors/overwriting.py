"""In-order poison for a step of one's own: overwrite a tensor at the mark, and look at the result.

The overwrite is enqueued on the stream on which the mark is passed: what reads the tensor later on
that stream reads something else than in the run before. That works on every device. On a GPU a step
may use streams that do not wait for this one: between runs the host waits for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from warcore.testkit.access import Access
from warcore.testkit.detectors.elements import same
from warcore.testkit.marking import marks_go_to
from warcore.testkit.outcome import Unproven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PATTERNS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its values in the reverse order": lambda values: values.flip(0),
    "its least value everywhere": lambda values: values.min().expand_as(values),
    "its greatest value everywhere": lambda values: values.max().expand_as(values),
}
"""Of a flat tensor. Only values that it has: whatever is looked up with them exists."""


class Overwriting:
    """In one run: overwrites `tensor` at the first late mark, until touches are welcome again."""

    def __init__(
        self, tensor: torch.Tensor, pattern: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._tensor = tensor
        self._pattern = pattern
        self._now: tuple[torch.Tensor, torch.Tensor] | None = None
        self.overwrites: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(what was there, what was put there) each time."""
        self.phase = ""
        """The first mark at which it overwrote."""

    def passed(self, name: str, *, late: bool) -> None:
        """A mark is passed: enqueue what it asks for."""
        with torch.inference_mode():
            if late and self._now is None:
                saved = self._tensor.clone()
                poison = self._pattern(saved.reshape(-1)).view(saved.shape).clone()
                self._tensor.copy_(poison)
                self._now = saved, poison
                self.overwrites.append(self._now)
                self.phase = self.phase or name
            elif not late:
                self.end()

    def end(self) -> None:
        """Put back what was there, except where somebody has written since."""
        if self._now is None:
            return
        (saved, poison), self._now = self._now, None
        with torch.inference_mode():
            self._tensor.copy_(torch.where(self._tensor == poison, saved, self._tensor))

    def has_changed_anything(self) -> bool:
        """Whether any of the overwrites was another value than what was there."""
        return any(not same(saved, poison) for saved, poison in self.overwrites)


def poisoned(
    step: Callable[[], object],
    shared: Mapping[str, torch.Tensor],
    begin: Mapping[str, torch.Tensor],
    expected: Sequence[Any],
) -> tuple[list[Access], list[str]]:
    """The tensors on whose values after the mark the result depends; and where that is blind.

    begin: their values before a run. expected: the `leaves` of the step's result. Unproven if the
    step gives nothing that can be compared, or another result each time.
    """
    if not any(isinstance(leaf, torch.Tensor | int | float) for leaf in expected):
        raise Unproven("the step returns no tensor and no number that could be compared")
    again = _run(step, shared, begin, None)
    if isinstance(again, BaseException) or not alike(expected, again):
        raise Unproven("a second run of the step gives another result: it cannot be rerun")
    found, missing = [], []
    for name, tensor in shared.items():
        runs = list(_runs(step, shared, begin, tensor) if tensor.numel() else ())
        phase = next((run.phase for run, _ in runs if run.phase), "")
        if phase and not any(run.has_changed_anything() for run, _ in runs):
            missing.append(f"poison: {name} holds one value only, and overwriting it shows nothing")
        elif any(isinstance(r, BaseException) or not alike(expected, r) for _, r in runs):
            size = tensor.numel() * tensor.element_size()
            seen = frozenset({"poison"})
            found.append(Access(name, "read", 0, size, phase=phase, seen_by=seen))
    return found, missing


def _runs(
    step: Callable[[], object],
    shared: Mapping[str, torch.Tensor],
    begin: Mapping[str, torch.Tensor],
    tensor: torch.Tensor,
) -> Iterator[tuple[Overwriting, list[Any] | Exception]]:
    for pattern in PATTERNS.values():
        run = Overwriting(tensor, pattern)
        yield run, _run(step, shared, begin, run)


def _run(
    step: Callable[[], object],
    shared: Mapping[str, torch.Tensor],
    begin: Mapping[str, torch.Tensor],
    overwriting: Overwriting | None,
) -> list[Any] | Exception:
    """What a run gives, its error included: with other values a look-up may fail."""
    restore(shared, begin)
    try:
        with marks_go_to(overwriting):
            return leaves(step(), shared)
    except Exception as error:  # noqa: BLE001 - it is an outcome
        return error
    finally:
        if overwriting is not None:
            # After an error what the step has launched may still run.
            settle(shared)
            overwriting.end()
            settle(shared)


def settle(shared: Mapping[str, torch.Tensor]) -> None:
    """Let all streams of a GPU come to their end, if one of the tensors lies on one."""
    if any(tensor.is_cuda for tensor in shared.values()):
        torch.cuda.synchronize()


def values_of(shared: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies, once whatever writes them is done."""
    settle(shared)
    values = {name: tensor.detach().clone() for name, tensor in shared.items()}
    settle(shared)
    return values


def restore(shared: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Write them back, before anything that is launched later on whatever stream."""
    with torch.inference_mode():
        for name, tensor in shared.items():
            tensor.copy_(values[name])
    settle(shared)


def leaves(result: object, shared: Mapping[str, torch.Tensor]) -> list[Any]:
    """Copies of all tensors in a result, and what else is in it, once the devices are done."""
    settle(shared)
    return [
        leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
        for leaf in tree_leaves(result)
    ]


def alike(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether two results are the same to the bit. Only tensors and numbers count."""
    return len(expected) == len(found) and all(
        same(one, other)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        else one == other or not isinstance(one, int | float) or one != one  # noqa: PLR0124 - NaN
        for one, other in zip(expected, found, strict=True)
    )
