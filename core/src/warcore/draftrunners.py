"""Draft runners: an algorithm and its stagers, alive, around the target's runner."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from warcore.backend import BackendContext
from warcore.contract import ForwardMode
from warcore.device import EventRing
from warcore.drafting import Drafting
from warcore.errors import WiringError, blame
from warcore.hooks import read_engine_scope, read_scope
from warcore.loading import load_other_model
from warcore.memory import kv_pool, refuse_large_draft
from warcore.runner import PublishingRunner
from warcore.scope import EngineScope
from warcore.spec import SpecContext
from warcore.speculation import refuse
from warcore.stager import StagerContext
from warcore.wired import buckets_of

if TYPE_CHECKING:
    from warcore.backend import AttentionSpec
    from warcore.config import EngineConfig
    from warcore.model import Model, ModelInfo
    from warcore.options import Chosen
    from warcore.relay import Relay
    from warcore.stager import Stager
    from warcore.wired import Wired

CAPTURED = frozenset({ForwardMode.DECODE, ForwardMode.DRAFT_EXTEND})
"""Steps of a draft model that are replayed, unless its algorithm runs fewer."""


def build_drafting(
    config: EngineConfig, wired: Wired, target: PublishingRunner, model: Model, relay: Relay
) -> tuple[Drafting, Wired]:
    """Build the algorithm, its runners and the stagers, and ask them where their reads end.

    With what was wired, and the scopes that they are part of.
    """
    chosen = wired.choices.speculation
    assert chosen is not None
    name = chosen.algorithm.name
    made: list[tuple[PublishingRunner, AttentionSpec]] = []
    context = SpecContext(
        spec=chosen.spec,
        target=target,
        make_runner=partial(_make_runner, config, wired, made),
        model=model,
        load=partial(load_other_model, config, wired.choices),
        relay=relay.state,
        options=chosen.algorithm.options,
    )
    with blame(f"spec_algo {name}", "__init__"):
        algorithm = wired.forward.submit(chosen.algorithm.cls, context).result()
        target.recorded.hidden_layers = chosen.algorithm.cls.hidden_layers(model.info)
    drafts = tuple(runner for runner, _ in made)
    stagers = {each.name: _make_stager(each, wired, target, drafts) for each in chosen.stagers}
    scope = read_scope(wired.choices.backend.name, wired.backend, algorithm, name)
    engine_scope = read_engine_scope(algorithm, stagers, name)
    for runner in (target, *drafts):
        # Whoever's phase comes last, the algorithm's own reads may come later.
        runner.join(engine_scope, scope.readers[1:])
    drafting = Drafting(
        wired.device,
        name,
        algorithm,
        spec=chosen.spec,
        target=target,
        drafts=drafts,
        kv=wired.kv,
        layers=wired.choices.info.layers,
        full_to_swa=wired.shared.tables.full_to_swa,
    )
    told = attrs.evolve(wired, scope=scope, engine_scope=engine_scope, drafts=tuple(made))
    return drafting, told


def _make_stager(
    chosen: Chosen, wired: Wired, target: PublishingRunner, drafts: tuple[PublishingRunner, ...]
) -> Stager:
    statics = wired.statics_of(f"stager:{chosen.name}")
    context = StagerContext(
        target=target,
        drafts=drafts,
        shared=wired.shared.tables,
        static=statics.static,
        stage=statics.stage,
        options=chosen.options,
    )
    with blame(f"stager {chosen.name}", "__init__"):
        stager: Stager = wired.forward.submit(chosen.cls, context).result()
    return stager


def _make_runner(
    config: EngineConfig,
    wired: Wired,
    made: list[tuple[PublishingRunner, AttentionSpec]],
    model: Model,
    captured: frozenset[ForwardMode] = CAPTURED,
) -> PublishingRunner:
    """A draft model's runner: a second backend of the target's kind, over the same table."""
    choices, limits = wired.choices, wired.limits
    spec = _draft_attention(choices.spec, model.info, limits.behind)
    name = choices.backend.name
    refuse(f"backend {name}", partial(choices.backend.cls.why_not, spec), "another --backend")
    held = sum(each.nbytes for layer in wired.kv for each in layer.values())
    refuse_large_draft(model.info, spec, choices.backend, wired.pages, held)
    statics = wired.statics_of(f"backend:{name} of draft {len(made)}")
    context = BackendContext(
        spec=spec,
        max_batch=limits.max_running,
        max_tokens=limits.max_tokens,
        # A draft keeps whole sequences, whatever windows it has: the map is the target's.
        shared=attrs.evolve(wired.shared.tables, full_to_swa=None),
        kv=kv_pool(choices.backend.cls, spec, [wired.pages] * len(model.info.layers)),
        graph=choices.graph,
        options=choices.backend.options,
        static=statics.static,
        stage=statics.stage,
    )
    with blame(f"backend {name}", "__init__"):
        # On the forward stream already: the algorithm is being built there.
        backend = choices.backend.cls(context)
    runner = PublishingRunner(
        wired.device,
        model,
        backend,
        read_scope(name, backend),
        EngineScope(),
        ring=EventRing(wired.device, depth=2),
        buckets=buckets_of(config, choices, limits, backend, draft=captured),
        role="draft",
        prefill_read_done=config.prefill_read_done,
    )
    made.append((runner, spec))
    return runner


def _draft_attention(target: AttentionSpec, info: ModelInfo, behind: int) -> AttentionSpec:
    """What a backend has to serve for a draft model. WiringError for one that cannot be one.

    behind: positions of a row that are drafted behind the end of a sequence.
    """
    sizes = {(layer.q_heads, layer.kv_heads, layer.head_dim) for layer in info.layers}
    if len(sizes) != 1:
        raise WiringError(
            f"the draft model {info.name} has attention layers of {len(sizes)} sizes",
            next="draft with layers that are alike",
        )
    if info.max_context < target.max_context:
        fits = info.max_context - behind
        shorter = f"--context-length {fits}, or " if fits > 0 else ""
        raise WiringError(
            f"the draft model {info.name} holds {info.max_context} tokens, fewer than the "
            f"{target.max_context} of a row",
            next=f"{shorter}another draft model",
        )
    q_heads, kv_heads, head_dim = sizes.pop()
    return attrs.evolve(
        target,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        windows=frozenset(layer.window for layer in info.layers),
        tree=False,
        role="draft",
    )
