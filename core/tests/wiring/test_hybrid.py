"""Two backends as one: each serves its half, and answers for it."""

from __future__ import annotations

import attrs
import pytest
import torch
from drafters import Half
from parts import configured, engine, fences
from toys import PREFILLS, Inside, Late, Replaying, RowMajor
from wrong_plugins.backends.right import InGraph, Right

from warcore import (
    AttentionBackend,
    FencePlan,
    ForwardMode,
    NoOptions,
    PluginRecord,
    SamplingParams,
    SharedReadEnds,
    TensorSpec,
    WiringError,
)
from warcore.errors import ConfigError
from warcore.hybrid import hybrid_of
from warcore.testkit.runs.check import checks_of
from warcore.testkit.subject import Subject

PROMPTS = ["hello there", "a", "sixsix and seven more of it"]
LONG = SamplingParams(max_new_tokens=20)


@pytest.fixture(scope="module")
def right():
    with engine() as running:
        return [o.output_ids for o in running.generate(PROMPTS, LONG)]


@pytest.mark.parametrize("graphs", [{}, {"graph_runner": Replaying, "graph_positions": 4096}])
@pytest.mark.parametrize(
    ("prefill", "decode", "extend"),
    [(RowMajor, Inside, "fine"), (Late, Inside, "not_pre_replay"), (RowMajor, RowMajor, "fine")],
)
def test_each_half_is_served_and_fenced_by_its_own_backend(prefill, decode, extend, graphs, right):
    with engine(backend=None, prefill_backend=prefill, decode_backend=decode, **graphs) as running:
        assert [o.output_ids for o in running.generate(PROMPTS, LONG)] == right
        assert fences(running).keys() == {("extend", extend), ("decode", "fine")}
        assert running.describe()["backend"] == f"{prefill.__name__}+{decode.__name__}"


def test_its_votes_are_those_of_the_child_that_serves():
    with engine(backend=None, prefill_backend=Late, decode_backend=Inside) as running:
        both = running._assembly.runner._backend
        for mode in ForwardMode:
            child = both.prefill if mode in PREFILLS else both.decode
            assert both.shared_read_ends(mode) is child.shared_read_ends(mode)


def test_a_draft_is_served_by_two_backends_too(right):
    halves = {"backend": None, "prefill_backend": RowMajor, "decode_backend": Inside}
    with engine(spec_algo=Half, context_length=48, **halves) as running:
        assert [o.output_ids for o in running.generate(PROMPTS, LONG)] == right


@pytest.mark.parametrize(
    "check", [c for c in checks_of("backend") if c.name == "backend.composite"]
)
def test_the_kit_agrees_that_it_speaks_for_nobody(check):
    cls = hybrid_of(Right, InGraph)
    options = {"prefill": NoOptions(), "decode": NoOptions()}
    check.run(attrs.evolve(Subject(PluginRecord.of_class("backend", cls), cls), options=options))


# ---- options and page sizes ----------------------------------------------------------------------


@attrs.frozen
class Sizes:
    size: int = 1


class Tunable(RowMajor):
    Options = Sizes


class Of8(RowMajor):
    page_sizes = frozenset({8, 16})


class Of16(RowMajor):
    page_sizes = frozenset({16, 32})


class Of64(RowMajor):
    page_sizes = frozenset({64})


class Other(RowMajor):
    @classmethod
    def kv_cache(cls, spec):
        return {"k": TensorSpec((spec.page_size, 3), torch.int8)}


def halves(prefill, decode, **more):
    return engine(backend=None, prefill_backend=prefill, decode_backend=decode, **more)


def test_each_child_gets_its_own_options():
    with halves(Tunable, RowMajor, options={"Tunable.size": "3"}) as running:
        backend = running._assembly.wired.backend
        assert (backend.prefill.ctx.options, backend.decode.ctx.options) == (
            Sizes(3),
            NoOptions(),
        )
    with halves(Tunable, Tunable, options={"Tunable.size": "4"}) as running:
        assert running._assembly.wired.backend.decode.ctx.options == Sizes(4)


def test_pages_are_of_a_size_that_both_can_serve():
    with halves(Of8, Of16, page_size=None) as running:
        assert running.describe()["page_size"] == 16


@pytest.mark.parametrize(
    ("prefill", "decode", "match"),
    [
        (Of8, Of64, "no page size in common"),
        (RowMajor, Other, "keep keys and values in different forms"),
    ],
)
def test_what_cannot_serve_together_is_refused(prefill, decode, match):
    with pytest.raises(WiringError, match=match) as raised:
        halves(prefill, decode, page_size=None)
    assert raised.value.next


@pytest.mark.parametrize(
    "config",
    [
        {"prefill_backend": RowMajor, "backend": None},
        {"prefill_backend": RowMajor, "decode_backend": Inside},
    ],
)
def test_half_a_hybrid_and_a_third_backend_are_refused(config):
    with pytest.raises(ConfigError, match="stands for half of the steps"):
        engine(**config)


def test_the_plan_shows_both():

    made = FencePlan.of(configured(backend=None, prefill_backend=RowMajor, decode_backend=Inside))
    assert {step.mode: step.records_at for step in made.steps} == {
        ForwardMode.EXTEND: SharedReadEnds.PRE_REPLAY,
        ForwardMode.DECODE: SharedReadEnds.IN_REPLAY,
    }


class PerBatch(RowMajor):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        return SharedReadEnds.PRE_REPLAY


@pytest.mark.parametrize(
    ("prefill", "decode", "fence"),
    [(RowMajor, PerBatch, "fine"), (PerBatch, RowMajor, "per batch")],
)
def test_it_decides_for_each_prefill_if_the_prefill_child_does(prefill, decode, fence):
    made = FencePlan.of(configured(backend=None, prefill_backend=prefill, decode_backend=decode))
    (votes,) = made.votes
    assert votes.snapshot is (prefill is PerBatch)
    assert {step.fence for step in made.steps if step.mode is ForwardMode.EXTEND} == {fence}


class Misspelt(Late):
    """Would have its layers' reads declared, had it found the name."""

    shared_read_ends = AttentionBackend.shared_read_ends

    def shared_reads_end(self, forward_mode):
        return SharedReadEnds.POST_REPLAY


@pytest.mark.parametrize("half", ["prefill_backend", "decode_backend"])
def test_a_child_is_read_as_strictly_as_a_backend_of_its_own(half):
    halves = {"prefill_backend": RowMajor, "decode_backend": RowMajor, half: Misspelt}
    with pytest.raises(WiringError, match="Misspelt: shared_reads_end looks like the hook"):
        engine(backend=None, **halves)


class TakesLess(RowMajor):
    def prepare_prefill_shared_read_snapshot(self, forward_batch):
        return SharedReadEnds.PRE_REPLAY


class TakesThemTheOtherWayRound(RowMajor):
    def prepare_prefill_shared_read_snapshot(self, num_qo_tokens, forward_batch):
        assert isinstance(num_qo_tokens, int)
        return SharedReadEnds.PRE_REPLAY


@pytest.mark.parametrize("child", [TakesLess, TakesThemTheOtherWayRound])
def test_a_child_gets_the_arguments_that_it_names(child, right):
    with engine(backend=None, prefill_backend=child, decode_backend=RowMajor) as running:
        assert [o.output_ids for o in running.generate(PROMPTS, LONG)] == right
        assert fences(running).keys() == {("extend", "fine"), ("decode", "fine")}
