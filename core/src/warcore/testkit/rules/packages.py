"""What the distribution of a plugin owes to whoever installs it: all kinds."""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Final

import warcore
from warcore.installed import Installed, canonical, installed
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.sources import Package, place_of
from warcore.testkit.packages.wheels import listed_from_wheel
from warcore.testkit.runs.check import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.access import Place
    from warcore.testkit.subject import Subject

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
RESERVED: Final = {"graph_runner": {"none"}}
"""Words that an option gives another meaning."""


@check(None, loads=False)
def imports_public_names(subject: Subject) -> None:
    """A plugin takes from warcore what `warcore.__all__` and `warcore.testkit` hold, nothing else.

    A plugin imported a private module of vLLM by its path (vllm-plugin-FL #125). The module lay
    elsewhere in the release that people had, and the engine could not start beside it.

    Import from `warcore` itself. If a name that you need is not public, ask for it: the contract
    grows when a real plugin needs something.
    """
    package = Package.of(subject.record)
    taken = list(_private(package))
    if taken:
        place, what = taken[0]
        raise Refuted(
            Failure(
                "it uses the public names of warcore only",
                f"it takes {what}",
                str(place),
                ("its source",),
                more=len(taken) - 1,
            )
        )


@check(None, loads=False)
def metadata_is_sane(subject: Subject) -> None:
    """A plugin's name is one word that options can hold; its distribution requires warcore from the
    contract it was written for up to the next that may break it, the installed one between them.

    A plugin for a later release was installed beside vLLM 0.13 (vllm-plugin-FL #195). Nothing had
    refused the pair, and every command of the engine ended in an ImportError.

    Write `"warcore>=0.1,<0.2"` into `dependencies`: the lower bound is the contract that the kit
    holds the plugin to, the upper one the next minor. Name the entry point with letters, digits,
    `_` and `-`: `KIND:NAME`, `--opt NAME.key=value` and a list with commas have to hold it.
    """
    name, kind = subject.record.name, subject.record.kind
    if not NAME.fullmatch(name):
        raise Refuted(Failure(f"people can type {name!r}", "it is not one word"))
    if name in RESERVED.get(kind, ()):
        raise Refuted(Failure(f"{name} is this {kind}", f"the option takes {name!r} for none"))
    _refute_requirement(_distribution(subject))


@check(None, loads=False)
def requires_what_it_imports(subject: Subject) -> None:
    """Each package that a plugin imports is one that its distribution requires.

    `import triton` failed on a fresh machine because it imports numpy, which only the extra for its
    tests required (triton #2899). On its authors' machines numpy was always there.

    Add the distribution to `dependencies`: `"torch>=2.9"` too, if you import torch. What is
    optional belongs into an extra, and its import below `try:`.
    """
    dist = _distribution(subject)
    required = {_required(line) for line in dist.requires}
    package = Package.of(subject.record)
    owners = _owners()
    for found in package.imports():
        top = found.module.partition(".")[0]
        own = {package.name, "warcore"}
        if found.optional or top in own or top in sys.stdlib_module_names:
            continue
        names = {canonical(name) for name in owners.get(top, (top,))}
        if names & {*required, canonical(dist.name)}:
            continue
        # Of what lies beside it in its sources no metadata tells the owner.
        if top not in owners and _lies_beside(package, top):
            continue
        raise Refuted(
            Failure(
                f"{dist.name} requires what it imports",
                f"it imports {found.module} and does not require {' or '.join(sorted(names))}",
                str(found.place),
                ("its source", "its metadata"),
            )
        )


@check(None, level="SHOULD", loads=False)
def is_described(subject: Subject) -> None:
    """A plugin says what it is: a docstring of its class, a summary and a README of its package.

    One flag of SGLang was taken for two claims, that a graph holds the draft-extend and that it
    does not read the page table again (#36335); page tables went wrong in silence.

    Write a line below `class`, `description` and `readme` into pyproject.toml, and into the README
    what each declaration is and why it is true.
    """
    said = _docstring(subject)
    if said is not None and not said.strip():
        name = subject.record.entry_point.rpartition(":")[2]
        raise Refuted(Failure("its class says what it is", f"{name} does not"))
    if subject.record.distribution is None:
        return
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        fields = metadata(subject.record.distribution).json
    except PackageNotFoundError:
        raise NotApplicable("its metadata cannot be read") from None
    texts = {"description": fields.get("summary"), "readme": fields.get("description")}
    for what, text in texts.items():
        if not str(text or "").strip():
            raise Refuted(
                Failure(f"its package says what it is: {what} in pyproject.toml", "there is none")
            )


