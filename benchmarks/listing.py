"""How long `import warcore` and `warcore list-plugins` take among a thousand distributions.

    python benchmarks/listing.py [--runs N]

Wall and processor time of a whole process, medians of runs that take turns. Writes
benchmarks/results/listing.json. The processor time is the one to compare on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DISTRIBUTIONS, PLUGINS = 1000, 20
RESULT = Path(__file__).parent / "results" / "listing.json"
BY_LIBRARY = (
    "import importlib_metadata as m; print([e for e in m.entry_points() if 'warcore.' in e.group])"
)
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import warcore": ["-c", "import warcore"],
    "warcore --help": ["-m", "warcore", "--help"],
    "warcore list-plugins": ["-m", "warcore", "list-plugins"],
    "entry points by importlib-metadata": ["-c", BY_LIBRARY],
}
AIM_MS = {"warcore list-plugins": 150}


def install(place: Path) -> None:
    """Write the metadata of the distributions, every fiftieth of them a plugin."""
    for i in range(DISTRIBUTIONS):
        info = place / f"fake_{i:04}-1.0.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: fake-{i:04}\nVersion: 1.0\n"
        head += "Requires-Dist: warcore>=0.1\nRequires-Dist: torch>=2.9\n"
        (info / "METADATA").write_text(head + "\n" + "A line of a long description.\n" * 200)
        (info / "RECORD").write_text("")
        if i % (DISTRIBUTIONS // PLUGINS) == 0:
            (place / f"fake_{i:04}.py").write_text("")
            entry = f"[warcore.backends]\nfake{i:04} = fake_{i:04}:Backend\n"
            (info / "entry_points.txt").write_text(entry)
        elif i % 3 == 0:
            (info / "entry_points.txt").write_text(f"[console_scripts]\nx{i} = a:b\n")


def run(args: list[str], place: Path) -> tuple[float, float]:
    """Milliseconds of wall and of processor time that one process took."""
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our interpreter and the commands above
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": str(place)},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{args} ended with {process.returncode}")
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Medians by command; the first round only fills caches."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder))
        for _ in range(runs + 1):
            for name, args in COMMANDS.items():
                times[name].append(run(args, Path(folder)))
    return {
        name: {
            "wall_ms": statistics.median(wall for wall, _ in pairs[1:]),
            "cpu_ms": statistics.median(cpu for _, cpu in pairs[1:]),
        }
        for name, pairs in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    medians = measure(runs)
    print(f"{DISTRIBUTIONS} distributions, {PLUGINS} plugins, median of {runs} runs\n")
    print(f"{'':36}{'wall':>9}{'cpu':>9}{'aim':>9}")
    for name, value in medians.items():
        aim = f"{AIM_MS[name]:6} ms" if name in AIM_MS else ""
        print(f"{name:36}{value['wall_ms']:6.0f} ms{value['cpu_ms']:6.0f} ms{aim:>9}")
    RESULT.parent.mkdir(exist_ok=True)
    facts = {"distributions": DISTRIBUTIONS, "plugins": PLUGINS, "runs": runs, "aim_ms": AIM_MS}
    RESULT.write_text(json.dumps({**facts, "python": sys.version, "medians": medians}, indent=2))


if __name__ == "__main__":
    main()
