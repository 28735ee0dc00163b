"""A failure of many cells has every line at which they fail, and each line its cells."""

from __future__ import annotations

import json

import attrs
import pytest
import torch
from testkit.test_report import SUBJECT, result_of, results_of
from wrong_plugins.catalogue import entries, under_check

from warcore.testkit.detectors.elements import element, region
from warcore.testkit.detectors.guard import supported
from warcore.testkit.outcome import Elsewhere, Failure, Outcome
from warcore.testkit.runs import report
from warcore.testkit.runs.check import checks_of
from warcore.testkit.runs.declaration import declarations
from warcore.testkit.runs.lines import by_line
from warcore.testkit.runs.results import Result
from warcore.testkit.runs.verdict import Verdict, judge

TABLE = torch.zeros(6, 8, dtype=torch.int32)


def late(where, cell, *seen_by):
    return Failure("PRE_REPLAY", f"late in {cell}", where, seen_by, cell)


def test_cells_that_fail_at_one_line_are_one_failure():
    found = by_line([late("a", "1", "guard"), late("a", "2", "guard", "poison")])
    assert (found.observed, found.seen_by) == ("late in 1", ("guard", "poison"))
    assert (found.cells, found.more, found.elsewhere) == (("1", "2"), 1, ())


def test_another_line_is_told_with_its_own_cells_and_detectors():
    found = by_line([late("a", "1", "guard"), late("", "2", "guard"), late("", "1", "poison")])
    assert found.cells == ("1",)
    assert found.elsewhere == (
        Elsewhere("PRE_REPLAY", "late in 2", "", ("guard", "poison"), ("2", "1")),
    )


def test_a_failure_of_many_lines_comes_whole_out_of_another_process():
    failure = by_line([late("a", "1", "guard"), late("b", "2")])
    verdict = Verdict(Outcome.FAILED, failure=failure)
    assert Verdict.of_plain(json.loads(json.dumps(verdict.plain()))) == verdict


@pytest.mark.parametrize(
    ("found", "said", "lines"),
    [
        ([late("a", "1")], "", ""),
        ([late("a", "1"), late("a", "2")], "1 more cell fails at the same line", ""),
        ([late("", "1"), late("", "2")], "1 more cell fails at a line that no detector knows", ""),
        (
            [late("a", "1"), late("a", "2"), late("a", "3"), late("b.py:7: b", "2")],
            "2 more cells fail at the same line, and 1 cell fails at 1 other line",
            "b.py:7: b  (1 cell, first 2)",
        ),
        (
            [late("a", "1"), late("b", "1"), late("b", "2"), late("", "2")],
            "2 cells fail at 2 other lines",
            "b  (2 cells, first 1)\na line that no detector knows  (1 cell, first 2)",
        ),
    ],
)
def test_the_report_counts_the_cells_and_names_the_other_lines(found, said, lines):
    parts = dict(report.told(result_of(Outcome.FAILED, by_line(found)), SUBJECT))
    assert (parts["and"], parts["also at"]) == (said, lines)


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_two_lies_at_two_lines_are_both_in_the_report_and_refute_both_their_modes(tmp_path):
    (entry,) = [each for each in entries() if each.name == "backends/looks_in_two_places"]
    (check,) = [each for each in checks_of("backend") if each.name == entry.breaks]
    with under_check(entry, tmp_path) as subject:
        verdict = judge(check.run, check.rule, attrs.evolve(subject, cells="*-h2over1x64-page4*"))
    results = results_of(Result(check, verdict.outcome, failure=verdict.failure, ends=verdict.ends))
    (told,) = json.loads(json.dumps(report.document(results)))["checks"]
    failure = told["failure"]
    wheres = [failure["where"], *(each["where"] for each in failure["elsewhere"])]
    assert [where.rpartition("too late in a ")[2] for where in wheres] == ["prefill", "decode step"]
    verdicts = {each.mode: each.verdict for each in declarations(results)}
    assert verdicts == {
        **dict.fromkeys(("extend", "decode"), "refuted"),
        **dict.fromkeys(("target_verify", "draft_extend"), "unproven"),
    }


# ---- elements ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "stop", "said"),
    [
        (0, 4, "t[0, 0:1]"),
        (2 * 32 + 4, 2 * 32 + 20, "t[2, 1:5]"),
        (2 * 32 + 5, 2 * 32 + 6, "t[2, 1:2]"),
        (32, 64, "t[1, 0:8]"),
        (32, 128, "t[1:4, 0:8]"),
        (36, 128, "t[1, 1:] to [3, :8]"),
        (32, 124, "t[1, 0:] to [3, :7]"),
    ],
)
def test_a_range_of_bytes_is_told_by_rows_and_columns(start, stop, said):
    assert region("t", TABLE, start, stop) == said


def test_a_map_has_elements_and_no_rows():
    assert region("m", TABLE[0], 8, 16) == "m[2:4]"
    assert (element(TABLE[0], 9), element(TABLE, 32 + 9)) == ("[2]", "[1, 2]")
