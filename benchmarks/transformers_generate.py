"""The engine against transformers' generate: same file, dtype, threads and token ids.

    python benchmarks/transformers_generate.py [--quick] [--rounds N]

32 requests with prompts of 8 to 256 and outputs of 16 to 256 tokens, and one request alone. Nobody
stops at an end token, so both make the same number of tokens; only tokens that were asked for
count. transformers pads to the left and has no request leave a batch early, so it is given two
ways to batch, one of them sorted by output length, and the better one counts.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import attrs
from measure import arguments, demo_gguf, parse, report, take_turns, token_ids

from warcore import Engine, EngineConfig, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AIMS = {1: 1.5, 32: 2.0}
BATCHES = (16, 32)


@attrs.frozen
class Workload:
    """Prompts as token ids, and how many tokens each is to get."""

    prompts: list[list[int]]
    outputs: list[int]


def workload(requests: int, *, longest: int) -> Workload:
    """Lengths and ids drawn from a fixed seed; one request is 64 tokens long and gets `longest`."""
    if requests == 1:
        return Workload(token_ids(0, [64], 49_000), [longest])
    rng = random.Random(1)
    lengths = [rng.randint(8, 256) for _ in range(requests)]
    outputs = [rng.randint(16, longest) for _ in range(requests)]
    return Workload(token_ids(0, lengths, 49_000), outputs)


def by_engine(engine: Engine, work: Workload) -> None:
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in work.outputs]
    results = engine.generate(work.prompts, params, raw=True)
    assert [len(result.output_ids) for result in results] == work.outputs


def load_transformers(path: Path, dtype: str) -> Any:
    """What from_pretrained(gguf_file=...) gives, without the package that it asks for."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unknown = model.load_state_dict(read["tensors"], strict=False)
    assert not unknown
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    model.tie_weights()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def by_transformers(model: Any, work: Workload, size: int) -> None:
    """Batches of `size`, padded to the left; each runs until its longest answer is complete."""
    import torch

    order = sorted(range(len(work.prompts)), key=lambda i: work.outputs[i])
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        width = max(len(work.prompts[i]) for i in chosen)
        pads = [width - len(work.prompts[i]) for i in chosen]
        ids = [[0] * pad + work.prompts[i] for pad, i in zip(pads, chosen, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        new = max(work.outputs[i] for i in chosen)
        with torch.inference_mode():
            made = model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=new,
                do_sample=False,
            )
        assert made.shape[1] == width + new


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--dtype", default="bfloat16")
    given = parse(parser)
    path, longest = demo_gguf(), 48 if given.quick else 256
    rounds = 1 if given.quick else given.rounds
    model = load_transformers(path, given.dtype)
    rows = []
    with Engine(EngineConfig(model=str(path), dtype=given.dtype, device="host")) as engine:
        # Kernels and allocators warm up on a little of it: a whole round takes minutes.
        little = workload(8, longest=16)
        by_engine(engine, little)
        by_transformers(model, little, 8)
        for requests, aim in AIMS.items():
            work = workload(requests, longest=longest)
            cases: dict[str, Callable[[], object]] = {
                "warcore": lambda work=work: by_engine(engine, work)
            }
            for size in BATCHES if requests > 1 else (1,):
                name = f"transformers, batches of {size}"
                cases[name] = lambda work=work, size=size: by_transformers(model, work, size)
            timings = take_turns(cases, rounds, warm_up=False)
            ours = timings["warcore"]
            best = min(timing.wall for timing in timings.values() if timing is not ours)
            for name, timing in timings.items():
                row = {
                    "": name,
                    "requests": requests,
                    "tokens/s": sum(work.outputs) / timing.wall,
                    "warcore is": timing.wall / ours.wall if timing is not ours else None,
                    "by cpu time": timing.cpu / ours.cpu if timing is not ours else None,
                    "aim": aim if timing.wall == best else None,
                }
                rows.append(row)
    report("transformers_generate", rows, **vars(given))


if __name__ == "__main__":
    main()
