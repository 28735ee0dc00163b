"""Which layers get a pool of their own, and how large it is."""

from __future__ import annotations

import pytest
from parts import configured, engine
from toys import Toy
from windowed import WINDOW, Mapped, MappedInside, MappedLate, Unmapped, Windowed

from warcore.choices import choose
from warcore.device.host import HostDevice
from warcore.memory import plan_memory

HYBRID = {"backend": None, "prefill_backend": MappedLate, "decode_backend": MappedInside}


def made(**config):
    """(choices, memory plan) of an engine of that config."""
    config = configured(**{"model": Windowed, **config})
    choices = choose(config, HostDevice("inline"))
    return choices, plan_memory(config, choices)


def test_only_layers_with_a_window_have_the_smaller_pool():
    with engine(model=Windowed, backend=Mapped, prefill_chunk=8) as running:
        pages, swa = (running._assembly.describe()[name] for name in ("kv_pages", "swa_pages"))
        assert swa < pages
        kv = running._assembly.wired.kv
        assert [len(layer["k"]) - 1 for layer in kv] == [swa, pages]


@pytest.mark.parametrize(
    ("model", "backend", "window"),
    [
        (Windowed, {"backend": Mapped}, WINDOW),
        (Windowed, {"backend": Unmapped}, None),
        (Toy, {"backend": Mapped}, None),
        (Windowed, HYBRID, WINDOW),
        (Windowed, {**HYBRID, "decode_backend": Unmapped}, None),
    ],
)
def test_there_is_a_window_pool_for_windows_and_a_backend_that_asks_for_it(model, backend, window):
    choices, plan = made(model=model, **backend)
    assert (choices.window, plan.swa_pages > 0) == (window, window is not None)


def test_the_plan_counts_both_pools_and_the_map():
    _, one = made(backend=Unmapped, kv_pages=60, prefill_chunk=8)
    _, two = made(backend=Mapped, kv_pages=60, prefill_chunk=8)
    layer = one.kv_bytes // 2 // 61
    assert two.swa_pages == 4 * (2 + 2) + 2
    assert two.kv_bytes == (61 + two.swa_pages + 1) * layer
    assert two.table_bytes == one.table_bytes + 61 * 4 * 4


def test_a_window_as_long_as_the_context_takes_no_more_than_one_pool():
    _, plan = made(backend=Mapped, kv_pages=9)
    assert plan.swa_pages == 9
