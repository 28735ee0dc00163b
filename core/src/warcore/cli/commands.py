"""The `warcore` command: what it can do, and what a person sees when something goes wrong."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import click

from warcore import __version__
from warcore.cli import interrupts
from warcore.cli.interrupts import INTERRUPTED
from warcore.cli.output import Session, debug_option
from warcore.cli.streams import standard_streams
from warcore.errors import ConfigError, WarcoreError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Entry(NamedTuple):
    module: str
    attribute: str
    summary: str


# The summaries stand here so that `warcore --help` imports no command.
COMMANDS: Final = {
    "check": _Entry(
        "warcore.cli.check", "check", "Hold a plugin to the contract, and tell what to mend."
    ),
    "generate": _Entry("warcore.cli.generate", "generate", "Let a model answer prompts."),
    "list-plugins": _Entry(
        "warcore.cli.list_plugins", "list_plugins", "Show the installed plugins and their state."
    ),
    "new": _Entry("warcore.cli.new", "new", "Write the package of a new plugin."),
    "plan": _Entry("warcore.cli.plan", "plan", "Show where each step's fence will fall, and why."),
    "trace": _Entry(
        "warcore.cli.trace", "trace", "Answer prompts and draw a timeline of every step."
    ),
}

USAGE, DEFECT, CLOSED_PIPE = 2, 1, 141
"""Exit codes. The last is that of a process which SIGPIPE ended."""


class _Lazy(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return cast("click.Command", getattr(import_module(entry.module), entry.attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from warcore.records import suggestion

            what = f"there is no command {name!r}{suggestion(name, COMMANDS)}"
            raise ConfigError(what, next=f"{ctx.command_path} --help")
        ctx.ensure_object(Session).command = f"{ctx.command_path} {name}"
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.command(cls=_Lazy, name="warcore", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="warcore %(version)s")
@debug_option
def warcore() -> None:
    """Overlapped LLM inference from plugins, each step fenced exactly where its reads end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    An error that a person can mend is one to three lines on stderr and exit code 2; a defect is
    one line and exit code 1; both come with their traceback under --debug. A closed pipe is
    silent. Ctrl-C gives one line and exit code 130.

    argv: None for what this process was started with. Then Ctrl-C ends the process here, and a
    second press at once.
    """
    with standard_streams():
        if argv is not None:
            return _guarded(list(argv), Session())
        interrupts.take()
        code = _guarded(sys.argv[1:], Session())
        interrupts.end(code)
        return code


def _guarded(args: list[str], session: Session) -> int:
    try:
        code = _run(args, session)
        sys.stdout.flush()
    except BrokenPipeError:
        return CLOSED_PIPE
    except click.ClickException as error:
        from warcore.cli.usage import told

        return _fail(session, told(error, session.command), USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except Exception as error:  # noqa: BLE001 - whatever escapes is told, and the code says so
        return _failed(session, error)
    return code


def _interrupted() -> int:
    interrupts.told()
    click.echo("interrupted", err=True)
    return INTERRUPTED


def _run(args: list[str], session: Session) -> int:
    if "_WARCORE_COMPLETE" in os.environ:
        warcore.main(args, prog_name="warcore", complete_var="_WARCORE_COMPLETE")
    try:
        # Versions of click differ in where they print the help of a group that is called bare.
        with warcore.make_context("warcore", args or ["--help"], obj=session) as ctx:
            warcore.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def _failed(session: Session, error: Exception) -> int:
    """Tell what a command raised; what is no WarcoreError is our defect, told as such."""
    if interrupts.caused(error):
        return _interrupted()
    if isinstance(error, WarcoreError):
        return _fail(session, error, USAGE)
    what = f"defect in warcore: {type(error).__name__}: {error}"
    remedy = "run it again with --debug and report what it shows"
    return _fail(session, WarcoreError(what, next=remedy), DEFECT)


def _fail(session: Session, error: WarcoreError, code: int) -> int:
    """Tell an error, within the handler of what was raised."""
    if session.debug:
        import traceback

        click.echo(traceback.format_exc(), err=True, nl=False)
    click.echo(f"error: {error}", err=True)
    return code
