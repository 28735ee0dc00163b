"""Claims: what a backend may say that it serves, beyond the shapes that every check walks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from warcore.contract import ForwardMode, GraphKind
from warcore.testkit.stands.cell import CONTEXT, Cell, Shape
from warcore.testkit.stands.walk import new_stand, quiet_torch, servable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.outcome import Failure
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

    Look = Callable[[Stand, Cell], Iterable[Failure]]

PAGES: Final = (1, 8, 12, 64)
"""Page sizes besides those of every check; the third is no power of two."""
SIZED: Final = 4
"""With how many of its own page sizes a backend is tried, if it lists them."""


def claims(subject: Subject) -> Iterator[Shape]:
    """Shapes beyond those of every check: each says one thing that a kernel may not have."""
    own = subject.cls.page_sizes
    sizes = PAGES if own is None else sorted(own)[:SIZED]
    plain = Shape(page_size=sizes[0] if own else 4, windows=(None, None))
    for dtype in ("bfloat16", "float16", "float64"):
        yield attrs.evolve(plain, dtype=dtype)
    for head_dim in (8, 40, 80, 128):
        yield attrs.evolve(plain, head_dim=head_dim)
    for q_heads, kv_heads in ((1, 1), (6, 2), (8, 1), (3, 3)):
        yield attrs.evolve(plain, q_heads=q_heads, kv_heads=kv_heads)
    for windows in ((1, None), (5, 5), (3, 9), (CONTEXT + 1, None)):
        yield attrs.evolve(plain, windows=windows)
    for size in sizes:
        yield attrs.evolve(plain, page_size=size)
    yield attrs.evolve(plain, tree=True, windows=(6, None))
    yield attrs.evolve(plain, max_context=max(plain.page_size, 8))


def servable_of(subject: Subject, wanted: Iterable[Shape]) -> list[Shape]:
    """Those of `wanted` that the backend serves, each once."""
    found = (servable(subject, shape) for shape in wanted)
    return list(dict.fromkeys(shape for shape in found if shape is not None))


def short_steps(shape: Shape) -> Iterator[Cell]:
    """A few eager steps of one shape, none of them longer than its context."""
    longest = shape.max_context
    prefixes: tuple[int, ...] = (0, shape.page_size, 5, longest - 13)
    if longest < CONTEXT:
        prefixes = (0, 1, longest - 6)
    elif shape.page_size > CONTEXT // 2:
        prefixes = (0, 3, 5, longest - 13)
    for mode in ForwardMode:
        if mode is ForwardMode.TARGET_VERIFY or not shape.tree:
            count = 1 if mode is ForwardMode.DECODE else 3
            yield Cell(shape, mode, GraphKind.NONE, prefixes, (count,) * len(prefixes))


def in_claims(subject: Subject, look: Look, guard: PageGuard | None = None) -> Iterator[Failure]:
    """What `look` finds in a few eager steps of each shape that the backend says it serves.

    Which of its kernels runs may depend on the element type, a head size or a page size. A shape
    that it cannot run is for `backend.serves` to tell.
    """
    for shape in servable_of(subject, claims(subject)):
        wanted = [cell for cell in short_steps(shape) if subject.wants(cell)]
        if not wanted or not _runs(subject, shape, wanted):
            continue
        with quiet_torch(), new_stand(subject, shape, GraphKind.NONE, guard=guard) as stand:
            for cell in wanted:
                stand.prepare(cell)
                # What raises now does so because of how it is looked at: a call that is handed
                # closed memory fails, and that is a finding.
                yield from look(stand, cell)


def _runs(subject: Subject, shape: Shape, cells: Iterable[Cell]) -> bool:
    """Whether all their steps come to their end while nobody looks."""
    try:
        with quiet_torch(), new_stand(subject, shape, GraphKind.NONE) as stand:
            for cell in cells:
                stand.prepare(cell)
                for batch in stand.steps(cell):
                    stand.run(batch)
    except Exception:  # noqa: BLE001 - whatever it is, `backend.serves` meets it too
        return False
    return True
