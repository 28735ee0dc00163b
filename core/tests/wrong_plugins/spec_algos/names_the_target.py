"""Lets the target's verify be the last reader, and its draft model read after it."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.last_reader"


class Plugin(Right):
    def last_shared_read_runner(self, forward_batch):
        return None
