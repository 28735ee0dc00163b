"""What a plugin's failure costs: overlap, or exactly its launch's requests. Never anybody else."""

from __future__ import annotations

import re
import threading
import traceback
import weakref

import pytest
import torch
from drafters import Model, Wrong
from parts import all_is_free, built, configured, engine, fences, runner_of
from toys import RowMajor, Toy, ToyModel

from warcore import (
    Engine,
    ForwardMode,
    PluginError,
    SamplingParams,
    SharedReadEnds,
    Stager,
    WarcoreError,
    WiringError,
)
from warcore.device.host import host_device
from warcore.shared import SharedBuffers

HOSTS = ["inline", "threads", "seeded:3"]
PHASES = ["out_graph", "in_graph", "forward", "model"]
LIMIT = 8
PROMPTS = ["first one", "second", "bZd", "the last."]
"""Whole chunks of 3 tokens: a prefill step holds one request."""
PARAMS = SamplingParams(max_new_tokens=LIMIT, ignore_eos=True)


class AuthorError(Exception):
    """Raised by the plugins here."""


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("warcore-")] == []


@pytest.fixture(params=HOSTS)
def host(request):
    return request.param


@pytest.fixture(scope="module")
def right():
    """The answers to PROMPTS, one at a time in the normal loop."""
    with engine(loop="normal", max_running_requests=1) as alone:
        return {prompt: alone.generate(prompt, PARAMS)[0].output_ids for prompt in PROMPTS}


# ---- a failed forward ----------------------------------------------------------------------------


def explosive(phase, explodes):
    """A backend and a model that raise in `phase` of each batch for which `explodes(batch)`."""

    def check(here, batch):
        if here == phase and explodes(batch):
            raise AuthorError(f"in {phase}")

    class Backend(RowMajor):
        def init_forward_metadata_out_graph(self, batch):
            check("out_graph", batch)
            super().init_forward_metadata_out_graph(batch)

        def init_forward_metadata_in_graph(self, batch):
            check("in_graph", batch)

        def forward(self, q, k, v, layer, batch):
            out = super().forward(q, k, v, layer, batch)
            if layer.index == 1:
                check("forward", batch)
            return out

    class Model(ToyModel):
        def forward(self, batch, attend, hidden_layers=()):
            output = super().forward(batch, attend)
            check("model", batch)
            return output

    class Family(Toy):
        @classmethod
        def load(cls, ref, ctx):
            return Model(ctx.dtype)

    return {"backend": Backend, "model": Family}


def prefills_z(batch):
    """Whether this is the prefill of the prompt with a Z."""
    return batch.mode is ForwardMode.EXTEND and 51 in batch.tokens


@pytest.mark.parametrize("phase", PHASES)
def test_a_failed_prefill_ends_its_request_and_no_other(host, phase, right):
    with engine(host=host, prefill_chunk=3, **explosive(phase, prefills_z)) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        for output in outputs:
            if output.prompt == "bZd":
                assert output.finish_reason == "error"
                said, remedy = output.error.splitlines()
                assert re.fullmatch(rf"AuthorError: in {phase} \({re.escape(__file__)}:\d+\)", said)
                assert remedy == "Next: run with --debug for the traceback"
            else:
                assert output.output_ids == right[output.prompt]
        assert fences(running)["extend", "forward_error"] == 1
        assert all_is_free(running)
        assert running.generate("second", PARAMS)[0].output_ids == right["second"]


