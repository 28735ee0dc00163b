"""The reference pages say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
import reference

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


@pytest.mark.parametrize("name", ["api.md", "hooks.md", "testkit.md", "cli.md", "checks.md"])
def test_a_page_in_the_tree_is_what_the_code_says(name, pages):
    assert (ROOT / "docs/reference" / name).read_text(encoding="utf-8") == pages[name]


def test_the_api_page_has_every_public_name(pages):
    import warcore

    headings = {line[4:] for line in pages["api.md"].splitlines() if line.startswith("### ")}
    assert headings == {name for name in warcore.__all__ if not name.startswith("__")}


def test_the_page_of_the_kit_has_every_name_of_it_once(pages):
    from warcore import testkit

    headings = [line[4:] for line in pages["testkit.md"].splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted(testkit.__all__)


@pytest.mark.parametrize(
    "line",
    [
        "- `max_running_requests`: `int = 32`",
        "- `PRE_REPLAY`: `1`. With the out-graph metadata",
        "- `kv`: `Sequence[Mapping[str, torch.Tensor]]`. kv[layer][name]: ",
    ],
)
def test_a_field_stands_with_its_type_its_default_and_its_words(line, pages):
    assert line in pages["api.md"]


def test_the_command_page_has_every_option_of_every_command(pages):
    from warcore.cli.commands import COMMANDS

    for name in COMMANDS:
        assert f"## warcore {name}\n" in pages["cli.md"]
    assert "- `--strict`" in pages["cli.md"]


def test_the_page_of_checks_has_every_check_of_every_kind_once(pages):
    from warcore.records import KINDS
    from warcore.testkit.runs.check import checks_of

    headings = [line[4:] for line in pages["checks.md"].splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted({c.name for kind in KINDS for c in checks_of(kind)})


def test_the_page_of_checks_tells_level_needs_incident_and_remedy(pages):
    page = pages["checks.md"]
    assert "| [`backend.no_late_access`](#backendno_late_access) | MUST | 0.1 | [`backend" in page
    assert "*Where it was broken.* A fused kernel of SGLang" in page
    assert "*To mend it.* Copy what the layers need" in page


def test_long_signatures_are_split_at_the_commas_between_arguments():
    long = "x" * 80
    said = list(reference._signature(f"f(a: dict[str, int], b: tuple[int, ...] = {long}) -> int"))
    assert said[1:4] == ["f(", "    a: dict[str, int],", f"    b: tuple[int, ...] = {long},"]
