"""Options that fill EngineConfig and SamplingParams, for every command that takes them.

Names and defaults are those of the two classes, which also check the values. Importing this module
imports no torch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs
import click

from warcore.cli.sections import option
from warcore.config import DTYPES, EngineConfig
from warcore.errors import ConfigError
from warcore.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SERVE, _SIZE, _PLUGINS, _SAMPLE = "Engine", "Sizes", "Plugins", "Sampling"


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the engine's options; it is called with `config: EngineConfig`."""
    return _filling(EngineConfig, "config", _engine(), command)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of one request; it is called with `params: SamplingParams`."""
    return _filling(SamplingParams, "params", _sampling(), command)


def _filling(
    cls: type, argument: str, options: dict[str, Callable[..., Any]], command: Callable[..., Any]
) -> Callable[..., Any]:
    """`command` with `options` (by field of `cls`), called with an instance as `argument`."""

    @functools.wraps(command)
    def filled(*args: Any, **given: Any) -> Any:
        value = cls(**{name: given.pop(name) for name in options})
        return command(*args, **{argument: value}, **given)

    for decorate in reversed(options.values()):
        filled = decorate(filled)
    return filled


def _default(cls: type, field: str) -> dict[str, Any]:
    """The default of the class, shown unless it is None: then the help says what None means."""
    value = getattr(attrs.fields(cls), field).default
    return {"default": value, "show_default": value is not None}


def _engine() -> dict[str, Callable[..., Any]]:
    def of(section: str, field: str, **attributes: Any) -> Callable[..., Any]:
        name = f"--{field.replace('_', '-')}"
        return option(section, name, field, **_default(EngineConfig, field), **attributes)

    return {
        "model": option(
            _SERVE,
            "--model",
            metavar="REF",
            required=True,
            help="A name, NAME:ARGUMENT or a path; `warcore list-plugins --kind model` has names.",
        ),
        "backend": of(
            _SERVE,
            "backend",
            metavar="NAME",
            help="Attention backend  [default: the best that can serve the model]",
        ),
        "dtype": of(
            _SERVE, "dtype", type=click.Choice(DTYPES), help="Of weights, activations and KV cache."
        ),
        "device": of(
            _SERVE,
            "device",
            type=click.Choice(["auto", "host", "cuda"]),
            help="auto: CUDA where there is one.",
        ),
        "host": of(
            _SERVE,
            "host",
            metavar="auto|threads|inline|seeded:N",
            help="How the host device runs streams.",
        ),
        "loop": of(
            _SERVE,
            "loop",
            type=click.Choice(["overlap", "normal"]),
            help="overlap: prepare a step while the one before runs.",
        ),
        "fence": of(
            _SERVE,
            "fence",
            type=click.Choice(["declared", "coarse"]),
            help="coarse: wait for whole forwards, whatever plugins declare.",
        ),
        "mixed": of(
            _SERVE, "mixed", is_flag=True, help="Mix prefill chunks with decodes in one step."
        ),
        **_sizes(of),
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
            callback=_read_options,
            help="Set an option of the plugin NAME; repeatable.",
        ),
    }


def _sizes(of: Callable[..., Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
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
        field: of(_SIZE, field, type=int, metavar="N", help=text) for field, text in texts.items()
    }


def _sampling() -> dict[str, Callable[..., Any]]:
    def of(field: str, kind: type, text: str, **attributes: Any) -> Callable[..., Any]:
        name = f"--{field.replace('_', '-')}"
        metavar = "N" if kind is int else "X"
        default = _default(SamplingParams, field)
        return option(
            _SAMPLE, name, field, type=kind, metavar=metavar, help=text, **default, **attributes
        )

    return {
        "max_new_tokens": of("max_new_tokens", int, "Tokens of an answer, at most."),
        "temperature": of("temperature", float, "0: the likeliest token; higher: more varied."),
        "top_k": of("top_k", int, "Draw from the N likeliest tokens; 0: from all."),
        "top_p": of("top_p", float, "Draw from the likeliest tokens that add up to X."),
        "min_p": of("min_p", float, "Drop tokens less likely than X times the likeliest."),
        "seed": of("seed", int, "Of the draws  [default: one for each prompt, from its number]"),
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


def _read_options(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """`NAME.key=value` texts as {"NAME.key": "value"}; the last of a key holds."""
    options = {}
    for text in given:
        path, equals, value = text.partition("=")
        owner, dot, key = path.partition(".")
        if not (equals and owner and dot and key):
            raise ConfigError(f"--opt {text} names no option", next="--opt NAME.key=value")
        options[path] = value
    return options
