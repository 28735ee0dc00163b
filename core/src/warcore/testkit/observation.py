"""Observation: who touched the shared tensors in one step, before its marks and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import attrs

if TYPE_CHECKING:
    from warcore.testkit.access import Access
    from warcore.testkit.detectors.sightings import AddressTaken


@attrs.frozen
class Observation(Sequence["Access"]):
    """All accesses that `observe` has seen, first those before a mark; and with what it looked.

    A sequence of them; its `str()` tells the late ones, and what is not known.

    An access's `phase` is the name of the last mark before it; "" if there was none. Its `stream`
    is the thread that made it, where it is not the one that called `observe`. `operation` is the
    library of the code that touched the memory where no call explains the touch.
    """

    before: tuple[Access, ...]
    """While touches were welcome, by what attribution was told; the guard is silent there."""
    after: tuple[Access, ...]
    """The late ones. Empty if all is well, as far as `missing` leaves room for that."""
    marks: tuple[str, ...]
    """The marks in the order in which they were passed."""
    detectors: tuple[str, ...]
    """That ran: guard, attribution, poison."""
    missing: tuple[str, ...]
    """What could not be seen or judged, and why."""
    addresses_taken: tuple[AddressTaken, ...] = ()
    """Where a tensor's address was given away: a late touch without a place may come from there.
    Each has `buffer`, `operation` and `place`."""
    result: Any = attrs.field(default=None, repr=False, eq=False)
    """What the step returned, in the run that was watched."""

    @overload
    def __getitem__(self, index: int) -> Access: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Access, ...]: ...
    def __getitem__(self, index: int | slice) -> Access | tuple[Access, ...]:
        return (*self.before, *self.after)[index]

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def __str__(self) -> str:
        """The late ones, and what is missing, for people."""
        lines = [_line(access) for access in self.after]
        if not lines:
            lines = ["nothing was touched late"] if self.marks else []
        if any(access.place is None for access in self.after):
            lines += [f"  {taken}" for taken in self.addresses_taken]
        lines += [f"not known: {each}" for each in self.missing]
        lines.append(f"seen with {' and '.join(self.detectors) or 'nothing'}")
        return "\n".join([*lines, f"out of sight: {self._out_of_sight}"])

    @property
    def _out_of_sight(self) -> str:
        """What no run of these detectors sees: silence says nothing of it."""
        if "guard" in self.detectors:
            return "reads by an address taken before the step, as a numpy array made earlier has it"
        return "other threads, and whatever reads by an address"


def _line(access: Access) -> str:
    done = "written" if access.kind == "write" else "read"
    thread = f" on {access.stream}" if access.stream else ""
    place = f"\n  at {access.place}" if access.place else ""
    operation = f" by {access.operation}" if access.operation else ""
    times = f", {access.count} times" if access.count > 1 else ""
    # The guard alone knows where a page was touched first, not how far that went.
    which = f"within bytes {access.start} to {access.stop}"
    if access.seen_by == {"guard"}:
        which = f"from byte {access.start} on"
    return (
        f"{access.buffer} was {done} after {access.phase!r}: {which}{operation}{thread}{times} "
        f"({', '.join(sorted(access.seen_by))}){place}"
    )
