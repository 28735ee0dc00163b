"""Whatever is drafted, the text is that of no speculation; and nothing is left behind."""

from __future__ import annotations

import random
from functools import partial

import attrs
import drafters
import pytest
import torch
from drafters import Drawn, Half, Model, Ragged, Remembers, Staging, Tree, WithTrees, Wrong
from parts import all_is_free, configured, engine, fences
from toys import Replaying, RowMajor, ToyModel, ToyTokenizer

from warcore import (
    Draft,
    FencePlan,
    ForwardMode,
    PluginError,
    SamplingParams,
    SharedReadEnds,
    WiringError,
)
from warcore.errors import ConfigError

CHAINS = [Wrong, Drawn, Ragged, Model, Half, Remembers]
PROMPTS = ["hello there", "a", "sixsix and seven more of it", "bZd"]
LONG = SamplingParams(max_new_tokens=None)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def told(running, prompts=PROMPTS, params=LONG):
    outputs = running.generate(prompts, params)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return outputs


def all_is_back(running):
    """Whether all is free once the launch is collected that was on its way at the end."""
    while running.has_work:
        running.step()
    return all_is_free(running)


def texts(outputs):
    return [output.output_ids for output in outputs]


@pytest.fixture(scope="module")
def right():
    with engine(context_length=48) as running:
        return texts(told(running))


@pytest.mark.parametrize("cls", CHAINS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_greedy_text_is_that_of_no_speculation_up_to_the_end_of_the_context(cls, tokens, right):
    with engine(context_length=48, spec_algo=cls, spec_tokens=tokens) as running:
        outputs = told(running)
        assert texts(outputs) == right
        assert all(output.drafted for output in outputs)
        assert all_is_back(running)


@pytest.mark.parametrize("tokens", [2, 5])
def test_a_tree_is_verified_in_one_pass_and_its_branch_compacted(tokens, right):
    config = {"spec_algo": Tree, "backend": WithTrees, "spec_topk": 2, "spec_tokens": tokens}
    with engine(context_length=48, **config) as running:
        outputs = told(running)
        assert texts(outputs) == right
        assert sum(output.accepted for output in outputs) > 0
        assert all_is_back(running)


def test_a_draft_that_is_always_right_is_taken_whole(right):
    with engine(context_length=48, spec_algo=Model, spec_tokens=3) as running:
        outputs = told(running)
        assert running.stats()["drafts"]["accept_length"] > 3.5
        assert max(output.accept_length for output in outputs) > 3.5


def test_a_mixed_step_is_no_verify(right):
    config = {"mixed": True, "prefill_chunk": 3, "max_running_requests": 2}
    with engine(context_length=48, spec_algo=Model, spec_tokens=3, **config) as running:
        outputs = told(running)
        assert texts(outputs) == right
        assert fences(running)["mixed", "mode_not_extend"] > 4
        # What is always right seems to be so in mixed steps too, which judge no drafts.
        assert running.stats()["drafts"]["accept_length"] > 3.5
        assert min(output.accept_length for output in outputs) > 3.5


@pytest.mark.parametrize("cls", [Half, Model])
def test_drafts_are_replayed_as_well_as_verifies_and_the_text_is_the_same(cls, right):
    config = {"context_length": 48, "spec_algo": cls, "spec_tokens": 3, "graph_runner": Replaying}
    planned = FencePlan.of(configured(**config)).graphs.captures
    with engine(**config) as running:
        ((draft, _),) = running._assembly.wired.drafts
        assert texts(told(running)) == right
        assert all_is_back(running)
        assert {bucket.mode.value for bucket in draft.buckets} == {"decode", "draft_extend"}
        target = running._assembly.runner
        assert draft.captures.facts()["replays"] > target.captures.facts()["replays"] > 0
        assert running.stats()["graphs"]["captures"] == planned


def test_of_a_draft_runner_only_those_steps_are_captured_that_its_algorithm_names():
    class Fewer(Half):
        def __init__(self, ctx):
            decodes = frozenset({ForwardMode.DECODE})
            make = partial(ctx.make_runner, captured=decodes)
            super().__init__(attrs.evolve(ctx, make_runner=make))

    config = {"context_length": 48, "spec_algo": Fewer, "graph_runner": Replaying}
    with engine(**config) as running:
        ((draft, _),) = running._assembly.wired.drafts
        assert {bucket.mode for bucket in draft.buckets} == {ForwardMode.DECODE}


def test_tokens_that_were_not_drawn_keep_even_sampled_text():
    params = SamplingParams(max_new_tokens=30, temperature=1.0, top_k=9, ignore_eos=True)
    with engine(context_length=48) as running:
        owed = texts(told(running, params=params))
    for cls in (Wrong, Half, Remembers):
        with engine(context_length=48, spec_algo=cls, spec_tokens=3) as running:
            assert texts(told(running, params=params)) == owed


# ---- seeds draw the rest -------------------------------------------------------------------------


MOST_DRAFTED = 6


def drawn(seed):
    """A workload and a configuration."""
    draw = random.Random(seed)
    count = draw.randint(1, 7)
    letters = ToyTokenizer.alphabet
    prompts = ["".join(draw.choices(letters, k=draw.randint(1, 24))) for _ in range(count)]
    params = [
        SamplingParams(
            max_new_tokens=draw.choice([1, 2, 5, 17, None]),
            stop=draw.choice([(), (), ("e",), ("ab", "Q")]),
            ignore_eos=draw.random() < 0.5,
        )
        for _ in prompts
    ]
    config = {
        "context_length": draw.randint(26, 52),
        "page_size": draw.choice([1, 2, 4, 8]),
        "prefill_chunk": draw.choice([3, 8, 64]),
        "mixed": draw.random() < 0.3,
        "loop": draw.choice(["overlap", "overlap", "normal"]),
        "host": draw.choice(["inline", f"seeded:{seed}"]),
        "max_running_requests": draw.randint(1, 5),
    }
    pages = -(-(config["context_length"] + MOST_DRAFTED + 1) // config["page_size"])
    config["kv_pages"] = pages + draw.randint(0, 2 * pages)
    return prompts, params, config


def drafted(seed):
    draw = random.Random(-seed - 1)
    if draw.random() < 0.25:
        return {"spec_algo": Tree, "backend": WithTrees, "spec_topk": 2, "spec_tokens": 4}
    config = {"spec_algo": draw.choice(CHAINS), "spec_tokens": draw.randint(1, MOST_DRAFTED)}
    if draw.random() < 0.5 and config["spec_algo"].later_prefill_reader:
        config["stagers"] = [Staging]
    return config


@pytest.mark.parametrize("seed", range(60))
def test_any_workload_gives_the_text_of_no_speculation(seed):
    prompts, params, config = drawn(seed)
    with engine(**{**config, "host": "inline", "loop": "normal"}) as running:
        owed = texts(told(running, prompts, params))
    with engine(**config, **drafted(seed)) as running:
        outputs = told(running, prompts, params)
        assert texts(outputs) == owed
        assert all_is_back(running)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1600))
