"""The full engine against a bare torch decode loop around the same model.

    python benchmarks/bare_loop.py [--quick] [--rounds N]

The loop is what is left of an engine when everything is known beforehand: all prompts have one
length, keys and values stand in one dense tensor of the final size, nobody comes or goes, and the
tokens stay on the device until the end. What the engine costs on top is scheduling, paging,
fences and everything around them. It runs with its decodes eager, and with its decodes replayed,
which the loop cannot.
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import entry_points
from typing import Any

import torch
from measure import arguments, demo_gguf, parse, report, take_turns, token_ids
from torch.nn.functional import scaled_dot_product_attention

from warcore import (
    Engine,
    EngineConfig,
    ForwardBatch,
    ForwardMode,
    Layer,
    Model,
    ModelContext,
    ModelFamily,
    ModelInfo,
    NoOptions,
    SamplingParams,
)

AIM = 0.95
BATCHES = (1, 8, 32)
PROMPT = 16


class Dense:
    """Keys and values of B sequences of one length, [B, kv_heads, longest, head_dim] a layer."""

    def __init__(self, info: ModelInfo, size: int, longest: int, dtype: torch.dtype) -> None:
        self.cache = [
            torch.zeros(2, size, layer.kv_heads, longest, layer.head_dim, dtype=dtype)
            for layer in info.layers
        ]
        self.size = size
        self.length = 0
        """Tokens of each sequence before this step."""

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer
    ) -> torch.Tensor:
        new = q.shape[0] // self.size
        end = self.length + new
        kv = self.cache[layer.index][:, :, :, :end]
        kv[0, :, :, self.length :] = k.unflatten(0, (self.size, new)).transpose(1, 2)
        kv[1, :, :, self.length :] = v.unflatten(0, (self.size, new)).transpose(1, 2)
        queries = q.unflatten(0, (self.size, new)).transpose(1, 2)
        out = scaled_dot_product_attention(
            queries,
            kv[0],
            kv[1],
            is_causal=new > 1,
            scale=layer.scale,
            enable_gqa=layer.q_heads != layer.kv_heads,
        )
        return out.transpose(1, 2).flatten(0, 1)


def step(model: Model, dense: Dense, tokens: torch.Tensor) -> torch.Tensor:
    """The next token of every sequence, [B]; tokens [B, new]."""
    size, new = tokens.shape
    count, index = size * new, torch.arange(size)
    batch = ForwardBatch(
        mode=ForwardMode.EXTEND if new > 1 else ForwardMode.DECODE,
        size=size,
        padded_size=size,
        padded_tokens=count,
        tokens=tokens.reshape(-1),
        rows=index,
        seq_lens=torch.full((size,), dense.length + new),
        q_start=torch.arange(0, count + 1, new),
        q_row=index.repeat_interleave(new),
        positions=torch.arange(dense.length, dense.length + new).repeat(size),
        out_slots=index,
        max_seq_len=dense.length + new,
        logits_at=index * new + new - 1 if new > 1 else None,
    )
    logits = model.forward(batch, dense.attend).logits
    dense.length += new
    return logits.max(-1).indices


@torch.inference_mode()
def by_loop(model: Model, prompts: list[list[int]], new: int) -> list[list[int]]:
    dense = Dense(model.info, len(prompts), PROMPT + new, DTYPE)
    made = [step(model, dense, torch.tensor(prompts))]
    while len(made) < new:
        made.append(step(model, dense, made[-1][:, None]))
    return torch.stack(made, 1).tolist()


def by_engine(engine: Engine, prompts: list[list[int]], new: int) -> list[list[int]]:
    params = SamplingParams(max_new_tokens=new, ignore_eos=True)
    return [result.output_ids for result in engine.generate(prompts, params, raw=True)]


DTYPE = torch.bfloat16


def loaded(ref: str) -> tuple[Model, type[ModelFamily]]:
    """A model, and a family that gives an engine this very object."""
    (entry,) = entry_points(group="warcore.models", name="gguf")
    family: Any = entry.load()
    found = family.recognises(ref)
    model = family.load(found, ModelContext(torch.device("cpu"), DTYPE, family.Options()))

    class Loaded(ModelFamily):
        Options = NoOptions

        @classmethod
        def recognises(cls, ref: str) -> str | None:
            return ref

        @classmethod
        def describe(cls, ref: str, options: object) -> ModelInfo:  # noqa: ARG003
            return model.info

        @classmethod
        def load(cls, ref: str, ctx: ModelContext) -> Model:  # noqa: ARG003
            return model

    return model, Loaded


def main() -> None:
    given = parse(arguments(__doc__, rounds=5))
    new, rounds = (16, 1) if given.quick else (64, given.rounds)
    model, family = loaded(str(demo_gguf()))
    rows = []
    settings = {
        "eager": {"graph_runner": "none"},
        "replayed": {"graph_buckets": BATCHES, "graph_positions": BATCHES[-1] * 128},
    }
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(Engine(EngineConfig(model=family, device="host", **chosen)))
            for name, chosen in settings.items()
        }
        for size in BATCHES:
            prompts = token_ids(0, [PROMPT] * size, 49_000)
            cases = {"loop": lambda prompts=prompts: by_loop(model, prompts, new)} | {
                name: lambda engine=engine, prompts=prompts: by_engine(engine, prompts, new)
                for name, engine in engines.items()
            }
            timings = take_turns(cases, rounds)
            loop = timings["loop"]
            row = {"batch": size, "loop tokens/s": size * new / loop.wall}
            for name in engines:
                row[f"{name} tokens/s"] = size * new / timings[name].wall
                row[f"{name}/loop"] = loop.wall / timings[name].wall
                row[f"{name}, cpu time"] = loop.cpu / timings[name].cpu
            rows.append({**row, "aim": AIM})
    report("bare_loop", rows, prompt_tokens=PROMPT, new_tokens=new, **vars(given))


if __name__ == "__main__":
    main()
