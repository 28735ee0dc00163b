"""`warcore trace`: answer prompts, and draw who was busy with what, when, and who waited."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import click

from warcore.cli.output import Session, console, debug_option, print_json
from warcore.cli.prompts import prompt_options
from warcore.cli.sections import Sectioned, option
from warcore.cli.settings import engine_options, sampling_options
from warcore.errors import ConfigError
from warcore.tracing import MAX_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.cli.answering import Task
    from warcore.cli.files import Target
    from warcore.config import EngineConfig
    from warcore.engine import Engine
    from warcore.samplingparams import SamplingParams
    from warcore.tracing import Timeline

_DRAW, _SHOW = "Timeline", "Output"
_MOST = 4


@attrs.frozen
class _Show:
    """Where the timeline goes, and how the run is summed up."""

    out: Target
    page: Target | None
    max_steps: int
    as_json: bool
    stats: bool


@click.command("trace", cls=Sectioned)
@prompt_options
@option(
    _DRAW,
    "--out",
    metavar="F",
    default="trace.json",
    show_default=True,
    help="Chrome trace events, which ui.perfetto.dev and chrome://tracing open; an existing file "
    "is replaced.",
)
@option(
    _DRAW,
    "--html",
    metavar="F",
    help="The same timeline as one page that a browser opens without a network.",
)
@option(
    _DRAW,
    "--max-steps",
    type=click.IntRange(min=1),
    default=MAX_STEPS,
    show_default=True,
    metavar="N",
    help="Keep the last N steps of the run and forget those before.",
)
@engine_options
@sampling_options
@option(_SHOW, "--json", "as_json", is_flag=True, help="The summary as one JSON document.")
@option(_SHOW, "--stats", is_flag=True, help="Show what the fences did, and the speed.")
@debug_option
@click.pass_context
def trace(
    ctx: click.Context,
    *,
    prompts: tuple[str, ...],
    prompts_file: str | None,
    system: str | None,
    raw: bool,
    out: str,
    html: str | None,
    max_steps: int,
    config: EngineConfig,
    params: SamplingParams,
    as_json: bool,
    stats: bool,
) -> None:
    """Let a model answer each PROMPT, and draw every step: streams, phases, records and waits.

    The answers are not printed; `warcore generate` does that. Exit code: as `warcore generate`.
    The files are written once the run has ended, also after Ctrl-C or a failure; a run that could
    not start writes none.
    """
    from warcore.cli.answering import read_task
    from warcore.cli.files import Target, distinct
    from warcore.cli.loading import logs

    task = read_task(prompts, prompts_file, params, system=system, raw=raw)
    target = Target.of("--out", out)
    page = None if html is None else Target.of("--html", html)
    distinct([target, page] if page else [target])
    with logs(shown=ctx.ensure_object(Session).debug):
        code = _run(task, config, _Show(target, page, max_steps, as_json, stats))
    if code:
        ctx.exit(code)


def _run(task: Task, config: EngineConfig, show: _Show) -> int:
    """Answer, draw and tell; the exit code."""
    from warcore.cli import report
    from warcore.cli.answering import Interrupt, answer_all
    from warcore.cli.loading import open_engine

    with open_engine(config, len(task.prompts)) as engine:
        with engine.trace(max_steps=show.max_steps) as recorder, Interrupt() as interrupt:
            outputs = answer_all(engine, task, interrupt)
        timeline = recorder.timeline()
        if timeline.steps:
            _write(timeline, engine, show)
            _tell(timeline, engine, show)
    code = report.conclude(outputs, interrupted=interrupt.pressed)
    if not timeline.steps and not code:
        what = "no step ran, so there is nothing to draw"
        raise ConfigError(what, next="--max-new-tokens 16")
    return code


def _write(timeline: Timeline, engine: Engine, show: _Show) -> None:
    from warcore.tracing.chrome import document
    from warcore.tracing.page import page

    facts = engine.describe()
    show.out.write(_lines(document(timeline, facts)))
    if show.page is not None:
        show.page.write(page(timeline, facts))


def _lines(document: dict[str, Any]) -> Iterator[str]:
    """The document as JSON, an event on each line."""
    events = document["traceEvents"]
    rest = {key: value for key, value in document.items() if key != "traceEvents"}
    yield '{"traceEvents": [\n'
    for i, event in enumerate(events):
        yield json.dumps(event, separators=(",", ":")) + (",\n" if i + 1 < len(events) else "\n")
    yield f"], {json.dumps(rest)[1:]}\n"


def _tell(timeline: Timeline, engine: Engine, show: _Show) -> None:
    from warcore.cli.report import print_stats
    from warcore.tracing.summary import summary

    facts = summary(timeline)
    files = {"trace": str(show.out.path), "page": str(show.page.path) if show.page else None}
    if show.as_json:
        print_json({**facts, "engine": engine.describe(), "files": files})
        return
    screen = console()
    for line in (*_sentences(facts), *_next(show, engine)):
        screen.print(line, soft_wrap=True)
    if show.stats:
        print_stats(engine)


def _sentences(facts: dict[str, Any]) -> Iterator[str]:
    """What the timeline shows, in a few lines."""
    modes = ", ".join(f"{count} {mode}" for mode, count in facts["modes"].items())
    kept = _steps(facts["steps"])
    if facts["dropped_steps"]:
        total = facts["steps"] + facts["dropped_steps"]
        kept = f"the last {facts['steps']} of {_steps(total)} (--max-steps N keeps more)"
    yield f"{kept}: {modes}; {facts['seconds']:.3f} s on {facts['device']}"
    period = facts["step_seconds"]
    often = f"{period * 1e3:.2f} ms for each decode step, " if period else ""
    yield (
        f"{often}forward stream busy {facts['forward_busy']:.1%}, host waiting for results "
        f"{facts['host_waited']:.1%}"
    )
    if not facts["fenced_steps"]:
        yield "no step was fenced: each was prepared after the one before ended (--loop overlap)"
        return
    yield f"fence fine in {facts['fine_steps']} of {_steps(facts['fenced_steps'])}"
    for pair in facts["coarse"][:_MOST]:
        remedy = f"; to make it fine: {pair['next']}" if pair["next"] else ""
        coarse = _steps(pair["count"], pair["mode"])
        yield f"  coarse in {coarse}: {pair['reason']}{remedy}"


def _steps(count: int, mode: str = "") -> str:
    return " ".join(filter(None, (str(count), mode, "step" if count == 1 else "steps")))


def _next(show: _Show, engine: Engine) -> Iterator[str]:
    if engine.describe()["host"] == "inline":
        yield "the streams ran inline, one after another: --host threads shows them side by side"
    browser = f", or {show.page.path} in a browser" if show.page else ""
    yield f"Next: open {show.out.path} in ui.perfetto.dev{browser}"
