"""Hold the public API to `core/contract.json`: `python scripts/contract.py [--write]`.

The file has one line per promise: each public name, its fields, members and methods, and the
arguments of each hook, read from the running code. A difference needs a fragment in changelog.d/
that names what changed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from contract_entries import entries

ROOT = Path(__file__).resolve().parent.parent


def differences(recorded: dict[str, str], present: dict[str, str]) -> dict[str, str]:
    """What changed, by entry: one line each, with the old and the new text."""
    found = {}
    for name in sorted({*recorded, *present}):
        old, new = recorded.get(name), present.get(name)
        if old is None:
            found[name] = f"added    {name}: {new}"
        elif new is None:
            found[name] = f"removed  {name}: {old}"
        elif old != new:
            found[name] = f"changed  {name}: {old}\n{'to':>8} {name}: {new}"
    return found


def announced(name: str, fragments: dict[str, str]) -> bool:
    """Whether a fragment names the entry, its class, or (for a class) one of its parts."""
    said = {word for text in fragments.values() for word in re.findall(r"`([\w.]+)`", text)}
    return any(f"{name}.".startswith(f"{w}.") or w.startswith(f"{name}.") for w in said)


def complaint(recorded: dict[str, str], present: dict[str, str], fragments: dict[str, str]) -> str:
    """What changed unannounced and what to type, or an empty text."""
    silent = {
        name: line
        for name, line in differences(recorded, present).items()
        if not announced(name, fragments)
    }
    if not silent:
        return ""
    first = next(iter(silent))
    return "\n".join(
        [
            "The public contract differs from core/contract.json and no fragment says so:",
            *silent.values(),
            f"Next: write changelog.d/NAME.contract.md, one sentence with `{first}` in it.",
            "      Not meant to change? Mend the code. Not released yet? make record.",
        ]
    )


def main() -> int:
    """Compare, or write with --write; 1 if something changed that no fragment announces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the code as the contract")
    parser.add_argument("--check", action="store_true", help="compare (what it does anyway)")
    parser.add_argument("--file", type=Path, default=ROOT / "core/contract.json")
    parser.add_argument("--fragments", type=Path, default=ROOT / "changelog.d")
    given = parser.parse_args()
    present = entries()
    if given.write:
        given.file.write_text(json.dumps(present, indent=1) + "\n", encoding="utf-8")
        print(f"contract: {len(present)} promises written to {given.file.name}")
        return 0
    if not given.file.exists():
        print(f"contract: no {given.file}. Next: make record")
        return 1
    recorded = json.loads(given.file.read_text(encoding="utf-8"))
    fragments = {
        f.name: f.read_text(encoding="utf-8") for f in given.fragments.glob("*.contract.md")
    }
    if said := complaint(recorded, present, fragments):
        print(said)
        return 1
    changed = len(differences(recorded, present))
    print(f"contract: {len(present)} promises kept" + (f", {changed} announced" * bool(changed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
