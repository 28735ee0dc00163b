"""What sees the calls of a capture, and plans how each is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from warcore.device import hostcalls
from warcore.device.hostcalls import Call
from warcore.device.hostpool import geometry
from warcore.device.operations import (
    OperationMode,
    Origin,
    frame_of_use,
    line_of_use,
    operation_name,
    origins_wanted,
)
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from warcore.device.hostcalls import OutForm
    from warcore.device.hostgraph import HostGraph
    from warcore.device.hostpool import Geometry, HostPool

    Known = tuple[OutForm, list[Geometry], Any]

_READS = frozenset({"tolist", "numpy", "__array__", "__dlpack__"})


class Recorder(OperationMode):
    """Runs each ATen call of a capture, puts its new results into the pool, and plans its replay.

    nodes: what a replay does, in order. Of the pool's memory they hold aliases, so that they keep
    no result of the captured function from being let go; all other tensors they hold as they are.
    origins: where the calls among the nodes come from, by their position; empty if nobody asked.
    """

    def __init__(self, graph: HostGraph, pool: HostPool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Call | Callable[[], Any]] = []
        self.origins: dict[int, Origin] = {}
        self._graph = graph
        self._pool = pool
        self._forms: dict[Hashable, Known | None] = {}
        self._aliases: dict[Hashable, torch.Tensor] = {}
        self._outer: dict[int, torch.Tensor] = {}
        self._addresses: list[int] = []

    def forget_forms(self) -> None:
        """The capture is over, and what only served to make it goes."""
        self._forms.clear()
        self._aliases.clear()

    def clear(self) -> None:
        """The capture has failed, and nothing of it stays."""
        self.nodes.clear()
        self.origins.clear()
        self._outer.clear()
        self._addresses.clear()

    def check_memory(self) -> None:
        """DeviceError if a tensor that is not the graph's own lies elsewhere than at capture."""
        if [t.data_ptr() for t in self._outer.values()] == self._addresses:
            return
        for tensor, address in zip(self._outer.values(), self._addresses, strict=True):
            if tensor.data_ptr() != address:
                raise DeviceError(
                    f"a captured tensor {tuple(tensor.shape)} of {tensor.dtype} was given other "
                    "memory since its capture",
                    next="write into it in place, or capture a new graph",
                )

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a node may hold of `tensor`."""
        if tensor.layout is not torch.strided:
            return tensor
        address = tensor.data_ptr()
        key = address, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj()
        alias = self._aliases.get(key)
        if alias is None:
            alias = self._pool.alias(tensor)
            if alias is not tensor:
                self._aliases[key] = alias
            elif id(tensor) not in self._outer:
                self._outer[id(tensor)] = tensor
                self._addresses.append(address)
        return alias

    def place_copy(self, value: torch.Tensor) -> torch.Tensor:
        """`value` in memory of the pool."""
        form = geometry(value) or geometry(value.clone(memory_format=torch.contiguous_format))
        assert form is not None
        return self._pool.place(form).copy_(value)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._graph.recording:
            return func(*args, **kwargs)
        before = len(self.nodes)
        out = self._record(func, args, kwargs)
        if origins_wanted() and len(self.nodes) > before:
            self._note_origin(func, before)
        return out

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if hostcalls.is_composite(func):
            # Under inference mode a composite call arrives whole. Its parts are what can be
            # judged and replayed: a `.item()` inside it, or an `out=` of its matrix product.
            with self:
                return func.decompose(*args, **kwargs)
        why = hostcalls.why_not(func, args, kwargs)
        if why is not None:
            raise _refusal(func, why)
        if hostcalls.returns_what_it_got(func):
            # A view goes on showing the old memory when its base is given other.
            self._aliases_of((args, kwargs))
            out = func(*args, **kwargs)
            if func._schema.is_mutable:  # noqa: SLF001 - no public form
                self._add(Call(func, args, kwargs))
            return out
        key = hostcalls.signature(func, args, kwargs)
        known = self._forms.get(key)
        if known is None:
            return self._run_as_it_is(func, args, kwargs, key)
        form, geometries, structure = known
        placed = [self._pool.place(each) for each in geometries]
        call = form.call(*self._aliases_of((args, kwargs, placed)))
        call.func(*call.args, **call.kwargs)
        self.nodes.append(call)
        return placed[0] if structure.is_leaf() else tree_unflatten(placed, structure)

    def _note_origin(self, func: Any, first: int) -> None:
        frame = frame_of_use()
        origin = Origin(operation_name(func), frame.f_code.co_filename, frame.f_lineno)
        for position in range(first, len(self.nodes)):
            # What a composite call is made of has been noted by then.
            self.origins.setdefault(position, origin)

    def _run_as_it_is(self, func: Any, args: Any, kwargs: dict[str, Any], key: Hashable) -> Any:
        """A call whose `out=` form is not known to be exact."""
        leaves, structure = tree_flatten(func(*args, **kwargs))
        if hostcalls.reads_out(leaves):
            raise _refusal(func, "its value leaves the device")
        picks = hostcalls.fresh_at(args, kwargs, leaves)
        results = [leaves[pick] for pick in picks]
        forms = [geometry(result) for result in results]
        into = [
            self._pool.keep(result) if form is None else self._pool.place(form)
            for result, form in zip(results, forms, strict=True)
        ]
        for pick, place in zip(picks, into, strict=True):
            leaves[pick] = place
        if hostcalls.must_repeat(func, results):
            out_form = None
            if key not in self._forms and len(picks) == len(leaves) and None not in forms:
                out_form = hostcalls.out_form(func, len(into))
                if out_form and not hostcalls.is_exact(out_form, args, kwargs, into, results):
                    out_form = None
                self._forms[key] = (out_form, forms, structure) if out_form else None  # type: ignore[assignment]
            if out_form is not None:
                self._add(out_form.call(args, kwargs, into))
            else:
                for place, result in zip(into, results, strict=True):
                    place.copy_(result)
                self._add(Call(func, args, kwargs, picks, into))
        return tree_unflatten(leaves, structure)

    def _add(self, call: Call) -> None:
        """The call as a node: over aliases."""
        args, kwargs, into = self._aliases_of((call.args, call.kwargs, call.into))
        self.nodes.append(Call(call.func, args, kwargs, call.picks, into))

    def _aliases_of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.alias(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._aliases_of, value))
        if isinstance(value, dict):
            return {key: self._aliases_of(each) for key, each in value.items()}
        return value


class NoHostReads(TorchFunctionMode):
    """Refuses what reads or replaces a tensor's memory without an ATen call."""

    def __init__(self, graph: HostGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if self._graph.recording:
            if name in _READS:
                raise _refusal(f"Tensor.{name}", "its value leaves the device")
            if func == _SET_DATA:
                raise _refusal("Tensor.data = ...", "it gives a tensor other memory")
        return func(*args, **(kwargs or {}))


_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def _refusal(func: Any, why: str) -> DeviceError:
    return DeviceError(
        f"{func} cannot be captured: {why}{line_of_use()}",
        next="keep it out of the captured function: do it before, and write the result into "
        "static memory",
    )
