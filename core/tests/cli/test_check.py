"""`warcore check` as a person and as a program meet it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from testkit import cell_rules, fake_rules
from testkit.fake_rules import make

from warcore.cli import main
from warcore.registry import ALLOWLIST
from warcore.testkit.environment import TIMEOUT_VARIABLE
from warcore.testkit.runs import running, selection
from warcore.testkit.runs.isolation import Isolation

PASSES = make(fake_rules.passes)


class Lent:
    """An isolation that stays open for the next test; it takes seconds to start."""

    def __init__(self, isolation):
        self.run = isolation.run
        self.platform = isolation.platform

    def close(self):
        pass


@pytest.fixture(scope="module")
def isolation():
    with Isolation() as shared:
        yield shared


@pytest.fixture
def check(toy_site, isolation, capsys, monkeypatch, tmp_path):
    """`check(ARGS, rules=[...])`: `warcore check ARGS` with no other checks, in this process."""
    monkeypatch.setattr(running, "Isolation", lambda: Lent(isolation))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*args, rules=(PASSES,)):
        monkeypatch.setattr(selection, "checks_of", lambda kind: iter(rules))
        code = main(["check", *args])
        return (code, *capsys.readouterr())

    return run


def listing(capsys):
    assert main(["list-plugins"]) == 0
    return capsys.readouterr().out


def test_a_line_for_each_check_and_the_sum_in_the_last(check):
    code, out, err = check("toy-rows", rules=[PASSES, make(fake_rules.absent)])
    lines = out.splitlines()
    assert lines[0] == "backend toy-rows (toys 1.0) on host"
    assert lines[1].split() == ["passed", "backend.passes"]
    assert lines[2].split(None, 2) == ["not", "applicable", "backend.absent: it has no graphs"]
    assert lines[-1] == "2 checks: 1 passed · 1 not applicable: conformant"
    assert (code, err) == (0, "")


def test_a_failure_says_what_to_mend_and_how_to_repeat_it(check):
    code, out, _ = check("toy-rows", rules=[PASSES, make(fake_rules.refuted)])
    assert code == 1
    failure = out[out.index("\nbackend.refuted: failed") :].split("\n\n")[0].splitlines()
    assert [line.strip().split("  ")[0] for line in failure[2:]] == [
        "declared",
        "observed",
        "at",
        "seen by",
        "so what",
        "mend it",
        "just this",
        "and",
    ]
    assert "warcore check backend:toy-rows -k backend.refuted --cell 'decode 4'" in out
    assert out.splitlines()[-1] == "2 checks: 1 passed · 1 failed: not conformant"


def test_a_check_without_a_verdict_gives_exit_code_2(check):
    code, out, _ = check("toy-rows", rules=[PASSES, make(fake_rules.blind)])
    assert code == 2
    assert out.splitlines()[-1].endswith("could not run")


def test_a_failed_should_is_shown_and_leaves_the_plugin_conformant(check):
    code, out, _ = check("toy-rows", rules=[PASSES, make(fake_rules.refuted, level="SHOULD")])
    assert code == 0
    assert "backend.refuted (SHOULD)" in out


def test_a_newer_check_is_shown_and_not_counted(check):
    code, out, _ = check("toy-rows", rules=[PASSES, make(fake_rules.refuted, since="0.9")])
    assert code == 0
    assert "backend.refuted [new in 0.9, not counted]" in out
    assert out.splitlines()[-1] == "1 check: 1 passed: conformant"


def test_what_was_not_covered_is_said(check):
    _, out, _ = check("toy-rows")
    covered = out.split("Not covered:")[1]
    assert "A CPU run says nothing about a plugin's separate CUDA kernels." in covered


def test_the_verdict_on_each_declared_end_is_said_before_the_sum(check):
    _, out, _ = check("toy-rows", rules=[make(fake_rules.declares)])
    *_, heading, line, _, last = out.splitlines()
    assert heading == "Where its reads end:"
    assert line.startswith("    DECODE: IN_REPLAY \u2014 unproven (")
    assert last == "1 check: 1 passed: conformant"


def test_the_options_reach_the_check(check):
    *_, out, _ = check("toy-rows", "--all", "--cell", "decode", rules=[make(fake_rules.seen)])
    assert "('host', 'decode', True, None)" in out


CHOOSY = """
import attrs
from toys_of_generate import RowMajor

