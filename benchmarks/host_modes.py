"""Host threads against inline with the demo model: what `--host auto` should take.

    python benchmarks/host_modes.py [--quick] [--rounds N] [--dtype D]

With threads, the scheduler prepares a step while another thread runs the one before, and both
share the cores. Inline, the host does one after the other and pays for no thread.
"""

from __future__ import annotations

from measure import arguments, demo_gguf, parse, report, take_turns, token_ids

from warcore import Engine, EngineConfig, SamplingParams

BATCHES = (1, 8, 32)
PROMPT = 32


def run(engine: Engine, prompts: list[list[int]], new: int) -> None:
    engine.generate(prompts, SamplingParams(max_new_tokens=new, ignore_eos=True), raw=True)


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--dtype", default="bfloat16")
    given = parse(parser)
    new, rounds = (16, 1) if given.quick else (96, given.rounds)
    engines = {
        host: Engine(
            EngineConfig(model=str(demo_gguf()), dtype=given.dtype, device="host", host=host)
        )
        for host in ("inline", "threads")
    }
    rows = []
    for size in BATCHES:
        prompts = token_ids(0, [PROMPT] * size, 49_000)
        timings = take_turns(
            {
                host: lambda engine=engine, prompts=prompts: run(engine, prompts, new)
                for host, engine in engines.items()
            },
            rounds,
        )
        inline, threads = timings["inline"], timings["threads"]
        rows.append(
            {
                "batch": size,
                "inline tokens/s": size * new / inline.wall,
                "threads tokens/s": size * new / threads.wall,
                "threads/inline": inline.wall / threads.wall,
                "by cpu time": inline.cpu / threads.cpu,
            }
        )
    for engine in engines.values():
        engine.close()
    report("host_modes", rows, prompt_tokens=PROMPT, new_tokens=new, **vars(given))


if __name__ == "__main__":
    main()
