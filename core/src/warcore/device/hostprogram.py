"""Runs of recorded calls as one call that lets go of Python's lock.

Replayed call by call, each needs the lock back, and a host thread that computes gives it up only
every few milliseconds: nothing overlaps. torch's graph interpreter makes the same ATen calls, in
the same order, with the lock released once around all of them. Its optimiser stays off, so that no
call is fused, moved or replaced: the bits are those of eager execution.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.device.hostcalls import Call
from warcore.device.operations import replay_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from warcore.device.operations import Origin

    Step = Callable[[], Any]

_NON_BLOCKING = False


def joined(nodes: Sequence[Call | Step]) -> list[Step]:
    """The nodes as steps, with every run of two or more calls that can be one program made one."""
    if not _works():
        return singly(nodes)
    steps: list[Step] = []
    run: list[Call] = []
    program = _Program()
    for node in nodes:
        if isinstance(node, Call) and program.add(node):
            run.append(node)
        else:
            steps += [*_closed(run, program), *singly([node])]
            run, program = [], _Program()
    return steps + _closed(run, program)


def singly(nodes: Sequence[Call | Step], origins: Mapping[int, Origin] | None = None) -> list[Step]:
    """The nodes as steps, each by itself; those with an origin tell it while they run."""
    steps = [node.bound() if isinstance(node, Call) else node for node in nodes]
    for position, origin in (origins or {}).items():
        steps[position] = functools.partial(replay_call, origin, steps[position])
    return steps


def _closed(run: list[Call], program: _Program) -> list[Step]:
    return [program.finished()] if len(run) > 1 else singly(run)


@attrs.frozen(eq=False)
class _Interface:
    """What a program asks of a schema. Asking the schema itself copies it each time."""

    name: str
    text: str
    arguments: tuple[tuple[str, Any, Any], ...]
    """Names, types and defaults."""
    returns: tuple[Any, ...]
    """Types."""
    writes: bool


@functools.cache
def _interface(func: Any) -> _Interface:
    schema = func._schema  # noqa: SLF001 - no public form
    return _Interface(
        name=schema.name,
        text=str(schema),
        arguments=tuple((a.name, a.type, a.default_value) for a in schema.arguments),
        returns=tuple(each.type for each in schema.returns),
        writes=schema.is_mutable,
    )


class _Program:
    """Calls in a graph of torch's interpreter.

    Every tensor comes in through its input: a constant would count as never written, and a call
    that writes nothing else as of no effect.
    """

    def __init__(self) -> None:
        self._graph: Any = torch._C.Graph()  # noqa: SLF001 - no public form
        given = self._graph.addInput()
        given.setType(torch._C.ListType.ofTensors())  # noqa: SLF001
        self._unpacked = self._graph.create("prim::ListUnpack", [given], 0)
        self._graph.appendNode(self._unpacked)
        self._tensors: list[torch.Tensor] = []
        self._inputs: dict[int, Any] = {}
        self._constants: dict[tuple[type, str], Any] = {}

    def add(self, call: Call) -> bool:
        """Append one call; False if it has no place here."""
        wanted = _interface(call.func)
        if not (wanted.writes or call.into):
            return False
        if call.into and any(str(kind) != "Tensor" for kind in wanted.returns):
            return False
        try:
            made = self._graph.create(
                wanted.name, self._arguments(call, wanted), len(wanted.returns)
            )
        except (RuntimeError, TypeError):
            return False  # an argument that the interpreter has no form for
        if not _is_the_same(made.schema(), wanted.text):
            made.destroy()
            return False
        self._graph.appendNode(made)
        results = list(made.outputs())
        for result, kind in zip(results, wanted.returns, strict=True):
            result.setType(kind)
        for pick, place in zip(call.picks, call.into, strict=True):
            copy = [self._input(place), results[pick], self._constant(_NON_BLOCKING)]
            self._graph.appendNode(self._graph.create("aten::copy_", copy, 1))
        return True

    def finished(self) -> Step:
        """The program as one step."""
        self._graph.registerOutput(self._constant(None))
        function = torch._C._create_function_from_graph("replay", self._graph)  # noqa: SLF001
        # NOTE: a list of the interpreter's own. With tensors of a Python list, the interpreter
        # would need the lock whenever it lets go of one, to tell Python that it is back alone.
        return functools.partial(_run, function, torch._C.ScriptList(self._tensors))  # noqa: SLF001

    def _arguments(self, call: Call, wanted: _Interface) -> list[Any]:
        given = {a[0]: value for a, value in zip(wanted.arguments, call.args, strict=False)}
        given.update(call.kwargs)
        return [
            self._value(given.get(name, default), kind) for name, kind, default in wanted.arguments
        ]

    def _value(self, value: Any, kind: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._input(value)
        if kind.kind() == "OptionalType":
            if value is None:
                return self._constant(None)
            kind = kind.getElementType()
        if kind.kind() == "ListType":
            return self._list(value if isinstance(value, list | tuple) else [value], kind)
        return self._constant(float(value) if kind.kind() == "FloatType" else value)

    def _constant(self, value: Any) -> Any:
        """Each value once: the interpreter keeps three copies of its graph."""
        key = type(value), repr(value)
        if key not in self._constants:
            self._constants[key] = self._graph.insertConstant(value)
        return self._constants[key]

    def _list(self, values: Sequence[Any], kind: Any) -> Any:
        made = [self._value(value, kind.getElementType()) for value in values]
        node = self._graph.create("prim::ListConstruct", made, 1)
        node.output().setType(kind)
        self._graph.appendNode(node)
        return node.output()

    def _input(self, tensor: torch.Tensor) -> Any:
        known = self._inputs.get(id(tensor))
        if known is None:
            self._tensors.append(tensor)
            known = self._inputs[id(tensor)] = self._unpacked.addOutput()
        return known


@functools.cache
def _is_the_same(found: str, wanted: str) -> bool:
    """Whether the interpreter has found the overload that was recorded.

    NOTE: a number in place of a tensor, as in `x * 2`, leads it to the overload for numbers, which
    computes the same.
    """
    if found == wanted:
        return True
    if found.startswith("("):
        return False  # none was found
    arguments = [torch._C.parse_schema(text).arguments for text in (found, wanted)]  # noqa: SLF001
    return len(arguments[0]) == len(arguments[1]) and all(
        one.name == other.name
        and (str(one.type), str(other.type)) in {(str(other.type),) * 2, ("number", "Tensor")}
        for one, other in zip(*arguments, strict=True)
    )


def _run(function: Any, tensors: Any) -> None:
    before = torch._C._get_graph_executor_optimize()  # noqa: SLF001 - a setting of the thread
    torch._C._set_graph_executor_optimize(False)  # noqa: SLF001
    try:
        function(tensors)
    finally:
        torch._C._set_graph_executor_optimize(before)  # noqa: SLF001


@functools.cache
def _works() -> bool:
    """Whether this build of torch makes and runs programs."""
    source, target = torch.ones(2), torch.zeros(2)
    aten = torch.ops.aten
    try:
        program = _Program()
        added = program.add(Call(aten.mul.out, (source, 2), {"out": target}))
        added &= program.add(Call(aten.neg.default, (target,), {}, (0,), (target,)))
        program.finished()()
    except Exception:  # noqa: BLE001 - whatever is missing, replays go call by call
        return False
    return added and target.tolist() == [-2, -2]
