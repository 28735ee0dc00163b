"""Isolation: each check in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warcore.errors import WarcoreError
from warcore.testkit.runs.aftermath import Ended, NotHere, ended

if TYPE_CHECKING:
    from typing_extensions import Self

    from warcore.testkit.runs.check import Check
    from warcore.testkit.subject import Subject

# The search path is the parent's, so that both speak of the same installation; until then nothing
# in the current directory can stand in for a module of the standard library.
_PROGRAM: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import json;"
    "sys.path[:] = json.loads(sys.argv[1]); from warcore.testkit.runs.nursery import serve; serve()"
)


class Isolation:
    """A nursery process, and the checks that are run in forks of it. A context manager.

    Starts it at once and waits for it when the first check is run. WarcoreError if it does not come
    up. Whatever a check does, the next one begins as if it had not been.
    """

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the nursery
        self._process = self._started()
        self._platform: dict[str, Any] | None = None

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our interpreter and the program above
            [sys.executable, "-c", _PROGRAM, json.dumps(_path())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Ctrl-C is for us: we end it.
            start_new_session=True,
        )

    @property
    def platform(self) -> dict[str, Any]:
        """What the nursery found out about this machine and the detectors that work on it."""
        if self._platform is None:
            told = self._answer()
            if told is None:
                raise WarcoreError(f"the process for the checks did not start: {self._last_line()}")
            self._platform = told
        return self._platform

    def run(self, check: Check, subject: Subject, seconds: float) -> Ended:
        """Run one check, for at most `seconds`.

        NotHere if the plugin's class or the check lives in this process only.
        """
        if self._process.poll() is not None:
            # A plugin has taken its parent down.
            self._end()
            self._process, self._platform = self._started(), None
        _ = self.platform
        # On Ctrl-C the check still writes into it: the nursery removes what is left.
        made = tempfile.TemporaryDirectory(prefix="warcore-check-", ignore_cleanup_errors=True)
        with made as folder:
            task = _task(check, subject, seconds, folder)
            start = time.perf_counter()
            alive = self._tell(task)
            code = self._answer() if alive else None
            took = time.perf_counter() - start
            return ended(task, code, took, died=self._process.poll() is not None)

    def close(self) -> None:
        """End the nursery, and a check that is running."""
        self._end()
        self._log.close()

    def _end(self) -> None:
        if self._platform is None:
            # It is still busy importing, and has nothing to take along.
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _tell(self, task: dict[str, Any]) -> bool:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(f"{json.dumps(task)}\n".encode())
            stdin.flush()
        except OSError:
            return False
        return True

    def _answer(self) -> Any:
        """One line of the nursery's; None if it has ended."""
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            self._process.wait()
            return None
        return json.loads(line)

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return said[:200]


def _path() -> list[str]:
    return [str(Path(entry).absolute()) for entry in sys.path]


def _task(check: Check, subject: Subject, seconds: float, folder: str) -> dict[str, Any]:
    """What the nursery is told. NotHere for what only this process has."""
    from warcore.testkit.runs.nursery import facts

    given = subject.record.given
    name = f"{check.run.__module__}:{check.run.__qualname__}"
    if "<" in name:
        raise NotHere(f"the check {check} is defined in a function")
    if given is not None and "<" in given.__qualname__:
        raise NotHere(f"{given.__qualname__} is defined in a function")
    file = getattr(sys.modules.get(given.__module__), "__file__", None) if given else None
    if given is not None and file is None:
        raise NotHere(f"{given.__module__} has no file")
    try:
        told = facts(subject)
    except Exception as error:
        raise NotHere(f"its options cannot be sent to another process: {error}") from error
    return {
        **told,
        "function": name,
        "rule": check.rule,
        "loads": check.loads,
        "same_file": file,
        "seconds": seconds,
        "folder": folder,
        "path": _path(),
    }
