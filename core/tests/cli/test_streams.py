"""The standard streams as a shell may leave them: closed, full, or with nobody behind them."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys

import pytest

from warcore.cli import main
from warcore.cli.streams import OutputError, standard_streams

FULL = (
    "error: cannot write the output: No space left on device\n"
    "Next: send it to a place that can hold it\n"
)
ANSWER = "--model toy --dtype float64 --max-new-tokens 3 hi"


@pytest.fixture
def shell(toy_site):
    """`warcore ARGS REDIRECTIONS` run by a shell, buffered as usual or not at all."""

    def run(line, *, unbuffered=False):
        command = shlex.join([sys.executable, *(["-u"] if unbuffered else []), "-m", "warcore"])
        path = f"{toy_site.path}:{':'.join(sys.path)}"
        return subprocess.run(
            ["sh", "-c", f"{command} {line}"],
            env={"PYTHONPATH": path, "WARCORE_PLUGINS": "toy,toy-rows", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    "args", [f"generate {ANSWER}", f"generate {ANSWER} ho --stats", "list-plugins --json"]
)
def test_a_closed_stdout_is_a_closed_pipe(shell, args):
    result = shell(f"{args} >&-")
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("args", [f"generate {ANSWER}", f"generate {ANSWER} --json", "--help"])
def test_an_output_that_cannot_be_written_is_an_error(shell, args):
    result = shell(f"{args} >/dev/full")
    assert (result.returncode, result.stderr) == (2, FULL)


def test_an_unbuffered_output_that_cannot_be_written_is_an_error(shell):
    result = shell(f"generate {ANSWER} >/dev/full", unbuffered=True)
    assert (result.returncode, result.stderr) == (2, FULL)


@pytest.mark.parametrize("nowhere", ["2>&-", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_an_error_that_nobody_can_read_keeps_its_exit_code(shell, nowhere):
    result = shell(f"list-plugins --only nobody --debug {nowhere}")
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "")


def test_a_log_that_nobody_can_read_disturbs_no_answer(shell):
    result = shell(f"generate {ANSWER} {'a' * 99} --debug 2>/dev/full")
    assert result.returncode == 1
    assert result.stdout.startswith("[1/2] hi\n")


def test_a_closed_stdin_holds_no_prompts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", "--model", "any", "--prompts-file", "-"]) == 2
    assert capsys.readouterr().err == (
        "error: the standard input is closed\nNext: --prompts-file FILE\n"
    )


class Full(io.StringIO):
    """A stream whose disk is full."""

    def write(self, text):
        raise OSError(28, "No space left on device")


def test_whoever_swallows_the_first_failure_meets_it_again(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Full())
    with standard_streams():
        for _ in range(2):
            with pytest.raises(OutputError, match="No space left"):
                sys.stdout.write("x")


def test_the_streams_of_before_are_back_afterwards(monkeypatch):
    before = io.StringIO(), None
    monkeypatch.setattr(sys, "stdout", before[0])
    monkeypatch.setattr(sys, "stderr", before[1])
    with standard_streams():
        sys.stdout.write("kept")
        sys.stderr.write("lost")
    assert (sys.stdout, sys.stderr) == before
    assert before[0].getvalue() == "kept"
