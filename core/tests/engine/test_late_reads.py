"""A backend that reads later than it says: seeded schedules find it, and never an honest one.

A late read matters because the scheduler takes a row back with the last launch of its request,
while that launch still reads it and its result still counts.
"""

from __future__ import annotations

import random

import pytest
import torch
from parts import all_is_free, engine
from toys import Inside, Late, Replaying, RowMajor, ToyTokenizer

import warcore.runner
from warcore import SamplingParams, SharedReadEnds
from warcore.device.host import HostDevice

SEEDS = 100
SIZES = {"max_running_requests": 3, "kv_pages": 10, "context_length": 32, "prefill_chunk": 6}


class Lying(Late):
    """Reads in the body, and says that it does not."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY


class Watching(Lying):
    """Counts the reads in the body that differ from what the declared place would have read."""

    changed = 0

    def init_forward_metadata_out_graph(self, batch):
        self.early = self.ctx.shared.req_to_token.index_select(0, batch.rows).long()

    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        type(self).changed += not torch.equal(self.early, self.slots(batch))
        return out


def workload(seed):
    """Prompts that come and go, so that rows change hands."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 14) for _ in range(10)]
    prompts = ["".join(draw.choices(ToyTokenizer.alphabet, k=length)) for length in lengths]
    return prompts, [
        SamplingParams(max_new_tokens=draw.randint(1, 9), ignore_eos=True) for _ in prompts
    ]


def right(seed):
    with engine(loop="normal", max_running_requests=1) as alone:
        return [output.output_ids for output in alone.generate(*workload(seed), raw=True)]


def under(seed, backend, **config):
    """The workload of a seed under the schedule of that seed."""
    with engine(host=f"seeded:{seed}", backend=backend, **SIZES, **config) as running:
        outputs = running.generate(*workload(seed), raw=True)
        assert all_is_free(running)
        return [output.output_ids for output in outputs]


def test_some_seed_shows_the_lie_in_the_tokens():
    assert any(under(seed, Lying) != right(seed) for seed in range(SEEDS))


@pytest.mark.parametrize("backend", [RowMajor, Inside, Late])
def test_no_seed_shows_anything_for_an_honest_backend(backend):
    for seed in range(30):
        assert under(seed, backend) == right(seed), f"seed {seed}"


def test_a_coarse_fence_makes_the_lie_harmless():
    for seed in range(30):
        assert under(seed, Lying, fence="coarse") == right(seed), f"seed {seed}"


def test_some_seed_shows_the_late_read_itself():
    Watching.changed = 0
    assert any(under(seed, Watching) and Watching.changed for seed in range(SEEDS))


def test_in_the_normal_loop_nothing_is_rewritten_under_a_read():
    Watching.changed = 0
    for seed in range(5):
        under(seed, Watching, loop="normal")
    assert Watching.changed == 0


# ---- the same in graphs --------------------------------------------------------------------------


class Markerless(HostDevice):
    """Its graphs hold no events."""

    def __init__(self, mode, seed):
        super().__init__(mode, seed)
        self.supports_external_events = False


def replayed(seed, backend, **config):
    """As `under`, with every decode replayed, on a device without markers."""
    device = Markerless("seeded", seed)
    given = {"backend": backend, "graph_runner": Replaying, **SIZES, **config}
    with engine(device=device, **given) as running:
        outputs = running.generate(*workload(seed), raw=True)
        assert running.stats()["graphs"]["replays"]
        return [output.output_ids for output in outputs]


@pytest.mark.parametrize("backend", [RowMajor, Inside, Late])
def test_no_seed_shows_anything_for_an_honest_backend_in_graphs(backend):
    for seed in range(12):
        assert under(seed, backend, graph_runner=Replaying) == right(seed), f"seed {seed}"


def test_some_seed_shows_a_lie_in_a_graph():
    assert any(under(seed, Lying, graph_runner=Replaying) != right(seed) for seed in range(SEEDS))


def test_no_seed_shows_anything_where_graphs_have_no_marker():
    for seed in range(12):
        assert replayed(seed, Inside) == right(seed), f"seed {seed}"


def test_fencing_a_graph_without_a_marker_at_its_front_is_too_early(monkeypatch):
    """The in-graph metadata still reads: some seed shows it in the tokens."""
    monkeypatch.setattr(warcore.runner, "resolve", lambda *_, **__: SharedReadEnds.PRE_REPLAY)
    assert any(replayed(seed, Inside) != right(seed) for seed in range(SEEDS))
