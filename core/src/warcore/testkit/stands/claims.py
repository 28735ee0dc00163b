"""Claims: what a backend may say that it serves, beyond the shapes that every check walks."""

from __future__ import annotations

from functools import partial
from itertools import cycle, islice, zip_longest
from typing import TYPE_CHECKING, Final

import attrs

from warcore.contract import ForwardMode, GraphKind
from warcore.testkit.stands.cell import CONTEXT, ROWS, Cell, Shape
from warcore.testkit.stands.walk import new_stand, note_sizes, quiet_torch, servable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.outcome import Failure
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

    Look = Callable[[Stand, Cell], Iterable[Failure]]
    Walk = Callable[[Stand], None]

PAGES: Final = (1, 8, 12, 64)
"""Page sizes besides those of every check; the third is no power of two."""
SIZED: Final = 4
"""With how many of its own page sizes a backend is tried, if it lists them."""
LONG: Final = 1100
"""Tokens that a long request may have: kernels take other paths from 128, 256, 512, 1024 on."""
LENGTHS: Final = (130, 260, 520, 1030)
"""Tokens of long requests, each just beyond one of those."""
PROMPTS: Final = (130, 520)
"""Tokens of long prompts: each is walked once from nothing, and once behind itself."""
MANY: Final = (2, 16)
"""Buckets of a shape of many requests."""


def claims(subject: Subject) -> Iterator[Shape]:
    """Shapes beyond those of every check: each says one thing that a kernel may not have."""
    own, plain = subject.cls.page_sizes, _plain(subject)
    sizes = PAGES if own is None else sorted(own)[:SIZED]
    yield from of_engines(subject)
    for dtype in ("float16", "float64"):
        yield attrs.evolve(plain, dtype=dtype)
    for head_dim in (8, 40, 80, 128, 192, 256):
        yield attrs.evolve(plain, head_dim=head_dim)
    for q_heads, kv_heads in ((1, 1), (6, 2), (8, 1), (3, 3)):
        yield attrs.evolve(plain, q_heads=q_heads, kv_heads=kv_heads)
    for windows in ((1, None), (5, 5), (3, 9), (CONTEXT + 1, None)):
        yield attrs.evolve(plain, windows=windows)
    for size in sizes:
        yield attrs.evolve(plain, page_size=size)
    yield attrs.evolve(plain, tree=True, windows=(6, None))
    yield attrs.evolve(plain, max_context=max(plain.page_size, 8))


def of_engines(subject: Subject) -> Iterator[Shape]:
    """Those of them that engines have and capture, sooner or later: their usual element type, long
    requests and many of them, and drafts.
    """
    plain = _plain(subject)
    yield attrs.evolve(plain, dtype="bfloat16")
    yield attrs.evolve(plain, head_dim=16, max_context=LONG, buckets=(2,))
    yield attrs.evolve(plain, buckets=MANY)
    yield attrs.evolve(plain, role="draft")


def _plain(subject: Subject) -> Shape:
    """What the others differ from in one thing each."""
    own = subject.cls.page_sizes
    return Shape(page_size=min(own) if own else 4, windows=(None, None))


def servable_of(subject: Subject, wanted: Iterable[Shape]) -> list[Shape]:
    """Those of `wanted` that the backend serves, each once."""
    found = (servable(subject, shape) for shape in wanted)
    return list(dict.fromkeys(shape for shape in found if shape is not None))


def claimed(subject: Subject, wanted: Iterable[Shape]) -> Iterator[tuple[Shape, GraphKind]]:
    """Those of `wanted` that the backend serves, and under which graph to walk each."""
    captured = set(servable_of(subject, of_engines(subject)))
    for shape in servable_of(subject, wanted):
        yield shape, GraphKind.NONE
        if shape in captured:
            yield shape, GraphKind.UNBROKEN


