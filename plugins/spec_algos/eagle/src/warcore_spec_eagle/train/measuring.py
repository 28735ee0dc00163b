"""Measuring: what an engine accepts of a head's drafts, place by place."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
import torch

from warcore import Accepted, Engine, EngineConfig, ForwardBatch, SamplingParams
from warcore_spec_eagle.algorithm import Eagle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@attrs.frozen
class Measured:
    """What came of the verifies of some prompts."""

    verifies: int
    places: tuple[float, ...]
    """How often each drafted token stood, of all verifies."""

    @property
    def accept_length(self) -> float:
        """Tokens of a verify, on average."""
        return 1 + sum(self.places)

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.2f}" for share in self.places)
        return f"accept length {self.accept_length:.2f} of {self.verifies} verifies ({shares})"


class Counted(Eagle):
    """Eagle, and a count of what stood. It asks the device, so its speed says nothing."""

    stood: ClassVar[list[int]] = []

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:
        """As `Eagle` has it."""
        super().draft_extend(batch, accepted)
        if not batch.mode.is_prefill:
            self.stood.extend((accepted.lengths[: batch.size] - 1).tolist())


def measure(
    model: str, head: Path, prompts: Sequence[str], *, dtype: str, tokens: int, new_tokens: int
) -> Measured:
    """Answer `prompts` one by one at temperature 0, with `tokens` drafted in each step."""
    Counted.stood.clear()
    config = EngineConfig(
        model=model,
        dtype=dtype,
        device="host",
        graph_runner="none",
        spec_algo=Counted,
        spec_tokens=tokens,
        options={"Counted.head": str(head)},
        max_running_requests=4,
    )
    with Engine(config) as engine:
        engine.generate(list(prompts), SamplingParams(max_new_tokens=new_tokens))
    stood = torch.tensor(Counted.stood)
    places = [(stood > place).double().mean().item() for place in range(tokens)]
    return Measured(len(stood), tuple(places))
