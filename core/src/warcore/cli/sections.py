"""Help in sections: a command with many options shows them under headings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable


class _Placed(click.Option):
    """An option that knows its heading."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Sectioned(click.Command):
    """A command whose help lists its options by section, in the order of their declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        others = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, _Placed) and record is not None:
                sections.setdefault(parameter.section, []).append(record)
            elif isinstance(parameter, click.Option) and record is not None:
                others.append(record)
        sections["Other options"] = others
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def option(section: str, *names: str, **attributes: Any) -> Callable[..., Any]:
    """`click.option` under a heading of the help."""
    return click.option(*names, cls=_Placed, section=section, **attributes)
