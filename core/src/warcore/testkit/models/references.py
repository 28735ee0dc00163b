"""Which model of a family the kit loads, and in which dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.errors import WarcoreError
from warcore.model import ModelContext
from warcore.options import parse_options
from warcore.testkit.outcome import Failure, NotApplicable, Refuted, Unproven

if TYPE_CHECKING:
    import torch

    from warcore.model import Model, ModelInfo
    from warcore.testkit.subject import Subject

EXACT: Final = 64_000_000
"""Bytes of weights up to which float64 is used: rounding then hides nothing."""
LARGEST: Final = 1_000_000_000
"""Bytes of weights beyond which only a thorough run loads a model."""


@attrs.frozen(eq=False)
class Loaded:
    """A model, what its family said of it before, and how exact it computes."""

    ref: str
    described: ModelInfo
    model: Model
    device: torch.device
    tolerance: float
    """Of the largest value: what rounding in another order can make of one."""


def tries(subject: Subject) -> tuple[str, ...]:
    """The reference that was given; else those of models that may need nothing from outside."""
    name = subject.record.name
    return (name, f"{name}:tiny") if subject.reference is None else (subject.reference,)


def reference(subject: Subject) -> str:
    """The canonical form of the first of `tries` that the family serves.

    With the family's reasons, if it serves none: NotApplicable, or Unproven if one was given.
    """
    reasons = []
    for ref in tries(subject):
        try:
            found = subject.cls.recognises(ref)
        except WarcoreError as error:
            reasons.append(error.what)
            continue
        if found is not None:
            return str(found)
        reasons.append(f"{ref!r} is not recognised")
    raise _absent(subject)(f"no model of it is known: {'; '.join(reasons)}")


def options_of(subject: Subject) -> Any:
    """The options that the plugin is checked with."""
    if subject.options is not None:
        return subject.options
    return parse_options(subject.record.name, subject.cls.Options, {})


def loaded(subject: Subject) -> Loaded:
    """The model of `reference` on the subject's device, in float64 if it is small, else float32.

    NotApplicable if its files are not here, or Unproven if it was asked for by its reference;
    Unproven if it is too large for anything but a thorough run; Refuted if it cannot be loaded for
    another reason than its family's own.
    """
    import torch

    ref, options = reference(subject), options_of(subject)
    device = torch.device("cuda", 0) if subject.device == "cuda" else torch.device("cpu")
    try:
        info = subject.cls.describe(ref, options)
        exact = info.parameters * torch.float64.itemsize <= EXACT
        dtype = torch.float64 if exact else torch.float32
        if not subject.thorough:
            _refuse_large(ref, info.parameters * dtype.itemsize)
        model = subject.cls.load(ref, ModelContext(device, dtype, options))
    except WarcoreError as error:
        raise _absent(subject)(f"{ref} cannot be loaded here: {error.what}") from error
    except (NotApplicable, Unproven):
        raise
    except Exception as error:
        raise Refuted(
            Failure(f"{ref} can be loaded, or a WarcoreError says why not", f"it raised {error!r}")
        ) from error
    return Loaded(ref, info, model, device, 1e-9 if exact else 1e-4)


def _absent(subject: Subject) -> type[NotApplicable | Unproven]:
    """What it means that there is no model: nothing, unless somebody named one."""
    return NotApplicable if subject.reference is None else Unproven


def _refuse_large(ref: str, size: int) -> None:
    if size > LARGEST:
        raise Unproven(f"{ref} needs {size / 1e9:.1f} GB; a thorough run loads it")
