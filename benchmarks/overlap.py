"""What overlap is worth: a model of a step, the real engine in virtual time, and a real run.

    python benchmarks/overlap.py [--part virtual|run|both] [--point D,H,W] [--plot FOLDER]
                                 [--model REF] [--device host|cuda] [--json] [--quick]

The virtual part runs the real scheduler, launcher, runner and fence on a device whose time is
bookkeeping, over a grid of costs, and sets the time per step beside the formulas that
`overlap_model.py` derives. The run measures the same quantities on the device there is
(`overlap_run.py`) and says what the formulas make of them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from measure import arguments, machine, parse, print_table, write
from overlap_model import Costs, compared, grid

SCHEMA = 1
TOLERANCE = 0.02


def point(text: str) -> Costs:
    """The costs of D,H,W in milliseconds."""
    device, host, writes = (float(part) * 1e3 for part in text.split(","))
    return Costs.split(device, host, writes)


def at_point(costs: Costs) -> list[dict[str, Any]]:
    """The loops at one point, in milliseconds, and how much faster each is than the one above."""
    rows: list[dict[str, Any]] = []
    for row in compared(costs):
        above = rows[-1]["engine"] if rows and rows[-1]["sync"] == _word(row["sync"]) else None
        faster = None if above is None else (above / row["engine"] - 1) * 100
        shown = {name: row[name] for name in ("loop", "engine", "model")}
        rows.append({"sync": _word(row["sync"]), **shown, "faster %": faster})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How far the engine was from the model at most, in percent, for each loop."""
    off: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        off[_word(row["sync"]), row["loop"]].append(abs(row["off"]))
    return [
        {
            "sync": sync,
            "loop": loop,
            "points": len(each),
            "off at most %": max(each) * 100,
            "aim %": TOLERANCE * 100,
        }
        for (sync, loop), each in off.items()
    ]


def virtual_part(given: Any) -> dict[str, Any]:
    rows = [row for costs in grid(quick=given.quick) for row in compared(costs)]
    return {"point": at_point(given.point), "summary": summary(rows), "grid": rows}


def show(document: dict[str, Any], given: Any) -> None:
    if "virtual" in document:
        point = given.point
        print(
            f"In virtual time, ms a step: D {point.device / 1e3:g} (reads {point.reads / 1e3:g}), "
            f"W {point.writes / 1e3:g}, H {point.host / 1e3:g} "
            f"({point.pre / 1e3:g} + {point.post / 1e3:g} + {point.results / 1e3:g})\n"
        )
        print_table(_exact(document["virtual"]["point"]))
        print("\nEngine against model over the grid\n")
        print_table(_exact(document["virtual"]["summary"]))
        print()
    if "run" in document:
        print(f"{given.model} on this machine, {given.requests} requests, ms a decode step\n")
        print_table(document["run"])
        print("\nmodel: if host and device were busy side by side; one by one: D + H + W")
    found = document["machine"]
    print(f"\n{found['cores']} cores, load {found['load']:.1f}, torch {found['torch']}")


def _exact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, two decimals everywhere: in virtual time they mean something."""
    return [
        {name: f"{cell:.2f}" if isinstance(cell, float) else cell for name, cell in row.items()}
        for row in rows
    ]


def _word(sync: object) -> str:
    return "host waits for writes" if sync else "no sync"


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--part", choices=("virtual", "run", "both"), default="both")
    parser.add_argument("--point", type=point, default=point("10,3,0.2"), help="ms; 10,3,0.2")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="needs matplotlib")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--host", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--graph-runner")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    given = parse(parser)
    if given.quick:
        given.requests, given.new_tokens, given.rounds = 4, 24, 1

    document: dict[str, Any] = {
        "schema": SCHEMA,
        "unit": "ms",
        "given": {name: _plain(value) for name, value in vars(given).items()},
        "machine": machine(),
    }
    if given.part != "run":
        document["virtual"] = virtual_part(given)
    if given.part != "virtual":
        from overlap_run import measure

        document["run"] = measure(given)
    if given.plot is not None:
        from overlap_plot import draw

        draw(given.plot)
    text = write("overlap", document)
    if given.json:
        print(text, end="")
    else:
        show(document, given)


def _plain(value: object) -> object:
    """What JSON can hold."""
    if isinstance(value, Costs):
        return ",".join(f"{part / 1e3:g}" for part in (value.device, value.host, value.writes))
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    main()
