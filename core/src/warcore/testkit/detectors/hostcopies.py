"""HostCopies: host memory of a backend's own that copies read, and who fills it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_leaves

from warcore.device import Observer
from warcore.device.operations import OperationMode, frame_of_use, operation_name, replaying
from warcore.testkit.access import Access, Place
from warcore.testkit.packages.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore.device import Pending, Stream
    from warcore.testkit.access import Kind
    from warcore.testkit.detectors.races import RaceDetector

    Address = Callable[[int], bool]


@attrs.define(eq=False)
class _Source:
    """Host memory that a copy has read."""

    name: str
    memory: torch.Tensor
    """Kept: other memory must not get its address."""
    known: torch.Tensor
    """What it held when somebody was last seen to write or to copy it."""


class HostCopies(Observer):
    """An observer of a device that tells `detector` of host memory which copies read.

    A copy with `non_blocking=True` reads its source when the stream has come so far, whenever the
    source is refilled: by an ATen call or, as its contents then tell, by anybody else.

    On the host device all memory looks alike. There a source is host memory if the copy goes to
    memory that the core made for the device, and it is none of that itself. is_device: whether an
    address is such memory.
    """

    def __init__(self, detector: RaceDetector, is_device: Address) -> None:
        self._detector = detector
        self._is_device = is_device
        self._sources: dict[int, _Source] = {}
        self._modes: dict[int, _Copies] = {}

    # ---- the device reports ----------------------------------------------------------------------

    def started(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """See what the work's thread calls."""
        mode = self._modes[id(pending)] = _Copies(self)
        mode.__enter__()  # type: ignore[no-untyped-call]

    def finished(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """See no more."""
        self._modes.pop(id(pending)).__exit__(None, None, None)  # type: ignore[no-untyped-call]

    # ---- calls -----------------------------------------------------------------------------------

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[_Source]:
        """A call is about to be made; the sources that it writes."""
        if func is torch.ops.aten.copy_.default and _is_asynchronous(args, kwargs):
            self._copied(args[0], args[1])
        if not self._sources or not func._schema.is_mutable:  # noqa: SLF001 - no public form
            return ()
        written = [
            self._sources.get(_address(tensor))
            for argument, value in _given(func, args, kwargs)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value)
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        ]
        found = [source for source in written if source is not None]
        for source in found:
            self._touch(source, "write", operation_name(func), _place())
        return found

    @staticmethod
    def after(written: Sequence[_Source]) -> None:
        """The call has been made: what it wrote is no news."""
        for source in written:
            source.known.copy_(source.memory)

    def _copied(self, target: torch.Tensor, source: torch.Tensor) -> None:
        address = _address(source)
        is_host = self._is_device(_address(target)) and not self._is_device(address)
        if source.device.type != "cpu" or not is_host:
            return
        known = self._sources.get(address)
        if known is None:
            whole = torch.empty(0, dtype=torch.uint8).set_(source.untyped_storage())
            place = _place()
            at = "" if place is None else f" at {place.file}:{place.line}"
            known = _Source(f"host memory copied{at}", whole, whole.clone())
            self._sources[address] = known
        elif not torch.equal(known.memory, known.known):
            self._touch(known, "write", "something that is no ATen call", None)
            known.known.copy_(known.memory)
        self._touch(known, "read", "aten.copy_", _place(), by_host=False)

    def _touch(
        self,
        source: _Source,
        kind: Kind,
        operation: str,
        place: Place | None,
        *,
        by_host: bool = True,
    ) -> None:
        access = Access(
            source.name, kind, 0, source.memory.nbytes, operation=operation, place=place
        )
        # One line may copy several buffers, used in turn: each is its own memory.
        self._detector.see(access, by_host=by_host, base=_address(source.memory))


class _Copies(OperationMode):
    """Sees the ATen calls of one thread, replayed ones too."""

    def __init__(self, copies: HostCopies) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies = copies

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
            return func(*args, **kwargs)
        written = self._copies.before(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            self._copies.after(written)


def _is_asynchronous(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    arguments = func._schema.arguments  # noqa: SLF001 - no public form
    return [
        *zip(arguments, args, strict=False),
        *((each, kwargs[each.name]) for each in arguments if each.name in kwargs),
    ]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _place() -> Place | None:
    """The line that makes the running call, or made it at its capture."""
    origin = replaying.origin
    if origin is not None:
        return place_of(origin.file, origin.line)
    frame = frame_of_use()
    return place_of(frame.f_code.co_filename, frame.f_lineno)
