"""The kit gives a backend with `window_pool` a map, as a scheduler would have it."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Pooled, Windowed

from warcore.contract import ForwardMode, GraphKind
from warcore.testkit.stands.cell import Shape
from warcore.testkit.stands.stand import Stand

SHAPE = Shape(windows=(None, 7, 7))


def test_only_windows_and_a_backend_that_asks_have_a_map():
    given = [(Pooled, SHAPE), (Windowed, SHAPE), (Pooled, Shape())]
    found = []
    for cls, shape in given:
        with Stand(cls, shape, GraphKind.NONE) as stand:
            found.append(stand.tables.map is not None)
            assert ("full_to_swa" in stand.tables.named) is found[-1]
    assert found == [True, False, False]


def test_the_pools_differ_and_padding_leads_to_padding():
    with Stand(Pooled, SHAPE, GraphKind.NONE) as stand:
        tables = stand.tables
        page = SHAPE.page_size
        assert torch.equal(tables.map[:page], torch.arange(page))
        assert not torch.equal(tables.slots_in(1), tables.slots_in(0))
        assert torch.equal(tables.slots_in(1).sort().values[0], tables.slots[0])
        assert sorted(tables.map.tolist()) == list(range(len(tables.map)))


def test_behind_the_window_of_a_step_the_map_leads_to_the_padding_page():
    with Stand(Pooled, SHAPE, GraphKind.NONE) as stand:
        tables = stand.tables
        prefix, page = 4 * SHAPE.page_size + 7, SHAPE.page_size
        led = tables.map_for(stand.batch(ForwardMode.DECODE, [2], (prefix,), (1,)))
        behind = (prefix - 7 + 1) // page * page
        assert (led[tables.slots[2, :behind]] < page).all()
        assert torch.equal(led[tables.slots[2, behind:]], tables.slots_in(1)[2, behind:])
        assert torch.equal(led[tables.slots[1]], tables.slots_in(1)[1])
