"""Draw `docs/pictures/` from runs in virtual time: `python scripts/pictures.py [--check]`.

Each picture is drawn twice, for light and for dark pages. A picture that differs from what the code
does is red in `tests/test_docs.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import hazards
from colours import THEMES
from drawing import picture
from panels import Panel
from timeline import run

PICTURES = Path(__file__).resolve().parent.parent / "docs/pictures"


def pictures() -> dict[str, str]:
    """Each picture by its file name."""
    coarse, fine = run(fence="coarse"), run()
    drawn = {
        "fence": (
            "The same steps with a coarse and with a fine fence, in virtual time",
            [
                Panel("Coarse fence: the next write waits for the whole forward", coarse, "alarm"),
                Panel("Fine fence: the next write waits for the last read", fine, "good"),
            ],
        ),
        **hazards.panels(),
    }
    return {
        f"{name}-{theme}.svg": picture(panels, colours, alt)
        for name, (alt, panels) in drawn.items()
        for theme, colours in THEMES.items()
    }


def main() -> int:
    """Write the pictures, or with --check say which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, text in pictures().items():
        path = PICTURES / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/pictures/{name}")
        if not given.check:
            path.write_text(text, encoding="utf-8")
    if stale and given.check:
        print(f"not what the code does: {', '.join(stale)}. Next: python scripts/pictures.py")
        return 1
    print(f"pictures: {len(stale)} drawn" if stale else "pictures: as the code does")
    return 0


if __name__ == "__main__":
    sys.exit(main())
