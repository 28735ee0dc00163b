"""Single parts of an engine, real ones, small enough to hold in a test."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import torch
from toys import CONTEXT, DIM, HEADS, INFO, Replaying, RowMajor, Toy

from warcore import (
    AttentionSpec,
    Engine,
    EngineConfig,
    ForwardBatch,
    ForwardMode,
    NoOptions,
    Output,
    SharedReadEnds,
)
from warcore.capturing import build_graph_runner
from warcore.capturing import capture as capture_buckets
from warcore.device import EventRing
from warcore.device.host import HostDevice
from warcore.fence import ReadFence
from warcore.hooks import read_scope
from warcore.launch import Entry, Launch, StepInputs
from warcore.options import Chosen
from warcore.runner import PublishingRunner
from warcore.sampling import SamplingBatch
from warcore.scope import EngineScope
from warcore.statics import Statics

TABLES = json.loads(
    (Path(__file__).parents[2] / "tests/vectors/fence_tables.json").read_text(encoding="utf-8")
)
"""The decision tables of the fence: the tests parametrize over them."""


def named(row):
    """A test id: the values of a row, without those that only say what to expect."""
    return " ".join(_word(v) for k, v in row.items() if k not in {"order", "expect"})


def _word(value):
    if isinstance(value, list):
        return "(" + ",".join(map(_word, value)) + ")"
    if isinstance(value, dict):
        return "/".join(map(_word, value.values()))
    return str(value)


# ---- engines -------------------------------------------------------------------------------------


def engine(*, device=None, **config):
    """An engine of toys, on a device of the test's own if there is one."""
    return Engine(configured(**config), device=device)


def built(plugin):
    """A class whose only instance is `plugin`: what an engine builds is what the test made."""
    kind = type(plugin)

    def take(cls, ctx):
        plugin.ctx = ctx
        return plugin

    return type(kind.__name__, (kind,), {"__new__": take, "__module__": kind.__module__})


def configured(**config):
    small = {
        "model": Toy,
        "backend": RowMajor,
        "graph_runner": "none",
        "dtype": "float64",
        "host": "inline",
        "page_size": 4,
        "max_running_requests": 4,
    }
    return EngineConfig(**{**small, **config})


def fences(engine):
    """{(mode, reason): count}."""
    return {(f["mode"], f["reason"]): f["count"] for f in engine.stats()["fences"]}


def held(ring):
    """How many tickets launches hold of an event ring."""
    return sum(ticket is not None for ticket in ring.held)


def rings(engine):
    """The event rings of a running engine: the target's read-done ring and the done ring."""
    step = engine._assembly.scheduler.launcher._step
    return step._target.ring, step._done


def all_is_free(engine):
    """Whether every row and page is free and no ticket held, once the streams are idle."""
    scheduler = engine._assembly.scheduler
    engine._assembly.device.synchronize()
    return (
        len(scheduler.rows) == scheduler.rows.capacity
        and len(scheduler.pages) == scheduler.pages.capacity
        and (scheduler.windows is None or len(scheduler.windows) == scheduler.windows.capacity)
        and [held(ring) for ring in rings(engine)] == [0, 0]
    )


# ---- one step ------------------------------------------------------------------------------------


def batch_of(mode, size=1, tokens=1):
    """A batch of `size` requests with `tokens` new tokens each, in rows 1, 2, ..."""
    count = size * tokens
    index = torch.arange(count)
    return ForwardBatch(
        mode=mode,
        size=size,
        padded_size=size,
        padded_tokens=count,
        tokens=torch.zeros(count, dtype=torch.int64),
        rows=torch.arange(1, size + 1),
        seq_lens=torch.full((size,), tokens, dtype=torch.int32),
        q_start=torch.arange(0, count + 1, tokens, dtype=torch.int32),
        q_row=index // tokens,
        positions=index % tokens,
        out_slots=index + 4,
        max_seq_len=tokens,
        max_q_len=tokens,
        extend_lens=(tokens,) * size,
    )


def launch_of(mode, fence=None, size=1):
    """A launch of `size` requests with one token each, in rows 1, 2, ..."""
    rows = torch.arange(1, size + 1)
    ones, zeros = torch.ones_like(rows), torch.zeros_like(rows)
    return Launch(
        mode=mode,
        entries=[Entry(None, 1, None, 1, 1, samples=True)] * size,
        max_seq_len=1,
        inputs=StepInputs(rows, None, None, None)
        if mode is ForwardMode.DECODE
        else StepInputs(rows, zeros, ones, zeros),
        sampling=SamplingBatch(),
        writes=[],
        fence=fence,
        result=torch.zeros(size, dtype=torch.int64),
    )


SPEC = AttentionSpec(
    q_heads=HEADS,
    kv_heads=HEADS,
    head_dim=DIM,
    dtype=torch.float64,
    kv_dtype=torch.float64,
    page_size=4,
    max_context=CONTEXT,
    windows=frozenset({None}),
    tree=False,
    device=torch.device("cpu"),
    role="target",
)
"""What the toy model asks for."""


def capture(device, forward, runner, buckets, kind=Replaying, **spec):
    """What an engine does at its start: a graph runner of `kind` captures `buckets`."""
    runner.buckets = tuple(buckets)
    build_graph_runner(
        Chosen(kind.__name__, kind, NoOptions()),
        runner,
        device=device,
        forward=forward,
        spec=attrs.evolve(SPEC, **spec),
        statics=Statics(device, forward),
    )
    capture_buckets([runner], forward)


class Silent:
    """A model of no layers: `body` is called where its layers would be."""

    info = INFO

    def __init__(self, body=lambda: None):
        self.body = body

    def forward(self, batch, attend, hidden_layers=()):
        self.body()
        return Output(torch.zeros(batch.size, 3))


class Logging(RowMajor):
    """Logs its phases. Votes and answers what it is told."""

    def __init__(self, log, vote=SharedReadEnds.PRE_REPLAY, snapshot=None):
        super().__init__(None)
        self.log, self.vote, self.answer = log, vote, snapshot

    def shared_read_ends(self, forward_mode):
        return self.vote

    def init_forward_metadata_out_graph(self, batch):
        self.log.append("out_graph")

    def init_forward_metadata_in_graph(self, batch):
        self.log.append("in_graph")

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        self.log.append("snapshot")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class LoggingDevice(HostDevice):
    """An inline device that logs when an event is made, recorded and re-armed."""

    def __init__(self, log):
        super().__init__("inline")
        self.log = log

    def event(self, *, external=False):
        self.log.append("Event")
        event = super().event(external=external)
        record, rearm = event.record, event.rearm

        def logged(stream=None):
            self.log.append("record")
            return record(stream)

        def rearmed():
            self.log.append("rearm")
            return rearm()

        event.record, event.rearm = logged, rearmed
        return event


class LoggingFence(ReadFence):
    """Logs every offer, and keeps it."""

    def __init__(self, device, mode):
        super().__init__(device, mode)
        self.log = device.log
        self.offers = []

    def offer(self, runner, offer):
        self.offers.append(offer)
        self.log.append("offer_none" if offer.ticket is None else "offer")
        super().offer(runner, offer)


def runner_of(device, backend, *, model=None, scope=None, engine=None, **more):
    """A ModelRunner with a ring of its own."""
    return PublishingRunner(
        device,
        model or Silent(),
        backend,
        scope or read_scope("toy", backend),
        engine or EngineScope(),
        ring=EventRing(device),
        **more,
    )
