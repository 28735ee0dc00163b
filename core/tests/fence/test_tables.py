"""Votes and their resolution, row by row of tests/vectors/fence_tables.json."""

from __future__ import annotations

import pytest
from drafters import Wrong
from parts import TABLES, batch_of, named
from toys import RowMajor

from warcore import AttentionBackend, ForwardMode, SharedReadEnds, WiringError
from warcore.fence import FenceReason
from warcore.gates import prefill_gates
from warcore.hooks import read_scope
from warcore.scope import EngineScope

HELD = {
    "base_votes",
    "votes",
    "resolve",
    "prefill_gates",
    "prefill_buckets",
    "snapshot",
    "owner",
    "loop",
}
"""The tables that this test holds, or one beside it."""


def test_every_table_is_held_by_a_test():
    assert TABLES.keys() - {"about"} == HELD
    assert {row["path"] for row in TABLES["resolve"]} == {"eager", "graph"}


class Base(AttentionBackend):
    """Overrides nothing that it may leave out."""

    def forward(self, q, k, v, layer, batch):
        return q


def answer(word):
    """What a table's word stands for, as a plugin's return value; raises for `raises`."""
    if word == "raises":
        raise RuntimeError("no vote today")
    return SharedReadEnds[word] if word in SharedReadEnds.__members__ else word


class Voting(RowMajor):
    def __init__(self, word):
        super().__init__(None)
        self.word = word

    def shared_read_ends(self, forward_mode):
        return answer(self.word)


class Reading(Wrong):
    """An algorithm that reads for itself, or not."""

    def __init__(self, word, snapshot=None):
        self.word, self.snapshot = word, snapshot

    def shared_read_ends(self, forward_mode):
        return answer(self.word)

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        return answer(self.snapshot)


def backend_of(word):
    return Base(None) if word == "base" else Voting(word)


@pytest.mark.parametrize("row", TABLES["base_votes"], ids=named)
def test_the_base_backend_votes(row):
    vote = Base(None).shared_read_ends(ForwardMode[row["mode"]])
    assert vote is SharedReadEnds[row["expect"]]


@pytest.mark.parametrize("row", TABLES["votes"], ids=named)
def test_the_scopes_answer_is_the_latest_vote(row):
    backend, mode = backend_of(row["backend"]), ForwardMode[row["mode"]]
    if row["expect"] == "wiring_error":
        with pytest.raises(WiringError) as raised:
            read_scope("mine", backend, Reading(row["algorithm"]))
        assert raised.value.what.startswith("backend:mine: shared_read_ends(EXTEND) ")
        shown = "no vote today" if row["backend"] == "raises" else repr(row["backend"])
        assert shown in raised.value.what
        assert raised.value.next
    else:
        scope = read_scope("mine", backend, Reading(row["algorithm"]))
        assert scope.ends[mode] is SharedReadEnds[row["expect"]]


@pytest.mark.parametrize("bad", list(ForwardMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("word", ["raises", "not_an_end", None])
def test_a_bad_vote_in_any_one_mode_is_refused_and_named(bad, word):
    class OnceBad(RowMajor):
        def shared_read_ends(self, forward_mode):
            return answer(word) if forward_mode is bad else SharedReadEnds.POST_REPLAY

    with pytest.raises(WiringError, match=rf"backend:mine: shared_read_ends\({bad.name}\)"):
        read_scope("mine", OnceBad(None))


def test_a_vote_that_raised_keeps_the_authors_exception_as_its_cause():
    with pytest.raises(WiringError) as raised:
        read_scope("mine", Voting("raises"))
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_vote_that_changes_from_call_to_call_is_refused():
    votes = iter([SharedReadEnds.PRE_REPLAY, SharedReadEnds.POST_REPLAY])

    class Fickle(RowMajor):
        def shared_read_ends(self, forward_mode):
            return next(votes)

    with pytest.raises(WiringError, match=r"PRE_REPLAY, then .*POST_REPLAY.* must be pure"):
        read_scope("mine", Fickle(None))


def test_an_integer_is_no_vote_although_the_enum_is_one():
    with pytest.raises(WiringError, match="returned 1, which is no SharedReadEnds"):
        read_scope("mine", Voting(1))


def test_a_bad_vote_of_the_algorithm_names_the_algorithm():
    with pytest.raises(WiringError, match=r"spec_algo:Reading: shared_read_ends\(EXTEND\)"):
        read_scope("mine", RowMajor(None), Reading("not_an_end"))


def test_the_scope_remembers_whose_vote_decided():
    scope = read_scope("mine", Voting("PRE_REPLAY"), Reading("UNKNOWN"))
    assert scope.latest[ForwardMode.DECODE] == "spec_algo:Reading"
    scope = read_scope("mine", Voting("POST_REPLAY"), Reading("IN_REPLAY"))
    assert scope.latest[ForwardMode.DECODE] == "backend:mine"


class Snapshotting(Voting):
    def __init__(self, word, snapshot):
        super().__init__(word)
        self.snapshot = snapshot

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        return answer(self.snapshot)


REASONS = {
    "PRE_REPLAY": FenceReason.FINE,
    "IN_REPLAY": FenceReason.NOT_PRE_REPLAY,
    "POST_REPLAY": FenceReason.NOT_PRE_REPLAY,
    "UNKNOWN": FenceReason.UNDECLARED,
    "snapshot_error": FenceReason.SNAPSHOT_ERROR,
}
"""What the third gate says of a batch whose reads end there."""


@pytest.mark.parametrize("row", TABLES["snapshot"], ids=named)
def test_a_batchs_read_end_is_the_latest_of_each_readers_snapshot_or_vote(row):
    of = {reader["kind"]: reader for reader in row["readers"]}
    backend = Snapshotting(of["backend"]["static"], of["backend"]["snapshot"])
    algorithm = None
    if "algorithm" in of:
        algorithm = Reading(of["algorithm"]["static"], of["algorithm"]["snapshot"])
    scope = read_scope("mine", backend, algorithm)
    batch = batch_of(ForwardMode.EXTEND)
    reason, detail = prefill_gates(batch, 1, scope, EngineScope(), enabled=True)
    assert reason is REASONS[row["expect"]]
    if reason is FenceReason.NOT_PRE_REPLAY:
        assert detail.endswith(row["expect"])
