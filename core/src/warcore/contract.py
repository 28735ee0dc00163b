"""The words of the contract: when reads end, what kind of step it is, how a graph is built.

Floor 0: no torch, no pluggy. A plugin's declaration is made of these words and nothing else.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class SharedReadEnds(enum.IntEnum):
    """Where a reader's last read of the shared buffers ends, ordered by lateness.

    A member is a promise about the forward stream: after that point the reader touches no buffer
    that the schedule stream may rewrite.
    """

    PRE_REPLAY = 1
    """With the out-graph metadata: whatever is needed later was copied before the replay."""
    IN_REPLAY = 2
    """With the in-graph metadata: at the marker inside the graph."""
    POST_REPLAY = 3
    """With the body: layers still read; only the end of the replay is safe."""
    UNKNOWN = 4
    """Nobody has looked. The step gets a coarse fence."""

    @classmethod
    def latest(cls, votes: Iterable[SharedReadEnds]) -> SharedReadEnds:
        """The latest of `votes`: the answer of a scope or of a composite.

        Taking the maximum means that a reader can delay a fence and never advance another's.
        Raises ValueError without votes: nobody having voted is a wiring error, not an answer.
        """
        return max(votes)


class ForwardMode(enum.Enum):
    """What a step does."""

    EXTEND = "extend"
    """Prefill: several new tokens per request, after a cached prefix or none."""
    DECODE = "decode"
    """One new token per request."""
    MIXED = "mixed"
    """Prefill chunks and decodes in one batch."""
    TARGET_VERIFY = "target_verify"
    """The target scores the tokens that a draft proposed."""
    DRAFT_EXTEND = "draft_extend"
    """A draft catches up with the tokens that were accepted."""

    @property
    def is_prefill(self) -> bool:
        """True for the modes whose fence the prefill gates settle (EXTEND and MIXED)."""
        return self is ForwardMode.EXTEND or self is ForwardMode.MIXED


class GraphKind(enum.Enum):
    """How the graph runner of a scope replays a step; known before anybody votes."""

    NONE = "none"
    """Every step runs eagerly."""
    UNBROKEN = "unbroken"
    """One graph from the in-graph metadata to the logits."""
    BREAKABLE = "breakable"
    """Segments with eager breaks: a read in a later segment is not covered by the marker."""
