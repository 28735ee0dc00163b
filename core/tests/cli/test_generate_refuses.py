"""Bad input to `warcore generate` is one to three lines with the remedy, and exit code 2."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from warcore.cli import main

CASES = {
    "no prompt": ((), "there is no prompt to answer", "--prompts-file"),
    "unknown backend": (
        ("hi", "--backend", "toy-row"),
        "no backend is called 'toy-row'; did you mean toy-rows?",
        "warcore list-plugins --kind backend",
    ),
    "unknown plugin to disable": (
        ("hi", "--disable", "toy-row"),
        "no plugin is called 'toy-row'; did you mean toy-rows?",
        "warcore list-plugins",
    ),
    "no backend left": (
        ("hi", "--disable", "toy-rows"),
        "no attention backend can serve this model",
        "warcore list-plugins --kind backend",
    ),
    "page size": (
        ("hi", "--page-size", "0"),
        "--page-size 0: give a whole number from 1",
        "--help",
    ),
    "context": (
        ("hi", "--context-length", "65"),
        "--context-length 65: toy was made for 64 tokens",
        "--context-length 64",
    ),
    "pages": (
        ("hi", "--kv-pages", "10000000000"),
        "GiB for 10000000000 KV pages",
        "--kv-pages ",
    ),
    "requests": (
        ("hi", "--max-running-requests", "100000000000"),
        "GiB for the tables of 100000000000 requests",
        "a smaller --max-running-requests",
    ),
    "chunk": (
        ("hi", "--prefill-chunk", "1000000000000"),
        "GiB are free on cpu",
        "--prefill-chunk",
    ),
    "host": (
        ("hi", "--host", "thread"),
        "no host device is called 'thread'",
        "auto|threads|inline",
    ),
    "seed of the host": (("hi", "--host", "seeded:x"), "'seeded:x'", "seeded:N"),
    "option": (("hi", "--opt", "toy=1"), "--opt toy=1 names no option", "--opt NAME.key=value"),
    "value of an option": (
        ("hi", "--opt", "toy.x"),
        "--opt toy.x gives no value",
        "--opt NAME.key=v",
    ),
    "owner of an option": (
        ("hi", "--opt", "toyrows.x=1"),
        "'toyrows' is not part of this engine",
        "did you mean toy-rows?",
    ),
    "key of an option": (("hi", "--opt", "toy.x=1"), "toy has no option 'x'", "it has no options"),
    "count": (
        ("hi", "--max-new-tokens", "-1"),
        "--max-new-tokens -1: give an integer from 0",
        "--help",
    ),
    "temperature": (
        ("hi", "--temperature", "nan"),
        "--temperature nan: give a finite number from 0",
        "--help",
    ),
    "top-p": (("hi", "--top-p", "0"), "--top-p 0.0: give a number above 0", "--help"),
    "stop string": (("hi", "--stop", ""), "--stop '': give strings that are not empty", "--help"),
    "prompt": (("hi", "\udcff"), "prompt 2 is not UTF-8 at character 0", "UTF-8"),
    "system": (("hi", "--system", "\udcff"), "--system or --stop is not UTF-8", "UTF-8"),
    "missing file": (
        ("--prompts-file", "nowhere"),
        "cannot read the prompts file nowhere: No such file",
        "--prompts-file FILE",
    ),
    "directory": (("--prompts-file", "."), "the prompts file .: Is a directory", "FILE"),
}


@pytest.mark.parametrize(("args", "what", "remedy"), CASES.values(), ids=CASES)
def test_it_is_told_with_the_remedy_and_nothing_runs(generate, args, what, remedy):
    code, out, err = generate(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    error, _, following = err.rpartition("\nNext: ")
    assert what in error
    assert remedy in following
    # What was considered and why it did not do is listed below the first line, indented.
    assert sum(not line.startswith("  ") for line in err.splitlines()) <= 3


USAGE = {
    ("--dtype", "bf16"): (
        "--dtype does not take 'bf16'; did you mean bfloat16?",
        "--dtype bfloat16|float16|float32|float64",
    ),
    ("--device", "gpu"): ("--device does not take 'gpu'", "--device auto|host|cuda"),
    ("--loop", "overlaps"): (
        "--loop does not take 'overlaps'; did you mean overlap?",
        "--loop overlap|normal",
    ),
    ("--top-k", "many"): (
        "--top-k: 'many' is not a valid integer",
        "--top-k N; warcore generate --help",
    ),
    ("--topk", "3"): (
        "there is no option --topk; did you mean --top-k?",
        "warcore generate --help",
    ),
    ("--top-k",): ("option '--top-k' requires an argument", "warcore generate --help"),
    ("--raw=yes",): ("option '--raw' does not take a value", "warcore generate --help"),
}


@pytest.mark.parametrize(("args", "told"), USAGE.items(), ids=map(" ".join, USAGE))
def test_a_word_that_is_no_option_or_value_is_told_as_every_error_is(generate, args, told):
    code, out, err = generate("hi", *args)
    assert (code, out) == (2, "")
    assert err == "error: {}\nNext: {}\n".format(*told)


def test_a_missing_model_is_told_as_every_error_is(capsys):
    assert main(["generate", "hi"]) == 2
    assert capsys.readouterr().err == (
        "error: --model is missing\nNext: --model REF; warcore generate --help\n"
    )


def test_the_normal_loop_has_no_fence_to_make_coarse(generate):
    code, out, err = generate("hi", "--loop", "normal", "--fence", "coarse")
    assert (code, out) == (2, "")
    assert "error: --loop normal --fence coarse: the normal loop has no fence\nNext: " in err


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_when_every_prompt_is_refused_nothing_ran(generate, more):
    code, _, err = generate("hello", "hi", "--context-length", "1", *more)
    assert code == 2
    assert "prompt 1: the prompt has 5 tokens; the context holds 1" in err


class TestManyErrors:
    def test_a_few_are_told_and_the_rest_are_counted(self, generate):
        result = generate("hi", *("a" * n for n in range(65, 85)), "--max-new-tokens", "1")
        assert result.code == 1
        told = [line for line in result.err.splitlines() if line.startswith("error: ")]
        assert [line.split(":")[1] for line in told[:5]] == [f" prompt {n}" for n in range(2, 7)]
        assert told[5:] == ["error: 15 more prompts failed in 15 other ways"]
        assert result.err.endswith("\nNext: --json has the error of each prompt\n")

    def test_prompts_far_apart_that_failed_alike_are_counted(self, generate):
        result = generate(*["hi", "\u00fc"] * 8, "--max-new-tokens", "1")
        assert result.err.startswith("error: prompts 2, 4, 6, 8, 10 and 3 more: the tokenizer")


def test_an_unknown_model_has_a_suggestion_and_the_command_that_lists(generate):
    code, out, err = generate("hi", model="toyy")
    assert (code, out) == (2, "")
    assert "recognises 'toyy'; did you mean toy?" in err
    assert "Next: warcore list-plugins --kind model" in err


def test_cuda_that_is_absent_says_how_to_go_on(generate, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = generate("hi", "--device", "cuda")
    assert code == 2
    assert "no CUDA device" in err
    assert "--device host" in err


def test_a_page_size_that_the_backend_does_not_have_is_refused(generate, toys, monkeypatch):
    monkeypatch.setattr(toys.RowMajor, "page_sizes", frozenset({16, 32}))
    code, _, err = generate("hi", "--backend", "toy-rows", "--page-size", "5")
    assert code == 2
    assert "a page size of 5 (it has 16, 32)" in err


def test_a_value_of_the_wrong_type_names_the_option(generate, toys, monkeypatch):
    import attrs

    options = attrs.make_class("Options", {"depth": attrs.field(default=1, type=int)})
    monkeypatch.setattr(toys.RowMajor, "Options", options)
    code, _, err = generate("hi", "--opt", "toy-rows.depth=deep")
    assert (code, err) == (2, "error: --opt toy-rows.depth=deep: not int\n")


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"abc\xff\n", "byte 0xff at offset 3, line 1"),
        (b"\xef\xbb\xbfab\nc\xe9d\n", "byte 0xe9 at offset 7, line 2"),
        (b"ab\n\n\xc3", "byte 0xc3 at offset 4, line 3"),
    ],
)
def test_a_file_that_is_not_utf8_has_the_offset_and_the_line(generate, tmp_path, data, place):
    file = tmp_path / "prompts"
    file.write_bytes(data)
    code, _, err = generate("--prompts-file", str(file))
    assert code == 2
    assert f"{file} is not UTF-8: {place}" in err


@pytest.mark.parametrize("data", [b"", b"\n \n\t\r\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_prompt_is_refused(generate, tmp_path, data):
    file = tmp_path / "prompts"
    file.write_bytes(data)
    code, _, err = generate("--prompts-file", str(file))
    assert (code, f"error: {file} holds no prompt\n" in err) == (2, True)


def test_a_standard_input_without_a_prompt_is_refused(generate, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "standard input holds no prompt" in generate("--prompts-file", "-").err


def test_an_error_before_loading_loads_nothing(generate, toys, monkeypatch):
    monkeypatch.setattr(toys.Toy, "load", lambda ref, ctx: pytest.fail("it was loaded"))
    assert generate("hi", "--kv-pages", "10000000000").code == 2
    assert generate("--prompts-file", str(Path("nowhere"))).code == 2


def test_a_model_that_cannot_be_loaded_has_its_traceback_under_debug(generate, toys, monkeypatch):
    def broken(ref, ctx):
        raise KeyError("weights")

    monkeypatch.setattr(toys.Toy, "load", broken)
    code, _, err = generate("hi")
    assert (code, "Traceback" in err) == (2, False)
    assert "model Toy: load('toy') raised KeyError('weights')" in err
    assert "in broken\n" in generate("hi", "--debug").err
