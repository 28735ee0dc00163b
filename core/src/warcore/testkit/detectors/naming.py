"""Which of the calls that attribution named made the touches that the page guard saw.

Both watch one run: the guard knows that a page was touched, attribution that a call may touch
certain bytes. A call that was told of while nobody touched its pages has not touched them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.testkit.detectors.faults import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from warcore.testkit.access import Access
    from warcore.testkit.detectors.fault import Fault

PIECES = 4
"""Of a tensor that one line is told to have touched; the last one holds all that are more."""


@attrs.frozen
class Extent:
    """Where a watched tensor lies."""

    memory: str
    """The guarded buffer."""
    runs: Sequence[tuple[int, int]]
    """First bytes and ends of the pieces of the tensor in it, ascending."""

    @property
    def start(self) -> int:
        """The first byte of the tensor, from the start of the buffer."""
        return self.runs[0][0]

    def has(self, offset: int) -> bool:
        """Whether the byte at `offset` of the buffer is one of the tensor's."""
        return any(first <= offset < end for first, end in self.runs)


@attrs.define(eq=False)
class _Told:
    access: Access
    is_seen: bool
    """Whether a touch of its pages was seen, or none could be."""


@attrs.define(eq=False)
class _Call:
    """What was told of one call, and the faults since the call before it."""

    faults: list[tuple[Fault, str]]
    told: list[_Told]

    def is_same(self, access: Access) -> bool:
        last = self.told[-1].access if self.told else None
        return last is not None and (last.operation, last.place) == (access.operation, access.place)

    @property
    def is_told_first(self) -> bool:
        """Whether attribution tells of it before it is made: of methods and kernels it does."""
        operation = self.told[0].access.operation if self.told else ""
        return operation.startswith("Tensor.") or "." not in operation


class Naming:
    """Puts calls and faults together as they come. For one thread at a time.

    extents: of the tensors that are guarded; a call's touch of another one is believed.
    thread: the one whose calls are told of; a touch of another one that no call explains bears its
    thread's name as its stream.
    """

    def __init__(self, extents: Mapping[str, Extent], thread: str) -> None:
        self._extents = extents
        self._thread = thread
        self._found: list[Access] = []
        self._before = _Call([], [])
        self._call = _Call([], [])

    def told(self, access: Access, faults: list[tuple[Fault, str]]) -> None:
        """Attribution tells of a touch; the faults, each with its phase, came before that."""
        if faults or not self._call.is_same(access):
            self._next(faults)
        self._call.told.append(_Told(access, access.buffer not in self._extents))

    def finish(self, faults: list[tuple[Fault, str]]) -> list[Access]:
        """All touches in their order, `merged`.

        faults: since the last call.
        """
        self.settle(faults)
        return merged(self._found)

    def settle(self, faults: list[tuple[Fault, str]]) -> None:
        """No call is under way: the next ones have not made what came so far."""
        self._next(faults)
        self._next([])
        self._before, self._call = _Call([], []), _Call([], [])

    def _next(self, faults: list[tuple[Fault, str]]) -> None:
        """A call has ended, and the faults came since: now it is known which the last one made."""
        before, call = self._before, self._call
        makers = [told for told in before.told if before.is_told_first]
        makers += [told for told in call.told if not call.is_told_first]
        for fault, phase in call.faults:
            self._found += self._named(fault, phase, makers)
        self._found += [told.access for told in before.told if told.is_seen]
        self._before, self._call = call, _Call(faults, [])

    def _named(self, fault: Fault, phase: str, makers: list[_Told]) -> list[Access]:
        """The touches that no call is told of with."""
        near = [told for told in makers if self._is_near(told.access, fault)]
        # A fault that reads may be the first half of a write in place.
        exact = [told for told in near if fault.kind in {"read", told.access.kind}]
        for told in exact:
            told.is_seen = True
            both = told.access.seen_by | {"guard"}
            told.access = attrs.evolve(told.access, seen_by=both)
        if exact:
            return []
        if near:
            both = near[0].access.seen_by | {"guard"}
            return [attrs.evolve(near[0].access, kind=fault.kind, seen_by=both)]
        return list(self._unnamed(fault, phase))

    def _is_near(self, access: Access, fault: Fault) -> bool:
        extent = self._extents.get(access.buffer)
        if extent is None or extent.memory != fault.buffer:
            return False
        page = fault.offset // PAGE * PAGE
        return extent.start + access.start < fault.stop and page < extent.start + access.stop

    def _unnamed(self, fault: Fault, phase: str) -> Iterable[Access]:
        for name, extent in self._extents.items():
            if extent.memory == fault.buffer and extent.has(fault.offset):
                start = fault.offset - extent.start
                stop = min(fault.stop, extent.runs[-1][1]) - extent.start
                yield attrs.evolve(
                    fault.access(),
                    buffer=name,
                    start=start,
                    stop=stop,
                    stream="" if fault.thread == self._thread else fault.thread,
                    phase=phase,
                    operation=fault.code,
                )


def merged(found: Iterable[Access]) -> list[Access]:
    """Each buffer, kind, operation, line, thread and phase once, in the order of the first.

    Pieces with bytes between them that nobody touched stay apart, up to `PIECES`.
    """
    known: dict[tuple[object, ...], list[Access]] = {}
    for access in found:
        key = (
            *(access.buffer, access.kind, access.operation),
            *(access.place, access.stream, access.phase),
        )
        known[key] = _joined(known.get(key, []), access)
    return [piece for pieces in known.values() for piece in pieces]


def _joined(pieces: list[Access], access: Access) -> list[Access]:
    """`pieces` with one more, which becomes one with those that it meets."""
    apart = [each for each in pieces if each.stop < access.start or access.stop < each.start]
    if len(apart) == len(pieces) == PIECES:
        apart = pieces[:-1]
    for each in pieces:
        if each not in apart:
            access = attrs.evolve(
                each,
                start=min(each.start, access.start),
                stop=max(each.stop, access.stop),
                seen_by=each.seen_by | access.seen_by,
                count=each.count + access.count,
            )
    return [*apart, access]
