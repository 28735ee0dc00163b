"""The loads and stores of Triton kernels, lane by lane, in Triton's interpreter.

With TRITON_INTERPRET=1 a kernel runs in Python, and all its accesses to memory go through four
functions of one object, which gets addresses and masks. Standing in for that object shows which
bytes a kernel touches, whatever it did to its pointers. This is Triton's private matter: `listen`
looks whether this version is made that way, and says so if it is not.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from warcore.device.operations import Origin, frame_of_use
from warcore.testkit.detectors.used import note
from warcore.testkit.environment import kernels_are_interpreted

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.testkit.access import Kind

    Listener = Callable[[Any, int, Kind, Origin], None]
    """Hears the addresses that one instruction touches, how many bytes at each, and from where."""

_MODULE = "triton.runtime.interpreter"
_ACCESSES = {"load", "store", "atomic_rmw", "atomic_cas"}


class _Thread(threading.local):
    """Of each thread: who listens, and the kernel that runs."""

    listeners: tuple[Listener, ...] = ()
    kernel: str = ""


class _Hooks:
    """What was put in place of the interpreter's own; of all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listening = 0
        self.module: Any = None
        self.memory: Any = None
        self.launch: Any = None
        self.path = ""
        """In which the names of Triton's own files begin."""


_here = _Thread()
_hooks = _Hooks()
_launching = threading.RLock()
"""NOTE: the interpreter keeps the place in the grid in one object for all threads."""


def listen(listener: Listener) -> str | None:
    """Let `listener` hear the kernels of the calling thread, until `ignore`.

    Why it cannot, if Triton is there and made otherwise. None too where no kernel is interpreted.
    """
    _here.listeners = (*_here.listeners, listener)
    with _hooks.lock:
        _hooks.listening += 1
        if _hooks.module is not None:
            return None
        module = _interpreter()
        why_not = None if module is None else _why_not(module)
        if module is not None and why_not is None:
            _put_in(module)
        return why_not


def ignore(listener: Listener) -> None:
    """Tell it no more of the calling thread's kernels."""
    _here.listeners = tuple(each for each in _here.listeners if each != listener)
    with _hooks.lock:
        _hooks.listening -= 1
        if not _hooks.listening and _hooks.module is not None:
            _take_out()


def _interpreter() -> Any:
    """Triton's interpreter; None if nothing can run in it."""
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    if not kernels_are_interpreted() or find_spec("triton") is None:
        return None
    try:
        return import_module(_MODULE)
    except Exception:  # noqa: BLE001 - whatever keeps it from loading keeps kernels from running
        return None


def _why_not(module: Any) -> str | None:
    """What about this version is not as it must be."""
    memory = getattr(module, "_interpreter", None)
    builder = getattr(module, "InterpreterBuilder", None)
    executor = getattr(module, "GridExecutor", object)
    load = getattr(builder, "create_masked_load", None)
    names = set(getattr(getattr(load, "__code__", None), "co_names", ()))
    if (
        all(hasattr(memory, name) for name in _ACCESSES)
        and {"_interpreter", "load"} <= names
        and "__call__" in vars(executor)
    ):
        return None
    version = getattr(sys.modules.get("triton"), "__version__", "?")
    return f"triton {version} keeps its loads and stores elsewhere"


def _put_in(module: Any) -> None:
    _hooks.module = module
    _hooks.path = module.__file__.removesuffix(os.path.join("runtime", "interpreter.py"))  # noqa: PTH118
    _hooks.memory = module._interpreter  # noqa: SLF001 - private, and looked at by _why_not
    _hooks.launch = launch = module.GridExecutor.__call__
    module._interpreter = _Memory(_hooks.memory)  # noqa: SLF001

    def watched(executor: Any, *args: Any, **kwargs: Any) -> None:
        """A launch whose copies of whole storages onto themselves are no operations."""
        note("Triton interpreter")
        outer, _here.kernel = _here.kernel, getattr(executor.fn, "__name__", "a kernel")
        try:
            with _launching, torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # noqa: SLF001
                launch(executor, *args, **kwargs)
        finally:
            _here.kernel = outer

    module.GridExecutor.__call__ = watched


def _take_out() -> None:
    _hooks.module._interpreter = _hooks.memory  # noqa: SLF001 - puts back what was there
    _hooks.module.GridExecutor.__call__ = _hooks.launch
    _hooks.module = _hooks.memory = _hooks.launch = None


class _Memory:
    """Stands in for the interpreter's access to memory. A mask says which lanes take part."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load(self, addresses: Any, mask: Any, other: Any, *more: Any) -> Any:
        _tell("read", addresses, mask, other.itemsize)
        return self._own.load(addresses, mask, other, *more)

    def store(self, addresses: Any, value: Any, mask: Any, *more: Any) -> Any:
        _tell("write", addresses, mask, value.itemsize)
        return self._own.store(addresses, value, mask, *more)

    def atomic_rmw(self, op: Any, addresses: Any, value: Any, mask: Any, *more: Any) -> Any:
        _tell("read", addresses, mask, value.itemsize)
        _tell("write", addresses, mask, value.itemsize)
        return self._own.atomic_rmw(op, addresses, value, mask, *more)

    def atomic_cas(self, addresses: Any, expected: Any, value: Any, *more: Any) -> Any:
        _tell("read", addresses, None, value.itemsize)
        _tell("write", addresses, None, value.itemsize)
        return self._own.atomic_cas(addresses, expected, value, *more)


def _tell(kind: Kind, addresses: Any, mask: Any, size: int) -> None:
    if not _here.listeners:
        return
    lanes = addresses.reshape(-1) if mask is None else addresses[mask.astype(bool)]
    if not len(lanes):
        return
    frame = frame_of_use(_hooks.path)
    origin = Origin(_here.kernel, frame.f_code.co_filename, frame.f_lineno)
    for listener in _here.listeners:
        listener(lanes, size, kind, origin)
