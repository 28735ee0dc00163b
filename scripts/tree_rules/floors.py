"""The floors of the core: a lower floor knows nothing of a higher one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tree_rules.sources import modules, runtime_imports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

FLOORS: Final = (
    "contract hookspecs errors options",
    "registry installed records description deprecation probe device shared staging",
    (
        "batch request output outbox found transcript pools windows memory relay model backend "
        "scope fence resolution gates limits modelrunner draws samplingparams"
    ),
    (
        "runner recording graphs inputs captures step launch spec stager sampling acceptance "
        "batching drafting"
    ),
    (
        "hooks hybrid serving fitting choices config buckets statics launcher scheduler prompts "
        "wired loading assembly capturing kinds forecast plan speculation draftrunners"
    ),
    "engine cli testkit tracing",
)
"""Modules and packages of core/src/warcore, lowest floor first. One line each in the docs too."""

KIT_FLOORS: Final = (
    "mishaps outcome access subject environment marking",
    "packages detectors",
    "observation stands models",
    "contexts observing engines",
    "rules runs",
    "parametrize",
)
"""The same of core/src/warcore/testkit."""


def lower_floors_know_nothing_of_higher_ones(root: Path) -> Iterator[str]:
    """No import that runs points upwards; `warcore/__init__.py` stands above them all."""
    yield from _upwards(root, "warcore", FLOORS)
    yield from _upwards(root, "warcore.testkit", KIT_FLOORS)


def _upwards(root: Path, package: str, floors: Sequence[str]) -> Iterator[str]:
    """The imports of `package` that point upwards, and its rooms without a floor."""
    floor = {name: height for height, names in enumerate(floors) for name in names.split()}
    source = f"core/src/{package.replace('.', '/')}"
    for path, tree in modules(root, source):
        room = path.relative_to(root / source).parts[0].removesuffix(".py")
        if room in {"__init__", "__main__"}:
            continue
        where = path.relative_to(root)
        if room not in floor:
            yield f"{where}:1: {room} has no floor; add it in scripts/tree_rules/floors.py"
            continue
        for line, module, name in runtime_imports(tree):
            target = _room(package, module, name, floor)
            if floor.get(target, -1) > floor[room]:
                yield (
                    f"{where}:{line}: {room} (floor {floor[room]}) imports {target} "
                    f"(floor {floor[target]}); pass it in, or import it below TYPE_CHECKING"
                )
            elif target == "__init__":
                yield f"{where}:{line}: import {name} from the module that defines it"


def _room(package: str, module: str, name: str | None, floor: Mapping[str, int]) -> str:
    """The room of `package` that an import reaches; "" for what is no business here."""
    if module.startswith(f"{package}."):
        return module.removeprefix(f"{package}.").partition(".")[0]
    if module != package:
        return ""
    if name in floor:
        return str(name)
    return "" if name in {None, "__version__"} else "__init__"
