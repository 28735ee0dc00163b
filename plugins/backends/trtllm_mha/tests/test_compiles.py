"""The Triton kernels become machine code for GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

SCRIPT = Path(__file__).with_name("compiling.py")
SHARED = 99 * 1024
"""Bytes of shared memory that a block may have on the smallest of the GPUs since Ampere."""


def compiled(*arguments, cache):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_compiles_and_fits(tmp_path):
    found = compiled("90", cache=tmp_path)
    assert len(found) == 1 + 2
    assert max(found.values()) <= SHARED, max(found, key=found.get)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["80", "90", "100"])
@pytest.mark.parametrize("step", ["decode", "verify", "prefill"])
def test_every_variant_compiles_and_fits(target, step, tmp_path):
    found = compiled(target, step, cache=tmp_path)
    assert len(found) == 1 + 3 * 4 + 2 * 2
    assert max(found.values()) <= SHARED, max(found, key=found.get)
