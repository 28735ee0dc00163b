"""Which graph runner serves, and what is refused: at wiring, at capture, or in the one step."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import attrs
import pytest
import torch
import toys
from parts import all_is_free, configured, engine, fences
from replays import Gate
from toys import Inside, Late, Replaying, RowMajor, Toy

import warcore.choices
from warcore import (
    Engine,
    ForwardMode,
    GraphKind,
    PluginError,
    PluginRecord,
    SamplingParams,
    SharedReadEnds,
    WiringError,
)
from warcore.choices import choose
from warcore.device.host import HostDevice
from warcore.errors import ConfigError

HOSTS = ["inline", "threads", "seeded:3"]
PARAMS = SamplingParams(max_new_tokens=8, ignore_eos=True)
PROMPTS = ["first one", "second", "bZd", "the last."]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("warcore-")] == []


@pytest.fixture(params=HOSTS)
def host(request):
    return request.param


@pytest.fixture(scope="module")
def right():
    """The answers to PROMPTS, one at a time and eagerly."""
    with engine(loop="normal", max_running_requests=1) as alone:
        return {prompt: alone.generate(prompt, PARAMS)[0].output_ids for prompt in PROMPTS}


# ---- which one -----------------------------------------------------------------------------------


@attrs.frozen
class Options:
    segments: int = 1


def runner(name, *reasons, rank=0, kind=GraphKind.UNBROKEN):
    def why_not(cls, spec):
        return list(reasons)

    methods = {"why_not": classmethod(why_not), "default_rank": rank, "kind": kind}
    made = type(name.title(), (Replaying,), {**methods, "Options": Options})
    return attrs.evolve(PluginRecord.of_class("graph_runner", made), name=name)


def broken(name):
    """An installed plugin whose module is not there."""
    return PluginRecord("graph_runner", name, f"x-{name}", "1.0", f"x_{name}_is_missing:Thing")


@pytest.fixture
def installed(monkeypatch):
    """installed(*records): what find_plugins finds beside the toys."""
    model = attrs.evolve(PluginRecord.of_class("model", Toy), name="toy")

    def install(*records):
        monkeypatch.setattr(warcore.choices, "find_plugins", lambda disable: (model, *records))

    install()
    return install


def chosen(*, graphs=True, **config):
    device = HostDevice("inline")
    device.supports_graphs = graphs
    return choose(configured(**{"graph_runner": None, **config}), device)


def test_without_a_graph_runner_every_step_runs_eagerly(installed):
    choices = chosen()
    assert choices.graph_runner is None
    assert choices.graph is GraphKind.NONE


@pytest.mark.parametrize("kind", [GraphKind.UNBROKEN, GraphKind.BREAKABLE])
def test_the_only_one_that_can_serve_is_taken_and_backends_know_its_kind(installed, kind):
    installed(runner("alpha", "no windows"), runner("beta", kind=kind), broken("gamma"))
    choices = chosen()
    assert choices.graph_runner.name == "beta"
    assert choices.graph is kind


def test_of_several_the_highest_rank_is_taken(installed):
    installed(runner("alpha"), runner("beta", rank=10), runner("gamma", "no", rank=20))
    assert chosen().graph_runner.name == "beta"


def test_a_tie_is_an_error_that_lists_those_that_tie(installed):
    installed(runner("alpha", rank=1), runner("beta", rank=1), runner("gamma"))
    with pytest.raises(WiringError) as raised:
        chosen()
    assert str(raised.value) == (
        "several graph runners can serve this model: alpha, beta\nNext: --graph-runner alpha"
    )


def test_a_name_settles_a_tie(installed):
    installed(runner("alpha"), runner("beta"))
    assert chosen(graph_runner="beta").graph_runner.name == "beta"


def test_if_none_can_serve_steps_run_eagerly(installed):
    installed(runner("alpha", "no windows"), broken("gamma"))
    assert chosen().graph_runner is None


def test_a_named_one_that_cannot_serve_gives_all_reasons_and_who_could(installed):
    installed(runner("alpha", "no windows", "no trees"), runner("beta"))
    with pytest.raises(WiringError) as raised:
        chosen(graph_runner="alpha")
    assert str(raised.value) == (
        "alpha cannot serve this:\n  no windows\n  no trees\nNext: --graph-runner beta"
    )


def test_where_nobody_else_could_the_list_of_graph_runners_is_the_remedy(installed):
    installed(runner("alpha", "no windows"))
    with pytest.raises(WiringError) as raised:
        chosen(graph_runner="alpha")
    assert raised.value.next == "warcore list-plugins --kind graph_runner"


def test_an_unknown_one_gets_a_suggestion(installed):
    installed(runner("alpha"))
    with pytest.raises(PluginError, match="no graph_runner is called 'alpa'; did you mean alpha"):
        chosen(graph_runner="alpa")


def test_a_named_one_that_is_broken_is_an_error_with_its_cause(installed):
    installed(runner("alpha"), broken("gamma"))
    with pytest.raises(PluginError, match="there is no module x_gamma_is_missing"):
        chosen(graph_runner="gamma")


def test_none_is_none_whatever_is_installed(installed):
    installed(runner("alpha"))
    assert chosen(graph_runner="none").graph_runner is None


def test_a_class_can_be_given_and_needs_no_registration(installed):
    choices = chosen(graph_runner=Replaying)
    assert (choices.graph_runner.cls, choices.graph_runner.name) == (Replaying, "Replaying")


def test_a_class_of_the_wrong_kind_is_refused(installed):
    with pytest.raises(PluginError, match=r"not a subclass of warcore.GraphRunner"):
        chosen(graph_runner=RowMajor)


@pytest.mark.parametrize("value", ["", 7, []])
def test_what_is_neither_a_name_nor_a_class_is_refused(value):
    with pytest.raises(ConfigError, match="graph_runner") as raised:
        configured(graph_runner=value)
    assert raised.value.next == "warcore list-plugins --kind graph_runner"


# ---- options and sizes ---------------------------------------------------------------------------


def test_its_options_reach_it(installed):
    installed(runner("alpha"))
    assert chosen(options={"alpha.segments": "3"}).graph_runner.options == Options(segments=3)


def test_an_unknown_option_is_refused(installed):
    installed(runner("alpha"))
    with pytest.raises(ConfigError, match="alpha has no option 'segment'") as raised:
        chosen(options={"alpha.segment": "3"})
    assert raised.value.next == "did you mean alpha.segments?"


def test_an_option_of_one_that_does_not_serve_is_refused(installed):
    installed(runner("alpha"))
    with pytest.raises(ConfigError, match="'alpha' is not part of this engine"):
        chosen(graph_runner="none", options={"alpha.segments": "3"})


@pytest.mark.parametrize("sizes", ["graph_buckets", "graph_prefill_buckets"])
def test_sizes_without_a_graph_runner_are_refused(installed, sizes):
    with pytest.raises(ConfigError, match="no graph runner is part of this engine") as raised:
        chosen(**{sizes: [1, 2]})
    assert raised.value.next == "warcore list-plugins --kind graph_runner"


# ---- devices without graphs ----------------------------------------------------------------------


def test_on_a_device_without_graphs_steps_run_eagerly(installed):
    installed(runner("alpha"))
    assert chosen(graphs=False).graph_runner is None


@pytest.mark.parametrize("wanted", ["alpha", Replaying])
def test_on_a_device_without_graphs_a_named_one_is_refused(installed, wanted):
    installed(runner("alpha"))
    name = wanted if isinstance(wanted, str) else "Replaying"
    with pytest.raises(WiringError) as raised:
        chosen(graphs=False, graph_runner=wanted)
    assert str(raised.value) == (
        f"graph runner {name}: this device (cpu) has no graphs\nNext: --graph-runner none"
    )


def test_an_engine_on_a_device_without_graphs_answers(right):
    device = HostDevice("inline")
    device.supports_graphs = False
    with engine(device=device, graph_runner=None) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())
        assert not running.stats()["graphs"]


# ---- at capture ----------------------------------------------------------------------------------


class Syncing(Inside):
    """Asks the device for a number in what is captured."""

    def init_forward_metadata_in_graph(self, batch):
        super().init_forward_metadata_in_graph(batch)
        self.longest = batch.seq_lens.max().item()


class Shaping(Inside):
    """Has a shape that depends on data in what is captured."""

    def init_forward_metadata_in_graph(self, batch):
        super().init_forward_metadata_in_graph(batch)
        self.live = batch.rows.nonzero()


@pytest.mark.parametrize(
    ("backend", "operation", "line"),
    [
        (Syncing, "aten._local_scalar_dense", "batch.seq_lens.max().item()"),
        (Shaping, "aten.nonzero", "batch.rows.nonzero()"),
    ],
)
def test_what_no_replay_could_repeat_is_refused_with_the_operation_and_its_line(
    host, backend, operation, line
):
    with pytest.raises(WiringError) as raised:
        engine(host=host, backend=backend, graph_runner=Replaying)
    assert raised.value.what.startswith(
        f"graph_runner:Replaying with backend:{backend.__name__}: decode of 4 x 1 up to 64 "
        "cannot be captured: "
    )
    assert operation in raised.value.what
    assert f"{__file__}:" in raised.value.what
    assert line in raised.value.what
    assert raised.value.next == "--graph-runner none"


@pytest.mark.parametrize("backend", [Syncing, Shaping])
def test_the_way_that_the_refusal_names_works(host, backend, right):
    with engine(host=host, backend=backend, graph_runner="none") as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())


def test_whatever_else_a_capture_raises_is_blamed_on_those_who_were_in_it(host):
    class Broken(Inside):
        def init_forward_metadata_in_graph(self, batch):
            raise LookupError("no table")

    with pytest.raises(PluginError, match=r"Replaying with backend:Broken.*no table") as raised:
        engine(host=host, backend=Broken, graph_runner=Replaying)
    assert isinstance(raised.value.__cause__, LookupError)


def test_one_that_cannot_be_built_is_refused_with_the_cause(host):
    class Broken(Replaying):
        def __init__(self, ctx):
            raise LookupError("no driver")

    with pytest.raises(PluginError, match=r"graph_runner Broken: __init__ raised") as raised:
        engine(host=host, graph_runner=Broken)
    assert isinstance(raised.value.__cause__, LookupError)


class Forgetful(Replaying):
    """Records no marker, and hands it over all the same."""

    def capture(self, bucket, view):
        graph = self.ctx.graph()
        self.captured[bucket] = graph, graph.capture(lambda: self.ctx.step(view, None))


class Elsewhere(Replaying):
    """Hands over an event that is in no capture."""

    def marker(self, bucket):
        return type(self).device.event(external=True)


class Idle(Replaying):
    """Captures nothing at all."""

    def capture(self, bucket, view):
        pass


class Outside(Replaying):
    """Runs the step first, and captures what no step is in."""

    def capture(self, bucket, view):
        output, graph = self.ctx.step(view, self.ctx.marker), self.ctx.graph()
        graph.capture(output.logits.clone)
        self.captured[bucket] = graph, output


@pytest.mark.parametrize("kind", [Forgetful, Elsewhere, Idle, Outside])
def test_a_marker_that_is_not_in_the_capture_is_refused(host, kind):
    with HostDevice("inline") as Elsewhere.device, pytest.raises(WiringError) as raised:
        engine(host=host, graph_runner=kind)
    assert raised.value.what == (
        f"graph_runner:{kind.__name__}: the marker of decode of 4 x 1 up to 64 "
        "is not in its capture"
    )
    assert "return None from marker" in raised.value.next


def test_a_marker_that_is_recorded_a_second_time_is_refused(host):
    class Early(Replaying):
        """The first of two would pass the ticket before the in-graph metadata have read."""

        def capture(self, bucket, view):
            graph = self.ctx.graph()

            def body():
                self.ctx.marker.record()
                return self.ctx.step(view, self.ctx.marker)

            self.captured[bucket] = graph, graph.capture(body)

    with pytest.raises(WiringError, match="is in this graph already"):
        engine(host=host, backend=Inside, graph_runner=Early)


class Rebinding(RowMajor):
    """Leaves what it gathers in a new tensor each time."""

    def slots(self, batch):
        return self.gathered

    def gather(self, batch):
        self.gathered = self.ctx.shared.req_to_token.index_select(0, batch.rows).long()


class Lazy(RowMajor):
    """Makes its memory when it first needs it, and keeps it."""

    def slots(self, batch):
        return self.gathered[: batch.padded_size]

    def gather(self, batch):
        table = self.ctx.shared.req_to_token
        if not hasattr(self, "gathered"):
            self.gathered = torch.zeros(self.ctx.max_batch, table.shape[1], dtype=torch.int64)
        self.slots(batch).copy_(table.index_select(0, batch.rows))


def test_a_graph_that_would_read_what_the_out_graph_hook_rebinds_is_refused(host):
    with pytest.raises(WiringError) as raised:
        engine(host=host, backend=Rebinding, graph_runner=Replaying)
    assert "a tensor that init_forward_metadata_out_graph makes anew each time" in raised.value.what
    assert f"{Path(toys.__file__)}:" in raised.value.what
    assert "write the result in place" in raised.value.what
    assert raised.value.next == "--graph-runner none"


def test_eager_attention_between_two_segments_may_read_it(host, right):
    class Breaking(Replaying):
        kind = GraphKind.BREAKABLE

        def capture(self, bucket, view):
            graph = self.ctx.graph()
            step = partial(self.ctx.step, view, self.ctx.marker, graph.outside)
            self.captured[bucket] = graph, graph.capture(step)

    with engine(host=host, backend=Rebinding, graph_runner=Breaking) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())
        assert running.stats()["graphs"]["replays"]


def test_memory_that_the_hook_makes_once_is_its_own(host, right):
    with engine(host=host, backend=Lazy, graph_runner=Replaying) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())


@pytest.mark.parametrize("backend", [RowMajor, Inside, Late])
def test_without_a_marker_answers_are_right_and_fences_fine(host, backend, right):
    class Unmarked(Forgetful):
        def marker(self, bucket):
            return None

    with engine(host=host, backend=backend, graph_runner=Unmarked) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())
        assert {reason for mode, reason in fences(running) if mode == "decode"} == {"fine"}
        assert running.stats()["graphs"]["replays"] > 0
        assert all_is_free(running)


def test_progress_counts_the_captures():
    heard = []
    config = configured(graph_runner=Replaying, graph_buckets=[1, 2, 4])
    with Engine(config, progress=lambda *said: heard.append(said)):
        pass
    assert [said for said in heard if said[0] == "graphs"] == [("graphs", n, 3) for n in range(4)]


# ---- in a step -----------------------------------------------------------------------------------


def failed_alone(running, right, match, decodes):
    """Every decode fails as long as `decodes` is set, and hurts nobody when it is not."""
    (output,) = running.generate("second", PARAMS)
    assert output.finish_reason == "error"
    assert match in output.error
    assert output.output_ids == right["second"][:1]
    while running.has_work:
        running.step()
    assert all_is_free(running)
    decodes.clear()
    outputs = running.generate(PROMPTS, PARAMS)
    assert [output.output_ids for output in outputs] == list(right.values())
    assert all_is_free(running)


def invented(bucket):
    return attrs.evolve(bucket, key=bucket.key + 1)


def other_mode(bucket):
    return attrs.evolve(bucket, mode=ForwardMode.TARGET_VERIFY)


def a_word(bucket):
    return "decode"


@pytest.mark.parametrize("wrong", [invented, other_mode, a_word])
def test_a_bucket_that_was_not_captured_fails_its_step_alone(host, wrong, right):
    decodes = [True]

    class Choosing(Replaying):
        def bucket_for(self, batch):
            bucket = super().bucket_for(batch)
            return wrong(bucket) if bucket is not None and decodes else bucket

    with engine(host=host, graph_runner=Choosing) as running:
        failed_alone(running, right, "graph_runner:Choosing chose", decodes)


@pytest.mark.parametrize("small", ["rows", "max_seq_len"])
def test_a_bucket_that_is_too_small_fails_its_step(small):
    class Choosing(Replaying):
        def bucket_for(self, batch):
            if batch.mode is not ForwardMode.DECODE:
                return None
            return min(self.ctx.buckets, key=lambda bucket: getattr(bucket, small))

    class Bucketed(RowMajor):
        def graph_key(self, batch):
            return int(batch.max_seq_len > 3)

    with engine(graph_runner=Choosing, backend=Bucketed) as running:
        for output in running.generate(["abc", "abd"], PARAMS):
            assert output.finish_reason == "error"
            assert "for decode of 2 requests and 2 tokens, up to 4" in output.error


def test_static_memory_that_moved_fails_its_step_alone(host, right):
    decodes = []

    class Moving(Replaying):
        def load(self, batch, bucket):
            view = super().load(batch, bucket)
            if not decodes:
                return view
            return attrs.evolve(view, tokens=view.tokens.clone(), rows=view.rows.clone())

    with engine(host=host, graph_runner=Moving) as running:
        decodes.append(True)
        failed_alone(running, right, "tokens, rows of decode of 1 x 1 up to 64 moved", decodes)


@pytest.mark.parametrize("method", ["bucket_for", "load", "replay"])
def test_whatever_it_raises_in_a_step_fails_that_step_alone(host, method, right):
    decodes = []

    def failing(self, *args):
        if decodes:
            raise LookupError(method)
        return getattr(Replaying, method)(self, *args)

    kind = type("Failing", (Replaying,), {method: failing})
    with engine(host=host, graph_runner=kind, backend=Inside) as running:
        decodes.append(True)
        # The prefill runs eagerly, except that the runner is asked about it too.
        match, decodes_only = f"LookupError: {method}", method != "bucket_for"
        (output,) = running.generate("second", PARAMS)
        assert output.finish_reason == "error"
        assert output.error.startswith(match)
        assert output.output_ids == (right["second"][:1] if decodes_only else [])
        decodes.clear()
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())
        assert all_is_free(running)


@pytest.mark.parametrize(
    ("backend", "returned", "match"),
    [
        (RowMajor, lambda output: None, "replay returned None, which is no Output"),
        (Inside, lambda output: output, "has not passed the marker of that capture"),
    ],
)
def test_a_replay_that_replays_nothing_fails_its_step_and_nobody_hangs(
    host, backend, returned, match, right
):
    decodes = {"skip"}

    class Skipping(Replaying):
        def replay(self, bucket):
            if decodes:
                return returned(self.captured[bucket][1])
            return super().replay(bucket)

    with engine(host=host, backend=backend, graph_runner=Skipping) as running:
        failed_alone(running, right, match, decodes)


def test_a_graph_key_that_raises_in_a_step_fails_that_step_alone(host, right):
    decodes = []

    class Raising(RowMajor):
        def graph_key(self, batch):
            if decodes and batch.mode is ForwardMode.DECODE:
                raise LookupError("no key")
            return 0

    with engine(host=host, graph_runner=Replaying, backend=Raising) as running:
        decodes.append(True)
        failed_alone(running, right, "no key", decodes)


@pytest.mark.parametrize("host", ["inline", "threads", *(f"seeded:{n}" for n in range(6))])
@pytest.mark.parametrize("vote", list(SharedReadEnds)[1:], ids=lambda vote: vote.name)
def test_a_call_that_fails_in_a_replay_ends_the_requests_of_its_step_and_no_other(
    host, vote, right
):
    gate = Gate()

    class Gated(Inside):
        def shared_read_ends(self, forward_mode):
            return vote

        def init_forward_metadata_in_graph(self, batch):
            gate.call()
            super().init_forward_metadata_in_graph(batch)

    with engine(host=host, backend=Gated, graph_runner=Replaying) as running:
        assert running.generate("first one", PARAMS)[0].output_ids == right["first one"]
        for prompt in PROMPTS:
            running.add_request(prompt, PARAMS)
        outputs = running.step()
        outputs += running.step()
        gate.fail(RuntimeError("in the middle"))
        while running.has_work:
            outputs += running.step()
        assert [output.finish_reason for output in outputs] == ["error"] * 4
        assert all("in the middle" in output.error for output in outputs)
        assert fences(running)["decode", "forward_error"] == 1
        assert all_is_free(running)
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())
        assert all_is_free(running)


@pytest.mark.parametrize("host", ["inline", "threads", *(f"seeded:{n}" for n in range(6))])
@pytest.mark.parametrize("backend", [RowMajor, Inside, Late])
def test_replayed_and_eager_steps_write_the_same_text(host, backend, right):
    with engine(
        host=host,
        backend=backend,
        graph_runner=Replaying,
        graph_buckets=[1, 3],
        graph_prefill_buckets=[4, 10],
        prefill_chunk=10,
    ) as running:
        outputs = running.generate(PROMPTS, PARAMS)
        assert [output.output_ids for output in outputs] == list(right.values())
        assert running.stats()["graphs"]["replays"] > 0
        assert all_is_free(running)
