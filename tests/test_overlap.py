"""What overlap is worth, in virtual time: the real engine takes as long per step as the model says.

`benchmarks/overlap_model.py` derives the formulas; nothing here is measured.
"""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TOLERANCE = 0.02


@pytest.fixture(scope="module")
def overlap():
    before, threads = set(sys.modules), torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("overlap_model")
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def steps_of(overlap, costs, *, sync):
    """The engine's time per step, by loop."""
    return {mode: overlap.simulated(costs, mode, sync=sync) for mode in overlap.MODES}


def costs_of(overlap, draw):
    """Anything, within reason: the writes as long as the forward, the host twice as long."""
    device = draw.choice([1_000.0, 10_000.0])
    writes = draw.choice([0.02, 0.3, 1.0]) * device * draw.random()
    host = [device * draw.choice([0.0, draw.random()]) for _ in range(3)]
    return overlap.Costs(device, writes, device * draw.random(), *host)


def test_the_engine_takes_as_long_as_the_model_says_over_the_grid(overlap):
    for costs in overlap.grid(quick=True):
        for row in overlap.compared(costs):
            assert abs(row["off"]) < TOLERANCE, (row, costs)


@pytest.mark.parametrize("seed", range(12))
def test_the_engine_takes_as_long_as_the_model_says_whatever_things_cost(overlap, seed):
    costs = costs_of(overlap, random.Random(seed))
    for row in overlap.compared(costs):
        assert abs(row["off"]) < TOLERANCE, (row, costs)


@pytest.mark.parametrize("sync", [False, True])
def test_a_fine_fence_is_never_slower_than_a_coarse_one_nor_that_than_no_overlap(overlap, sync):
    for seed in range(6):
        steps = steps_of(overlap, costs_of(overlap, random.Random(seed)), sync=sync)
        assert steps["fine"] <= steps["coarse"] + 1e-6
        assert steps["coarse"] <= steps["normal"] + 1e-6


def test_a_fine_fence_hides_the_writes(overlap):
    steps = steps_of(overlap, overlap.Costs.split(10_000, 3_000, 200), sync=False)
    assert steps == pytest.approx({"normal": 13_000, "coarse": 10_200, "fine": 10_000})


def test_under_a_sync_a_coarse_fence_keeps_the_host_from_launching_ahead(overlap):
    """The host's 900 us between the writes and the launch are in every step, too."""
    steps = steps_of(overlap, overlap.Costs.split(10_000, 3_000, 200), sync=True)
    assert steps == pytest.approx({"normal": 13_200, "coarse": 11_100, "fine": 10_000})


def test_reads_that_last_as_long_as_the_forward_leave_nothing_to_gain(overlap):
    costs = overlap.Costs.split(10_000, 3_000, 200, reads=1.0)
    steps = steps_of(overlap, costs, sync=True)
    assert steps["fine"] == pytest.approx(steps["coarse"])


def test_a_host_slower_than_the_device_sets_the_pace_whatever_the_fence(overlap):
    steps = steps_of(overlap, overlap.Costs.split(10_000, 15_000, 200), sync=False)
    assert steps["fine"] == steps["coarse"] == pytest.approx(15_000)
