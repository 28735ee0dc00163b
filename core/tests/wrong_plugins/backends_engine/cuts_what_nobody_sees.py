"""Cuts its rows at the longest sequence of the step that runs, which is right."""

from __future__ import annotations

from wrong_plugins.backends_engine.right import Shortened

BREAKS = "backend.nothing"
Plugin = Shortened
