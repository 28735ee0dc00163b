"""The part of the CUDA driver that reads captured graphs, through ctypes."""

from __future__ import annotations

from ctypes import CDLL, byref, c_char_p, c_int, c_size_t, c_void_p, string_at
from typing import Any, Final

from warcore.testkit.detectors.cudalayouts import (
    KINDS,
    SIGNATURES,
    CopyEnd,
    CopyParams,
    EdgeData,
    KernelParams,
    SetParams,
)
from warcore.testkit.detectors.reachability import CapturedGraph, Given, Node
from warcore.testkit.outcome import Unproven

_HARMLESS: Final = {"empty", "event wait", "allocation", "free", "semaphore signal"}
_PROGRAMMATIC: Final = 1
"""CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: the later may begin before the earlier has ended."""
_INVALID_VALUE: Final = 1
_PARAMETERS: Final = 4096
"""More than a kernel can have."""


class Driver:
    """Reads captured graphs. Unproven where the driver cannot be asked."""

    def __init__(self, library: Any = None) -> None:
        """library: of the functions, in place of the machine's driver."""
        try:
            self._library = CDLL("libcuda.so.1") if library is None else library
        except OSError as error:
            raise Unproven(f"there is no CUDA driver here: {error}") from error
        for name, signature in SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise Unproven(f"the CUDA driver has no {name}: it is older than 12.4") from error
            if library is None:
                function.argtypes, function.restype = signature, c_int

    def read(self, graph: int) -> CapturedGraph:
        """The nodes and edges of a CUgraph."""
        handles = self._nodes(graph)
        place = {handle: at for at, handle in enumerate(handles)}
        edges = [(place[start], place[stop]) for start, stop in self._edges(graph)]
        return CapturedGraph(tuple(self._node(handle) for handle in handles), tuple(edges))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise Unproven(f"the CUDA driver answered {name} with error {code}")

    def _nodes(self, graph: int) -> list[int]:
        count = c_size_t()
        self._call("cuGraphGetNodes", graph, None, byref(count))
        handles = (c_void_p * count.value)()
        if count.value:
            self._call("cuGraphGetNodes", graph, handles, byref(count))
        return [int(handle or 0) for handle in handles]

    def _edges(self, graph: int) -> list[tuple[int, int]]:
        """Those at whose start something has ended when their end begins."""
        count = c_size_t()
        self._call("cuGraphGetEdges_v2", graph, None, None, None, byref(count))
        starts, stops = (c_void_p * count.value)(), (c_void_p * count.value)()
        kinds = (EdgeData * count.value)()
        if count.value:
            self._call("cuGraphGetEdges_v2", graph, starts, stops, kinds, byref(count))
        return [
            (int(start or 0), int(stop or 0))
            for start, stop, kind in zip(starts, stops, kinds, strict=True)
            if kind.type != _PROGRAMMATIC
        ]

    def _node(self, handle: int) -> Node:
        number = c_int()
        self._call("cuGraphNodeGetType", handle, byref(number))
        kind = KINDS.get(number.value, f"type {number.value}")
        if kind == "kernel":
            return self._kernel(handle)
        if kind == "memcpy":
            return Node(kind, given=self._copied(handle))
        if kind == "memset":
            return Node(kind, given=self._filled(handle))
        if kind == "event record":
            event = c_void_p()
            self._call("cuGraphEventRecordNodeGetEvent", handle, byref(event))
            return Node(kind, event=event.value)
        if kind == "graph":
            return self._inner(handle)
        return Node(kind, opaque=kind not in _HARMLESS)

    def _kernel(self, handle: int) -> Node:
        params = KernelParams()
        self._call("cuGraphKernelNodeGetParams_v2", handle, byref(params))
        function = c_void_p(params.func)
        if not params.func:
            self._call("cuKernelGetFunction", byref(function), c_void_p(params.kern))
        name = c_char_p()
        self._call("cuFuncGetName", byref(name), function)
        given = []
        for index, (offset, size) in enumerate(self._layout(function)):
            value = _value(params, index, offset, size)
            for at in range(0, size - 7, 8):
                word = int.from_bytes(value[at : at + 8], "little")
                given.append(Given(f"parameter {index}, byte {at}", word, word + 1))
        return Node("kernel", (name.value or b"").decode(errors="replace"), tuple(given))

    def _layout(self, function: c_void_p) -> list[tuple[int, int]]:
        """(offset, size) of each parameter of a kernel, in bytes."""
        found = []
        offset, size = c_size_t(), c_size_t()
        for index in range(_PARAMETERS):
            code = self._library.cuFuncGetParamInfo(function, index, byref(offset), byref(size))
            if code == _INVALID_VALUE:
                break
            if code:
                raise Unproven(f"the CUDA driver answered cuFuncGetParamInfo with error {code}")
            found.append((offset.value, size.value))
        return found

    def _copied(self, handle: int) -> tuple[Given, ...]:
        params = CopyParams()
        self._call("cuGraphMemcpyNodeGetParams", handle, byref(params))
        ends = (("source", params.source), ("target", params.target))
        return tuple(
            _extent(how, start, end, params)
            for how, end in ends
            for start in (end.device, end.host)
            if start
        )

    def _filled(self, handle: int) -> tuple[Given, ...]:
        params = SetParams()
        self._call("cuGraphMemsetNodeGetParams", handle, byref(params))
        width = params.width * params.element
        stop = params.target + (params.height - 1) * params.pitch + width
        return (Given("target", params.target, max(stop, params.target + width)),)

    def _inner(self, handle: int) -> Node:
        """A graph within a graph: what its nodes are given, as one node."""
        graph = c_void_p()
        self._call("cuGraphChildGraphNodeGetGraph", handle, byref(graph))
        nodes = [self._node(each) for each in self._nodes(graph.value or 0)]
        given = [
            Given(f"{node}: {each.how}", each.start, each.stop)
            for node in nodes
            for each in node.given
        ]
        opaque = any(node.opaque for node in nodes)
        return Node("graph", given=tuple(given), opaque=opaque)


def _value(params: KernelParams, index: int, offset: int, size: int) -> bytes:
    """The bytes of one parameter, as the launch was given them."""
    if params.params:
        return string_at(params.params[index], size)
    # A list of (what, value) that ends with 0: 1 is the buffer of all parameters.
    at = 0
    while params.extra and params.extra[at]:
        if params.extra[at] == 1:
            return string_at(int(params.extra[at + 1] or 0) + offset, size)
        at += 2
    raise Unproven("a kernel node has parameters that the driver does not show")


def _extent(how: str, start: int, end: CopyEnd, params: CopyParams) -> Given:
    """What one end of a copy covers, from its first byte to its last."""
    begin = start + (end.z * end.height + end.y) * end.pitch + end.x
    rows = max(params.height, 1) * max(params.depth, 1)
    return Given(how, begin, begin + (rows - 1) * end.pitch + params.width)
