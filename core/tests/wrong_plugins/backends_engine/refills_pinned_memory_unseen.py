"""Fills pinned memory of its own too early, and by no call of torch."""

from __future__ import annotations

import ctypes

from wrong_plugins.backends_engine import refills_pinned_memory

BREAKS = "backend.races"
DETECTORS = ("happens-before",)


class Plugin(refills_pinned_memory.Plugin):
    def fill(self, size):
        words = (ctypes.c_int64 * 8).from_address(self.pinned.data_ptr())
        words[:] = [size + number for number in range(8)]
