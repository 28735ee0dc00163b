"""The kernel of a gate. Imported late, for it needs Triton."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LANGUAGE = "triton"
"""Required of nobody: without it there are no gates."""

triton: Any = import_module(_LANGUAGE)
tl = import_module(f"{_LANGUAGE}.language")
globaltimer = import_module(f"{_LANGUAGE}.language.extra.cuda").globaltimer


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
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
