"""A model that keeps the contract, and the pieces of it that the wrong ones replace."""

from __future__ import annotations

from warcore import Layer, Model, ModelFamily, ModelInfo, Output

VOCAB, HEADS, DIM, CONTEXT, EOS = 130, 2, 8, 64, 128
WIDTH = HEADS * DIM
LAYERS = tuple(Layer(i, HEADS, HEADS, DIM, DIM**-0.5) for i in range(3))


class Bytes:
    """ASCII as it is, anything else as 129."""

    eos_ids = frozenset({EOS})

    def encode(self, text):
        return [code if code < 128 else 129 for code in map(ord, text)]

    def decode(self, ids):
        return "".join(chr(i) if i < 128 else "\ufffd" for i in ids if i != EOS)

    def chat(self, prompt, system):
        return self.encode((system or "") + prompt)


class Right(Model):
    """Three layers of attention and a bend over seeded weights."""

    def __init__(self, info, dtype):
        import torch

        self.info, self.tokenizer = info, Bytes()
        draw = torch.Generator().manual_seed(7)

        def weight(*shape):
            return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

        self.embeddings, self.places = weight(VOCAB, WIDTH), weight(CONTEXT, WIDTH)
        self.qkv = [weight(WIDTH, 3 * WIDTH) / WIDTH**0.5 for _ in LAYERS]
        self.head = weight(WIDTH, VOCAB)

    def embed(self, batch):
        """[T, width]."""
        return self.embeddings[batch.tokens] + self.places[self.positions(batch)]

    def positions(self, batch):
        return batch.positions

    def layer(self, index, x, attend):
        """The stream after a layer."""
        q, k, v = (x @ self.qkv[index]).view(-1, 3, HEADS, DIM).unbind(1)
        return (x + attend(q, k, v, LAYERS[index]).flatten(1)).tanh()

    def kept(self, before, after):
        """What is given of a layer that is asked for."""
        return after

    def select(self, x, batch):
        """The tokens whose logits are asked for."""
        return x if batch.logits_at is None else x.index_select(0, batch.logits_at)

    def forward(self, batch, attend, hidden_layers=()):
        import torch

        x, kept = self.embed(batch), {}
        for index in range(len(LAYERS)):
            before, x = x, self.layer(index, x, attend)
            kept[index] = self.kept(before, x)
        hidden = torch.stack([kept[index] for index in hidden_layers]) if hidden_layers else None
        return Output(self.select(x, batch) @ self.head, hidden)


class Family(ModelFamily):
    """Its own name, and nothing else."""

    model = Right

    @classmethod
    def recognises(cls, ref):
        return ref if ref == "Plugin" else None

    @classmethod
    def describe(cls, ref, options):
        return ModelInfo(ref, LAYERS, VOCAB, WIDTH, CONTEXT, 10_000)

    @classmethod
    def load(cls, ref, ctx):
        return cls.model(Family.describe(ref, ctx.options), ctx.dtype)
