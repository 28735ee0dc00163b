"""The tokenizer of random models: token ids are bytes, then two specials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BOS: Final = 256
EOS: Final = 257


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 starts a sequence, 257 ends an answer.

    Larger vocabularies have ids without a byte; they decode to `<id>`, so that each shows.
    """

    eos_ids = frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        """BOS and the UTF-8 bytes."""
        return [BOS, *text.encode(errors="replace")]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without the specials; incomplete UTF-8 becomes U+FFFD."""
        spelled = (
            bytes((token,)) if token < BOS else f"<{token}>".encode()
            for token in ids
            if token not in {BOS, EOS}
        )
        return b"".join(spelled).decode(errors="replace")

    def chat(self, prompt: str, system: str | None) -> list[int]:
        """BOS, the system text if there is one, and the prompt, each with its line end."""
        return self.encode("".join(f"{text}\n" for text in (system, prompt) if text is not None))
