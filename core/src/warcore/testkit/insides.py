"""Insides: parts of an engine to which there is no public way, for the kit alone.

Nobody else in the kit knows the names of what is private in the core, but for the methods that are
wrapped from outside (`Wrapping`).
"""
# ruff: noqa: SLF001 - the kit looks inside on purpose, and here

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warcore.device import Device, EventRing
    from warcore.engine import Engine
    from warcore.model import Model
    from warcore.relay import Relay
    from warcore.runner import PublishingRunner
    from warcore.scheduler import Scheduler
    from warcore.shared import SharedBuffers
    from warcore.staging import StagingRing
    from warcore.statics import Statics


@attrs.frozen(eq=False)
class Insides:
    """Of one engine. Parts whose methods are wrapped, private ones too, are Any."""

    device: Device
    model: Model
    scheduler: Scheduler
    launcher: Any
    step: Any
    batching: Any
    """What makes the batch of a step."""
    drafting: Any
    """The algorithm at work; None without one."""
    relay: Relay
    shared: SharedBuffers
    staging: StagingRing
    """The launcher's."""
    statics: Mapping[str, Statics]
    """By plugin, the target's backend first; it grows while plugins are built."""
    runners: tuple[PublishingRunner, ...]
    """The target's, then those of drafts."""
    done: EventRing
    """The events that launches end with."""

    @classmethod
    def of(cls, engine: Engine) -> Insides:
        """What the engine is made of now, and to its end."""
        assembly: Any = engine._assembly
        launcher = assembly.scheduler.launcher
        step = launcher._step
        return cls(
            device=assembly.device,
            model=assembly.model,
            scheduler=assembly.scheduler,
            launcher=launcher,
            step=step,
            batching=step._batching,
            drafting=step._drafting,
            relay=step._relay,
            shared=assembly.wired.shared,
            staging=launcher._staging,
            statics=assembly.wired.statics,
            runners=step._runners,
            done=step._done,
        )


@contextmanager
def unheard(runners: list[Any]) -> Iterator[None]:
    """Within, what these runners offer is heard by nobody."""
    lent = [runner._fence for runner in runners]
    for runner in runners:
        runner._fence = None
    try:
        yield
    finally:
        for runner, fence in zip(runners, lent, strict=True):
            runner._fence = fence
