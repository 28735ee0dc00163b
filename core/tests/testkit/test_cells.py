"""Which cells are walked, on which device a check is held, and what that makes of a run."""

from __future__ import annotations

import pytest
from testkit import cell_rules, fake_rules, hostile
from testkit.fake_rules import make

from warcore.errors import ConfigError
from warcore.records import PluginRecord
from warcore.testkit.models.references import reference
from warcore.testkit.outcome import NotApplicable, Outcome, Unproven
from warcore.testkit.runs import selection
from warcore.testkit.runs.coverage import not_covered
from warcore.testkit.runs.isolation import Isolation
from warcore.testkit.runs.running import run_checks
from warcore.testkit.stands.cell import Shape
from warcore.testkit.stands.walk import WINDOW, servable
from warcore.testkit.subject import Subject

WALKS, LOOKS = make(cell_rules.walks), make(cell_rules.looks)


def subject_of(**facts):
    return Subject(PluginRecord.of_class("backend", hostile.Good), hostile.Good, **facts)


@pytest.fixture(scope="module")
def isolation():
    with Isolation() as shared:
        yield shared


@pytest.fixture
def run(monkeypatch, isolation):
    """`run(*checks, **facts)`: their results for a subject of these facts."""

    def ran(*checks, pattern="", starts=lambda _: None, **facts):
        monkeypatch.setattr(selection, "checks_of", lambda kind: iter(checks))
        return run_checks(subject_of(**facts), pattern, isolation=isolation, starts=starts)

    return ran


# ---- shapes --------------------------------------------------------------------------------------


def refusing(*words):
    """A backend that refuses these."""

    class Refusing(hostile.Good):
        @classmethod
        def why_not(cls, spec):
            found = {"no windows": spec.windows == {None}, "trees": spec.tree}
            found["windows"] = spec.windows != {None}
            return [word for word in words if found[word]]

    return Subject(PluginRecord.of_class("backend", Refusing), Refusing)


def test_a_backend_that_wants_windows_gets_them_where_a_shape_has_none():
    wants = refusing("no windows")
    assert servable(wants, Shape()) == Shape(windows=(None, WINDOW, WINDOW))
    assert servable(wants, Shape(tree=True)) == Shape(tree=True, windows=(None, WINDOW, WINDOW))
    assert servable(wants, Shape(windows=(3, 3))) == Shape(windows=(3, 3))


def test_what_a_backend_serves_as_it_is_or_not_at_all_stays_as_it_is():
    assert servable(refusing(), Shape()) == Shape()
    assert servable(refusing("trees"), Shape(tree=True)) is None
    assert servable(refusing("windows"), Shape(windows=(3, None))) is None


# ---- cells ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", ["decode-4", "decode-41", "verify-4"]),
        ("decode-4", ["decode-4"]),
        ("decode-*", ["decode-4", "decode-41"]),
        ("*-4", ["decode-4", "verify-4"]),
        ("decode", []),
    ],
)
def test_a_cell_is_asked_for_by_its_name_or_by_a_pattern(pattern, wanted):
    subject = subject_of(cells=pattern)
    assert [c for c in ("decode-4", "decode-41", "verify-4") if subject.wants(c)] == wanted


def test_a_check_counts_the_cells_that_it_has_looked_at(run):
    assert [result.cells for result in run(WALKS, LOOKS, make(fake_rules.passes)).results] == [
        1,
        1,
        None,
    ]


def test_a_cell_that_only_one_check_has_leaves_the_others_out(run):
    results = run(WALKS, LOOKS, cells="extend-1")
    assert [r.outcome for r in results.results] == [Outcome.NOT_APPLICABLE, Outcome.PASSED]
    assert results.code == 0


def test_a_cell_that_no_check_has_is_refused_and_close_names_are_shown(run):
    why = "backend.walks: none of its 2 cells is called 'decode-5'; there are 'decode-4'"
    with pytest.raises(ConfigError, match=why):
        run(WALKS, make(fake_rules.passes), cells="decode-5")


