"""A fresh interpreter that answers one question: whatever its answer does to it stays there."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.probe import run_child
from warcore.testkit.environment import TIMEOUT_VARIABLE
from warcore.testkit.outcome import Unproven

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE: Final = 240.0
"""Seconds that a program of the kit's may take where no check's time is counted."""
MARGIN: Final = 1.0
"""Seconds that a check keeps of its own, to say what took too long."""

MORE: Final = f"; it has more with {TIMEOUT_VARIABLE}=SECONDS"
"""What to say to whoever ran out of time."""

# Until the search path is the asker's, nothing in the current directory can stand in for a module
# of the standard library.
_CHILD: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import json; task = json.load(sys.stdin);"
    "sys.path[:] = task['path'];"
    "from warcore.testkit.packages.interpreter import answer; answer(task)"
)

_ENVIRONMENT: Final[dict[str, str]] = {}
"""In which interpreters begin; empty: in this process's own."""


_place: str | None = None
"""Where `scratch` makes folders; None: where everybody's temporary files are."""
_until: float | None = None
"""When the time of the check ends, on the clock of `time.monotonic`; None: never."""


def keep_environment(folder: str, seconds: float) -> None:
    """Let interpreters begin in the environment of this moment, whatever changes it later on.

    Called before a plugin is loaded here: what its import sets would otherwise be there already
    when a fresh interpreter watches it being set. folder: for the files of a check, which whoever
    has started the process will remove, however it ends. seconds: that the check may take.
    """
    global _place, _until
    _ENVIRONMENT.update(os.environ)
    _place, _until = folder, time.monotonic() + seconds


def patience() -> float:
    """Seconds that the check which runs here may still wait for somebody, and tell of it."""
    if _until is None:
        return PATIENCE
    return max(_until - time.monotonic() - MARGIN, 0.0)


def scratch(name: str) -> TemporaryDirectory[str]:
    """A folder for files of the kit that vanishes with its context, or else with the check."""
    return TemporaryDirectory(prefix=f"warcore-{name}-", dir=_place, ignore_cleanup_errors=True)


def begin() -> dict[str, str]:
    """The environment for a program of the kit's: its temporary files go where `scratch` goes."""
    return {**os.environ, **({} if _place is None else {"TMPDIR": _place})}


@attrs.frozen
class Ended:
    """How the interpreter ended, and what it answered."""

    told: dict[str, Any] | None
    """The answer; None if it ended without one."""
    code: int | None
    """Its exit status, negative for a signal; None if it was killed because it took too long."""
    output: str
    """What it wrote to standard output and standard error."""

    @property
    def how(self) -> str:
        """How it ended without an answer, for people."""
        last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "")
        words = f"; its last line was: {last.strip()[:200]}" if last else ""
        if self.code is None:
            return f"it did not end in time{MORE}{words}"
        if self.code < 0:
            return f"the process ended with signal {-self.code}{words}"
        return f"the process ended with exit code {self.code}{words}"


def ask(function: str, task: Mapping[str, Any]) -> Ended:
    """Call `function` (MODULE:NAME) with `task` in a new process with this one's search path.

    task and the answer are dicts that JSON can carry. Standard output and standard error of the
    process are one file, to which it writes without a buffer.
    """
    with scratch("ask") as folder:
        result, noise, given = (Path(folder, name) for name in ("result", "noise", "task"))
        whole = {
            **task,
            "function": function,
            "path": [str(Path(place).absolute()) for place in sys.path],
            "result": str(result),
        }
        given.write_text(json.dumps(whole), encoding="utf-8")
        code = _run(given, noise, patience())
        told = json.loads(result.read_bytes()) if result.exists() else None
        return Ended(told, code, noise.read_text(encoding="utf-8", errors="replace"))


def answered(function: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """The answer alone. Unproven if there is none."""
    ended = ask(function, task)
    if ended.told is None:
        raise Unproven(ended.how)
    return ended.told


def _run(task: Path, noise: Path, seconds: float) -> int | None:
    """The child's exit status; None if it had to be killed, with all that it started."""
    with task.open("rb") as stdin, noise.open("ab") as output:
        command = [sys.executable, "-u", "-c", _CHILD]
        begin = _ENVIRONMENT or None
        return run_child(command, seconds, stdin=stdin, stdout=output, stderr=output, env=begin)


def answer(task: dict[str, Any]) -> None:
    """The child's side: call the function, write its answer down, and end without any clean-up."""
    module, _, name = task["function"].partition(":")
    told = getattr(import_module(module), name)(task)
    # Under its final name the answer is whole: a thread may end the process meanwhile.
    part = Path(f"{task['result']}.part")
    part.write_text(json.dumps(told), encoding="utf-8")
    part.replace(task["result"])
    os._exit(0)
