"""The kernel of a gate. Imported late, for it needs Triton."""

from __future__ import annotations

import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from triton.language.extra.cuda import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    globaltimer,
)


@triton.jit
def hold(state, nanoseconds):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Tell that the stream has come here, then let it wait until the host opens, or time is up.

    state: [3] i32 that host and device both see: whether it is open, how often it was reached, how
    often it was passed without being open. The host only writes the first, the device the others.
    """
    begin = globaltimer()
    tl.atomic_add(state + 1, 1, sem="release", scope="sys")
    # A volatile load is made anew each time round, and sees what the host has written since.
    is_open = tl.load(state, volatile=True)
    while (is_open == 0) & (globaltimer() - begin < nanoseconds):
        is_open = tl.load(state, volatile=True)
    if is_open == 0:
        tl.atomic_add(state + 2, 1, sem="release", scope="sys")
