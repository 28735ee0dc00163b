"""What this stager answers, without an engine."""

from types import SimpleNamespace

import pytest
from warcore import SharedReadEnds

from warcore_stager_sample import Sample

PRE, POST = SharedReadEnds.PRE_REPLAY, SharedReadEnds.POST_REPLAY


@pytest.mark.parametrize(("ends", "nothing"), [([PRE, PRE], True), ([POST, PRE], False)])
def test_it_says_true_only_if_nothing_of_any_draft_remains(ends, nothing):
    staged = []

    def draft(end):
        return SimpleNamespace(stage=lambda batch: staged.append(batch) or end)

    stager = Sample(SimpleNamespace(drafts=[draft(end) for end in ends]))
    assert stager.stage("a batch") is nothing
    assert staged == ["a batch"] * len(ends)
