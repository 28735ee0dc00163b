"""Texts: what the target answers to the prompts, kept in a file that a broken run goes on with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from warcore import Engine, EngineConfig, SamplingParams, WarcoreError

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
    what rounding in other batches changes. WarcoreError if `file` was written another way.
    """
    known = {text.prompt: text for text in _read(file, writing)}
    missing = [place for place in places if place not in known]
    if missing:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            if not known:
                lines.write(json.dumps({"writing": attrs.asdict(writing)}) + "\n")
            for text in _written(writing, prompts, missing):
                known[text.prompt] = text
                lines.write(json.dumps(attrs.asdict(text)) + "\n")
                lines.flush()
    return [known[place] for place in places]


def _read(file: Path, writing: Writing) -> Iterator[Text]:
    """The texts in `file`, without a last line that a run has left half written."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    if lines and not lines[-1].endswith("\n"):
        file.write_text("".join(lines[:-1]), encoding="utf-8")
        lines.pop()
    by: object = None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            by = row.get("writing", by)
            text = None if "writing" in row else Text(row["prompt"], (*row["ids"],), row["start"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _other(f"{file}, line {number} is no text: {error!r}") from error
        if by != attrs.asdict(writing):
            raise _other(f"{file} was written by {by or 'an earlier version'}, not by {writing}")
        if text is not None:
            yield text


def _other(fault: str) -> WarcoreError:
    return WarcoreError(fault, next="another --folder, or delete the file to write it anew")


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
