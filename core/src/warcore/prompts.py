"""Prompts: from what a person gave to token ids that the engine can serve, or a RequestError."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from warcore.draws import seed_of
from warcore.errors import ConfigError, RequestError, WarcoreError
from warcore.request import Request
from warcore.samplingparams import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore.assembly import Assembly
    from warcore.limits import Limits
    from warcore.model import Tokenizer


def request_of(
    prompt: str | Sequence[int],
    params: SamplingParams,
    parts: Assembly,
    *,
    number: int,
    system: str | None,
    raw: bool,
    streams: bool,
) -> Request:
    """A request that the engine of these parts can serve. RequestError for one that it cannot."""
    model, limits = parts.model, parts.wired.limits
    request = Request.new(
        number,
        prompt if isinstance(prompt, str) else None,
        prompt_ids(prompt, model.tokenizer, model.info.vocab_size, system=system, raw=raw),
        params,
        tokenizer=model.tokenizer,
        max_context=limits.max_context,
        seed=seed_of(parts.config.seed, number) if params.seed is None else params.seed,
        streams=streams,
    )
    check_fits(request, limits, model.info.max_context - limits.behind)
    return request


def prompt_ids(
    prompt: object, tokenizer: Tokenizer, vocab: int, *, system: str | None, raw: bool
) -> list[int]:
    """The ids of a text, under the chat template unless `raw`, or of ids as they are.

    RequestError: it is neither, it is empty, or it names a token that the model does not have.
    """
    if isinstance(prompt, str):
        ids = _tokenize(prompt, tokenizer, system=system, raw=raw)
    else:
        ids = _numbers(prompt)
    bad = [i for i in ids if not 0 <= i < vocab]
    if bad:
        raise RequestError(f"token id {bad[0]} is not in the model's vocabulary of {vocab}")
    if not ids:
        raise RequestError("the prompt is empty: there is nothing to continue")
    return ids


def check_fits(request: Request, limits: Limits, most: int) -> None:
    """RequestError if `request` could not be served even alone.

    most: the longest context that the model allows, with what is drafted behind it.
    """
    length = len(request.prompt_ids)
    if length > limits.max_context:
        raise RequestError(
            f"the prompt has {length} tokens; the context holds {limits.max_context}",
            next="shorten the prompt"
            if limits.max_context == most
            else f"shorten the prompt, or raise --context-length (up to {most})",
        )
    capacity = limits.capacity
    if request.most_tokens > capacity:
        raise RequestError(
            f"the request may need {request.most_tokens} tokens of KV; the pool holds "
            f"{capacity} ({limits.pages} pages of {limits.page_size})",
            next="raise --kv-pages"
            if length > capacity
            else f"raise --kv-pages, or ask for at most {capacity - length + 1} new tokens",
        )


def _tokenize(prompt: str, tokenizer: Tokenizer, *, system: str | None, raw: bool) -> list[int]:
    try:
        ids = tokenizer.encode(prompt) if raw else tokenizer.chat(prompt, system)
        return [index(i) for i in ids]
    except WarcoreError as error:
        raise RequestError(error.what, next=error.next) from error
    except Exception as error:
        what = f"the tokenizer could not encode the prompt: {type(error).__name__}: {error}"
        raise RequestError(what, next="run with --debug for the traceback") from error


def _numbers(prompt: object) -> list[int]:
    try:
        if isinstance(prompt, (bytes, bytearray)):
            raise TypeError("bytes are neither")  # noqa: TRY301  one way out for all that is not
        return [index(i) for i in prompt]  # type: ignore[attr-defined]
    except TypeError as error:
        raise RequestError(
            f"a prompt is a text or a list of token ids, not {prompt!r}",
            next="generate(['text', [1, 2, 3]])",
        ) from error


def one_each(params: Any, count: int) -> list[SamplingParams | None]:
    """Sampling parameters for each of `count` prompts. ConfigError if they are none, or too few."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    each = list(params) if isinstance(params, (list, tuple)) else [params]
    wrong = [one for one in each if not isinstance(one, SamplingParams)]
    if wrong:
        raise ConfigError(
            f"params={wrong[0]!r} is no SamplingParams", next="SamplingParams(max_new_tokens=16)"
        )
    if len(each) != count:
        raise ConfigError(
            f"{count} prompts, but {len(each)} sampling parameters", next="give one, or one each"
        )
    return each


def several(prompts: Any) -> list[Any]:
    """One prompt or many, as a list. ConfigError for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (list, tuple)):
        return list(prompts)
    raise ConfigError(
        f"prompts={type(prompts).__name__} is neither a text nor a list of prompts",
        next="generate('text') or generate(['text', [1, 2, 3]])",
    )
