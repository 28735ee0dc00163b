"""Whole runs over guarded tables: silent where nobody reads late, and loud where somebody does."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import toys
from parts import all_is_free, engine, fences

from warcore import SamplingParams, SharedReadEnds
from warcore.device.host import host_device
from warcore.testkit.detectors.guard import PageGuard, supported

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

PROMPTS = ["a few words", "more", "and some that fill a page or two", "x"]


class Closing(toys.RowMajor):
    """Closes the tables where its reads have ended, and opens them at the end of its last layer."""

    guard: PageGuard

    def __init__(self, ctx):
        super().__init__(ctx)
        self.window = self.guard.window("forward")

    def forward(self, q, k, v, layer, batch):
        if layer.index == 0:
            self.window.close()
        try:
            return self.attend(q, k, v, layer, batch)
        finally:
            if layer.index == len(toys.LAYERS) - 1:
                self.window.open()

    def attend(self, q, k, v, layer, batch):
        return super().forward(q, k, v, layer, batch)


class Liar(Closing):
    """Says that its reads end before the layers, and looks at a length in the last of them."""

    def attend(self, q, k, v, layer, batch):
        if layer.index == len(toys.LAYERS) - 1:
            self.ctx.shared.req_to_token[batch.rows, 0].tolist()
        return super().attend(q, k, v, layer, batch)


def tokens_of(engine):
    outputs = engine.generate(PROMPTS, SamplingParams(max_new_tokens=12, ignore_eos=True), raw=True)
    assert all_is_free(engine)
    return [output.output_ids for output in outputs]


@pytest.fixture
def expected():
    with engine() as plain:
        return tokens_of(plain)


@pytest.fixture(params=["inline", "threads", "seeded:5"])
def device(request):
    with host_device(request.param) as device:
        yield device


@contextmanager
def guarded(device, guard, **more):
    device.memory = guard.allocate
    with device.watched_by(guard.whereabouts), engine(device=device, **more) as running:
        yield running


@pytest.mark.parametrize("graph_runner", ["none", toys.Replaying])
def test_without_a_window_a_run_is_as_ever(device, graph_runner, expected):
    with (
        PageGuard() as guard,
        guarded(device, guard, graph_runner=graph_runner) as run,
    ):
        assert guard.name_of(run._assembly.scheduler.launcher._shared.tables.req_to_token)
        assert tokens_of(run) == expected
    assert not guard.faults
    assert not guard.stolen


@pytest.mark.parametrize("round_", range(3))
def test_writes_of_the_scheduler_raise_no_alarm_while_the_readers_view_is_closed(
    monkeypatch, device, expected, round_
):
    with PageGuard() as guard:
        monkeypatch.setattr(Closing, "guard", guard, raising=False)
        with guarded(device, guard, backend=Closing) as run:
            assert tokens_of(run) == expected
            assert ("decode", "fine") in {(m.lower(), r) for m, r in fences(run)}
    assert not guard.faults


def test_a_late_read_is_seen_and_the_run_goes_on(monkeypatch, device, expected):
    with PageGuard() as guard:
        monkeypatch.setattr(Closing, "guard", guard, raising=False)
        with guarded(device, guard, backend=Liar) as run:
            assert tokens_of(run) == expected
    assert Liar.shared_read_ends(None, None) is SharedReadEnds.PRE_REPLAY
    assert guard.faults
    assert {(f.buffer, f.kind, f.stream, f.phase) for f in guard.faults} == {
        ("req_to_token", "read", "forward", "body")
    }
