"""What a backend is walked through beyond the grid: lengths, batches, roles, and captures."""

from __future__ import annotations

import pytest
from wrong_plugins.backends.right import Right, Windowed

from warcore import ForwardMode, PluginRecord
from warcore.contract import GraphKind
from warcore.testkit.stands.cell import Shape, cells
from warcore.testkit.stands.claims import (
    LENGTHS,
    LONG,
    MANY,
    claimed,
    claims,
    few_steps,
    of_engines,
    walked,
)
from warcore.testkit.stands.owing import compare
from warcore.testkit.stands.stand import Stand
from warcore.testkit.subject import Subject

LONGEST = Shape(head_dim=16, windows=(None,), max_context=LONG, buckets=(2,))
DRAFT = Shape(windows=(None,), role="draft")
UNBROKEN = GraphKind.UNBROKEN


def subject(cls):
    return Subject(PluginRecord.of_class("backend", cls), cls)


def test_no_step_of_a_claim_is_longer_than_its_context_or_larger_than_its_batch():
    mine = subject(Windowed)
    for shape, graph in claimed(mine, claims(mine)):
        for cell in few_steps(shape, graph):
            ends = [p + 2 * n for p, n in zip(cell.prefixes, cell.lens, strict=True)]
            assert max(ends) <= shape.max_context, cell
            assert len(ends) <= shape.rows, cell


@pytest.mark.parametrize("graph", GraphKind)
def test_the_first_step_of_a_walk_has_nothing_before_it(graph):
    for steps in (few_steps(Shape(), graph), cells(Shape(), graph, thorough=False)):
        first = next(steps)
        assert (first.mode, set(first.prefixes)) == (ForwardMode.EXTEND, {0})


def test_what_every_engine_has_is_captured_and_other_claims_are_not():
    mine = subject(Right)
    captured = {shape for shape, graph in claimed(mine, claims(mine)) if graph is UNBROKEN}
    assert captured == set(of_engines(mine))


def test_each_length_is_that_of_the_longest_request_of_a_decode():
    decodes = [c for c in few_steps(LONGEST, UNBROKEN) if c.mode is ForwardMode.DECODE]
    assert [max(cell.prefixes) for cell in decodes] == [*LENGTHS]


@pytest.mark.parametrize(("graph", "batch"), [(GraphKind.NONE, MANY[-1] + 1), (UNBROKEN, MANY[-1])])
def test_many_requests_are_a_captured_batch_or_one_beyond_all_captures(graph, batch):
    sizes = {len(c.lens) for c in few_steps(Shape(buckets=MANY), graph) if any(c.prefixes)}
    assert sizes == {batch}


def test_a_walk_computes_what_lies_before_its_cells_once():
    shape = Shape(windows=(None,))
    with Stand(Right, shape, GraphKind.NONE) as stand:
        steps = list(few_steps(shape, GraphKind.NONE))
        launches = []
        for cell in walked(stand, steps):
            launches.append(stand.launches)
            for batch in stand.steps(cell):
                compare(stand, batch, stand.run(batch)[0], str(cell))
        assert launches == [0, *range(3, 2 * len(steps) + 1, 2)]


def test_a_draft_goes_on_from_its_own_step_and_has_the_slots_of_what_comes():
    with Stand(Right, DRAFT, GraphKind.NONE) as stand:
        cell = next(c for c in few_steps(DRAFT, GraphKind.NONE) if c.mode is ForwardMode.DECODE)
        first, second = stand.steps(cell)
        assert stand.spec.role == "draft"
        assert second.rows is first.rows
        assert second.ahead.tolist() == first.ahead[:, 1:].tolist()
        assert first.out_slots.tolist() == first.ahead[:, 0].tolist()


def test_a_draft_verifies_nothing_and_its_decodes_are_captured():
    assert ForwardMode.TARGET_VERIFY not in {c.mode for c in few_steps(DRAFT, UNBROKEN)}
    with Stand(Right, DRAFT, UNBROKEN) as stand:
        captured = {bucket.mode for bucket in stand.runners["draft"].buckets}
        assert captured == {ForwardMode.DECODE, ForwardMode.DRAFT_EXTEND}


class ByLength(Right):
    """Tells three lengths apart."""

    def graph_key(self, batch):
        return sum(batch.max_seq_len > length for length in (16, 32))


def test_a_step_is_captured_for_each_key_up_to_the_last_length_that_has_it():
    with Stand(ByLength, Shape(), UNBROKEN) as stand:
        decodes = [b for b in stand.runners["target"].buckets if b.mode is ForwardMode.DECODE]
    assert {(b.key, b.max_seq_len) for b in decodes if b.rows == 2} == {(0, 16), (1, 32), (2, 64)}
