"""Seeded random models of any size, for tests and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore_model_llama.config import LlamaConfig

if TYPE_CHECKING:
    import torch

FULL: Final = (None,)

PRESETS: Final[dict[str, LlamaConfig]] = {
    "tiny": LlamaConfig(
        hidden=32, ffn=64, q_heads=4, kv_heads=2, head_dim=8, vocab=258, max_context=256,
        windows=FULL * 2,
    ),
    "swa-tiny": LlamaConfig(
        hidden=32, ffn=64, q_heads=4, kv_heads=2, head_dim=8, vocab=258, max_context=256,
        windows=(16, None) * 2,
    ),
    "small": LlamaConfig(
        hidden=256, ffn=768, q_heads=8, kv_heads=2, head_dim=64, vocab=1024, max_context=2048,
        windows=FULL * 4,
    ),
    "smollm2-135m": LlamaConfig(
        hidden=576, ffn=1536, q_heads=9, kv_heads=3, head_dim=64, vocab=49152, max_context=8192,
        windows=FULL * 30, rope_theta=100000.0, tied=True,
    ),
    "llama-1b": LlamaConfig(
        hidden=2048, ffn=8192, q_heads=32, kv_heads=8, head_dim=64, vocab=128256,
        max_context=16384, windows=FULL * 16, rope_theta=500000.0, tied=True,
    ),
    "llama-8b": LlamaConfig(
        hidden=4096, ffn=14336, q_heads=32, kv_heads=8, head_dim=128, vocab=128256,
        max_context=16384, windows=FULL * 32, rope_theta=500000.0,
    ),
}  # fmt: skip

GAIN: Final = {"embed": 1.0, "q": 1.5, "k": 1.5, "o": 2.0, "down": 2.0}
"""Deviation times sqrt(inputs); 1 for others. High enough that attention is far from uniform and
that every earlier token sways the next: a wrong key or value then shows in the text."""

LARGEST_ON_HOST: Final = 200_000_000
"""Up to so many parameters the numbers are drawn on the CPU, so that every device gets the same."""


class RandomSource:
    """Tensors drawn in fp32 from a seed, so that each dtype gets the same numbers, rounded."""

    def __init__(self, config: LlamaConfig, seed: int, device: torch.device) -> None:
        import torch

        self._shapes = config.shapes()
        large = config.info("").parameters > LARGEST_ON_HOST
        self._device = device if large else torch.device("cpu")
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def read(self, name: str) -> torch.Tensor:
        """The next tensor of the stream: the order of reading is part of what the seed means."""
        import torch

        shape = self._shapes[name]
        drawn = torch.empty(shape, device=self._device).normal_(generator=self._generator)
        if len(shape) == 1:
            return drawn.mul_(0.1).add_(1)
        role = name.rpartition(".")[2]
        return drawn.mul_(GAIN.get(role, 1.0) * (1.0 if role == "embed" else shape[1] ** -0.5))

    def where(self, name: str) -> str:
        """The name itself: there is no file."""
        return f"random tensor {name}"

    def rope_factors(self) -> None:
        """None: the presets use plain RoPE."""
