"""The verdict on a declared end is one of five words, and never a bare "proved"."""

from __future__ import annotations

import attrs
import pytest
from testkit.test_report import PLATFORM, RECORD
from wrong_plugins.catalogue import entries, under_check

from warcore.testkit.detectors.guard import supported
from warcore.testkit.outcome import Elsewhere, Failure, Outcome
from warcore.testkit.runs.check import checks_of
from warcore.testkit.runs.declaration import declarations
from warcore.testkit.runs.results import Result, Results
from warcore.testkit.runs.selection import Selection
from warcore.testkit.runs.verdict import judge
from warcore.testkit.subject import Subject

CHECKS = {check.name: check for check in checks_of("backend")}
ENDS = {"none": {"decode": "IN_REPLAY", "extend": "UNKNOWN", "mixed": "PRE_REPLAY"}}
LATE = Failure("IN_REPLAY for decode steps", "late", "x.py:3: y", ("guard",), "decode-none-1+1-h")


def result(name, outcome, failure=None, ends=ENDS, why=""):
    return Result(CHECKS[f"backend.{name}"], outcome, why, failure, ends=ends)


def said(*results, device="host"):
    checks = tuple(each.check for each in results)
    run = Results(
        Subject(RECORD, None, device), Selection(checks, 9), "0.1", tuple(results), PLATFORM
    )
    return [str(each) for each in declarations(run)]


CLEAN = (result("no_late_access", Outcome.PASSED), result("overwritten", Outcome.PASSED))
COARSE = "EXTEND: UNKNOWN \u2014 nothing is claimed: a step is coarse unless its snapshot says "
COARSE += "otherwise"


def test_a_clean_guard_and_a_silent_poison_prove_the_paths_that_were_walked():
    decode = "DECODE: IN_REPLAY \u2014 proved on these paths (guard clean, poison silent)"
    assert said(*CLEAN) == [COARSE, decode]


def test_a_late_access_refutes_the_mode_in_which_it_was_seen():
    failed = result("no_late_access", Outcome.FAILED, LATE)
    assert said(failed)[1] == (
        "DECODE: IN_REPLAY \u2014 refuted (seen by guard, in decode-none-1+1-h)"
    )


def test_another_mode_is_then_unproven_and_says_why():
    ends = {"none": {"decode": "IN_REPLAY", "target_verify": "IN_REPLAY"}}
    failed = result("no_late_access", Outcome.FAILED, LATE, ends)
    blocked = result("overwritten", Outcome.BLOCKED, ends=ends, why="that one failed")
    assert said(failed, blocked)[1] == (
        "TARGET_VERIFY: IN_REPLAY \u2014 unproven (backend.no_late_access: failed)"
    )


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ((CLEAN[0],), "backend.no_late_access and backend.overwritten were not both run"),
        (
            (CLEAN[0], result("overwritten", Outcome.UNPROVEN, why="it does not repeat")),
            "backend.overwritten: could not run, it does not repeat",
        ),
        (
            (
                result("composite", Outcome.UNPROVEN),
                result("no_late_access", Outcome.BLOCKED, why="x"),
            ),
            "backend.no_late_access: blocked, x",
        ),
    ],
)
def test_what_was_not_run_or_does_not_repeat_is_unproven(results, why):
    assert said(*results)[1] == f"DECODE: IN_REPLAY \u2014 unproven ({why})"


def test_each_end_that_could_be_earlier_is_true_and_says_what_it_costs():
    ends = {"none": {"decode": "IN_REPLAY", "extend": "IN_REPLAY"}, "unbroken": {}}
    ends["breakable"] = {"decode": "POST_REPLAY"}
    rest = Elsewhere("IN_REPLAY for extend steps", "so much", "x.py:3: y", (), ("extend-none",))
    failure = Failure("IN_REPLAY for decode steps", "this much", "x.py:3: y", elsewhere=(rest,))
    early = result("could_be_earlier", Outcome.FAILED, failure, ends)
    assert said(*CLEAN, early) == [
        "EXTEND: IN_REPLAY \u2014 could be earlier (it is true; so much)",
        "DECODE (eager): IN_REPLAY \u2014 could be earlier (it is true; this much)",
        "DECODE (breakable): POST_REPLAY \u2014 proved on these paths (guard clean, poison silent)",
    ]


