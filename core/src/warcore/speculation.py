"""Speculation: which algorithm an engine drafts with, for what, and who stages for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import ConfigError, WiringError, blame, cannot_serve
from warcore.options import Chosen
from warcore.pools import pages_for
from warcore.registry import PluginRecord, load, select
from warcore.spec import DraftSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from warcore.backend import AttentionBackend, AttentionSpec, TensorSpec
    from warcore.config import EngineConfig
    from warcore.limits import Limits
    from warcore.model import ModelInfo
    from warcore.records import Kind
    from warcore.spec import SpecAlgorithm


@attrs.frozen(eq=False)
class Speculation:
    """Who drafts, how many tokens, and who stages."""

    algorithm: Chosen
    spec: DraftSpec
    stagers: tuple[Chosen, ...]
    relay: Mapping[str, TensorSpec]

    @property
    def names(self) -> list[str]:
        """Of the algorithm and the stagers."""
        return [self.algorithm.name, *(stager.name for stager in self.stagers)]


def named_algorithm(
    config: EngineConfig, records: Sequence[PluginRecord]
) -> tuple[str, type[SpecAlgorithm]] | None:
    """(name, class) of the algorithm that `config` names; None: none is named."""
    if config.spec_algo is None:
        return None
    name, cls = _named("spec_algo", config.spec_algo, records)
    if config.spec_topk > 1 and not cls.tree:
        raise WiringError(f"spec_algo:{name} drafts no trees", next="--spec-topk 1")
    return name, cls


def choose_speculation(
    config: EngineConfig,
    records: Sequence[PluginRecord],
    named: tuple[str, type[SpecAlgorithm]],
    *,
    info: ModelInfo,
    attention: AttentionSpec,
    backend: type[AttentionBackend],
    options: Callable[[str, Any], object],
) -> Speculation:
    """What fits. WiringError with every reason why the algorithm or a stager cannot serve."""
    name, cls = named
    spec = DraftSpec(
        target=info,
        num_tokens=drafted_tokens(config, cls),
        topk=config.spec_topk,
        max_context=attention.max_context,
        dtype=attention.dtype,
        device=attention.device,
    )
    refuse(f"spec_algo {name}", partial(cls.why_not, spec), "--spec-tokens N, or another one")
    if spec.topk > 1:
        _can_be_compacted(backend, attention)
    stagers = []
    for wanted in config.stagers:
        stager_name, stager = _named("stager", wanted, records)
        who = f"stager {stager_name}"
        refuse(who, partial(stager.why_not, cls), "warcore list-plugins --kind stager")
        stagers.append(Chosen(stager_name, stager, options(stager_name, stager)))
    with blame(f"spec_algo {name}", "relay"):
        relay = cls.relay(spec)
    chosen = Chosen(name, cls, options(name, cls))
    return Speculation(chosen, spec, tuple(stagers), relay)


def drafted_tokens(config: EngineConfig, cls: type[SpecAlgorithm]) -> int:
    """K, as the config or else the algorithm has it."""
    return config.spec_tokens or cls.default_tokens


def _named(kind: Kind, wanted: Any, records: Sequence[PluginRecord]) -> tuple[str, Any]:
    named = isinstance(wanted, str)
    record = select(records, kind, wanted) if named else PluginRecord.of_class(kind, wanted)
    return record.name, load(record)


def refuse(who: str, why_not: Callable[[], list[str]], remedy: str) -> None:
    """WiringError with every reason why `who` cannot serve, if there is one."""
    with blame(who, "why_not"):
        reasons = why_not()
    if reasons:
        raise cannot_serve(who, reasons, remedy)


def _can_be_compacted(backend: type[AttentionBackend], attention: AttentionSpec) -> None:
    """What stands of a tree is moved token by token: pages have to hold tokens one by one."""
    for name, memory in backend.kv_cache(attention).items():
        if memory.shape[:1] != (attention.page_size,):
            raise WiringError(
                f"{backend.__name__} keeps {name!r} in pages of {list(memory.shape)}, of which no "
                f"token can be moved alone, as a tree of drafts needs",
                next="--spec-topk 1",
            )


def room_for_drafts(context: int, most: int, drafted: int, *, asked: bool) -> int:
    """Tokens of a sequence, so that what is drafted behind its end still has positions.

    most: what the model was made for. ConfigError if `context` was asked for and is too long, or
    if more is drafted than it holds.
    """
    fits = most - drafted - 1
    if asked and 0 < fits < context:
        raise ConfigError(
            f"--context-length {context}: with {drafted} drafted tokens the model of {most} tokens "
            f"holds {fits}",
            next=f"--context-length {fits}",
        )
    context = min(context, fits)
    if drafted >= context:
        raise ConfigError(
            f"{drafted} drafted tokens are more than a sequence can need: it holds "
            f"{max(context, 0)} tokens, of the model's {most}",
            next="a smaller --spec-tokens",
        )
    return context


def refuse_small_pool(limits: Limits) -> None:
    """ConfigError if not even a sequence of one token has pages for what is drafted behind it."""
    if limits.drafted and limits.longest < 1:
        raise ConfigError(
            f"{limits.pages} KV pages of {limits.page_size} tokens have no room for a sequence and "
            f"{limits.drafted} drafted tokens",
            next=f"--kv-pages {pages_for(limits.behind + 1, limits.page_size)} at least, or a "
            "smaller --spec-tokens",
        )
