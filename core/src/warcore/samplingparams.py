"""SamplingParams: what a request asks for. Importing this module imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from warcore.draws import SEED_LIMIT
from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Check = Callable[[object, attrs.Attribute[Any], Any], None]


def _refuse(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"sampling parameter {name}={value!r}", next=f"{name} takes {allowed}")


def _whole(limit: int | None, allowed: str, *, optional: bool = False) -> Check:
    """A check for integers from 0 up to and without `limit`."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if optional and value is None:
            return
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < 0 or (limit is not None and value >= limit):
            raise _refuse(field.name, value, allowed)

    return check


def _real(low: float, high: float, allowed: str, *, open_low: bool = False) -> Check:
    """A check for finite numbers from `low` (excluded if `open_low`) up to `high`."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # NaN fails both comparisons, so it is refused with the rest.
        if not number or not low <= value <= high or (open_low and value == low):
            raise _refuse(field.name, value, allowed)

    return check


def _strings(value: str | Iterable[str]) -> tuple[str, ...]:
    return _several(value)


def _ids(value: int | Iterable[int]) -> tuple[int, ...]:
    return _several(value)


def _several(value: Any) -> tuple[Any, ...]:
    """One or several as a tuple; whether they are of the right kind is for the validator."""
    one = isinstance(value, str) or not hasattr(value, "__iter__")
    return (value,) if one else tuple(value)


def _check_stop(_: object, field: attrs.Attribute[Any], value: tuple[Any, ...]) -> None:
    if not all(isinstance(text, str) and text for text in value):
        raise _refuse(field.name, value, "strings that are not empty")


def _check_ids(_: object, field: attrs.Attribute[Any], value: tuple[Any, ...]) -> None:
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        raise _refuse(field.name, value, "token ids: integers from 0")


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen and where its answer ends.

    ConfigError names the field, its value and what it takes.
    """

    max_new_tokens: int | None = attrs.field(
        default=256, validator=_whole(None, "an integer from 0, or None", optional=True)
    )
    """At most so many new tokens; None: until the context ends."""
    temperature: float = attrs.field(
        default=0.0, validator=_real(0.0, math.nextafter(math.inf, 0), "a finite number from 0")
    )
    """The logits are divided by it; 0 takes the likeliest token."""
    top_k: int = attrs.field(default=0, validator=_whole(SEED_LIMIT, "an integer from 0 (off)"))
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = attrs.field(
        default=1.0, validator=_real(0.0, 1.0, "a number above 0 and up to 1", open_low=True)
    )
    """Keep the fewest likeliest tokens whose probabilities add up to at least this."""
    min_p: float = attrs.field(default=0.0, validator=_real(0.0, 1.0, "a number from 0 to 1"))
    """Keep the tokens at least so likely relative to the likeliest."""
    seed: int | None = attrs.field(
        default=None,
        validator=_whole(SEED_LIMIT, "an integer from 0 to 2**63-1, or None", optional=True),
    )
    """Key of the request's random numbers; None: the engine derives one for each request."""
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings, validator=_check_stop)
    """The answer ends before the first of these strings."""
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_ids, validator=_check_ids)
    """The answer ends with the first of these tokens."""
    ignore_eos: bool = False
    """Go on after the model's end-of-answer tokens."""
