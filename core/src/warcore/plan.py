"""FencePlan: where each kind of step will be fenced, by whose word, and what would do better.

It is made without weights and before anything is captured, from the same declarations and by the
same rules as the steps themselves: `resolve` and the prefill gates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore.config import EngineConfig
    from warcore.contract import ForwardMode, SharedReadEnds
    from warcore.device import Device
    from warcore.forecast import PlannedFence
    from warcore.kinds import PlannedGraphs
    from warcore.wired import Wired


@attrs.frozen
class ReaderVotes:
    """What one reader of the shared buffers declared."""

    plugin: str
    """`kind:name`."""
    ends: Mapping[ForwardMode, SharedReadEnds]
    """Its vote for each mode; modes in which it reads nothing are absent."""
    snapshot: bool
    """Whether it decides again for each prefill batch (`prepare_prefill_shared_read_snapshot`)."""


@attrs.frozen
class FencePlan:
    """For each kind of step that an engine will run: who votes, where the event lands, and why."""

    engine: dict[str, Any]
    """What the engine is made of, as `Engine.describe` gives it."""
    graphs: PlannedGraphs
    """What is captured, and why no more is."""
    steps: tuple[PlannedFence, ...]
    votes: tuple[ReaderVotes, ...]
    stagers: tuple[str, ...]
    """`kind:name` of every stager that will be called."""

    @property
    def finer(self) -> tuple[PlannedFence, ...]:
        """The steps whose fence something that can be named would let fall earlier."""
        return tuple(step for step in self.steps if step.next is not None)

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        *,
        device: Device | None = None,
    ) -> FencePlan:
        """What an engine of `config` will do. Captures nothing.

        Loads no weights, unless an algorithm drafts: who reads last in its steps only it can say,
        and it is built around a model.

        device: an open one, in place of what the config names; it is closed.
        WarcoreError, as from Engine, if something is not there, broken or does not fit.
        """
        from warcore.assembly import connect
        from warcore.device import open_device
        from warcore.loading import load_model
        from warcore.wired import wire

        with device or open_device(config.device, config.host) as opened:
            wired = wire(config, opened, runs=False)
            if wired.choices.speculation is not None:
                wired = connect(config, wired, load_model(wired.choices)).wired
            return _plan(config, wired)


def _plan(config: EngineConfig, wired: Wired) -> FencePlan:
    from warcore.assembly import describe
    from warcore.forecast import deciding_readers, foresee
    from warcore.kinds import kinds_of_step, what_is_captured

    scope, engine = wired.scope, wired.engine_scope
    deciding = deciding_readers(scope)
    return FencePlan(
        engine=describe(config, wired),
        graphs=what_is_captured(config, wired),
        steps=tuple(foresee(kind, config, wired) for kind in kinds_of_step(wired)),
        votes=tuple(
            ReaderVotes(reader.plugin, reader.votes, reader.plugin in deciding)
            for reader in scope.readers
        ),
        stagers=tuple(plugin for plugin, _ in engine.stagers),
    )
