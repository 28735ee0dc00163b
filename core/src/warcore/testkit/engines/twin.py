"""A twin that was never told anything: it drafts from the relay and the caches alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.testkit.engines.draftlog import same_draft
from warcore.testkit.engines.insides import unheard
from warcore.testkit.packages.definitions import with_methods

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore.batch import ForwardBatch
    from warcore.spec import SpecContext


@attrs.define(eq=False)
class Twins:
    """Asks each draft of a run again of a new instance. Inline host devices only.

    Both have the relay and the caches of draft runners as they were; torch draws alike for both.
    """

    asked: int = 0
    differ: int = 0
    """Drafts of the twin that were other ones."""
    unsteady: int = 0
    """Drafts that were other ones when the algorithm itself was asked again."""
    _known: dict[int, tuple[Any, list[Any], list[Any]]] = attrs.field(factory=dict)
    """By id of an instance: its twin, and the runners of both."""

    def of(self, cls: Any) -> Any:
        """The class, with a twin of each instance."""

        def __init__(algorithm: Any, ctx: SpecContext) -> None:  # noqa: N807 - the class's own
            own, others = list[Any](), list[Any]()
            cls.__init__(algorithm, _noting(ctx, own))
            self._known[id(algorithm)] = cls(_noting(ctx, others)), own, others

        def draft(algorithm: Any, batch: ForwardBatch) -> Any:
            twin, own, others = self._known[id(algorithm)]
            relay = algorithm.ctx.relay
            before = _copied(relay)
            state = torch.random.get_rng_state()
            drafted = cls.draft(algorithm, batch)
            after, drawn = _copied(relay), torch.random.get_rng_state()
            for mine, its in zip(own, others, strict=True):
                _give_caches(mine, its)

            def again(who: Any, runners: list[Any]) -> Any:
                _put(relay, before)
                torch.random.set_rng_state(state)
                with unheard(runners):
                    return cls.draft(who, batch)

            if not same_draft(drafted, again(twin, others)):
                self.differ += 1
                # Its own second answer tells whether it gives the same one twice at all.
                self.unsteady += not same_draft(drafted, again(algorithm, own))
            self.asked += 1
            _put(relay, after)
            torch.random.set_rng_state(drawn)
            return drafted

        return with_methods(cls, __init__=__init__, draft=draft)


def _noting(ctx: SpecContext, made: list[Any]) -> SpecContext:
    def make(*given: Any, **named: Any) -> Any:
        made.append(ctx.make_runner(*given, **named))
        return made[-1]

    return attrs.evolve(ctx, make_runner=make)


def _copied(relay: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in relay.items()}


def _put(relay: Mapping[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    for name, tensor in relay.items():
        tensor.copy_(values[name])


def _give_caches(mine: Any, its: Any) -> None:
    """Keys and values that a draft runner has, to another one's caches."""
    caches, others = (each.recorded.backend.ctx.kv for each in (mine, its))
    for ours, theirs in zip(caches, others, strict=True):
        for name, memory in ours.items():
            theirs[name].copy_(memory)