def test_many_workloads_give_the_text_of_no_speculation(seed):
    test_any_workload_gives_the_text_of_no_speculation(seed)


def test_requests_that_are_aborted_leave_nothing_and_disturb_nobody():
    prompts, params, _ = drawn(3)
    with engine(context_length=52) as running:
        owed = texts(told(running, PROMPTS, LONG))
    with engine(context_length=52, spec_algo=Half, spec_tokens=4) as running:
        for turn in range(12):
            lost = [running.add_request(prompt, LONG) for prompt in prompts]
            kept = [running.add_request(prompt, LONG) for prompt in PROMPTS]
            found = {}
            for step in range(200):
                if step == turn:
                    for number in lost:
                        running.abort(number)
                for output in running.step():
                    found[output.index] = output.output_ids
                if not running.has_work:
                    break
            assert [found[number] for number in kept] == owed
            assert all_is_back(running)
    assert params


# ---- the fence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "stagers", "owed"),
    [
        (Remembers, [], {("extend", "fine"), ("target_verify", "fine")}),
        (Half, [], {("extend", "no_stager"), ("draft_extend", "fine")}),
        (Half, [Staging], {("extend", "fine"), ("draft_extend", "fine")}),
    ],
)
def test_the_last_phase_that_reads_settles_the_fence(cls, stagers, owed):
    with engine(context_length=48, spec_algo=cls, stagers=stagers) as running:
        told(running)
        assert fences(running).keys() == owed


class Undeclared(RowMajor):
    def shared_read_ends(self, forward_mode):
        extends = forward_mode is ForwardMode.DRAFT_EXTEND
        return SharedReadEnds.UNKNOWN if extends else super().shared_read_ends(forward_mode)


@pytest.mark.parametrize(
    ("backend", "settles"),
    [(RowMajor, "fine"), (Undeclared, "undeclared")],
    ids=["says", "no word"],
)
def test_the_plan_says_that_a_draft_extend_settles_and_how(backend, settles):
    steps = FencePlan.of(configured(spec_algo=Half, backend=backend)).steps
    (verify,) = (step for step in steps if step.mode is ForwardMode.TARGET_VERIFY)
    assert verify.detail.endswith(
        f"if it is a draft, its draft extend settles the fence: {settles}"
    )


class Bounded(RowMajor):
    """Notes what a batch says of its requests' tokens."""

    seen = None

    def init_forward_metadata_in_graph(self, batch):
        super().init_forward_metadata_in_graph(batch)
        counts = (batch.q_start[1:] - batch.q_start[:-1]).tolist()
        Bounded.seen.add((batch.mode, batch.max_q_len, max(counts)))


@pytest.mark.parametrize("cls", [Wrong, Half], ids=lambda cls: cls.__name__)
def test_each_batch_says_how_many_tokens_its_longest_request_has(cls, monkeypatch):
    monkeypatch.setattr(Bounded, "seen", set())
    with engine(context_length=48, spec_algo=cls, spec_tokens=3, backend=Bounded) as running:
        told(running)
    for mode, said, longest in Bounded.seen:
        assert said == (longest if mode.is_prefill else {ForwardMode.DECODE: 1}.get(mode, 4))
    assert ForwardMode.TARGET_VERIFY in {mode for mode, *_ in Bounded.seen}


