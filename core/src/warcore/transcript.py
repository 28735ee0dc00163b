"""Text that grows token by token: incremental decoding and stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warcore.model import Tokenizer

INCOMPLETE = "\ufffd"


class Transcript:
    """The text of one request's output ids.

    A character may be spread over several tokens, and a tokenizer may render a token differently
    after another one. So the newest tokens are decoded together with a short stable window before
    them, and text counts only once it no longer ends in an incomplete character.
    """

    def __init__(self, tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._stop = stop
        self._reach = max((len(s) for s in stop), default=0)
        self._window = 0
        self._read = 0
        self.text = ""
        """Everything decoded so far; cut before the stop string once one was met."""
        self.stopped = False

    def advance(self) -> bool:
        """Decode what is new; True once a stop string has been met."""
        if not self.stopped and self._read < len(self._ids):
            before = self._tokenizer.decode(self._ids[self._window : self._read])
            after = self._tokenizer.decode(self._ids[self._window :])
            if len(after) > len(before) and not after.endswith(INCOMPLETE):
                self._append(after[len(before) :])
                self._window, self._read = self._read, len(self._ids)
        return self.stopped

    def finish(self) -> None:
        """No token follows: what is still incomplete counts as it is."""
        self.advance()
        if not self.stopped and self._read < len(self._ids):
            before = self._tokenizer.decode(self._ids[self._window : self._read])
            self._append(self._tokenizer.decode(self._ids[self._window :])[len(before) :])
            self._read = len(self._ids)

    def visible(self) -> str:
        """What may be shown: without a tail that could become a stop string."""
        if self.stopped or not self._stop:
            return self.text
        for length in range(min(self._reach - 1, len(self.text)), 0, -1):
            tail = self.text[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return self.text[:-length]
        return self.text

    def _append(self, piece: str) -> None:
        start = max(0, len(self.text) - self._reach + 1)
        self.text += piece
        found = [at for stop in self._stop if (at := self.text.find(stop, start)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True
