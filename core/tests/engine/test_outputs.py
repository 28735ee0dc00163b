"""Outputs reach whoever asked for them, whoever drives the engine."""

from __future__ import annotations

import threading

import pytest
from toys import Toy

from warcore import Engine, EngineConfig, SamplingParams, WarcoreError
from warcore.errors import ConfigError

SHORT = SamplingParams(max_new_tokens=4)
LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)


@pytest.fixture
def engine():
    with Engine(EngineConfig(model=Toy, backend=_backend(), dtype="float64")) as engine:
        yield engine


def _backend():
    from toys import RowMajor

    return RowMajor


def test_two_streams_taken_in_turns_lose_nothing(engine):
    alone = [engine.generate(p, SHORT)[0].text for p in ("hello", "world")]
    first, second = engine.stream("hello", SHORT), engine.stream("world", SHORT)
    texts = ["", ""]
    running = {0: first, 1: second}
    while running:
        for which, stream in list(running.items()):
            output = next(stream, None)
            if output is None:
                del running[which]
            else:
                texts[which] += output.delta
    assert texts == alone


def test_a_request_added_by_hand_is_reported_by_step_after_a_generate(engine):
    number = engine.add_request("hello", SHORT)
    engine.generate("world", SHORT)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert [o.index for o in outputs if o.finished] == [number]


def test_what_a_step_brings_of_a_stream_is_kept_for_it(engine):
    alone = engine.generate("hello", SHORT)[0].text
    stream = engine.stream("hello", SHORT)
    texts = [next(stream).delta]
    number = engine.add_request("world", SHORT)
    told = []
    while engine.has_work:
        told += engine.step()
    texts += [output.delta for output in stream]
    assert "".join(texts) == alone
    assert {output.index for output in told} == {number}


def test_what_is_kept_for_a_stream_goes_with_it(engine):
    stream = engine.stream("hello", SHORT)
    next(stream)
    while engine.has_work:
        assert engine.step() == []
    stream.close()
    assert not engine.has_work
    assert engine.step() == []


def test_a_step_counts_once_it_is_collected(engine):
    stop = engine.generate("hello", SHORT)[0].text[2]
    engine.generate("hello", SamplingParams(max_new_tokens=40, stop=(stop,)))
    assert engine._assembly.scheduler.in_flight
    stats = engine.stats()
    assert stats["steps"] == sum(fence["count"] for fence in stats["fences"])


def test_the_deltas_of_a_stream_add_up_to_its_text(engine):
    outputs = list(engine.stream("hello", SHORT))
    assert "".join(o.delta for o in outputs) == outputs[-1].text
    assert [o.finished for o in outputs].count(True) == 1


def test_closing_a_stream_frees_what_it_held(engine):
    stream = engine.stream(["hello", "world"], SamplingParams(max_new_tokens=40))
    next(stream)
    stream.close()
    engine.generate("hello", SHORT)
    scheduler = engine._assembly.scheduler
    assert len(scheduler.rows) == scheduler.rows.capacity
    assert len(scheduler.pages) == scheduler.pages.capacity
    assert not engine.has_work


def test_a_closed_engine_says_so(engine):
    engine.close()
    with pytest.raises(WarcoreError, match="closed"):
        engine.generate("hello")


def test_no_token_wanted_is_an_answer_without_a_step(engine):
    (output,) = engine.generate("hello", SamplingParams(max_new_tokens=0))
    assert (output.output_ids, output.text, output.finish_reason) == ([], "", "length")
    assert engine.stats()["steps"] == 0


def test_one_prompt_too_long_does_not_stop_the_others(engine):
    good, bad, also = engine.generate(["hello", "x" * 65, "world"], SHORT)
    assert bad.finish_reason == "error"
    assert "65 tokens" in bad.error
    assert good.finish_reason == also.finish_reason == "length"


