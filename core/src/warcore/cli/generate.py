"""`warcore generate`: prompts in, text out, from whatever plugins are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from warcore.cli.output import Session, debug_option, print_json
from warcore.cli.prompts import prompt_options
from warcore.cli.sections import Sectioned, option
from warcore.cli.settings import engine_options, sampling_options

if TYPE_CHECKING:
    from warcore.cli.answering import Task
    from warcore.config import EngineConfig
    from warcore.samplingparams import SamplingParams

_SHOW = "Output"


@attrs.frozen
class _Show:
    """How the answers are shown."""

    as_json: bool
    stats: bool


@click.command("generate", cls=Sectioned)
@prompt_options
@engine_options
@sampling_options
@option(
    _SHOW,
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON document instead of texts, stats included; an `error` in it is null or one to "
    "three lines.",
)
@option(_SHOW, "--stats", is_flag=True, help="Show what the fences did, and the speed.")
@debug_option
@click.pass_context
def generate(
    ctx: click.Context,
    *,
    prompts: tuple[str, ...],
    prompts_file: str | None,
    system: str | None,
    raw: bool,
    config: EngineConfig,
    params: SamplingParams,
    as_json: bool,
    stats: bool,
) -> None:
    """Let a model answer each PROMPT.

    One answer is printed as it is made; several come in order when all are done. Exit code: 0 if
    every prompt got its answer, 1 if some did not, 2 if nothing could run (every prompt was
    refused, or a setting was) or nothing could be written, 130 after Ctrl-C, which ends the running
    step and prints what there is; pressed twice, it ends at once.
    """
    from warcore.cli.answering import read_task
    from warcore.cli.loading import logs

    task = read_task(prompts, prompts_file, params, system=system, raw=raw)
    with logs(shown=ctx.ensure_object(Session).debug):
        code = _run(task, config, _Show(as_json, stats))
    if code:
        ctx.exit(code)


def _run(task: Task, config: EngineConfig, show: _Show) -> int:
    """Answer and tell; the exit code."""
    from warcore.cli import report
    from warcore.cli.answering import Interrupt, answer_all, stream_one
    from warcore.cli.loading import open_engine

    one = len(task.prompts) == 1 and not show.as_json
    with open_engine(config, len(task.prompts)) as engine:
        with Interrupt() as interrupt:
            outputs = (stream_one if one else answer_all)(engine, task, interrupt)
        if show.as_json:
            print_json(report.document(engine, outputs))
        elif not one:
            report.print_texts(outputs)
        if show.stats and not show.as_json:
            report.print_stats(engine)
    return report.conclude(outputs, interrupted=interrupt.pressed)
