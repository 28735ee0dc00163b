"""Choices: names and installed plugins become one set of parts that fit, or one error.

`choose` decides and allocates nothing. The reasons of everything that does not fit are shown
together.
"""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from warcore.backend import AttentionSpec
from warcore.contract import GraphKind
from warcore.errors import ConfigError, WiringError, blame
from warcore.fitting import DEFAULT_PAGE_SIZE, Fit, choose_backend, choose_graph_runner
from warcore.options import Chosen, parse_options
from warcore.registry import find_plugins
from warcore.serving import find_model
from warcore.speculation import (
    choose_speculation,
    drafted_tokens,
    named_algorithm,
    room_for_drafts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore.config import EngineConfig
    from warcore.device import Device
    from warcore.model import ModelFamily, ModelInfo
    from warcore.speculation import Speculation


@attrs.frozen(eq=False)
class Choices:
    """What an engine will be made of."""

    family: type[ModelFamily]
    ref: str
    model_options: object
    info: ModelInfo
    spec: AttentionSpec
    """What the backend serves."""
    backend: Chosen
    graph_runner: Chosen | None
    """None: every step runs eagerly."""
    speculation: Speculation | None = None
    """None: every decode step gives one token."""
    unable_graph_runners: tuple[str, ...] = ()
    """A line for each that could not serve, with its cause, where none was named."""

    @property
    def drafted(self) -> int:
        """Tokens that are drafted for each request and step."""
        return 0 if self.speculation is None else self.speculation.spec.num_tokens

    @property
    def context(self) -> int:
        """Tokens of a sequence; a row holds what is drafted behind them too."""
        return self.spec.max_context - (self.drafted + 1 if self.drafted else 0)

    @property
    def window(self) -> int | None:
        """The longest window of the model if layers with windows have a pool of their own."""
        windows = [layer.window for layer in self.info.layers if layer.window is not None]
        return max(windows) if windows and self.backend.cls.window_pool else None

    @property
    def graph(self) -> GraphKind:
        """How steps are replayed; backends know it before they vote."""
        if self.graph_runner is None:
            return GraphKind.NONE
        kind: GraphKind = self.graph_runner.cls.kind
        return kind


def choose(config: EngineConfig, device: Device) -> Choices:
    """Find, load and fit what `config` names. Reads headers; allocates and loads no weights.

    PluginError: a named plugin is not there or broken. ModelError: the reference is nobody's.
    WiringError: something does not fit, with every reason and what could serve instead.
    """
    records = find_plugins(disable=config.disable)
    family, ref = find_model(config, records)
    given = _by_owner(config.options)
    model_options = _options(ref.partition(":")[0], family, given)
    with blame(f"model {family.__name__}", f"describe({ref!r})"):
        info = family.describe(ref, model_options)
    algorithm = named_algorithm(config, records)
    drafted = 0 if algorithm is None else drafted_tokens(config, algorithm[1])
    row = _row(config, info, drafted)
    fit = choose_backend(config, records, partial(_attention, config, info, device, row))
    backend = Chosen(fit.name, fit.cls, _backend_options(fit, given))
    runner, unable = choose_graph_runner(config, records, fit.spec, graphs=device.supports_graphs)
    _check_graph_sizes(config, runner)
    graph_runner = None
    if runner is not None:
        options = _options(runner.name, runner.cls, given)
        graph_runner = Chosen(runner.name, runner.cls, options)
    speculation = None
    if algorithm is not None:
        speculation = choose_speculation(
            config,
            records,
            algorithm,
            info=info,
            attention=fit.spec,
            backend=fit.cls,
            options=partial(_options, given=given),
        )
    parts = [ref.partition(":")[0], *(fit.parts.values() or [fit.name])]
    parts += [] if graph_runner is None else [graph_runner.name]
    parts += [] if speculation is None else speculation.names
    _all_used(given, parts)
    return Choices(
        family, ref, model_options, info, fit.spec, backend, graph_runner, speculation, unable
    )


def _attention(
    config: EngineConfig, info: ModelInfo, device: Device, row: int, page_size: int
) -> AttentionSpec:
    """What a backend has to serve, with pages of so many tokens."""
    import torch

    q_heads, kv_heads, head_dim = _layer_sizes(info)
    dtype: torch.dtype = getattr(torch, config.dtype)
    return AttentionSpec(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        kv_dtype=dtype,
        page_size=page_size,
        max_context=row,
        windows=frozenset(layer.window for layer in info.layers),
        tree=config.spec_topk > 1,
        device=device.torch_device,
        role="target",
    )


def _row(config: EngineConfig, info: ModelInfo, drafted: int) -> int:
    """Tokens of a row of the table: a sequence, and what is drafted behind its end."""
    context = _context(config, info, drafted)
    if not drafted:
        return context
    asked = config.context_length is not None
    return room_for_drafts(context, info.max_context, drafted, asked=asked) + drafted + 1


def _check_graph_sizes(config: EngineConfig, runner: Fit | None) -> None:
    """ConfigError for sizes of graphs where there are none."""
    sizes = config.graph_buckets, config.graph_prefill_buckets, config.graph_positions
    if runner is None and any(sizes):
        raise ConfigError(
            "there are sizes for graphs, but no graph runner is part of this engine",
            next="warcore list-plugins --kind graph_runner",
        )


def _all_used(given: dict[str, dict[str, str]], owners: list[str]) -> None:
    """ConfigError for an option whose owner is not among `owners`."""
    if given:
        owner, options = next(iter(given.items()))
        near = difflib.get_close_matches(owner, owners, 1)
        raise ConfigError(
            f"--opt {owner}.{next(iter(options))}: {owner!r} is not part of this engine",
            next=f"did you mean {near[0]}?" if near else f"options go to {', '.join(owners)}",
        )


def _context(config: EngineConfig, info: ModelInfo, drafted: int) -> int:
    if config.context_length is not None and config.context_length > info.max_context:
        most = info.max_context - (drafted + 1 if drafted else 0)
        raise ConfigError(
            f"--context-length {config.context_length}: {info.name} was made for "
            f"{info.max_context} tokens",
            next=f"--context-length {most}" if most > 0 else "a smaller --spec-tokens",
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


def _by_owner(options: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """{"NAME.key": value} by NAME."""
    found: dict[str, dict[str, str]] = {}
    for path, value in options.items():
        owner, dot, key = path.partition(".")
        if not (owner and dot and key):
            raise ConfigError(f"--opt {path}={value} names no option", next="--opt NAME.key=value")
        found.setdefault(owner, {})[key] = value
    return found


def _backend_options(backend: Fit, given: dict[str, dict[str, str]]) -> object:
    if not backend.parts:
        return _options(backend.name, backend.cls, given)
    # Copies of what was given: one backend may serve both halves.
    options = {
        part: _options(name, backend.cls.children[part], dict(given))
        for part, name in backend.parts.items()
    }
    for name in backend.parts.values():
        given.pop(name, None)
    return options


def _options(name: str, cls: Any, given: dict[str, dict[str, str]]) -> object:
    return parse_options(name, cls.Options, given.pop(name, {}))
