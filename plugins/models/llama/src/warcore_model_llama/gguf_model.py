"""A Llama-family model in a GGUF file: its configuration and its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore import ModelError
from warcore_model_llama.config import LlamaConfig, checked
from warcore_model_llama.refusals import damaged, unserved

if TYPE_CHECKING:
    import torch

    from warcore_model_llama.gguf_header import GgufHeader

OUTER: Final = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
INNER: Final = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
ROPE_FACTORS: Final = "rope_freqs.weight"


def tensor_name(name: str) -> str:
    """What GGUF calls the tensor that `LlamaConfig.shapes` calls `name`."""
    index, _, role = name.rpartition(".")
    return f"blk.{index}.{INNER[role]}.weight" if index else f"{OUTER[name]}.weight"


def read_config(header: GgufHeader) -> LlamaConfig:
    """The sizes. ModelError for another architecture, too few or too many tensors, wrong shapes."""
    architecture = header.word("general.architecture")
    if architecture != "llama":
        raise unserved(header.path, f"architecture {architecture!r} is not supported; llama is")
    get = header.get
    if get("split.count", int, 0) > 1:
        raise ModelError(
            f"{header.path} is one part of a model that was split",
            next="merge the parts: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
        )
    scaling = header.word("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise unserved(header.path, f"rope scaling {scaling!r} is not supported")
    for key in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        # Without a type llama.cpp takes either for a linear one.
        factor = get(key, float, 1.0)
        if factor not in {0.0, 1.0}:
            raise unserved(header.path, f"rope scaling by {key} = {factor} is not supported")
    if get("llama.expert_count", int, 0) > 0:
        raise unserved(header.path, "a mixture of experts is not supported")
    layers = get("llama.block_count", int)
    if layers > len(header.tensors):
        raise damaged(header.path, f"{layers} layers, but {len(header.tensors)} tensors")
    hidden, q_heads = get("llama.embedding_length", int), get("llama.attention.head_count", int)
    head_dim = get("llama.attention.key_length", int, hidden // q_heads if q_heads else 0)
    if head_dim != get("llama.attention.value_length", int, head_dim):
        raise unserved(header.path, "keys and values of different head sizes are not supported")
    if head_dim != get("llama.rope.dimension_count", int, head_dim):
        raise unserved(header.path, "rotary positions over a part of the head are not supported")
    window = get("llama.attention.sliding_window", int, 0) or None
    vocab = header.tensors["token_embd.weight"].shape[0] if _has(header, "token_embd.weight") else 0
    config = LlamaConfig(
        hidden=hidden,
        ffn=get("llama.feed_forward_length", int),
        q_heads=q_heads,
        kv_heads=get("llama.attention.head_count_kv", int, q_heads),
        head_dim=head_dim,
        vocab=vocab,
        max_context=get("llama.context_length", int),
        windows=(window,) * layers,
        norm_eps=get("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=get("llama.rope.freq_base", float, 10000.0),
        tied="output.weight" not in header.tensors,
    )
    config = checked(config, header.path)
    _check_tensors(header, config)
    return config


def _has(header: GgufHeader, name: str) -> bool:
    if name not in header.tensors:
        raise damaged(header.path, f"tensor {name} is missing")
    return bool(header.tensors[name].shape)


def _check_tensors(header: GgufHeader, config: LlamaConfig) -> None:
    expected = {tensor_name(name): shape for name, shape in config.shapes().items()}
    for name, shape in expected.items():
        if name not in header.tensors:
            raise damaged(header.path, f"tensor {name} is missing")
        if header.tensors[name].shape != shape:
            raise damaged(
                header.path,
                f"tensor {name} has shape {list(header.tensors[name].shape)}, "
                f"but the header's sizes ask for {list(shape)}",
            )
    factors = header.tensors.get(ROPE_FACTORS)
    if factors is not None and factors.shape != (config.head_dim // 2,):
        raise damaged(
            header.path,
            f"tensor {ROPE_FACTORS} has shape {list(factors.shape)}, not [{config.head_dim // 2}]",
        )
    # A bias or an expert that were left out would make wrong text and no error.
    surplus = sorted(set(header.tensors) - set(expected) - {ROPE_FACTORS})
    if surplus:
        raise unserved(header.path, f"tensor {surplus[0]} has no place in this architecture")


class GgufSource:
    """Dequantizes tensors of a GGUF file, one at a time."""

    def __init__(self, header: GgufHeader, config: LlamaConfig) -> None:
        self._header = header
        self._heads = {"q": config.q_heads, "k": config.kv_heads}

    def read(self, name: str) -> torch.Tensor:
        """Rows of q and k come in the order of safetensors, not in that of llama.cpp."""
        tensor = self._dequantize(tensor_name(name))
        heads = self._heads.get(name.rpartition(".")[2])
        return tensor if heads is None else _halves(tensor, heads)

    def where(self, name: str) -> str:
        return f"{self._header.path}: tensor {tensor_name(name)}"

    def rope_factors(self) -> torch.Tensor | None:
        """How GGUF files carry the scaling of Llama 3.1."""
        return self._dequantize(ROPE_FACTORS) if ROPE_FACTORS in self._header.tensors else None

    def _dequantize(self, name: str) -> torch.Tensor:
        import gguf
        import numpy as np
        import torch

        tensor = self._header.tensors[name]
        raw = np.fromfile(self._header.path, np.uint8, tensor.size, offset=tensor.offset)
        kind = gguf.GGMLQuantizationType(tensor.kind)
        rows = raw.reshape(*tensor.shape[:-1], -1)
        if kind is gguf.GGMLQuantizationType.F64:
            return torch.from_numpy(rows.view(np.float64))
        if kind is gguf.GGMLQuantizationType.F16:
            return torch.from_numpy(rows.view(np.float16))
        if kind is gguf.GGMLQuantizationType.F32:
            return torch.from_numpy(rows.view(np.float32))
        return torch.from_numpy(gguf.dequantize(rows, kind))


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k from llama.cpp's order (pairs that rotate together) to halves of a head.

    llama.cpp's converter interleaves the two halves; this is the inverse.
    """
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)
