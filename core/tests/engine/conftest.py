"""Lets the tests here import what lies beside their directory: toys and parts."""

from __future__ import annotations

import sys
from pathlib import Path

BESIDE = str(Path(__file__).parents[1])
if BESIDE not in sys.path:
    sys.path.insert(0, BESIDE)
