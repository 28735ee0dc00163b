"""`warcore generate` as a process: Ctrl-C, pipes, terminals, and a machine without torch."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from warcore.registry import ALLOWLIST

GATE = """
import os
import signal
import sys
calls = 0

class Gated(ToyModel):
    def forward(self, *args):
        # The fourth step waits until the other end closes the standard input. Then it may be
        # asked to press Ctrl-C again and again, and never to end.
        global calls
        calls += 1
        if calls == 4 and sys.stdin.read() == "press":
            while True:
                os.kill(os.getpid(), signal.SIGINT)
        return super().forward(*args)

class GatedToy(Toy):
    @classmethod
    def recognises(cls, ref):
        return "gated" if ref == "gated" else None

    @classmethod
    def load(cls, ref, ctx):
        return Gated(ctx.dtype)
"""


@pytest.fixture
def start(toy_site):
    """`warcore generate ARGS` as a process of its own, with the toy model whose step waits."""
    (source,) = toy_site.path.glob("toys_of_*.py")
    toy_site.add("gated", {"model": {"gated": "gated:GatedToy"}}, gated=source.read_text() + GATE)
    path = os.pathsep.join([str(toy_site.path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, ALLOWLIST: "toy,gated,toy-rows"}

    def run(*args, command="generate", **streams):
        command = [sys.executable, "-m", "warcore", command, "--model", "gated"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [*command, "--dtype", "float64", *args], **pipes | streams, env=env, text=True
        )

    return run


class TestInterrupt:
    """The signal comes from within a step, so that where it arrives is no race."""

    def test_one_prompt_keeps_what_was_printed(self, generate, press):
        press(6)
        code, out, err = generate("abc", "--loop", "normal")
        assert code == 130
        assert len(out) == len("1234\n")
        assert err == "interrupted: 0 of 1 finished, 1 cut short\n"

    def test_several_print_what_finished_and_mark_what_did_not(self, generate, press):
        press(20)
        limits = ("--max-running-requests", "1", "--max-new-tokens", "10")
        code, out, err = generate("abc", "abcdefghijklmno", "x", *limits)
        assert code == 130
        assert "[1/3] abc\n" in out
        assert "[2/3] abcdefghijklmno (cut short)\n" in out
        assert "[3/3]" not in out
        assert err == "interrupted: 1 of 3 finished, 1 cut short\n"

    def test_a_long_prefill_ends_after_its_running_chunk(self, generate, press):
        press(4)
        code, out, err = generate("a" * 60, "--prefill-chunk", "1", "--loop", "normal", "--stats")
        assert code == 130
        assert "4 steps, 0 tokens" in out
        assert err == "interrupted: 0 of 1 finished, 0 cut short\n"

    def test_the_document_is_whole(self, generate, press):
        press(6)
        result = generate("abc", "--json")
        (answer,) = json.loads(result.out)["results"]
        assert (result.code, answer["finish_reason"]) == (130, "abort")

    def test_the_second_press_ends_at_once(self, generate, press):
        press(6, times=2)
        code, _, err = generate("abc", "def")
        assert (code, err) == (130, "interrupted\n")

    def test_an_error_that_native_code_made_of_a_press_is_a_press(
        self, generate, toys, monkeypatch
    ):
        def load(ref, ctx):
            raise SystemError("a result with an exception set") from KeyboardInterrupt()

        monkeypatch.setattr(toys.Toy, "load", load)
        assert generate("abc") == (130, "", "interrupted\n")

    def test_the_handler_of_before_is_back_afterwards(self, generate, press):
        press(6)
        generate("abc")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_a_signal_that_somebody_else_handles_is_left_to_him(self, generate, press):
        press(6)
        heard = []
        before = signal.signal(signal.SIGINT, lambda *_: heard.append("it"))
        try:
            assert generate("abc", "--max-new-tokens", "9").code == 0
        finally:
            signal.signal(signal.SIGINT, before)
        assert heard == ["it"]

    def test_a_process_prints_what_it_has_and_ends(self, start):
        process = start("abc")
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130
        assert 1 <= len((first + out).rstrip("\n")) <= 4
        assert err == "interrupted: 0 of 1 finished, 1 cut short\n"

    @pytest.mark.parametrize("host", ["inline", "threads"])
    @pytest.mark.parametrize("command", ["generate", "trace"])
    def test_a_second_press_ends_a_process_whose_step_does_not_end(
        self, start, command, host, tmp_path
    ):
        out = ("--out", str(tmp_path / "t.json")) if command == "trace" else ()
        process = start("abc", *out, "--host", host, command=command)
        _, err = process.communicate("press")
        assert (process.returncode, err) == (130, "interrupted\n")

    def test_what_was_printed_before_the_second_press_is_there(self, start):
        process = start("abc")
        out, _ = process.communicate("press")
        assert 1 <= len(out) <= 4

    def test_a_bar_that_a_second_press_ends_leaves_the_cursor(self, start):
        bar, theirs = pty.openpty()
        process = start("abc", "de", stderr=theirs)
        os.close(theirs)
        process.stdin.write("press")
        process.stdin.close()
        shown = _read_all(bar)
        assert process.wait() == 130
        process.stdout.close()
        assert shown.endswith("\x1b[?25hinterrupted\r\n")

    @pytest.mark.parametrize("host", ["inline", "threads"])
    def test_presses_while_a_command_ends_leave_its_code(self, start, host):
        process = start("abc", "--host", host, "--max-new-tokens", "3", stdin=subprocess.DEVNULL)
        process.stdout.read(1)
        code = presses_until_it_ends(process)
        _, err = process.communicate()
        assert code in {0, 130, -signal.SIGINT}
        assert "Traceback" not in err
        assert "terminate" not in err


def presses_until_it_ends(process):
    """Ctrl-C as fast as a hand that has lost patience; the exit code."""
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue


def test_a_closed_pipe_is_silent(start):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("abc", stdin=subprocess.DEVNULL, stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, "")


def test_several_prompts_show_a_progress_bar_on_a_terminal_only(start):
    ours, theirs = pty.openpty()
    args = ("abc", "de", "--max-new-tokens", "9")
    process = start(*args, stdin=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    # The terminal first: it holds little, and whoever writes to a full one waits.
    shown = _read_all(ours)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert out.startswith("[1/2] abc\n")
    assert "loading gated" in shown
    assert "answered" in shown
    assert "2/2" in shown
    assert "tokens/s" in shown


def _read_all(terminal):
    data = b""
    try:
        while piece := os.read(terminal, 65536):
            data += piece
    except OSError:
        pass  # how a terminal says that nobody writes to it any more
    os.close(terminal)
    return data.decode()


def test_help_imports_no_torch_and_no_plugin(site):
    site.add("bad", {"model": {"bad": "bad:Bad"}}, bad="raise SystemExit('imported')")
    site.add("fake-torch", torch="raise SystemExit('imported')")
    result = site.warcore("generate", "--help")
    assert result.returncode == 0, result.stderr
    assert "--max-new-tokens N" in result.stdout
    headings = ["Prompts:", "Engine:", "Sizes:", "Plugins:", "Sampling:", "Output:"]
    places = [result.stdout.index(f"\n{heading}\n") for heading in headings]
    assert places == sorted(places)


def test_without_torch_it_says_what_to_install(site):
    result = site.warcore("generate", "--model", "any", "hi")
    assert result.returncode == 2
    assert result.stderr == (
        "error: running a model needs torch, which is not installed\n"
        "Next: pip install 'warcore[torch]'\n"
    )
