"""An engine for a command: opened with a progress bar, its log shown or kept quiet."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import click

from warcore.cli.output import progress
from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.config import EngineConfig
    from warcore.engine import Engine


def open_engine(config: EngineConfig, prompts: int) -> Engine:
    """Wire, load and capture, with a progress bar on a terminal. The caller closes the engine.

    prompts: how many will be answered; see `cut_to`.
    WarcoreError with the remedy if something is not there or does not fit, torch included.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    config = cut_to(config, prompts)
    texts = {"weights": f"loading {config.model}", "graphs": "capturing graphs"}
    text = TextColumn("{task.description}", markup=False)
    with progress(text, BarColumn(), TimeElapsedColumn()) as bar:
        # No total yet: importing torch and reading headers takes seconds, and nobody counts them.
        task = bar.add_task(texts["weights"], total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=texts[what], completed=done, total=total)

        with torch_needed("running"):
            from warcore.engine import Engine

            return Engine(config, progress=show)


def cut_to(config: EngineConfig, prompts: int) -> EngineConfig:
    """`config` for so many prompts.

    No more can run at once, so where the running command got no other sizes, no more rows, pages
    and captures are made than they need.
    """
    if _asked_for("max_running_requests") or _asked_for("graph_buckets"):
        return config
    return attrs.evolve(config, max_running_requests=min(config.max_running_requests, prompts))


@contextmanager
def torch_needed(what: str, of: str = "a model") -> Iterator[None]:
    """Around what imports torch: ConfigError if it is not installed. what: "running" a model."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            f"{what} {of} needs torch, which is not installed",
            next="pip install 'warcore[torch]'",
        ) from error


def _asked_for(option: str) -> bool:
    """Whether a person gave the running command this option."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


@contextmanager
def logs(*, shown: bool) -> Iterator[None]:
    """What warcore logs, on stderr if `shown`; nowhere otherwise: errors are told by the command.

    The state of the logger before is restored, for those who call commands from Python.
    """
    logger = logging.getLogger("warcore")
    handler = _Echo() if shown else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if shown else before[0])
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _Echo(logging.Handler):
    """Writes to the stderr of the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)
