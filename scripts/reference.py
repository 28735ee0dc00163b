"""Write `docs/reference/` from the code: `python scripts/reference.py [--check]`.

Signatures come from the running code (as in core/contract.json), the words from its docstrings. A
page that differs from what the code says is red in `make check`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from contract_entries import of_object, signature
from reference_checks import checks
from reference_cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/reference"
WRITTEN = (
    "<!-- Written by scripts/reference.py from the code. Change the docstrings, then run it. -->"
)
KIT = {
    "For a plugin's own tests": ("checks", "context"),
    "For engines of any kind": ("observe", "mark", "Observation", "Access"),
}
"""The names of `warcore.testkit`, in the order of its page."""


def pages() -> dict[str, str]:
    """Each page by its file name."""
    built = {
        "api.md": api(),
        "hooks.md": hooks(),
        "testkit.md": kit(),
        "cli.md": cli(),
        "checks.md": checks(),
    }
    return {name: "\n".join([WRITTEN, *lines]).rstrip() + "\n" for name, lines in built.items()}


# --- the API ------------------------------------------------------------------------------------


def api() -> Iterator[str]:
    """Every public name, in the order and under the headings of `warcore/__init__.py`."""
    import warcore

    yield "# The public API\n"
    yield (
        "What `warcore` exports. [The hooks](hooks.md) and [the test kit](testkit.md) have pages\n"
        "of their own. Everything else is private and may change at any time.\n"
    )
    for heading, names in groups(inspect.getsource(warcore)):
        yield f"## {heading[:1].upper()}{heading[1:]}\n"
        for name in names:
            yield from _public(name, getattr(warcore, name))


def kit() -> Iterator[str]:
    """Every public name of the test kit, what a plugin's tests call before what watches engines."""
    from warcore import testkit

    yield "# The test kit\n"
    yield "What `warcore.testkit` exports, for tests; it promises as much as [the API](api.md).\n"
    yield (
        "[The contract in your own pytest](../authors/pytest.md) shows the first two in use,\n"
        "[observe](../authors/observe.md) the others; [the checks](checks.md) have a page too.\n"
    )
    for heading, names in KIT.items():
        yield f"## {heading}\n"
        for name in names:
            yield from _public(name, getattr(testkit, name), "warcore.testkit")


def groups(source: str) -> Iterator[tuple[str, list[str]]]:
    """The headings of `_HOME`, which are its comments, with the names below each."""
    table = source[source.index("_HOME") :]
    for part in table[: table.index("\n}")].split("\n    # ")[1:]:
        heading, *rows = part.splitlines()
        yield heading, re.findall(r'^\s+"(\w+)"', "\n".join(rows), re.MULTILINE)


def _public(name: str, value: Any, home: str = "warcore") -> Iterator[str]:
    entries = of_object(name, value)
    yield f"### {name}\n"
    if not inspect.isclass(value):
        yield from _signature(f"{name}{signature(value)}")
        yield f"{inspect.getdoc(value)}\n"
        return
    module = value.__module__
    yield f"`from {home} import {name}` · {entries.pop(name)} in `{module}`\n"
    yield f"{inspect.getdoc(value)}\n"
    said = attribute_docs(value)
    facts = {k: v for k, v in entries.items() if v.split()[0] in {"field", "attribute", "member"}}
    for full, text in facts.items():
        words = " ".join(said.get(full.split(".")[1], "").split())
        shown = text.split(" ", 1)[1].removeprefix("= ")
        yield f"- `{full.split('.')[1]}`: `{shown}`" + (f". {words}" if words else "")
    if facts:
        yield ""
    for full in sorted(set(entries) - set(facts), key=list(entries).index):
        yield from _method(value, full.split(".")[1], entries[full])


def _method(owner: type, name: str, text: str) -> Iterator[str]:
    """A method or property with its docstring; a constructor only where it says something."""
    found = inspect.getattr_static(owner, name)
    function = getattr(found, "fget", None) or getattr(found, "__func__", found)
    words = inspect.getdoc(function) if function.__doc__ else None
    if name == "__init__" and (attrs.has(owner) or not words):
        return
    kind, _, rest = text.replace("abstract ", "").partition(" ")
    shown = f"{name}: {rest}" if kind == "property" else f"{name}{rest}"
    yield f"#### {owner.__name__}.{name}\n"
    prefix = "abstract " if text.startswith("abstract") else ""
    if kind != "method" or prefix:
        yield f"{prefix}{kind}\n"
    yield from _signature(shown)
    if words:
        yield f"{words}\n"


def _signature(text: str) -> Iterator[str]:
    yield "```python"
    if len(text) <= 96:
        yield text
    else:
        head, _, tail = text.partition("(")
        inside, _, result = tail.rpartition(") ->")
        yield f"{head}("
        yield from (f"    {part}," for part in _split(inside))
        yield f") ->{result}"
    yield "```\n"


def _split(arguments: str) -> list[str]:
    """The arguments of a signature, split at the commas that no bracket holds."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def attribute_docs(cls: type) -> dict[str, str]:
    """The text below each attribute, of `cls` and of its bases within warcore."""
    said: dict[str, str] = {}
    for owner in cls.__mro__:
        if not owner.__module__.startswith("warcore."):
            continue
        source = Path(str(inspect.getsourcefile(owner))).read_text(encoding="utf-8")
        tree = ast.parse(source)
        body = next(
            n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner.__name__
        )
        for node, after in zip(body.body, body.body[1:], strict=False):
            name = _assigned(node)
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))) if name:
                    said.setdefault(name, text)
    return said


def _assigned(node: ast.stmt) -> str | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return None


# --- the hooks ----------------------------------------------------------------------------------


def hooks() -> Iterator[str]:
    """Every hook: who is asked, with which arguments, and what the answer promises."""
    from warcore import hookspecs

    yield "# The hooks\n"
    yield f"{inspect.getdoc(hookspecs)}\n"
    for owner in (hookspecs.ScopeHooks, hookspecs.EngineHooks):
        yield f"## {str(inspect.getdoc(owner)).rstrip('.')}\n"
        for name, hook in vars(owner).items():
            if name in hookspecs.ANSWERED_BY:
                yield f"### {name}\n"
                yield from _signature(f"{name}{signature(hook)}")
                kinds = ", ".join(f"`{kind}`" for kind in sorted(hookspecs.ANSWERED_BY[name]))
                yield f"{inspect.getdoc(hook)}\n"
                yield f"Answered by plugins of the kind {kinds}.\n"
    yield from reasons()


def reasons() -> Iterator[str]:
    """Every reason of a fence, and what would make a coarse one fine."""
    from warcore.fence import NEXT_STEP, FenceReason

    yield "## Reasons\n"
    yield f"{inspect.getdoc(FenceReason)}\n"
    yield "[Concepts](../concepts.md#reasons) says what each means.\n"
    yield "| reason | what would make it fine |\n|---|---|"
    for reason in FenceReason:
        yield f"| `{reason.value}` | {NEXT_STEP.get(reason, 'it is')} |"


def main() -> int:
    """Write the pages, or with --check say which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    stale = []
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        page = PAGES / name
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/reference/{name}")
        if not given.check:
            page.write_text(text, encoding="utf-8")
    if stale and given.check:
        print(f"not what the code says: {', '.join(stale)}. Next: make record")
        return 1
    print(f"reference: {len(stale)} pages written" if stale else "reference: as the code says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
