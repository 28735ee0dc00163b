"""`warcore plan`: where the fence of each kind of step will fall, before anything is loaded."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import attrs
import click

from warcore import __version__
from warcore.cli.output import Session, aligned, console, counted, debug_option, print_json
from warcore.cli.prompts import prompt_options, read_prompts
from warcore.cli.sections import Sectioned, option
from warcore.cli.settings import engine_options, sampling_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from warcore.config import EngineConfig
    from warcore.contract import ForwardMode
    from warcore.forecast import PlannedFence
    from warcore.kinds import PlannedGraphs
    from warcore.plan import FencePlan

SCHEMA = 1
_SHOW = "Output"
_HIDDEN = ("Prompts", "Sampling")
"""Sections of `generate` whose options change nothing in the plan."""
_HEAD = ("STEP", "RUNS", "READS END", "EVENT RECORDED", "FENCE", "OWNER")
_STYLES = {"fine": "green", "coarse": "yellow"}
_LEGEND = {
    "READS END": "the latest place where a plugin, as it declares, reads the shared tables",
    "EVENT RECORDED": "where the step reports that it has: the next table write waits for this if "
    "the fence is fine, and for the whole step if it is coarse",
    "OWNER": "whose reads are the last of the step",
}
_WIDTH = 100
"""Sentences are folded here, or where the terminal ends."""


@click.command("plan", cls=Sectioned)
@prompt_options
@engine_options
@sampling_options
@click.option("--stats", is_flag=True, hidden=True)
@option(_SHOW, "--votes", is_flag=True, help="Show what each plugin has declared for each mode.")
@option(_SHOW, "--json", "as_json", is_flag=True, help="One JSON document in place of the table.")
@debug_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    *,
    prompts: tuple[str, ...],
    prompts_file: str | None,
    config: EngineConfig,
    votes: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Show where the fence of each kind of step will fall, and what would make it finer.

    Loads no weights and captures nothing. Put `plan` in the place of `generate`: it takes the same
    options, and if there are prompts, the engine is as large as `generate` makes it for so many.
    Exit code: 0 if there is a plan, however coarse; 2 if such an engine could not start.
    """
    from warcore.cli.loading import cut_to, logs, torch_needed

    if prompts or prompts_file is not None:
        config = cut_to(config, len(read_prompts(prompts, prompts_file)))
    with logs(shown=ctx.ensure_object(Session).debug), torch_needed("planning"):
        from warcore.plan import FencePlan

        made = FencePlan.of(config)
    if as_json:
        print_json(document(made))
    else:
        _print(made, votes=votes)


for _parameter in plan.params:
    if getattr(_parameter, "section", None) in _HIDDEN:
        _parameter.hidden = True  # type: ignore[attr-defined]


def document(made: FencePlan) -> dict[str, Any]:
    """The plan as one JSON document."""
    return {
        "schema": SCHEMA,
        "warcore": __version__,
        "engine": made.engine,
        "graphs": attrs.asdict(made.graphs),
        "steps": [_step(step) for step in made.steps],
        "votes": [
            {
                "plugin": reader.plugin,
                "ends": {mode.value: end.name for mode, end in reader.ends.items()},
                "snapshot": reader.snapshot,
            }
            for reader in made.votes
        ],
        "stagers": list(made.stagers),
    }


def _step(step: PlannedFence) -> dict[str, Any]:
    return {
        "mode": step.mode.value,
        "runs_as": step.runs_as,
        "batches": step.batches,
        "latest_read": step.latest_read.name,
        "whose": step.whose,
        "records_at": None if step.records_at is None else step.records_at.name,
        "recorded": step.recorded,
        "owner": step.owner,
        "fence": step.fence,
        "reason": None if step.reason is None else step.reason.value,
        "detail": step.detail or None,
        "next": step.next,
    }


# ---- for a person --------------------------------------------------------------------------------


