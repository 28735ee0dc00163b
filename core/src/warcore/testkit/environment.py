"""What the environment asks of the kit: interpreted kernels, and how long a check may take."""

from __future__ import annotations

import os
from typing import Final

from warcore.errors import ConfigError

TIMEOUT_VARIABLE: Final = "WARCORE_CHECK_TIMEOUT"
"""Environment variable: seconds that one check may take.

If it is not set, 60; 600 for `--all`, and with `TRITON_INTERPRET=1`.
"""


def kernels_are_interpreted() -> bool:
    """Whether the environment asks for Triton's interpreter."""
    asked = os.environ.get("TRITON_INTERPRET", "0").lower()
    return asked not in {"", "0", "false", "off", "no", "n"}


def time_limit(*, thorough: bool) -> float:
    """Seconds that one check may take; ConfigError if the environment says nonsense.

    An interpreted kernel takes milliseconds, and a check of a backend launches thousands.
    """
    slow = thorough or kernels_are_interpreted()
    text = os.environ.get(TIMEOUT_VARIABLE, "600" if slow else "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            f"{TIMEOUT_VARIABLE}={text} is not a number of seconds above 0",
            next=f"{TIMEOUT_VARIABLE}=120, or unset {TIMEOUT_VARIABLE}",
        )
    return seconds
