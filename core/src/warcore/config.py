"""EngineConfig: everything a person may set about an engine. Importing it imports no torch."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warcore.backend import AttentionBackend
    from warcore.graphs import GraphRunner
    from warcore.model import ModelFamily
    from warcore.spec import SpecAlgorithm
    from warcore.stager import Stager

DTYPES = ("bfloat16", "float16", "float32", "float64")


def _one_of(*words: str) -> Any:
    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if value not in words:
            near = difflib.get_close_matches(str(value), words, 1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(words)}"
            raise ConfigError(f"{field.name}={value!r} is not known", next=hint)

    return check


def _at_least(least: int) -> Any:
    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < least):  # type: ignore[operator]
            raise ConfigError(f"{field.name}={value!r}", next=f"give a whole number from {least}")

    return check


def _is(kind: type, what: str) -> Any:
    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise ConfigError(f"{field.name}={value!r} is not {what}", next=f"give {what}")

    return check


def _plugin(_: object, field: attrs.Attribute[Any], value: object) -> None:
    named = value is None or (isinstance(value, str) and value) or isinstance(value, type)
    if not named or (value is None and field.name == "model"):
        raise ConfigError(
            f"{field.name}={value!r} is neither a name nor a class",
            next=f"warcore list-plugins --kind {field.name}",
        )


def _plugins(_: object, field: attrs.Attribute[Any], value: object) -> None:
    for each in value:  # type: ignore[attr-defined]
        if not ((isinstance(each, str) and each) or isinstance(each, type)):
            raise ConfigError(
                f"{field.name}={value!r}: {each!r} is neither a name nor a class",
                next="warcore list-plugins --kind stager",
            )


def _names(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if not all(isinstance(name, str) for name in value):  # type: ignore[attr-defined]
        raise ConfigError(f"{field.name}={value!r}", next="give names of plugins")


def _several(value: Any) -> Any:
    """One name is a list of one; what is no list at all is left to the validator."""
    one = isinstance(value, (str, type)) or not hasattr(value, "__iter__")
    return (value,) if one else tuple(value)


def _listed(value: Any) -> Any:
    """Any sequence as a tuple; what is none is left to the validator."""
    return tuple(value) if isinstance(value, (list, tuple, range)) else value


def _texts(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, dict) or not all(
        isinstance(t, str) for kv in value.items() for t in kv
    ):
        raise ConfigError(f"{field.name}={value!r}", next='give {"NAME.key": "value"}, all text')


def _sizes(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    """Whole numbers from 1, each larger than the one before; at least one."""
    if value is None:
        return
    sizes = value if isinstance(value, tuple) else ()
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    rising = whole and all(a < b for a, b in zip([0, *sizes], sizes))  # noqa: B905  one is longer
    if not sizes or not rising:
        raise ConfigError(
            f"{field.name}={value!r}",
            next="give sizes from 1 in rising order, such as 1,2,4,8",
        )


@attrs.frozen(kw_only=True)
class EngineConfig:
    """What to assemble and how large. ConfigError names the field, the value and what fits."""

    model: str | type[ModelFamily] = attrs.field(validator=_plugin)
    """A registered name, NAME:ARGUMENT or a path; or a ModelFamily class of your own."""
    model_ref: str = attrs.field(default="", validator=_is(str, "text"))
    """What a class of your own shall recognise and load; empty: its name."""
    backend: str | type[AttentionBackend] | None = attrs.field(default=None, validator=_plugin)
    """A registered name or a class of your own; None: the one that can serve, best rank first."""
    prefill_backend: str | type[AttentionBackend] | None = attrs.field(
        default=None, validator=_plugin
    )
    """For prefills, with `decode_backend` for the other steps, in place of `backend`."""
    decode_backend: str | type[AttentionBackend] | None = attrs.field(
        default=None, validator=_plugin
    )
    graph_runner: str | type[GraphRunner] | None = attrs.field(default=None, validator=_plugin)
    """A registered name or a class of your own; "none": every step runs eagerly; None: the one
    that can serve, best rank first, if the device has graphs."""
    graph_buckets: Sequence[int] | None = attrs.field(
        default=None, converter=_listed, validator=_sizes
    )
    """Batch sizes at which decodes are captured, rising; None: powers of two."""
    graph_prefill_buckets: Sequence[int] | None = attrs.field(
        default=None, converter=_listed, validator=_sizes
    )
    """Token counts at which prefills are captured, rising; None: some on CUDA, none on a CPU."""
    graph_positions: int | None = attrs.field(default=None, validator=_at_least(1))
    """Capture no step that attends to more positions, over all its rows; None: 1024 on a CPU,
    any number elsewhere. Longer steps run eagerly."""
    spec_algo: str | type[SpecAlgorithm] | None = attrs.field(default=None, validator=_plugin)
    """The speculative algorithm: a registered name or a class of your own; None: none."""
    spec_tokens: int | None = attrs.field(default=None, validator=_at_least(1))
    """Tokens that it drafts for each request and step; None: its own default."""
    spec_topk: int = attrs.field(default=1, validator=_at_least(1))
    """Alternatives at each position; 1: a chain."""
    stagers: Sequence[str | type[Stager]] = attrs.field(
        default=(), converter=_several, validator=_plugins
    )
    """Stagers for it: registered names or classes of your own."""
    dtype: str = attrs.field(default="bfloat16", validator=_one_of(*DTYPES))
    device: str = attrs.field(default="auto", validator=_is(str, "text"))
    """auto, host or cuda."""
    host: str = attrs.field(default="auto", validator=_is(str, "text"))
    """How the host device runs streams: auto, threads, inline or seeded:N."""
    loop: str = attrs.field(default="overlap", validator=_one_of("overlap", "normal"))
    fence: str = attrs.field(default="declared", validator=_one_of("declared", "coarse"))
    prefill_read_done: bool = attrs.field(default=True, validator=_is(bool, "True or False"))
    """Whether prefill steps may publish a read-done event."""
    mixed: bool = attrs.field(default=False, validator=_is(bool, "True or False"))
    """Mix prefill chunks with decodes in one step; such steps have a coarse fence."""
    prefill_chunk: int = attrs.field(default=512, validator=_at_least(1))
    """Prompt tokens per step, over all requests."""
    page_size: int | None = attrs.field(default=None, validator=_at_least(1))
    """Tokens per page; None: 16 if the backend allows it, else the smallest that it does."""
    max_running_requests: int = attrs.field(default=32, validator=_at_least(1))
    context_length: int | None = attrs.field(default=None, validator=_at_least(1))
    """Tokens one sequence may hold; None: what the model was made for."""
    kv_pages: int | None = attrs.field(default=None, validator=_at_least(1))
    """Pages of the KV pool; None: enough for all requests, within 40 % of the free memory."""
    seed: int = attrs.field(default=0, validator=_at_least(0))
    """What the seeds of requests without one are derived from."""
    disable: Sequence[str] = attrs.field(default=(), converter=_several, validator=_names)
    """Plugins to leave out: NAME or KIND:NAME."""
    options: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    """Options of plugins: {"NAME.key": "value"}."""

    def __attrs_post_init__(self) -> None:
        if self.loop == "normal" and self.fence == "coarse":
            raise ConfigError(
                "fence='coarse' with loop='normal': the normal loop has no fence",
                next="loop='overlap', or leave the fence out",
            )
        halves = {
            "prefill_backend": self.prefill_backend,
            "decode_backend": self.decode_backend,
        }
        named = [name for name, value in halves.items() if value is not None]
        if named and (len(named) < len(halves) or self.backend is not None):
            raise ConfigError(
                f"{named[0]} stands for half of the steps",
                next="--prefill-backend NAME with --decode-backend NAME, or --backend NAME alone",
            )
        given = {
            "spec_tokens": self.spec_tokens,
            "spec_topk": self.spec_topk > 1,
            "stagers": self.stagers,
        }
        alone = [name for name, value in given.items() if value]
        if alone and self.spec_algo is None:
            raise ConfigError(
                f"{' and '.join(alone)} without a speculative algorithm",
                next="--spec-algo NAME; warcore list-plugins --kind spec_algo has names",
            )
