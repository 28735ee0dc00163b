"""The smaller model: named, or cut from the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore import WiringError

if TYPE_CHECKING:
    from warcore import Model, SpecContext


def smaller_model(ctx: SpecContext, ref: str | None, layers: int | None) -> Model:
    """The model that drafts. WiringError if there can be none; ModelError if `ref` is nobody's."""
    if ref is not None:
        if layers is None:
            return ctx.load(ref)
        raise WiringError(
            "spec_algo:standalone: both a model and a number of layers are named",
            next="--opt standalone.model=REF alone",
        )
    most = len(ctx.spec.target.layers) - 1
    if layers is not None and layers > most:
        raise WiringError(
            f"spec_algo:standalone: {layers} of the {most + 1} layers of {ctx.spec.target.name} "
            "are no smaller model",
            next=f"--opt standalone.layers={most}" if most else "--opt standalone.model=REF",
        )
    cut = ctx.model.truncated(layers or max((most + 1) // 3, 1)) if most else None
    if cut is None:
        raise WiringError(
            f"spec_algo:standalone: {ctx.spec.target.name} cannot be cut",
            next="--opt standalone.model=REF names another model that drafts",
        )
    return cut
