"""Work that runs on the thread that submits it: its outcome is there at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warcore.device.base import Pending
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.base import Device, Stream


class Outcome(Pending):
    """One call and what came of it. Keeps the function and its arguments only until it ran."""

    __slots__ = ("_args", "_done", "_error", "_fn", "_value", "device", "stream")

    def __init__(
        self, device: Device, stream: Stream, fn: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        self.device = device
        self.stream = stream
        self._fn: Callable[..., Any] | None = fn
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._done = False

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", None) or repr(self._fn)
        return f"{name} on stream {self.stream.name}" if self._fn else f"work on {self.stream.name}"

    def run(self) -> None:
        """Call the function; keeps what it raises for `result`.

        An interrupt of the program (KeyboardInterrupt, SystemExit) is kept, and also goes on
        to the caller: it was not meant for this work alone.
        """
        fn, args = self._fn, self._args
        assert fn is not None
        observer = self.device.observer
        if observer is not None:
            observer.started(self.stream, self)
        try:
            self._value = fn(*args)
        except Exception as error:  # noqa: BLE001 - result() raises it
            self._error = error
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._fn, self._args = None, ()
            if observer is not None:
                observer.finished(self.stream, self)
            self._done = True

    def drop(self, why: str) -> None:
        """This will not run: `result` raises a DeviceError that says why."""
        self._error = DeviceError(f"{self!r} was dropped: {why}")
        self._fn, self._args = None, ()
        self._done = True

    def result(self) -> Any:
        if not self._done:
            self._await()
        if self.device.observer is not None:
            self.device.observer.joined(self)
        if self._error is not None:
            raise self._error
        return self._value

    def _await(self) -> None:
        raise DeviceError(
            f"the result of {self!r} can never be reached: it waits for its own end",
            next="take the result outside the work of that stream",
        )

    @property
    def done(self) -> bool:
        return self._done

    @property
    def error(self) -> BaseException | None:
        return self._error
