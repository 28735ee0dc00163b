"""Loading: the weights of an engine's models."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from warcore.errors import blame
from warcore.model import ModelContext
from warcore.options import parse_options
from warcore.registry import find_plugins
from warcore.serving import find_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.choices import Choices
    from warcore.config import EngineConfig
    from warcore.model import Model


def load_model(choices: Choices, progress: Callable[[str, int, int], None] | None = None) -> Model:
    """The target's weights."""
    spec = choices.spec
    weights = None if progress is None else partial(progress, "weights")
    context = ModelContext(spec.device, spec.dtype, choices.model_options, weights)
    with blame(f"model {choices.family.__name__}", f"load({choices.ref!r})"):
        return choices.family.load(choices.ref, context)


def load_other_model(config: EngineConfig, choices: Choices, ref: str) -> Model:
    """The model of another reference, beside the target and with its dtype; options: the defaults.

    ModelError if the reference is nobody's.
    """
    wanted = attrs.evolve(config, model=ref, model_ref="")
    family, canonical = find_model(wanted, find_plugins(disable=config.disable))
    options = parse_options(canonical.partition(":")[0], family.Options, {})
    context = ModelContext(choices.spec.device, choices.spec.dtype, options)
    with blame(f"model {family.__name__}", f"load({canonical!r})"):
        return family.load(canonical, context)
