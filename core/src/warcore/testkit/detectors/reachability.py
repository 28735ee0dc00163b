"""Pointer reachability: which nodes of a captured step could touch shared memory after an event.

A node that is not ordered before the node that records the event may run after it. If none of those
is given an address in a shared range, no replay reads there too late, whatever the data: a proof
for this graph. Blind spots: addresses that lie in device memory, or in an opaque descriptor in any
form but the plain one, and kernels that other kernels launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.testkit.detectors.used import note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Range = tuple[int, int]
    """[start, stop) in bytes."""


@attrs.frozen
class Given:
    """Memory that a node is given."""

    how: str
    """`parameter 3, byte 8`, `source`."""
    start: int
    stop: int
    """One more than `start` for a bare address: it may lead anywhere in what it points into."""


@attrs.frozen
class Node:
    """One node of a graph; a graph within it counts as one with it."""

    kind: str
    """`kernel`, `memcpy`, ..."""
    name: str = ""
    """Of a kernel."""
    given: tuple[Given, ...] = ()
    event: int | None = None
    """The event that it records."""
    opaque: bool = False
    """Whether nobody can say what it touches."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@attrs.frozen
class CapturedGraph:
    """Nodes, and which of them has ended before which other one begins."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    """(from, to), places in `nodes`."""

    def recording(self, event: int) -> int | None:
        """The place of the node that records `event`."""
        return next((at for at, node in enumerate(self.nodes) if node.event == event), None)

    def ancestors(self, place: int) -> frozenset[int]:
        """The places of all nodes that have ended before the one at `place` begins."""
        above: dict[int, list[int]] = {}
        for start, stop in self.edges:
            above.setdefault(stop, []).append(start)
        found: set[int] = set()
        waiting = [place]
        while waiting:
            for each in above.get(waiting.pop(), ()):
                if each not in found:
                    found.add(each)
                    waiting.append(each)
        return frozenset(found)


@attrs.frozen
class Suspect:
    """A node that may run too late, and the shared memory that it is given."""

    node: Node
    place: int
    how: str
    buffer: str
    """Empty: it is not known what the node touches."""

    def __str__(self) -> str:
        if not self.buffer:
            return f"node {self.place}, {self.node}, may touch anything"
        return f"node {self.place}, {self.node}, is given an address in {self.buffer} ({self.how})"


def suspects(
    graph: CapturedGraph, shared: Mapping[str, Range], after: int | None
) -> Iterator[Suspect]:
    """The nodes that may run after the one at `after`, and that shared memory is in reach of.

    after: None for an event that was recorded before the launch: all nodes may run after it.
    """
    note("pointer reachability")
    before = frozenset() if after is None else graph.ancestors(after) | {after}
    for place, node in enumerate(graph.nodes):
        if place in before:
            continue
        if node.opaque:
            yield Suspect(node, place, "", "")
            continue
        found = next(_in_reach(node, shared), None)
        if found is not None:
            yield Suspect(node, place, *found)


def _in_reach(node: Node, shared: Mapping[str, Range]) -> Iterator[tuple[str, str]]:
    for given in node.given:
        for buffer, (start, stop) in shared.items():
            if given.start < stop and start < given.stop:
                yield given.how, buffer
