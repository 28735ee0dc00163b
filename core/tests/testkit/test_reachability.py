"""Which nodes of a captured graph may run after an event, and what they are given."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, addressof, c_char_p, c_int, c_void_p, sizeof

import attrs
import pytest

from warcore.testkit.detectors.cudadriver import Driver
from warcore.testkit.detectors.cudalayouts import (
    KINDS,
    SIGNATURES,
    CopyEnd,
    CopyParams,
    EdgeData,
    KernelParams,
    SetParams,
)
from warcore.testkit.detectors.reachability import CapturedGraph, Given, Node, suspects
from warcore.testkit.outcome import Unproven

TABLE = {"req_to_token": (0x1000, 0x1100)}


def node(name, *addresses, **facts):
    given = tuple(Given(f"parameter {i}, byte 0", a, a + 1) for i, a in enumerate(addresses))
    return Node("kernel", name, given, **facts)


def found(graph, after):
    return [(each.node.name, each.buffer) for each in suspects(graph, TABLE, after)]


# ---- the order of nodes --------------------------------------------------------------------------


LINE = CapturedGraph(
    (node("gather", 0x1000), Node("event record", event=7), node("layer", 0x2000, 0x10FF)),
    ((0, 1), (1, 2)),
)


def test_what_is_ordered_before_the_event_may_read_and_what_is_not_may_not():
    assert found(LINE, LINE.recording(7)) == [("layer", "req_to_token")]


def test_an_event_before_the_launch_is_before_every_node():
    assert found(LINE, None) == [("gather", "req_to_token"), ("layer", "req_to_token")]


def test_a_branch_that_the_event_does_not_wait_for_may_run_after_it():
    fork = CapturedGraph(
        (Node("empty"), node("aside", 0x1004), Node("event record", event=7), node("joins")),
        ((0, 1), (0, 2), (1, 3), (2, 3)),
    )
    assert found(fork, 2) == [("aside", "req_to_token")]


def test_an_order_over_many_nodes_is_an_order():
    count = 2000
    nodes = (
        node("gather", 0x1000),
        *(node("x") for _ in range(count)),
        Node("event record", event=1),
    )
    chain = CapturedGraph(nodes, tuple((i, i + 1) for i in range(count + 1)))
    assert found(chain, chain.recording(1)) == []


@pytest.mark.parametrize(
    ("start", "stop", "reaches"),
    [
        (0xFFF, 0x1000, False),
        (0xFFF, 0x1001, True),
        (0x10FF, 0x1200, True),
        (0x1100, 0x1200, False),
    ],
)
def test_memory_is_in_reach_if_a_byte_of_it_is(start, stop, reaches):
    graph = CapturedGraph((Node("memcpy", given=(Given("source", start, stop),)),), ())
    assert bool(list(suspects(graph, TABLE, None))) is reaches


def test_what_cannot_be_looked_into_is_a_suspect():
    graph = CapturedGraph((Node("host function", opaque=True),), ())
    assert [str(each) for each in suspects(graph, TABLE, None)] == [
        "node 0, host function, may touch anything"
    ]


def test_a_suspect_says_where_it_got_the_address():
    (suspect,) = suspects(LINE, TABLE, 1)
    assert str(suspect) == (
        "node 2, kernel layer, is given an address in req_to_token (parameter 1, byte 0)"
    )


# ---- the driver's ABI ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("struct", "size", "offsets"),
    [
        (KernelParams, 72, {"shared": 32, "params": 40, "extra": 48, "kern": 56, "context": 64}),
        (CopyEnd, 88, {"memory_type": 32, "host": 40, "device": 48, "pitch": 72}),
        (CopyParams, 200, {"target": 88, "width": 176, "height": 184, "depth": 192}),
        (SetParams, 40, {"pitch": 8, "value": 16, "element": 20, "width": 24, "height": 32}),
        (EdgeData, 8, {"type": 2}),
    ],
)
def test_structures_are_laid_out_as_the_driver_lays_them_out(struct, size, offsets):
    assert sizeof(struct) == size
    assert {name: getattr(struct, name).offset for name in offsets} == offsets


@attrs.define(slots=False)
class FakeDriver:
    """A driver with one graph of `nodes`, each (kind, what it was given), reached through the ABI.

    Handles are places plus 100. A kernel is given the bytes of each of its parameters.
    """

    nodes: list
    edges: list = attrs.field(factory=list)
    packed: bool = False
    """Whether kernels were launched with one buffer of all parameters."""
    inner: list = attrs.field(factory=list)
    code: int = 0
    _kept: list = attrs.field(factory=list)

    def __attrs_post_init__(self):
        for name, signature in SIGNATURES.items():
            self._kept.append(CFUNCTYPE(c_int, *signature)(getattr(self, f"_{name}")))
            setattr(self, name, self._kept[-1])

    def _of(self, handle):
        return (self.inner if handle >= 500 else self.nodes)[handle % 100]

    def _cuGraphGetNodes(self, graph, handles, count):
        base, nodes = (500, self.inner) if graph == 2 else (100, self.nodes)
        count[0] = len(nodes)
        if handles:
            for at in range(len(nodes)):
                handles[at] = base + at
        return self.code

    def _cuGraphGetEdges_v2(self, graph, starts, stops, data, count):
        count[0] = len(self.edges)
        for at, (start, stop, kind) in enumerate(self.edges if starts else ()):
            starts[at], stops[at], data[at].type = 100 + start, 100 + stop, kind
        return 0

    def _cuGraphNodeGetType(self, handle, kind):
        kinds = {name: number for number, name in KINDS.items()}
        kind[0] = kinds[self._of(handle)[0]]
        return 0

    def _cuGraphKernelNodeGetParams_v2(self, handle, params):
        values = [ctypes.create_string_buffer(v, len(v)) for v in self._of(handle)[1]]
        whole = ctypes.create_string_buffer(b"".join(self._of(handle)[1]))
        if self.packed:
            array = (c_void_p * 5)(1, addressof(whole), 2, 0, 0)
            params[0].extra = array
        else:
            array = (c_void_p * len(values))(*map(addressof, values))
            params[0].params = array
        params[0].kern = handle
        self._kept += [values, whole, array]
        return 0

    def _cuKernelGetFunction(self, function, kernel):
        function[0] = kernel
        return 0

    def _cuFuncGetParamInfo(self, function, index, offset, size):
        values = self._of(function)[1]
        if index >= len(values):
            return 1
        offset[0], size[0] = sum(map(len, values[:index])), len(values[index])
        return 0

    def _cuFuncGetName(self, name, function):
        text = c_char_p(b"gather_rows")
        self._kept.append(text)
        name[0] = text
        return 0

    def _cuGraphMemcpyNodeGetParams(self, handle, params):
        source, target, width = self._of(handle)[1]
        params[0].source.device, params[0].target.host, params[0].width = source, target, width
        params[0].height = params[0].depth = 1
        return 0

    def _cuGraphMemsetNodeGetParams(self, handle, params):
        params[0].target, params[0].element, params[0].width, params[0].height = (
            *self._of(handle)[1],
            1,
        )
        return 0

    def _cuGraphEventRecordNodeGetEvent(self, handle, event):
        event[0] = self._of(handle)[1]
        return 0

    def _cuGraphChildGraphNodeGetGraph(self, handle, graph):
        graph[0] = 2
        return 0


def word(value, size=8):
    return value.to_bytes(size, "little")


def read(*nodes, **facts):
    return Driver(FakeDriver(list(nodes), **facts)).read(1)


@pytest.mark.parametrize("packed", [False, True])
def test_every_word_of_a_kernels_parameters_is_read(packed):
    struct = word(1) + word(0x1008) + word(3)
    (kernel,) = read(("kernel", [word(0x2000), word(7, 4) * 2, struct]), packed=packed).nodes
    assert kernel.name == "gather_rows"
    assert [(given.how, given.start) for given in kernel.given if given.start != 0x700000007] == [
        ("parameter 0, byte 0", 0x2000),
        ("parameter 2, byte 0", 1),
        ("parameter 2, byte 8", 0x1008),
        ("parameter 2, byte 16", 3),
    ]


def test_copies_and_fills_are_given_all_that_they_cover():
    copied, filled = read(("memcpy", (0x0FF0, 0x5000, 32)), ("memset", (0x0FF0, 4, 8))).nodes
    assert copied.given == (Given("source", 0x0FF0, 0x1010), Given("target", 0x5000, 0x5020))
    assert filled.given == (Given("target", 0x0FF0, 0x1010),)


def test_the_order_is_read_and_an_early_start_is_none():
    nodes = [("kernel", []), ("kernel", []), ("event record", 7)]
    graph = read(*nodes, edges=[(0, 1, 1), (1, 2, 0)])
    assert graph.edges == ((1, 2),)
    assert graph.recording(7) == 2
    assert graph.ancestors(2) == {1}


def test_a_graph_within_a_graph_is_given_what_its_nodes_are():
    (graph,) = read(("graph", None), inner=[("kernel", [word(0x1000)])]).nodes
    assert graph.given == (Given("kernel gather_rows: parameter 0, byte 0", 0x1000, 0x1001),)
    (graph,) = read(("graph", None), inner=[("host function", None)]).nodes
    assert graph.opaque


@pytest.mark.parametrize(
    ("kind", "opaque"),
    [("empty", False), ("event wait", False), ("host function", True), ("conditional", True)],
)
def test_a_node_that_nobody_can_look_into_is_told(kind, opaque):
    assert read((kind, None)).nodes[0].opaque is opaque


def test_a_driver_that_refuses_or_lacks_a_function_is_no_verdict():
    with pytest.raises(Unproven, match="answered cuGraphGetNodes with error 3"):
        read(("empty", None), code=3)
    with pytest.raises(Unproven, match="the CUDA driver has no cuGraphGetNodes: it is older"):
        Driver(object())
