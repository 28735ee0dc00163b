"""A scope: the readers of one ModelRunner, what they voted, and the hooks of the whole engine.

Everything here was read from pluggy once, at wiring; a step only reads attributes and calls bound
methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.errors import WiringError

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
    owners: tuple[BoundHook, ...] = ()
    stagers: tuple[tuple[str, Callable[..., Any]], ...] = ()
    """(plugin, callable) of every stager that answered at wiring."""


def take_votes(
    plugin: str, hook: BoundHook, *, mandatory: bool
) -> dict[ForwardMode, SharedReadEnds]:
    """Ask one reader for every mode. WiringError for a bad vote: it must never reach a step.

    mandatory: the backend's vote is total; another reader may answer None where it reads nothing.
    """
    votes = {}
    for mode in ForwardMode:
        where = f"{plugin}: shared_read_ends({mode.name})"
        try:
            vote = hook(forward_mode=mode)
            again = hook(forward_mode=mode)
        except Exception as error:
            raise WiringError(
                f"{where} raised {error!r}",
                next="answer every ForwardMode without reading anything",
            ) from error
        if vote is None and not mandatory:
            continue
        if not isinstance(vote, SharedReadEnds):
            raise WiringError(
                f"{where} returned {vote!r}, which is no SharedReadEnds",
                next="return PRE_REPLAY, IN_REPLAY, POST_REPLAY or UNKNOWN for every mode",
            )
        if again is not vote:
            raise WiringError(
                f"{where} returned {vote.name}, then {again!r}: a vote must be pure",
                next="decide per batch in prepare_prefill_shared_read_snapshot instead",
            )
        votes[mode] = vote
    return votes
