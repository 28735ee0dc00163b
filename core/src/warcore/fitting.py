"""Which plugin of a kind serves: the one that was named, or the best of those that fit."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import attrs

from warcore.contract import ForwardMode, GraphKind
from warcore.errors import PluginError, WiringError, blame, cannot_serve
from warcore.registry import PluginRecord, candidates, load, select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from warcore.backend import AttentionBackend, AttentionSpec
    from warcore.config import EngineConfig
    from warcore.graphs import GraphRunner
    from warcore.records import Kind

    Judge = Callable[[str, type[Any]], tuple[AttentionSpec, list[str]]]

log = logging.getLogger("warcore.serving")

DEFAULT_PAGE_SIZE = 16
PATIENCE = 10.0
"""Seconds after which a person should know what is being imported."""
WORDS = {"conflict": "in conflict"}
_HALVES = "; or other names for --prefill-backend and --decode-backend"
NOUNS: dict[str, str] = {"backend": "attention backend", "graph_runner": "graph runner"}


@attrs.frozen(eq=False)
class Fit:
    """A plugin class that can serve, and what it would serve."""

    name: str
    cls: type[Any]
    spec: AttentionSpec
    parts: Mapping[str, str] = attrs.field(factory=dict)
    """Of a hybrid, {"prefill": name, "decode": name}."""


def choose_backend(
    config: EngineConfig,
    records: Sequence[PluginRecord],
    spec_for: Callable[[int], AttentionSpec],
) -> Fit:
    """The named backend, or else the fitting one of the highest rank.

    spec_for: what is to be served with pages of so many tokens.
    """

    def judge(name: str, cls: type[AttentionBackend]) -> tuple[AttentionSpec, list[str]]:
        size, reasons = _page_size(config.page_size, cls)
        spec = spec_for(size)
        return spec, [*reasons, *_reasons(f"backend {name}", cls, spec)]

    if config.prefill_backend is not None:
        assert config.decode_backend is not None
        return _both(config.prefill_backend, config.decode_backend, records, judge)
    if config.backend is not None:
        return _named("backend", config.backend, records, judge)
    able, unable = _fitting("backend", records, judge)
    if not able:
        reasons = "".join(f"\n  {line}" for line in unable) or " none is installed"
        raise WiringError(
            f"no attention backend can serve this model:{reasons}",
            next="warcore list-plugins --kind backend",
        )
    return _best("backend", able)


def _both(prefill: Any, decode: Any, records: Sequence[PluginRecord], judge: Judge) -> Fit:
    """Two backends as one. WiringError with all reasons why they cannot serve together."""
    from warcore.hybrid import hybrid_of

    names, classes = [], []
    for wanted in (prefill, decode):
        named = isinstance(wanted, str)
        record = (
            select(records, "backend", wanted)
            if named
            else PluginRecord.of_class("backend", wanted)
        )
        names.append(record.name)
        classes.append(load(record))
    cls, name = hybrid_of(*classes), "+".join(names)
    spec, reasons = judge(name, cls)
    if reasons:
        raise cannot_serve(name, reasons, f"{_who_can('backend', records, judge)}{_HALVES}")
    return Fit(name, cls, spec, dict(zip(cls.children, names, strict=True)))


def choose_graph_runner(
    config: EngineConfig,
    records: Sequence[PluginRecord],
    spec: AttentionSpec,
    *,
    graphs: bool,
) -> tuple[Fit | None, tuple[str, ...]]:
    """The named graph runner, or else the fitting one of the highest rank; None: no graphs.

    With a line for each that could not serve, if none was named and it is not switched off.
    graphs: whether the device has them. WiringError if one was named and it has not.
    """

    def judge(name: str, cls: type[Any]) -> tuple[AttentionSpec, list[str]]:
        _check_facts(name, cls)
        return spec, _reasons(f"graph_runner {name}", cls, spec)

    wanted = config.graph_runner
    if wanted == "none" or (wanted is None and not graphs):
        return None, ()
    if not graphs:
        name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", wanted)
        raise WiringError(
            f"graph runner {name}: this device ({spec.device}) has no graphs",
            next="--graph-runner none",
        )
    if wanted is not None:
        return _named("graph_runner", wanted, records, judge), ()
    on = [record for record in records if record.state != "disabled"]
    able, unable = _fitting("graph_runner", on, judge)
    for line in unable:
        log.info("graph runner %s", line)
    return _best("graph_runner", able) if able else None, tuple(unable)


def _reasons(who: str, cls: type[Any], spec: AttentionSpec) -> list[str]:
    """Why it cannot serve, in its own words. PluginError if that is no list of texts."""
    with blame(who, "why_not"):
        reasons: Any = cls.why_not(spec)
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise PluginError(
            f"{who}: why_not returned {reasons!r}, which is no list of texts",
            next="return [] if it can serve, else every reason",
        )
    return reasons


def _check_facts(name: str, cls: type[GraphRunner]) -> None:
    """PluginError for a graph runner whose class says what cannot be."""
    modes: Any = cls.modes
    known = isinstance(modes, (set, frozenset)) and modes <= set(ForwardMode)
    if not known or not modes:
        raise PluginError(
            f"graph_runner:{name}: modes is {modes!r}, which names no kinds of step",
            next="modes = frozenset({ForwardMode.DECODE}) in its class, or --graph-runner none",
        )
    if cls.kind not in {GraphKind.UNBROKEN, GraphKind.BREAKABLE}:
        raise PluginError(
            f"graph_runner:{name}: kind is {cls.kind!r}, which is no kind of graph",
            next="kind = GraphKind.UNBROKEN or BREAKABLE in its class",
        )


def _named(kind: Kind, wanted: Any, records: Sequence[PluginRecord], judge: Judge) -> Fit:
    """What the config names. WiringError with every reason why it cannot serve."""
    named = isinstance(wanted, str)
    record = select(records, kind, wanted) if named else PluginRecord.of_class(kind, wanted)
    cls: type[Any] = load(record)
    spec, reasons = judge(record.name, cls)
    if reasons:
        raise cannot_serve(record.name, reasons, _who_can(kind, records, judge))
    return Fit(record.name, cls, spec)


def _who_can(kind: Kind, records: Sequence[PluginRecord], judge: Judge) -> str:
    """The option that names the best of those that can serve, and who else could."""
    able = sorted(_fitting(kind, records, judge)[0], key=lambda fit: -fit.cls.default_rank)
    if not able:
        return f"warcore list-plugins --kind {kind}"
    best, *others = (fit.name for fit in able)
    more = f", or one of: {', '.join(others)}" if others else ""
    return f"--{kind.replace('_', '-')} {best}{more}"


def _fitting(
    kind: Kind, records: Sequence[PluginRecord], judge: Judge
) -> tuple[list[Fit], list[str]]:
    """Every candidate that can serve, and a line for each that cannot."""
    able, unable = [], []
    for record in candidates(records, kind):
        try:
            cls: type[Any] = load_unselected(record)
            spec, reasons = judge(record.name, cls)
        except PluginError as error:
            unable.append(error.what)
            continue
        if reasons:
            unable.append(f"{record.name}: {'; '.join(reasons)}")
        else:
            able.append(Fit(record.name, cls, spec))
    return able, [*unable, *set_aside(records, kind)]


def _best(kind: Kind, able: list[Fit]) -> Fit:
    rank = max(fit.cls.default_rank for fit in able)
    best = [fit for fit in able if fit.cls.default_rank == rank]
    if len(best) > 1:
        names = ", ".join(fit.name for fit in best)
        raise WiringError(
            f"several {NOUNS[kind]}s can serve this model: {names}",
            next=f"--{kind.replace('_', '-')} {best[0].name}",
        )
    return best[0]


def set_aside(records: Sequence[PluginRecord], kind: Kind) -> list[str]:
    """A line for each plugin of `kind` that could not even be asked, with its cause."""
    usable = candidates(records, kind)
    others = [record for record in records if record.kind == kind and record not in usable]
    return [f"{r.name} ({r.origin}) is {WORDS.get(r.state, r.state)}: {r.cause}" for r in others]


def load_unselected(record: PluginRecord) -> Any:
    """Import a plugin that nobody named; one that takes long is named before anybody wonders."""
    timer = threading.Timer(
        PATIENCE, log.warning, ("still importing %s. Next: --disable %s", record, record.name)
    )
    timer.daemon = True
    timer.start()
    try:
        return load(record)
    finally:
        timer.cancel()


def _page_size(wanted: int | None, cls: type[AttentionBackend]) -> tuple[int, list[str]]:
    """Tokens per page: the user's, else 16 if allowed, else the smallest allowed.

    The list says why the user's cannot be.
    """
    sizes = cls.page_sizes
    if sizes is not None and not sizes:  # of two backends in one
        return wanted or DEFAULT_PAGE_SIZE, ["no page size in common"]
    if wanted is not None:
        if sizes is not None and wanted not in sizes:
            known = ", ".join(map(str, sorted(sizes)))
            return wanted, [f"a page size of {wanted} (it has {known})"]
        return wanted, []
    if sizes is None or DEFAULT_PAGE_SIZE in sizes:
        return DEFAULT_PAGE_SIZE, []
    return min(sizes), []
