"""Prompts through an engine, step by step, until all are answered or Ctrl-C ends it."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs
import click

from warcore.cli import interrupts
from warcore.cli.output import progress
from warcore.cli.prompts import check_text, read_prompts
from warcore.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from rich.progress import Progress
    from typing_extensions import Self

    from warcore.engine import Engine
    from warcore.output import RequestOutput
    from warcore.samplingparams import SamplingParams

log = logging.getLogger("warcore.cli")


@attrs.frozen
class Task:
    """What is asked of the model."""

    prompts: Sequence[str]
    params: SamplingParams
    system: str | None = None
    raw: bool = False


def read_task(
    prompts: Sequence[str],
    file: str | None,
    params: SamplingParams,
    *,
    system: str | None,
    raw: bool,
) -> Task:
    """The task that a command line gives; ConfigError for what is missing or unreadable."""
    for text in (system or "", *params.stop):
        check_text("--system or --stop", text)
    return Task(read_prompts(prompts, file), params, system, raw)


class Interrupt:
    """Ctrl-C as a wish: the first press sets `pressed`, the second ends the command at once.

    That raises KeyboardInterrupt, or ends the process if it is the command's own. A context
    manager. It leaves SIGINT alone where somebody else has taken it (a shell that started the
    command in the background ignores it) and off the main thread.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._mine = False
        self._before: Any = None

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT)
        self._mine = main and self._before in _SECOND
        if self._mine:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._mine and not self.pressed:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, _: int, __: FrameType | None) -> None:
        self.pressed = True
        signal.signal(signal.SIGINT, _SECOND[self._before])


_SECOND: dict[Any, Any] = {
    signal.default_int_handler: signal.default_int_handler,
    interrupts.press: interrupts.leave_at_once,
}
"""Who hears the second press, by who would have heard the first."""


def stream_one(engine: Engine, task: Task, interrupt: Interrupt) -> list[RequestOutput]:
    """Answer the only prompt of `task` and print the text as it is made."""
    last = []
    for output in _outputs(engine, task, interrupt, stream=True):
        click.echo(output.delta, nl=False)
        last = [output]
    if last[0].text or not last[0].error:
        click.echo()
    return last


def answer_all(engine: Engine, task: Task, interrupt: Interrupt) -> list[RequestOutput]:
    """Answer every prompt of `task`, with a progress bar on a terminal; in their order."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    speed = TextColumn("{task.fields[speed]:.0f} tokens/s", markup=False)
    with progress(TextColumn("answered"), BarColumn(), MofNCompleteColumn(), speed) as bar:
        meter = _Meter(bar, len(task.prompts))
        latest: dict[int, RequestOutput] = {}
        # Outputs of unfinished requests cost a decode of every token; only the bar wants them.
        for output in _outputs(engine, task, interrupt, stream=not bar.disable):
            latest[output.index] = output
            meter.show(output)
    return [latest[index] for index in sorted(latest)]


class _Meter:
    """The numbers on the progress bar."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total, speed=0.0)
        self._started = time.perf_counter()
        self._tokens: dict[int, int] = {}
        self._sum = 0

    def show(self, output: RequestOutput) -> None:
        count = len(output.output_ids)
        self._sum += count - self._tokens.get(output.index, 0)
        self._tokens[output.index] = count
        seconds = time.perf_counter() - self._started
        advance = 1 if output.finished else 0
        self._bar.update(self._task, advance=advance, speed=self._sum / max(seconds, 1e-9))


def _outputs(
    engine: Engine, task: Task, interrupt: Interrupt, *, stream: bool
) -> Iterator[RequestOutput]:
    """Outputs as they come, one last one for every prompt.

    A prompt that cannot be served gives an output with an error. Once `interrupt` is pressed, the
    requests are aborted between two steps and reported with what they have.
    """
    index_of: dict[int, int] = {}
    for index in range(len(task.prompts)):
        number = _admit(engine, task, index, stream=stream)
        if isinstance(number, int):
            index_of[number] = index
        else:
            yield number
    latest = {index: _unanswered(task, index) for index in index_of.values()}
    while index_of:
        if interrupt.pressed:
            for number in index_of:
                engine.abort(number)
        try:
            outputs = engine.step()
        except Exception as error:
            # The engine has ended. What was answered before is worth as much as ever.
            log.exception("the engine stopped")
            for index in index_of.values():
                yield _stopped(latest[index], error)
            return
        for output in outputs:
            index = index_of.pop(output.index) if output.finished else index_of[output.index]
            latest[index] = attrs.evolve(output, index=index)
            yield latest[index]


def _admit(engine: Engine, task: Task, index: int, *, stream: bool) -> int | RequestOutput:
    """The number of the request that was queued, or the output that says why it was refused."""
    prompt = task.prompts[index]
    try:
        return engine.add_request(
            prompt, task.params, system=task.system, raw=task.raw, stream=stream
        )
    except RequestError as error:
        from warcore.output import refusal

        log.debug("prompt %d was refused", index + 1, exc_info=error)
        return refusal(index, prompt, error)


def refused(output: RequestOutput) -> bool:
    """Whether the prompt was refused before anything of it ran."""
    return isinstance(output.cause, RequestError) and not output.prompt_ids


def _unanswered(task: Task, index: int) -> RequestOutput:
    from warcore.output import RequestOutput

    return RequestOutput(index, task.prompts[index], [], [], "", "", None)


def _stopped(output: RequestOutput, cause: Exception) -> RequestOutput:
    """`output` as the last one of its prompt, because the engine has ended."""
    from warcore.request import FinishReason

    return attrs.evolve(
        output,
        delta="",
        finish_reason=FinishReason.ERROR.value,
        error=f"the engine stopped: {type(cause).__name__}: {cause}",
        cause=cause,
    )
