"""A backend that says per batch where the reads of a prefill end: whole engines, fences and text.

The cases are those of its table in the README of `plugins/backends/deepseek_v4`.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from drafters import Half, Model, Remembers, Staging, Tree
from parts import TABLES, all_is_free, batch_of, engine, fences, named
from windowed import Unmapped, Windowed, WindowModel

import warcore_backend_deepseek_v4.backend as module
from warcore import AttentionSpec, ForwardMode, GraphKind, SamplingParams, SharedReadEnds, testkit
from warcore.gates import prefill_gates
from warcore.hooks import read_scope
from warcore.scope import EngineScope
from warcore_backend_deepseek_v4 import DeepseekV4, Options

THRESHOLD = 8
PROMPTS = ["abc", "abcdefghijklmnopqrstu", "hello there", "b" * THRESHOLD, "c" * (THRESHOLD + 1)]
PARAMS = SamplingParams(max_new_tokens=14, ignore_eos=True)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def serving(**config):
    """An engine of the toy model with windows."""
    options = {"deepseek_v4.sparse_above": str(THRESHOLD), **config.pop("options", {})}
    given = {"backend": "deepseek_v4", "options": options, "context_length": 40, **config}
    return engine(model=Windowed, **given)


@cache
def right(prompt):
    """The tokens of a backend that keeps whole sequences, one step after the other."""
    with engine(model=Windowed, backend=Unmapped, loop="normal", context_length=40) as alone:
        return alone.generate(prompt, PARAMS, raw=True)[0].output_ids


def answers(running, prompts):
    """They must be right, and leave nothing behind."""
    outputs = running.generate(prompts, PARAMS, raw=True)
    while running.has_work:
        running.step()
    assert all_is_free(running)
    assert [output.error for output in outputs] == [None] * len(prompts)
    assert [output.output_ids for output in outputs] == [right(prompt) for prompt in prompts]


def extends(running):
    """{reason: count} of the prefills' fences."""
    return {reason: n for (mode, reason), n in fences(running).items() if mode == "extend"}


@pytest.fixture
def caches(monkeypatch):
    """The chunk caches that are built; `broken` holds the numbers of those that raise."""

    class Counting(module.ChunkCache):
        built, broken = [], set()

        def __init__(self, *args):
            super().__init__(*args)
            self.built.append(self)
            if len(self.built) in self.broken:
                raise RuntimeError("no memory today")

    monkeypatch.setattr(module, "ChunkCache", Counting)
    return Counting


# ---- the snapshot, case by case ------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "built"), [(1, 0), (THRESHOLD, 0), (THRESHOLD + 1, 1)])
def test_a_prefill_is_fine_and_above_the_threshold_its_cache_is_built_once(tokens, built, caches):
    with serving() as running:
        answers(running, ["c" * tokens])
        assert extends(running) == {"fine": 1}
    assert len(caches.built) == built


def test_a_build_that_fails_costs_the_overlap_of_its_step_and_nothing_else(caches):
    caches.broken = {1}
    prompt = PROMPTS[1]
    with serving(max_running_requests=1) as running:
        answers(running, [prompt, prompt])
        assert extends(running) == {"snapshot_error": 1, "fine": 1}
    # The second one is that of the first layer.
    assert len(caches.built) == 3


def test_a_build_that_fails_in_the_layer_too_fails_its_step_alone(caches):
    caches.broken = {1, 2}
    with serving(max_running_requests=1) as running:
        outputs = running.generate([PROMPTS[1], PROMPTS[2]], PARAMS, raw=True)
        assert "no memory today" in outputs[0].error
        assert outputs[1].output_ids == right(PROMPTS[2])


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"prefill_read_done": False}, "disabled"), ({"fence": "coarse"}, "forced_coarse")],
)
def test_where_nobody_calls_the_hook_the_first_layer_builds(config, reason, caches):
    with serving(**config, max_running_requests=1) as running:
        answers(running, [PROMPTS[1]])
        assert extends(running) == {reason: 1}
    assert len(caches.built) == 1


@pytest.mark.parametrize(("stagers", "reason"), [([], "no_stager"), ([Staging], "fine")])
def test_with_a_later_reader_the_snapshot_still_counts_and_the_stager_decides(
    stagers, reason, caches
):
    drafts = {"spec_algo": WindowDraft, "spec_tokens": 2, "stagers": stagers}
    with serving(**drafts, max_running_requests=1) as running:
        answers(running, [PROMPTS[1]])
        assert extends(running) == {reason: 1}
    # One for the target, and one for the draft, which the stager or else its first layer builds.
    assert len(caches.built) == 2


