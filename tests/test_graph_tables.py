"""The installed graph runners hold the rows of the tables that the core's own tests hold."""

from __future__ import annotations

import pytest
from parts import TABLES, named
from replays import (
    ROWS,
    check_order,
    check_position,
    check_prefill_bucket,
    check_prefill_gates,
)

from warcore_graph_runner_breakable import Breakable
from warcore_graph_runner_full import Full

pytestmark = pytest.mark.parametrize("kind", [Full, Breakable], ids=lambda kind: kind.__name__)


@pytest.mark.parametrize(("row", "mode", "lack"), ROWS)
def test_the_event_goes_where_the_latest_vote_and_the_marker_say(kind, row, mode, lack):
    check_order(kind, row, mode, lack)


@pytest.mark.parametrize(("row", "mode", "lack"), ROWS)
def test_the_fence_is_reached_where_the_reads_end(kind, row, mode, lack):
    check_position(kind, row, mode, lack)


@pytest.mark.parametrize("row", TABLES["prefill_buckets"], ids=named)
def test_a_prefill_is_replayed_unless_most_of_it_were_padding(kind, row):
    check_prefill_bucket(kind, row)


def test_the_gates_of_a_replayed_prefill_come_before_the_replay_and_count_its_padding(kind):
    check_prefill_gates(kind)
