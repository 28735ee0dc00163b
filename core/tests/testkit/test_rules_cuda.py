"""What the checks of CUDA captures conclude from nodes and from gates. The GPU is played."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest
import torch

from warcore import PluginRecord
from warcore.batch import Bucket
from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.testkit.detectors.reachability import CapturedGraph, Given, Node
from warcore.testkit.outcome import NotApplicable, Refuted, Unproven
from warcore.testkit.rules import backend_cuda
from warcore.testkit.stands.cell import Shape
from warcore.testkit.stands.cudagates import Position
from warcore.testkit.stands.recorders import Recording
from warcore.testkit.subject import Subject

TABLE = torch.zeros(6, 8, dtype=torch.int32)
MAP = torch.zeros(48, dtype=torch.int32)
EVENT = 7
READS = Given("parameter 0, byte 0", TABLE.data_ptr() + 4, TABLE.data_ptr() + 5)
GATHER, LAYER = Node("kernel", "gather", (READS,)), Node("kernel", "layer")
FOLLOWS = Given("parameter 1, byte 0", MAP.data_ptr(), MAP.data_ptr() + 1)
TRANSLATES = Node("kernel", "translate", (FOLLOWS,))
MARKER = Node("event record", event=EVENT)


@attrs.frozen(eq=False)
class Raw:
    """A captured section: its handle is its nodes, one after the other."""

    nodes: tuple

    def raw_cuda_graph(self):
        return CapturedGraph(self.nodes, tuple((i, i + 1) for i in range(len(self.nodes) - 1)))


def section(*nodes):
    event = SimpleNamespace(raw=SimpleNamespace(cuda_event=EVENT))
    return Raw(nodes), (event,) if MARKER in nodes else ()


def subject(**facts):
    cls = type("Played", (), {})
    return Subject(PluginRecord("backend", "played", None, None, "x:Played"), cls, "cuda", **facts)


@pytest.fixture
def captured(monkeypatch):
    """`captured(vote, *sections)`: the verdict on a stand with these captures."""
    monkeypatch.setattr(backend_cuda, "Driver", lambda: SimpleNamespace(read=lambda nodes: nodes))

    def judged(vote, *sections, asked=None):
        recorder = object.__new__(Recording)
        bucket = Bucket(ForwardMode.DECODE, 2, 2, 64, 0)
        recorder._captured = {bucket: (SimpleNamespace(sections=list(sections)), None)}
        stand = SimpleNamespace(
            recorders=[recorder],
            scope=SimpleNamespace(ends={ForwardMode.DECODE: vote}),
            tables=SimpleNamespace(named={"req_to_token": TABLE, "full_to_swa": MAP}),
            graph=GraphKind.UNBROKEN,
            shape=Shape(),
        )
        monkeypatch.setattr(backend_cuda, "stands", lambda *_, **__: iter([stand]))
        backend_cuda.no_late_address(asked or subject())

    return judged


PRE, IN, POST = (
    SharedReadEnds.PRE_REPLAY,
    SharedReadEnds.IN_REPLAY,
    SharedReadEnds.POST_REPLAY,
)


def test_a_graph_that_gathers_before_its_marker_is_proved_for_that_end(captured):
    captured(IN, section(GATHER, MARKER, LAYER))


@pytest.mark.parametrize(
    ("vote", "sections"),
    [
        (PRE, [section(GATHER, MARKER, LAYER)]),
        (IN, [section(MARKER, LAYER, GATHER)]),
        (IN, [section(MARKER), section(GATHER)]),
        (PRE, [section(GATHER)]),
    ],
    ids=["pre", "behind the marker", "in a later section", "without a marker"],
)
def test_an_address_that_may_be_followed_too_late_is_a_suspicion_and_no_pass(
    captured, vote, sections
):
    with pytest.raises(Unproven, match=r"suspect.*decode-unbroken-bucket2.*kernel gather.*req_to"):
        captured(vote, *sections)


def test_an_address_in_the_map_of_windows_is_one_in_the_shared_tables(captured):
    with pytest.raises(Unproven, match=r"suspect.*kernel translate.*full_to_swa"):
        captured(IN, section(GATHER, MARKER, TRANSLATES))


@pytest.mark.parametrize("vote", [POST, SharedReadEnds.UNKNOWN, IN])
def test_a_step_that_is_fenced_at_its_end_has_nothing_to_prove(captured, vote):
    with pytest.raises(NotApplicable, match="before the end of a replay"):
        captured(vote, section(GATHER))


def test_the_cell_that_was_asked_for_is_the_one_that_is_read(captured):
    captured(PRE, section(GATHER), asked=subject(cells="decode-other"))


# ---- the position of a marker --------------------------------------------------------------------


@pytest.fixture
def positioned(monkeypatch):
    """`positioned(POSITION, vote)`: the verdict where every marker lies so."""

    def judged(position, vote=IN, *, marked=True):
        cell = SimpleNamespace(mode=ForwardMode.DECODE)
        stand = SimpleNamespace(
            scope=SimpleNamespace(ends={ForwardMode.DECODE: vote}),
            steps=lambda cell: [None],
            marked=lambda batch: marked,
        )
        monkeypatch.setattr(backend_cuda, "why_no_gates", lambda: None)
        monkeypatch.setattr(backend_cuda, "stands", lambda *_, **__: iter([stand]))
        monkeypatch.setattr(backend_cuda, "cells_of", lambda *_: iter([cell]))
        monkeypatch.setattr(backend_cuda, "position_of_marker", lambda *_: position)
        backend_cuda.marker_position(subject())

    return judged


def test_a_marker_in_its_place_passes(positioned):
    positioned(Position(early=False, late=False))


@pytest.mark.parametrize(
    ("position", "says"),
    [(Position(True, False), "has not happened"), (Position(False, True), "only after something")],
)
def test_a_marker_out_of_its_place_is_refuted(positioned, position, says):
    with pytest.raises(Refuted, match=says) as raised:
        positioned(position)
    assert raised.value.failure.seen_by == ("event position",)


@pytest.mark.parametrize("facts", [{"vote": PRE}, {"marked": False}])
def test_without_a_marker_that_matters_there_is_no_position(positioned, facts):
    with pytest.raises(NotApplicable):
        positioned(Position(False, False), **facts)


def test_without_gates_there_is_no_verdict(monkeypatch):
    monkeypatch.setattr(backend_cuda, "why_no_gates", lambda: "nothing can be held")
    with pytest.raises(Unproven, match="nothing can be held"):
        backend_cuda.marker_position(subject())
