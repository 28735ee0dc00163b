"""Executes a draft model after each prefill, and declares that nothing reads later."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.later_prefill_reader"


class Plugin(Right):
    later_prefill_reader = False
