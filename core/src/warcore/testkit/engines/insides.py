"""Insides: parts of an engine to which there is no public way, for the kit alone.

Nobody else in the kit knows the names of what is private in the core, but for the methods that are
wrapped from outside (`Wrapping`).
"""
# ruff: noqa: SLF001 - the kit looks inside on purpose, and here

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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


class Insides:
    """Of one engine. Parts whose methods are wrapped, private ones too, are Any."""

    def __init__(self, engine: Engine) -> None:
        assembly: Any = engine._assembly
        self.device: Device = assembly.device
        self.model: Model = assembly.model
        self.scheduler: Scheduler = assembly.scheduler
        self.launcher: Any = assembly.scheduler.launcher
        self.step: Any = self.launcher._step
        self.batching: Any = self.step._batching
        """What makes the batch of a step."""
        self.drafting: Any = self.step._drafting
        """The algorithm at work; None without one."""
        self.relay: Relay = self.step._relay
        self.shared: SharedBuffers = assembly.wired.shared
        self.staging: StagingRing = self.launcher._staging
        """The launcher's."""
        self.statics: Mapping[str, Statics] = assembly.wired.statics
        """By plugin, the target's backend first."""
        self.runners: tuple[PublishingRunner, ...] = self.step._runners
        """The target's, then those of drafts."""
        self.done: EventRing = self.step._done
        """The events that launches end with."""


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
