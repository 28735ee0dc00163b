"""A plugin that cannot be loaded: what is wrong with it, and the advice that fits the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.testkit.outcome import Failure, Outcome
from warcore.testkit.runs.aftermath import entry_point_of, homes_around
from warcore.testkit.runs.verdict import Verdict, raised_at

if TYPE_CHECKING:
    from warcore.records import LoadError, PluginRecord


def unloadable(record: PluginRecord, error: LoadError) -> Verdict:
    """The verdict on a plugin whose class cannot be had: at which line, and how to mend it."""
    place = raised_at(error.__cause__, homes_around(record.file))
    failure = Failure(
        entry_point_of(attrs.asdict(record)),
        error.cause,
        "" if place is None else str(place),
        mishap="cannot be loaded",
        mend=_mend(record, error.__cause__),
    )
    return Verdict(Outcome.FAILED, failure=failure)


def _mend(record: PluginRecord, raised: BaseException | None) -> str:
    """How to mend a plugin that cannot be loaded. raised: by its import; None: that went well."""
    module = record.entry_point.partition(":")[0]
    point = f'`{record.name} = "{record.entry_point}"` in pyproject.toml'
    if raised is None:
        return f"Define the class in {module}, or correct the entry point {point}."
    missing = raised.name if isinstance(raised, ModuleNotFoundError) else None
    top = module.partition(".")[0]
    own = f"{module}.".startswith(f"{missing}.")
    if missing is None or (f"{missing}.".startswith(f"{top}.") and not own):
        return f"Import it alone, by `python -c 'import {module}'`, and mend what that raises."
    if own:
        return f"See that its package holds {missing}, or correct the entry point {point}."
    return (
        f"`pip install {missing}`, or what else holds this module, and add that to `dependencies`; "
        "import what may be missing in the function that needs it."
    )
