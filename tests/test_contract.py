"""The public API is what `core/contract.json` says, and a change of it cannot go unsaid."""

from __future__ import annotations

import json
from pathlib import Path

import contract
import contract_entries
import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORDED = json.loads((ROOT / "core/contract.json").read_text(encoding="utf-8"))


def test_the_code_keeps_the_contract_or_a_fragment_says_what_changed():
    fragments = {f.name: f.read_text() for f in (ROOT / "changelog.d").glob("*.contract.md")}
    assert contract.complaint(RECORDED, contract_entries.entries(), fragments) == ""


@pytest.mark.parametrize(
    ("promise", "text"),
    [
        ("SharedReadEnds.IN_REPLAY", "member = 2"),
        ("AttentionBackend.page_sizes", "attribute ClassVar[frozenset[int] | None] = None"),
        ("Layer.window", "field int | None = None"),
        ("testkit.mark", "function (name: str, *, late: bool = True) -> None"),
        ("hook.prefill_shared_read_stager", "(self) -> Callable[[ForwardBatch], bool] | None"),
    ],
)
def test_the_contract_holds_members_attributes_fields_functions_and_hooks(promise, text):
    assert contract_entries.entries()[promise].split(", answered by ")[0] == text


def test_a_changed_promise_is_shown_with_what_to_type():
    recorded = {"Layer": "class", "Layer.scale": "field float"}
    present = {"Layer": "class", "Layer.scale": "field float = 1.0"}
    said = contract.complaint(recorded, present, {})
    assert "changed  Layer.scale: field float\n" in said
    assert "Layer.scale: field float = 1.0" in said
    assert "changelog.d/NAME.contract.md, one sentence with `Layer.scale` in it" in said


@pytest.mark.parametrize(
    ("present", "word"), [({"A": "class", "A.new": "field int"}, "added"), ({}, "removed")]
)
def test_an_added_and_a_removed_promise_are_differences(present, word):
    assert word in contract.complaint({"A": "class"}, present, {})


@pytest.mark.parametrize(
    ("sentence", "covers"),
    [
        ("`Layer.scale` has a default now.", True),
        ("`Layer` was thought over.", True),
        ("`Layer.window` may be None.", False),
        ("Layer.scale has a default now.", False),
    ],
)
def test_a_fragment_covers_what_it_names_in_backticks(sentence, covers):
    said = contract.complaint({"Layer.scale": "a"}, {"Layer.scale": "b"}, {"x": sentence})
    assert (said == "") is covers


def test_a_signature_reads_as_it_was_typed():
    def draw(a, b: int = 3, /, *rest: str, last: float | None = None, **more: object) -> list[int]:
        raise AssertionError(a, b, rest, last, more)

    assert contract_entries.signature(draw) == (
        "(a, b: int = 3, /, *rest: str, last: float | None = None, **more: object) -> list[int]"
    )


def test_a_keyword_only_argument_stays_one():
    def draw(*, last: int) -> None:
        raise AssertionError(last)

    assert contract_entries.signature(draw) == "(*, last: int) -> None"
