"""How checks are run: outcomes, order, totals; no plugin harms the kit or the next check."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
import torch
from testkit import fake_rules, hostile
from testkit.fake_rules import make

from warcore.errors import ConfigError, PluginError
from warcore.records import PluginRecord
from warcore.testkit.detectors.guard import supported
from warcore.testkit.environment import TIMEOUT_VARIABLE, time_limit
from warcore.testkit.mishaps import ADVICE
from warcore.testkit.outcome import NotApplicable, Outcome
from warcore.testkit.runs import selection
from warcore.testkit.runs.coverage import detectors, not_covered
from warcore.testkit.runs.isolation import Isolation
from warcore.testkit.runs.report import told
from warcore.testkit.runs.running import run_checks
from warcore.testkit.subject import Subject

HOSTILE = Path(hostile.__file__)


def subject_of(cls=hostile.Good, **facts):
    return Subject(PluginRecord.of_class("backend", cls), cls, **facts)


@pytest.fixture(scope="module")
def isolation():
    with Isolation() as shared:
        yield shared


@pytest.fixture
def rules(monkeypatch):
    """`rules(*checks)`: they are all the checks that there are."""

    def only(*checks):
        monkeypatch.setattr(selection, "checks_of", lambda kind: iter(checks))

    return only


@pytest.fixture
def run(rules, isolation):
    """`run(cls, *checks)`: the results of these checks."""

    def ran(cls, *checks, pattern="", **facts):
        rules(*checks)
        return run_checks(subject_of(cls, **facts), pattern, isolation=isolation)

    return ran


@pytest.fixture
def run_record(rules, isolation):
    """`run_record(RECORD, *checks)`: the same for a plugin that this process has not loaded."""

    def ran(record, *checks):
        rules(*checks)
        return run_checks(Subject(record, None), isolation=isolation)

    return ran


def outcomes(results):
    return [result.outcome for result in results.results]


# ---- how a check can end -------------------------------------------------------------------------


def test_each_outcome_is_told_and_the_counts_sum_to_the_total(run):
    checks = [make(getattr(fake_rules, n)) for n in ("passes", "refuted", "absent", "blind")]
    checks.append(make(fake_rules.passes, name="after", needs=("backend.refuted",)))
    results = run(hostile.Good, *checks)
    assert outcomes(results) == [
        Outcome.PASSED,
        Outcome.FAILED,
        Outcome.NOT_APPLICABLE,
        Outcome.UNPROVEN,
        Outcome.BLOCKED,
    ]
    assert sum(results.counts.values()) == results.total == len(checks)


def test_a_refuted_check_keeps_all_that_it_said(run):
    (result,) = run(hostile.Good, make(fake_rules.refuted)).results
    failure = result.failure
    assert (failure.declared, failure.observed) == ("decode: PRE_REPLAY", "a read")
    assert (failure.where, failure.seen_by, failure.cell) == ("x.py:3: y", ("guard",), "decode 4")
    assert failure.more == 7


@pytest.mark.parametrize(
    ("need", "outcome"),
    [
        (fake_rules.refuted, Outcome.BLOCKED),
        (fake_rules.blind, Outcome.UNPROVEN),
        (fake_rules.absent, Outcome.NOT_APPLICABLE),
        (fake_rules.passes, Outcome.PASSED),
    ],
)
def test_what_a_check_needs_decides_whether_it_says_anything(run, need, outcome):
    first = make(need, name="first")
    results = run(hostile.Good, first, make(fake_rules.passes, needs=("backend.first",)))
    assert results.results[1].outcome is outcome


def test_what_is_blocked_says_the_cause_that_blocks_it_however_long_the_chain(run):
    names = ["refuted", *"abcde"]
    chain = [
        make(fake_rules.passes, name=name, needs=(f"backend.{before}",))
        for before, name in pairwise(names)
    ]
    results = run(hostile.Good, make(fake_rules.refuted), *chain)
    assert {result.why for result in results.results[1:]} == {"backend.refuted: failed, a read"}


def test_an_exception_out_of_the_plugin_is_its_failure_at_its_line(run):
    (result,) = run(hostile.Raising, make(fake_rules.acts)).results
    assert result.outcome is Outcome.FAILED
    assert result.failure.observed.startswith("it raised RuntimeError: ")
    assert result.failure.where.startswith(f"{HOSTILE}:")
    assert result.failure.where.endswith(": torch.ones(2) @ torch.ones(3)")


def test_an_exception_of_the_check_itself_is_the_kits_and_no_verdict(run):
    (result,) = run(hostile.Good, make(fake_rules.defect)).results
    assert result.outcome is Outcome.UNPROVEN
    assert result.why == "an error of the test kit: KeyError: 'kit'"
    assert "in defect" in result.trace


# ---- what a plugin can do to the process ---------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "mishap"),
    [
        (hostile.Raising, "raised"),
        (hostile.Exiting, "raised"),
        (hostile.Hanging, "hung"),
        (hostile.Crashing, "ended the process"),
        (hostile.Leaving, "ended the process"),
    ],
)
def test_what_befell_a_check_is_told_with_its_own_advice_and_not_the_checks(
    run, monkeypatch, cls, mishap
):
    if mishap == "hung":
        monkeypatch.setenv(TIMEOUT_VARIABLE, "0.5")
    results = run(cls, make(fake_rules.acts))
    (result,) = results.results
    said = dict(told(result, results.subject))
    assert result.failure.mishap == mishap
    assert (said["so what"], said["mend it"]) == attrs.astuple(ADVICE[mishap])
    assert said["just this"].endswith("-k backend.acts")
    assert said["at"] or cls is hostile.Leaving


@pytest.mark.parametrize(
    ("cls", "observed"),
    [
        (hostile.Crashing, "it ended the process with SIGSEGV"),
        (hostile.Leaving, "it ended the process with exit code 0"),
        (hostile.Exiting, "it raised SystemExit: 0"),
        (hostile.Interrupting, "it raised KeyboardInterrupt"),
    ],
)
def test_a_plugin_that_ends_the_process_fails_that_check_only(run, cls, observed):
    results = run(cls, make(fake_rules.acts), make(fake_rules.untouched))
    assert outcomes(results) == [Outcome.FAILED, Outcome.PASSED]
    assert results.results[0].failure.observed == observed


def test_a_plugin_that_ends_its_parent_fails_that_check_only(rules):
    rules(make(fake_rules.acts), make(fake_rules.untouched))
    results = run_checks(subject_of(hostile.Patricide))
    assert outcomes(results) == [Outcome.FAILED, Outcome.PASSED]
    assert results.results[0].failure.observed.startswith("it ended the kit's own process")


def test_a_crash_is_told_with_the_plugins_line(run):
    (result,) = run(hostile.Crashing, make(fake_rules.acts)).results
    assert result.failure.where.endswith(": ctypes.string_at(0)")
    assert result.output == "about to crash\n"


def test_a_plugin_that_hangs_is_ended_and_told_where_it_stood(run, monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.5")
    results = run(hostile.Hanging, make(fake_rules.acts), make(fake_rules.untouched))
    assert outcomes(results) == [Outcome.FAILED, Outcome.PASSED]
    failure = results.results[0].failure
    assert failure.observed.startswith("it did not end within 0.5 s")
    assert failure.where.endswith(": signal.pause()")


def test_a_check_that_waits_for_another_process_ends_in_time_to_say_so(run, monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, "1.5")
    (result,) = run(hostile.Good, make(fake_rules.asks)).results
    assert result.outcome is Outcome.UNPROVEN
    assert result.why == f"it did not end in time; it has more with {TIMEOUT_VARIABLE}=SECONDS"


def test_interpreted_kernels_have_more_time(monkeypatch):
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert time_limit(thorough=False) == 60
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert time_limit(thorough=False) == time_limit(thorough=True) == 600


def test_a_time_limit_that_is_none_is_refused_with_what_to_type(monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, "x")
    with pytest.raises(ConfigError, match=f"Next: {TIMEOUT_VARIABLE}=120"):
        time_limit(thorough=False)


def test_what_a_plugin_prints_is_kept_and_not_shown(run, capfd):
    (result,) = run(hostile.Loud, make(fake_rules.acts)).results
    assert result.output == "loud in Python\nloud in a child\nloud on stderr\n"
    assert capfd.readouterr() == ("", "")


def test_what_a_plugin_changes_ends_with_the_check(run):
    results = run(hostile.Changing, make(fake_rules.acts), make(fake_rules.untouched))
    assert outcomes(results) == [Outcome.PASSED, Outcome.PASSED]


def test_each_check_has_a_process_of_its_own_and_knows_its_subject(run):
    checks = [make(fake_rules.seen, name=name) for name in ("one", "two")]
    results = run(hostile.Good, *checks, cells="decode", thorough=True)
    pids = [result.why.split(" ", 1)[0] for result in results.results]
    assert len({*pids, str(os.getpid())}) == 3
    assert results.results[0].why.endswith("('host', 'decode', True, None)")


# ---- a plugin that cannot be loaded --------------------------------------------------------------


@pytest.fixture
def written(tmp_path, monkeypatch):
    """`written(SOURCE)`: the record of an installed plugin that is made of it."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "x_broken.py"

    def of(source):
        file.write_text(source)
        return PluginRecord("backend", "x", "x-dist", "1.0", "x_broken:B", str(file))

    return of


