"""Eager and captured steps, the normal and the overlap loop, fine and coarse fences, in turn.

    python benchmarks/gpu_ab.py [--device auto|host|cuda] [--model REF] [--batches N,N] [--quick]
                                [--json FILE]

Random weights and random token ids: no file and no tokenizer takes part. A run is one prefill and
`--new-tokens` decode steps of a whole batch. In each round every case runs once, every other round
backwards, and a ratio is the median over the rounds of what the case took against eager steps in
the normal loop in the same round.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measure import arguments, machine, parse, print_table, token_ids

from warcore import Engine, EngineConfig, SamplingParams

if TYPE_CHECKING:
    import argparse

PROMPT = 32
CASES = {
    "eager, normal": {"graph_runner": "none", "loop": "normal"},
    "eager, overlap, coarse": {"graph_runner": "none", "loop": "overlap", "fence": "coarse"},
    "eager, overlap, fine": {"graph_runner": "none", "loop": "overlap"},
    "graph, normal": {"loop": "normal"},
    "graph, overlap, coarse": {"loop": "overlap", "fence": "coarse"},
    "graph, overlap, fine": {"loop": "overlap"},
}
BASE = next(iter(CASES))


def options() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", help="default: random:llama-1b on a GPU, random:tiny on a CPU")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--graph-runner", default="full")
    parser.add_argument("--batches", default="1,8,32", help="how many requests run at once")
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    given = parse(parser)
    if given.model is None:
        on_gpu = given.device != "host" and bool(gpu())
        given.model = "random:llama-1b" if on_gpu else "random:tiny"
    given.batches = [int(size) for size in given.batches.split(",")]
    if given.quick:
        given.rounds, given.new_tokens = min(given.rounds, 3), min(given.new_tokens, 48)
    return given


def open_engine(given: argparse.Namespace, case: dict[str, str]) -> Engine:
    """An engine that holds the largest batch, and captures just the steps that will be run."""
    chosen: dict[str, Any] = {"graph_runner": given.graph_runner, **case}
    if chosen["graph_runner"] != "none":
        chosen["graph_buckets"] = sorted(set(given.batches))
        # Only a prefill of one request can be replayed, and all others run eagerly.
        chosen["graph_prefill_buckets"] = [PROMPT]
        chosen["graph_positions"] = max(given.batches) * (PROMPT + given.new_tokens)
    return Engine(
        EngineConfig(
            model=given.model,
            device=given.device,
            dtype=given.dtype,
            max_running_requests=max(given.batches),
            prefill_chunk=max(given.batches) * PROMPT,
            context_length=PROMPT + given.new_tokens,
            **chosen,
        )
    )


def seconds(engine: Engine, size: int, new_tokens: int) -> float:
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    begin = time.perf_counter()
    engine.generate(token_ids(size, [PROMPT] * size, 250), params, raw=True)
    return time.perf_counter() - begin


def rounds(
    engines: dict[str, Engine], size: int, given: argparse.Namespace
) -> dict[str, list[float]]:
    """What each case took in each round; the first round, which warms up, is left out."""
    took: dict[str, list[float]] = {case: [] for case in engines}
    for number in range(given.rounds + 1):
        for case in list(engines)[:: -1 if number % 2 else 1]:
            spent = seconds(engines[case], size, given.new_tokens)
            if number:
                took[case].append(spent)
    return took


def rows(took: dict[str, list[float]], size: int, new_tokens: int) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for case, times in took.items():
        ratios = [base / mine for base, mine in zip(took[BASE], times, strict=True)]
        table.append(
            {
                "batch": size,
                "case": case,
                "ms/token": 1000 * median(times) / new_tokens,
                "tokens/s": size * new_tokens / median(times),
                "times as fast": round(median(ratios), 3),
                "from": round(min(ratios), 3),
                "to": round(max(ratios), 3),
            }
        )
    return table


def accounting(engine: Engine) -> dict[str, object]:
    """How its steps were run, and where their fences fell."""
    stats = engine.stats()
    return {"steps": stats["steps"], "graphs": stats["graphs"], "fences": stats["fences"]}


def gpu() -> dict[str, str]:
    """What the figures depend on, on a machine with a GPU."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}


def main() -> None:
    given = options()
    table: list[dict[str, object]] = []
    with ExitStack() as stack:
        opened = {}
        for case, config in CASES.items():
            begin = time.perf_counter()
            opened[case] = stack.enter_context(open_engine(given, config))
            print(f"{case}: ready in {time.perf_counter() - begin:.1f} s", flush=True)
        devices = {engine.describe()["device"] for engine in opened.values()}
        for size in given.batches:
            took = rounds(opened, size, given)
            table += rows(took, size, given.new_tokens)
            print(f"batch {size}: done", flush=True)
        counts = {case: accounting(engine) for case, engine in opened.items()}
    print_table([{**row, "batch": str(row["batch"])} for row in table])
    found = machine() | gpu()
    print(f"\n{given.model} in {given.dtype} on {', '.join(devices)}; {found}")
    if given.json is not None:
        facts = {name: value for name, value in vars(given).items() if name != "json"}
        document = {**facts, "machine": found, "rows": table, "accounting": counts}
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
