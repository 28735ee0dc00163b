"""Lets the tests here import what lies beside their directory: toys and parts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

BESIDE = str(Path(__file__).parents[1])
if BESIDE not in sys.path:
    sys.path.insert(0, BESIDE)


@pytest.fixture(scope="module", autouse=True)
def _one_core():
    """Toys are too small to share among cores, which others may be using."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
