"""DraftLog: what an algorithm proposes in a run, and what it leaves in the relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import attrs
import torch

from warcore.spec import Draft
from warcore.testkit.detectors.elements import same
from warcore.testkit.packages.definitions import with_methods

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.spec import Accepted
    from warcore.testkit.engines.workload import Answer, Asked


@attrs.define(eq=False)
class DraftLog:
    """Of one run, in the order of its calls; host device only."""

    drafts: list[Any] = attrs.field(factory=list)
    """What each `draft` returned, copied."""
    own: list[torch.Tensor] = attrs.field(factory=list)
    """[B, K] bool of each draft: the positions for which the request has slots of its own."""
    states: list[dict[str, torch.Tensor]] = attrs.field(factory=list)
    """The relay of the algorithm after each `draft_extend`."""
    errors: list[Exception] = attrs.field(factory=list)
    """What its methods raised."""
    batches: list[Any] = attrs.field(factory=list)
    """Weak references to the batches that it was given."""

    def of(self, cls: Any) -> Any:
        """The class, written down from here."""

        def draft(algorithm: Any, batch: ForwardBatch) -> Any:
            assert batch.ahead is not None
            self.batches.append(ref(batch))
            self.own.append(batch.ahead[:, 1:] > 0)
            with self._noting_errors():
                drafted = cls.draft(algorithm, batch)
            self.drafts.append(_copied(drafted))
            return drafted

        def draft_extend(algorithm: Any, batch: ForwardBatch, accepted: Accepted) -> None:
            self.batches.append(ref(batch))
            with self._noting_errors():
                cls.draft_extend(algorithm, batch, accepted)
            self.states.append({n: t.clone() for n, t in algorithm.ctx.relay.items()})

        return with_methods(cls, draft=draft, draft_extend=draft_extend)

    @property
    def drafted(self) -> int:
        """How many tokens it meant."""
        return sum(_meant(draft) for draft in self.drafts)

    @property
    def draws(self) -> bool:
        """Whether it ever said what its tokens were drawn from."""
        return any(isinstance(d, Draft) and d.probs is not None for d in self.drafts)

    def excuses(self, asked: Asked, _: Answer) -> bool:
        """Whether an answer may be another one because it was drawn: its distribution is judged."""
        return bool(asked.temperature) and self.draws

    def equals(self, other: DraftLog) -> bool:
        """Whether both runs proposed and left the same."""
        return _same(self.drafts, other.drafts) and _same(self.states, other.states)

    def _noting_errors(self) -> _Noting:
        return _Noting(self.errors)


class _Noting:
    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._errors.append(error)


def _fields(draft: Draft) -> dict[str, torch.Tensor]:
    given = {name: getattr(draft, name) for name in ("tokens", "parents", "probs", "lengths")}
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}


def _copied(draft: Any) -> Any:
    """What is no Draft stays what it is: the core refuses it."""
    if not isinstance(draft, Draft):
        return draft
    copies = {name: value.clone() for name, value in _fields(draft).items()}
    return attrs.evolve(draft, **copies)


def _meant(draft: Any) -> int:
    if not isinstance(draft, Draft):
        return 0
    return draft.tokens.numel() if draft.lengths is None else int(draft.lengths.sum())


def same_draft(one: Any, other: Any) -> bool:
    """Whether two drafts have the same fields with the same elements."""
    return _same([one], [other])


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(_equal, map(_plain, one), map(_plain, other)))


def _plain(value: Any) -> dict[str, torch.Tensor]:
    fields = value if isinstance(value, dict) else {}
    return _fields(value) if isinstance(value, Draft) else fields


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(same(one[n], other[n]) for n in one)
