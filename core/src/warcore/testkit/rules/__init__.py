"""The rules of the contract, one module for each kind of plugin."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load_rules() -> None:
    """Import every module here: each registers its checks."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
