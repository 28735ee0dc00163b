"""Who has SIGSEGV: our handler while it is wanted, on top of whoever had it before."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import functools
import os
import signal
from pathlib import Path
from typing import Final

from warcore.errors import WarcoreError
from warcore.testkit.detectors import faultcode
from warcore.testkit.detectors.faultcode import Action, State

_RT_SIGACTION: Final = 13
_SIGSEGV: Final = 11
_SA_SIGINFO: Final = 0x4
_SA_RESTORER: Final = 0x04000000
_SA_ONSTACK: Final = 0x08000000
_SA_RESETHAND: Final = 0x80000000


class Possession:
    """Of the code at `entry`: comes into force, notices that it was replaced, gives way again.

    It keeps the earlier actions in the state, where the code finds them. Not for two threads at a
    time: its owner has a lock.
    """

    def __init__(self, entry: int, state: State) -> None:
        self._entry = entry
        self._state = state
        self._call = libc().syscall
        self._current = Action()
        self._at = ctypes.addressof(self._current)
        self._covered = False
        """Whether somebody above us may know our address."""

    def begin(self) -> None:
        """Come into force."""
        current = self._read()
        if not self._covered:
            self._state.actions[0] = current
            self._state.depth = 1
        elif current.handler != self._entry:
            self._put_on_top(current)
        self._install()

    def take(self) -> str | None:
        """Come into force again if somebody replaced us: who did, as far as known; else None.

        They go on to hear of every fault that is not ours.
        """
        current = self._read()
        if current.handler == self._entry:
            return None
        who = _name(current.handler)
        self._covered = True
        self._put_on_top(current)
        self._install()
        return who

    def thief(self) -> str | None:
        """Who replaced us, as `take` names them, and keeps what they have; None: nobody."""
        current = self._read()
        return None if current.handler == self._entry else _name(current.handler)

    def end(self) -> None:
        """Whoever had the signal before has it again."""
        state = self._state
        if self._read().handler != self._entry:
            # Somebody stands above us. What he knows of us goes on to lead to the one before.
            self._covered = True
            return
        self._write(state.actions[state.depth - 1])
        state.depth = max(1, state.depth - 1)

    def _put_on_top(self, action: Action) -> None:
        """Note an action that came after us. Each handler stands in the list once."""
        state = self._state
        kept = [Action.from_buffer_copy(state.actions[place]) for place in range(state.depth)]
        if kept[0].handler == action.handler:
            # What stood below it when it was below us is its secret: the default is safe.
            kept[0] = Action()
        kept[1:] = [each for each in kept[1:] if each.handler != action.handler]
        kept[1:] = [*kept[1:], Action.from_buffer_copy(action)][1 - faultcode.ACTIONS :]
        for place, each in enumerate(kept):
            state.actions[place] = each
        state.depth = len(kept)

    def _install(self) -> None:
        """Come in with the flags and the mask of the action that the code may jump to."""
        first = self._state.actions[0]
        flags = first.flags & ~_SA_RESETHAND if first.handler > 1 else _SA_ONSTACK
        restorer = self._entry + faultcode.RESTORER
        self._write(Action(self._entry, flags | _SA_SIGINFO | _SA_RESTORER, restorer, first.mask))

    def _read(self) -> Action:
        self._call(_RT_SIGACTION, _SIGSEGV, None, self._at, 8)
        return self._current

    def _write(self, action: Action) -> None:
        if self._call(_RT_SIGACTION, _SIGSEGV, ctypes.addressof(action), None, 8):
            raise refused("sigaction")


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@functools.cache
def libc() -> ctypes.PyDLL:
    """The C library, called with Python's lock held: giving it up for a microsecond costs more."""
    libc = ctypes.PyDLL(None, use_errno=True)
    number, address = ctypes.c_long, ctypes.c_void_p
    libc.syscall.argtypes = number, number, address, address, number
    libc.syscall.restype = number
    libc.mprotect.argtypes = address, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (
        address, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, number,
    )  # fmt: skip
    libc.mmap.restype = address
    libc.dladdr.argtypes = address, ctypes.POINTER(_Symbol)
    return libc


@functools.lru_cache(maxsize=4096)
def code_at(address: int) -> str:
    """The library that holds the code at `address`, and the function where it is exported.

    Kept, for a library of many symbols takes milliseconds to find one.
    """
    found = _Symbol()
    if not libc().dladdr(address, ctypes.byref(found)) or not found.file:
        return ""
    library = Path(os.fsdecode(found.file)).name
    return f"{library} ({os.fsdecode(found.name)})" if found.name else library


def _name(handler: int) -> str:
    """Whose handler that is."""
    if handler <= 1:
        return "somebody who set SIGSEGV to " + ("be ignored" if handler else "its default")
    code = code_at(handler)
    if code.startswith(("python", "libpython")):
        python = signal.getsignal(signal.SIGSEGV)
        known = [f"signal.signal with {python!r}"] if callable(python) else []
        known += ["faulthandler"] if faulthandler.is_enabled() else []
        return " or ".join(known) or code
    return code or f"code at {handler:#x}"


def refused(what: str) -> WarcoreError:
    """The error of the call of the C library that has just failed."""
    number = ctypes.get_errno()
    return WarcoreError(
        f"the system refused {what}: {errno.errorcode.get(number, number)} {os.strerror(number)}",
        next="run without a sandbox that forbids it; the other detectors need no guarded pages",
    )
