"""Step: what one launch does on the forward stream, from the relay to the relay."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

from warcore.contract import ForwardMode
from warcore.errors import shown
from warcore.fence import FenceReason
from warcore.modelrunner import ModelRunner
from warcore.sampling import sample

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.batching import Batching
    from warcore.device import Device, EventRing
    from warcore.drafting import Drafting
    from warcore.launch import Launch
    from warcore.relay import Relay
    from warcore.runner import PublishingRunner
    from warcore.scope import EngineScope


class Step:
    """Runs launches: resolves inputs, asks who owns the fence, executes, samples, relays."""

    def __init__(
        self,
        device: Device,
        target: PublishingRunner,
        engine: EngineScope,
        *,
        batching: Batching,
        relay: Relay,
        done: EventRing,
        drafting: Drafting | None = None,
    ) -> None:
        """drafting: the algorithm at work; None: every step gives one token a request."""
        self._device = device
        self._target = target
        self._engine = engine
        self._batching = batching
        self._relay = relay
        self._done = done
        self._drafting = drafting
        self._runners = (target, *(() if drafting is None else drafting.drafts))

    def run(self, launch: Launch) -> None:
        """All of one launch; submitted to the forward stream. Never raises an Exception.

        A failure is the launch's: it is kept there, its fence closes coarse, and the stream goes
        on with the next launch.
        """
        outer = sys.exc_info()[1]  # what its caller may be handling
        try:
            self._check_writes(launch)
            self._forward(launch)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin ends its own launch only
            launch.error = error
            # The error outlives the step; what its frames hold of the forward must not.
            _clear_frames(error, outer)
            launch.keep = None
            self._void(launch)
        finally:
            launch.copied = self._done.record()
            if launch.fence is not None:
                launch.fence.close(launch.copied, launch.error)
            for runner in self._runners:
                runner.lend(None)

    def release(self, launch: Launch) -> None:
        """The launch was collected: its done event may be recorded again."""
        if launch.copied is not None:
            self._done.release(launch.copied)

    def _void(self, launch: Launch) -> None:
        """Let the failed rows start at 0 for the launch that may be on its way behind this one.

        The relay still has the length of whoever had the row before, and there the table may name
        a page that somebody else has now: a write would end up in their text. The row's first
        page is its own until the host hears of the failure.
        """
        if launch.write_error is None:
            self._relay.lengths.index_fill_(0, launch.inputs.rows, 0)

    def _check_writes(self, launch: Launch) -> None:
        for write in launch.writes:
            if write.error is not None:
                launch.write_error = write.error
                raise write.error

    def _forward(self, launch: Launch) -> None:
        self._device.phase("inputs")
        batch = self._batching.batch(launch)
        fence = launch.fence
        if fence is not None:
            fence.expect(self._target, launch.mode)
            if not batch.mode.is_prefill:
                self._ask_owner(launch, batch)
        for runner in self._runners:
            runner.lend(fence)
        assert launch.result is not None
        if self._drafting is not None and batch.mode is ForwardMode.DECODE:
            assert launch.inputs.ends is not None
            found = self._drafting.step(batch, launch.inputs.ends, launch.sampling, self._relay)
            launch.result.copy_(found, non_blocking=True)
            launch.keep = batch, found
            return
        output = self._target.execute(batch)
        self._device.phase("sample")
        tokens = sample(output.logits, launch.sampling, batch.seq_lens)
        self._relay.publish(batch.rows, tokens, batch.seq_lens.long())
        if self._drafting is not None:
            self._drafting.after_prefill(batch, tokens, launch.inputs.follows, output)
        launch.result.copy_(tokens, non_blocking=True)
        launch.keep = batch, output, tokens

    def _ask_owner(self, launch: Launch, batch: ForwardBatch) -> None:
        """Who reads shared buffers last in this step; disagreement makes it coarse."""
        fence = launch.fence
        assert fence is not None
        answers: dict[str, ModelRunner] = {}
        for hook in self._engine.owners:
            try:
                runner = hook(forward_batch=batch)
            except Exception as error:  # noqa: BLE001  costs overlap, never text
                fence.give_up(FenceReason.DECLARATION_ERROR, f"{hook.plugin} raised {shown(error)}")
                return
            if runner is not None and not isinstance(runner, ModelRunner):
                fence.give_up(FenceReason.DECLARATION_ERROR, f"{hook.plugin} named {shown(runner)}")
                return
            if runner is not None:
                answers[hook.plugin] = runner
        if len(set(map(id, answers.values()))) > 1:
            named = " and ".join(answers)
            fence.give_up(FenceReason.DECLARATION_ERROR, f"{named} name different runners")
        elif answers:
            owner = next(iter(answers.values()))
            # A target has one phase a step; a draft drafts first, and its draft-extend is the last.
            last = launch.mode if owner is self._target else ForwardMode.DRAFT_EXTEND
            fence.expect(owner, last)


def _clear_frames(error: BaseException, outer: BaseException | None) -> None:
    """Let go of what the frames of an error hold, and of those that it came from.

    outer: one that is not the step's, and what that came from is not either.
    """
    left: list[BaseException | None] = [error]
    seen: list[BaseException | None] = [None, outer]
    while left:
        each = left.pop()
        if each is not None and all(each is not other for other in seen):
            seen.append(each)
            traceback.clear_frames(each.__traceback__)
            left += [each.__cause__, each.__context__]
