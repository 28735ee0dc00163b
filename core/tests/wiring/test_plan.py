"""The plan says ahead what the steps of an engine then do."""

from __future__ import annotations

import pytest
from drafters import Wrong
from parts import configured, engine, fences
from toys import PREFILLS, Inside, Late, Replaying, RowMajor, Toy

from warcore import (
    AttentionBackend,
    EngineConfig,
    FencePlan,
    ForwardMode,
    SamplingParams,
    SharedReadEnds,
    Stager,
    WiringError,
)
from warcore.device import Observer
from warcore.device.host import HostDevice
from warcore.fence import NEXT_STEP, FenceReason

DECODE, EXTEND, MIXED = ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.MIXED
TARGET_VERIFY = ForwardMode.TARGET_VERIFY
PRE, IN, POST = (SharedReadEnds[f"{word}_REPLAY"] for word in ("PRE", "IN", "POST"))
UNKNOWN = SharedReadEnds.UNKNOWN


class Unlooked(RowMajor):
    """Nobody has looked where it reads."""

    def shared_read_ends(self, forward_mode):
        return UNKNOWN


class Snapshotting(Late):
    """Would copy ahead what its layers read, batch by batch."""

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        return PRE if num_qo_tokens < 8 else None


class Drafting(Wrong):
    """Its draft reads after the target's prefill; the target owns every step."""

    later_prefill_reader = True


class Claiming(Drafting):
    later_prefill_reader = False

    def last_shared_read_runner(self, forward_batch):
        return None


class Reading(Wrong):
    """Reads for itself, and has not looked where."""

    def shared_read_ends(self, forward_mode):
        return UNKNOWN


class Copying(Stager):
    def stage(self, batch):
        return True


def plan(*, device=None, **config):
    return FencePlan.of(configured(**config), device=device)


def rows(made):
    """{(mode, runs as): planned fence}."""
    return {(step.mode, step.runs_as): step for step in made.steps}


def row(mode=DECODE, runs_as="eager", **more):
    return rows(plan(**more))[mode, runs_as]


# ---- what is planned is what happens -------------------------------------------------------------


PLACES = {"out_graph": PRE, "gates": PRE, "in_graph": IN, "body": POST}
"""Where a record stands that is made in a phase of an eager step."""


class Waits(Observer):
    """Which of a step's records the schedule stream waited for: (runs as, place)."""

    def __init__(self):
        self.seen = set()
        self.places = {}
        self.replayed = set()
        self.step, self.now = 0, ""

    def phase(self, stream, name):
        self.step += name == "inputs"
        self.now = name
        if name == "replay":
            self.replayed.add(self.step)

    def recorded(self, stream, ticket):
        if stream.name == "forward":
            place = PLACES.get(self.now)
            if self.now == "replay":
                place = IN if ticket.event.external else POST
            self.places[ticket] = self.step, place

    def waited(self, stream, ticket):
        if stream is not None and stream.name == "schedule" and ticket in self.places:
            step, place = self.places[ticket]
            self.seen.add(("graph" if step in self.replayed else "eager", place))


class Unmarked(HostDevice):
    """Has graphs, and no events inside them."""

    def __init__(self):
        super().__init__("inline")
        self.supports_external_events = False


GRAPHS = {"graph_runner": Replaying, "graph_buckets": (1, 2), "graph_prefill_buckets": (4,)}
RUNS = {
    "eager": {},
    "eager, in the metadata": {"backend": Inside},
    "eager, in the layers": {"backend": Late},
    "eager, unknown": {"backend": Unlooked},
    "mixed": {"mixed": True},
    "coarse": {"fence": "coarse", **GRAPHS},
    "prefills off": {"prefill_read_done": False},
    "graph": GRAPHS,
    "graph, in the metadata": {"backend": Inside, **GRAPHS},
    "graph, in the layers": {"backend": Late, **GRAPHS},
    "graph, unknown": {"backend": Unlooked, **GRAPHS},
    "graph and mixed": {"mixed": True, "backend": Inside, **GRAPHS},
    "graph without a marker": {"backend": Inside, "device": Unmarked, **GRAPHS},
    "graph without a marker, out of it": {"device": Unmarked, **GRAPHS},
    "an algorithm that reads": {"spec_algo": Reading, **GRAPHS},
    "nobody stages": {"spec_algo": Drafting},
    "somebody stages": {"spec_algo": Drafting, "stagers": [Copying]},
}


def given(config):
    """A config with a living device in place of its class."""
    made = dict(config)
    if "device" in made:
        made["device"] = made["device"]()
    return made


