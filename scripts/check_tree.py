"""Hold the rules of the tree: `python scripts/check_tree.py [--only RULE]... [--root FOLDER]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tree_rules import RULES


def main() -> int:
    """Print each violation under its rule; 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=RULES, metavar="RULE")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    given = parser.parse_args()
    chosen = given.only or list(RULES)
    total = 0
    for name in chosen:
        found = list(RULES[name](given.root.resolve()))
        total += len(found)
        for line in found:
            print(f"{line}  [{name}]")
    print(f"tree: {len(chosen)} rules, {total or 'no'} violation{'s' if total != 1 else ''}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
