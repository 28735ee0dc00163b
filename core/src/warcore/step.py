"""Step: what one launch does on the forward stream, from the relay to the relay."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from warcore.batch import ForwardBatch
from warcore.contract import ForwardMode
from warcore.fence import FenceReason
from warcore.runner import ModelRunner
from warcore.sampling import sample

if TYPE_CHECKING:
    import torch

    from warcore.device import Device, EventRing
    from warcore.drafting import Drafting
    from warcore.launch import Launch
    from warcore.relay import Relay
    from warcore.scope import EngineScope
    from warcore.shared import SharedTables


class Step:
    """Runs launches: resolves inputs, asks who owns the fence, executes, samples, relays."""

    def __init__(
        self,
        device: Device,
        target: ModelRunner,
        engine: EngineScope,
        *,
        tables: SharedTables,
        relay: Relay,
        done: EventRing,
        max_tokens: int,
        drafting: Drafting | None = None,
    ) -> None:
        """drafting: the algorithm at work; None: every step gives one token a request."""
        import torch

        self._device = device
        self._target = target
        self._engine = engine
        self._tables = tables
        self._relay = relay
        self._done = done
        self._drafting = drafting
        self._runners = (target, *(() if drafting is None else drafting.drafts))
        self._ahead = 0 if drafting is None else drafting.num_tokens
        self._counting = torch.arange(max_tokens + 1, dtype=torch.int64, device=device.torch_device)

    def run(self, launch: Launch) -> None:
        """All of one launch; submitted to the forward stream. Never raises an Exception.

        A failure is the launch's: it is kept there, its fence closes coarse, and the stream goes
        on with the next launch.
        """
        try:
            self._check_writes(launch)
            self._forward(launch)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin ends its own launch only
            launch.error = error
            # The error outlives the step; what its frames hold of the forward must not.
            traceback.clear_frames(error.__traceback__)
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
        batch = self._batch(launch)
        fence = launch.fence
        if fence is not None:
            fence.expect(self._target, launch.mode)
            if not batch.mode.is_prefill:
                self._ask_owner(launch, batch)
        for runner in self._runners:
            runner.lend(fence)
        assert launch.result is not None
        if self._drafting is not None and batch.mode is ForwardMode.DECODE:
            found = self._drafting.step(batch, launch.sampling, self._relay)
            launch.result.copy_(found, non_blocking=True)
            launch.keep = batch, found
            return
        output = self._target.execute(batch)
        self._device.phase("sample")
        tokens = sample(output.logits, launch.sampling, batch.seq_lens)
        self._relay.publish(batch.rows, tokens, batch.seq_lens.long())
        if self._drafting is not None:
            self._drafting.extend(batch, tokens, launch.inputs.follows, output)
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
                fence.give_up(FenceReason.DECLARATION_ERROR, f"{hook.plugin} raised {error!r}")
                return
            if runner is not None and not isinstance(runner, ModelRunner):
                fence.give_up(FenceReason.DECLARATION_ERROR, f"{hook.plugin} named {runner!r}")
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

    def _batch(self, launch: Launch) -> ForwardBatch:
        if launch.mode.is_prefill:
            return self._extend_batch(launch)
        return self._decode_batch(launch)

    def _decode_batch(self, launch: Launch) -> ForwardBatch:
        """Everything but the rows comes from the relay and the live table.

        The write locations are a shared read of the core's own, and it comes first.
        """
        rows = launch.inputs.rows
        positions = self._relay.lengths.index_select(0, rows)
        size = rows.shape[0]
        index = self._counting[: size + 1]
        ahead = None if launch.inputs.ends is None else self._ahead_slots(launch, positions)
        return ForwardBatch(
            mode=ForwardMode.DECODE,
            size=size,
            padded_size=size,
            padded_tokens=size,
            tokens=self._relay.tokens.index_select(0, rows),
            rows=rows,
            seq_lens=(positions + 1).int(),
            q_start=index.int(),
            q_row=index[:-1],
            positions=positions,
            out_slots=self._slots(rows, positions) if ahead is None else ahead[:, 0],
            max_seq_len=launch.max_seq_len - self._ahead,
            ahead=ahead,
        )

    def _ahead_slots(self, launch: Launch, positions: torch.Tensor) -> torch.Tensor:
        """[B, K + 1] i64: slots of the newest token and of the drafted ones.

        Slot 0 beyond the request's own pages: there the table still names somebody else's.
        """
        import torch

        rows, ends = launch.inputs.rows, launch.inputs.ends
        assert ends is not None
        at = positions[:, None] + self._counting[: self._ahead + 1]
        slots = self._slots(rows[:, None], at.clamp(max=self._tables.req_to_token.shape[1] - 1))
        return torch.where(at < ends[:, None], slots, 0)

    def _extend_batch(self, launch: Launch) -> ForwardBatch:
        import torch

        given = launch.inputs
        assert given.prefixes is not None
        assert given.lens is not None
        assert given.tokens is not None
        size, count = given.rows.shape[0], given.tokens.shape[0]
        prefixes = torch.where(
            given.prefixes < 0, self._relay.lengths.index_select(0, given.rows), given.prefixes
        )
        q_start = torch.zeros(size + 1, dtype=torch.int64, device=given.rows.device)
        torch.cumsum(given.lens, 0, out=q_start[1:])
        index = self._counting
        q_row = torch.repeat_interleave(index[:size], given.lens, output_size=count)
        shift = (prefixes - q_start[:-1]).index_select(0, q_row)
        positions = index[:count] + shift
        row_of = given.rows.index_select(0, q_row)
        relayed = self._relay.tokens.index_select(0, row_of)
        return ForwardBatch(
            mode=launch.mode,
            size=size,
            padded_size=size,
            padded_tokens=count,
            tokens=torch.where(given.tokens < 0, relayed, given.tokens),
            rows=given.rows,
            seq_lens=(prefixes + given.lens).int(),
            q_start=q_start.int(),
            q_row=q_row,
            positions=positions,
            out_slots=self._slots(row_of, positions),
            max_seq_len=launch.max_seq_len,
            extend_lens=tuple(entry.tokens for entry in launch.entries),
            logits_at=q_start[1:] - 1,
        )

    def _slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at `positions` of `rows` are written, i64. Reads the live table."""
        table = self._tables.req_to_token
        at = rows * table.shape[1] + positions
        return table.view(-1).index_select(0, at.flatten()).long().view(at.shape)
