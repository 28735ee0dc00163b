"""What no file may hold: leftovers, naps, paths of one machine, registry hosts, a megabyte."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tree_rules.sources import files, modules, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# NOTE: each pattern is written so that it does not match its own text.
LEFTOVER: Final = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b|\braise NotImplemented[E]rror\b")
MACHINE: Final = re.compile(r"(?<![\w./:*~$}-])/(?:home|root|Users|work)/[\w.]")
HOST: Final = re.compile(
    r"\b(?:(?:test\.)?pypi\.org|(?:files\.)?pythonhosted\.org|download\.pytorch\.org"
    r"|huggingface\.co|(?:conda\.)?anaconda\.org|registry\.npmjs\.org|ghcr\.io|docker\.io)\b"
)
LARGEST: Final = 1_000_000
WEIGHTS: Final = "plugins/*/*/src/*/heads/*.safetensors"
LARGEST_WEIGHTS: Final = 10_000_000
"""Of what a plugin was trained to, and cannot do without."""


def no_leftovers(root: Path) -> Iterator[str]:
    """Nothing is left for later: it is done, or it is an issue."""
    yield from _lines(root, LEFTOVER, "finish it, or file it", ".py .toml .sh .md .yml Makefile")


def no_path_of_a_machine(root: Path) -> Iterator[str]:
    """A path of somebody's home or work folder works on one machine only."""
    yield from _lines(root, MACHINE, "a path of one machine")


def no_registry_host(root: Path) -> Iterator[str]:
    """People have mirrors: pip knows its index, the tree does not."""
    yield from _lines(root, HOST, "a registry host; leave the choice of index to pip")


def _lines(root: Path, pattern: re.Pattern[str], why: str, endings: str = "") -> Iterator[str]:
    for path, text in texts(root):
        if endings and not path.name.endswith(tuple(endings.split())):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for found in pattern.finditer(line):
                yield f"{path.relative_to(root)}:{number}: {found[0]}: {why}"


def no_sleep_in_tests(root: Path) -> Iterator[str]:
    """A test never sleeps to win a race; it holds a gate or runs a seeded schedule."""
    for path, tree in modules(root, "tests", "core/tests", "plugins/*/*/tests"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "sleep":
                yield f"{path.relative_to(root)}:{node.lineno}: a test sleeps; hold a gate instead"


def no_large_file(root: Path) -> Iterator[str]:
    """A clone stays quick."""
    for path in files(root):
        name, size = path.relative_to(root), path.stat().st_size
        most = LARGEST_WEIGHTS if name.match(WEIGHTS) else LARGEST
        if size > most:
            yield f"{name}: {size:,} bytes, over {most:,}"
