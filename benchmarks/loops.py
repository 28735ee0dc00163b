"""What overlap and a fine fence are worth on this device: both loops, both fences, in turn.

    python benchmarks/loops.py [--model REF] [--device host|cuda] [--rounds N]

The rows are run in turn, round by round, so that a machine that slows down slows all of them; a row
shows the median of its rounds. Prompts are random token ids, so no tokenizer takes part.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import median

from warcore import Engine, EngineConfig, SamplingParams

ROWS = (("normal", "declared"), ("overlap", "coarse"), ("overlap", "declared"))
RESULTS = Path(__file__).parent / "results"


def run(engine: Engine, prompts: list[list[int]], new_tokens: int) -> tuple[float, float]:
    """Tokens a second, and the share of fences that were fine, of one workload."""
    before = engine.stats()
    engine.generate(prompts, SamplingParams(max_new_tokens=new_tokens, ignore_eos=True), raw=True)
    after = engine.stats()
    seconds = after["seconds"] - before["seconds"]
    counted = sum(row["count"] for row in after["fences"])
    fine = sum(row["count"] for row in after["fences"] if row["reason"] == "fine")
    return (after["tokens"] - before["tokens"]) / seconds, fine / counted if counted else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()

    rng = random.Random(0)
    prompts = [
        [rng.randrange(256) for _ in range(rng.randint(8, 64))] for _ in range(given.requests)
    ]
    engines = {}
    for loop, fence in ROWS:
        config = EngineConfig(
            model=given.model, device=given.device, dtype=given.dtype, loop=loop, fence=fence
        )
        engines[loop, fence] = Engine(config)
        run(engines[loop, fence], prompts[:4], 4)  # kernels and allocator warm up
    rates: dict[tuple[str, str], list[float]] = {row: [] for row in ROWS}
    fine = {}
    for _ in range(given.rounds):
        for row, engine in engines.items():
            rate, fine[row] = run(engine, prompts, given.new_tokens)
            rates[row].append(rate)
    for engine in engines.values():
        engine.close()

    base = median(rates[ROWS[0]])
    print(f"{'loop':8} {'fence':9} {'tokens/s':>9} {'ratio':>6} {'fine':>6}")
    table = []
    for loop, fence in ROWS:
        rate = median(rates[loop, fence])
        share = fine[loop, fence]
        print(f"{loop:8} {fence:9} {rate:9.1f} {rate / base:6.2f} {share:6.0%}")
        table.append({"loop": loop, "fence": fence, "tokens_per_second": rate, "fine": share})
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loops.json").write_text(json.dumps({**vars(given), "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
