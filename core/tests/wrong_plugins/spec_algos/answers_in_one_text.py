"""Gives its reasons as one text, of which each letter counts as one."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.why_not"


class Plugin(Right):
    @classmethod
    def why_not(cls, spec):
        return "trees" if spec.topk > 1 else ""
