"""What the page guard costs: a window that nobody touches, a late touch, and a whole step.

    python benchmarks/page_guard.py [--quick] [--rounds N] [--threads N]

The tables are those of an engine with 64 running requests of 2,048 tokens. A window is closed and
opened once a step. `guarded` and `plain` are the demo model's decode steps with and without.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from measure import arguments, demo_gguf, parse, report, take_turns, token_ids

from warcore import Engine, EngineConfig, SamplingParams
from warcore.device.host import HostDevice
from warcore.testkit.detectors.guard import PageGuard, supported

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, CONTEXT = 64, 2048
BATCH, PROMPT = 8, 32


def microseconds(work: Callable[[], object], times: int) -> float:
    """Of one call; the best of five runs, for all that disturbs only adds."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - begin)
    return best / times * 1e6


def windows(times: int) -> list[dict[str, object]]:
    with PageGuard() as guard:
        _, reader = guard.allocate("req_to_token", (ROWS + 1, CONTEXT), torch.int32)
        window = guard.window("forward")
        flat = reader.numpy().reshape(-1)
        reader.sum()

        def step(pages: int) -> None:
            window.close()
            flat[: pages * 1024 : 1024].sum()
            window.open()

        def bare(pages: int) -> None:
            flat[: pages * 1024 : 1024].sum()

        rows: list[dict[str, object]] = []
        for pages in (0, 1, 64):
            read = microseconds(lambda pages=pages: bare(pages), times)  # type: ignore[misc]
            spent = microseconds(lambda pages=pages: step(pages), times)  # type: ignore[misc]
            guard.faults.clear()
            rows.append({"late pages": pages, "window us": spent - read})
    return rows


def engine_of(device: HostDevice) -> Engine:
    config = EngineConfig(model=str(demo_gguf()), device="host", graph_runner="none")
    return Engine(config, device=device)


def steps(new: int, rounds: int) -> list[dict[str, object]]:
    prompts = token_ids(0, [PROMPT] * BATCH, 49_000)
    params = SamplingParams(max_new_tokens=new, ignore_eos=True)
    with PageGuard() as guard:
        devices = {"plain": HostDevice("inline"), "guarded": HostDevice("inline")}
        devices["guarded"].memory = guard.allocate
        engines = {name: engine_of(device) for name, device in devices.items()}
        window = guard.window("forward")
        run = engines["guarded"]._assembly.scheduler.launcher._step._target.recorded  # noqa: SLF001
        body = run.body

        def closed(batch: object) -> object:
            with window:
                return body(batch)  # type: ignore[arg-type]

        run.body = closed  # type: ignore[assignment, method-assign]
        with devices["guarded"].watched_by(guard.whereabouts):
            timings = take_turns(
                {
                    name: lambda engine=engine: engine.generate(prompts, params, raw=True)  # type: ignore[misc]
                    for name, engine in engines.items()
                },
                rounds,
            )
        for engine in engines.values():
            engine.close()
        assert not guard.faults, guard.faults[0]
    return [{"case": name, "ms a step": each.wall / new * 1e3} for name, each in timings.items()]


def main() -> None:
    given = parse(arguments(__doc__, rounds=5))
    why = supported()
    if why is not None:
        raise SystemExit(why)
    times, new, rounds = (200, 8, 1) if given.quick else (5000, 64, given.rounds)
    rows = windows(times)
    rows += steps(new, rounds)
    report("page_guard", rows, rows_of_table=ROWS, context=CONTEXT, batch=BATCH, **vars(given))


if __name__ == "__main__":
    main()
