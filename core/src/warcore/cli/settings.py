"""Options that fill EngineConfig and SamplingParams, for every command that takes them.

Names and defaults are those of the two classes, which also check the values. Importing this module
imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warcore.cli.filling import default_of, filling
from warcore.cli.sections import option
from warcore.cli.usage import OneOf
from warcore.config import DTYPES, EngineConfig
from warcore.errors import ConfigError
from warcore.samplingparams import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import click

    Decorator = Callable[..., Any]

_SERVE, _SIZE, _GRAPHS, _SPEC = "Engine", "Sizes", "Graphs", "Speculation"
_PLUGINS, _SAMPLE = "Plugins", "Sampling"


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the engine's options; it is called with `config: EngineConfig`."""
    options = {**_serving(), **_sizes(), **_graphs(), **_speculation(), **_plugins(), **_draws()}
    return filling(EngineConfig, "config", options, command)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of one request; it is called with `params: SamplingParams`.

    The seed is the engine's: a request's own would be the same for every prompt of a command.
    """
    return filling(SamplingParams, "params", _sampling(), command)


def _engine(section: str, field: str, text: str, **attributes: Any) -> Decorator:
    name = f"--{field.replace('_', '-')}"
    default = default_of(EngineConfig, field)
    return option(section, name, field, help=text, **default, **attributes)


def _serving() -> dict[str, Decorator]:
    """What serves the model, and how."""

    def words(field: str, text: str, *known: str) -> Decorator:
        return _engine(_SERVE, field, text, type=OneOf(known))

    backend = "Attention backend  [default: the best that can serve the model]"
    prefill = "For prefills, in place of --backend; needs --decode-backend."
    decode = "For every other step; needs --prefill-backend."
    host = "How the host device runs streams."
    coarse = "coarse: wait for whole forwards, whatever plugins declare; needs the overlap loop."
    mixed = "Mix prefill chunks with decodes in one step."
    return {
        "model": option(
            _SERVE,
            "--model",
            metavar="REF",
            required=True,
            help="A name, NAME:ARGUMENT or a path; `warcore list-plugins --kind model` has names.",
        ),
        "backend": _engine(_SERVE, "backend", backend, metavar="NAME"),
        "prefill_backend": _engine(_SERVE, "prefill_backend", prefill, metavar="NAME"),
        "decode_backend": _engine(_SERVE, "decode_backend", decode, metavar="NAME"),
        "dtype": words("dtype", "Of weights, activations and KV cache.", *DTYPES),
        "device": words("device", "auto: CUDA where there is one.", "auto", "host", "cuda"),
        "host": _engine(_SERVE, "host", host, metavar="auto|threads|inline|seeded:N"),
        "loop": words(
            "loop", "overlap: prepare a step while the one before runs.", "overlap", "normal"
        ),
        "fence": words("fence", coarse, "declared", "coarse"),
        "mixed": _engine(_SERVE, "mixed", mixed, is_flag=True),
    }


def _sizes() -> dict[str, Decorator]:
    """How large the engine is; every one is a whole number."""
    texts = {
        "prefill_chunk": "Prompt tokens per step.",
        "page_size": "Tokens per page  [default: 16 if the backend allows it]",
        "max_running_requests": "Requests that run at once; the others wait.",
        "context_length": "Tokens of one sequence, prompt and answer  [default: the model's]",
        "kv_pages": "Pages of the KV pool  [default: what all requests need, within 40 % of the "
        "free memory]",
    }
    return {
        field: _engine(_SIZE, field, text, type=int, metavar="N") for field, text in texts.items()
    }


def _graphs() -> dict[str, Decorator]:
    """What is captured at start and replayed in place of running step by step."""

    def sizes(field: str, text: str) -> Decorator:
        return _engine(_GRAPHS, field, text, metavar="N,N,...", callback=_read_sizes)

    runner = (
        "Captures steps and replays them; none: every step runs eagerly  "
        "[default: the best that can serve, if the device has graphs]"
    )
    positions = (
        "Capture no step that attends to more positions, over all its requests  "
        "[default: 1024 on a CPU, any number elsewhere]"
    )
    return {
        "graph_runner": _engine(_GRAPHS, "graph_runner", runner, metavar="NAME|none"),
        "graph_buckets": sizes(
            "graph_buckets", "Batch sizes of captured decodes  [default: powers of two]"
        ),
        "graph_prefill_buckets": sizes(
            "graph_prefill_buckets",
            "Token counts of captured prefills  [default: some on CUDA, none on a CPU]",
        ),
        "graph_positions": _engine(_GRAPHS, "graph_positions", positions, type=int, metavar="N"),
    }


def _speculation() -> dict[str, Decorator]:
    """Who drafts, how much, and who reads ahead for it."""
    tokens = "Tokens that it drafts for each request and step  [default: its own]"
    topk = "Alternatives at each position: a tree, if the algorithm and the backend can."
    return {
        "spec_algo": _engine(_SPEC, "spec_algo", "Speculative algorithm", metavar="NAME"),
        "spec_tokens": _engine(_SPEC, "spec_tokens", tokens, type=int, metavar="N"),
        "spec_topk": _engine(_SPEC, "spec_topk", topk, type=int, metavar="N"),
        "stagers": option(
            _SPEC,
            "--stager",
            "stagers",
            metavar="NAME",
            multiple=True,
            help="Copies ahead what a draft's prefill reads; repeatable.",
        ),
    }


def _plugins() -> dict[str, Decorator]:
    """Which plugins there are, and their own options."""
    return {
        "disable": option(
            _PLUGINS,
            "--disable",
            metavar="NAME",
            multiple=True,
            help="Leave out NAME (or KIND:NAME); repeatable.",
        ),
        "options": option(
            _PLUGINS,
            "--opt",
            "options",
            metavar="NAME.key=value",
            multiple=True,
            callback=read_options,
            help="Set an option of the plugin NAME; repeatable.",
        ),
    }


def _draws() -> dict[str, Decorator]:
    """What the draws of a whole run depend on."""
    text = "Of all draws: each prompt draws on its own, and the same N repeats the whole run."
    return {"seed": _engine(_SAMPLE, "seed", text, type=int, metavar="N")}


def _sampling() -> dict[str, Decorator]:
    """How the tokens of a request are chosen, and where its answer ends."""

    def of(field: str, kind: type, text: str) -> Decorator:
        name = f"--{field.replace('_', '-')}"
        metavar = "N" if kind is int else "X"
        default = default_of(SamplingParams, field)
        return option(_SAMPLE, name, field, type=kind, metavar=metavar, help=text, **default)

    return {
        "max_new_tokens": of("max_new_tokens", int, "Tokens of an answer, at most."),
        "temperature": of("temperature", float, "0: the likeliest token; higher: more varied."),
        "top_k": of("top_k", int, "Draw from the N likeliest tokens; 0: from all."),
        "top_p": of("top_p", float, "Draw from the likeliest tokens that add up to X."),
        "min_p": of("min_p", float, "Drop tokens less likely than X times the likeliest."),
        "stop": option(
            _SAMPLE,
            "--stop",
            metavar="S",
            multiple=True,
            help="End the answer before the text S; repeatable.",
        ),
        "stop_token_ids": option(
            _SAMPLE,
            "--stop-token-id",
            "stop_token_ids",
            type=int,
            metavar="N",
            multiple=True,
            help="End the answer with the token N; repeatable.",
        ),
        "ignore_eos": option(
            _SAMPLE, "--ignore-eos", is_flag=True, help="Go on after the model's end of an answer."
        ),
    }


def read_options(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """`NAME.key=value` texts as {"NAME.key": "value"}; the last of a key holds."""
    options = {}
    for text in given:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--opt {text} gives no value", next="--opt NAME.key=value")
        if not all(path.split(".")):
            raise ConfigError(f"--opt {text!r} names no option", next="--opt NAME.key=value")
        options[path] = value
    return options


def _read_sizes(_: click.Context, param: click.Parameter, text: str | None) -> Sequence[int] | None:
    """`1,2,4` as (1, 2, 4)."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() for word in words):
        raise ConfigError(
            f"{param.opts[0]} {text!r} is no list of sizes", next=f"{param.opts[0]} 1,2,4"
        )
    return tuple(map(int, words))