@pytest.mark.parametrize(
    ("source", "observed", "line"),
    [
        (
            "1 / 0",
            "importing it raised ZeroDivisionError: division by zero",
            "x_broken.py:1: 1 / 0",
        ),
        ("B = 3", "it is a int, not a class", ""),
        ("def B(:\n    pass\n", "importing it raised SyntaxError: invalid syntax (", "1: def B(:"),
        (
            "import os; os._exit(3)",
            "while it was loaded, it ended the process with exit code 3",
            "",
        ),
        (
            "import ctypes; ctypes.string_at(0)",
            "while it was loaded, it ended the process with SIGSEGV",
            "import ctypes; ctypes.string_at(0)",
        ),
    ],
)
def test_a_plugin_that_cannot_be_loaded_fails_once_and_blocks_the_rest(
    run_record, written, source, observed, line
):
    two = make(fake_rules.passes), make(fake_rules.passes, name="two")
    results = run_record(written(source), *two)
    loads, *rest = results.results
    assert [str(result.check) for result in results.results] == ["plugin.loads", *map(str, two)]
    assert outcomes(results) == [Outcome.FAILED, Outcome.BLOCKED, Outcome.BLOCKED]
    assert loads.failure.declared == "the entry point x = x_broken:B"
    assert loads.failure.observed.startswith(observed)
    assert loads.failure.where.endswith(line)
    assert {each.why for each in rest} == {f"plugin.loads: failed, {loads.failure.observed}"}
    assert results.code == 1
    said = list(not_covered(results))
    assert "It was not loaded: nothing that it does was looked at." in said
    assert not [line for line in said if "grid" in line]


