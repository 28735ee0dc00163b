"""What one ATen call needs in order to be repeated into the same memory, or why it cannot be."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

_UNSTABLE = {"resize_", "resize_as_", "set_", "resize", "set_data", "swap_"}
"""Calls that give a tensor other memory: what was recorded would point at the old one."""

_SHAPED_BY_DATA = {"nonzero", "masked_select", "unique_dim", "_unique2", "bincount"}
"""Where a build of torch lacks the tags that say so."""

_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_IMPLIED_BY_OUT = {"dtype", "layout", "device", "pin_memory"}
_COPIES = {"_to_copy", "clone"}


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether the call is only made of other ATen calls, on the CPU as everywhere."""
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - no public form
    name = func.name()  # type: ignore[no-untyped-call]
    return bool(has(name, "CompositeImplicitAutograd")) and not has(name, "CPU")


def why_not(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why this call can be in no graph; None if nothing speaks against it."""
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
        return "it is not a single ATen call"
    name = func.overloadpacket.__name__
    why = None
    if name in _UNSTABLE:
        why = "it gives a tensor other memory"
    elif name in _INDEXED:
        why = _why_not_index(args)
    elif torch.Tag.nondeterministic_seeded in func.tags:
        if not _without_dropout(func, args, kwargs):
            why = "it draws random numbers, and a replay would draw others"
    elif name in _SHAPED_BY_DATA or torch.Tag.dynamic_output_shape in func.tags:
        if not _has_output_size(func, args, kwargs):
            why = "the shape of its result depends on data"
    elif torch.Tag.data_dependent_output in func.tags:
        why = "its value leaves the device"
    return why


def _without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Attention is tagged random for its dropout; without dropout it is not."""
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - no public form
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else kwargs.get("dropout_p")
            return bool((argument.default_value if given is None else given) == 0)
    return False


def _has_output_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`repeat_interleave` with its output size given has a shape of its own."""
    names = [a.name for a in func._schema.arguments]  # noqa: SLF001 - no public form
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    return bound.get("output_size") is not None


def _why_not_index(args: tuple[Any, ...]) -> str | None:
    for index in tree_leaves(args[1]):
        if isinstance(index, torch.Tensor) and index.dtype in {torch.bool, torch.uint8}:
            return "a mask is an index whose length depends on data; torch.where keeps the shape"
    return None


def reads_out(out: Any) -> bool:
    """Whether the result is a Python value that was computed from data."""
    return any(isinstance(leaf, bool | int | float | complex) for leaf in tree_leaves(out))


def fresh_tensors(args: Any, kwargs: Any, out: Any) -> list[torch.Tensor]:
    """The tensors of `out` in memory that the call itself allocated; the others are views."""
    given = {_memory(t) for t in _tensors((args, kwargs))}
    return [t for t in _tensors(out) if _memory(t) not in given]


def plan(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fresh: list[torch.Tensor]
) -> Callable[[], Any] | None:
    """What repeats the call; None if there is nothing to repeat.

    Run right after the call: an `out=` form is tried on the spot, and taken only if it gives the
    bits that the call gave.
    """
    name = func.overloadpacket.__name__
    if func._schema.is_mutable:  # noqa: SLF001 - no public form
        call = functools.partial(func, *args, **kwargs)
        return functools.partial(_copy_back, call, args, kwargs, fresh) if fresh else call
    if not any(t.numel() for t in fresh) or name in _UNWRITTEN:
        return None
    if name in _COPIES:
        return functools.partial(fresh[0].copy_, args[0])
    writing = _out_call(func, args, kwargs, fresh)
    if writing is not None and _same_bits(writing, fresh):
        return writing
    return functools.partial(
        _copy_back, functools.partial(func, *args, **kwargs), args, kwargs, fresh
    )


def _copy_back(call: Callable[[], Any], args: Any, kwargs: Any, fresh: list[torch.Tensor]) -> None:
    for old, new in zip(fresh, fresh_tensors(args, kwargs, call()), strict=True):
        old.copy_(new)


def _out_call(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fresh: list[torch.Tensor]
) -> Callable[[], Any] | None:
    found = _out_overload(func)
    if found is None or len(found[1]) != len(fresh):
        return None
    overload, names, dropped = found
    kept = {key: value for key, value in kwargs.items() if key not in dropped}
    return functools.partial(overload, *args, **kept, **dict(zip(names, fresh, strict=True)))


@functools.cache
def _out_overload(func: Any) -> tuple[Any, list[str], frozenset[str]] | None:
    """The overload of `func` that writes into given tensors, its names for them, and the arguments
    of `func` that it does without because the tensors imply them.
    """
    wanted = {a.name: str(a.type) for a in func._schema.arguments}  # noqa: SLF001 - no public form
    for overload in map(
        functools.partial(getattr, func.overloadpacket), func.overloadpacket.overloads()
    ):
        arguments = overload._schema.arguments  # noqa: SLF001 - no public form
        outs = [a.name for a in arguments if a.is_out]
        takes = {a.name: str(a.type) for a in arguments if not a.is_out}
        missing = frozenset(wanted) - frozenset(takes)
        fits = all(wanted.get(name) == kind for name, kind in takes.items())
        if outs and fits and missing <= _IMPLIED_BY_OUT:
            return overload, outs, missing
    return None


def _same_bits(writing: Callable[[], Any], fresh: list[torch.Tensor]) -> bool:
    """Whether `writing` fills `fresh` with what is there already, without moving it."""
    before = [(t.clone(), t.data_ptr(), t.stride()) for t in fresh]
    try:
        writing()
    except (RuntimeError, TypeError, NotImplementedError):
        exact = False
    else:
        exact = all(
            t.data_ptr() == place
            and t.stride() == stride
            and t.shape == old.shape
            and _equal(t, old)
            for t, (old, place, stride) in zip(fresh, before, strict=True)
        )
    if not exact:
        for tensor, (old, _, _) in zip(fresh, before, strict=True):
            tensor.copy_(old)
    return exact


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one == other
    if one.is_floating_point() or one.is_complex():
        same |= (one != one) & (other != other)  # noqa: PLR0124 - NaN is what differs from itself
    return bool(same.all())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - two empty storages share address 0
