"""Walking the grid: a backend through every cell that it says it can serve."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import torch

from warcore.contract import GraphKind
from warcore.testkit.outcome import NotApplicable
from warcore.testkit.stands.cell import cells, shapes
from warcore.testkit.stands.memory import spec_of
from warcore.testkit.stands.stand import Stand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.stands.cell import Cell, Shape
    from warcore.testkit.subject import Subject

WINDOW: Final = 7
"""Of layers that get one because the backend wants some."""


@contextmanager
def quiet_torch() -> Iterator[None]:
    """One thread, as long as tensors are this small; then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stands(
    subject: Subject,
    *,
    guard: PageGuard | None = None,
    graphs: tuple[GraphKind, ...] | None = None,
    legible: bool = False,
) -> Iterator[Stand]:
    """A stand for each shape that the backend can serve, times the kinds of graph.

    legible: whose captures can be read node by node.

    NotApplicable, with its own reasons, if it can serve none.
    """
    reasons: dict[str, None] = {}
    served = 0
    for asked in shapes(subject.cls.page_sizes, thorough=subject.thorough):
        shape = servable(subject, asked)
        if shape is None:
            reasons |= dict.fromkeys(why_not(subject, asked))
            continue
        for graph in graphs or tuple(GraphKind):
            with quiet_torch():
                served += 1
                with new_stand(subject, shape, graph, guard=guard, legible=legible) as stand:
                    yield stand
    if not served:
        raise NotApplicable(f"it serves none of the kit's shapes: {'; '.join(reasons)}")


def servable(subject: Subject, shape: Shape) -> Shape | None:
    """`shape`, or the same with windows for a backend that wants some; None if it serves neither.

    The first layer stays without: a backend of windows may still see whole sequences there.
    """
    if not why_not(subject, shape):
        return shape
    if any(shape.windows):
        return None
    windowed = attrs.evolve(shape, windows=(None, *(WINDOW for _ in shape.windows[1:])))
    return None if why_not(subject, windowed) else windowed


def new_stand(
    subject: Subject,
    shape: Shape,
    graph: GraphKind,
    *,
    guard: PageGuard | None = None,
    legible: bool = False,
) -> Stand:
    """The subject on its device."""
    return Stand(
        subject.cls,
        shape,
        graph,
        device=subject.device,
        options=subject.options,
        guard=guard,
        legible=legible,
    )


def why_not(subject: Subject, shape: Shape) -> list[str]:
    """Every reason why the backend cannot serve `shape`."""
    device = torch.device("cuda" if subject.device == "cuda" else "cpu")
    reasons: list[str] = subject.cls.why_not(spec_of(shape, device))
    return reasons


def cells_of(subject: Subject, stand: Stand) -> Iterator[Cell]:
    """The cells of a stand that the subject asks for, each prepared for its first step."""
    for cell in cells(stand.shape, stand.graph, thorough=subject.thorough):
        if subject.wants(cell):
            ends: Any = stand.scope.ends[cell.mode]
            subject.ends.setdefault(cell.graph.value, {})[cell.mode.value] = ends.name
            note_sizes(subject, cell)
            stand.prepare(cell)
            yield cell


def note_sizes(subject: Subject, cell: Cell) -> None:
    """A check looks at both steps of a cell."""
    longest = max(p + 2 * n for p, n in zip(cell.prefixes, cell.lens, strict=True))
    subject.sized(tokens=longest, requests=len(cell.lens), head_dim=cell.shape.head_dim)


def declared(stand: Stand, cell: Cell) -> str:
    """The backend's word for a cell's mode."""
    ends: Any = stand.scope.ends[cell.mode]
    return f"{ends.name} for {cell.mode.value} steps"