@pytest.mark.parametrize("config", RUNS.values(), ids=RUNS)
def test_every_fence_falls_as_planned(config):
    config = {"prefill_chunk": 12, **config}
    planned = plan(**given(config)).steps
    with engine(**given(config)) as running:
        waits = Waits()
        lengths = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (3, 7, 9, 11)]
        with running._assembly.device.watched_by(waits):
            running.generate(["abc", "a" * 13, "ab", "x" * 20], lengths, raw=True)
            running.generate("abc", lengths[0], raw=True)
        counted = fences(running)
    assert counted.keys() == {(step.mode.value, step.reason.value) for step in planned}
    assert waits.seen == {(step.runs_as, step.records_at) for step in planned}


def test_the_normal_loop_has_no_fence_and_counts_no_reason():
    steps = plan(loop="normal").steps
    assert {(s.fence, s.reason, s.recorded) for s in steps} == {("none", None, "nowhere")}
    assert {s.next for s in steps} == {"--loop overlap"}
    with engine(loop="normal") as running:
        running.generate("abc", SamplingParams(max_new_tokens=3), raw=True)
        assert fences(running) == {}


def test_the_plan_names_the_engine_as_the_engine_does():
    with engine(**GRAPHS) as running:
        assert plan(**GRAPHS).engine == running.describe()


# ---- which kinds of step -------------------------------------------------------------------------


def test_mixed_steps_are_planned_only_if_the_engine_mixes():
    assert rows(plan()).keys() == {(EXTEND, "eager"), (DECODE, "eager")}
    assert rows(plan(mixed=True)).keys() == {(EXTEND, "eager"), (DECODE, "eager"), (MIXED, "eager")}


class ByLength(RowMajor):
    """Tells captures apart by length, and would rather run long batches eagerly."""

    def graph_key(self, batch):
        return None if batch.max_seq_len > 40 else int(batch.max_seq_len > 16)


class Bucketed(ByLength):
    def graph_key(self, batch):
        return (batch.max_seq_len - 1) // 16


@pytest.mark.parametrize(
    ("config", "captured"),
    [
        ({}, {DECODE}),
        ({"graph_prefill_buckets": (2, 4)}, {DECODE, EXTEND}),
        ({"backend": ByLength}, {DECODE}),
        ({"graph_positions": 1}, set()),
        ({"graph_runner": "none"}, set()),
    ],
)
def test_a_mode_that_is_captured_runs_eagerly_too_where_no_capture_holds(config, captured):
    planned = rows(plan(**{"graph_runner": Replaying, **config}))
    assert {mode for mode, runs in planned if runs == "graph"} == captured
    for mode in (EXTEND, DECODE):
        rest = "whatever no capture holds" if mode in captured else "all"
        assert planned[mode, "eager"].batches == rest


def test_the_words_name_the_sizes_of_captured_prefills():
    planned = rows(plan(graph_runner=Replaying, graph_prefill_buckets=(2, 8), prefill_chunk=16))
    assert planned[EXTEND, "graph"].batches == "up to 8 prompt tokens, padded to 2, 8"


def test_the_words_tell_how_far_the_captures_reach():
    assert row(runs_as="graph", graph_runner=Replaying).batches == "up to 4 requests"
    near = row(runs_as="graph", graph_runner=Replaying, backend=Bucketed, graph_positions=64)
    assert near.batches == "up to 1 request of 64 tokens, 2 of 32, 4 of 16"


# ---- why there are no graphs: test_planned_graphs.py has the causes ------------------------------


def test_a_graph_runner_that_was_named_for_a_device_without_graphs_is_refused():
    device = HostDevice("inline")
    device.supports_graphs = False
    with pytest.raises(WiringError, match="has no graphs"):
        plan(graph_runner=Replaying, device=device)
    assert device.closed


# ---- who votes, who owns, who decides ------------------------------------------------------------


def test_an_undeclared_end_names_its_plugin_and_the_way_out():
    step = row(backend=Unlooked)
    assert (step.fence, step.reason, step.whose) == (
        "coarse",
        FenceReason.UNDECLARED,
        "backend:Unlooked",
    )
    assert step.recorded == "nowhere: undeclared"
    assert step.detail == "backend:Unlooked does not say where its reads end"
    assert step.next == NEXT_STEP[FenceReason.UNDECLARED]


def test_a_fine_fence_at_the_end_of_a_step_could_be_finer():
    step = row(backend=Late)
    assert (step.fence, step.recorded) == ("fine", "after the body")
    assert "backend:Late reads while its layers run" in step.detail
    assert "declare PRE_REPLAY or IN_REPLAY" in step.next


