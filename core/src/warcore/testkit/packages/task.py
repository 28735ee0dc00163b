"""What a fresh interpreter must know of a plugin to load it and to tell its lines from others."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import attrs

from warcore.testkit.outcome import NotApplicable
from warcore.testkit.packages.sources import Package

if TYPE_CHECKING:
    from warcore.testkit.subject import Subject


def task_of(subject: Subject) -> dict[str, Any]:
    """As JSON can carry it: the record, how its files begin, and what to import before it.

    NotApplicable for a class that no import can reach, such as one inside a function.
    """
    record = subject.record
    if "<" in record.entry_point:
        raise NotApplicable(f"no other process can import {record.entry_point}")
    try:
        root = Package.of(record).root
    except NotApplicable:
        below = record.file or "\0"
    else:
        below = f"{root}/" if root.is_dir() else str(root)
    before = ["torch"] if find_spec("torch") else []
    fields = attrs.asdict(record, filter=lambda field, _: field.name != "given")
    return {"record": fields, "root": below, "before": before}
