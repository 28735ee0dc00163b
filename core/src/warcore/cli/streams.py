"""Standard output and standard error while a command runs, whatever the shell made of them.

A result that cannot be written is an error of the output and not a defect of whoever was writing;
a message that nobody can read changes neither the results nor the exit code.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from warcore.errors import WarcoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class OutputError(WarcoreError):
    """The results cannot be written to where they should go."""


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let `sys.stdout` and `sys.stderr` fail as a command wants it; put them back afterwards.

    A write to stdout raises BrokenPipeError where nobody reads it and OutputError where it fails
    otherwise; a write to stderr never raises. A stream that was closed before the start is a pipe
    without a reader.
    """
    with ExitStack() as stack:
        for silent, redirect in ((False, redirect_stdout), (True, redirect_stderr)):
            # None in a process that was started with the stream closed (`>&-`).
            found = cast("TextIO | None", sys.stderr if silent else sys.stdout)
            stream = stack.enter_context(_unread()) if found is None else found
            # A terminal that cannot show a character of a model's text gets a substitute.
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="replace")
            stack.enter_context(redirect(cast("TextIO", _Checked(stream, silent=silent))))
        yield


class _Checked:
    """A text stream that decides what becomes of a failing write; the rest is the stream's own.

    One that failed fails from then on: whoever tries a stream out (click does) swallows an error.
    """

    def __init__(self, stream: TextIO, *, silent: bool) -> None:
        self._stream = stream
        self._silent = silent
        self._error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., object], *args: str) -> None:
        if self._error is None:
            try:
                act(*args)
            except OSError as error:
                self._error = error
                self._discard()
        if self._error is None or self._silent:
            return
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        raise OutputError(
            f"cannot write the output: {self._error.strerror or self._error}",
            next="send it to a place that can hold it",
        ) from self._error

    def _discard(self) -> None:
        """Let what is still buffered go nowhere: the interpreter would fail on it at exit."""
        # A stream without a descriptor is none of the interpreter's.
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def _unread() -> TextIO:
    """The writing end of a pipe without a reader; without a buffer, so that closing it is safe."""
    reading, writing = os.pipe()
    os.close(reading)
    raw = os.fdopen(writing, "wb", buffering=0)
    return io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
