"""What it costs to be watched by attribution, in microseconds per operation.

    python benchmarks/attribution.py [--quick] [--rounds N]

Operations on tiny tensors, so that the call is all there is: eager ones that touch no watched
buffer, that read one, and that pick rows of one by index; a method that hands values to Python; a
graph's replay; and one submission. "a bare mode" is what any dispatch mode costs.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from measure import arguments, parse, report, take_turns

from warcore.device.host import HostDevice
from warcore.device.operations import OperationMode
from warcore.testkit.detectors.attribution import Attribution

if TYPE_CHECKING:
    from collections.abc import Callable

    Case = Callable[[], object]


class Bare(OperationMode):
    """Does nothing but be there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def cases(table: torch.Tensor) -> dict[str, Case]:
    """One operation each."""
    beside, index = torch.ones(8, 16), torch.tensor([3, 5])
    return {
        "beside the buffer": lambda: beside.add(beside),
        "a view of the buffer": lambda: table.view(-1),
        "a read": lambda: table.add(1),
        "a read by index": lambda: table.index_select(0, index),
        "tolist": table.tolist,
    }


def per_call(work: Case, count: int, mode: Callable[[], Any], rounds: int) -> float:
    """Microseconds of one call."""

    def many() -> None:
        with torch.inference_mode(), mode():
            for _ in range(count):
                work()

    return take_turns({"": many}, rounds)[""].wall / count * 1e6


def submissions(table: torch.Tensor, count: int, rounds: int) -> list[dict[str, object]]:
    """Of a device's work: an empty submission, and a replayed call."""
    rows = []
    with HostDevice("inline") as device:
        stream, graph, out = device.stream("forward"), device.graph(), torch.zeros(8, 16)
        attribution = Attribution({"table": table})

        def step() -> None:
            for _ in range(100):
                torch.add(table, 1, out=out)

        with device.watched_by(attribution):
            stream.submit(graph.capture, step).result()
        for name, work, calls in (
            ("a submission", lambda: None, 1),
            ("a replayed read", graph.replay, 100),
        ):
            row: dict[str, object] = {"operation": name}
            for head, mode in (
                ("off", nullcontext),
                ("watched", lambda: device.watched_by(attribution)),
            ):
                one = per_call(
                    lambda work=work: stream.submit(work).result(), count // calls, mode, rounds
                )
                row[head] = one / calls
            rows.append(row)
    return rows


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.set_defaults(threads=1)
    given = parse(parser)
    count, rounds = (100, 1) if given.quick else (3000, given.rounds)
    table = torch.ones(8, 16)
    rows: list[dict[str, object]] = []
    for name, work in cases(table).items():
        attribution = Attribution({"table": table})
        modes: dict[str, Callable[[], Any]] = {
            "off": nullcontext,
            "a bare mode": Bare,
            "watched": lambda attribution=attribution: attribution,
        }
        rows.append(
            {
                "operation": name,
                **{head: per_call(work, count, mode, rounds) for head, mode in modes.items()},
            }
        )
    report("attribution", rows + submissions(table, count, rounds), **vars(given))


if __name__ == "__main__":
    main()
