"""Algorithms of the kit's own whose drafts read after prefills, and whom a stager may serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.contract import SharedReadEnds
from warcore.spec import Draft, SpecAlgorithm
from warcore.stager import Stager
from warcore.testkit.engines.specworkload import LENGTH, PAGES, REQUESTS, SHAPE, SpecWorkload
from warcore.testkit.engines.workload import MANY, ROOM, with_options
from warcore.testkit.stands.paged import Paged

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.contract import ForwardMode
    from warcore.modelrunner import ModelRunner
    from warcore.spec import Accepted, SpecContext
    from warcore.testkit.engines.specworkload import Follows
    from warcore.testkit.engines.workload import Asked, Workload
    from warcore.testkit.subject import Subject

DRAFTED = 3
"""Tokens that a request drafts in each step."""


class LaterReader(SpecAlgorithm):
    """The target drafts for itself, and takes in each prefill after it."""

    def __init__(self, ctx: SpecContext) -> None:
        super().__init__(ctx)
        self.runner = ctx.make_runner(ctx.model)

    def draft(self, batch: ForwardBatch) -> Draft:
        """Token by token."""
        tokens = [self.runner.execute(batch).logits.argmax(-1)]
        while len(tokens) < self.ctx.num_tokens:
            batch = batch.after(tokens[-1])
            tokens.append(self.runner.execute(batch).logits.argmax(-1))
        return Draft(torch.stack(tokens, 1))

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:  # noqa: ARG002
        """The table is read here."""
        self.runner.execute(batch)

    def last_shared_read_runner(self, forward_batch: ForwardBatch) -> ModelRunner:  # noqa: ARG002
        """The draft's own."""
        return self.runner


class TwoLaterReaders(LaterReader):
    """A second draft runner takes prefills in behind the first one, which alone drafts."""

    def __init__(self, ctx: SpecContext) -> None:
        super().__init__(ctx)
        self.second = ctx.make_runner(ctx.model)

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:
        """One after the other; the second one is the last reader."""
        super().draft_extend(batch, accepted)
        self.second.execute(batch)

    def last_shared_read_runner(self, forward_batch: ForwardBatch) -> ModelRunner:  # noqa: ARG002
        """The second."""
        return self.second


class StagesAll(Stager):
    """Stages each draft runner; True if nothing remains of any of them."""

    def stage(self, batch: ForwardBatch) -> bool:
        """See `Stager.stage`."""
        remaining = [draft.stage(batch) for draft in self.ctx.drafts]
        return bool(remaining) and all(end is SharedReadEnds.PRE_REPLAY for end in remaining)


class DraftsReadInLayers(Paged):
    """A backend that a stager cannot help: a draft's layers read the table, and it says so."""

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """Of a target before the replay."""
        if self.ctx.spec.role == "draft":
            return SharedReadEnds.POST_REPLAY
        return super().shared_read_ends(forward_mode)


@attrs.frozen
class Case:
    """One algorithm over one backend: a cell of the checks of stagers."""

    name: str
    algorithm: Any
    backend: Any = Paged
    can_be_staged: bool = True
    """Whether a stager that does all it can leaves no later read."""
    requests: tuple[Asked, ...] = REQUESTS
    sizes: dict[str, Any] = attrs.field(factory=lambda: {"kv_pages": PAGES})
    """Fields of the EngineConfig."""

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("one-draft", LaterReader),
    Case("two-drafts", TwoLaterReaders),
    Case("drafts-read-in-layers", LaterReader, DraftsReadInLayers, can_be_staged=False),
    Case("many-requests", LaterReader, requests=MANY, sizes=ROOM),
)


def staged_workload(
    subject: Subject | None,
    case: Case,
    drafts: Follows | None = None,
    stages: Follows | None = None,
    **fields: Any,
) -> Workload:
    """The requests under a case's algorithm, staged for by the subject; None: by nobody.

    drafts, stages: who looks on at the algorithm, and at the stager.
    """
    algorithm = case.algorithm if drafts is None else drafts.of(case.algorithm)
    stagers = []
    if subject is not None:
        cls = with_options(subject.cls, subject.options)
        stagers.append(cls if stages is None else stages.of(cls))
    more = {
        "context_length": LENGTH,
        **case.sizes,
        "spec_algo": algorithm,
        "spec_tokens": DRAFTED,
        "stagers": stagers,
    }
    device = "host" if subject is None else subject.device
    return SpecWorkload(
        SHAPE, case.backend, device=device, requests=case.requests, more={**more, **fields}
    )
