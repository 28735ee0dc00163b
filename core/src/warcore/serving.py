"""Who serves: the model family of a reference, and the backend that fits it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from warcore.errors import ModelError, PluginError, WiringError, blame
from warcore.records import suggestion
from warcore.registry import PluginRecord, candidates, load, select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore.backend import AttentionBackend, AttentionSpec
    from warcore.config import EngineConfig
    from warcore.model import ModelFamily
    from warcore.records import Kind

log = logging.getLogger("warcore.serving")

DEFAULT_PAGE_SIZE = 16
PATIENCE = 10.0
"""Seconds after which a person should know what is being imported."""
WORDS = {"conflict": "in conflict"}


# ---- models --------------------------------------------------------------------------------------


def find_model(
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
            raise ModelError(
                f"{name} does not recognise {config.model_ref!r}", next="give another model_ref"
            )
        return family, canonical
    ref = config.model.removeprefix("model:")
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
    hint = suggestion(word, (r.name for r in records if r.kind == "model" and r.name != word))
    lines = [*broken, *_set_aside(records, "model")]
    raise ModelError(
        f"no installed model family recognises {ref!r}{hint}"
        + "".join(f"\n  {line}" for line in lines),
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
            families.append((record.name, _load_unselected(record)))
        except PluginError as error:  # noqa: PERF203  one that is broken must not hide the others
            broken.append(error.what)
    families.sort(key=lambda named: -named[1].default_rank)
    return families, broken


def _recognises(name: str, family: type[ModelFamily], ref: str) -> str | None:
    with blame(f"model {name}", f"recognises({ref!r})"):
        return family.recognises(ref)


def _set_aside(records: Sequence[PluginRecord], kind: Kind) -> list[str]:
    """A line for each plugin of `kind` that could not even be asked, with its cause."""
    usable = candidates(records, kind)
    others = [record for record in records if record.kind == kind and record not in usable]
    return [f"{r.name} ({r.origin}) is {WORDS.get(r.state, r.state)}: {r.cause}" for r in others]


def _load_unselected(record: PluginRecord) -> Any:
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


# ---- backends ------------------------------------------------------------------------------------


def choose_backend(
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
            cls: type[AttentionBackend] = _load_unselected(record)
            spec, reasons = fit(record.name, cls)
        except PluginError as error:
            unable.append(error.what)
            continue
        if reasons:
            unable.append(f"{record.name}: {'; '.join(reasons)}")
        else:
            able.append((record.name, cls, spec))
    return able, [*unable, *_set_aside(records, "backend")]


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
