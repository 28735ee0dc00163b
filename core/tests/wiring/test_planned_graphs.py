"""What is captured, and whoever loses graphs is told why and what would change it."""

from __future__ import annotations

import logging

import attrs
import pytest
from parts import configured, engine
from toys import Replaying, RowMajor, Toy

import warcore.choices
from warcore import FencePlan, ForwardMode, GraphKind, PluginError, PluginRecord
from warcore.device.host import HostDevice
from warcore.errors import ConfigError
from warcore.kinds import PlannedGraphs

LISTING = "warcore list-plugins --kind graph_runner"


class ByLength(RowMajor):
    """Tells captures of up to 16 positions apart from longer ones."""

    def graph_key(self, batch):
        return int(batch.max_seq_len > 16)


class Eager(RowMajor):
    def graph_key(self, batch):
        return None


class Prefills(Replaying):
    modes = frozenset({ForwardMode.EXTEND})


class Decodes(Replaying):
    modes = frozenset({ForwardMode.DECODE})


class Verifies(Replaying):
    modes = frozenset({ForwardMode.TARGET_VERIFY})


class Nothing(Replaying):
    modes = frozenset()


def graphs(*, device=None, **config):
    config = configured(**{"graph_runner": Replaying, **config})
    return FencePlan.of(config, device=device).graphs


# ---- what is captured ----------------------------------------------------------------------------


def test_nothing_is_to_be_said_where_everything_is_captured():
    assert graphs() == PlannedGraphs("Replaying", 3, None, None)


def test_what_is_left_out_for_its_length_is_told_beside_the_count():
    assert graphs(graph_positions=128) == PlannedGraphs(
        "Replaying",
        2,
        "a step runs eagerly if it attends to more than 128 positions, over all its requests "
        "(--graph-positions N)",
        None,
    )


def test_without_a_runner_it_says_why():
    none = graphs(graph_runner="none")
    assert none == PlannedGraphs(None, 0, "switched off by --graph-runner none", None)
    device = HostDevice("inline")
    device.supports_graphs = False
    assert graphs(graph_runner=None, device=device).why == "this device (cpu) has none"


CAUSES = {
    "too many positions": (
        {"graph_positions": 1},
        "a step of 1 request attends to 64 positions, more than 1",
        "--graph-positions 64, or give the backend a graph_key",
    ),
    "too many, though the backend tells lengths apart": (
        {"graph_positions": 1, "backend": ByLength},
        "a step of 1 request attends to 16 positions, more than 1",
        "--graph-positions 16",
    ),
    "an eager backend": (
        {"backend": Eager},
        "backend:Eager wants every decode step to run eagerly",
        "return a number from its graph_key, or name another --backend",
    ),
    "prefills only": (
        {"graph_runner": Prefills},
        "Prefills captures only prefills, and none where no size is named",
        "--graph-prefill-buckets N,N",
    ),
    "no kind that runs": (
        {"graph_runner": Verifies},
        "Verifies captures no decode steps",
        LISTING,
    ),
}


@pytest.mark.parametrize(("config", "why", "remedy"), CAUSES.values(), ids=CAUSES)
def test_where_nothing_is_captured_the_cause_and_the_remedy_are_told(config, why, remedy):
    made = graphs(**config)
    assert (made.captures, made.why, made.next) == (0, why, remedy)


def test_the_remedy_for_too_many_positions_helps():
    assert graphs(graph_positions=64).captures == 1
    assert graphs(graph_positions=16, backend=ByLength).captures == 1


def test_an_engine_that_captures_nothing_logs_the_cause(caplog):
    with (
        caplog.at_level(logging.INFO, "warcore"),
        engine(graph_runner=Replaying, graph_positions=1),
    ):
        pass
    assert "every step runs eagerly: a step of 1 request attends to 64 positions" in caplog.text


# ---- what was asked for by name ------------------------------------------------------------------