@check(None, needs=("plugin.loads",))
def wheel_is_found(subject: Subject) -> None:
    """The wheel of a plugin, alone in a new environment, is found and can be imported.

    FlashQLA named its topmost package only (#3): from a checkout everything worked, while the wheel
    lacked all subpackages.

    Look into the wheel (`python -m zipfile -l`): it must hold every module and the entry point.
    With hatchling, name the package in `[tool.hatch.build.targets.wheel]`.
    """
    trouble = listed_from_wheel(subject.record, _distribution(subject))
    if trouble is not None:
        raise Refuted(Failure("its wheel holds all of it", trouble, seen_by=("a new environment",)))


def _docstring(subject: Subject) -> str | None:
    """That of its class, by its sources; None where they do not tell."""
    if subject.cls is not None:
        return str(subject.cls.__doc__ or "")
    name = subject.record.entry_point.rpartition(":")[2].rpartition(".")[2]
    try:
        modules = Package.of(subject.record).modules
    except NotApplicable:
        return None
    # Where its module only hands it on, any class of this name in the package may be it.
    own = [(path, tree) for path, tree in modules if str(path) == subject.record.file]
    for trees in (own, modules):
        classes = [
            node
            for _, tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name == name
        ]
        if classes:
            return "".join(ast.get_docstring(each) or "" for each in classes)
    return None


def _refute_requirement(dist: Installed) -> None:
    from packaging.requirements import InvalidRequirement, Requirement

    lines = [line for line in dist.requires if _required(line) == "warcore"]
    declared = f"what {dist.name} requires of warcore"
    if not lines:
        raise Refuted(Failure(declared, "it does not require warcore at all"))
    try:
        specifier = Requirement(lines[0]).specifier
    except InvalidRequirement as error:
        raise Refuted(Failure(declared, f"{lines[0]!r}: {error}")) from error
    operators = {clause.operator for clause in specifier}
    if not operators & {">=", ">", "==", "~="}:
        raise Refuted(Failure(declared, f"{lines[0]!r} has no lower bound"))
    if not operators & {"<", "<=", "==", "~="}:
        raise Refuted(Failure(declared, f"{lines[0]!r} has no upper bound"))
    if not specifier.contains(warcore.__version__, prereleases=True):
        raise Refuted(Failure(declared, f"{lines[0]!r} excludes {warcore.__version__}"))


def _private(package: Package) -> Iterator[tuple[Place, str]]:
    """Each use of a name of warcore that is not public."""
    public = {*warcore.__all__, "testkit", "*"}
    for found in package.imports():
        if found.module.partition(".")[0] != "warcore":
            continue
        if found.module == "warcore" and (found.name is None or found.name in public):
            continue
        if found.module == "warcore.testkit":
            continue
        what = found.module if found.name is None else f"{found.name} from {found.module}"
        yield found.place, what
    for path, tree in package.modules:
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "warcore"
                and node.attr not in public
            ):
                yield place_of(path, node.lineno), f"warcore.{node.attr}"


def _distribution(subject: Subject) -> Installed:
    """What is installed of it. NotApplicable for a class that was given directly."""
    name = subject.record.distribution
    found = next((dist for dist in installed() if dist.name == name), None)
    if name is None or found is None:
        raise NotApplicable("it was given as a class, not installed as a distribution")
    return found


def _required(line: str) -> str:
    """The distribution that a `Requires-Dist` names."""
    return canonical(re.split(r"[^\w.-]", line, maxsplit=1)[0])


def _lies_beside(package: Package, module: str) -> bool:
    folder = package.root.parent
    return (folder / f"{module}.py").is_file() or (folder / module).is_dir()


def _owners() -> dict[str, list[str]]:
    """The distributions that hold each top-level module."""
    from importlib.metadata import packages_distributions

    return {module: list(owners) for module, owners in packages_distributions().items()}
