"""Cell: one combination of mode, graph and shapes that a check walks through, and the grid."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import attrs

from warcore.contract import ForwardMode, GraphKind

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAFTED = 3
"""Tokens of each request in a verify batch."""
BUCKETS = (2, 4)
"""Batch sizes at which the kit captures; the largest batch is one more."""
ROWS = BUCKETS[-1] + 1
"""The largest batch."""
CONTEXT = 64
"""Tokens that a row holds; of a shape of longer requests, as many as those have."""


@attrs.frozen
class Shape:
    """What a plugin is built for: sizes that stay for a whole engine."""

    page_size: int = 4
    q_heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    dtype: str = "float32"
    windows: tuple[int | None, ...] = (None, None, None)
    """Of each layer."""
    tree: bool = False
    max_context: int = CONTEXT
    """Tokens that a request may have."""
    buckets: tuple[int, ...] = BUCKETS
    """Batch sizes that are captured, ascending; the largest batch is one more."""
    role: str = "target"
    """Whose attention it is: a target's, or a draft's."""

    @property
    def rows(self) -> int:
        """The largest batch."""
        return self.buckets[-1] + 1

    @property
    def context(self) -> int:
        """Tokens that a row of the tables holds."""
        return max(self.max_context, CONTEXT)

    def __str__(self) -> str:
        windowed = "-windows" if any(self.windows) else ""
        tree = "-tree" if self.tree else ""
        heads = f"h{self.q_heads}over{self.kv_heads}x{self.head_dim}"
        context = "" if self.max_context == CONTEXT else f"-context{self.max_context}"
        rows = "" if self.rows == ROWS else f"-rows{self.rows}"
        role = "" if self.role == "target" else f"-{self.role}"
        return f"{heads}-page{self.page_size}-{self.dtype}{windowed}{tree}{context}{rows}{role}"


@attrs.frozen
class Cell:
    """One kind of step on one shape; a check runs it twice in a row."""

    shape: Shape
    mode: ForwardMode
    graph: GraphKind
    prefixes: tuple[int, ...]
    """Tokens of each request before the step."""
    lens: tuple[int, ...]
    """New tokens of each request."""

    def __str__(self) -> str:
        lengths = "_".join(f"{p}+{n}" for p, n in zip(self.prefixes, self.lens, strict=True))
        return f"{self.mode.value}-{self.graph.value}-{lengths}-{self.shape}"


def shapes(page_sizes: frozenset[int] | None, *, thorough: bool) -> Iterator[Shape]:
    """Shapes to try; `page_sizes` are those that a backend can serve, None: any."""
    sizes = [4, 16] if page_sizes is None else sorted(page_sizes)[:2]
    yield Shape(page_size=sizes[0])
    yield Shape(page_size=sizes[-1], q_heads=4, kv_heads=4, windows=(None, 7, 7))
    yield Shape(page_size=sizes[0], q_heads=3, tree=True)
    if thorough:
        for dtype, ratio in itertools.product(("bfloat16", "float32"), (1, 4, 8)):
            yield Shape(page_size=sizes[-1], q_heads=ratio, dtype=dtype)


def cells(shape: Shape, graph: GraphKind, *, thorough: bool) -> Iterator[Cell]:
    """The steps to try on one shape; the first one is the first that its backend runs.

    Batches of 1, of a bucket less one, of a bucket, and beyond every bucket; lengths around a page,
    and long ones.
    """
    page = shape.page_size
    lengths = [1, page - 1, page, page + 1, 40]
    batches = [(lengths[4],), tuple(lengths[:1]), tuple(lengths[1:4]), tuple(lengths[:4])]
    batches += [tuple(lengths)]
    if thorough:
        batches += [(length,) * count for length in lengths for count in (1, 2, 3)]
    yield cell_of(shape, ForwardMode.EXTEND, graph, (0,))
    for mode in ForwardMode:
        if mode is ForwardMode.TARGET_VERIFY or not shape.tree:
            for prefixes in batches:
                if graph is GraphKind.NONE or mode is not ForwardMode.MIXED:
                    yield cell_of(shape, mode, graph, prefixes)


def cell_of(shape: Shape, mode: ForwardMode, graph: GraphKind, prefixes: tuple[int, ...]) -> Cell:
    """The step of requests that have `prefixes`, each with as many new tokens as its mode has."""
    return Cell(shape, mode, graph, prefixes, _new_tokens(mode, prefixes))


def _new_tokens(mode: ForwardMode, prefixes: tuple[int, ...]) -> tuple[int, ...]:
    if mode is ForwardMode.DECODE:
        return (1,) * len(prefixes)
    if mode is ForwardMode.TARGET_VERIFY:
        return (DRAFTED,) * len(prefixes)
    if mode is ForwardMode.DRAFT_EXTEND:
        return tuple(1 + place % DRAFTED for place in range(len(prefixes)))
    if mode is ForwardMode.MIXED:
        return tuple(1 if place % 2 else 5 for place in range(len(prefixes)))
    return tuple(3 + 2 * place for place in range(len(prefixes)))
