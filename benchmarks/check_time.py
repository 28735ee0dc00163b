"""How long `warcore check` takes of plugins of this repository, on the host device.

    python benchmarks/check_time.py [KIND:NAME ...] [--rounds N]

Wall and processor time of the whole command, with every process that it starts. Without names it is
`torch_native`, of which the aim is: it ends within 60 s on 2 cores. `TRITON_INTERPRET=1` goes along
to the kernels of those that have some, which then take minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

import attrs
from measure import report

USUAL = "backend:torch_native"
AIMS = {USUAL: 60.0}
"""Seconds of wall time, on 2 cores with nobody else."""


@attrs.frozen
class Checked:
    """One run of the command."""

    wall: float
    cpu: float
    said: str
    """Its last line."""


def checked(name: str) -> Checked:
    """SystemExit if the plugin is not there."""
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our interpreter
        [sys.executable, "-m", "warcore", "check", name],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if not lines:
        raise SystemExit(f"warcore check {name} ended with {process.returncode}")
    return Checked(wall, usage.ru_utime + usage.ru_stime, lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[USUAL], metavar="KIND:NAME")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is checked")
    given = parser.parse_args()
    rows = []
    for name in given.names:
        runs = [checked(name) for _ in range(given.rounds)]
        rows.append(
            {
                "plugin": name,
                "wall s": median(run.wall for run in runs),
                "cpu s": median(run.cpu for run in runs),
                "aim s": AIMS.get(name),
                "it says": runs[-1].said,
            }
        )
    report("check_time", rows, rounds=given.rounds)


if __name__ == "__main__":
    main()
