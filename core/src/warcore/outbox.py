"""Outbox: outputs that were made and not told yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from warcore.output import RequestOutput


class Outbox:
    """Each output is told once: to the `generate` or `stream` of its request, or else by `step`.

    Several may drive one engine in turns, and each step makes outputs for all of them.
    """

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._kept: set[int] = set()

    def keep(self, number: int) -> None:
        """From here on the outputs of this request are told to nobody who does not name it."""
        self._kept.add(number)

    def put(self, outputs: Iterable[RequestOutput]) -> None:
        """Have these told, in this order."""
        self._outputs += outputs

    def take(self, numbers: Collection[int]) -> list[RequestOutput]:
        """The outputs of these requests."""
        taken = [output for output in self._outputs if output.index in numbers]
        self._outputs = [output for output in self._outputs if output.index not in numbers]
        self._kept -= {output.index for output in taken if output.finished}
        return taken

    def drop(self, numbers: Collection[int]) -> None:
        """Nobody wants to hear of these any more."""
        self.take(numbers)
        self._kept.difference_update(numbers)

    @property
    def free(self) -> set[int]:
        """The requests with outputs that are kept for nobody."""
        return {output.index for output in self._outputs} - self._kept