NAMED = {
    "decodes too long": (
        {"graph_buckets": (4,), "graph_positions": 64},
        "--graph-buckets 4 captures nothing: a step of 4 requests attends to 256 positions, more",
        "--graph-positions 256, or smaller buckets, or give the backend a graph_key",
    ),
    "prefills too long": (
        {"graph_prefill_buckets": (8, 16), "graph_positions": 32},
        "--graph-prefill-buckets 8,16 captures nothing: a prefill of 8 tokens attends to 64 po",
        "--graph-positions 64, or give the backend a graph_key",
    ),
    "prefills beyond the context": (
        {"graph_prefill_buckets": (100,), "max_running_requests": 1},
        "--graph-prefill-buckets 100 captures nothing: one request holds at most 64 tokens",
        "--kv-pages N, or smaller buckets",
    ),
    "a runner without prefills": (
        {"graph_prefill_buckets": (8,), "graph_runner": Decodes},
        "--graph-prefill-buckets 8 captures nothing: Decodes captures no extend steps",
        LISTING,
    ),
    "an eager backend": (
        {"graph_buckets": (1,), "backend": Eager},
        "--graph-buckets 1 captures nothing: backend:Eager wants every decode step to run eagerly",
        "return a number from its graph_key, or name another --backend",
    ),
}


@pytest.mark.parametrize("make", [graphs, engine])
@pytest.mark.parametrize(("config", "what", "remedy"), NAMED.values(), ids=NAMED)
def test_sizes_that_were_named_and_leave_nothing_to_capture_are_refused(make, config, what, remedy):
    with pytest.raises(ConfigError) as raised:
        make(**{"graph_runner": Replaying, **config})
    assert raised.value.what.startswith(what)
    assert raised.value.next == remedy


def test_one_size_of_those_that_were_named_is_enough():
    assert graphs(graph_buckets=(1, 4), graph_positions=64).captures == 1


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"modes": frozenset()}, "modes is frozenset(), which names no kinds of step"),
        ({"modes": {"decode"}}, "modes is {'decode'}, which names no kinds of step"),
        ({"kind": "full"}, "kind is 'full', which is no kind of graph"),
        ({"kind": GraphKind.NONE}, "which is no kind of graph"),
    ],
)
def test_a_runner_whose_class_says_what_cannot_be_is_refused_by_its_name(facts, what):
    with pytest.raises(PluginError, match="graph_runner:Odd: ") as raised:
        graphs(graph_runner=type("Odd", (Replaying,), facts))
    assert what in raised.value.what


@pytest.mark.parametrize("reasons", ["no", None, [1]])
def test_reasons_that_are_no_list_of_texts_are_refused(reasons):
    class Mumbling(Replaying):
        @classmethod
        def why_not(cls, spec):
            return reasons

    with pytest.raises(PluginError, match="graph_runner Mumbling: why_not returned"):
        graphs(graph_runner=Mumbling)


# ---- who could not serve -------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch):
    """installed(*records): what find_plugins finds beside the toys."""
    model = attrs.evolve(PluginRecord.of_class("model", Toy), name="toy")

    def install(*records):
        monkeypatch.setattr(warcore.choices, "find_plugins", lambda disable: (model, *records))

    return install


def record(name, state="available", cause=None, cls=Replaying):
    return attrs.evolve(
        PluginRecord.of_class("graph_runner", cls), name=name, state=state, cause=cause
    )


class Refusing(Replaying):
    @classmethod
    def why_not(cls, spec):
        return ["no windows"]


def test_one_in_conflict_is_named_though_another_serves(installed):
    installed(record("alpha", "conflict", "x has one too"), record("beta"))
    made = graphs(graph_runner=None)
    assert (made.runner, made.captures) == ("beta", 3)
    assert made.why.startswith("alpha (")
    assert made.why.endswith("is in conflict: x has one too")
    assert made.next == LISTING


def test_if_none_serves_each_is_named_with_its_cause(installed):
    broken = PluginRecord("graph_runner", "gamma", "x", "1.0", "x_is_missing:Thing")
    installed(record("alpha", cls=Refusing), broken)
    why = graphs(graph_runner=None).why
    assert why.startswith("none can serve: alpha: no windows; ")
    assert "there is no module x_is_missing" in why


def test_what_a_person_switched_off_is_not_told_to_them(installed):
    installed(record("alpha", "disabled", "--disable names it"))
    made = graphs(graph_runner=None)
    assert (made.why, made.next) == ("none is installed and switched on", LISTING)
