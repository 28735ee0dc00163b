"""Every field of a document that `--json` prints stands in the reference, with its type."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from warcore.cli import main

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/json.md"
FREE = {"modes", "votes[].ends"}
"""Objects whose keys are values: steps by mode, votes by mode."""
TYPES = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "list of strings": lambda value: all(isinstance(one, str) for one in value),
    "list of integers": lambda value: all(isinstance(one, int) for one in value),
}
RUNS = {
    "generate": [
        ("abc", "de", "--max-new-tokens", "4"),
        ("a" * 99, "x"),
        ("a", "--loop", "normal"),
        ("abc", "--spec-algo", "toy-drafts", "--spec-tokens", "2", "--context-length", "32"),
    ],
    "new": [("backend", "fast-rows", "--dir", "deep/down"), ("backend", "fast-rows")],
    "plan": [(), ("--mixed", "--fence", "coarse"), ("--graph-runner", "none", "--loop", "normal")],
    "trace": [("abc", "--max-new-tokens", "4"), ("abc", "--fence", "coarse", "--html", "p.html")],
}

NO_ENGINE = {"new"}
"""Commands whose document tells of no engine."""


def described(command):
    """{field: its types} of one command's document, with the engine's."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.splitlines()[0]
        mine = {f"warcore {command}"} if command in NO_ENGINE else {"Engine", f"warcore {command}"}
        if title in mine:
            rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
            assert len(rows) == section.count("\n|") - 2, f"a row of {title} is misshapen"
            found |= {name: types.split(" or ") for name, types in rows}
    return found


def fields(value, path=""):
    """(field, value) for everything below `value`, as the page names it."""
    if isinstance(value, list):
        for one in value:
            yield from fields(one, f"{path}[]")
    elif isinstance(value, dict):
        for key, one in value.items():
            name = "*" if path in FREE else key
            where = f"{path}.{name}" if path else name
            yield where, one
            yield from fields(one, where)


@pytest.fixture
def documents(command, drafts, tmp_path, monkeypatch, capsys):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(name, *args):
        if name not in NO_ENGINE:
            return command(name)(*args, "--json").out
        assert main([name, *args, "--json"]) == 0
        return capsys.readouterr().out

    return lambda name: [json.loads(run(name, *args)) for args in RUNS[name]]


@pytest.mark.parametrize("name", RUNS)
def test_every_field_is_described_with_its_type(documents, name):
    types = described(name)
    for document in documents(name):
        for field, value in fields(document):
            if field == "engine":
                continue
            assert field in types, field
            assert any(TYPES[kind](value) for kind in types[field]), (field, value)


@pytest.mark.parametrize("name", RUNS)
def test_every_field_that_is_described_is_there(documents, name):
    seen = {field for document in documents(name) for field, _ in fields(document)}
    assert described(name).keys() == seen - {"engine"}


@pytest.mark.parametrize("name", RUNS)
def test_the_schema_is_the_number_on_the_page(documents, name):
    section = PAGE.read_text(encoding="utf-8").split(f"\n## warcore {name}\n")[1].split("\n## ")[0]
    (number,) = re.findall(r"^\| `schema` \| integer \| (\d+) \|$", section, re.MULTILINE)
    assert {document["schema"] for document in documents(name)} == {int(number)}