def few_steps(shape: Shape, graph: GraphKind) -> Iterator[Cell]:
    """A few steps of one shape, none of them longer than its context.

    The first one is the first that a backend runs, and may be captured.
    """
    yield Cell(shape, ForwardMode.EXTEND, graph, (0,), (min(5, shape.max_context // 2),))
    for mode in ForwardMode:
        if _may_run(mode, shape, graph):
            spans = _long(mode, graph) if shape.max_context == LONG else _short(shape, mode, graph)
            for prefixes, count in spans:
                yield Cell(shape, mode, graph, prefixes, (count,) * len(prefixes))


def _may_run(mode: ForwardMode, shape: Shape, graph: GraphKind) -> bool:
    """Whether there are such steps: nobody captures mixed ones, and no draft verifies."""
    if mode is ForwardMode.TARGET_VERIFY:
        return shape.role == "target"
    return not shape.tree and (mode is not ForwardMode.MIXED or graph is GraphKind.NONE)


def _short(
    shape: Shape, mode: ForwardMode, graph: GraphKind
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Tokens before a step of each request, and new ones of each, in a batch of many requests."""
    longest = shape.max_context
    page = 3 if shape.page_size > CONTEXT // 2 else shape.page_size
    prefixes: tuple[int, ...] = (0, page, 5, longest - 13)
    if longest < CONTEXT:
        prefixes = (0, 1, longest - 6)
    count = 1 if mode is ForwardMode.DECODE else 3
    if shape.rows > ROWS:
        rows = shape.rows if graph is GraphKind.NONE else shape.buckets[-1]
        prefixes = tuple(islice(cycle(prefixes), rows))
    yield prefixes, count


def _long(mode: ForwardMode, graph: GraphKind) -> Iterator[tuple[tuple[int, ...], int]]:
    """The same of one request; mixed steps are coarse, and cost what prefills do."""
    if mode is ForwardMode.EXTEND:
        # Beyond every bucket: they run eagerly under each graph.
        prompts = PROMPTS if graph is GraphKind.NONE else ()
        yield from (((0,), tokens) for tokens in prompts)
    elif mode is not ForwardMode.MIXED:
        yield from (((length,), 1 if mode is ForwardMode.DECODE else 3) for length in LENGTHS)


def walked(stand: Stand, cells: Sequence[Cell]) -> Iterator[Cell]:
    """The cells one by one; what lies before them is computed for all at once, when one needs it.

    What a step leaves at a position depends on the row and on that alone.
    """
    before = tuple(map(max, zip_longest(*(cell.prefixes for cell in cells), fillvalue=0)))
    for cell in cells:
        if any(cell.prefixes) and before:
            stand.prepare(attrs.evolve(cell, prefixes=before))
            before = ()
        yield cell


def in_claims(subject: Subject, look: Look, guard: PageGuard | None = None) -> Iterator[Failure]:
    """What `look` finds in a few steps of each shape that the backend says it serves.

    Which of its kernels runs may depend on the element type, a head size or a page size. A shape
    that it cannot run is for `backend.serves` to tell.
    """
    for shape, graph in claimed(subject, claims(subject)):
        wanted = [cell for cell in few_steps(shape, graph) if subject.wants(cell)]
        if not wanted:
            continue
        try:
            with quiet_torch(), new_stand(subject, shape, graph, guard=guard) as stand:
                for cell in walked(stand, wanted):
                    note_sizes(subject, cell)
                    yield from look(stand, cell)
        except Exception:
            # What raises because of how it is looked at is a finding: a call that is handed closed
            # memory fails.
            if runs(subject, shape, graph, partial(_run, wanted)):
                raise


def _run(cells: Sequence[Cell], stand: Stand) -> None:
    for cell in walked(stand, cells):
        for batch in stand.steps(cell):
            stand.run(batch)


def runs(subject: Subject, shape: Shape, graph: GraphKind, walk: Walk) -> bool:
    """Whether a walk comes to its end on a stand of this shape, while nobody looks."""
    try:
        with quiet_torch(), new_stand(subject, shape, graph) as stand:
            walk(stand)
    except Exception:  # noqa: BLE001 - whatever it is, `backend.serves` meets it too
        return False
    return True
