"""The sizes of a Llama-family model, and the tensors that follow from them. No torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs

from warcore import Layer, ModelInfo
from warcore_model_llama.refusals import damaged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LAYERS: Final = 4096
MOST_CONTEXT: Final = 1 << 24
"""Beyond these a header is taken for damaged: tables of such sizes would exhaust the memory."""

LAYER_TENSORS: Final = ("attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down")


@attrs.frozen
class Llama3Scaling:
    """Frequency-dependent stretching of RoPE, as Llama 3.1 introduced it."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@attrs.frozen
class LlamaConfig:
    """All sizes; `windows` holds each layer's sliding window in tokens, None for full attention."""

    hidden: int
    ffn: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    windows: tuple[int | None, ...]
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    tied: bool = False

    @property
    def layers(self) -> int:
        """How many decoder layers."""
        return len(self.windows)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor, [out, in] for matrices, in the order in which they are loaded."""
        q, kv = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (self.hidden,),
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "mlp_norm": (self.hidden,),
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.hidden)}
        for index in range(self.layers):
            shapes.update({f"{index}.{name}": layer[name] for name in LAYER_TENSORS})
        shapes["norm"] = (self.hidden,)
        if not self.tied:
            shapes["head"] = (self.vocab, self.hidden)
        return shapes

    def info(self, name: str) -> ModelInfo:
        """What the core is told; `parameters` counts each stored weight once."""
        scale = self.head_dim**-0.5
        return ModelInfo(
            name=name,
            layers=tuple(
                Layer(index, self.q_heads, self.kv_heads, self.head_dim, scale, window)
                for index, window in enumerate(self.windows)
            ),
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            max_context=self.max_context,
            parameters=sum(math.prod(shape) for shape in self.shapes().values()),
        )

    def with_window(self, window: int | None, layers: str) -> LlamaConfig:
        """This model with another window: None keeps its own, 0 means full attention.

        layers: "all", or "alternate" for layers 0, 2, 4, ... with full attention in between.
        """
        if window is None:
            return self
        every = 1 if layers == "all" else 2
        chosen = tuple(
            window or None if index % every == 0 else None for index in range(self.layers)
        )
        return attrs.evolve(self, windows=chosen)


def checked(config: LlamaConfig, path: Path) -> LlamaConfig:
    """`config`, which `path` holds, if a model can have such sizes; ModelError that names one."""
    fault = next(_faults(config), None)
    if fault is not None:
        raise damaged(path, fault)
    return config


def _faults(config: LlamaConfig) -> Iterator[str]:
    """The first is the one to show: later ones compute with sizes that the earlier ones exclude."""
    for name in ("hidden", "ffn", "q_heads", "kv_heads", "head_dim", "vocab", "max_context"):
        if getattr(config, name) <= 0:
            yield f"{name} is {getattr(config, name)}, it must be positive"
    if not 0 < config.layers <= MOST_LAYERS:
        yield f"{config.layers} layers; from 1 to {MOST_LAYERS} can be served"
    if config.max_context > MOST_CONTEXT:
        yield f"a context of {config.max_context} tokens is not plausible"
    if config.q_heads % config.kv_heads:
        yield f"{config.q_heads} query heads do not divide among {config.kv_heads} kv heads"
    if config.head_dim % 2:
        yield f"head_dim is {config.head_dim}; rotary positions need it even"
    short = next((window for window in config.windows if window is not None and window < 1), None)
    if short is not None:
        yield f"the sliding window is {short}, it must be positive"
    if not (0 < config.rope_theta < math.inf and 0 <= config.norm_eps < math.inf):
        yield f"rope theta {config.rope_theta} or norm epsilon {config.norm_eps} is wrong"
