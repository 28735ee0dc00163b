"""The prefill gates, row by row: the function alone, and through a ModelRunner."""

from __future__ import annotations

from contextlib import contextmanager

import attrs
import pytest
from drafters import Wrong
from parts import TABLES, Logging, LoggingDevice, LoggingFence, batch_of, named, runner_of
from toys import RowMajor

from warcore import ForwardMode, SharedReadEnds, Stager, WiringError
from warcore.fence import FenceReason
from warcore.gates import prefill_gates
from warcore.hooks import read_engine_scope, read_scope
from warcore.scope import EngineScope

ROWS = TABLES["prefill_gates"]
THROUGH = [row for row in ROWS if not row.get("gate_function_only")]


class Later(Wrong):
    """Its draft reads after the target's prefill."""

    later_prefill_reader = True


class Never(Wrong):
    """Nobody reads after the target's prefill."""


class Staging(Stager):
    def __init__(self, word, log):
        self.word, self.log = word, log

    def stage(self, batch):
        self.log.append("stage")
        if self.word == "raise":
            raise RuntimeError("nothing was staged")
        return {"true": True, "false": False, "one": 1}[self.word]


def parts_of(row, log):
    """(backend, scope, engine scope) as a row of the table asks for."""
    end = row["read_end"]
    if end == "snapshot_raises":
        backend = Logging(log, snapshot=RuntimeError("no snapshot"))
    else:
        backend = Logging(log, vote=SharedReadEnds[end])
    stagers = {f"s{i}": Staging(word, log) for i, word in enumerate(row["stagers"])}
    algorithm = Later(None) if row["later_prefill_reader"] else Never(None)
    return backend, read_scope("toy", backend), read_engine_scope(algorithm, stagers)


def test_every_row_is_either_run_through_a_runner_or_of_a_mode_that_never_comes_here():
    alone = [row for row in ROWS if row.get("gate_function_only")]
    assert {row["mode"] for row in alone} == {"DECODE", "TARGET_VERIFY", "DRAFT_EXTEND"}
    assert len(THROUGH) + len(alone) == len(ROWS) == 30


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_gates_alone(row):
    log = []
    _, scope, engine = parts_of(row, log)
    batch = batch_of(ForwardMode[row["mode"]])
    reason, _ = prefill_gates(batch, 1, scope, engine, enabled=row["prefill_read_done"])
    assert reason.value == row["expect"]
    assert log.count("stage") == row["stager_calls"]
    assert log.count("snapshot") == row["snapshot_called"]
    assert [entry for entry in log if entry != "snapshot"] == [
        entry for entry in row["order"] if entry == "stage"
    ]


@pytest.mark.parametrize("row", THROUGH, ids=named)
def test_the_gates_through_a_runner(row):
    log = []
    backend, scope, engine = parts_of(row, log)
    mode = ForwardMode[row["mode"]]
    with LoggingDevice(log) as device:
        runner = runner_of(
            device, backend, scope=scope, engine=engine, prefill_read_done=row["prefill_read_done"]
        )
        fence = LoggingFence(device, mode)
        fence.expect(runner, mode)
        runner.lend(fence)
        stream = device.stream("forward")
        stream.submit(runner.execute, batch_of(mode)).result()
        fence.close(device.event().record(stream))
    assert fence.reason.value == row["expect"]
    assert fence.settled
    inside = log[log.index("out_graph") + 1 : log.index("in_graph")]
    assert [e for e in inside if e in {"stage", "Event", "record"}] == row["order"]
    assert inside.count("snapshot") == log.count("snapshot") == row["snapshot_called"]
    assert inside[-1] == ("offer" if row["expect"] == "fine" else "offer_none")


def test_the_snapshot_gets_the_batch_and_the_padded_number_of_tokens():
    seen = []

    class Sees(RowMajor):
        def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
            seen.append((forward_batch, num_qo_tokens))

    batch = batch_of(ForwardMode.EXTEND, tokens=5)
    prefill_gates(batch, 16, read_scope("toy", Sees(None)), EngineScope(), enabled=True)
    assert seen == [(batch, 16)]


def test_a_snapshot_may_take_fewer_arguments():
    class Brief(Logging):
        def prepare_prefill_shared_read_snapshot(self):
            self.log.append("brief")

    backend = Brief(log := [])
    batch = batch_of(ForwardMode.EXTEND)
    prefill_gates(batch, 1, read_scope("toy", backend), EngineScope(), enabled=True)
    assert log == ["brief"]


@pytest.mark.parametrize("words", [("raise", "false"), ("false", "raise"), ("one", "false")])
def test_an_error_of_one_stager_beats_the_refusal_of_another(words):
    log = []
    engine = read_engine_scope(Later(None), {f"s{i}": Staging(w, log) for i, w in enumerate(words)})
    scope = read_scope("toy", Logging(log))
    reason, detail = prefill_gates(batch_of(ForwardMode.EXTEND), 1, scope, engine, enabled=True)
    assert reason is FenceReason.STAGER_ERROR
    assert log.count("stage") == 2
    guilty = next(i for i, word in enumerate(words) if word != "false")
    assert detail.startswith(f"stager:s{guilty} ")


