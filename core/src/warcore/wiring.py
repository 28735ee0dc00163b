"""Wiring: names and installed plugins become one set of choices that fit, or one error.

`choose` decides and allocates nothing. The reasons of everything that does not fit are shown
together.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import attrs

from warcore.backend import AttentionBackend, AttentionSpec
from warcore.errors import ConfigError, ModelError, PluginError, WiringError, blame
from warcore.options import parse_options
from warcore.registry import PluginRecord, candidates, find_plugins, load, select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from warcore.config import EngineConfig
    from warcore.model import ModelFamily, ModelInfo

DEFAULT_PAGE_SIZE = 16


@attrs.frozen(eq=False)
class Choices:
    """What an engine will be made of."""

    family: type[ModelFamily]
    ref: str
    model_options: object
    info: ModelInfo
    backend: type[AttentionBackend]
    backend_name: str
    backend_options: object
    spec: AttentionSpec


def choose(config: EngineConfig, device: torch.device) -> Choices:
    """Find, load and fit what `config` names. Reads headers; allocates and loads no weights.

    PluginError: a named plugin is not there or broken. ModelError: the reference is nobody's.
    WiringError: something does not fit, with every reason and what could serve instead.
    """
    import torch

    records = find_plugins(disable=config.disable)
    family, ref = _find_model(config, records)
    given = _by_owner(config.options)
    model_options = _options(ref.partition(":")[0], family, given)
    with blame(f"model {family.__name__}", f"describe({ref!r})"):
        info = family.describe(ref, model_options)
    dtype: torch.dtype = getattr(torch, config.dtype)
    context = _context(config, info)

    q_heads, kv_heads, head_dim = _layer_sizes(info)

    def spec_for(page_size: int) -> AttentionSpec:
        return AttentionSpec(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            kv_dtype=dtype,
            page_size=page_size,
            max_context=context,
            windows=frozenset(layer.window for layer in info.layers),
            tree=False,
            device=device,
            role="target",
        )

    name, backend, spec = _choose_backend(config, records, spec_for)
    backend_options = _options(name, backend, given)
    if given:
        owner, options = next(iter(given.items()))
        near = difflib.get_close_matches(owner, [name, ref.partition(":")[0]], 1)
        raise ConfigError(
            f"--opt {owner}.{next(iter(options))}: {owner!r} is not part of this engine",
            next=f"did you mean {near[0]}?" if near else f"options go to {name} or the model",
        )
    return Choices(family, ref, model_options, info, backend, name, backend_options, spec)


def _context(config: EngineConfig, info: ModelInfo) -> int:
    if config.context_length is not None and config.context_length > info.max_context:
        raise ConfigError(
            f"--context-length {config.context_length}: {info.name} was made for "
            f"{info.max_context} tokens",
            next=f"--context-length {info.max_context}",
        )
    context = config.context_length or info.max_context
    if config.page_size is not None and config.page_size > max(context, DEFAULT_PAGE_SIZE):
        raise ConfigError(
            f"--page-size {config.page_size}: a page would be larger than the context of {context}",
            next=f"--page-size {DEFAULT_PAGE_SIZE}",
        )
    return context


def _layer_sizes(info: ModelInfo) -> tuple[int, int, int]:
    """(q_heads, kv_heads, head_dim) of every layer; one KV pool serves layers of one size."""
    sizes = {(layer.q_heads, layer.kv_heads, layer.head_dim) for layer in info.layers}
    if len(sizes) != 1:
        shown = ", ".join(map(str, sorted(sizes))) or "no layers at all"
        raise WiringError(
            f"{info.name} has attention layers of several sizes (q_heads, kv_heads, head_dim): "
            f"{shown}",
            next="choose a model whose layers are alike",
        )
    return sizes.pop()


# ---- models --------------------------------------------------------------------------------------


def _find_model(
    config: EngineConfig, records: Sequence[PluginRecord]
) -> tuple[type[ModelFamily], str]:
    """The family that serves `config.model` and its canonical reference."""
    if not isinstance(config.model, str):
        family: type[ModelFamily] = load(PluginRecord.of_class("model", config.model))
        name = family.__name__
        if not config.model_ref:
            return family, name
        canonical = _recognises(name, family, config.model_ref)
        if canonical is None:
            raise ModelError(f"{name} does not recognise {config.model_ref!r}")
        return family, canonical
    ref = config.model
    word = ref.partition(":")[0]
    if any(record.kind == "model" and record.name == word for record in records):
        families = [(word, load(select(records, "model", word)))]
        broken: list[str] = []
    else:
        families, broken = _model_families(records)
    for name, family in families:
        try:
            canonical = _recognises(name, family, ref)
        except PluginError as error:
            if name == word:
                raise
            broken.append(error.what)
            continue
        if canonical is not None:
            return family, canonical
    names = [record.name for record in records if record.kind == "model"]
    near = difflib.get_close_matches(word, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ModelError(
        f"no installed model family recognises {ref!r}{hint}"
        + "".join(f"\n  {line}" for line in broken),
        next="warcore list-plugins --kind model",
    )


def _model_families(
    records: Sequence[PluginRecord],
) -> tuple[list[tuple[str, type[ModelFamily]]], list[str]]:
    """Every family that loads, highest rank first, and a line for each that does not."""
    families: list[tuple[str, type[ModelFamily]]] = []
    broken = []
    for record in candidates(records, "model"):
        try:
            families.append((record.name, load(record)))
        except PluginError as error:  # noqa: PERF203  one that is broken must not hide the others
            broken.append(error.what)
    families.sort(key=lambda named: -named[1].default_rank)
    return families, broken


def _recognises(name: str, family: type[ModelFamily], ref: str) -> str | None:
    with blame(f"model {name}", f"recognises({ref!r})"):
        return family.recognises(ref)


# ---- backends ------------------------------------------------------------------------------------


def _choose_backend(
    config: EngineConfig,
    records: Sequence[PluginRecord],
    spec_for: Callable[[int], AttentionSpec],
) -> tuple[str, type[AttentionBackend], AttentionSpec]:
    """The named backend, or else the fitting one of the highest rank."""

    def fit(name: str, cls: type[AttentionBackend]) -> tuple[AttentionSpec, list[str]]:
        size, reasons = _page_size(config.page_size, cls)
        spec = spec_for(size)
        with blame(f"backend {name}", "why_not"):
            return spec, [*reasons, *cls.why_not(spec)]

    if config.backend is None:
        return _best(*_fitting(records, fit))
    named = isinstance(config.backend, str)
    record = (
        select(records, "backend", str(config.backend))
        if named
        else PluginRecord.of_class("backend", config.backend)  # type: ignore[arg-type]
    )
    cls: type[AttentionBackend] = load(record)
    spec, reasons = fit(record.name, cls)
    if reasons:
        others = [name for name, other, _ in _fitting(records, fit)[0] if other is not cls]
        lines = "".join(f"\n  {reason}" for reason in reasons)
        can = f"--backend {others[0]}" if others else "warcore list-plugins --kind backend"
        raise WiringError(f"{record.name} cannot serve this:{lines}", next=can)
    return record.name, cls, spec


def _fitting(
    records: Sequence[PluginRecord], fit: Callable[..., Any]
) -> tuple[list[tuple[str, type[AttentionBackend], AttentionSpec]], list[str]]:
    """Every candidate backend that can serve, and a line for each that cannot."""
    able, unable = [], []
    for record in candidates(records, "backend"):
        try:
            cls: type[AttentionBackend] = load(record)
            spec, reasons = fit(record.name, cls)
        except PluginError as error:
            unable.append(error.what)
            continue
        if reasons:
            unable.append(f"{record.name}: {'; '.join(reasons)}")
        else:
            able.append((record.name, cls, spec))
    return able, unable


def _best(
    able: list[tuple[str, type[AttentionBackend], AttentionSpec]], unable: list[str]
) -> tuple[str, type[AttentionBackend], AttentionSpec]:
    if not able:
        reasons = "".join(f"\n  {line}" for line in unable) or " none is installed"
        raise WiringError(
            f"no attention backend can serve this model:{reasons}",
            next="warcore list-plugins --kind backend",
        )
    rank = max(cls.default_rank for _, cls, _ in able)
    best = [choice for choice in able if choice[1].default_rank == rank]
    if len(best) > 1:
        names = ", ".join(name for name, _, _ in best)
        raise WiringError(
            f"several attention backends can serve this model: {names}",
            next=f"--backend {best[0][0]}",
        )
    return best[0]


def _page_size(wanted: int | None, cls: type[AttentionBackend]) -> tuple[int, list[str]]:
    """Tokens per page: the user's, else 16 if allowed, else the smallest allowed.

    The list says why the user's cannot be.
    """
    sizes = cls.page_sizes
    if wanted is not None:
        if sizes is not None and wanted not in sizes:
            return wanted, [
                f"a page size of {wanted} (it has {', '.join(map(str, sorted(sizes)))})"
            ]
        return wanted, []
    if sizes is None or DEFAULT_PAGE_SIZE in sizes:
        return DEFAULT_PAGE_SIZE, []
    return min(sizes), []


# ---- options -------------------------------------------------------------------------------------


def _by_owner(options: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """{"NAME.key": value} by NAME."""
    found: dict[str, dict[str, str]] = {}
    for path, value in options.items():
        owner, dot, key = path.partition(".")
        if not (owner and dot and key):
            raise ConfigError(f"--opt {path}={value} names no option", next="--opt NAME.key=value")
        found.setdefault(owner, {})[key] = value
    return found


def _options(name: str, cls: Any, given: dict[str, dict[str, str]]) -> object:
    return parse_options(name, cls.Options, given.pop(name, {}))
