"""`warcore generate` answers prompts: what is printed, in which order, and the exit code."""

from __future__ import annotations

import io
import json
import logging
import re
import sys

import pytest

from warcore import Engine, EngineConfig, SamplingParams
from warcore.cli import answering, main, report
from warcore.cli import generate as command

CONTEXT = 64
SHORT = ("--max-new-tokens", "6")


@pytest.fixture
def reference(toys):
    """The answers of an engine that is driven from Python."""

    def answers(*prompts, **params):
        config = EngineConfig(model="toy", backend="toy-rows", dtype="float64")
        with Engine(config) as engine:
            return engine.generate(list(prompts), SamplingParams(**params))

    return answers


class TestOnePrompt:
    def test_the_text_is_all_that_is_printed(self, generate, reference):
        (answer,) = reference("hello", max_new_tokens=20)
        assert generate("hello", "--max-new-tokens", "20") == (0, f"{answer.text}\n", "")

    def test_each_piece_is_written_when_it_is_made(self, generate, toys, monkeypatch):
        written = []
        forward = toys.ToyModel.forward

        def watched(self, *args):
            written.append(sys.stdout.getvalue())
            return forward(self, *args)

        monkeypatch.setattr(toys.ToyModel, "forward", watched)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        generate("hello", "--loop", "normal", *SHORT)
        assert [len(text) for text in written] == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize(("count", "length"), [("0", 0), ("1", 1), ("1000", CONTEXT - 2 + 1)])
    def test_the_answer_is_as_long_as_asked_or_ends_with_the_context(self, generate, count, length):
        result = generate("hi", "--ignore-eos", "--json", "--max-new-tokens", count)
        (answer,) = json.loads(result.out)["results"]
        assert (len(answer["output_ids"]), answer["finish_reason"]) == (length, "length")

    def test_a_stop_string_is_not_printed(self, generate, reference):
        (full,) = reference("hello", max_new_tokens=20)
        stop = full.text[5:7]
        before = full.text[: full.text.index(stop)]
        assert generate("hello", "--stop", stop, "--stop", "~").out == f"{before}\n"

    def test_a_stop_token_ends_the_answer(self, generate, reference):
        (full,) = reference("hello", max_new_tokens=20)
        token = full.output_ids[3]
        result = generate("hello", "--stop-token-id", str(token), "--json")
        (answer,) = json.loads(result.out)["results"]
        assert answer["finish_reason"] == "stop"
        assert answer["output_ids"] == full.output_ids[: full.output_ids.index(token) + 1]

    def test_a_seed_repeats_a_drawn_answer(self, generate):
        drawn = [generate("hi", "--temperature", "2", "--seed", s, *SHORT).out for s in "778"]
        assert drawn[0] == drawn[1] != drawn[2]

    def test_a_seed_is_of_the_run_and_each_prompt_draws_on_its_own(self, generate):
        def texts(seed):
            args = ("hi", "hi", "--temperature", "2", "--seed", seed, "--json", *SHORT)
            return [answer["text"] for answer in json.loads(generate(*args).out)["results"]]

        first, second = texts("7")
        assert first != second
        assert texts("7") == [first, second]
        assert texts("8") != [first, second]

    def test_a_system_message_and_the_chat_template_are_left_out_with_raw(self, generate):
        def ids(*args):
            return json.loads(generate("hi", "--json", *SHORT, *args).out)["results"][0][
                "prompt_ids"
            ]

        assert ids("--system", "ab") == [0, 1, 7, 8]
        assert ids("--system", "ab", "--raw") == [7, 8]


