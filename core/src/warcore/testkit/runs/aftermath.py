"""Aftermath: what it means how the process of a check ended, and what it left behind."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.testkit.access import Place
from warcore.testkit.environment import TIMEOUT_VARIABLE
from warcore.testkit.outcome import Failure, Outcome
from warcore.testkit.packages.sources import is_home
from warcore.testkit.runs.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warcore.testkit.mishaps import Mishap

_KEPT = 4000
"""Characters of what a check printed that are kept: the last ones."""


LOOKS: Final = 2
"""How often within a check's time the watchdog writes down where its threads stand.

A check hangs if they stand at the same lines each time, one of them in the plugin.
"""

UNWRITTEN: Final = 74
"""Exit code of a check whose outcome could not be written down: EX_IOERR."""


class NotHere(Exception):
    """A check or its plugin is not to be found by another process. The text says why."""


@attrs.frozen
class Ended:
    """One check, run in a process of its own."""

    verdict: Verdict
    loaded: bool
    """Whether the plugin was loaded; if not, no other check will fare better."""
    output: str
    """What it printed, the end of it."""
    seconds: float


def ended(task: dict[str, Any], code: int | None, took: float, *, died: bool) -> Ended:
    """What a check has left in its folder, or what it means that it left nothing.

    code: of its process; None: it was killed. died: whether the nursery did not survive it.
    NotHere if the check or its plugin was not to be found.
    """
    output = _read(task, "noise", _KEPT)
    result = _read(task, "result")
    if result:
        told = json.loads(result)
        if "here" in told:
            raise NotHere(told["here"])
        return Ended(Verdict.of_plain(told["verdict"]), told["loaded"], output, took)
    homes = _read(task, "homes")
    if code == UNWRITTEN:
        why = "what came of it could not be written down: is there room on the disk?"
        return Ended(Verdict(Outcome.UNPROVEN, why), True, output, took)
    return Ended(_cut_short(task, homes, code, took, died=died), bool(homes), output, took)


def _cut_short(
    task: dict[str, Any], homes: str, code: int | None, took: float, *, died: bool
) -> Verdict:
    """What it means that a check has told nothing. homes: empty if its plugin was not loaded."""
    seconds, looks = task["seconds"], _looks(_read(task, "stacks"))
    last = looks[-1] if looks else ""
    place = _place(last, json.loads(homes) if homes else homes_around(task["record"]["file"]))
    doing = "" if homes else "while it was loaded, "
    mishap: Mishap = "ended the process"
    if died:
        why = "it ended the kit's own process, from which the checks are started"
    elif code is None or _is_for_the_time(code, took, seconds, last):
        why, mishap = f"it did not end within {seconds:g} s", "hung"
        if place is None or len(looks) < LOOKS or len(set(looks)) > 1:
            # It may be slow, or the machine is: where it was just then says nothing against it.
            why = f"{doing}{why}; it has more with {TIMEOUT_VARIABLE}=SECONDS"
            return Verdict(Outcome.UNPROVEN, why, trace=last)
    else:
        why = _end(code)
    where = "" if place is None else str(place)
    declared = task["rule"] if homes else entry_point_of(task["record"])
    failure = Failure(declared, f"{doing}{why}", where, mishap=mishap)
    return Verdict(Outcome.FAILED, failure=failure, trace=last)


def _looks(stacks: str) -> list[str]:
    """Where all threads stood: each time that the watchdog looked in time, and in a crash."""
    before, fatal, crash = stacks.partition("Fatal Python error: ")
    timely = re.split(r"^Timeout \(.*\)!$", before, flags=re.MULTILINE)[1 : LOOKS + 1]
    return [look.strip() for look in (*timely, fatal + crash) if look.strip()]


def _is_for_the_time(code: int, took: float, seconds: float, last: str) -> bool:
    """Whether a signal ended a check for its time, and not for what its plugin did.

    The watchdog reads the stacks of threads that run meanwhile, and may die of it: in a thread that
    Python does not know.
    """
    looked = took >= seconds / LOOKS and "Current thread" not in last
    return code < 0 and (took >= seconds or looked)


def _end(code: int) -> str:
    if code >= 0:
        return f"it ended the process with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    return f"it ended the process with {name}"


def _place(stacks: str, homes: Sequence[str]) -> Place | None:
    """The plugin's innermost line in what faulthandler wrote, which has the innermost first."""
    import linecache

    for file, number in re.findall(r'^  File "(.*)", line (\d+) in ', stacks, re.MULTILINE):
        if is_home(file, homes):
            line = int(number)
            return Place(file, line, linecache.getline(file, line).strip())
    return None


def entry_point_of(record: Mapping[str, Any]) -> str:
    """What is declared of a plugin that is not loaded."""
    return f"the entry point {record['name']} = {record['entry_point']}"


def homes_around(file: str | None) -> list[str]:
    """The homes of a plugin that was not loaded, as far as its record tells."""
    if file is None:
        return []
    path = Path(file)
    return [str(path.parent if path.name == "__init__.py" else path)]


def _read(task: dict[str, Any], name: str, kept: int | None = None) -> str:
    """What is in a file, or the last `kept` bytes of it; empty if there is none."""
    try:
        with Path(task["folder"], name).open("rb") as file:
            if kept is not None:
                file.seek(max(os.fstat(file.fileno()).st_size - kept, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