def test_without_a_marker_the_event_comes_after_the_replay_and_the_way_out_is_named():
    step = row(backend=Inside, runs_as="graph", device=Unmarked(), **GRAPHS)
    assert (step.latest_read, step.recorded) == (IN, "after the replay")
    assert step.next.startswith("--graph-runner none")


def test_a_runner_with_markers_of_its_own_may_lack_one():
    class Sometimes(Replaying):
        def marker(self, bucket):
            return None

    step = row(backend=Inside, runs_as="graph", graph_runner=Sometimes)
    assert step.fence == "fine"
    assert step.detail == "where Sometimes has no marker: after the replay"


def test_a_backend_that_takes_snapshots_decides_per_batch():
    step = row(EXTEND, backend=Snapshotting)
    assert (step.fence, step.reason, step.next) == ("per batch", None, None)
    assert step.detail == (
        "backend:Snapshotting decides for each batch; where it does not: not_pre_replay"
    )
    assert row(DECODE, backend=Snapshotting).fence == "fine"


def test_no_snapshot_can_make_up_for_another_reader():
    step = row(EXTEND, backend=Snapshotting, spec_algo=Reading)
    assert (step.fence, step.reason) == ("coarse", FenceReason.UNDECLARED)
    assert step.detail.startswith("spec_algo:Reading ")


@pytest.mark.parametrize("config", [{"prefill_read_done": False}, {"fence": "coarse"}])
def test_no_snapshot_opens_a_gate_that_is_shut_before_it(config):
    assert row(EXTEND, backend=Snapshotting, **config).fence == "coarse"


def test_a_later_reader_needs_a_stager_and_the_plan_says_which_one():
    assert row(EXTEND, spec_algo=Drafting).reason is FenceReason.NO_STAGER
    step = row(EXTEND, spec_algo=Drafting, stagers=[Copying])
    assert (step.fence, step.reason) == ("fine", FenceReason.FINE)
    assert step.detail == "as long as stager:Copying can copy ahead for the draft"


def test_the_target_owns_unless_an_algorithm_answers_for_itself():
    assert row(TARGET_VERIFY, spec_algo=Drafting).owner == "target"
    step = row(TARGET_VERIFY, spec_algo=Claiming)
    assert step.owner == "asked each step: spec_algo:Claiming"
    assert (step.fence, step.reason) == ("per batch", None)
    assert step.detail.endswith("if it is the target: fine")
    assert row(EXTEND, spec_algo=Claiming).owner == "target"


def test_every_reader_is_shown_with_its_votes():
    made = plan(backend=Snapshotting, spec_algo=Reading, stagers=[Copying])
    backend, algorithm = made.votes
    assert (backend.plugin, backend.snapshot) == ("backend:Snapshotting", True)
    assert set(backend.ends.values()) == {POST}
    assert (algorithm.plugin, algorithm.snapshot) == ("spec_algo:Reading", False)
    assert set(algorithm.ends) == set(ForwardMode)
    assert made.stagers == ("stager:Copying",)


# ---- what it costs -------------------------------------------------------------------------------


class Weightless(Toy):
    @classmethod
    def load(cls, ref, ctx):
        raise AssertionError("weights were loaded")


def test_nothing_is_loaded_or_captured_and_the_cache_is_one_page():
    pages = set()

    class Counting(RowMajor):
        def __init__(self, ctx):
            super().__init__(ctx)
            pages.update(memory.shape[0] for layer in ctx.kv for memory in layer.values())

    class Idle(Replaying):
        def __init__(self, ctx):
            raise AssertionError("a graph runner was built")

    made = plan(model=Weightless, backend=Counting, graph_runner=Idle)
    assert pages == {1}
    assert made.engine["kv_pages"] == 64
    assert (DECODE, "graph") in rows(made)


def test_a_backend_that_only_votes_can_be_planned():
    class Voting(AttentionBackend):
        def shared_read_ends(self, forward_mode):
            return UNKNOWN if forward_mode in PREFILLS else PRE

        def forward(self, q, k, v, layer, batch): ...

    made = FencePlan.of(EngineConfig(model=Toy, backend=Voting, device="host"))
    assert rows(made)[EXTEND, "eager"].fence == "coarse"
    assert {step.fence for step in made.steps if step.mode is DECODE} == {"fine"}


@pytest.mark.parametrize("backend", [RowMajor, "missing"])
def test_the_device_is_closed_whatever_happens(backend):
    device = HostDevice("inline")
    if backend == "missing":
        with pytest.raises(Exception, match="missing"):
            plan(backend=backend, device=device)
    else:
        plan(backend=backend, device=device)
    assert device.closed


def test_a_plan_is_frozen():
    with pytest.raises(AttributeError):
        plan().graphs = "full"
