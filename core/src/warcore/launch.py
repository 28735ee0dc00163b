"""One launch: what the scheduler decided for a step, and all that it holds until it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import torch

    from warcore.contract import ForwardMode
    from warcore.device import Pending, Ticket
    from warcore.fence import ReadFence
    from warcore.request import Request
    from warcore.sampling import SamplingBatch


@attrs.frozen(eq=False)
class Entry:
    """One request's part in a step, as it was decided: the request itself moves on."""

    request: Request
    row: int
    start: int | None
    """Tokens computed before this step; None: a decode, and the relay knows."""
    tokens: int
    """New tokens it computes."""
    bound: int
    """At most so many tokens are in the sequence after the step."""
    samples: bool
    """Whether its sampled token counts: True unless it is a chunk that is not the last."""
    drafted: int = 0
    """So many tokens more than one it may bring, at most."""
    end: int = 0
    """No drafted token is accepted at or behind this position; 0 where nothing is drafted."""


@attrs.frozen(eq=False)
class StepInputs:
    """Device tensors of a step, written by the schedule stream, owned by the launch.

    A token or a prefix below zero means: the relay knows.
    """

    rows: torch.Tensor
    """[B] i64."""
    prefixes: torch.Tensor | None
    """[B] i64, tokens computed before this step. None in a decode step: all from the relay."""
    lens: torch.Tensor | None
    """[B] i64, new tokens of each request; None in a decode step."""
    tokens: torch.Tensor | None
    """[T] i64; None in a decode step."""
    ends: torch.Tensor | None = None
    """[B] i64, where each request ends at the latest: nothing is accepted from there on; None
    without drafts."""
    follows: torch.Tensor | None = None
    """[B] i64, the prompt's token after each chunk, or -1; None unless an algorithm wants it."""


@attrs.define(eq=False)
class Launch:
    """A step from its preparation until its results are collected.

    It owns every tensor of the step until then: memory that a stream still uses must not be
    handed to anybody else.
    """

    mode: ForwardMode
    """TARGET_VERIFY where tokens are drafted, although the step begins with a DECODE batch."""
    entries: list[Entry]
    max_seq_len: int
    inputs: StepInputs
    sampling: SamplingBatch
    writes: list[Pending]
    """Schedule-stream work that this step stands on."""
    fence: ReadFence | None = None
    """None in the normal loop, which has no fence."""
    pending: Pending | None = None
    result: torch.Tensor | None = None
    """Host memory for what is found out, in the form that found.py has; valid once `copied` is
    reached."""
    copied: Ticket | None = None
    keep: object = None
    """The step's batch and outputs, kept alive until it is collected."""
    error: BaseException | None = None
    """Why the forward failed, if it did; set before `pending` is done."""
    block: torch.Tensor | None = None
    """What crossed to the device for it; columns of it are its inputs."""
    write_error: BaseException | None = None
    """The schedule-stream failure that the forward met; ends the engine."""
