"""The kit is checked too: each wrong plugin turns exactly its check red, right ones none."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import attrs
import pytest
import score
import score_record
from score_page import PAGE, is_detector, page
from score_record import Record, Task, tree
from scoring import Cleared, Found, Right, cleared, held, right_plugins, wrong_plugins
from wrong_plugins.catalogue import DETECTORS, entries, under_check

from warcore.records import KINDS
from warcore.testkit.runs.check import checks_of
from warcore.testkit.runs.isolation import Isolation

CHECKS = {check.name: check for kind in KINDS for check in checks_of(kind)}
WRONG = wrong_plugins()
REPEATS = 20


@pytest.fixture(scope="module")
def isolation():
    with Isolation() as isolation:
        yield isolation


# ---- the catalogue -------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", entries(), ids=str)
def test_an_entry_breaks_a_check_of_its_kind_and_says_how(entry):
    assert entry.says.endswith(".")
    assert set(entry.detectors) <= set(DETECTORS)
    if not entry.is_right:
        assert CHECKS[entry.breaks].kind == entry.owner


def test_each_check_that_a_host_device_can_hold_has_a_wrong_plugin_that_turns_it_red():
    held_here = {name for name, check in CHECKS.items() if "host" in check.devices}
    assert held_here - {entry.breaks for entry in WRONG} == set()


def test_each_detector_must_see_three_wrong_plugins():
    seen = Counter(detector for entry in WRONG for detector in entry.detectors)
    assert {detector for detector in DETECTORS if seen[detector] < 3} == set()


def test_there_are_at_least_twenty_five_wrong_plugins_and_a_right_one_of_each_folder():
    assert len(WRONG) >= 25
    folders = {entry.path.parent for entry in entries()}
    assert folders == {entry.path.parent for entry in entries() if entry.is_right}


def test_every_plugin_of_this_repository_is_among_the_right_ones():
    from tree_rules.sources import distributions

    ours = {
        name
        for _, project in distributions(Path(__file__).parents[1])
        for names in project.get("entry-points", {}).values()
        for name in names
    }
    installed = {right.name.partition(":")[2] for right in right_plugins() if ":" in right.name}
    assert installed == ours


# ---- the score -----------------------------------------------------------------------------------


def test_what_an_import_sets_is_seen_by_a_check_whose_own_process_has_imported_it(isolation):
    (entry,) = wrong_plugins("sets_environment")
    assert held(entry, isolation, own=True).is_exact


def test_a_plugin_that_is_not_found_is_not_exact(isolation):
    (entry,) = wrong_plugins("models/shouts")
    for change in ({"breaks": "model.forward_is_pure"}, {"detectors": ("guard",)}):
        assert not held(attrs.evolve(entry, **change), isolation, own=True).is_exact


def test_a_right_plugin_that_is_found_is_a_false_alarm(isolation):
    (entry,) = wrong_plugins("models/shouts")
    (right,) = right_plugins("models/keeps_the_contract")
    (check,) = [each for each in right.checks if each.name == entry.breaks]
    shouts = Right("shouts", lambda site: under_check(entry, site), (check,))
    assert cleared(shouts, isolation).alarms == (entry.breaks,)


def test_what_chance_cannot_change_is_held_in_the_first_repeat_only(isolation):
    (entry,) = wrong_plugins("models/shouts")
    (check,) = [each for each in checks_of("model") if each.name == "plugin.imports_public_names"]
    right = Right("right", lambda site: under_check(entry, site), (check,))
    assert cleared(right, isolation, first=False) == Cleared("right", 1, 0, (), (), 0)


def test_the_document_has_every_plugin_and_its_schema(capsys, tmp_path, monkeypatch):
    file = tmp_path / "score.json"
    monkeypatch.setattr("sys.argv", ["score.py", "models/shouts", "--own", "--json", str(file)])
    assert score.main() == 0
    assert "1 of 1 wrong plugins turn their check red" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert document["schema"] == score.SCHEMA
    (wrong,) = document["wrong"]
    assert (wrong["name"], wrong["red"], wrong["exact"]) == (
        "models/shouts",
        ["model.tokenizer_is_sane"],
        True,
    )


# ---- the record ----------------------------------------------------------------------------------

ONCE = Cleared("models/right", 1, 11, (), (), 2.0)


def test_a_score_goes_on_where_its_record_ends(capsys, tmp_path, monkeypatch):
    file = tmp_path / "score.jsonl"
    monkeypatch.setattr("sys.argv", ["score.py", "models/shouts", "--record", str(file)])
    assert score.main() == 0
    (first,) = file.read_text().splitlines()
    assert "models/shouts" in capsys.readouterr().out
    monkeypatch.setattr(score, "_results", lambda tasks, **_: iter(tasks and pytest.fail("again")))
    assert score.main() == 0
    assert file.read_text().splitlines() == [first]
    out = capsys.readouterr().out
    assert f"1 results are in {file}, of {json.loads(first)['tree']}" in out
    assert "1 of 1 wrong plugins turn exactly their check red" in out


def test_a_record_adds_up_the_repeats_of_a_right_plugin_and_names_what_was_scored(tmp_path):
    file = tmp_path / "score.jsonl"
    wrong = {"alarms": ("model.loads",), "unproven": ("model.names",), "passed": 9}
    Record(file).add(Task("models/right", 1), "b", attrs.evolve(ONCE, **wrong))
    Record(file).add(Task("models/right", 0), "a", ONCE)
    record = Record(file)
    assert record.trees == ["a", "b"]
    assert record.cleared("models/right") == Cleared(
        "models/right", 2, 11, ("model.loads",), ("model.names",), 4.0
    )


def test_a_record_keeps_what_a_wrong_plugin_was_found_by(tmp_path):
    (entry,) = wrong_plugins("models/shouts")
    found = Found(entry, (entry.breaks,), ("poison",), (), 3.0)
    Record(tmp_path / "score.jsonl").add(Task(entry.name, None), "a", found)
    assert Record(tmp_path / "score.jsonl").found(entry) == found


@pytest.mark.parametrize("text", ["{", "3", "{}", '{"plugin": "a", "repeat": 0, "tree": "b"}'])
def test_a_line_that_is_no_result_is_named(text, tmp_path, monkeypatch, capsys):
    file = tmp_path / "score.jsonl"
    Record(file).add(Task("models/right", 0), "a", ONCE)
    file.write_text(file.read_text() + text)
    monkeypatch.setattr("sys.argv", ["score.py", "--record", str(file)])
    with pytest.raises(SystemExit, match="2"):
        score.main()
    assert f"{file}, line 2 is no result" in capsys.readouterr().err


def test_the_state_of_the_tree_is_its_commit_and_whether_it_was_changed(tmp_path, monkeypatch):
    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)

    monkeypatch.setattr(score_record, "ROOT", tmp_path)
    assert tree() == "no commit"
    (tmp_path / "file").write_text("1")
    git("init")
    git("add", "file")
    git("commit", "-m", "one")
    commit = git("rev-parse", "--short", "HEAD").stdout.strip()
    assert tree() == commit
    (tmp_path / "file").write_text("2")
    assert tree() == f"{commit}, with changes"


# ---- the page ------------------------------------------------------------------------------------


def rows(heading):
    """The cells of the table below a heading of the page, without their links."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    plain = [re.sub(r"\[`?([^]`]*)`?\]\([^)]*\)", r"\1", line) for line in lines]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in plain]


def test_the_page_lists_every_wrong_plugin_and_each_turned_exactly_its_check_red():
    owed = [[entry.name, entry.breaks, entry.breaks] for entry in WRONG]
    assert [row[:3] for row in rows("Wrong plugins")] == owed


def test_the_page_names_the_detectors_that_must_have_seen_each():
    seen = {row[0]: set(row[3].split(", ")) for row in rows("Wrong plugins")}
    assert not [entry.name for entry in WRONG if not set(entry.detectors) <= seen[entry.name]]
    counts = Counter({row[0]: int(row[1]) for row in rows("Detectors")})
    assert all(counts[detector] >= 3 for detector in DETECTORS)


def test_the_page_keeps_detectors_of_the_kit_and_other_ways_apart():
    detectors = {row[0] for row in rows("Detectors")}
    assert set(DETECTORS) <= detectors
    assert all(map(is_detector, detectors))
    assert not [row[0] for row in rows("Other ways") if is_detector(row[0])]


def test_the_page_names_every_check_without_a_wrong_plugin():
    held_elsewhere = {name for name, check in CHECKS.items() if "host" not in check.devices}
    said = PAGE.read_text(encoding="utf-8").split("Not in this score:")[1].partition("|")[0]
    assert all(f"`{name}`" in said for name in held_elsewhere)


def test_the_page_lists_every_right_plugin_without_a_false_alarm():
    found = {row[0]: row[3:] for row in rows("Right plugins")}
    assert found == {right.name: ["0", "0"] for right in right_plugins()}


def test_the_page_is_written_from_a_document():
    wrong = {"name": "opens_cuda", "breaks": "plugin.loads", "red": [], "seen_by": []}
    text = page({"wrong": [{**wrong, "exact": False}], "right": [], "trees": ["a", "b"]})
    assert "results are of: a, b." in text
    assert "**0 of 1 wrong plugins turn exactly" in text
    assert "[opens_cuda](../core/tests/wrong_plugins/opens_cuda)" in text
    assert "| nothing |" in text


# ---- all of it -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_a_wrong_plugin_turns_exactly_its_check_red(entry, isolation):
    found = held(entry, isolation)
    assert found.red == (entry.breaks,)
    assert set(entry.detectors) <= set(found.seen_by)


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("right", right_plugins(), ids=str)
def test_a_right_plugin_is_free_of_failures_over_twenty_repeats(right, repeat, isolation):
    came = cleared(right, isolation, first=not repeat)
    assert not came.alarms
    assert not came.unproven
