"""What an ATen call reads and writes of its arguments, by its schema."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_leaves

from warcore.device.operations import operation_name
from warcore.testkit.detectors.picking import PICKS, Picked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.testkit.access import Kind

_SHAPE_ONLY = re.compile(
    r"(\w+_like|new_\w+|resize\w*|set_|is_same_size|is_pinned|result_type|can_cast|size|stride"
    r"|numel|sym_\w+|record_stream|_has_compatible_shallow_copy_type)"
)
"""Calls that look at no element of an argument."""

_SHAPES = {"type_as": "other", "to": "other"}
"""Calls and the one argument of which they only look at the type."""

_OVERWRITES = re.compile(
    r"_?(foreach_)?(copy|fill|zero|index_copy|index_fill|masked_fill|masked_scatter|uniform|normal"
    r"|random|bernoulli|exponential|cauchy|geometric|log_normal)_"
)
"""Calls in place whose result owes nothing to what was there."""

_OWN = {"aten", "prim", "prims"}
_ACCUMULATING = {"index_put_", "_index_put_impl_", "_unsafe_index_put"}
_SETTING = {("scatter_", "src"), ("scatter_", "value")}


@attrs.frozen
class Argument:
    """What a call does to one of its arguments."""

    name: str
    reads: bool
    writes: bool


@attrs.frozen(eq=False)
class Interface:
    """What there is to know of all calls of one overload."""

    operation: str
    arguments: tuple[Argument, ...]
    """In order, keyword-only ones last; of an operation without a schema: none."""
    is_pure: bool
    """Whether it writes no argument: if it then only gives views, it has touched nothing."""
    is_custom: bool
    """Whether it is none of torch's own."""
    accumulates: bool
    """Whether the argument `accumulate` says that what is written is read as well."""
    picks: Callable[[dict[str, Any]], Picked | None] | None
    """Which elements a call touches whose indices are known."""

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of one call by name."""
        return {**dict(zip((a.name for a in self.arguments), args, strict=False)), **kwargs}

    def touches(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[torch.Tensor, Kind, str]]:
        """Each tensor that a call reads or writes, and the name of the argument."""
        if not self.arguments:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor):
                    yield leaf, "read", ""
            return
        for position, argument in enumerate(self.arguments):
            if position < len(args):
                value = args[position]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            else:
                continue
            reads = argument.reads or (argument.writes and self.accumulates and _adds(args, kwargs))
            for tensor in _tensors(value):
                if reads:
                    yield tensor, "read", argument.name
                if argument.writes:
                    yield tensor, "write", argument.name


@functools.cache
def interface(func: Any) -> Interface:
    """That of an overload, or of an operation of a higher order."""
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
        return Interface(operation_name(func), (), False, False, False, None)
    schema = func._schema  # noqa: SLF001 - no public form
    name = func.overloadpacket.__name__
    custom = func.namespace not in _OWN
    silent = torch.Tag.inplace_view in func.tags or _SHAPE_ONLY.fullmatch(name)
    overwrites = bool(_OVERWRITES.fullmatch(name)) or name in _ACCUMULATING
    overwrites |= (name, func._overloadname) in _SETTING  # noqa: SLF001 - no public form
    found = []
    for each in schema.arguments:
        writes = each.alias_info is not None and each.alias_info.is_write
        reads = not (writes and (each.is_out or overwrites)) and _SHAPES.get(name) != each.name
        found.append(Argument(each.name, reads and not silent, writes and not silent))
    return Interface(
        operation=operation_name(func),
        arguments=tuple(found),
        is_pure=not schema.is_mutable,
        is_custom=custom,
        accumulates=name in _ACCUMULATING,
        picks=None if custom else PICKS.get(name),
    )


def is_view(out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether every result lies in the memory of an argument, and nothing was made anew."""
    results = {_memory(tensor) for tensor in _tensors(out)}
    if not results:
        return False
    for value in (*args, *kwargs.values()):
        results.difference_update(map(_memory, _tensors(value)))
    return not results


@functools.cache
def runs_python(func: Any, device: str) -> bool:
    """Whether a kernel written in Python serves `func` there: its own calls can be seen."""
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
        return False
    # Private, and a build without it leaves such a call as opaque as any other.
    registered = getattr(torch.library, "_impls", ())
    name = f"{func.namespace}/{func.overloadpacket.__name__}"
    if func._overloadname != "default":  # noqa: SLF001 - no public form
        name += f".{func._overloadname}"  # noqa: SLF001
    places = device.upper(), "CompositeExplicitAutograd"
    return any(f"{name}/{place}" in registered for place in places)


def _adds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `accumulate`, the fourth argument of an `index_put_`, is true."""
    return bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            if isinstance(each, torch.Tensor):
                yield each


def _memory(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - two empty storages share address 0
