"""Declares that it reads after prefills, which it never does."""

from __future__ import annotations

from wrong_plugins.spec_algos.remembers import Remembers

BREAKS = "spec_algo.could_be_earlier"


class Plugin(Remembers):
    later_prefill_reader = True
