"""Where a step's read-done event falls, from what was declared and how the step runs.

The rule for every step that is no prefill; prefills go through the gates (gates.py).
"""

from __future__ import annotations

from warcore.contract import SharedReadEnds


def resolve(vote: SharedReadEnds, *, graph: bool, marker: bool) -> SharedReadEnds:
    """The point at which the event is recorded and offered.

    vote: the scope's latest. graph: whether the step is replayed. marker: whether the graph holds
    an external event right after the in-graph metadata.

    Without a marker nothing can be recorded between the in-graph metadata and the body of a graph,
    so IN_REPLAY waits for the end of the replay. Moving it to the front instead would be too early:
    the in-graph metadata still reads.
    """
    if vote is SharedReadEnds.IN_REPLAY and graph and not marker:
        return SharedReadEnds.POST_REPLAY
    return vote
