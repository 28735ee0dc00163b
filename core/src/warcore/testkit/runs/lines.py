"""Lines: what many cells of one check fail for, once for each line of the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.testkit.outcome import Elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from warcore.testkit.outcome import Failure


def by_line(found: Iterable[Failure]) -> Failure:
    """All of `found`, at least one, as a failure at the line that was seen first.

    The cells of that line are its own; every other line is in `elsewhere`. Failures of which no
    detector knows the line count as one line.
    """
    lines: dict[str, list[Failure]] = {}
    for failure in found:
        lines.setdefault(failure.where, []).append(failure)
    same, *others = lines.values()
    cells = _cells(same)
    return attrs.evolve(
        same[0],
        seen_by=_seen_by(same),
        more=len(cells) - 1,
        cells=cells,
        elsewhere=tuple(_elsewhere(each) for each in others),
    )


def _elsewhere(same: Sequence[Failure]) -> Elsewhere:
    first = same[0]
    return Elsewhere(first.declared, first.observed, first.where, _seen_by(same), _cells(same))


def _cells(same: Iterable[Failure]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(failure.cell for failure in same))


def _seen_by(same: Iterable[Failure]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(detector for failure in same for detector in failure.seen_by))