def test_a_prompt_as_long_as_the_context_yields_one_token(engine):
    (output,) = engine.generate("x" * 64, SamplingParams(max_new_tokens=None))
    assert (len(output.output_ids), output.finish_reason) == (1, "length")


@pytest.mark.parametrize("stream", [True, False])
def test_a_tokenizer_that_cannot_decode_fails_its_own_request_only(engine, monkeypatch, stream):
    tokenizer = engine._assembly.model.tokenizer
    decode = tokenizer.decode
    good = engine.generate("world", SHORT)[0]
    doomed = engine.add_request("hello", SHORT, stream=stream)
    other = engine.add_request("world", SHORT)
    ids = engine._requests[doomed].output_ids

    def picky(tokens):
        if tokens and list(tokens) == ids[-len(tokens) :] and ids:
            raise KeyError(tokens[-1])
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "decode", picky)
    outputs = {}
    while engine.has_work:
        outputs |= {o.index: o for o in engine.step()}
    assert outputs[doomed].finish_reason == "error"
    assert isinstance(outputs[doomed].cause, KeyError)
    assert (outputs[other].text, outputs[other].error) == (good.text, None)


@pytest.mark.parametrize("prompt", [3, [1.5], [None], [[1]]])
def test_a_prompt_that_is_neither_text_nor_ids_fails_alone(engine, prompt):
    bad, good = engine.generate([prompt, "hello"], SHORT)
    assert "a text or a list of token ids" in bad.error
    assert good.error is None


def test_a_token_outside_the_vocabulary_fails_alone(engine):
    bad, good = engine.generate([[1, 64], [1, 2]], SHORT)
    assert "token id 64 is not in the model's vocabulary of 64" in bad.error
    assert good.error is None


def test_every_token_counts_also_those_of_a_stream_that_was_closed(engine):
    stream = engine.stream("hello", SamplingParams(max_new_tokens=40, ignore_eos=True))
    next(stream)
    stream.close()
    assert engine.stats()["tokens"] >= 1


def test_a_row_is_free_once_the_last_step_of_its_request_is_launched(engine):
    engine.add_request("hello", SamplingParams(max_new_tokens=1))
    scheduler = engine._assembly.scheduler
    engine.step()
    assert scheduler.in_flight is not None
    assert len(scheduler.rows) == scheduler.rows.capacity
    assert next(o.output_ids for o in engine.step())


def test_a_failed_step_keeps_nothing_of_its_forward_alive(monkeypatch, engine):
    import gc
    import weakref

    import torch

    kept = []

    def failing(*args, **kwargs):
        big = torch.zeros(8)
        kept.append(weakref.ref(big))
        raise RuntimeError("no")

    monkeypatch.setattr(type(engine._assembly.model), "forward", failing)
    gc.disable()
    try:
        (output,) = engine.generate("hello", SHORT)
        assert isinstance(output.cause, RuntimeError)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_bytes_are_no_prompt(engine):
    (bad,) = engine.generate([b"abc"], SHORT)
    assert "a text or a list of token ids" in bad.error


@pytest.mark.parametrize("params", [{"max_new_tokens": 3}, ["x"], [None], 5])
def test_params_of_another_type_are_refused_at_once(engine, params):
    with pytest.raises(ConfigError, match="no SamplingParams"):
        engine.generate(["hello"], params)


@pytest.mark.parametrize("prompts", [None, 5, {"a", "b"}, {"a": 1}])
def test_prompts_without_an_order_are_refused(engine, prompts):
    with pytest.raises(ConfigError, match="neither a text nor a list"):
        engine.generate(prompts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": None},
        {"mixed": "no"},
        {"options": ["a"]},
        {"options": {"a.b": None}},
        {"model": 3},
        {"backend": ""},
        {"disable": [3]},
        {"page_size": 0},
    ],
    ids=str,
)
def test_a_setting_of_another_type_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EngineConfig(**{"model": Toy, **wrong})


