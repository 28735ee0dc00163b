"""Weights of a draft head: sizes, tensors, and the safetensors file that both lie in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import torch

from warcore import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from warcore import ModelInfo

FORMAT: Final = "warcore-eagle 1"
GAIN: Final = 0.02
"""Deviation of untrained weights."""


@attrs.frozen
class HeadSizes:
    """What a head is made of, and what its target must be like."""

    hidden: int
    """Of the target, and of the head."""
    target_vocab: int
    draft_vocab: int
    """Tokens that it can propose."""
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    own_rows: bool = False
    """Whether it brings the rows that give its logits; else they are some of the target's."""

    @classmethod
    def like(cls, info: ModelInfo, draft_vocab: int, *, own_rows: bool) -> HeadSizes:
        """One more layer of `info`'s own kind."""
        last = info.layers[-1]
        return cls(
            hidden=info.hidden_size,
            target_vocab=info.vocab_size,
            draft_vocab=min(draft_vocab, info.vocab_size),
            q_heads=last.q_heads,
            kv_heads=last.kv_heads,
            head_dim=last.head_dim,
            ffn=info.hidden_size * 8 // 3,
            own_rows=own_rows,
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor, [out, in] for matrices."""
        q, kv = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "token_norm": (self.hidden,),
            "feature_norm": (self.hidden,),
            "join": (self.hidden, 2 * self.hidden),
            "attn_norm": (self.hidden,),
            "qkv": (q + 2 * kv, self.hidden),
            "o": (self.hidden, q),
            "mlp_norm": (self.hidden,),
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
            "norm": (self.hidden,),
        }
        return {**shapes, "rows": (self.draft_vocab, self.hidden)} if self.own_rows else shapes

    def mismatches(self, info: ModelInfo) -> list[str]:
        """Every reason why a head of these sizes is not one for `info`."""
        pairs = (
            ("hidden states of", self.hidden, info.hidden_size),
            ("a vocabulary of", self.target_vocab, info.vocab_size),
        )
        return [
            f"it was trained for {what} {mine}, and {info.name} has {theirs}"
            for what, mine, theirs in pairs
            if mine != theirs
        ]


@attrs.frozen(eq=False)
class HeadWeights:
    """A head as it lies in a file."""

    sizes: HeadSizes
    tensors: dict[str, torch.Tensor]
    """As `HeadSizes.shapes` has them."""
    to_target: torch.Tensor
    """[draft_vocab] i64: which token of the target each of the head's is."""


def untrained(sizes: HeadSizes, seed: int) -> HeadWeights:
    """Weights in fp32 as training begins with them; it proposes the first tokens there are.

    The matrix that joins hands the hidden state on: what comes of it is nearer to the next one than
    noise is.
    """
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in sizes.shapes().items():
        drawn = torch.randn(shape, generator=draw) * GAIN
        tensors[name] = drawn + 1 if len(shape) == 1 else drawn
    tensors["join"][:, sizes.hidden :].diagonal().add_(1)
    return HeadWeights(sizes, tensors, torch.arange(sizes.draft_vocab))


def write_head(file: Path, weights: HeadWeights, made_by: Mapping[str, str]) -> None:
    """Write `weights` in bf16. made_by: what else a person may want to know of them."""
    from safetensors.torch import save_file

    tensors = {name: each.to(torch.bfloat16) for name, each in weights.tensors.items()}
    tensors["to_target"] = weights.to_target.int()
    sizes = {name: str(int(value)) for name, value in attrs.asdict(weights.sizes).items()}
    save_file(tensors, file, {"format": FORMAT, **sizes, **made_by})


def read_sizes(file: Path) -> HeadSizes:
    """The sizes of the head in `file`, from its header. ModelError if it holds none."""
    with _opened(file) as opened:
        return _sizes(file, opened.metadata() or {})


def read_head(file: Path) -> HeadWeights:
    """The head in `file`. ModelError if it is not there, damaged, or no head."""
    with _opened(file) as opened:
        sizes = _sizes(file, opened.metadata() or {})
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    to_target = tensors.pop("to_target", torch.empty(0, dtype=torch.int64))
    _check(file, sizes, tensors, to_target)
    return HeadWeights(sizes, tensors, to_target.long())


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if file.is_dir():
        raise ModelError(f"{file} is a folder", next="--opt eagle.head=FILE, or leave it out")
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except FileNotFoundError as error:
        raise ModelError(
            f"{file}: there is no such file", next="--opt eagle.head=FILE, or leave it out"
        ) from error
    except (SafetensorError, OSError) as error:
        raise _damaged(file, str(error)) from error


def _sizes(file: Path, facts: Mapping[str, str]) -> HeadSizes:
    if facts.get("format") != FORMAT:
        raise _damaged(file, "no draft head for eagle")
    try:
        known = {field.name: int(facts[field.name]) for field in attrs.fields(HeadSizes)}
    except (KeyError, ValueError) as error:
        raise _damaged(file, f"its sizes are damaged: {error!r}") from error
    for name in known.keys() - {"own_rows"}:
        if known[name] < 1:
            raise _damaged(file, f"its sizes are damaged: {name} is {known[name]}")
    if known["head_dim"] % 2:
        raise _damaged(
            file, f"its sizes are damaged: head_dim is {known['head_dim']}, an odd number"
        )
    return HeadSizes(**{**known, "own_rows": bool(known["own_rows"])})  # type: ignore[arg-type]


def _check(
    file: Path, sizes: HeadSizes, tensors: Mapping[str, torch.Tensor], to_target: torch.Tensor
) -> None:
    shapes = sizes.shapes()
    for name in sorted(shapes.keys() ^ tensors.keys()):
        raise _damaged(file, f"{name} is {'missing' if name in shapes else 'not known'}")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise _damaged(file, f"{name} is {list(tensors[name].shape)}, and not {list(shape)}")
        if not tensors[name].is_floating_point():
            raise _damaged(file, f"{name} is of {tensors[name].dtype}, and not of a float type")
        if not bool(tensors[name].float().isfinite().all()):
            raise _damaged(file, f"{name} has values that are no finite numbers")
    if tuple(to_target.shape) != (sizes.draft_vocab,):
        raise _damaged(file, f"it maps {to_target.numel()} of {sizes.draft_vocab} tokens")
    if to_target.dtype not in {torch.int32, torch.int64}:
        raise _damaged(file, f"its map of tokens is of {to_target.dtype}, and not of whole numbers")
    least, most = (int(each) for each in to_target.aminmax())
    if least < 0 or most >= sizes.target_vocab:
        raise _damaged(file, f"it proposes tokens {least} to {most} of {sizes.target_vocab}")


def _damaged(file: Path, what: str) -> ModelError:
    return ModelError(
        f"{file}: {what}", next="python -m warcore_spec_eagle.train --help says how to train one"
    )
