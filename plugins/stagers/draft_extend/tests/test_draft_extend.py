"""What the stager answers, and whom it serves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warcore import Draft, Engine, EngineConfig, SharedReadEnds, SpecAlgorithm, WiringError
from warcore_stager_draft_extend import DraftExtend

PRE, IN = SharedReadEnds.PRE_REPLAY, SharedReadEnds.IN_REPLAY


class Draftless(SpecAlgorithm):
    """Reads nothing after a prefill."""

    later_prefill_reader = False

    def draft(self, batch):
        return Draft(batch.tokens[:, None].repeat(1, self.ctx.num_tokens))


@pytest.mark.parametrize(
    ("remaining", "answer"),
    [([PRE], True), ([PRE, PRE], True), ([PRE, IN], False), ([IN, PRE], False), ([], False)],
)
def test_it_says_yes_only_if_no_draft_has_a_read_left(remaining, answer):
    staged = []

    def draft(end):
        return SimpleNamespace(stage=lambda batch: staged.append(batch) or end)

    stager = DraftExtend(SimpleNamespace(drafts=[draft(end) for end in remaining]))
    assert stager.stage("batch") is answer
    assert staged == ["batch"] * len(remaining)


def test_it_refuses_an_algorithm_that_reads_nothing_later():
    config = EngineConfig(model="random:tiny", spec_algo=Draftless, stagers=[DraftExtend])
    with pytest.raises(WiringError, match="Draftless reads nothing after a prefill"):
        Engine(config)
