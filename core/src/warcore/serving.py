"""Who serves: the model family of a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.errors import ModelError, PluginError, blame
from warcore.fitting import load_unselected, set_aside
from warcore.records import suggestion
from warcore.registry import PluginRecord, candidates, load, select

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore.config import EngineConfig
    from warcore.model import ModelFamily


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
    lines = [*broken, *set_aside(records, "model")]
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
            families.append((record.name, load_unselected(record)))
        except PluginError as error:  # noqa: PERF203  one that is broken must not hide the others
            broken.append(error.what)
    families.sort(key=lambda named: -named[1].default_rank)
    return families, broken


def _recognises(name: str, family: type[ModelFamily], ref: str) -> str | None:
    with blame(f"model {name}", f"recognises({ref!r})"):
        return family.recognises(ref)
