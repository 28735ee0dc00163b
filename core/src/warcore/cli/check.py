"""`warcore check`: hold an installed plugin to the contract, and tell what to mend."""

from __future__ import annotations

import json
from textwrap import fill
from typing import TYPE_CHECKING

import click

from warcore.cli import interrupts
from warcore.cli.interrupts import INTERRUPTED
from warcore.cli.output import console, counted, debug_option, print_json, progress
from warcore.cli.settings import read_options
from warcore.cli.subject import subject_of
from warcore.cli.usage import OneOf
from warcore.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from warcore.testkit.outcome import Outcome
    from warcore.testkit.runs.check import Check
    from warcore.testkit.runs.results import Result, Results
    from warcore.testkit.subject import Subject

_WIDTH = 100
"""Sentences are folded here, or where the terminal ends."""
STDOUT = "-"
"""Of `--json`: no file."""
_COLUMN = 15
"""Where the text of a failure begins."""
_COPIED = {"at", "just this", "also", "also at", "it printed", "trace"}
"""Parts of a failure that are never folded: they are copied, or have lines of their own."""


@click.command("check")
@click.argument("name", metavar="[KIND:]NAME", required=False)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the report as a JSON document; `-`: to stdout, and the summary to stderr.",
)
@click.option(
    "--device",
    type=OneOf(("host", "cuda")),
    default="host",
    show_default=True,
    help="The device to check it on.",
)
@click.option(
    "-k",
    "pattern",
    metavar="PATTERN",
    default="",
    help="Only the checks whose name holds PATTERN (or fits it: `*`), and those that they need.",
)
@click.option("--all", "thorough", is_flag=True, help="Walk the whole grid, not the default one.")
@click.option(
    "--cell", metavar="CELL", default="", help="Only the cell CELL, or those that fit it: `*`."
)
@click.option(
    "--reference",
    metavar="REF",
    help="Check a model family with the model REF instead of one that needs no files.",
)
@click.option(
    "--opt",
    "options",
    metavar="NAME.key=value",
    multiple=True,
    callback=read_options,
    help="Check the plugin with an option set; repeatable.",
)
@click.option(
    "--explain",
    metavar="[CHECK]",
    is_flag=False,
    flag_value="",
    help="Say what a check is about, and run nothing; without CHECK, which checks there are.",
)
@debug_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    *,
    name: str | None,
    json_file: str | None,
    device: str,
    pattern: str,
    thorough: bool,
    cell: str,
    reference: str | None,
    options: dict[str, str],
    explain: str | None,
) -> None:
    """Hold the installed plugin NAME to the contract of warcore.

    Runs each check in a process of its own, for at most 60 s; with --all, and where kernels are
    interpreted, for at most 600 s. WARCORE_CHECK_TIMEOUT=SECONDS sets another limit. Exit code: 0
    conformant, 1 not conformant, 2 it could not be found out; 130 for Ctrl-C, with what was found
    until then in the JSON document.
    """
    from warcore.cli.files import Target
    from warcore.cli.loading import torch_needed

    with torch_needed("checking", "a plugin"):
        if explain is not None:
            from warcore.cli.explaining import explain_check, list_checks

            if explain:
                explain_check(explain)
            else:
                list_checks(name, pattern)
            return
        if name is None:
            raise ConfigError(
                "there is no plugin to check",
                next="warcore check NAME; warcore list-plugins shows the names",
            )
        target = None if json_file in {None, STDOUT} else Target.of("--json", str(json_file))
        subject = subject_of(
            name, options, device=device, cells=cell, thorough=thorough, reference=reference
        )
        if device == "cuda":
            from warcore.device import require_cuda

            require_cuda()
        screen = console(stderr=json_file == STDOUT)
        results = _run(subject, pattern, screen)
    from warcore.testkit.runs.lastreport import keep

    if results.interrupted:
        _tell_interrupted(results)
    else:
        _conclude(results, screen)
        keep(results)
    if json_file is not None:
        from warcore.testkit.runs.report import document

        told = document(results)
        if target is None:
            print_json(told)
        else:
            target.write([json.dumps(told, indent=2, ensure_ascii=False), "\n"])
    ctx.exit(INTERRUPTED if results.interrupted else results.code)


