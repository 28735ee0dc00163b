"""Features: what the target computes at each token of the texts, once, for all epochs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import attrs
import torch
from torch.nn import functional

from warcore import ForwardBatch, ForwardMode, ModelContext, ModelError, find_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore import Layer, Model
    from warcore_spec_eagle.train.texts import Text

LIKELIEST: Final = 16
"""Tokens of the target's distribution that are kept at each place."""
TOGETHER: Final = 8
"""Texts in one pass of the target."""


@attrs.frozen(eq=False)
class Features:
    """Texts of at most L tokens as N rows: shorter ones are padded, and count for nothing there."""

    tokens: torch.Tensor
    """[N, L] i64."""
    hidden: torch.Tensor
    """[N, L, hidden_size], after the target's last layer."""
    likeliest: torch.Tensor
    """[N, L, 16] i32: what the target would say next, in the head's own numbers, likeliest first.
    """
    probs: torch.Tensor
    """[N, L, 16], adding up to 1."""
    weight: torch.Tensor
    """[N, L]: how much of the target's distribution the head can propose; 0 outside answers."""

    def rows(self, at: slice | torch.Tensor) -> Features:
        """Some of the texts."""
        return Features(**{name: each[at] for name, each in attrs.asdict(self).items()})


def load_target(ref: str, dtype: torch.dtype) -> Model:
    """The model of a reference, as a person types it, on the CPU. ModelError if it is nobody's."""
    records = [record for record in find_plugins() if record.kind == "model"]
    word = ref.partition(":")[0]
    for record in sorted(records, key=lambda each: each.name != word):
        module, _, name = record.entry_point.partition(":")
        family = getattr(import_module(module), name)
        canonical = family.recognises(ref)
        if canonical is not None:
            context = ModelContext(torch.device("cpu"), dtype, family.Options())
            model: Model = family.load(canonical, context)
            return model
    raise ModelError(
        f"no installed model family recognises {ref!r}", next="warcore list-plugins --kind model"
    )


def frequent(texts: Sequence[Text], vocab: int, most: int) -> torch.Tensor:
    """[most or fewer] i64: the tokens that answers use most often, then the first ones there are.

    In rising order, so that the map lies flat in a file.
    """
    counts = torch.zeros(vocab, dtype=torch.int64)
    for text in texts:
        answer = torch.tensor(text.ids[text.start :], dtype=torch.int64)
        counts += torch.bincount(answer, minlength=vocab)
    best = counts.sort(descending=True, stable=True).indices[:most]
    return best.sort().values


@torch.no_grad()
def features(target: Model, texts: Sequence[Text], to_target: torch.Tensor) -> Features:
    """What the target makes of `texts`, none of which is longer than its context."""
    length = max(len(text.ids) for text in texts)
    parts = [
        _of(target, texts[first : first + TOGETHER], to_target, length)
        for first in range(0, len(texts), TOGETHER)
    ]
    names = [field.name for field in attrs.fields(Features)]
    whole = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Features(**whole)


def _of(target: Model, texts: Sequence[Text], to_target: torch.Tensor, length: int) -> Features:
    tokens = torch.zeros((len(texts), length), dtype=torch.int64)
    counts = torch.zeros((len(texts), length), dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text.ids)] = torch.tensor(text.ids)
        # What follows the last token nobody knows.
        counts[row, text.start : len(text.ids) - 1] = True
    last = target.info.layers[-1].index
    output = target.forward(_batch(tokens, counts), _Causal(len(texts), length), (last,))
    assert output.hidden is not None
    mine = output.logits.index_select(1, to_target).float()
    best = mine.topk(min(LIKELIEST, mine.shape[1]), 1)
    mass = (mine.logsumexp(1) - output.logits.float().logsumexp(1)).exp()
    likeliest = torch.zeros((*tokens.shape, best.indices.shape[1]), dtype=torch.int32)
    probs, weight = torch.zeros(likeliest.shape), torch.zeros(tokens.shape)
    likeliest[counts], weight[counts] = best.indices.int(), mass
    probs[counts] = best.values.softmax(1)
    hidden = output.hidden[0].view(*tokens.shape, -1).to(torch.bfloat16)
    return Features(tokens, hidden, likeliest, probs, weight)


def _batch(tokens: torch.Tensor, asked: torch.Tensor) -> ForwardBatch:
    """All texts from their first token on. Nothing is cached, so rows and slots mean nothing.

    asked: [rows, length] bool, where logits are.
    """
    rows, length = tokens.shape
    ends = torch.arange(rows + 1, dtype=torch.int32) * length
    return ForwardBatch(
        mode=ForwardMode.EXTEND,
        size=rows,
        padded_size=rows,
        padded_tokens=rows * length,
        tokens=tokens.flatten(),
        rows=torch.zeros(rows, dtype=torch.int64),
        seq_lens=torch.full((rows,), length, dtype=torch.int32),
        q_start=ends,
        q_row=torch.arange(rows).repeat_interleave(length),
        positions=torch.arange(length).repeat(rows),
        out_slots=torch.zeros(rows * length, dtype=torch.int64),
        max_seq_len=length,
        extend_lens=(length,) * rows,
        logits_at=asked.flatten().nonzero().squeeze(1),
    )


@attrs.frozen
class _Causal:
    """Attention over whole texts; layers with a window see no further than it."""

    rows: int
    length: int

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer
    ) -> torch.Tensor:
        places = torch.arange(self.length)
        back = places[:, None] - places
        seen = (back >= 0) & (back < (layer.window or self.length))
        q, k, v = (
            each.view(self.rows, self.length, *each.shape[1:]).transpose(1, 2) for each in (q, k, v)
        )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=layer.scale, enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(0, 1)