@pytest.mark.parametrize(
    ("source", "mend"),
    [
        ("import no_such_module", "`pip install no_such_module`, or what else holds this module"),
        ("import x_broken.inner", "Import it alone, by `python -c 'import x_broken'`"),
        ("1 / 0", "Import it alone, by `python -c 'import x_broken'`, and mend what that raises."),
        ("", 'Define the class in x_broken, or correct the entry point `x = "x_broken:B"` in'),
        ("B = 3", "Define the class in x_broken, or correct the entry point"),
    ],
)
def test_the_advice_for_a_plugin_that_cannot_be_loaded_fits_its_cause(
    run_record, written, source, mend
):
    results = run_record(written(source), make(fake_rules.passes))
    said = dict(told(results.results[0], results.subject))
    assert said["mend it"].startswith(mend)
    assert said["just this"].endswith("-k plugin.loads")


def test_an_entry_point_to_no_module_is_to_be_corrected(run_record):
    record = PluginRecord("backend", "x", "x-dist", "1.0", "x_nowhere:B")
    results = run_record(record, make(fake_rules.passes))
    assert results.results[0].failure.mend.startswith("See that its package holds x_nowhere, or")


def test_what_looks_at_sources_alone_is_held_to_a_plugin_that_cannot_be_loaded(run_record, written):
    sources = make(fake_rules.unseen, loads=False)
    results = run_record(written("1 / 0"), make(fake_rules.passes), sources)
    assert outcomes(results) == [Outcome.FAILED, Outcome.BLOCKED, Outcome.PASSED]


# ---- classes of this process only ----------------------------------------------------------------


def test_a_class_that_no_other_process_can_import_is_checked_here_and_that_is_said(run):
    class Local(hostile.Good):
        @classmethod
        def act(cls):
            sys.stdout.write("here\n")
            torch.set_default_dtype(torch.float64)
            raise NotApplicable(str(os.getpid()))

    (result,) = run(Local, make(fake_rules.acts)).results
    assert (result.why, result.output) == (str(os.getpid()), "here\n")
    assert result.here.endswith("Local is defined in a function")
    assert torch.get_default_dtype() is torch.float32


def test_another_class_of_the_same_name_elsewhere_is_not_taken_for_it(run, monkeypatch):
    monkeypatch.setattr(hostile, "__file__", "/elsewhere/hostile.py")
    (result,) = run(hostile.Good, make(fake_rules.passes)).results
    assert result.here == f"testkit.hostile is {HOSTILE} there, and not /elsewhere/hostile.py"


