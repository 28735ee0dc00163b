"""A scope: the readers of one ModelRunner, what they voted, and the hooks of the whole engine.

Everything here was read from pluggy once, at wiring; a step only reads attributes and calls bound
methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.contract import ForwardMode, SharedReadEnds

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen(eq=False)
class BoundHook:
    """One plugin's implementation of one hook, bound by its argument names."""

    plugin: str
    """`kind:name`, for every message about it."""
    function: Callable[..., Any]
    argnames: tuple[str, ...]

    def __call__(self, **arguments: Any) -> Any:
        return self.function(**{name: arguments[name] for name in self.argnames})


@attrs.frozen(eq=False)
class Reader:
    """A plugin that reads the shared buffers in steps of a scope."""

    plugin: str
    votes: dict[ForwardMode, SharedReadEnds]
    """Its static votes; modes in which it reads nothing are absent."""
    snapshot: BoundHook | None


@attrs.frozen(eq=False)
class Scope:
    """What the readers of one ModelRunner declared, resolved per mode."""

    readers: tuple[Reader, ...]
    ends: dict[ForwardMode, SharedReadEnds]
    latest: dict[ForwardMode, str]
    """Whose vote decided, per mode."""

    @classmethod
    def of(cls, readers: tuple[Reader, ...]) -> Scope:
        """Resolve: the scope's answer is the latest vote."""
        ends, latest = {}, {}
        for mode in ForwardMode:
            votes = {r.plugin: r.votes[mode] for r in readers if mode in r.votes}
            ends[mode] = SharedReadEnds.latest(votes.values())
            latest[mode] = max(votes, key=lambda plugin: votes[plugin])
        return cls(readers, ends, latest)


@attrs.frozen(eq=False)
class EngineScope:
    """What the algorithm and the stagers of an engine declared."""

    later_prefill_reader: bool = False
    """Whether a draft reads shared buffers after the target's prefill."""
    algorithm: str = ""
    """`kind:name` of the algorithm, whose draft that is; empty without one."""
    owners: tuple[BoundHook, ...] = ()
    stagers: tuple[tuple[str, Callable[..., Any]], ...] = ()
    """(plugin, callable) of every stager that answered at wiring."""
