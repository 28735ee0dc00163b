"""The tokenizer of a safetensors directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warcore import ModelError
from warcore_model_llama.json_object import read_json
from warcore_model_llama.refusals import damaged, mismatched, one_line, unreadable
from warcore_model_llama.text_tokenizer import ChatTemplate, TextTokenizer

if TYPE_CHECKING:
    from pathlib import Path

    import tokenizers

SPECIALS: Final = tuple(f"{n}_token" for n in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
"""The special tokens that a chat template may name."""


def read_tokenizer(directory: Path, vocab: int) -> TextTokenizer:
    """The tokenizer of a model with `vocab` ids.

    ModelError if tokenizer.json is missing, damaged, or of a larger vocabulary.
    """
    import tokenizers

    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{directory} has no tokenizer: {path.name} is missing",
            next=f"put {path.name} of the same model beside config.json",
        )
    try:
        core = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise damaged(path, f"this is not a tokenizer: {one_line(error)}") from error
    largest = max(core.get_vocab().values(), default=0)
    if largest >= vocab:
        raise mismatched(path, f"token {largest}, but the model has embeddings for {vocab}")
    # Left over from training: here it would cut a prompt, or fill it up, without a word.
    core.no_truncation()
    core.no_padding()
    settings = _settings(directory)
    return TextTokenizer(
        core, _ends(directory, settings, core), _template(directory, settings), str(directory)
    )


def _settings(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json, and what only special_tokens_map.json names."""
    named = _optional(directory / "tokenizer_config.json")
    mapped = _optional(directory / "special_tokens_map.json")
    return mapped | {key: value for key, value in named.items() if value is not None}


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _text(token: Any) -> str | None:
    """A special token, which is text or an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _ends(directory: Path, settings: dict[str, Any], core: tokenizers.Tokenizer) -> frozenset[int]:
    """End tokens of generation_config.json or config.json, and the tokenizer's own."""
    ends: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        given = _optional(directory / file).get("eos_token_id")
        listed = given if isinstance(given, list) else [given]
        ends = {token for token in listed if type(token) is int}
        if ends:
            break
    text = _text(settings.get("eos_token"))
    own = core.token_to_id(text) if text is not None else None
    return frozenset(ends if own is None else ends | {own})


def _template(directory: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    """chat_template.jinja, else the one in tokenizer_config.json (of several: "default")."""
    path = directory / "chat_template.jinja"
    source = settings.get("chat_template")
    if isinstance(source, list):
        rows = [row for row in source if isinstance(row, dict) and row.get("name") == "default"]
        source = rows[-1].get("template") if rows else None
    if path.is_file():
        try:
            source = path.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(path, error) from error
        except UnicodeDecodeError as error:
            raise damaged(path, f"this is not UTF-8: {error}") from error
    if not isinstance(source, str):
        return None
    texts = {name: _text(settings.get(name)) for name in SPECIALS}
    return ChatTemplate(
        source, str(directory), {name: text for name, text in texts.items() if text is not None}
    )