def test_ctrl_c_in_a_check_that_runs_here_is_the_persons(run):
    class Local(hostile.Interrupting):
        pass

    with pytest.raises(KeyboardInterrupt):
        run(Local, make(fake_rules.acts))


def test_a_refusal_of_the_core_by_name_is_the_plugins_failure(run):
    class Local(hostile.Good):
        @classmethod
        def act(cls):
            """Stands for the core, which a plugin's name is not in the frames of."""

    def refuses(subject):
        error = PluginError(f"{subject.record}: a vote is no SharedReadEnds")
        exec(compile("raise error", "core.py", "exec"), {"error": error})

    (result,) = run(Local, make(refuses)).results
    assert result.outcome is Outcome.FAILED
    assert "a vote is no SharedReadEnds" in result.failure.observed


# ---- selection -----------------------------------------------------------------------------------


def test_a_pattern_takes_along_what_its_checks_need(run):
    checks = [
        make(fake_rules.passes, name="base"),
        make(fake_rules.passes, name="other"),
        make(fake_rules.passes, name="top", needs=("backend.base",)),
    ]
    results = run(hostile.Good, *checks, pattern="top")
    assert [result.check.name for result in results.results] == ["backend.base", "backend.top"]
    assert (results.selection.available, results.whole) == (3, False)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("backend.poison", ["backend.poison"]),
        ("poison", ["backend.poison", "backend.poison_more"]),
        ("*.p*_more", ["backend.poison_more"]),
        ("p*_more", ["backend.poison_more"]),
    ],
)
def test_a_pattern_is_a_name_or_a_part_of_one_or_has_wildcards(rules, pattern, names):
    rules(*(make(fake_rules.passes, name=name) for name in ("votes", "poison", "poison_more")))
    chosen = selection.Selection.of("backend", pattern)
    assert [check.name for check in chosen.checks] == names


def test_a_pattern_that_nothing_fits_gets_a_suggestion(rules):
    rules(make(fake_rules.passes, name="poison"))
    with pytest.raises(ConfigError, match="'posion'; did you mean poison"):
        selection.Selection.of("backend", "posion")


def test_a_kind_without_checks_is_told_as_such(rules):
    rules(make(fake_rules.passes, kind=None))
    with pytest.raises(ConfigError, match="there are no checks of a backend"):
        selection.Selection.of("backend")


# ---- known failures, contracts, exit codes -------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"backend.refutd": "x"}, "no check 'backend.refutd'; did you mean backend.refuted"),
        ({"backend.passes": "x"}, "backend.passes is a MUST"),
        ({"backend.refuted": " "}, "backend.refuted is a known failure without a reason"),
        ({"backend.refuted": None}, "backend.refuted is a known failure without a reason"),
    ],
)
def test_a_known_failure_of_no_check_or_of_a_must_or_without_a_reason_is_an_error(
    rules, known, message
):
    rules(make(fake_rules.refuted, level="SHOULD"), make(fake_rules.passes))
    with pytest.raises(ConfigError, match=message):
        run_checks(subject_of(), known_failures=known)


def test_a_known_failure_is_expected_with_its_reason(rules, isolation):
    rules(make(fake_rules.refuted, level="SHOULD"), make(fake_rules.passes))
    known = {"backend.refuted": "later"}
    results = run_checks(subject_of(), known_failures=known, isolation=isolation)
    assert outcomes(results) == [Outcome.EXPECTED_FAILURE, Outcome.PASSED]
    assert (results.results[0].why, results.code) == ("later", 0)


def test_a_known_failure_that_passes_is_an_error(rules, isolation):
    rules(make(fake_rules.passes, level="SHOULD"), make(fake_rules.passes, name="more"))
    known = {"backend.passes": "later"}
    results = run_checks(subject_of(), known_failures=known, isolation=isolation)
    assert outcomes(results) == [Outcome.FAILED, Outcome.PASSED]
    said = dict(told(results.results[0], results.subject))
    assert said["observed"] == "it passes; strike it out of known_failures"
    assert not {"so what", "mend it"} & {*said}
    assert results.code == 1


@pytest.mark.parametrize(
    ("need", "outcome"),
    [
        (fake_rules.refuted, Outcome.BLOCKED),
        (fake_rules.blind, Outcome.UNPROVEN),
    ],
)
def test_a_known_failure_is_about_a_check_that_was_run(rules, isolation, need, outcome):
    rules(
        make(need, name="first"),
        make(fake_rules.refuted, name="it", level="SHOULD", needs=("backend.first",)),
    )
    results = run_checks(subject_of(), known_failures={"backend.it": "later"}, isolation=isolation)
    assert results.results[1].outcome is outcome
    assert "later" not in results.results[1].why