@pytest.mark.parametrize("loop", ["overlap", "normal"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_failed_decode_ends_the_requests_of_its_launch_and_no_other(host, phase, loop, right):
    decodes = []

    def third_decode(batch):
        if batch.mode is ForwardMode.DECODE:
            decodes.append(batch)
            return len(decodes) == 3
        return False

    config = {"host": host, "loop": loop, "max_running_requests": 2}
    with engine(**config, **explosive(phase, third_decode)) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [o.finish_reason for o in outputs] == ["error", "error", "length", "length"]
        # What was settled before is kept; the launch after the failed one counts for nothing.
        for output in outputs[:2]:
            assert output.output_ids == right[output.prompt][: len(output.output_ids)]
            assert len(output.output_ids) == 3
        assert [o.output_ids for o in outputs[2:]] == [right[p] for p in PROMPTS[2:]]
        assert all_is_free(running)


class MuteError(AuthorError):
    """An author's mistake on top of the author's mistake."""

    def __str__(self):
        raise AttributeError("no words")

    __repr__ = __str__


def test_an_exception_that_cannot_be_told_costs_no_more_than_another(host, right):
    class Fails(RowMajor):
        def forward(self, q, k, v, layer, batch):
            if prefills_z(batch):
                raise MuteError
            return super().forward(q, k, v, layer, batch)

    with engine(host=host, backend=Fails, prefill_chunk=3) as running:
        for output in running.generate(PROMPTS, PARAMS):
            if output.prompt == "bZd":
                assert output.error.startswith("MuteError: its text cannot be had")
            else:
                assert output.output_ids == right[output.prompt]
        assert all_is_free(running)


def test_the_authors_traceback_stays_with_the_request(host):
    with engine(host=host, **explosive("in_graph", prefills_z)) as running:
        number = running.add_request("bZd", PARAMS)
        request = running._requests[number]
        while running.has_work:
            running.step()
    assert type(request.error) is AuthorError
    frames = traceback.extract_tb(request.error.__traceback__)
    assert frames[-1].filename == __file__
    assert "init_forward_metadata_in_graph" in [frame.name for frame in frames]


def test_what_the_frames_of_a_failure_held_is_let_go_and_that_of_its_cause(host):
    held = []

    class Again(RowMajor):
        def forward(self, q, k, v, layer, batch):
            large = torch.zeros(3)
            held.append(weakref.ref(large))
            try:
                self.fail(large)
            except AuthorError as error:
                if batch.mode is ForwardMode.DECODE:
                    raise MemoryError("no room") from LookupError("another")
                raise MemoryError("no room") from error

        def fail(self, tensor):
            larger = tensor + 1
            held.append(weakref.ref(larger))
            raise AuthorError("of the allocator")

    with engine(host=host, backend=Again) as running:
        (output,) = running.generate("one", PARAMS)
        assert isinstance(output.cause.__cause__, AuthorError)
        assert held
        assert all(each() is None for each in held)


def test_what_the_frames_of_the_callers_own_error_hold_stays(host):
    def fail():
        held = "of the caller"
        raise ValueError(held)

    with engine(host=host, **explosive("forward", prefills_z)) as running:
        try:
            fail()
        except ValueError as error:
            running.generate("bZd", PARAMS)
            frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert frames[-1]["held"] == "of the caller"


def test_a_request_that_was_aborted_before_its_launch_failed_stays_aborted(host):
    with engine(host=host, **explosive("forward", prefills_z)) as running:
        number = running.add_request("bZd", PARAMS)
        running.step()
        running.abort(number)
        (output,) = running.step()
        assert (output.finish_reason, output.error) == ("abort", None)
        assert all_is_free(running)


def test_the_launch_after_a_failed_prefill_writes_into_nobody_elses_pages(host):
    """It is on its way before the failure is known, with the row of the failed request.

    Of that row the relay knows the length of the request that had it before, and there the table
    still names a page that somebody else has now.
    """
    long = SamplingParams(max_new_tokens=40, ignore_eos=True)
    short = SamplingParams(max_new_tokens=2, ignore_eos=True)
    with engine(loop="normal", max_running_requests=1) as alone:
        expected = alone.generate("grow", long)[0].output_ids
    with engine(host=host, **explosive("model", prefills_z)) as running:
        growing = running.add_request("grow", long)
        running.add_request("sixsix", short)
        outputs = []
        while not outputs:
            outputs = running.step()
        for _ in range(12):
            running.step()
        running.add_request("bZd", PARAMS)
        while running.has_work:
            outputs += running.step()
        assert {o.index: o.output_ids for o in outputs}[growing] == expected


# ---- a failed hook -------------------------------------------------------------------------------


class Unread(Wrong):
    """An algorithm whose only word is who reads last."""

    def __init__(self, answer):
        self.answer = answer

    def last_shared_read_runner(self, forward_batch):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Reads(Wrong):
    """An algorithm with a later prefill reader."""

    later_prefill_reader = True


class Staging(Stager):
    def __init__(self, answer):
        self.answer = answer

    def stage(self, batch):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def coarse_steps(running, mode):
    return {reason for (at, reason) in fences(running) if at == mode}


@pytest.mark.parametrize("answer", [AuthorError("who knows"), "the target", 7])
def test_an_owner_hook_that_fails_costs_the_overlap_of_its_steps(host, answer, right, caplog):
    caplog.set_level("INFO", "warcore.fence")
    with engine(host=host, spec_algo=built(Unread(answer))) as running:
        for output in running.generate(PROMPTS, PARAMS):
            assert output.output_ids == right[output.prompt]
        assert coarse_steps(running, "target_verify") == {"declaration_error"}
        assert coarse_steps(running, "extend") == {"fine"}
        assert all_is_free(running)
    assert "spec_algo:Unread" in caplog.text


def test_an_owner_that_runs_no_phase_of_the_step_costs_its_overlap(host, right):
    with host_device("inline") as other:
        draft = runner_of(other, RowMajor(None), role="draft")
    with engine(host=host, spec_algo=built(Unread(draft))) as running:
        for output in running.generate(PROMPTS, PARAMS):
            assert output.output_ids == right[output.prompt]
        assert coarse_steps(running, "target_verify") == {"not_owner"}
        assert all_is_free(running)


@pytest.mark.parametrize(
    ("vote", "reason"), [("UNKNOWN", "undeclared"), ("POST_REPLAY", "fine"), (None, "fine")]
)
def test_an_algorithms_own_reads_delay_the_fence_whoever_owns_it(host, vote, reason, right):
    class Looks(Model):
        def shared_read_ends(self, forward_mode):
            return None if vote is None else SharedReadEnds[vote]

    with engine(host=host, spec_algo=Looks, spec_tokens=2) as running:
        for output in running.generate(PROMPTS, PARAMS):
            assert output.output_ids == right[output.prompt]
        settled = {mode for mode, _ in fences(running)} - {"extend"}
        assert {r for mode in settled for r in coarse_steps(running, mode)} == {reason}
        while running.has_work:  # what was launched ahead
            running.step()
        assert all_is_free(running)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (AuthorError("no room"), "stager_error"),
        (1, "stager_error"),
        (None, "stager_error"),
        (False, "stager_declined"),
        (True, "fine"),
    ],
)
def test_a_stager_that_fails_costs_the_overlap_of_prefill_steps(host, answer, reason, right):
    with engine(host=host, spec_algo=Reads, stagers=[built(Staging(answer))]) as running:
        for output in running.generate(PROMPTS, PARAMS):
            assert output.output_ids == right[output.prompt]
        assert coarse_steps(running, "extend") == {reason}
        assert coarse_steps(running, "target_verify") == {"fine"}
        assert all_is_free(running)