def test_a_cell_that_no_check_has_is_no_verdict_even_if_one_fails_that_has_no_cells(run):
    failing = make(fake_rules.refuted, level="SHOULD")
    results = run(failing, make(fake_rules.passes), WALKS, cells="decode-5")
    assert results.code == 2
    assert "No check has a cell that is called 'decode-5'" in "\n".join(not_covered(results))


def test_a_cell_that_no_check_has_that_was_asked_for_is_refused_before_what_they_need(run):
    after = make(cell_rules.looks, name="after", needs=("backend.walks",))
    starts = []
    with pytest.raises(
        ConfigError, match=r"backend\.after: none of its 1 cells is called 'verify-4'"
    ):
        run(WALKS, after, pattern="after", starts=starts.append, cells="verify-4")
    assert starts == []


@pytest.mark.parametrize("rule", [cell_rules.looks, fake_rules.refuted, fake_rules.absent])
def test_a_check_that_has_the_cell_or_none_or_fails_is_run(run, rule):
    only = make(rule, name="only")
    (result,) = run(only, pattern="only", cells="extend-1").results
    assert result.outcome is not Outcome.UNPROVEN
    assert result.cells == (1 if rule is cell_rules.looks else None)


def test_what_a_check_needs_may_lack_the_cell(run):
    after = make(cell_rules.looks, name="after", needs=("backend.walks",))
    results = run(WALKS, after, cells="extend-1")
    assert [r.outcome for r in results.results] == [Outcome.NOT_APPLICABLE, Outcome.PASSED]


def test_how_far_a_run_went_is_said_by_the_largest_of_each_size(run):
    results = run(make(cell_rules.measures), make(fake_rules.passes))
    assert (
        "It was walked up to sequences of 1040 tokens, batches of 17 requests and heads of 64, all "
        "in one thread of torch: of what takes another path beyond nothing is known."
    ) in list(not_covered(results))


def test_of_sizes_that_no_check_has_nothing_is_said(run):
    assert not any("walked up to" in line for line in not_covered(run(make(fake_rules.passes))))


# ---- devices, reasons ----------------------------------------------------------------------------


def test_a_check_of_another_device_does_not_apply_and_nobody_waits_for_it(run):
    first = make(fake_rules.refuted, name="first", devices=("cuda",))
    then = make(fake_rules.passes, needs=("backend.first",))
    results = run(first, then)
    assert [r.outcome for r in results.results] == [Outcome.NOT_APPLICABLE, Outcome.PASSED]
    assert results.results[0].why == "it is held on cuda only"


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (fake_rules.absent, "backend.first: not applicable, it has no graphs"),
        (fake_rules.blind, "backend.first: could not run, no detector"),
        (fake_rules.refuted, "backend.first: failed, a read"),
    ],
)
def test_why_a_check_was_not_run_is_said_with_what_it_needs(run, need, why):
    then = make(fake_rules.passes, needs=("backend.first",))
    assert run(make(need, name="first"), then).results[1].why == why


# ---- the model that is loaded --------------------------------------------------------------------


class Family:
    """Opens files only."""

    @staticmethod
    def recognises(ref):
        return f"files:{ref}" if ref.endswith(".gguf") else None


def family(given=None):
    return Subject(PluginRecord("model", "files", None, None, "x:Y"), Family, reference=given)


def test_a_model_that_is_named_is_the_one_that_is_loaded():
    assert reference(family("a.gguf")) == "files:a.gguf"


def test_a_family_without_a_model_is_not_judged_but_one_that_lacks_the_named_model_is_open():
    with pytest.raises(NotApplicable, match="'files:tiny' is not recognised"):
        reference(family())
    with pytest.raises(Unproven, match=r"'a\.bin' is not recognised"):
        reference(family("a.bin"))