def test_one_name_to_disable_is_a_list_of_one():
    assert EngineConfig(model=Toy, disable="random").disable == ("random",)


def test_a_second_thread_is_refused_before_it_touches_anything(engine, monkeypatch):
    scheduler = engine._assembly.scheduler
    inside, outcome = threading.Event(), []
    next_batch = scheduler.next_batch

    def meet():
        thread = threading.Thread(target=lambda: outcome.append(_error(engine.step)))
        thread.start()
        thread.join()
        inside.set()
        return next_batch()

    monkeypatch.setattr(scheduler, "next_batch", meet)
    engine.add_request("hello", SHORT)
    engine.step()
    assert inside.is_set()
    assert "two threads use one engine" in str(outcome[0])


def _error(call):
    try:
        call()
    except WarcoreError as error:
        return error
    return None


def test_a_neighbour_that_is_refused_changes_nobodys_draws():
    params = SamplingParams(temperature=1.0, max_new_tokens=8)

    def texts(first):
        with Engine(EngineConfig(model=Toy, backend=_backend(), dtype="float64")) as engine:
            return [o.text for o in engine.generate([first, "hello", "world"], params)][1:]

    assert texts("a") == texts("") == texts("x" * 100)


def test_a_thousand_queued_prompts_are_all_answered(engine):
    outputs = engine.generate(["hello"] * 1000, SamplingParams(max_new_tokens=2))
    assert len(outputs) == 1000
    assert {output.text for output in outputs} == {outputs[0].text}


def test_what_a_caller_does_to_an_output_is_its_own_business(engine):
    def texts(touch):
        numbers = [engine.add_request(p, LONG, stream=True) for p in ("abc", "second", "third")]
        outputs = {}
        while engine.has_work:
            for output in engine.step():
                outputs[output.index] = output.text
                if touch:
                    output.prompt_ids.extend(output.output_ids)
        return [outputs[number] for number in numbers]

    assert texts(touch=True) == texts(touch=False)


@pytest.mark.parametrize("how", ["a signal handler", "another thread"])
def test_an_abort_in_the_middle_of_a_step_waits_for_its_end(engine, how):
    """Between the choice of a batch and its launch, where rows and pages must not be given away."""
    alone = [engine.generate(prompt, LONG)[0].text for prompt in ("hello", "x y")]
    scheduler = engine._assembly.scheduler
    numbers = [engine.add_request(prompt, LONG) for prompt in ("hello", "abc", "x y")]
    next_batch, outputs = scheduler.next_batch, {}

    def interrupted():
        batch = next_batch()
        for entry in batch or ():
            if entry.request.id == numbers[1] and len(entry.request.output_ids) == 5:
                _call(lambda: engine.abort(numbers[1]), how)
                assert not entry.request.finished
        return batch

    scheduler.next_batch = interrupted
    while engine.has_work:
        outputs.update((output.index, output) for output in engine.step())
    assert outputs[numbers[1]].finish_reason == "abort"
    assert [outputs[number].text for number in (numbers[0], numbers[2])] == alone


@pytest.mark.parametrize("how", ["the garbage collector", "another thread"])
def test_a_stream_that_is_closed_in_the_middle_of_a_step_leaves_nothing_behind(engine, how):
    scheduler = engine._assembly.scheduler
    stream = engine.stream(["abc", "def"], LONG)
    next(stream)
    number = engine.add_request("hello", SHORT)
    next_batch, heard = scheduler.next_batch, []

    def interrupted():
        scheduler.next_batch = next_batch
        batch = next_batch()
        _call(stream.close, how)
        return batch

    scheduler.next_batch = interrupted
    while engine.has_work:
        heard += [output.index for output in engine.step()]
    assert set(heard) == {number}
    assert (engine._requests, engine._outbox._outputs, engine._outbox._kept) == ({}, [], set())


def _call(function, how):
    if how == "another thread":
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    else:
        function()
