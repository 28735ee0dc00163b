"""The contract test kit: runs a plugin, and proves or refutes what it declares."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warcore.testkit.access import Access
    from warcore.testkit.contexts import context
    from warcore.testkit.marking import mark
    from warcore.testkit.observation import Observation
    from warcore.testkit.observing import observe
    from warcore.testkit.parametrize import checks

_HOME = {
    "Access": "access",
    "Observation": "observation",
    "checks": "parametrize",
    "context": "contexts",
    "mark": "marking",
    "observe": "observing",
}

__all__ = ["Access", "Observation", "checks", "context", "mark", "observe"]


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