def _run(subject: Subject, pattern: str, screen: Console) -> Results:
    """Run the checks: a line for each, and on a terminal a bar below them."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    from warcore.testkit.runs.check import LOADS
    from warcore.testkit.runs.running import Interrupted, run_checks
    from warcore.testkit.runs.selection import Selection

    total = len(Selection.of(subject.record.kind, pattern).checks)
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress(*columns) as bar:
        task = bar.add_task("starting", total=total)
        heading = [f"{subject.record} on {subject.device}"]

        def starts(check: Check) -> None:
            # Not before: what cannot be run at all is an error, and no run.
            while heading:
                screen.print(heading.pop(), style="bold", soft_wrap=True)
            bar.update(task, description=check.name)

        def show(result: Result, line: str) -> None:
            # Above the bar, where both are one terminal.
            out = bar.console if screen.is_terminal and bar.console.is_terminal else screen
            out.print(line, style=_style(result), soft_wrap=True)

        unloaded: list[Result] = []

        def ends(result: Result) -> None:
            bar.advance(task)
            if result.after is not None and result.after.check.name == LOADS:
                unloaded.append(result)
            else:
                show(result, _line(result))

        try:
            results = run_checks(subject, pattern, starts=starts, ends=ends)
        except Interrupted as pressed:
            results = pressed.results
        if unloaded:
            # One fact, however many checks it keeps from being held.
            first, count = unloaded[0], counted(len(unloaded), "check")
            show(first, f"  {first.outcome.value:<16}  {count}: {first.why}")
        return results


def _line(result: Result) -> str:
    said = f": {result.why}" if result.why else ""
    level = "" if result.check.level == "MUST" else " (SHOULD)"
    newer = "" if result.counted else f" [new in {result.check.since}, not counted]"
    return f"  {result.outcome.value:<16}  {result.check}{level}{said}{newer}"


def _style(result: Result) -> str:
    from warcore.testkit.outcome import Outcome

    styles: dict[Outcome, str] = {
        Outcome.PASSED: "green",
        Outcome.FAILED: "red" if result.refutes else "yellow",
        Outcome.BLOCKED: "red",
        Outcome.UNPROVEN: "yellow",
    }
    return styles.get(result.outcome, "dim")


def _conclude(results: Results, screen: Console) -> None:
    """What failed, what was not covered, what the ends are worth, and the sum in the last line."""
    from warcore.testkit.outcome import Outcome
    from warcore.testkit.runs.coverage import not_covered
    from warcore.testkit.runs.declaration import declarations
    from warcore.testkit.runs.report import summed, verdict

    for result in results.results:
        told = result.outcome in {Outcome.FAILED, Outcome.UNPROVEN, Outcome.EXPECTED_FAILURE}
        # What did not run for the sake of another one has nothing to add to that one.
        if told and result.after is None:
            _print_failure(screen, result, results.subject)
    width = min(screen.width, _WIDTH)
    screen.print("\nNot covered:", soft_wrap=True)
    for sentence in not_covered(results):
        text = fill(sentence, width - 4, break_on_hyphens=False).replace("\n", "\n    ")
        screen.print(f"    {text}", soft_wrap=True)
    declared = declarations(results)
    if declared:
        screen.print("\nWhere its reads end:", soft_wrap=True)
    for each in declared:
        screen.print(f"    {each}", soft_wrap=True)
    style = {0: "bold green", 1: "bold red"}.get(results.code, "bold yellow")
    screen.print(f"\n{summed(results)}: {verdict(results)}", style=style, soft_wrap=True)


def _tell_interrupted(results: Results) -> None:
    from warcore.testkit.runs.report import again

    interrupts.told()
    count = f"{results.ran} of {counted(len(results.selection.checks), 'check')}"
    click.echo(f"interrupted: {count} ran\nNext: {again(results)}", err=True)


def _print_failure(screen: Console, result: Result, subject: Subject) -> None:
    from warcore.testkit.runs.report import told

    head = f"{result.check}: {result.outcome.value}"
    screen.print(f"\n{head}", style=f"bold {_style(result)}", soft_wrap=True)
    width = min(screen.width, _WIDTH) - _COLUMN
    for heading, text in told(result, subject):
        if not text:
            continue
        shown = text if heading in _COPIED else fill(text, width, break_on_hyphens=False)
        first, *more = shown.splitlines()
        lines = [f"    {heading:<{_COLUMN - 4}}{first}"]
        lines += [f"{'':{_COLUMN}}{line}" for line in more]
        screen.print("\n".join(lines), soft_wrap=True)
