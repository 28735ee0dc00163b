"""The two loops: what they call, in which order, row by row of the tables."""

from __future__ import annotations

import pytest
from parts import TABLES, engine, named

from warcore import SamplingParams
from warcore.scheduler import Scheduler, normal_loop, overlap_loop

LOOPS = {"overlap": overlap_loop, "normal": normal_loop}


class Core:
    """Stands where the Scheduler does, and logs what a loop asks of it."""

    def __init__(self, batches):
        self.batches = iter(batches)
        self.in_flight = None
        self.log = []

    def next_batch(self):
        return next(self.batches)

    def launch(self, batch, *, fenced=True):
        self.fenced = fenced
        self.log.append(f"run {batch}")
        return batch

    def barrier(self, launch):
        assert launch == self.log[-1].removeprefix("run ")
        self.log.append("barrier")

    def collect(self, launch):
        self.log.append(f"collect {launch}")


def test_the_core_that_logs_has_what_a_scheduler_has():
    for name in ("next_batch", "launch", "barrier", "collect"):
        assert callable(getattr(Scheduler, name))


@pytest.mark.parametrize("row", TABLES["loop"], ids=named)
def test_a_loop_runs_barriers_and_collects_in_this_order(row):
    core = Core([*row["batches"], None])
    for _ in range(len(row["batches"]) + 1):
        LOOPS[row["loop"]](core)
    assert core.log == row["expect"]
    assert core.in_flight is None
    assert core.fenced == (row["loop"] == "overlap")


@pytest.mark.parametrize("host", ["inline", "threads", "seeded:2"])
def test_at_most_two_launches_are_in_flight(monkeypatch, host):
    launch, collect = Scheduler.launch, Scheduler.collect
    flying, most = set(), []

    def launching(self, *args, **kwargs):
        launched = launch(self, *args, **kwargs)
        flying.add(launched)
        most.append(len(flying))
        return launched

    def collecting(self, launched):
        collect(self, launched)
        flying.remove(launched)

    monkeypatch.setattr(Scheduler, "launch", launching)
    monkeypatch.setattr(Scheduler, "collect", collecting)
    with engine(host=host) as running:
        running.generate(["one", "two", "three"], SamplingParams(max_new_tokens=9))
    assert max(most) == 2
    assert not flying
