"""The floors of the core: a lower floor knows nothing of a higher one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tree_rules.sources import modules, runtime_imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLOORS: Final = (
    "contract hookspecs errors options",
    "registry installed records description deprecation probe device shared staging",
    (
        "batch request output transcript pools windows memory relay model backend hybrid scope "
        "fence resolution gates limits modelrunner draws samplingparams"
    ),
    (
        "runner recording graphs inputs captures step launch spec stager sampling acceptance "
        "batching drafting"
    ),
    (
        "hooks serving fitting choices config buckets statics launcher scheduler prompts wired "
        "loading assembly capturing kinds forecast plan speculation draftrunners"
    ),
    "engine cli testkit tracing",
)
"""Modules and packages of core/src/warcore, lowest floor first. One line each in the docs too."""

_FLOOR: Final = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}


def lower_floors_know_nothing_of_higher_ones(root: Path) -> Iterator[str]:
    """No import that runs points upwards; `warcore/__init__.py` stands above them all."""
    home = root / "core/src/warcore"
    for path, tree in modules(root, "core/src/warcore"):
        room = path.relative_to(home).parts[0].removesuffix(".py")
        if room in {"__init__", "__main__"}:
            continue
        where = path.relative_to(root)
        if room not in _FLOOR:
            yield f"{where}:1: {room} has no floor; add it in scripts/tree_rules/floors.py"
            continue
        for line, module, name in runtime_imports(tree):
            target = _room(module, name)
            if _FLOOR.get(target, -1) > _FLOOR[room]:
                yield (
                    f"{where}:{line}: {room} (floor {_FLOOR[room]}) imports {target} "
                    f"(floor {_FLOOR[target]}); pass it in, or import it below TYPE_CHECKING"
                )
            elif target == "__init__":
                yield f"{where}:{line}: import {name} from the module that defines it"


def _room(module: str, name: str | None) -> str:
    """The module or package of the core that an import reaches; "" for what is no business here."""
    parts = module.split(".")
    if parts[0] != "warcore":
        return ""
    if len(parts) > 1:
        return parts[1]
    if name in _FLOOR:
        return str(name)
    return "" if name in {None, "__version__"} else "__init__"
