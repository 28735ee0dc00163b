"""Typed errors for mistakes that people can mend: who, what, where, and what to type next.

An exception of another type that escapes warcore is a defect of warcore.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class WarcoreError(Exception):
    """Something that a person can mend. `str()` gives one to three lines without a traceback.

    what: one line that names who, what and where.
    next: the command to type or the value to change; shown as `Next: ...`.
    """

    def __init__(self, what: str, *, next: str | None = None) -> None:  # noqa: A002
        super().__init__(what)
        self.what = what
        self.next = next

    def __str__(self) -> str:
        return self.what if self.next is None else f"{self.what}\nNext: {self.next}"


class PluginError(WarcoreError):
    """One plugin could not be found, loaded or configured."""


class WiringError(WarcoreError):
    """The chosen plugins do not fit together, or one of them declared something impossible."""


class ModelError(WarcoreError):
    """A model reference, its files or its tokenizer are not usable."""


class ConfigError(WarcoreError):
    """A setting of the engine has a value that it cannot have."""


class RequestError(WarcoreError):
    """One request cannot be served. The others go on."""


class DeviceError(WarcoreError):
    """The device was used in a way that could only hang or go wrong silently."""


def words_of(error: BaseException) -> str:
    """`str` of what a plugin raised. It cannot fail: the author's code may."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  told while something else is being saved
        return "its text cannot be had: __str__ raises"


def shown(thing: object) -> str:
    """`repr` of what a plugin raised or returned. It cannot fail: the author's code may."""
    try:
        return repr(thing)
    except Exception:  # noqa: BLE001  told while something else is being saved
        return f"<{type(thing).__name__}, whose __repr__ raises>"


def cannot_serve(who: str, reasons: Sequence[str], remedy: str) -> WiringError:
    """`who` was asked for, and cannot be had: with every reason, a line each."""
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return WiringError(f"{who} cannot serve this:{lines}", next=remedy)


@contextmanager
def blame(who: str, what: str) -> Iterator[None]:
    """Around a call of a plugin: what it raises becomes a PluginError that names it.

    The author's exception is the cause. Errors of warcore's own types pass: they say it better.
    """
    try:
        yield
    except WarcoreError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{who}: {what} raised {shown(error)}", next="run with --debug for the traceback"
        ) from error
