"""The core names no plugin, no algorithm, no backend and no model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tree_rules.sources import distributions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS: Final = frozenset(
    {"ngram", "eagle", "dflash", "dspark", "mtp"}
    | {"triton", "trtllm", "deepseek", "torch_native", "smollm", "llama"}
)
"""Names of the field that must not appear even where no plugin of this workspace bears them."""

ORDINARY: Final = {
    "random": "random numbers are drawn everywhere",
    "gguf": "a file format",
    "safetensors": "a file format",
    "full": "an English word",
    "breakable": "GraphKind.BREAKABLE, a word of the contract",
    "standalone": "an English word",
    "draft_extend": "ForwardMode.DRAFT_EXTEND, a word of the contract",
}
"""Plugin names that the core may use for what they mean outside the plugin."""

ONLY_IN: Final = {
    "triton": "core/src/warcore/testkit",
}
"""Words that one part of the core may use: the kit looks into the interpreter of that language."""


def core_names_no_plugin(root: Path) -> Iterator[str]:
    """Search core/src for every entry point's name and every word of the field, in any spelling."""
    words = sorted((WORDS | _entry_points(root)) - set(ORDINARY))
    pattern = re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, words))})(?![a-z0-9])")
    for path in sorted((root / "core/src").rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for found in pattern.finditer(_snake(line)):
                if found[1] in ONLY_IN and path.is_relative_to(root / ONLY_IN[found[1]]):
                    continue
                yield (
                    f"{path.relative_to(root)}:{number}: the core names {found[1]!r}; "
                    "ask through a hook or declare data on a base class instead"
                )


def _entry_points(root: Path) -> set[str]:
    groups = (project.get("entry-points", {}) for _, project in distributions(root))
    return {_snake(name) for group in groups for names in group.values() for name in names}


def _snake(text: str) -> str:
    """`TorchNative` and `torch-native` as `torch_native`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).replace("-", "_").lower()
