"""What overlap and a fine fence are worth on this device: both loops, both fences, in turn.

    python benchmarks/loops.py [--model REF] [--device host|cuda] [--rounds N] [--quick]

Prompts are random token ids, so no tokenizer takes part.
"""

from __future__ import annotations

import random

from measure import arguments, parse, report, take_turns, token_ids

from warcore import Engine, EngineConfig, SamplingParams

ROWS = (("normal", "declared"), ("overlap", "coarse"), ("overlap", "declared"))


def run(engine: Engine, prompts: list[list[int]], new_tokens: int) -> None:
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    engine.generate(prompts, params, raw=True)


def fine_share(engine: Engine) -> float | None:
    """The share of fences that were fine; None where there were none."""
    fences = engine.stats()["fences"]
    counted = sum(row["count"] for row in fences)
    fine = sum(row["count"] for row in fences if row["reason"] == "fine")
    return fine / counted if counted else None


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    given = parse(parser)
    if given.quick:
        given.requests, given.new_tokens, given.rounds = 8, 16, 1

    rng = random.Random(0)
    prompts = token_ids(0, [rng.randint(8, 64) for _ in range(given.requests)], 256)
    engines = {}
    for loop, fence in ROWS:
        engines[loop, fence] = Engine(
            EngineConfig(
                model=given.model, device=given.device, dtype=given.dtype, loop=loop, fence=fence
            )
        )
    timings = take_turns(
        {
            f"{loop}, {fence}": lambda engine=engine: run(engine, prompts, given.new_tokens)
            for (loop, fence), engine in engines.items()
        },
        given.rounds,
    )
    base = timings[", ".join(ROWS[0])]
    rows = []
    for loop, fence in ROWS:
        timing = timings[f"{loop}, {fence}"]
        rows.append(
            {
                "loop": loop,
                "fence": fence,
                "tokens/s": given.requests * given.new_tokens / timing.wall,
                "ratio": base.wall / timing.wall,
                "by cpu time": base.cpu / timing.cpu,
                "fine": fine_share(engines[loop, fence]),
            }
        )
        engines[loop, fence].close()
    report("loops", rows, **vars(given))


if __name__ == "__main__":
    main()