class TestSeveralPrompts:
    def test_texts_come_in_order_below_their_prompts(self, generate, reference):
        first, second = reference("hello", "x y", max_new_tokens=6)
        result = generate("hello", "x y", *SHORT)
        assert result.out == f"[1/2] hello\n{first.text}\n\n[2/2] x y\n{second.text}\n"
        assert (result.code, result.err) == (0, "")

    def test_one_that_fails_is_an_error_with_its_number_and_the_others_are_printed(self, generate):
        result = generate("hello", "a" * (CONTEXT + 1), "x y", *SHORT)
        assert result.code == 1
        assert "[1/3] hello\n" in result.out
        assert "[2/3]" not in result.out
        assert "[3/3] x y\n" in result.out
        assert result.err == (
            "error: prompt 2: the prompt has 65 tokens; the context holds 64\n"
            "Next: shorten the prompt\n"
        )

    def test_what_failed_alike_is_told_once(self, generate):
        result = generate("hi", "\u00fc", "\u00fc", "hi", "\u00fc", *SHORT)
        assert result.err.count("error:") == 1
        assert "prompts 2-3, 5: the tokenizer could not encode the prompt: ValueError" in result.err

    @pytest.mark.parametrize("ends", [property(lambda _: {}["eos"]), 0])
    def test_a_tokenizer_that_does_not_tell_what_ends_an_answer(
        self, generate, toys, monkeypatch, ends
    ):
        monkeypatch.setattr(toys.ToyTokenizer, "eos_ids", ends)
        result = generate("hi", "x y", *SHORT)
        assert result.code == 2
        assert "error: prompts 1-2: the tokenizer does not tell its eos_ids: " in result.err
        assert result.err.endswith("Next: run with --debug for the traceback\n")

    def test_a_plugin_that_raises_fails_the_requests_of_its_step(self, generate, toys, monkeypatch):
        attend = toys.RowMajor.forward

        def failing(self, *args):
            if args[-1].seq_lens[0] == 5:
                raise RuntimeError("no attention today")
            return attend(self, *args)

        monkeypatch.setattr(toys.RowMajor, "forward", failing)
        result = generate("hi", "abcdefgh", "--max-running-requests", "1", *SHORT)
        assert result.code == 1
        assert "[1/2] hi (cut short)\n" in result.out
        assert "[2/2] abcdefgh\n" in result.out
        line = failing.__code__.co_firstlineno + 2
        assert result.err == (
            f"error: prompt 1: RuntimeError: no attention today ({__file__}:{line})\n"
            "Next: run with --debug for the traceback\n"
        )

    def test_debug_shows_the_traceback_of_a_plugin(self, generate, toys, monkeypatch):
        def failing(*args):
            raise RuntimeError("no attention today")

        monkeypatch.setattr(toys.RowMajor, "forward", failing)
        result = generate("hi", "ho", "--debug", *SHORT)
        assert result.err.count("Traceback") == 1
        assert "in failing\n" in result.err
        assert logging.getLogger("warcore").handlers == []

    def test_an_engine_that_stops_leaves_what_was_answered(self, generate, monkeypatch):
        step = Engine.step

        def failing(self):
            if self.stats()["tokens"] > 8:
                raise OSError("the device fell off")
            return step(self)

        monkeypatch.setattr(Engine, "step", failing)
        result = generate("hello", "x y", "--max-running-requests", "1", *SHORT)
        assert result.code == 1
        assert "[1/2] hello\n" in result.out
        assert "[2/2]" not in result.out
        assert result.err == ("error: prompt 2: the engine stopped: OSError: the device fell off\n")

    def test_a_long_prompt_is_shortened_in_its_heading_only(self, generate, monkeypatch):
        monkeypatch.setattr(report, "_HEADING", 10)
        result = generate("abcdefghijklmno", "a  b", *SHORT)
        assert "[1/2] abcdefg...\n" in result.out
        assert "[2/2] a b\n" in result.out


