"""What a command says of answers: texts and errors for a person, a document for a program."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from warcore.cli import interrupts
from warcore.cli.output import aligned, console, counted, size
from warcore.fence import NEXT_STEP, FenceReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore.engine import Engine
    from warcore.output import RequestOutput

SCHEMA = 1
FAILED = 1
"""Exit code when some prompt got no answer, but something ran."""
_ABORTED = "abort"
_HEADING = 100
_MOST = 5
"""How many errors, and how many spans of prompts for each, are told."""
_RESULT = (
    "index",
    "prompt",
    "prompt_ids",
    "output_ids",
    "text",
    "finish_reason",
    "drafted",
    "accepted",
    "accept_length",
    "error",
)


def document(engine: Engine, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """The answers as one JSON document."""
    return {
        "schema": SCHEMA,
        "engine": engine.describe(),
        "results": [{key: getattr(output, key) for key in _RESULT} for output in outputs],
        "stats": engine.stats(),
    }


def print_texts(outputs: Sequence[RequestOutput]) -> None:
    """The texts in order, each below its prompt; one that was cut short says so.

    Prompts without any text, because they failed or never ran, are for `print_errors` and
    `print_interrupted`.
    """
    screen = console()
    gap = ""
    for output in outputs:
        cut = output.finish_reason == _ABORTED
        if output.text or not (output.error or cut):
            mark = " (cut short)" if cut or output.error else ""
            heading = f"[{output.index + 1}/{len(outputs)}] {_one_line(output.prompt or '')}{mark}"
            screen.print(f"{gap}{heading}", style="bold", soft_wrap=True)
            click.echo(output.text)
            gap = "\n"


def conclude(outputs: Sequence[RequestOutput], *, interrupted: bool) -> int:
    """Tell what failed; the exit code of a command that asked for all of these answers."""
    from warcore.cli.answering import refused
    from warcore.cli.commands import USAGE

    print_errors(outputs)
    if interrupted:
        print_interrupted(outputs)
        return interrupts.INTERRUPTED
    if all(refused(output) for output in outputs):
        return USAGE
    return FAILED if any(output.error for output in outputs) else 0


def print_errors(outputs: Sequence[RequestOutput]) -> None:
    """What failed, on stderr: one error for all prompts that it ended, and the first few errors."""
    failed: dict[str, list[int]] = {}
    for output in outputs:
        if output.error:
            failed.setdefault(output.error, []).append(output.index + 1)
    for error, numbers in islice(failed.items(), _MOST):
        plural = "" if len(numbers) == 1 else "s"
        which = f"prompt{plural} {_ranges(numbers)}: " if len(outputs) > 1 else ""
        click.echo(f"error: {which}{error}", err=True)
    rest = [len(numbers) for numbers in islice(failed.values(), _MOST, None)]
    if rest:
        text = f"{counted(sum(rest), 'more prompt')} failed in {counted(len(rest), 'other way')}"
        click.echo(f"error: {text}\nNext: --json has the error of each prompt", err=True)


def print_interrupted(outputs: Sequence[RequestOutput]) -> None:
    """What Ctrl-C left, on stderr."""
    cut = [output for output in outputs if output.finish_reason == _ABORTED]
    partial = sum(bool(output.output_ids) for output in cut)
    interrupts.told()
    click.echo(
        f"interrupted: {len(outputs) - len(cut)} of {len(outputs)} finished, {partial} cut short",
        err=True,
    )


def print_stats(engine: Engine) -> None:
    """What the fences did, with what would make the coarse ones fine, and the counts."""
    stats, screen = engine.stats(), console()
    screen.print()
    fences = [_fence_cells(fence) for fence in stats["fences"]]
    if fences:
        head, *rows = aligned([("MODE", "FENCE", "STEPS", "WHAT IT MEANS"), *fences])
        screen.print(head, style="bold", soft_wrap=True)
        for row in rows:
            screen.print(row, soft_wrap=True)
    else:
        screen.print("No step was fenced: none ran while another was prepared.", soft_wrap=True)
    runner = engine.describe()["graph_runner"]
    screen.print(_counts(stats, uncaptured=runner != "none"), soft_wrap=True)


def _fence_cells(fence: dict[str, Any]) -> tuple[str, str, str, str]:
    reason = FenceReason(fence["reason"])
    if reason is FenceReason.FINE:
        meaning = "the next write waited for the step's shared reads only"
    else:
        meaning = f"waited for the whole forward; to make it fine: {NEXT_STEP[reason]}"
    return fence["mode"].replace("_", " "), reason.value, str(fence["count"]), meaning


def _counts(stats: dict[str, Any], *, uncaptured: bool) -> str:
    """uncaptured: whether a missing count of graphs means that a graph runner had no use."""
    retracts, stalls = stats["retracts"], stats["staging_stalls"]
    text = (
        f"{counted(stats['steps'], 'step')}, {counted(stats['tokens'], 'token')} "
        f"in {stats['seconds']:.2f} s: "
        f"{stats['tokens_per_second']:.1f} tokens/s"
    )
    drafts = stats["drafts"]
    if drafts:
        text += (
            f"; {drafts['accepted']} of {drafts['drafted']} drafted tokens stood, "
            f"{drafts['accept_length']:.2f} tokens a verify"
        )
    graphs = stats["graphs"]
    if graphs:
        keep = "that keeps" if graphs["captures"] == 1 else "that keep"
        captures = counted(graphs["captures"], "capture")
        text += f"; {graphs['replays']} replayed, from {captures} {keep} {size(graphs['bytes'])}"
    elif uncaptured:
        text += "; none replayed, because nothing is captured (`warcore plan` says why)"
    if retracts:
        text += f"; {counted(retracts, 'retract')}, because KV pages ran out (--kv-pages)"
    if stalls:
        text += f"; {counted(stalls, 'wait')} for a free staging buffer"
    return text


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _HEADING else f"{words[: _HEADING - 3]}..."


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: 1-3, 7; the first few spans, and how many are left."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    shown = ", ".join("-".join(map(str, span)) for span in spans[:_MOST])
    rest = sum(span[-1] - span[0] + 1 for span in spans[_MOST:])
    return f"{shown} and {rest} more" if rest else shown
