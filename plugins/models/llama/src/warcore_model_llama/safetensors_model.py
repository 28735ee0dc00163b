"""A Llama-family model in a safetensors directory: configuration, weights, tokenizer."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warcore import ModelError
from warcore_model_llama.config import Llama3Scaling, LlamaConfig, checked
from warcore_model_llama.json_object import Fields, read_json
from warcore_model_llama.refusals import damaged, mismatched, one_line, unreadable, unserved

if TYPE_CHECKING:
    import torch

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
TYPES: Final = frozenset({"llama", "mistral"})
WINDOWS: Final = {"mistral": 4096}
"""Which of them have a sliding window, and how long it is where config.json does not name it.
Source: the defaults of transformers' MistralConfig, as are those of `KV_HEADS`."""
KV_HEADS: Final = {"mistral": 8}
OUTER: Final = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
INNER: Final = {
    "attn_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
UNUSED: Final = ("lm_head.weight", "rotary_emb.inv_freq")
"""Endings of tensors that a file may hold besides: a copy of a tied head, a table."""


def tensor_name(name: str) -> str:
    """What the files call the tensor that `LlamaConfig.shapes` calls `name`."""
    index, _, role = name.rpartition(".")
    return f"model.layers.{index}.{INNER[role]}.weight" if index else OUTER[name]


def read_config(directory: Path) -> LlamaConfig:
    """The sizes in config.json. ModelError for what these models cannot serve."""
    path = directory / "config.json"
    fields = Fields(read_json(path), path)
    kind = fields.get("model_type", str)
    if kind not in TYPES:
        raise unserved(
            path, f"architecture {kind!r} is not supported; {' and '.join(sorted(TYPES))} are"
        )
    for key in ("attention_bias", "mlp_bias"):
        if fields.get(key, bool, False):
            raise unserved(path, f"{key} is not supported")
    if fields.get("hidden_act", str, "silu") != "silu":
        raise unserved(path, f"activation {fields.get('hidden_act', str)!r} is not supported")
    hidden, q_heads = fields.get("hidden_size", int), fields.get("num_attention_heads", int)
    theta, scaling = _rope(fields)
    config = LlamaConfig(
        hidden=hidden,
        ffn=fields.get("intermediate_size", int),
        q_heads=q_heads,
        kv_heads=fields.get(
            "num_key_value_heads",
            int,
            q_heads if fields.says("num_key_value_heads") else KV_HEADS.get(kind, q_heads),
        ),
        head_dim=fields.get("head_dim", int, hidden // q_heads if q_heads else 0),
        vocab=fields.get("vocab_size", int),
        max_context=fields.get("max_position_embeddings", int),
        windows=_windows(fields, kind),
        norm_eps=fields.get("rms_norm_eps", float, 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=fields.get("tie_word_embeddings", bool, False),
    )
    return checked(config, path)


def _rope(fields: Fields) -> tuple[float, Llama3Scaling | None]:
    """Theta and scaling, from `rope_parameters` or from the older `rope_scaling`."""
    rope = Fields(
        fields.get("rope_parameters", dict, {}) or fields.get("rope_scaling", dict, {}),
        fields.path,
    )
    theta = rope.get("rope_theta", float, fields.get("rope_theta", float, 10000.0))
    kind = rope.get("rope_type", str, rope.get("type", str, "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise unserved(
            fields.path, f"rope scaling {kind!r} is not supported; default and llama3 are"
        )
    scaling = Llama3Scaling(
        factor=rope.get("factor", float),
        low_freq_factor=rope.get("low_freq_factor", float),
        high_freq_factor=rope.get("high_freq_factor", float),
        original_context=rope.get(
            "original_max_position_embeddings",
            int,
            fields.get("original_max_position_embeddings", int, 0),
        ),
    )
    factors = scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor
    if (
        not all(math.isfinite(factor) and factor > 0 for factor in factors)
        or scaling.high_freq_factor <= scaling.low_freq_factor
        or scaling.original_context <= 0
    ):
        raise damaged(fields.path, "the factors of the rope scaling are not valid")
    return theta, scaling


def _windows(fields: Fields, kind: str) -> tuple[int | None, ...]:
    layers: int = fields.get("num_hidden_layers", int)
    if layers <= 0:
        raise damaged(fields.path, f"num_hidden_layers is {layers}, it must be positive")
    window: int | None = fields.get("sliding_window", int, 0) or None
    if not fields.says("sliding_window"):
        window = WINDOWS.get(kind)
    if kind not in WINDOWS and window is not None:
        raise unserved(fields.path, f"sliding_window is nothing that {kind!r} has")
    kinds = fields.get("layer_types", list, [])
    if not kinds:
        # One tuple of a damaged length would exhaust the memory before it could be refused.
        return (window,) * min(layers, 1 << 20)
    named: dict[str, int | None] = {"sliding_attention": window, "full_attention": None}
    if len(kinds) != layers or any(kind not in named for kind in map(str, kinds)):
        raise unserved(fields.path, f"layer_types does not name {layers} layers of known types")
    return tuple(named[str(kind)] for kind in kinds)


class Shards:
    """Which file of a directory holds which tensor, from the files' headers."""

    def __init__(self, directory: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.files: dict[str, Path] = {}
        index, single = directory / INDEX, directory / SINGLE
        if index.exists() and single.exists():
            raise ModelError(
                f"{directory}: both {SINGLE} and {INDEX} are there, and may be of two models",
                next="move away the one that is not meant",
            )
        self.listing = index if index.exists() else single
        """The file that says which tensors there are."""
        if self.listing == index:
            table = read_json(index).get("weight_map")
            if not isinstance(table, dict) or not all(isinstance(f, str) for f in table.values()):
                raise damaged(index, "no weight_map of tensors to files")
            for file in sorted(set(table.values())):
                self._add(directory / Path(file).name)
            for name, file in table.items():
                if name not in self.files:
                    raise damaged(
                        directory / file, f"tensor {name}, which {INDEX} lists, is missing"
                    )
        else:
            self._add(self.listing)

    def _add(self, path: Path) -> None:
        for name, shape in _header(path).items():
            self.shapes[name], self.files[name] = shape, path

    def check(self, config: LlamaConfig) -> None:
        """ModelError for a missing tensor, a wrong shape, or one that has no place."""
        expected = {tensor_name(name): shape for name, shape in config.shapes().items()}
        for name, shape in expected.items():
            if name not in self.shapes:
                raise mismatched(self.listing, f"tensor {name} is missing")
            if self.shapes[name] != shape:
                raise mismatched(
                    self.files[name],
                    f"tensor {name} has shape {list(self.shapes[name])}, "
                    f"but config.json asks for {list(shape)}",
                )
        for name in sorted(set(self.shapes) - set(expected)):
            # A bias that was left out would make wrong text and no error.
            if not name.endswith(UNUSED):
                raise unserved(self.files[name], f"tensor {name} has no place in this architecture")


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Tensor shapes of one file. Source: the safetensors format, 8 bytes of length, then JSON."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
            if length > size - 8:
                raise damaged(path, "truncated or not a safetensors file")
            table = json.loads(file.read(length))
            rows = {name: row for name, row in table.items() if name != "__metadata__"}
            end = max((row["data_offsets"][1] for row in rows.values()), default=0)
            shapes = {name: tuple(row["shape"]) for name, row in rows.items()}
            if type(end) is not int:
                raise damaged(path, f"damaged safetensors header: {end!r} is no offset")
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise damaged(path, f"damaged safetensors header: {error!r}") from error
    if size < 8 + length + end:
        raise damaged(
            path, f"truncated: its tensors end at byte {8 + length + end}, the file at {size}"
        )
    return shapes


class SafetensorsSource:
    """Reads tensors of a safetensors directory, one at a time."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._open: dict[Path, Any] = {}

    def read(self, name: str) -> torch.Tensor:
        """Opens each file once, at its first tensor."""
        from safetensors import SafetensorError, safe_open

        name = tensor_name(name)
        path = self._shards.files[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            tensor: torch.Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise damaged(path, f"tensor {name} cannot be read: {one_line(error)}") from error
        if not tensor.is_floating_point():
            raise unserved(path, f"tensor {name} is of type {tensor.dtype}, not floating point")
        return tensor

    def check_tied(self, config: LlamaConfig) -> None:
        """ModelError if the file has a head of its own where config.json ties it."""
        if not config.tied or OUTER["head"] not in self._shards.shapes:
            return
        if not self.read("head").equal(self.read("embed")):
            raise mismatched(
                self._shards.files[OUTER["head"]],
                f"{OUTER['head']} is no copy of the embeddings, but config.json ties the two",
            )

    def where(self, name: str) -> str:
        name = tensor_name(name)
        return f"{self._shards.files[name]}: tensor {name}"

    def rope_factors(self) -> None:
        """None: config.json says how positions are stretched."""