class TestPromptsFile:
    def test_each_line_that_is_not_blank_is_a_prompt_after_the_given_ones(self, generate, tmp_path):
        file = tmp_path / "prompts"
        file.write_bytes(b"\xef\xbb\xbfab\r\n\n  \n c \nd")
        result = generate("first", "--prompts-file", str(file), "--json", *SHORT)
        prompts = [answer["prompt"] for answer in json.loads(result.out)["results"]]
        assert prompts == ["first", "ab", " c ", "d"]

    def test_a_hyphen_is_the_standard_input(self, generate, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hi\nhello\n")))
        result = generate("--prompts-file", "-", *SHORT)
        assert "[1/2] hi\n" in result.out
        assert "[2/2] hello\n" in result.out


class TestSpeculation:
    def test_the_text_is_the_same_and_the_stats_say_what_stood(self, generate, drafts):
        context = "--context-length", "32"
        plain = generate("hello", *context, *SHORT)
        drafted = generate(
            "hello", "--spec-algo", "toy-drafts", "--spec-tokens", "2", "--stats", *context, *SHORT
        )
        assert drafted.code == plain.code == 0
        assert drafted.out.splitlines()[0] == plain.out.splitlines()[0] != ""
        assert "drafted tokens stood" in drafted.out

    def test_an_algorithm_that_is_not_there_is_named_with_what_is(self, generate, drafts):
        result = generate("hello", "--spec-algo", "toy-draft")
        assert result.code == 2
        assert "toy-drafts" in result.err

    @pytest.mark.parametrize("option", [("--spec-tokens", "2"), ("--stager", "x")])
    def test_what_belongs_to_an_algorithm_is_refused_without_one(self, generate, option):
        result = generate("hello", *option)
        assert result.code == 2
        assert "--spec-algo" in result.err


class TestJson:
    def test_the_document_has_engine_results_and_stats(self, generate, reference):
        answers = reference("hello", "x y", max_new_tokens=6)
        found = json.loads(generate("hello", "x y", "--json", "--stats", *SHORT).out)
        assert list(found) == ["schema", "engine", "results", "stats"]
        assert found["schema"] == 1
        assert found["engine"]["model"] == "toy"
        assert found["engine"]["backend"] == "toy-rows"
        for index, (result, answer) in enumerate(zip(found["results"], answers, strict=True)):
            assert result == {
                "index": index,
                "prompt": answer.prompt,
                "prompt_ids": answer.prompt_ids,
                "output_ids": answer.output_ids,
                "text": answer.text,
                "finish_reason": "length",
                "drafted": 0,
                "accept_length": None,
                "accepted": 0,
                "error": None,
            }
        assert found["stats"]["tokens"] == 12
        assert found["stats"]["steps"] == sum(f["count"] for f in found["stats"]["fences"])

    def test_a_failed_prompt_is_a_result_with_an_error(self, generate):
        result = generate("a" * (CONTEXT + 1), "--json")
        (answer,) = json.loads(result.out)["results"]
        assert (result.code, answer["finish_reason"], answer["text"]) == (2, "error", "")
        assert answer["error"].startswith("the prompt has 65 tokens")

    @pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
    def test_no_more_rows_are_made_than_prompts_can_fill(self, generate, prompts):
        result = generate(*prompts, "--json", *SHORT)
        assert json.loads(result.out)["engine"]["max_running_requests"] == len(prompts)

    def test_as_many_rows_are_made_as_were_asked_for(self, generate):
        result = generate("a", "--max-running-requests", "4", "--json", *SHORT)
        assert json.loads(result.out)["engine"]["max_running_requests"] == 4

    def test_engine_options_reach_the_engine(self, generate):
        result = generate(
            *("hi", "--json", "--page-size", "4", "--kv-pages", "9", "--prefill-chunk", "3"),
            *("--context-length", "24", "--max-running-requests", "2", "--mixed"),
            *("--loop", "normal", "--host", "threads", "--device", "host", *SHORT),
        )
        engine = json.loads(result.out)["engine"]
        given = {"page_size": 4, "kv_pages": 9, "prefill_chunk": 3, "context_length": 24}
        given |= {"max_running_requests": 2, "mixed": True, "loop": "normal", "host": "threads"}
        assert {key: engine[key] for key in given} == given


class TestStats:
    def test_the_table_has_each_mode_and_reason_with_its_count(self, generate):
        lines = generate("hi", "--stats", *SHORT).out.splitlines()
        assert lines[2].split()[:3] == ["MODE", "FENCE", "STEPS"]
        assert lines[3].split()[:3] == ["decode", "fine", "5"]
        assert lines[4].split()[:3] == ["extend", "fine", "1"]
        assert lines[5].startswith("6 steps, 6 tokens in ")

    def test_one_of_a_thing_is_not_many(self, generate, graphs):
        counts = generate("hi", "--stats", "--max-new-tokens", "1").out.splitlines()[-1]
        assert counts.startswith("1 step, 1 token in ")
        assert re.search(r"; 0 replayed, from 1 capture that keeps \d+ kB$", counts)

    def test_captures_that_were_lost_are_not_passed_over(self, generate, graphs):
        out = generate("hi", "--stats", "--graph-positions", "1", *SHORT).out
        assert out.endswith(
            "none replayed, because nothing is captured (`warcore plan` says why)\n"
        )

    def test_a_coarse_fence_has_what_would_make_it_fine(self, generate):
        out = generate("hi", "--stats", "--fence", "coarse", *SHORT).out
        assert "forced_coarse" in out
        assert "to make it fine: --fence declared" in out

    def test_the_normal_loop_has_no_fence(self, generate):
        assert "No step was fenced" in generate("hi", "--stats", "--loop", "normal", *SHORT).out


def test_what_is_not_given_is_what_the_engine_and_sampling_take_by_default(monkeypatch):
    asked = []

    def record(task, config, show):
        asked.append((config, task.params))
        return 0

    monkeypatch.setattr(command, "_run", record)
    assert main(["generate", "--model", "any", "hi"]) == 0
    assert asked == [(EngineConfig(model="any"), SamplingParams())]


def test_the_meter_counts_each_token_once(toys):
    from rich.progress import Progress

    from warcore import RequestOutput

    bar = Progress(disable=True)
    meter = answering._Meter(bar, 2)
    for count, reason in ((2, None), (5, None), (6, "length")):
        meter.show(RequestOutput(0, "a", [1], [0] * count, "", "", reason))
    meter.show(RequestOutput(1, "b", [1], [0] * 3, "", "", None))
    assert meter._sum == 9
    assert bar.tasks[0].completed == 1
