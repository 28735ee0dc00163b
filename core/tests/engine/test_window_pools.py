"""Layers with a window have a pool of their own: the text is that of one pool for all layers.

The map from one pool to the other is rewritten while its requests run. A backend that reads it
later than it says shows that in the text of some seed, and never one that is honest.
"""

from __future__ import annotations

import random

import pytest
import torch
from drafters import Half, Model, Remembers, Staging, Tree
from parts import all_is_free, engine
from toys import Replaying, ToyTokenizer
from windowed import (
    LateMap,
    LateMapInPrefills,
    Mapped,
    MappedInside,
    MappedLate,
    Unmapped,
    Windowed,
    WindowModel,
)

from warcore import SamplingParams
from warcore.testkit.engines.enginetouches import FULL_TO_SWA, watch_races

SEEDS = 100
SIZES = {"max_running_requests": 3, "kv_pages": 20, "context_length": 40, "prefill_chunk": 6}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def workload(seed):
    """Prompts that come and go, most of them longer than the window."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 22) for _ in range(8)]
    prompts = ["".join(draw.choices(ToyTokenizer.alphabet, k=length)) for length in lengths]
    return prompts, [
        SamplingParams(max_new_tokens=draw.randint(1, 14), ignore_eos=True) for _ in prompts
    ]


def right(seed):
    config = {"loop": "normal", "max_running_requests": 1, "backend": Unmapped}
    with engine(model=Windowed, **config) as alone:
        assert alone._assembly.wired.shared.tables.full_to_swa is None
        return [output.output_ids for output in alone.generate(*workload(seed), raw=True)]


def under(seed, backend=None, **config):
    """The workload of a seed under the schedule of that seed."""
    given = {"host": f"seeded:{seed}", "backend": backend, **SIZES, **config}
    with engine(model=Windowed, **given) as running:
        assert running._assembly.wired.shared.tables.full_to_swa is not None
        outputs = running.generate(*workload(seed), raw=True)
        while running.has_work:
            running.step()
        assert all_is_free(running)
        return [output.output_ids for output in outputs]


HONEST = [
    {"backend": Mapped},
    {"backend": MappedInside},
    {"backend": MappedLate},
    {"backend": None, "prefill_backend": MappedLate, "decode_backend": MappedInside},
]


def named(config):
    return " ".join(cls.__name__ for cls in config.values() if cls)


@pytest.mark.parametrize("config", HONEST, ids=named)
@pytest.mark.parametrize("runner", ["none", Replaying], ids=["eager", "graphs"])
def test_no_seed_shows_anything_for_an_honest_backend(config, runner):
    for seed in range(12):
        assert under(seed, graph_runner=runner, **config) == right(seed), f"seed {seed}"


@pytest.mark.parametrize("backend", [LateMap, LateMapInPrefills])
@pytest.mark.parametrize("runner", ["none", Replaying], ids=["eager", "graphs"])
def test_some_seed_shows_a_map_that_is_read_too_late(backend, runner):
    assert any(under(seed, backend, graph_runner=runner) != right(seed) for seed in range(SEEDS))


def alone(seed, backend):
    """One request that nobody follows: its rows and pages are nobody else's at any time."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    config = {**SIZES, "host": f"seeded:{seed}", "backend": backend, "max_running_requests": 1}
    with engine(model=Windowed, **config) as running:
        return running.generate("abcdefghijklmnopqrstuvw", params)[0].output_ids


def test_the_map_of_a_running_request_is_rewritten_under_a_late_read():
    owed = alone(0, Unmapped)
    assert any(alone(seed, LateMap) != owed for seed in range(SEEDS))
    assert all(alone(seed, Mapped) == owed for seed in range(12))


def test_a_coarse_fence_makes_the_late_map_harmless():
    for seed in range(12):
        assert under(seed, LateMap, fence="coarse") == right(seed), f"seed {seed}"


def test_chunks_mixing_and_few_pages_change_nothing():
    for seed in range(12):
        config = {"mixed": seed % 2 == 0, "kv_pages": 10, "prefill_chunk": 3, "page_size": 4}
        assert under(seed, Mapped, **config) == right(seed), f"seed {seed}"


def test_a_request_alone_that_outlives_many_windows():
    long = SamplingParams(max_new_tokens=50, ignore_eos=True)
    texts = []
    for backend in (Unmapped, Mapped):
        with engine(model=Windowed, backend=backend, page_size=1) as running:
            texts.append(running.generate("abcdefghij", long)[0].output_ids)
            assert all_is_free(running)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 50


# ---- speculation ---------------------------------------------------------------------------------


class WindowDraft(Half):
    """Drafts with a model that has windows, too."""

    @staticmethod
    def model(ctx):
        return WindowModel(ctx.spec.dtype)


class WindowTree(Tree):
    @staticmethod
    def model(ctx):
        model = Half.model(ctx)
        windowed = WindowModel(ctx.spec.dtype)
        windowed.head = model.head
        return windowed


DRAFTS = [
    {"spec_algo": Remembers, "spec_tokens": 5},
    {"spec_algo": Model, "spec_tokens": 2, "stagers": [Staging]},
    {"spec_algo": WindowDraft, "spec_tokens": 3},
    {"spec_algo": WindowTree, "spec_topk": 2, "spec_tokens": 4},
]


@pytest.mark.parametrize("drafts", DRAFTS, ids=lambda drafts: drafts["spec_algo"].__name__)
def test_drafts_are_written_behind_the_map_and_their_branch_is_compacted_there(drafts):
    for seed in range(8):
        assert under(seed, Mapped, **drafts) == right(seed), f"seed {seed}"


def test_a_draft_keeps_whole_sequences():
    config = {"model": Windowed, "backend": Mapped, "spec_algo": WindowDraft, **SIZES}
    with engine(**config) as running:
        step = running._assembly.scheduler.launcher._step
        (draft,) = step._drafting.drafts
        assert draft._backend.ctx.shared.full_to_swa is None
        assert {len(layer["k"]) for layer in draft._backend.ctx.kv} == {SIZES["kv_pages"] + 1}


# ---- the race detector ---------------------------------------------------------------------------


def races(backend, seed):
    """What races for the map, where `backend` says what it reads of it."""

    class Telling(backend):
        def translate(self, batch):
            size = self.ctx.shared.full_to_swa.nbytes
            detector.touch(FULL_TO_SWA, "read", 0, size, operation="translate")
            super().translate(batch)

    with (
        engine(model=Windowed, backend=Telling, host=f"seeded:{seed}", **SIZES) as running,
        watch_races(running) as detector,
    ):
        running.generate(*workload(seed), raw=True)
        return [race for race in detector.races if race.buffer == FULL_TO_SWA]


def test_the_scheduler_rewrites_the_map_behind_the_barrier():
    assert not any(races(backend, seed) for seed in range(4) for backend in (Mapped, MappedLate))


def test_a_late_read_of_the_map_races_with_its_rewriting():
    assert races(LateMap, 1)
