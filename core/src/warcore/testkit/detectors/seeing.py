"""The modes through which a thread's calls are seen, and what they make of each call."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from warcore.device.operations import CORE, OperationMode, Origin, frame_of_use, replaying
from warcore.device.seeded import SwitchAtOperations
from warcore.testkit.detectors.touches import interface, is_view, runs_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from warcore.testkit.access import Kind
    from warcore.testkit.detectors.ranges import Overlap, Watched
    from warcore.testkit.detectors.sightings import Sightings, Work
    from warcore.testkit.detectors.touches import Interface

    Seen = list[tuple[Overlap, Kind]]

READS = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "__repr__", "__format__"})
"""Methods that read a tensor, or hand it to who will, without an ATen call that does."""

HANDS_OUT = frozenset(
    {"numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "_typed_storage"}
)
"""Methods after which somebody has the tensor's address."""


class Eyes:
    """What one thread is watched with.

    work: says whose work the thread is at.
    """

    def __init__(self, watched: Watched, sightings: Sightings, work: Callable[[], Work]) -> None:
        self._watched = watched
        self._sightings = sightings
        self._work = work
        self._calls = _Calls(self)
        self.methods = Methods(READS | HANDS_OUT, self.method)
        self.addresses_taken = 0
        """How many methods gave an address of a watched buffer away."""

    def open(self) -> None:
        """See the calling thread's calls from now on."""
        self.methods.__enter__()  # type: ignore[no-untyped-call]
        self._calls.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """See no more."""
        self._calls.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.methods.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def touches(self, what: Interface, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        """What a call is going to touch of the watched buffers."""
        seen: Seen = []
        picked: tuple[str, tuple[Overlap, ...]] | None = None
        # Not to see ourselves, and to be no operation of the thread's.
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - no public form
            for tensor, kind, name in what.touches(args, kwargs):
                overlaps = self._watched.touched(tensor)
                if overlaps and what.picks is not None:
                    picked = picked or self._picked(what, args, kwargs)
                    if picked[0] == name:
                        overlaps = picked[1]
                seen += [(overlap, kind) for overlap in overlaps]
        return seen

    def note(self, seen: Seen, operation: str) -> None:
        """The running call has touched that."""
        origin = replaying.origin
        if origin is None:
            frame = frame_of_use()
            origin = Origin(operation, frame.f_code.co_filename, frame.f_lineno)
        self._sightings.touched(seen, origin, self._work())

    def lanes(self, addresses: Any, size: int, kind: Kind, origin: Origin) -> None:
        """A kernel touches `size` bytes at each of the addresses."""
        overlaps = self._watched.touched_at(addresses, size)
        if overlaps:
            seen = [(overlap, kind) for overlap in overlaps]
            self._sightings.touched(seen, origin, self._work())

    def method(self, name: str, tensor: torch.Tensor, caller: str) -> None:
        """A method of `tensor` is called from the file `caller`."""
        seen: Seen = [(overlap, "read") for overlap in self._watched.touched(tensor)]
        # A number is formatted by an ATen call that reads it.
        reads = name in READS and not (name == "__format__" and not tensor.dim())
        # The core looks at addresses for its own purposes only.
        hands_out = name in HANDS_OUT and not caller.startswith(CORE)
        if not seen:
            return
        if reads:
            self.note(seen, f"Tensor.{name}")
        if hands_out:
            self.addresses_taken += 1
            frame = frame_of_use()
            origin = Origin(f"Tensor.{name}", frame.f_code.co_filename, frame.f_lineno)
            for overlap, _ in seen:
                self._sightings.address_taken(overlap.buffer, origin, self._work())

    def _picked(
        self, what: Interface, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, tuple[Overlap, ...]]:
        """The argument of which the call picks elements, and what of them is watched."""
        assert what.picks is not None
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - no public form
            found = what.picks(what.bound(args, kwargs))
            if found is None:
                return "?", ()
            return found.argument, self._watched.touched_at(found.addresses, found.size)


class _Calls(OperationMode):
    """Sees ATen calls, and custom operations as what their Python kernels do."""

    supports_higher_order_operators = True

    def __init__(self, eyes: Eyes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._eyes = eyes

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # NOTE: the modes are off in here, so a compiler at work would trace into this code.
        compiling = _compiler.set_eval_frame(None)
        try:
            return self._see(func, types, args, kwargs or {})
        finally:
            _compiler.set_eval_frame(compiling)

    def _see(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        what = interface(func)
        seen = self._eyes.touches(what, args, kwargs)
        if what.is_custom:
            device = _device_of(args, kwargs)
            if device and runs_python(func, device):
                before = self._eyes.addresses_taken
                try:
                    return self._look_inside(func, types, args, kwargs, device)
                finally:
                    # What is done with an address is not seen: then the schema decides.
                    if seen and self._eyes.addresses_taken > before:
                        self._eyes.note(seen, what.operation)
        if not seen:
            return func(*args, **kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self._eyes.note(seen, what.operation)
            raise
        if not (what.is_pure and is_view(out, args, kwargs)):
            self._eyes.note(seen, what.operation)
        return out

    def _look_inside(
        self, func: Any, types: Any, args: Any, kwargs: dict[str, Any], device: str
    ) -> Any:
        """Run a kernel written in Python in sight: it may look at the shape only."""
        key = torch._C._dispatch_key_for_device(device)  # noqa: SLF001 - no public form
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))  # noqa: SLF001

        def kernel(*args: Any, **kwargs: Any) -> Any:
            outer, replaying.origin = replaying.origin, None
            try:
                with ExitStack() as sight:
                    seeing = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
                    if self._eyes.methods not in seeing:
                        sight.enter_context(self._eyes.methods)
                    sight.enter_context(self)
                    return func.redispatch(keys, *args, **kwargs)
            finally:
                replaying.origin = outer

        below = _get_current_dispatch_mode()
        if not isinstance(below, SwitchAtOperations):
            return kernel(*args, **kwargs)
        # A seeded schedule must not depend on being watched: to it this is one operation.
        with _pop_mode_temporarily():
            return below.__torch_dispatch__(kernel, types, args, kwargs)


_compiler: Any = torch._C._dynamo.eval_frame  # noqa: SLF001 - without importing the compiler


def _keep_compiler_out(code: Any) -> None:
    """Let torch's compiler run the function as it is. Older builds have one call for that."""
    if hasattr(_compiler, "skip_code"):
        _compiler.skip_code(code)
    elif hasattr(_compiler, "set_code_exec_strategy"):
        action = _compiler._FrameAction  # noqa: SLF001 - no public form
        skip = _compiler._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
        _compiler.set_code_exec_strategy(code, skip)


_keep_compiler_out(_Calls.__torch_dispatch__.__code__)


class Methods(TorchFunctionMode):
    """Sees what hands a tensor's values or its address to Python, and is no ATen call.

    told: called before a method of one of these names, with its name, the tensor, and the file that
    calls it.
    """

    def __init__(
        self, names: AbstractSet[str], told: Callable[[str, torch.Tensor, str], None]
    ) -> None:
        super().__init__()
        self._names, self._told = names, told

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in self._names and isinstance(args[0], torch.Tensor):
            caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - who calls the method
            self._told(name, args[0], caller)
        return func(*args, **(kwargs or {}))


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The type of the device that a custom operation runs on; "" if it takes no tensor."""
    for value in (*args, *kwargs.values()):
        first = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(first, torch.Tensor):
            return first.device.type
    return ""
