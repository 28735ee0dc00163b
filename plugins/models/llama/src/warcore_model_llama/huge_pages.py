"""Huge pages under the weights of a model on a CPU.

A decode step reads every weight once, page by page. Matrices of a small model are smaller than a
huge page, so the allocator leaves them on small ones, and looking those up takes up to a quarter
of the step. Linux moves them when asked (madvise(2), MADV_COLLAPSE, from 6.1).
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    Span = tuple[int, int]
    """Address and number of bytes."""

HUGE: Final = 1 << 21
COLLAPSE: Final = 25
GAP: Final = 1 << 16
"""Spans so close to each other are one: the allocator's own words lie between them."""
SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def back_by_huge_pages(spans: Iterable[Span]) -> None:
    """Ask the kernel to keep this memory on huge pages.

    A hint: contents and addresses stay, and where the kernel has none, is no Linux, or is set to
    `never`, nothing happens.
    """
    if sys.platform != "linux" or not SETTING.exists() or "[never]" in SETTING.read_text():
        return
    madvise = ctypes.CDLL(None).madvise
    for first, size in whole_pages(spans):
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), COLLAPSE)


def whole_pages(spans: Iterable[Span]) -> list[Span]:
    """The huge pages that lie within the spans, neighbours taken together."""
    joined: list[list[int]] = []
    for start, size in sorted(spans):
        if joined and start - joined[-1][1] < GAP:
            joined[-1][1] = max(joined[-1][1], start + size)
        else:
            joined.append([start, start + size])
    inner = [(-(-start // HUGE) * HUGE, end // HUGE * HUGE) for start, end in joined]
    return [(first, last - first) for first, last in inner if first < last]