@pytest.mark.parametrize(("tokens", "built"), [(THRESHOLD // 2 + 1, 1), (THRESHOLD // 2, 0)])
def test_a_replayed_prefill_is_judged_by_the_tokens_of_its_bucket(tokens, built, caches):
    buckets = {"graph_buckets": (1,), "graph_prefill_buckets": (THRESHOLD // 2, THRESHOLD + 2)}
    with serving(graph_runner="breakable", **buckets) as running:
        caches.built.clear()  # captures have theirs
        answers(running, ["c" * tokens])
        assert extends(running) == {"fine": 1}
        assert running.stats()["graphs"]["replays"] == running.stats()["steps"]
    assert len(caches.built) == built


# ---- verifies ------------------------------------------------------------------------------------


class WindowDraft(Half):
    """Drafts with a model that has windows, too."""

    @staticmethod
    def model(ctx):
        return WindowModel(ctx.spec.dtype)


DRAFTS = {
    "relay": {"spec_algo": Remembers, "spec_tokens": 5},
    "model": {"spec_algo": Model, "spec_tokens": 2, "stagers": [Staging]},
    "windows": {"spec_algo": WindowDraft, "spec_tokens": 3},
    "trees": {"spec_algo": Tree, "spec_topk": 2, "spec_tokens": 4},
}


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("runner", ["none", "full", "breakable"])
def test_drafts_change_no_text_under_any_graph(drafts, runner):
    sizes = {"max_running_requests": 3, "prefill_chunk": 10}
    if runner != "none":
        sizes["graph_buckets"] = (1, 3)
    with serving(graph_runner=runner, host="seeded:3", **DRAFTS[drafts], **sizes) as running:
        answers(running, PROMPTS)
        told = fences(running)
        replays = running.stats()["graphs"]["replays"] if runner != "none" else 0
    assert {reason for (mode, reason), _ in told.items() if mode != "extend"} == {"fine"}
    assert bool(replays) is (runner != "none")


# ---- the decision tables -------------------------------------------------------------------------

SPEC = AttentionSpec(
    q_heads=2,
    kv_heads=1,
    head_dim=8,
    dtype=torch.float64,
    kv_dtype=torch.float64,
    page_size=4,
    max_context=32,
    windows=frozenset({None, 4}),
    tree=False,
    device=torch.device("cpu"),
    role="target",
)


def backend(graph=GraphKind.NONE, **options):
    options = Options(**options)
    return DeepseekV4(testkit.context(SPEC, DeepseekV4, graph=graph, options=options))


HOW = {"PRE_REPLAY": (0, 100), "snapshot_raises": (0,)}
"""How reads of its prefills may end, and with which thresholds: a dense step builds nothing."""
GATES = [(row, above) for row in TABLES["prefill_gates"] for above in HOW.get(row["read_end"], ())]


@pytest.mark.parametrize(
    ("row", "above"), GATES, ids=[f"{named(row)} above {above}" for row, above in GATES]
)
def test_the_gates_with_this_backend_say_what_the_table_says(row, above, caches):
    if row["read_end"] == "snapshot_raises":
        caches.broken = {1}
    answers = {"true": lambda _: True, "false": lambda _: False, "one": lambda _: 1}
    stagers = tuple((word, answers.get(word, _raises)) for word in row["stagers"])
    scope = read_scope("deepseek_v4", plugin := backend(sparse_above=above))
    later = EngineScope(later_prefill_reader=row["later_prefill_reader"], stagers=stagers)
    batch = batch_of(ForwardMode[row["mode"]], tokens=3)
    plugin.init_forward_metadata_out_graph(batch)
    reason, _ = prefill_gates(batch, 3, scope, later, enabled=row["prefill_read_done"])
    assert reason.value == row["expect"]
    assert bool(caches.built) is (row["snapshot_called"] and not above)


def _raises(batch):
    raise RuntimeError("nothing was staged")


@pytest.mark.parametrize("graph", GraphKind, ids=lambda kind: kind.name)
def test_its_votes_are_the_latest_of_the_base_class_s_but_for_what_only_it_can_know(graph):
    votes = read_scope("deepseek_v4", backend(graph)).ends
    late = graph is GraphKind.BREAKABLE
    table = {row["mode"]: row["expect"] for row in TABLES["base_votes"]}
    table["DRAFT_EXTEND"] = "IN_REPLAY"
    table["TARGET_VERIFY"] = "POST_REPLAY" if late else "IN_REPLAY"
    assert votes == {ForwardMode[mode]: SharedReadEnds[end] for mode, end in table.items()}


# ---- together with another backend ---------------------------------------------------------------


@pytest.mark.parametrize(
    "halves", [("deepseek_v4", "torch_native"), ("torch_native", "deepseek_v4")]
)
@pytest.mark.parametrize("runner", ["none", "full"])
def test_either_half_of_a_hybrid_gives_the_same_text(halves, runner):
    prefill, decode = halves
    both = {"backend": None, "prefill_backend": prefill, "decode_backend": decode}
    with serving(**both, graph_runner=runner, prefill_chunk=10) as running:
        answers(running, PROMPTS)
        assert set(extends(running)) == {"fine"}
