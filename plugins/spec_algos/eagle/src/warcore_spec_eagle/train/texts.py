"""Texts: what the target answers to the prompts, kept in a file that a broken run goes on with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from warcore import Engine, EngineConfig, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TEMPERATURES: Final = (0.0, 0.7)
"""Prompts take turns: the likeliest text, and text as it is drawn."""


@attrs.frozen
class Text:
    """One prompt and its answer, as the target reads and wrote it."""

    prompt: int
    """Its place in the list of prompts."""
    ids: tuple[int, ...]
    start: int
    """Where the answer begins."""


@attrs.frozen
class Writing:
    """How the target writes."""

    model: str
    dtype: str = "bfloat16"
    new_tokens: int = 160
    """At most, of each answer."""
    running: int = 64
    """Prompts at a time."""
    context: int = 256
    seed: int = 0


def texts(
    writing: Writing, prompts: Sequence[str], places: Sequence[int], file: Path
) -> list[Text]:
    """The texts of the prompts at `places`; those that `file` lacks are written and added.

    A prompt's draws depend on its place and the seed alone. So a run that was broken off and goes
    on, or several that write other places and whose files are joined, give the same texts, but for
    what rounding in other batches changes.
    """
    known = {text.prompt: text for text in _read(file)}
    missing = [place for place in places if place not in known]
    if missing:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            for text in _written(writing, prompts, missing):
                known[text.prompt] = text
                lines.write(json.dumps(attrs.asdict(text)) + "\n")
                lines.flush()
    return [known[place] for place in places]


def _read(file: Path) -> Iterator[Text]:
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield Text(row["prompt"], tuple(row["ids"]), row["start"])


def _written(writing: Writing, prompts: Sequence[str], places: Sequence[int]) -> Iterator[Text]:
    config = EngineConfig(
        model=writing.model,
        dtype=writing.dtype,
        device="host",
        graph_runner="none",
        max_running_requests=writing.running,
        context_length=writing.context,
    )
    with Engine(config) as engine:
        place_of = {}
        for place in places:
            params = SamplingParams(
                max_new_tokens=writing.new_tokens,
                temperature=TEMPERATURES[place % len(TEMPERATURES)],
                seed=writing.seed + place,
            )
            place_of[engine.add_request(prompts[place], params)] = place
        while engine.has_work:
            for output in engine.step():
                prompt = tuple(output.prompt_ids)
                ids = prompt + tuple(output.output_ids)
                yield Text(place_of[output.index], ids, len(prompt))