# ---- what is refused -----------------------------------------------------------------------------


def refused(config, match, kind=WiringError):
    with pytest.raises(kind, match=match) as raised:
        engine(**config)
    assert raised.value.next


class Cannot(Wrong):
    @classmethod
    def why_not(cls, spec):
        return [f"{spec.num_tokens} tokens", "this model"] if spec.num_tokens > 2 else []


class NoTrees(Wrong):
    tree = False


def test_what_does_not_fit_is_refused_with_all_reasons():
    refused({"spec_algo": Cannot, "spec_tokens": 3}, "3 tokens\n  this model")
    refused({"spec_algo": NoTrees, "spec_topk": 2}, "drafts no trees")
    refused({"spec_algo": Wrong, "context_length": 64}, "with 4 drafted tokens", kind=ConfigError)
    refused({"spec_algo": Wrong, "spec_tokens": 99}, "it holds 0 tokens, of", kind=ConfigError)
    config = {"spec_algo": Wrong, "context_length": 8, "spec_tokens": 8}
    refused(config, "it holds 8 tokens, of", kind=ConfigError)
    config = {"spec_algo": Wrong, "page_size": 4, "kv_pages": 1, "spec_tokens": 3}
    refused(config, "no room for a sequence and 3 drafted", kind=ConfigError)
    refused({"spec_tokens": 3}, "without a speculative algorithm", kind=ConfigError)
    refused({"stagers": [Staging]}, "without a speculative algorithm", kind=ConfigError)


class Short(Half):
    @staticmethod
    def model(ctx):
        model = ToyModel(ctx.spec.dtype)
        model.info = attrs.evolve(model.info, max_context=20)
        return model


def test_a_draft_model_of_a_shorter_context_says_how_long_sequences_may_be():
    config = {"spec_algo": Short, "spec_tokens": 3}
    with pytest.raises(WiringError, match="holds 20 tokens, fewer than the 52") as raised:
        engine(context_length=48, **config)
    assert raised.value.next.startswith("--context-length 16, or")
    with engine(context_length=16, **config) as running:
        told(running, ["abc"])


def test_a_prompt_that_is_too_long_is_told_the_longest_context_with_drafts():
    for length, owed in ((20, "--context-length (up to 59)"), (None, "shorten the prompt")):
        with engine(context_length=length, spec_algo=Wrong, spec_tokens=4) as running:
            (output,) = running.generate("a" * 70, LONG)
            assert output.cause.next.endswith(owed)


def test_the_remedy_for_a_long_context_leaves_room_for_drafts():
    config = {"spec_algo": Wrong, "spec_tokens": 4}
    with pytest.raises(ConfigError, match="was made for 64 tokens") as raised:
        engine(context_length=65, **config)
    word, _, longest = raised.value.next.partition(" ")
    assert word == "--context-length"
    with engine(context_length=int(longest), **config) as running:
        assert running.describe()["context_length"] == int(longest)


def odd(**fields):
    class Odd(Wrong):
        def draft(self, batch):
            given = {"tokens": super().draft(batch).tokens, **fields}
            return Draft(**{name: value(batch, self.ctx) for name, value in given.items()})

    return Odd


class Nothing(Wrong):
    def draft(self, batch):
        return None


class Narrow(Wrong):
    def draft(self, batch):
        return Draft(super().draft(batch).tokens[:, 1:])


class Floats(Wrong):
    def draft(self, batch):
        return Draft(super().draft(batch).tokens.double())


class Branches(Wrong):
    def draft(self, batch):
        tokens = super().draft(batch).tokens
        return Draft(tokens, parents=torch.zeros_like(tokens))


class FewWords(Drawn):
    def draft(self, batch):
        draft = super().draft(batch)
        return attrs.evolve(draft, probs=draft.probs[:, :, :9])


class TooFar(Half):
    def draft(self, batch):
        for _ in range(self.ctx.num_tokens + 1):
            batch = batch.after(batch.tokens)
        return super().draft(batch)


@pytest.mark.parametrize(
    ("cls", "match"),
    [
        (Nothing, "which is no Draft"),
        (Narrow, r"drafted tokens \[1, 3\]"),
        (Floats, "float64"),
        (Branches, "drafted a tree"),
        (FewWords, "drafted probs [1, 4, 9]"),
        (TooFar, "beyond the last position"),
    ],
)
def test_what_is_no_draft_ends_its_requests_and_says_why(cls, match):
    with engine(spec_algo=cls) as running:
        output = running.generate("abc", SamplingParams(max_new_tokens=8))
        assert output[0].finish_reason == "error"
        assert isinstance(output[0].cause, PluginError | WiringError)
        assert match.replace("\\", "") in output[0].error
        assert fences(running)["target_verify", "forward_error"] >= 1
        assert all_is_back(running)


def test_drafters_are_all_here():
    named = {c for c in vars(drafters).values() if isinstance(c, type) and hasattr(c, "draft")}
    assert set(CHAINS) | {Tree} <= named
