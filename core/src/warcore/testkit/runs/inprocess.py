"""A check in the process of whoever asked, for a plugin that no other process can import."""

from __future__ import annotations

import io
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from warcore.testkit.runs.aftermath import Ended
from warcore.testkit.runs.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.runs.check import Check
    from warcore.testkit.subject import Subject


def run_here(check: Check, subject: Subject) -> Ended:
    """Run a check in this process. Ctrl-C and a crash are everybody's; a hang lasts."""
    printed = io.StringIO()
    start = time.perf_counter()
    with _unchanged(), redirect_stdout(printed), redirect_stderr(printed):
        verdict = judge(check.run, check.rule, subject, passing=KeyboardInterrupt)
    return Ended(verdict, True, printed.getvalue()[-4000:], time.perf_counter() - start)


@contextmanager
def _unchanged() -> Iterator[None]:
    """Put back what a plugin may change of torch for the whole process."""
    import torch

    before = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(before[1])
        torch.set_grad_enabled(before[2])