@attrs.frozen
class Options:
    above: int = attrs.field(default=8, validator=attrs.validators.ge(0))

class Choosy(RowMajor):
    Options = Options
"""


@pytest.fixture
def choosy(check, toy_site, monkeypatch):
    """`check` on a plugin that has an option."""
    toy_site.add("choosy", {"backend": {"choosy": "choosy:Choosy"}}, choosy=CHOOSY)
    monkeypatch.setenv(ALLOWLIST, "toy,toy-rows,choosy")
    return check


def test_a_plugin_is_checked_with_the_options_that_were_set(choosy, capsys, tmp_path):
    rules = [make(fake_rules.seen), make(fake_rules.refuted)]
    arguments = ["choosy", "--opt", "choosy.above=2", "--json", str(tmp_path / "r.json")]
    code, out, _ = choosy(*arguments, rules=rules)
    assert (code, "Options(above=2)" in out) == (1, True)
    repeated = "warcore check backend:choosy -k backend.refuted --opt choosy.above=2 --cell"
    assert repeated in out
    assert "It was checked with above=2" in out
    assert json.loads((tmp_path / "r.json").read_text())["options"] == {"above": "2"}
    assert "checked" not in listing(capsys), "this is not the plugin as it comes"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("choosy.abov=2", "choosy has no option 'abov'\nNext: did you mean choosy.above?"),
        ("choosy.above=-1", "options of choosy: 'above' must be >= 0: -1"),
        ("choosy.above", "--opt choosy.above gives no value"),
        ("=2", "--opt '=2' names no option\nNext: --opt NAME.key=value"),
        ("choosy.=2", "--opt 'choosy.=2' names no option\nNext: --opt NAME.key=value"),
        (
            "above=2",
            "--opt above: only backend choosy (choosy 1.0) is checked\nNext: --opt choosy.",
        ),
    ],
)
def test_an_option_that_it_does_not_have_is_refused_before_the_run(choosy, option, message):
    code, out, err = choosy("choosy", "--opt", option)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


def test_json_writes_the_report_to_a_file(check, tmp_path):
    file = tmp_path / "r.json"
    code, out, _ = check("toy-rows", "--json", str(file))
    document = json.loads(file.read_text())
    assert (document["verdict"], document["plugin"]["name"]) == ("conformant", "toy-rows")
    assert (code, "conformant" in out) == (0, True)


def test_json_to_stdout_sends_the_summary_to_stderr(check):
    code, out, err = check("toy-rows", "--json", "-", rules=[PASSES, make(fake_rules.refuted)])
    assert json.loads(out)["verdict"] == "not conformant"
    assert err.splitlines()[0] == "backend toy-rows (toys 1.0) on host"
    assert err.splitlines()[-1] == "2 checks: 1 passed · 1 failed: not conformant"
    assert code == 1


def test_a_file_that_cannot_be_written_is_refused_before_the_run(check, tmp_path):
    code, out, err = check("toy-rows", "--json", str(tmp_path / "no/r.json"))
    assert (code, out) == (2, "")
    assert err.startswith("error: --json")


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["toy-row"], "no plugin is called 'toy-row'; did you mean toy-rows?"),
        (["stager:toy-rows"], "no plugin is called 'stager:toy-rows'"),
        ([], "there is no plugin to check\nNext: warcore check NAME; warcore list-plugins shows"),
        (["toy-rows", "-k", "pases"], "no check of a backend is called 'pases'; did you mean"),
        (["toy-rows", "-k", "x"], "no check of a backend is called 'x'\nNext: -k passes\n"),
        (["toy-rows", "--device", "cude"], "--device does not take 'cude'; did you mean cuda?"),
        (["toy"], "there are no checks of a model in this version of warcore yet"),
        (["--explain", "backend.pases"], "no check is called 'backend.pases'; did you mean"),
        (["--explain", "x"], "no check is called 'x'\nNext: warcore check --explain\n"),
    ],
)
def test_a_wrong_name_is_told_with_what_was_meant(check, args, message):
    code, out, err = check(*args)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["toy_rows"], "toy-rows"),
        (["backend:toy-row"], "backend:toy-rows"),
        (["--explain", "passes"], "--explain backend.passes"),
        (["--explain", "pases"], "--explain backend.passes"),
    ],
)
def test_a_name_that_is_near_one_gets_the_command_to_type(check, args, meant):
    assert check(*args)[2].splitlines()[-1] == f"Next: warcore check {meant}"


def test_what_cannot_be_run_is_told_before_anything_else(check, monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, "x")
    code, out, err = check("toy-rows")
    assert (code, out) == (2, "")
    assert err.splitlines()[1].startswith(f"Next: {TIMEOUT_VARIABLE}=")


def test_a_device_that_is_not_there_is_told_before_anything_else(check, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = check("toy-rows", "--device", "cuda")
    assert (code, out) == (2, "")
    assert err.startswith("error: no CUDA device: torch")
    assert "--device host" in err.splitlines()[1]


def test_what_could_not_run_for_the_sake_of_another_check_is_a_line_and_no_more(check):
    unproven = make(fake_rules.blind)
    after = make(fake_rules.passes, needs=(unproven.name,))
    code, out, _ = check("toy-rows", rules=[unproven, after])
    assert code == 2
    assert f"  could not run     {after}: {unproven}: could not run, " in out
    assert [f"\n{each}: could not run\n" in out for each in (unproven, after)] == [True, False]


def test_a_plugin_that_cannot_be_loaded_is_told_once_and_not_by_each_check(
    check, toy_site, monkeypatch
):
    toy_site.add("gone", {"backend": {"gone": "gone:Gone"}}, gone="import no_such_module")
    monkeypatch.setenv(ALLOWLIST, "gone")
    rules = [make(fake_rules.passes, name=name) for name in ("one", "two", "three")]
    code, out, _ = check("gone", "-k", "o", rules=rules)
    why = "it needs the module no_such_module, which is not installed"
    assert out.splitlines()[1:3] == [
        "  failed            plugin.loads",
        f"  blocked           2 checks: plugin.loads: failed, {why}",
    ]
    assert "\nplugin.loads: failed\n" in out
    assert "pip install no_such_module" in out
    assert code == 1


@pytest.mark.parametrize("pattern", [["-k", "looks"], []])
def test_a_cell_that_nothing_has_is_told_before_what_its_checks_need(check, pattern):
    looks = make(cell_rules.looks, needs=("backend.passes",))
    code, out, err = check("toy-rows", *pattern, "--cell", "nonsense", rules=[PASSES, looks])
    assert (code, out) == (2, "")
    assert err.startswith("error: backend.looks: none of its 1 cells is called 'nonsense'")
    assert err.splitlines()[-1].startswith("Next: --cell")


def test_a_name_of_two_kinds_needs_its_kind(check, toy_site, monkeypatch):
    toy_site.add("twin", {"stager": {"toy-rows": "toys_of_generate:Toy"}})
    code, _, err = check("toy-rows")
    assert code == 2
    assert err.splitlines()[-1] == "Next: backend:toy-rows or stager:toy-rows"
    assert check("backend:toy-rows")[0] == 0


def test_explain_prints_the_three_paragraphs_and_runs_nothing(check):
    code, out, _ = check("--explain", "backend.refuted", rules=[make(fake_rules.refuted)])
    assert code == 0
    assert out.split("\n\n")[1:] == ["The rule of backend.refuted.", "So.", "Mend.\n"]
    assert re.search(r"level +MUST", out)


def test_explain_says_what_a_check_needs_and_comes_after_and_where_it_is_held(check):
    facts = {"needs": ("backend.passes",), "after": ("backend.absent",), "devices": ("cuda",)}
    _, out, _ = check(
        "--explain", "backend.it", rules=[make(fake_rules.passes, name="it", **facts)]
    )
    for heading, text in {
        "needs": "backend.passes",
        "comes after": "backend.absent",
        "held on": "cuda",
    }.items():
        assert re.search(rf"^    {heading} +{text}$", out, re.MULTILINE)


def test_explain_without_a_check_lists_the_checks_and_runs_none(check):
    rules = [PASSES, make(fake_rules.absent, kind=None), make(fake_rules.blind, level="SHOULD")]
    code, out, _ = check("toy-rows", "--explain", rules=rules)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["CHECK", "LEVEL"],
        ["plugin.absent", "MUST"],
        ["backend.passes", "MUST"],
        ["backend.blind", "SHOULD"],
    ]
    assert check("--explain", rules=rules)[1] == out
    assert "absent" not in check("toy-rows", "-k", "blind", "--explain", rules=rules)[1]


# ---- what is left for the next listing -----------------------------------------------------------


def test_the_next_listing_shows_the_last_report(check, capsys):
    assert "CONTRACT" not in listing(capsys)
    check("toy-rows", rules=[PASSES, make(fake_rules.absent)])
    row = next(line for line in listing(capsys).splitlines() if " toy-rows " in line)
    assert row.endswith("checked 1/1 on host")
    assert main(["list-plugins", "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)["checked"]
    assert (checked["name"], checked["verdict"]) == ("toy-rows", "conformant")


def test_the_next_listing_says_of_a_plugin_that_failed_that_it_is_not_conformant(check, capsys):
    check("toy-rows", rules=[PASSES, make(fake_rules.refuted)])
    row = next(line for line in listing(capsys).splitlines() if " toy-rows " in line)
    assert row.split("  ")[-2:] == ["available, not conformant", "checked 1/2 on host"]
    check("toy-rows")
    assert "not conformant" not in listing(capsys)


def test_listing_reports_imports_no_torch_and_no_plugin(check, toy_site, tmp_path, monkeypatch):
    toy_site.backend("good")
    monkeypatch.setenv(ALLOWLIST, "good")
    check("good")
    program = (
        "import sys; from warcore.cli import main; main(['list-plugins']);"
        "print(sorted({'torch', 'x_good'} & {*sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(toy_site.path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "checked 1/1 on host" in result.stdout
    assert result.stdout.endswith("[]\n")


# ---- a process of its own ------------------------------------------------------------------------


PROGRAM = """
import sys
from testkit import fake_rules
from testkit.fake_rules import make
from warcore.testkit.runs import selection
from warcore.cli import main
RULES = [make(getattr(fake_rules, name)) for name in sys.argv.pop(1).split(",")]
selection.checks_of = lambda kind: iter(RULES)
sys.exit(main())
"""


@pytest.fixture
def start(toy_site, tmp_path):
    """`start(RULES, ...)`: `warcore check toy-rows ...` with these rules in a process."""
    tests = str(Path(__file__).resolve().parents[1])

    (tmp_path / "temporary").mkdir()

    def started(rules, *more, **streams):
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, rules, "check", "toy-rows", *more],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join([str(toy_site.path), tests]),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "TERM": "xterm-256color",
                "TMPDIR": str(tmp_path / "temporary"),
                "WARCORE_TEST_FILE": str(tmp_path / "pid"),
            },
            **streams,
        )

    return started


def test_a_terminal_gets_colours_and_a_bar_that_vanishes(start):
    ours, theirs = pty.openpty()
    process = start("passes,refuted", stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    with suppress(OSError):  # a terminal whose other end is closed reads as an error
        while chunk := os.read(ours, 65536):
            output += chunk
    os.close(ours)
    assert process.wait(60) == 1
    text = output.decode()
    assert "\x1b[32m  passed" in text
    assert "\x1b[31m  failed" in text
    assert "1 passed · 1 failed: not conformant" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_check_ends_with_the_command_and_leaves_no_file(start, tmp_path, number):
    os.mkfifo(tmp_path / "pid")
    process = start("waits", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with (tmp_path / "pid").open() as told:
        assert int(told.readline()) > 0
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        # The check held the other end: now nobody does.
        assert told.read() == ""
    if number == signal.SIGINT:
        assert (process.returncode, err) == (130, "interrupted\n")
    # Who removes what is left outlives the command by a moment.
    deadline = time.monotonic() + 60
    while list((tmp_path / "temporary").iterdir()):
        assert time.monotonic() < deadline


def test_ctrl_c_tells_how_far_it_came_and_writes_down_what_was_found(start, tmp_path):
    os.mkfifo(tmp_path / "pid")
    report = tmp_path / "r.json"
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = start("refuted,waits", "--json", str(report), **streams)
    with (tmp_path / "pid").open() as told:
        told.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    said = "interrupted: 1 of 2 checks ran\nNext: warcore check backend:toy-rows\n"
    assert (process.returncode, err) == (130, said)
    document = json.loads(report.read_text())
    assert [each["outcome"] for each in document["checks"]] == ["failed"]
    assert "It was interrupted after 1 of 2 checks." in document["not_covered"]
