"""`warcore list-plugins`: what is installed, what is wrong with it, and what to type about it."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import attrs
import click

from warcore import __version__
from warcore.cli.output import aligned, console, counted, debug_option, print_json, progress
from warcore.cli.usage import OneOf
from warcore.probe import Probe, probe, timeout
from warcore.records import KINDS, PluginRecord
from warcore.registry import ALLOWLIST, find_plugins, named
from warcore.testkit.runs.lastreport import NOT_CONFORMANT, kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore.testkit.runs.lastreport import LastReport

SCHEMA = 1
_STYLES = {"available": "green", "loaded": "green", "disabled": "dim"}


@click.command("list-plugins")
@click.option("--kind", type=OneOf(KINDS), help="Plugins of one kind.")
@click.option("--only", metavar="NAME", help="The plugin NAME (or KIND:NAME).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
@click.option(
    "--load",
    "loading",
    is_flag=True,
    help="Import each plugin in a process of its own, for at most 20 s "
    "(WARCORE_LOAD_TIMEOUT=SECONDS), and show how long it took.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if a plugin needs attention.")
@click.option(
    "--disable", metavar="NAME", multiple=True, help="Switch off NAME (or KIND:NAME); repeatable."
)
@debug_option
@click.pass_context
def list_plugins(
    ctx: click.Context,
    *,
    kind: str | None,
    only: str | None,
    as_json: bool,
    loading: bool,
    strict: bool,
    disable: tuple[str, ...],
) -> None:
    """Show the installed plugins and their state.

    Reads metadata only: without --load no plugin is imported. WARCORE_PLUGINS, a comma-separated
    list of names, is an allowlist: every other plugin is disabled.
    """
    records: Sequence[PluginRecord] = find_plugins(disable, kind)
    if only is not None:
        records = named(records, only)
    rows = _probe(records) if loading else [Probe(r) for r in records]
    if as_json:
        print_json(_document(rows, loading=loading))
    elif rows:
        _print(rows, loading=loading)
    else:
        _print_none(kind)
    if strict and any(row.record.needs_attention for row in rows):
        ctx.exit(1)


def _probe(records: Sequence[PluginRecord]) -> list[Probe]:
    """Load those that can be loaded, one after another, so that their import times are honest."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    seconds = timeout()
    name = TextColumn("loading {task.description}", markup=False)
    rows = []
    with progress(name, BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task("", total=len(records))
        for record in records:
            bar.update(task, description=record.name)
            rows.append(probe(record, seconds) if record.state == "available" else Probe(record))
            bar.advance(task)
    return rows


def _document(rows: Sequence[Probe], *, loading: bool) -> dict[str, object]:
    keys = [f.name for f in attrs.fields(PluginRecord) if f.name != "given"]
    document: dict[str, object] = {
        "schema": SCHEMA,
        "warcore": __version__,
        "plugins": [{key: getattr(row.record, key) for key in keys} for row in rows],
    }
    if loading:
        document["loads"] = [
            {
                "kind": row.record.kind,
                "name": row.record.name,
                "seconds": row.seconds,
                "class": row.cls,
                "note": row.note,
            }
            for row in rows
            if row.tried
        ]
    checked = [
        {"kind": row.record.kind, "name": row.record.name, **attrs.asdict(report)}
        for row in rows
        for report in kept(row.record)
    ]
    if checked:
        document["checked"] = checked
    return document


def _print(rows: Sequence[Probe], *, loading: bool) -> None:
    screen = console()
    head = ("KIND", "NAME", "DISTRIBUTION", "STATE", *(("IMPORT", "CLASS") if loading else ()))
    reports = [kept(row.record) for row in rows]
    cells = [_cells(row, its, loading=loading) for row, its in zip(rows, reports, strict=True)]
    first, *lines = aligned(_with_reports([head, *cells], reports))
    screen.print(first, style="bold", soft_wrap=True)
    for row, its, line in zip(rows, reports, lines, strict=True):
        record = row.record
        style = _STYLES.get(record.state, "red")
        screen.print(line, style="yellow" if _refuted(its) else style, soft_wrap=True)
        if record.needs_attention:
            screen.print(f"    {record.cause}\n    Next: {record.next}", soft_wrap=True)
        if row.note is not None:
            screen.print(f"    {row.note}", soft_wrap=True)
    screen.print(f"\n{_footer(rows, loading=loading)}", soft_wrap=True)


def _print_none(kind: str | None) -> None:
    group = f"warcore.{kind}s" if kind else "warcore.*"
    click.echo(f"No {kind or 'plugin'} is installed.")
    click.echo(f"Next: pip install PACKAGE, one with an entry point in the group {group}")


def _refuted(reports: Sequence[LastReport]) -> bool:
    """Whether the last report of any device says that the plugin breaks the contract."""
    return any(report.verdict == NOT_CONFORMANT for report in reports)


def _cells(row: Probe, reports: Sequence[LastReport], *, loading: bool) -> tuple[str, ...]:
    record = row.record
    state = f"{record.state}, {NOT_CONFORMANT}" if _refuted(reports) else record.state
    cells = (record.kind, record.name, record.origin, state)
    if not loading:
        return cells
    seconds = "" if row.seconds is None else f"{row.seconds:.2f} s"
    return (*cells, seconds, row.cls or "")


def _with_reports(
    table: list[tuple[str, ...]], reports: Sequence[Sequence[LastReport]]
) -> Sequence[tuple[str, ...]]:
    """The table with what `warcore check` found, if it was run on any of these."""
    if not any(reports):
        return table
    column = ["CONTRACT", *(", ".join(map(str, its)) for its in reports)]
    return [(*cells, more) for cells, more in zip(table, column, strict=True)]


def _footer(rows: Sequence[Probe], *, loading: bool) -> str:
    counts = Counter(row.record.state for row in rows)
    states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
    text = f"{counted(len(rows), 'plugin')}: {states}. "
    if loading:
        tried = sum(row.tried for row in rows)
        text += f"{tried} imported, each in a process of its own."
    else:
        text += "Nothing was imported."
    if os.environ.get(ALLOWLIST):
        text += f" Only what {ALLOWLIST}={os.environ[ALLOWLIST]} names is enabled."
    return text
