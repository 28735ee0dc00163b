"""Drafting: the phases of a step under speculation, from the relay to the relay.

Draft, verify, accept, and take note of what was accepted. Lengths and tokens stay on the device:
the host learns them when it collects the launch, and has launched the next step by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.acceptance import accept, ancestry
from warcore.contract import ForwardMode
from warcore.errors import PluginError
from warcore.found import pack
from warcore.spec import Accepted, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warcore.acceptance import Stand
    from warcore.batch import ForwardBatch
    from warcore.device import Device
    from warcore.model import Layer, Output
    from warcore.relay import Relay
    from warcore.runner import PublishingRunner
    from warcore.sampling import SamplingBatch
    from warcore.spec import DraftSpec, SpecAlgorithm


class Drafting:
    """An algorithm at work in an engine. All methods run on the forward stream."""

    def __init__(
        self,
        device: Device,
        name: str,
        algorithm: SpecAlgorithm,
        *,
        spec: DraftSpec,
        target: PublishingRunner,
        drafts: Sequence[PublishingRunner],
        kv: Sequence[dict[str, torch.Tensor]],
        layers: Sequence[Layer],
        full_to_swa: torch.Tensor | None,
    ) -> None:
        """kv: the target's cache, [pages, page_size, ...] of each of its layers and name."""
        import torch

        self.drafts = tuple(drafts)
        """The runners that the algorithm made."""
        self.num_tokens = spec.num_tokens
        self._device = device
        self._name = name
        self._algorithm = algorithm
        self._target = target
        self._tree = spec.topk > 1
        self._full_to_swa = full_to_swa
        self._memory = [
            (full_to_swa is not None and layer.window is not None, memory.flatten(0, 1))
            for layer, memories in zip(layers, kv, strict=True)
            for memory in memories.values()
        ]
        """(whether its slots are the map's, [slots, ...]) of each layer and name."""
        self._nodes = torch.arange(spec.num_tokens + 1, device=device.torch_device)
        self._chain = self._nodes[:-1]

    # ---- a step of the requests that decode ----------------------------------------------------

    def step(
        self, batch: ForwardBatch, ends: torch.Tensor, sampling: SamplingBatch, relay: Relay
    ) -> torch.Tensor:
        """Draft, verify, accept, relay, extend; what was found out, packed.

        batch: the DECODE batch of each request's newest token, with `ahead` over K + 1 positions.
        ends: [B] i64, from where on nothing is accepted.
        """
        import torch

        assert batch.ahead is not None
        # NOTE: the map is shared too. What moves accepted tokens comes after the reads' end, so its
        # places are looked up first, as all write locations are.
        swa = None
        if self._tree and self._full_to_swa is not None:
            swa = self._full_to_swa[batch.ahead].long()
        self._device.phase("draft")
        draft = self._checked(self._algorithm.draft(batch), batch.padded_size)
        lengths = batch.positions
        meant = torch.full_like(lengths, self.num_tokens)
        meant = meant if draft.lengths is None else draft.lengths
        verify, depths = self._verify_batch(batch, draft)
        places = lengths[:, None] + depths
        allowed = (self._chain < meant[:, None]) & (places[:, 1:] < ends[:, None])
        output = self._target.execute(verify)
        self._device.phase("accept")
        logits = output.logits.view(batch.padded_size, self.num_tokens + 1, -1)
        mask = verify.tree_mask
        sees = None if mask is None else mask.view(*logits.shape[:2], -1)
        stand = accept(logits, draft, allowed, sampling, places + 1, sees=sees)
        if self._tree:
            self._compact(batch.ahead, swa, stand)
        relay.publish(
            batch.rows,
            stand.tokens.gather(1, stand.lengths[:, None] - 1).squeeze(1),
            lengths + stand.lengths,
        )
        self._device.phase("draft_extend")
        extend, accepted = self._draft_extend_batch(batch, verify, stand, output)
        self._algorithm.draft_extend(extend, accepted)
        return pack(stand.lengths, allowed.sum(1), stand.tokens)

    def _checked(self, draft: object, size: int) -> Draft:
        """PluginError for what is no draft of this batch, before it reaches a kernel."""
        import torch

        shape = size, self.num_tokens
        if not isinstance(draft, Draft):
            raise self._wrong(f"returned {draft!r}, which is no Draft", "return Draft(tokens=...)")
        for name in ("tokens", "parents"):
            given = getattr(draft, name)
            if given is not None and (tuple(given.shape) != shape or given.dtype != torch.int64):
                what = f"{name} {list(given.shape)} {given.dtype}"
                raise self._wrong(f"drafted {what}", f"give {list(shape)} of int64")
        if draft.parents is not None and not self._tree:
            raise self._wrong("drafted a tree", "leave parents out, or ask for --spec-topk 2")
        if draft.lengths is not None and tuple(draft.lengths.shape) != (size,):
            what = f"drafted lengths {list(draft.lengths.shape)}"
            raise self._wrong(what, f"give [{size}] of int64")
        owed = *shape, self._target.info.vocab_size
        if draft.probs is not None and tuple(draft.probs.shape) != owed:
            what = f"drafted probs {list(draft.probs.shape)}"
            raise self._wrong(what, f"give {list(owed)}, over the target's vocabulary")
        return draft

    def _wrong(self, what: str, remedy: str) -> PluginError:
        return PluginError(f"spec_algo:{self._name}: draft {what}", next=remedy)

    def _verify_batch(self, batch: ForwardBatch, draft: Draft) -> tuple[ForwardBatch, torch.Tensor]:
        """The batch of all nodes, and how deep each lies: [B, K + 1] or [K + 1]."""
        import torch

        size, width = batch.padded_size, self.num_tokens + 1
        assert batch.ahead is not None
        depths, mask = self._nodes, None
        if self._tree:
            parents = self._chain if draft.parents is None else draft.parents
            depths, mask = ancestry(parents.expand(size, width - 1))
            mask = mask.flatten(0, 1)
        positions = batch.positions[:, None] + depths
        counting = torch.arange(size, device=batch.rows.device)
        q_start = torch.arange(0, size * width + 1, width, device=batch.rows.device)
        verify = attrs.evolve(
            batch,
            mode=ForwardMode.TARGET_VERIFY,
            padded_tokens=size * width,
            tokens=torch.cat((batch.tokens[:, None], draft.tokens), 1).flatten(),
            seq_lens=batch.seq_lens + self.num_tokens,
            q_start=q_start.int(),
            q_row=counting.repeat_interleave(width),
            positions=positions.flatten(),
            out_slots=batch.ahead.flatten(),
            max_seq_len=batch.max_seq_len + self.num_tokens,
            max_q_len=width,
            tree_mask=mask,
            ahead=None,
        )
        return verify, depths

    def _draft_extend_batch(
        self, batch: ForwardBatch, verify: ForwardBatch, stand: Stand, output: Output
    ) -> tuple[ForwardBatch, Accepted]:
        """What `draft_extend` gets: the tokens that stand, at the positions where they stand."""
        import torch

        hidden = output.hidden
        positions = verify.positions
        if self._tree:
            positions = (batch.positions[:, None] + self._nodes).flatten()
            if hidden is not None:
                rows = torch.arange(batch.padded_size, device=stand.path.device)[:, None]
                at = (rows * (self.num_tokens + 1) + stand.path).flatten()
                hidden = hidden.index_select(1, at)
        extend = attrs.evolve(
            verify,
            mode=ForwardMode.DRAFT_EXTEND,
            tokens=torch.cat((batch.tokens[:, None], stand.tokens[:, :-1]), 1).flatten(),
            positions=positions,
            tree_mask=None,
        )
        return extend, Accepted(stand.tokens, stand.lengths, hidden)

    def _compact(self, slots: torch.Tensor, swa: torch.Tensor | None, stand: Stand) -> None:
        """Move keys and values of the path to the slots of its positions.

        swa: where layers with a window keep them; None: in `slots` too. The tables stay as they
        are: they belong to the scheduler. All sources are read before any is written, since a
        node's slot may be another one's place.
        """
        for windowed, memory in self._memory:
            of = swa if windowed and swa is not None else slots
            source = of.gather(1, stand.path).flatten()
            memory.index_copy_(0, of.flatten(), memory.index_select(0, source))

    # ---- a step with prefills ------------------------------------------------------------------

    def after_prefill(
        self,
        batch: ForwardBatch,
        tokens: torch.Tensor,
        follows: torch.Tensor | None,
        output: Output,
    ) -> None:
        """Let the algorithm see the tokens of a prefill step.

        tokens: [B] i64 what was sampled. follows: [B] i64, the prompt's next token of each request
        whose chunk is not its last, else -1; None: every chunk is its prompt's last.
        """
        import torch

        self._device.phase("draft_extend")
        if follows is not None:
            tokens = torch.where(follows < 0, tokens, follows)
        ones = torch.ones_like(tokens)
        self._algorithm.draft_extend(batch, Accepted(tokens[:, None], ones, output.hidden))