def test_in_the_normal_loop_nobody_is_asked_for_a_snapshot_or_to_stage():
    backend = Logging(log := [])
    with LoggingDevice(log) as device:
        runner = runner_of(device, backend)
        device.stream("forward").submit(runner.execute, batch_of(ForwardMode.EXTEND)).result()
    assert log == ["out_graph", "in_graph"]


DRAFT_PASSES = (ForwardMode.EXTEND, ForwardMode.DRAFT_EXTEND)
"""How a draft may catch up with what the target has prefilled."""


@contextmanager
def behind_a_prefill(log, algorithm, stagers, vote=SharedReadEnds.PRE_REPLAY):
    """(fence, run) behind a prefill step of the target: `run(method, batch)` calls a method of the
    draft's runner, by name. The log is of the draft's part."""
    with LoggingDevice(log) as device:
        engine = read_engine_scope(algorithm, stagers)
        target = runner_of(device, Logging(log, vote=vote), engine=engine)
        draft = runner_of(device, Logging(log), engine=engine, role="draft")
        for stager in stagers.values():
            stager.draft = draft
        fence = LoggingFence(device, ForwardMode.EXTEND)
        fence.expect(target, ForwardMode.EXTEND)
        target.lend(fence)
        draft.lend(fence)
        stream = device.stream("forward")
        stream.submit(target.execute, batch_of(ForwardMode.EXTEND)).result()
        log.clear()
        yield fence, lambda method, batch: stream.submit(getattr(draft, method), batch).result()


def prefill(log, algorithm, stagers, mode, vote=SharedReadEnds.PRE_REPLAY):
    """The fence of a prefill step of the target and then a pass of a draft."""
    with behind_a_prefill(log, algorithm, stagers, vote) as (fence, run):
        run("execute", batch_of(mode))
    return fence


@pytest.mark.parametrize("mode", DRAFT_PASSES)
def test_a_draft_that_a_stager_vouches_for_offers_nothing_in_its_prefill(mode):
    fence = prefill(log := [], Later(None), {"s": Staging("true", [])}, mode)
    assert log == ["out_graph", "in_graph"]
    assert fence.reason is FenceReason.FINE


class Ahead(Stager):
    """Stages the draft with a batch of the same rows and positions, and vouches for it."""

    def __init__(self):
        self.draft = self.staged = None

    def stage(self, batch):
        self.staged = batch_of(ForwardMode.EXTEND)
        return self.draft.stage(self.staged) is SharedReadEnds.PRE_REPLAY


@pytest.fixture
def staged():
    """(log, run): `run(batch of the stager)` executes the draft behind a target whose stager has
    staged it; `run(batch, method)` calls another method of it."""
    log, stager = [], Ahead()
    with behind_a_prefill(log, Later(None), {"s": stager}) as (fence, run):
        assert fence.reason is FenceReason.FINE
        yield log, lambda batch, method="execute": run(method, batch(stager.staged))


def test_a_staged_draft_reads_nothing_more(staged):
    log, run = staged
    run(lambda batch: attrs.evolve(batch, tokens=batch.tokens.clone()))
    assert log == ["in_graph"]


@pytest.mark.parametrize("name", ["rows", "positions"])
def test_a_staged_draft_that_goes_on_elsewhere_is_an_error_before_it_reads(staged, name):
    log, run = staged
    with pytest.raises(WiringError, match="would read shared buffers after the phase") as raised:
        run(lambda batch: attrs.evolve(batch, **{name: getattr(batch, name).clone()}))
    assert raised.value.next.startswith("after a prefill, execute a runner once")
    assert log == []


def test_nobody_is_staged_once_the_event_is_published(staged):
    log, run = staged
    with pytest.raises(WiringError, match="would be staged for EXTEND after the reads"):
        run(lambda batch: batch, "stage")
    assert log == []


def test_a_second_pass_of_a_staged_draft_is_an_error_before_it_reads(staged):
    log, run = staged
    run(lambda batch: batch)
    log.clear()
    with pytest.raises(WiringError, match="would read shared buffers after the phase"):
        run(lambda batch: batch)
    assert log == []


@pytest.mark.parametrize("mode", DRAFT_PASSES)
def test_a_draft_that_is_not_staged_reads_under_a_coarse_fence_and_offers_nothing(mode):
    fence = prefill(log := [], Later(None), {}, mode)
    assert log == ["out_graph", "in_graph"]
    assert (fence.reason, fence.detail) == (FenceReason.NO_STAGER, "spec_algo:Later")


@pytest.mark.parametrize("mode", DRAFT_PASSES)
def test_a_draft_that_reads_although_nobody_was_declared_to_is_an_error_before_it_reads(mode):
    log = []
    with pytest.raises(WiringError, match="would read shared buffers after the phase") as raised:
        prefill(log, Never(None), {}, mode)
    assert "later_prefill_reader" in raised.value.next
    assert log == []


@pytest.mark.parametrize("mode", DRAFT_PASSES)
def test_under_a_coarse_fence_an_undeclared_reader_does_no_harm(mode):
    fence = prefill(log := [], Never(None), {}, mode, vote=SharedReadEnds.POST_REPLAY)
    assert log == ["out_graph", "in_graph"]
    assert fence.reason is FenceReason.NOT_PRE_REPLAY
