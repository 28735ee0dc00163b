"""What a family does with references, asked in a fresh interpreter."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from warcore.errors import ModelError, WarcoreError
from warcore.options import parse_options
from warcore.records import PluginRecord
from warcore.testkit.packages.sources import place_of
from warcore.testkit.packages.watching import load_there

if TYPE_CHECKING:
    from warcore.model import ModelFamily

NETWORK: Final = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})


def recognise(task: dict[str, Any]) -> dict[str, Any]:
    """Ask the family of `task` for each of its `texts`, then describe what it has recognised.

    {"answers": [{"text", "value", "again", "error", "typed"}], "seconds": of the processor, for all
    of them, "costly": [[what it did, where]]}.
    """
    costly: list[tuple[str, str]] = []
    root = task["root"]

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and arguments[0] == "torch":
            costly.append(("it imports torch", _where(root)))
        elif event in NETWORK:
            costly.append(("it uses the network", _where(root)))

    sys.addaudithook(note)
    record = PluginRecord(**task["record"])
    family: Any = load_there(record)
    start = time.process_time()
    answers = [_answer(family, text) for text in task["texts"]]
    seconds = time.process_time() - start
    options = parse_options(record.name, family.Options, {})
    for answer in answers:
        if isinstance(answer["value"], str):
            try:
                family.describe(answer["value"], options)
            except WarcoreError:
                # Files that are not here say nothing of what describing costs.
                continue
    return {"answers": answers, "seconds": seconds, "costly": costly}


def _answer(family: type[ModelFamily], text: str) -> dict[str, Any]:
    told: dict[str, Any] = {"text": text, "value": None, "again": None, "error": None}
    try:
        value: Any = family.recognises(text)
        told["value"] = value if value is None or isinstance(value, str) else {"is": repr(value)}
        if isinstance(value, str):
            told["again"] = family.recognises(value)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        told |= {"error": repr(error), "typed": isinstance(error, ModelError)}
    return told


def _where(root: str) -> str:
    """The innermost line of the plugin that is running."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to see who calls
    while frame is not None:
        if frame.f_code.co_filename.startswith(root):
            return str(place_of(frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return ""