@pytest.mark.parametrize("end", ["IN_REPLAY", "POST_REPLAY"])
def test_on_a_later_end_of_a_prefill_nothing_rests_so_it_is_neither_proved_nor_refuted(end):
    ends = {"none": {"extend": end}}
    passed = [Result(each.check, each.outcome, ends=ends) for each in CLEAN]
    (line,) = said(*passed)
    assert line.startswith(f"EXTEND: {end} \u2014 nothing rests on it: a prefill is fine only with")


SNAPSHOT = Failure("PRE_REPLAY, says it", "late", "x.py:3: y", ("guard",), "extend-none-0+6-s")


@pytest.mark.parametrize("end", ["UNKNOWN", "IN_REPLAY"])
@pytest.mark.parametrize(
    ("outcome", "failure", "verdict"),
    [
        (Outcome.PASSED, None, "proved on these paths (what its snapshot says of each batch)"),
        (
            Outcome.FAILED,
            SNAPSHOT,
            "refuted (what its snapshot says: seen by guard, in extend-none-0+6-s)",
        ),
        (
            Outcome.UNPROVEN,
            None,
            "unproven (what its snapshot says: backend.snapshot_is_true: could not run)",
        ),
    ],
)
def test_where_the_snapshot_alone_tells_an_end_the_verdict_is_on_what_it_tells(
    end, outcome, failure, verdict
):
    told = result("snapshot_is_true", outcome, failure, {"none": {"extend": end}})
    assert said(told) == [f"EXTEND: {end} \u2014 {verdict}"]


def test_a_snapshot_that_tells_nothing_claims_nothing():
    told = result("snapshot_is_true", Outcome.NOT_APPLICABLE, ends={"none": {"extend": "UNKNOWN"}})
    assert said(told) == ["EXTEND: UNKNOWN \u2014 nothing is claimed: each step is coarse"]


def test_a_snapshot_without_the_cell_that_was_asked_for_has_not_been_asked():
    told = result("snapshot_is_true", Outcome.NOT_APPLICABLE, ends={"none": {"extend": "UNKNOWN"}})
    assert said(attrs.evolve(told, cells=0)) == [COARSE]


def test_a_check_in_which_the_plugin_raised_refutes_nothing():
    failure = Failure("a rule", "it raised ValueError", "x.py:3: y", mishap="raised")
    lines = said(result("no_late_access", Outcome.FAILED, failure))
    assert "unproven (backend.no_late_access: failed)" in lines[1]


def test_a_failure_without_a_cell_is_about_every_mode():
    failure = Failure("the latest of its children", "it answers earlier", "x.py:3: y")
    lines = said(*CLEAN, result("composite", Outcome.FAILED, failure))
    assert "refuted (backend.composite)" in lines[1]


def test_a_graph_without_late_addresses_is_proved_for_all_its_replays():
    if "backend.no_late_address" not in CHECKS:
        pytest.skip("no check of addresses in this version")
    addresses = result("no_late_address", Outcome.PASSED)
    assert "proved for this graph" in said(CLEAN[1], addresses, device="cuda")[1]


def test_an_end_that_depends_on_the_kind_of_graph_has_a_line_for_each():
    ends = {
        "none": {"decode": "IN_REPLAY"},
        "unbroken": {"decode": "IN_REPLAY"},
        "breakable": {"decode": "POST_REPLAY"},
    }
    lines = said(*(Result(each.check, each.outcome, ends=ends) for each in CLEAN))
    assert [line.partition(" \u2014 ")[0] for line in lines] == [
        "DECODE (eager, unbroken): IN_REPLAY",
        "DECODE (breakable): POST_REPLAY",
    ]


def test_a_mode_that_was_not_walked_has_no_line():
    assert said(*(Result(each.check, each.outcome) for each in CLEAN)) == []


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_a_check_tells_the_ends_of_the_cells_that_it_walks(tmp_path):
    (entry,) = [each for each in entries() if each.name == "backends/gathers_in_graph"]
    check = CHECKS["backend.no_late_access"]
    with under_check(entry, tmp_path) as subject:
        only = Subject(subject.record, subject.cls, cells="decode-*-h2over1x64*")
        verdict = judge(check.run, check.rule, only)
    found = Result(check, verdict.outcome, verdict.why, verdict.failure, ends=verdict.ends)
    assert {mode for ends in found.ends.values() for mode in ends} == {"decode"}
    (line,) = said(found)
    assert line.startswith("DECODE: PRE_REPLAY \u2014 refuted (seen by guard, ")
