"""Each wrong graph runner turns its check red; right ones stay green."""

from __future__ import annotations

import attrs
import pytest
from toys import Replaying

from warcore import ForwardMode, GraphKind, PluginRecord
from warcore.testkit.check import checks_of
from warcore.testkit.outcome import NotApplicable, Refuted
from warcore.testkit.subject import Subject

CHECKS = {c.name: c for c in checks_of("graph_runner") if c.kind == "graph_runner"}


def run(check, cls):
    CHECKS[f"graph_runner.{check}"].run(Subject(PluginRecord.of_class("graph_runner", cls), cls))


def refuted(check, cls):
    with pytest.raises(Refuted) as raised:
        run(check, cls)
    return raised.value.failure


class Breaking(Replaying):
    kind = GraphKind.BREAKABLE

    def capture(self, bucket, view):
        graph = self.ctx.graph()
        self.captured[bucket] = (
            graph,
            graph.capture(lambda: self.ctx.step(view, self.ctx.marker, graph.outside)),
        )


@pytest.mark.parametrize("cls", [Replaying, Breaking])
@pytest.mark.parametrize("check", [name.partition(".")[2] for name in CHECKS])
def test_right_runners_pass(check, cls):
    run(check, cls)


class Stale(Replaying):
    """Loads the live rows and leaves the padding as it was."""

    def load(self, batch, bucket):
        view = self._inputs.load(batch, bucket)
        if batch.padded_size < bucket.rows:
            rows = slice(batch.padded_size, None)
            view.rows[rows], view.out_slots[batch.padded_tokens :] = 1, 8
        return view


class Uniform(Replaying):
    """Takes it that every request has as many tokens as at capture."""

    def load(self, batch, bucket):
        view = super().load(batch, bucket)
        if batch.mode is ForwardMode.DRAFT_EXTEND:
            view.q_row.copy_(view.q_row.sort(descending=True).values)
        return view


class NeverReplays(Replaying):
    def bucket_for(self, batch):
        return None


class Forgets(Replaying):
    """Does not load at all."""

    def load(self, batch, bucket):
        if bucket not in self.captured:
            return super().load(batch, bucket)
        return attrs.evolve(self._inputs._views[bucket], size=batch.size)


@pytest.mark.parametrize("cls", [Uniform, Forgets])
def test_a_replay_of_other_inputs_is_found(cls):
    assert "differs from eager execution" in refuted("replays_equal_eager", cls).observed


def test_padding_that_points_at_somebody_elses_slot_is_found():
    assert (
        "into a slot that is not the padding slot" in refuted("replays_equal_eager", Stale).observed
    )


def test_a_runner_that_never_replays_is_found():
    assert "all ran eagerly" in refuted("replays_equal_eager", NeverReplays).observed


class Skipping(Replaying):
    """Replays nothing every other time."""

    turns = 0

    def replay(self, bucket):
        type(self).turns += 1
        graph, output = self.captured[bucket]
        if self.turns % 2:
            graph.replay()
        return output


def test_a_replay_that_is_left_out_is_found():
    assert refuted("replays_equal_eager", Skipping).cell


class OnlyPrefill(Replaying):
    modes = frozenset({ForwardMode.EXTEND})


def test_a_runner_of_other_modes_is_not_judged():
    with pytest.raises(NotApplicable):
        run("marker", OnlyPrefill)


class Markerless(Replaying):
    """Has none, and says so: as late as the end of the replay, and right."""

    def capture(self, bucket, view):
        graph = self.ctx.graph()
        self.captured[bucket] = graph, graph.capture(lambda: self.ctx.step(view, None))

    def marker(self, bucket):
        return None


@pytest.mark.parametrize("check", ["marker", "fences"])
def test_a_runner_without_a_marker_is_late_and_right(check):
    run(check, Markerless)