@pytest.mark.parametrize("needs", [(), ("backend.first",)], ids=["itself", "what it needs"])
def test_a_known_failure_that_does_not_apply_is_stale_which_is_an_error(rules, isolation, needs):
    first = make(fake_rules.absent, name="first")
    rules(first, make(fake_rules.absent, name="it", level="SHOULD", needs=needs))
    results = run_checks(subject_of(), known_failures={"backend.it": "later"}, isolation=isolation)
    failure = results.results[1].failure
    assert failure.observed.startswith("it does not apply: ")
    assert failure.observed.endswith("it has no graphs; strike it out of known_failures")
    assert results.code == 1


def test_a_known_failure_may_be_of_another_device(rules, isolation):
    elsewhere = make(fake_rules.refuted, name="it", level="SHOULD", devices=("cuda",))
    rules(make(fake_rules.passes), elsewhere)
    results = run_checks(subject_of(), known_failures={"backend.it": "later"}, isolation=isolation)
    assert outcomes(results) == [Outcome.PASSED, Outcome.NOT_APPLICABLE]


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([make(fake_rules.passes)], 0),
        ([make(fake_rules.passes), make(fake_rules.absent)], 0),
        ([make(fake_rules.passes), make(fake_rules.refuted)], 1),
        ([make(fake_rules.passes), make(fake_rules.refuted, level="SHOULD")], 0),
        ([make(fake_rules.passes), make(fake_rules.blind)], 2),
        ([make(fake_rules.refuted), make(fake_rules.blind)], 1),
        ([make(fake_rules.absent)], 2),
        ([make(fake_rules.passes), make(fake_rules.refuted, since="0.9")], 0),
    ],
)
def test_exit_codes(run, checks, code):
    assert run(hostile.Good, *checks).code == code


@pytest.mark.parametrize(
    ("requires", "contract"),
    [
        ("warcore>=0.1,<0.2", "0.1"),
        ("warcore~=0.3.2", "0.3"),
        ("warcore==1.*", "1.0"),
        ("warcore<2", "0.1"),
        (None, "0.1"),
    ],
)
def test_a_plugins_contract_is_the_lower_bound_of_its_requirement(requires, contract):
    record = attrs.evolve(PluginRecord.of_class("backend", hostile.Good), requires=requires)
    assert selection.contract_of(record) == contract


def test_a_check_newer_than_the_contract_runs_and_does_not_count(run):
    results = run(hostile.Good, make(fake_rules.passes), make(fake_rules.absent, since="0.10"))
    assert [result.counted for result in results.results] == [True, False]
    assert results.total == 1


# ---- whose signal it is --------------------------------------------------------------------------


THIEF = "somebody who set SIGSEGV to be ignored"
needs_guard = pytest.mark.skipif(supported() is not None, reason=str(supported()))


@needs_guard
def test_who_took_the_signal_of_the_page_guard_is_said_with_the_check(run):
    results = run(hostile.Good, make(fake_rules.passes), make(fake_rules.robbed))
    assert [result.stolen for result in results.results] == [(), (THIEF,)]
    said = f"The page guard lost SIGSEGV to {THIEF} in backend.robbed, and had it again"
    assert [line for line in not_covered(results) if line.startswith(said)]


# ---- who has looked ------------------------------------------------------------------------------


@needs_guard
def test_the_detectors_of_a_run_are_those_that_its_checks_have_looked_with(run):
    checks = make(fake_rules.passes), make(fake_rules.guarded)
    assert detectors_used(run(hostile.Good, *checks)) == ["page guard"]
    results = run(hostile.Good, *checks, pattern="passes")
    assert detectors_used(results) == []
    assert any("had a use for: page guard, " in line for line in not_covered(results))


def detectors_used(results):
    return [each.name for each in detectors(results) if each.used]


@pytest.mark.parametrize(("value", "unseen"), [("0", True), ("1", False)])
def test_what_kernels_read_without_the_interpreter_was_not_seen_and_that_is_said(
    rules, monkeypatch, value, unseen
):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", value)
    rules(make(fake_rules.passes))
    said = list(not_covered(run_checks(subject_of())))
    assert any("what a Triton kernel reads was not seen" in line for line in said) == unseen


@needs_guard
def test_an_observation_says_who_took_the_signal(run):
    (result,) = run(hostile.Good, make(fake_rules.robbed_and_observed)).results
    assert f"page guard: {THIEF} took SIGSEGV" in result.why
