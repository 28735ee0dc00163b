"""Mishaps: a plugin that raises, hangs, ends the process or cannot be loaded, whatever the check.

The check that met it has nothing to say about it: its rule was not looked at.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

Mishap = Literal["", "raised", "hung", "ended the process", "cannot be loaded"]
"""What befell a check; empty: it has seen its own rule broken."""


@attrs.frozen
class Advice:
    """What a mishap means, and how to mend it."""

    so_what: str
    mend: str


ADVICE: Final[dict[Mishap, Advice]] = {
    "raised": Advice(
        "The plugin raised while this check ran it, so what the check is about was not seen. In an "
        "engine the requests of that step end with this error.",
        "Mend what raised; the trace has every frame. What the plugin cannot serve it refuses "
        "beforehand, in `why_not`, with a reason.",
    ),
    "hung": Advice(
        "The plugin did not come back while this check ran it, so what the check is about was not "
        "seen. An engine would stand still, and with it all of its requests.",
        "The trace says where each thread stood. Wait for nothing that only a later step or "
        "another stream brings; work that is long and not stuck has more time with "
        "WARCORE_CHECK_TIMEOUT=SECONDS.",
    ),
    "ended the process": Advice(
        "The process in which this check ran the plugin is gone, so what the check is about was "
        "not seen. An engine would be gone with all of its requests.",
        "A signal comes out of native code: look at what was handed to it at that line, sizes and "
        "pointers first. Where the plugin ends the process itself, let it raise.",
    ),
    "cannot be loaded": Advice(
        "Whatever would use the plugin ends with this error, and what it does was not seen.",
        "Mend what its import raises.",
    ),
}
