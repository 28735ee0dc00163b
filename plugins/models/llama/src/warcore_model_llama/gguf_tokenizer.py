"""The tokenizer that a GGUF file carries, built from its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warcore_model_llama.gguf_header import Strings
from warcore_model_llama.refusals import damaged, foreign_tokenizer
from warcore_model_llama.text_tokenizer import ChatTemplate, TextTokenizer

if TYPE_CHECKING:
    from warcore_model_llama.gguf_header import GgufHeader

LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 cuts text into words; part of the definition of its tokenizer."""

PRE_TOKENIZERS: Final = ("gpt-2", "llama-bpe", "smollm")
IGNORES_MERGES: Final = frozenset({"llama-bpe"})
"""Where a word that is in the vocabulary is one token, whatever the merges say."""

_CONTROL: Final = 3
_USER_DEFINED: Final = 4


def read_tokenizer(header: GgufHeader, vocab: int) -> TextTokenizer:
    """The tokenizer of a model with `vocab` ids.

    ModelError if there is none, or one of a kind that is not known exactly.
    """
    import tokenizers
    from tokenizers import AddedToken, decoders, models

    tokens, kinds, merges = _vocabulary(header)
    if len(tokens) > vocab:
        raise damaged(header.path, f"{len(tokens)} tokens, but embeddings for {vocab}")
    # Files of before that key was thought of have lost how their tokenizer cuts text into words.
    pre = header.word("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise foreign_tokenizer(
            header.path,
            f"pre-tokenizer {pre!r} is not known; known are {', '.join(PRE_TOKENIZERS)}",
        )
    core = tokenizers.Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            merges,
            ignore_merges=pre in IGNORES_MERGES,
        )
    )
    core.pre_tokenizer = _pre_tokenizer(pre)
    core.decoder = decoders.ByteLevel()
    for special, kind in ((True, _CONTROL), (False, _USER_DEFINED)):
        core.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, its in zip(tokens, kinds, strict=True)
                if its == kind
            ]
        )
    if header.get("tokenizer.ggml.add_space_prefix", bool, False):
        raise foreign_tokenizer(
            header.path, "a tokenizer that adds a space in front is not supported"
        )
    return TextTokenizer(
        core, _ends(header), _template(header, tokens), str(header.path), _start(header, pre)
    )


def _vocabulary(header: GgufHeader) -> tuple[list[str], tuple[int, ...], list[tuple[str, str]]]:
    if "tokenizer.ggml.model" not in header.metadata:
        raise foreign_tokenizer(header.path, "there is no tokenizer in the file")
    model = header.word("tokenizer.ggml.model")
    if model != "gpt2":
        raise foreign_tokenizer(header.path, f"tokenizer {model!r} is not supported; gpt2 (BPE) is")
    tokens = header.strings("tokenizer.ggml.tokens")
    kinds = header.get("tokenizer.ggml.token_type", tuple, (1,) * len(tokens))
    if len(kinds) != len(tokens):
        raise damaged(header.path, f"{len(tokens)} tokens, but {len(kinds)} token types")
    merges: list[tuple[str, str]] = []
    for line in header.strings("tokenizer.ggml.merges"):
        left, _, right = line.partition(" ")
        merges.append((left, right))
    known = set(tokens)
    if len(known) != len(tokens):
        raise damaged(header.path, "a token is twice in the vocabulary")
    for left, right in merges:
        if not {left, right, left + right} <= known:
            raise damaged(header.path, f"merge {left!r} {right!r} is not of the vocabulary")
    return tokens, kinds, merges


def _pre_tokenizer(pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre == "llama-bpe":
        split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, bytes_only])
    return words


def _ends(header: GgufHeader) -> frozenset[int]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return frozenset(header.get(key, int) for key in keys if key in header.metadata)


def _start(header: GgufHeader, pre: str) -> int | None:
    """The start token, if raw text wants one: said by the file, else usual for Llama 3."""
    wanted = header.get("tokenizer.ggml.add_bos_token", bool, pre == "llama-bpe")
    if not wanted:
        return None
    start: int = header.get("tokenizer.ggml.bos_token_id", int)
    if start >= header.get("tokenizer.ggml.tokens", Strings).count:
        raise damaged(header.path, f"the start token {start} is not of the vocabulary")
    return start


def _template(header: GgufHeader, tokens: list[str]) -> ChatTemplate | None:
    if "tokenizer.chat_template" not in header.metadata:
        return None
    specials = {}
    for name in ("bos", "eos"):
        index = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(index) is int and index < len(tokens):
            specials[f"{name}_token"] = tokens[index]
    source = header.get("tokenizer.chat_template", str)
    return ChatTemplate(source, str(header.path), specials)