@pytest.mark.parametrize("answer", [AuthorError("no memory"), "PRE_REPLAY", 1])
def test_a_snapshot_that_fails_costs_the_overlap_of_its_step(host, answer, right):
    calls = []

    class Failing(RowMajor):
        def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
            calls.append(forward_batch)
            if len(calls) > 1:
                return None
            if isinstance(answer, Exception):
                raise answer
            return answer

    with engine(host=host, backend=Failing, prefill_chunk=3) as running:
        for output in running.generate(PROMPTS, PARAMS):
            assert output.output_ids == right[output.prompt]
        assert fences(running)["extend", "snapshot_error"] == 1
        assert fences(running)["extend", "fine"] == len(calls) - 1
        assert all_is_free(running)


# ---- failures before anything runs ---------------------------------------------------------------


def raising(cls, name):
    """A subclass of a plugin class whose method `name` raises."""

    def fail(*args, **kwargs):
        raise AuthorError(name)

    kind = type(vars(cls).get(name)) if name in vars(cls) else None
    return type("Broken", (cls,), {name: classmethod(fail) if kind is classmethod else fail})


@pytest.mark.parametrize("method", ["recognises", "describe", "load"])
def test_a_model_family_that_raises_is_refused_with_the_cause(host, method):
    with pytest.raises(PluginError, match="Broken") as raised:
        Engine(configured(host=host, model=raising(Toy, method), model_ref="toy"))
    assert isinstance(raised.value.__cause__, AuthorError)


class Whole(RowMajor):
    """Has every class method of a backend, so that each can be replaced."""

    @classmethod
    def why_not(cls, spec):
        return []

    @classmethod
    def kv_cache(cls, spec):
        return super().kv_cache(spec)


@pytest.mark.parametrize("method", ["why_not", "kv_cache", "__init__"])
def test_a_backend_that_raises_is_refused_with_the_cause(host, method):
    with pytest.raises(PluginError, match="Broken") as raised:
        Engine(configured(host=host, backend=raising(Whole, method)))
    assert isinstance(raised.value.__cause__, AuthorError)


def test_a_vote_that_raises_is_refused_with_the_cause(host):
    with pytest.raises(WiringError, match=r"backend:Broken: shared_read_ends\(EXTEND\)") as raised:
        Engine(configured(host=host, backend=raising(RowMajor, "shared_read_ends")))
    assert isinstance(raised.value.__cause__, AuthorError)


def test_a_stager_that_raises_when_asked_for_its_callable_is_refused(host):
    broken = raising(Staging, "prefill_shared_read_stager")(True)
    with pytest.raises(WiringError, match="prefill_shared_read_stager raised") as raised:
        engine(host=host, spec_algo=Reads, stagers=[built(broken)])
    assert isinstance(raised.value.__cause__, AuthorError)


# ---- a failed write ------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["overlap", "normal"])
def test_a_failed_schedule_stream_write_ends_the_engine_with_its_traceback(monkeypatch, host, loop):
    write = SharedBuffers._write_pages
    calls = []

    def third_fails(self, places, pages):
        calls.append(places)
        if len(calls) == 3:
            raise AuthorError("half written")
        write(self, places, pages)

    monkeypatch.setattr(SharedBuffers, "_write_pages", third_fails)
    with engine(host=host, loop=loop) as running:
        with pytest.raises(AuthorError) as raised:
            running.generate(PROMPTS, PARAMS)
        names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert "third_fails" in names
        with pytest.raises(WarcoreError, match="closed"):
            running.step()


@pytest.mark.parametrize("broken", ["warcore.staging._copy", "warcore.fence.ReadFence.wait"])
def test_a_copy_or_a_barrier_that_fails_on_the_schedule_stream_ends_it_too(
    monkeypatch, host, broken
):
    """Else the step would run on inputs or tables that nobody has written."""

    def fail(*args):
        raise AuthorError("on the schedule stream")

    with engine(host=host) as running:
        monkeypatch.setattr(broken, fail)
        with pytest.raises(AuthorError):
            running.generate("first one", PARAMS)
