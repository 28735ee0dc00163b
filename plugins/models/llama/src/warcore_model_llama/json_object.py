"""JSON objects in files, read with the types that are expected of them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from warcore_model_llama.refusals import damaged, unreadable

if TYPE_CHECKING:
    from pathlib import Path


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. ModelError if the file is missing, unreadable or something else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"this is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise damaged(path, "this is JSON, but not an object")
    return value


class Fields:
    """Typed reading of an object in the file `path`; JSON null counts as absent."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._keys = frozenset(values)
        self.path = path

    def says(self, key: str) -> bool:
        """Whether `key` is there, be it null."""
        return key in self._keys

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of `key` as `kind`; `default` if it is absent, ModelError without one."""
        value = self._values.get(key, default)
        if value is None:
            raise damaged(self.path, f"{key} is missing")
        if kind is float and type(value) is int:
            value = _float(value)
        if type(value) is not kind:
            raise damaged(self.path, f"{key} is {value!r}, not of type {kind.__name__}")
        return value


def _float(value: int) -> float:
    """An integer of any length, as JSON has them."""
    return float(value) if abs(value) < 1 << 1000 else math.inf
