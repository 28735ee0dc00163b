"""What one ATen call needs in order to be repeated into the same memory, or why it cannot be."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

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
    why, excuse = _suspicion(func)
    return None if why is None or (excuse is not None and excuse(func, args, kwargs)) else why


@functools.cache
def _suspicion(func: Any) -> tuple[str | None, Callable[[Any, Any, Any], bool] | None]:
    """What speaks against calls of `func`, and what in its arguments excuses one."""
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
        return "it is not a single ATen call", None
    name = func.overloadpacket.__name__
    found: tuple[str | None, Callable[[Any, Any, Any], bool] | None] = (None, None)
    if name in _UNSTABLE:
        found = "it gives a tensor other memory", None
    elif name in _INDEXED:
        found = (
            "a mask is an index whose length depends on data; torch.where keeps the shape",
            _without_mask,
        )
    elif torch.Tag.nondeterministic_seeded in func.tags:
        found = "it draws random numbers, and a replay would draw others", _without_dropout
    elif name in _SHAPED_BY_DATA or torch.Tag.dynamic_output_shape in func.tags:
        found = "the shape of its result depends on data", _has_output_size
    elif torch.Tag.data_dependent_output in func.tags:
        found = "its value leaves the device", None
    return found


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


def _without_mask(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:  # noqa: ARG001
    return not any(
        isinstance(index, torch.Tensor) and index.dtype in {torch.bool, torch.uint8}
        for index in args[1]
    )


def reads_out(out: Any) -> bool:
    """Whether the result is a Python value that was computed from data."""
    return any(isinstance(leaf, bool | int | float | complex) for leaf in tree_leaves(out))


def fresh_at(args: Any, kwargs: Any, leaves: list[Any]) -> tuple[int, ...]:
    """Which of the results are tensors in memory that the call itself allocated; the others are
    views of what it was given.
    """
    given = {_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
    return tuple(
        position
        for position, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and _memory(leaf) not in given
    )


@functools.cache
def returns_what_it_got(func: Any) -> bool:
    """Whether every result is an argument or a view of one: nothing is allocated."""
    returns = func._schema.returns  # noqa: SLF001 - no public form
    return bool(returns) and all(r.alias_info is not None for r in returns)


def must_repeat(func: Any, results: list[torch.Tensor]) -> bool:
    """Whether a call with these new results does anything that a replay has to do again."""
    if func.overloadpacket.__name__ in _UNWRITTEN:
        return False
    schema = func._schema  # noqa: SLF001 - no public form
    acts = schema.is_mutable or not schema.returns
    return acts or any(result.numel() for result in results)


@attrs.frozen(eq=False)
class Call:
    """One ATen call of a replay. It writes into memory of its arguments, or else its results at
    the positions `picks` are copied `into` where the first run left them.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    picks: Sequence[int] = ()
    into: Sequence[torch.Tensor] = ()

    def bound(self) -> Callable[[], Any]:
        """What makes the call, at the least cost."""
        call = functools.partial(self.func, *self.args, **self.kwargs)
        return functools.partial(_copy_back, call, self.picks, self.into) if self.into else call


def _copy_back(call: Callable[[], Any], picks: Sequence[int], into: Sequence[torch.Tensor]) -> None:
    results = call()
    leaves = [results] if isinstance(results, torch.Tensor) else tree_leaves(results)
    for pick, old in zip(picks, into, strict=True):
        old.copy_(leaves[pick])


@attrs.frozen
class OutForm:
    """How a call whose results are new can write them into given memory instead."""

    overload: Any
    names: tuple[str, ...]
    """Of the arguments to be written; none for a copy."""
    implied: frozenset[str]
    """Arguments of the call that this form does without, because the memory implies them."""

    def call(self, args: Any, kwargs: dict[str, Any], into: Sequence[torch.Tensor]) -> Call:
        """The call, writing `into`."""
        if not self.names:
            return Call(self.overload, (into[0], args[0]), {})
        kept = {key: value for key, value in kwargs.items() if key not in self.implied}
        return Call(self.overload, args, {**kept, **dict(zip(self.names, into, strict=True))})


@functools.cache
def out_form(func: Any, count: int) -> OutForm | None:
    """The form of `func` that writes its `count` results into given tensors, if there is one.

    None too for what writes an argument as well: trying the form would do that twice.
    """
    if func._schema.is_mutable:  # noqa: SLF001 - no public form
        return None
    if func.overloadpacket.__name__ in _COPIES:
        return OutForm(torch.ops.aten.copy_.default, (), frozenset())
    wanted = {a.name: str(a.type) for a in func._schema.arguments}  # noqa: SLF001 - no public form
    for overload in map(
        functools.partial(getattr, func.overloadpacket), func.overloadpacket.overloads()
    ):
        arguments = overload._schema.arguments  # noqa: SLF001 - no public form
        outs = tuple(a.name for a in arguments if a.is_out)
        takes = {a.name: str(a.type) for a in arguments if not a.is_out}
        missing = frozenset(wanted) - frozenset(takes)
        fits = all(wanted.get(name) == kind for name, kind in takes.items())
        if len(outs) == count and fits and missing <= _IMPLIED_BY_OUT:
            return OutForm(overload, outs, missing)
    return None


def is_exact(
    form: OutForm,
    args: Any,
    kwargs: dict[str, Any],
    into: list[torch.Tensor],
    wanted: list[torch.Tensor],
) -> bool:
    """Whether the form fills `into` with the bits of `wanted`, where and as it lies. Tries it."""
    before = [(t.data_ptr(), t.shape, t.stride()) for t in into]
    try:
        form.call(args, kwargs, into).bound()()
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    after = [(t.data_ptr(), t.shape, t.stride()) for t in into]
    return before == after and all(map(_equal, into, wanted))


def signature(func: Any, args: Any, kwargs: dict[str, Any]) -> Hashable:
    """What calls have in common whose results have one geometry, and one `out=` form or none."""
    return func, _signature(args), _signature(tuple(kwargs.items()))


def _signature(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        lies = value.stride() if value.layout is torch.strided else value.layout
        return value.dtype, value.shape, lies
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    # NOTE: the type too, for 1 == 1.0 == True.
    return type(value), value


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one == other
    if one.is_floating_point() or one.is_complex():
        same |= (one != one) & (other != other)  # noqa: PLR0124 - NaN is what differs from itself
    return bool(same.all())


def _memory(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - two empty storages share address 0
