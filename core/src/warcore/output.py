"""RequestOutput: what one request has produced so far, as people and scripts see it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import attrs

from warcore.errors import WarcoreError, words_of
from warcore.request import FinishReason

if TYPE_CHECKING:
    from warcore.request import Request


@attrs.frozen
class RequestOutput:
    """What one request has produced so far."""

    index: int
    """The request's number in this engine, or its place among the prompts of one call."""
    prompt: str | None
    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    """All text so far, without special tokens and without the stop string."""
    delta: str
    """The text that is new since the output before."""
    finish_reason: str | None
    """None while it runs; then stop, length, abort or error."""
    error: str | None = None
    """What went wrong, if something did: one to three lines, the last of which may be `Next: ` and
    the remedy."""
    cause: BaseException | None = attrs.field(default=None, repr=False, eq=False)
    """The exception itself, with the traceback of whoever raised it."""
    drafted: int = 0
    """Tokens that were drafted for it, and judged."""
    accepted: int = 0
    """How many of them stood."""
    accept_length: float | None = None
    """Tokens that a verify brought it, on average; None before its first."""

    @property
    def finished(self) -> bool:
        """Whether this is the last output of the request."""
        return self.finish_reason is not None


def output_of(request: Request) -> RequestOutput:
    """The state of `request`; its `delta` is what no output has shown yet."""
    text = request.transcript.text if request.finished else request.transcript.visible()
    delta = text[request.shown :]
    request.shown = max(request.shown, len(text))
    error = request.error
    return RequestOutput(
        index=request.id,
        prompt=request.prompt,
        prompt_ids=list(request.prompt_ids),
        output_ids=list(request.output_ids),
        text=text,
        delta=delta,
        finish_reason=request.finish_reason.value if request.finish_reason else None,
        drafted=request.drafted,
        accepted=request.accepted,
        accept_length=_accept_length(request),
        error=None if error is None else _line(error),
        cause=error,
    )


def _accept_length(request: Request) -> float | None:
    # Each verify brings a token beside the drafted ones that stood.
    return 1 + request.accepted / request.verifies if request.verifies else None


def refusal(place: int, prompt: object, error: WarcoreError) -> RequestOutput:
    """The output of a prompt that never became a request."""
    text = prompt if isinstance(prompt, str) else None
    reason = FinishReason.ERROR.value
    return RequestOutput(place, text, [], [], "", "", reason, error=_line(error), cause=error)


def _line(error: BaseException) -> str:
    """A person's mistake in its own words; another exception with its type and its line."""
    if isinstance(error, WarcoreError):
        return str(error)
    place = _place(error)
    where = f" ({place})" if place else ""
    said = " ".join(f"{type(error).__name__}: {words_of(error)}".split())
    return f"{said}{where}\nNext: run with --debug for the traceback"


def _place(error: BaseException) -> str:
    """The innermost line that is not torch's own: `file:line`."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] != "torch"
    ]
    return ":".join(map(str, frames[-1])) if frames else ""
