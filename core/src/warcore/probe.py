"""Load a plugin in a process of its own, so that whatever its import does happens there.

A plugin that segfaults, hangs, ends the process or prints is thereby a record like any other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.errors import ConfigError
from warcore.records import LoadError, PluginRecord, flawed, load, reinstall

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_VARIABLE: Final = "WARCORE_LOAD_TIMEOUT"
"""Environment variable: seconds that one plugin may take to load; 20 if it is not set."""

# The child gets the parent's search path, so that both speak of the same installation; until then
# nothing in the current directory can stand in for a module of the standard library.
_CHILD: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import json; task = json.load(sys.stdin);"
    "sys.path[:] = task['path']; from warcore.probe import answer; answer(task)"
)


@attrs.frozen
class Probe:
    """One plugin, and what loading it showed if that was tried."""

    record: PluginRecord
    """In state loaded, broken or unavailable once tried."""
    tried: bool = False
    seconds: float | None = None
    """Time that the import took; None if it did not end well."""
    cls: str | None = None
    """MODULE:CLASS that the entry point resolved to."""
    note: str | None = None
    """What the class says of itself on this machine, for people."""


def timeout() -> float:
    """Seconds that one plugin may take; ConfigError if the environment says nonsense."""
    text = os.environ.get(TIMEOUT_VARIABLE, "20")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{TIMEOUT_VARIABLE}={text} is not a number of seconds above 0")
    return seconds


def probe(record: PluginRecord, seconds: float) -> Probe:
    """Load `record` in a new process, for at most `seconds`, and say what came of it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="warcore-probe-") as folder:
        result, noise = Path(folder, "result.json"), Path(folder, "noise")
        task = {
            "path": [str(Path(p).absolute()) for p in sys.path],
            "record": attrs.asdict(record, filter=lambda field, _: field.name != "given"),
            "result": str(result),
        }
        code = _run(json.dumps(task).encode(), noise, seconds)
        if result.exists():
            return _told(record, json.loads(result.read_bytes()))
        return Probe(_ended(record, code, seconds, _last_line(noise)), tried=True)


def _run(task: bytes, noise: Path, seconds: float) -> int | None:
    """The exit status of a child that was given `task`; None if it had to be killed.

    Its output goes to files, not pipes: a grandchild that keeps a pipe open would hold us.
    """
    import subprocess
    import tempfile

    with noise.open("wb") as stderr, tempfile.TemporaryFile() as stdin:
        stdin.write(task)
        stdin.seek(0)
        command = [sys.executable, "-c", _CHILD]
        return run_child(command, seconds, stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr)


def run_child(command: Sequence[str], seconds: float, **named: Any) -> int | None:
    """The exit status of a program; None if it ran too long and was killed, with all it started.

    named: stdin, stdout, stderr and env, as subprocess takes them.
    """
    import subprocess

    child = subprocess.Popen(  # noqa: S603 - our interpreter and a constant program
        command, start_new_session=True, **named
    )
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def answer(task: dict[str, Any]) -> None:
    """The child's side: load, write down what happened, and end without any clean-up.

    Threads and exit handlers that the plugin has started cannot hold the process or fail it.
    """
    record = PluginRecord(**task["record"])
    told: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        cls = load(record)
        told = {"seconds": time.perf_counter() - start}
        told["class"] = f"{cls.__module__}:{cls.__qualname__}"
        for word in ("unavailable", "note"):
            told[word] = _said(record, cls, word)
    except LoadError as error:
        told |= {"cause": error.cause, "next": error.next}
    # Under its final name the result is whole: a plugin's thread may end the process meanwhile.
    part = Path(f"{task['result']}.part")
    part.write_text(json.dumps(told))
    part.replace(task["result"])
    sys.stderr.flush()
    os._exit(0)


def _said(record: PluginRecord, cls: type, word: str) -> str | None:
    """What a class method answers that a plugin may have or not.

    unavailable: why this machine cannot run it. note: what else a person should know of it here,
    such as which of several ways it takes. None: nothing.
    """
    ask = getattr(cls, word, None)
    if not callable(ask):
        return None
    try:
        text = ask()
    except Exception as error:
        cause = f"{word}() raised {type(error).__name__}: {error}"
        raise LoadError(record, cause, next=reinstall(record)) from error
    return None if text is None else " ".join(str(text).split())


def _told(record: PluginRecord, told: dict[str, Any]) -> Probe:
    if "cause" in told:
        record = flawed(record, "broken", told["cause"], told["next"])
        return Probe(record, True, told.get("seconds"))
    if told["unavailable"] is not None:
        others = f"warcore list-plugins --kind {record.kind} --load"
        record = flawed(record, "unavailable", told["unavailable"], others)
    else:
        record = attrs.evolve(record, state="loaded")
    return Probe(record, True, told["seconds"], told["class"], told["note"])


def _ended(record: PluginRecord, code: int | None, seconds: float, words: str) -> PluginRecord:
    """The record of a plugin whose process ended without a result."""
    if code is None:
        cause = f"importing it did not end within {seconds:g} s"
    elif code < 0:
        cause = f"importing it ended the process with {_signal(-code)}"
    else:
        cause = f"importing it ended the process with exit code {code}"
    if words:
        cause += f"; its last line was: {words}"
    module = record.entry_point.partition(":")[0]
    return flawed(record, "broken", cause, f"python -X faulthandler -c 'import {module}'")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _last_line(noise: Path) -> str:
    lines = noise.read_text(errors="replace").splitlines()
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