def _print(made: FencePlan, *, votes: bool) -> None:
    screen, of = console(), made.engine
    host = f" (--host {of['host']})" if of["host"] else ""
    title = f"{of['model']} with {of['backend']} on {of['device']}{host}, {of['loop']} loop"
    width = min(screen.width, _WIDTH)
    for line in (title, *_graphs(made.graphs, width), ""):
        screen.print(line, soft_wrap=True)
    head, *rows = aligned([_HEAD, *map(_cells, made.steps)])
    screen.print(head, style="bold", soft_wrap=True)
    for line, step in zip(rows, made.steps, strict=True):
        screen.print(line, style=_STYLES.get(step.fence), soft_wrap=True)
    below = (*_notes(made, width), "", *_legend(width), "", *_finer(made, width))
    for line in (*below, *(_votes(made) if votes else ())):
        screen.print(line, soft_wrap=True)


def _graphs(graphs: PlannedGraphs, width: int) -> Iterator[str]:
    """How many steps are captured, why no more, and what would change it."""
    if graphs.captures:
        yield f"Graphs: {graphs.runner} captures {counted(graphs.captures, 'step')}"
        if graphs.why:
            yield _folded("", graphs.why, width)
    else:
        yield _filled(f"Graphs: none: {graphs.why}", width, below=6)
    if graphs.next:
        yield f"    Next: {graphs.next}"


def _cells(step: PlannedFence) -> tuple[str, ...]:
    end = step.latest_read.name
    return _word(step.mode), step.runs_as, end, step.recorded, step.fence, step.owner


def _notes(made: FencePlan, width: int) -> Iterator[str]:
    """Which batches are replayed, and what the table is too narrow for."""
    from warcore.kinds import ALL

    for step in made.steps:
        if step.batches != ALL:
            yield _folded(f"{_word(step.mode)} ({step.runs_as}): ", step.batches, width)
    for detail, steps in _alike(step for step in made.steps if step.next is None):
        yield _folded(f"{_which(steps, made)}: ", detail, width)


def _legend(width: int) -> Iterator[str]:
    column = max(map(len, _LEGEND)) + 2
    for term, text in _LEGEND.items():
        yield _filled(f"{term:{column}}{text}", width, below=column)


def _finer(made: FencePlan, width: int) -> Iterator[str]:
    """What would let a fence fall earlier, and the command, on a line of its own to be copied."""
    if not made.finer:
        open_ = any(step.fence != "fine" for step in made.steps)
        yield f"Finer: every fence is fine{', or decided per batch' if open_ else ''}."
        return
    yield "Finer:"
    for detail, steps in _alike(made.finer):
        yield _folded(f"{_which(steps, made)}: ", detail, width)
        yield f"    Next: {steps[0].next}"


def _votes(made: FencePlan) -> Iterator[str]:
    """A line for each mode and a column for each reader."""
    modes = dict.fromkeys(mode for reader in made.votes for mode in reader.ends)
    table = [("VOTES", *(reader.plugin for reader in made.votes))]
    for mode in modes:
        ends = (reader.ends.get(mode) for reader in made.votes)
        table.append((_word(mode), *("-" if end is None else end.name for end in ends)))
    table.append(("snapshot", *("per batch" if reader.snapshot else "no" for reader in made.votes)))
    yield from ("", *aligned(table))
    yield f"stagers: {', '.join(made.stagers) or 'none'}"


def _alike(steps: Iterable[PlannedFence]) -> Iterator[tuple[str, list[PlannedFence]]]:
    """The steps of which something is said, those together of which the same is said."""
    groups: dict[str, list[PlannedFence]] = {}
    for step in steps:
        if step.detail:
            groups.setdefault(step.detail, []).append(step)
    yield from groups.items()


def _which(steps: Sequence[PlannedFence], made: FencePlan) -> str:
    """Their names, as short as they can be told from the others."""
    if len(steps) == len(made.steps):
        return "every step"
    names: dict[str, None] = {}
    for step in steps:
        whole = all(other in steps for other in made.steps if other.mode is step.mode)
        way = "" if whole else f" ({step.runs_as})"
        names[f"{_word(step.mode)}{way}"] = None
    return ", ".join(names)


def _folded(who: str, text: str, width: int) -> str:
    return _filled(f"    {who}{text}", width, below=6)


def _filled(text: str, width: int, *, below: int) -> str:
    """`text` in lines, those from the second on indented; no option is broken at its hyphens."""
    return fill(text, width, subsequent_indent=" " * below, break_on_hyphens=False)


def _word(mode: ForwardMode) -> str:
    return mode.value.replace("_", " ")
