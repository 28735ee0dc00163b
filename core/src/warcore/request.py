"""Request: one sequence on its way through the scheduler, as the host knows it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from warcore.errors import RequestError
from warcore.transcript import Transcript

if TYPE_CHECKING:
    from warcore.model import Tokenizer
    from warcore.samplingparams import SamplingParams


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    """The end token, a stop token id or a stop string."""
    LENGTH = "length"
    """max_new_tokens, or the end of the context."""
    ABORT = "abort"
    ERROR = "error"


@attrs.define(eq=False)
class Request:
    """Host state of one request.

    The host knows the settled tokens; up to two launches may be on their way beyond them. How
    far the device has come, or will have, follows from both.
    """

    id: int
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    transcript: Transcript
    limit: int
    """Tokens it may produce: max_new_tokens or what the context leaves."""
    stop_ids: frozenset[int]
    output_ids: list[int]
    streams: bool = False
    """Whether somebody wants to hear of every token."""
    row: int = 0
    """Its row of the shared buffers while anything is left to launch for it; else 0."""
    pages: list[int] = attrs.field(factory=list)
    prefill_ids: list[int] = attrs.field(factory=list)
    """What this attempt prefills: the prompt, and what was produced before a retract."""
    prefilled: int = 0
    """How many of them have been launched."""
    pending: int = 0
    """Launches whose tokens the host does not have yet; each brings at least one."""
    slack: int = 0
    """So many tokens more they may bring, at most."""
    drafted: int = 0
    """Tokens that were drafted for it, and judged."""
    accepted: int = 0
    """How many of them stood."""
    verifies: int = 0
    """Steps that judged drafts of it."""
    shown: int = 0
    """Characters of its text that were reported."""
    finish_reason: FinishReason | None = None
    error: BaseException | None = None

    @classmethod
    def new(
        cls,
        number: int,
        prompt: str | None,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        tokenizer: Tokenizer,
        max_context: int,
        seed: int,
        streams: bool = False,
    ) -> Request:
        """A request that waits.

        The context bounds it too: the last token needs no room, since nothing follows it.
        RequestError if the tokenizer does not tell what ends an answer.
        """
        room = max_context - len(prompt_ids) + 1
        limit = room if params.max_new_tokens is None else min(room, params.max_new_tokens)
        eos = frozenset() if params.ignore_eos else _eos_ids(tokenizer)
        output_ids: list[int] = []
        return cls(
            id=number,
            prompt=prompt,
            prompt_ids=prompt_ids,
            params=params,
            seed=seed,
            transcript=Transcript(tokenizer, output_ids, params.stop),
            limit=limit,
            stop_ids=eos | frozenset(params.stop_token_ids),
            output_ids=output_ids,
            streams=streams,
        )

    @property
    def finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.finish_reason is not None

    @property
    def most_tokens(self) -> int:
        """The longest sequence whose keys and values it can ever need."""
        return len(self.prompt_ids) + max(self.limit - 1, 0)

    @property
    def prefilling(self) -> bool:
        """Whether chunks of this attempt are still to be launched."""
        return self.prefilled < len(self.prefill_ids)

    @property
    def sampled(self) -> int:
        """Tokens produced, those on their way included; at least so many, if some are drafted."""
        return len(self.output_ids) + self.pending

    @property
    def written(self) -> int:
        """Tokens whose keys and values are computed or on their way; at most so many."""
        # Spelt out, since every running request is asked at every step.
        if self.prefilled < len(self.prefill_ids):
            return self.prefilled
        # The newest token is sampled, but it is computed only by the step that takes it as input.
        return len(self.prompt_ids) + len(self.output_ids) + self.pending + self.slack - 1

    @property
    def next_position(self) -> int:
        """No later launch computes a position before this one.

        Every launch on its way brings one token at least, which is settled in that sense. What it
        may bring at most is `slack`, and never counts here.
        """
        if self.prefilled < len(self.prefill_ids):
            return self.prefilled
        return len(self.prompt_ids) + len(self.output_ids) + self.pending - 1

    def start(self, row: int) -> None:
        """Admitted: a fresh attempt from the settled tokens, in `row`."""
        assert not self.pending, "results of an earlier attempt are still on their way"
        self.row = row
        self.prefill_ids = self.prompt_ids + self.output_ids
        self.prefilled = 0

    def accept(self, token: int) -> None:
        """Append a settled token, and finish if it ends the answer. Raises what decoding raises."""
        self.output_ids.append(token)
        read = self.params.stop or self.streams
        if token in self.stop_ids or (read and self.transcript.advance()):
            self.finish(FinishReason.STOP)
        elif len(self.output_ids) >= self.limit:
            self.finish(FinishReason.LENGTH)

    def finish(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """End it; the text is complete from here on. Text that cannot be decoded is an error."""
        try:
            self.transcript.finish()
        except Exception as failure:  # noqa: BLE001  a tokenizer's failure ends its own request
            reason, error = FinishReason.ERROR, error or failure
        if reason is FinishReason.LENGTH and self.transcript.stopped:
            reason = FinishReason.STOP  # in what the last token left incomplete
        self.finish_reason, self.error = reason, error


def _eos_ids(tokenizer: Tokenizer) -> frozenset[int]:
    try:
        return frozenset(tokenizer.eos_ids)
    except Exception as error:
        what = f"the tokenizer does not tell its eos_ids: {type(error).__name__}: {error}"
        raise RequestError(what, next="run with --debug for the traceback") from error
