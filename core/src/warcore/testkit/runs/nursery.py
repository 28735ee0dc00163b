"""The process in which the checks of a run are born: torch is imported once, not once a check.

It imports torch, the core and the kit, no plugin, and starts no thread; every check is a fork of it
and begins within milliseconds in a state that no plugin has touched.

Why a fork is safe here, of all places with torch: it is unsafe where the parent has threads, for
their locks and half-done work are copied and they are not. OpenMP's pool is made by the first
parallel operation, autograd's threads by the first backward, CUDA's context by the first question
to the driver; none of that happens here. So the nursery computes nothing, and asks no device.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import platform
import select
import shutil
import signal
import sys
import time
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from warcore.records import LoadError, PluginRecord, load
from warcore.testkit.environment import kernels_are_interpreted
from warcore.testkit.packages.interpreter import keep_environment
from warcore.testkit.packages.sources import homes_of
from warcore.testkit.runs.aftermath import LOOKS, UNWRITTEN, homes_around
from warcore.testkit.runs.orphans import adopt, end_orphans
from warcore.testkit.runs.unloadable import unloadable
from warcore.testkit.runs.verdict import judge
from warcore.testkit.subject import Subject

GRACE_S = 1.0
"""After its time a check has so long to write down where its threads stand."""


def serve() -> None:
    """Read tasks, one a line, and answer each with the exit code of its process, null if killed.

    Ends with the end of its input, and takes a check that is running along.
    """
    tasks, answers = os.dup(0), os.dup(1)
    _redirect(os.devnull, 0)
    os.dup2(2, 1)
    _preload()
    adopt()
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    os.write(answers, f"{json.dumps(describe_platform())}\n".encode())
    folder = ""
    with os.fdopen(tasks, "rb") as lines:
        for line in lines:
            task = json.loads(line)
            pid = _fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for descriptor in (tasks, answers, wake, woken):
                    os.close(descriptor)
                _child(task)
            code = _wait(pid, task["seconds"] + GRACE_S, tasks, wake)
            end_orphans()
            with suppress(BrokenPipeError):
                os.write(answers, f"{json.dumps(code)}\n".encode())
            folder = task["folder"]
    # Whoever asked may have ended without a chance to do it.
    shutil.rmtree(folder, ignore_errors=True)


def _preload() -> None:
    """Import whatever most checks need; what is missing is for the checks to say."""
    for name in ("torch", "warcore.engine", "warcore.testkit.detectors.guard"):
        with suppress(ImportError):
            import_module(name)
    from warcore.testkit.rules import load_rules

    load_rules()


def describe_platform() -> dict[str, Any]:
    """Versions, and of each detector of the host device why it cannot work here, or None."""
    from warcore.testkit.detectors.guarded import supported

    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
        "system": platform.system(),
        "machine": platform.machine(),
        "detectors": {
            "page guard": supported(),
            "happens-before": None,
            "attribution": None,
            "in-order poison": None,
            "event position": None,
            "seeded schedules": None,
            "pointer reachability": None,
            "Triton interpreter": _no_interpreter(),
        },
    }


def _no_interpreter() -> str | None:
    """Why what a kernel reads is not seen on the host device; None: it is."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not kernels_are_interpreted():
        return "TRITON_INTERPRET=1 is not set, so that what a Triton kernel reads was not seen"
    return None


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns where a library (some builds of BLAS) has threads of its own by now; those
        # take care of forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _wait(pid: int, seconds: float, tasks: int, wake: int) -> int | None:
    """The exit code of `pid`; None if it was killed, for its time or our input is at an end."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _kill(pid)
            return os.waitstatus_to_exitcode(status)
        left = deadline - time.monotonic()
        ready = select.select([tasks, wake], [], [], max(left, 0.0))[0]
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        if tasks in ready or left <= 0:
            _kill(pid)
            # Between its birth and its setsid it leads no group yet.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None


def _kill(group: int) -> None:
    """Whatever a check has started ends with it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _redirect(path: str, descriptor: int, flags: int = os.O_RDONLY) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


# ---- in the process of one check -----------------------------------------------------------------


def _child(task: dict[str, Any]) -> None:
    """Run one check, write down what came of it, and end without any clean-up.

    Threads and exit handlers that the plugin has started cannot hold the process or fail it.
    """
    code = 0
    try:
        _settle(task)
        told = _run(task)
        # Under its final name the result is whole: a plugin's thread may end the process meanwhile.
        part = Path(task["folder"], "part")
        part.write_text(json.dumps(told), encoding="utf-8")
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        part.replace(Path(task["folder"], "result"))
    except OSError:
        # Whatever a check raises is an outcome: this came from writing one down.
        code = UNWRITTEN
    finally:
        os._exit(code)


def _settle(task: dict[str, Any]) -> None:
    """A session of its own, with nobody's terminal, and its prints in a file."""
    import faulthandler
    import random

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    noise = str(Path(task["folder"], "noise"))
    for descriptor in (1, 2):
        _redirect(noise, descriptor, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    stacks = os.open(str(Path(task["folder"], "stacks")), os.O_WRONLY | os.O_CREAT, 0o600)
    faulthandler.enable(stacks)
    faulthandler.dump_traceback_later(task["seconds"] / LOOKS, repeat=True, file=stacks)
    sys.path[:] = task["path"]
    keep_environment(task["folder"], task["seconds"])
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        # What the checks compute is too small to share, and so comes out the same everywhere.
        torch.set_num_threads(1)


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """What to tell the parent: a verdict, or why there can be none in a process of its own."""
    record = PluginRecord(**task["record"])
    try:
        function = _resolve(task["function"])
        cls = load(record) if task["loads"] else None
        if cls is not None and task["same_file"] is not None:
            _same(cls, task["same_file"])
    except LoadError as error:
        if task["same_file"] is not None:
            return {"here": error.cause}
        return {"loaded": False, "verdict": unloadable(record, error).plain()}
    except (ImportError, AttributeError) as error:
        return {"here": f"the check cannot be imported: {error}"}
    homes = homes_around(record.file) if cls is None else homes_of(cls)
    Path(task["folder"], "homes").write_text(json.dumps(homes), encoding="utf-8")
    # Our own parent wrote this.
    options = pickle.loads(base64.b64decode(task["options"]))  # noqa: S301
    facts = {key: task[key] for key in ("device", "cells", "thorough", "reference", "dry")}
    verdict = judge(function, task["rule"], Subject(record, cls, options=options, **facts))
    return {"loaded": True, "verdict": verdict.plain()}


def _same(cls: type, file: str) -> None:
    """LoadError if the class by this name is not the one that was meant, by its module's file."""
    found = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if found is None or Path(found).resolve() != Path(file).resolve():
        record = PluginRecord("backend", cls.__name__, None, None, cls.__module__)
        raise LoadError(record, f"{cls.__module__} is {found} there, and not {file}")


def _resolve(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def facts(subject: Subject) -> dict[str, Any]:
    """What `_run` needs to make the subject again."""
    return {
        "record": attrs.asdict(subject.record, filter=lambda field, _: field.name != "given"),
        "options": base64.b64encode(pickle.dumps(subject.options)).decode(),
        "device": subject.device,
        "cells": subject.cells,
        "thorough": subject.thorough,
        "reference": subject.reference,
        "dry": subject.dry,
    }
