"""Everything that warcore's contract asks of a model family: each check is a test."""

import pytest
from warcore.testkit import checks

from warcore_model_sample import Sample


@pytest.mark.parametrize("check", checks(Sample), ids=str)
def test_contract(check):
    check()
