"""A run as somebody watched it: who was busy with what, when, and who waited for whom.

The recorder watches a device and a scheduler; a timeline is what it saw, in one time; the rest
draws timelines. An engine that nobody watches pays one comparison at each place that would report.
"""

from __future__ import annotations

from warcore.tracing.recorder import MAX_STEPS, Recorder
from warcore.tracing.timeline import Timeline

__all__ = ["MAX_STEPS", "Recorder", "Timeline"]
