"""Memory is counted before any of it is allocated; static buffers keep their place."""

from __future__ import annotations

import pytest
import torch
from drafters import Model
from parts import configured, engine
from toys import RowMajor, Toy

import warcore.memory
from warcore import Engine, PluginError, SamplingParams
from warcore.choices import choose
from warcore.device.host import HostDevice
from warcore.errors import ConfigError
from warcore.memory import free_bytes, plan_memory

PAGE = 2 * 2 * (4 * 2 * 8) * 8
"""Bytes of a page of the toy: layers, k and v, [page size 4, heads, size of a head], float64."""
WEIGHTS = 10_000 * 8


def plan(**config):
    config = configured(**config)
    return plan_memory(config, choose(config, HostDevice("inline")))


@pytest.fixture
def free(monkeypatch):
    """free(count): how many bytes the machine has left."""
    return lambda count: monkeypatch.setattr(warcore.memory, "free_bytes", lambda device: count)


def test_by_default_there_are_pages_for_every_request_at_its_longest(free):
    free(2**30)
    assert plan(max_running_requests=3).pages == 3 * 64 // 4


def test_the_plan_counts_weights_pages_and_tables(free):
    free(2**30)
    made = plan(kv_pages=10)
    assert (made.pages, made.weight_bytes, made.kv_bytes) == (10, WEIGHTS, 11 * PAGE)
    assert made.table_bytes >= 5 * 64 * 4
    assert made.total == made.weight_bytes + made.kv_bytes + made.table_bytes


def test_fewer_pages_if_memory_is_short_but_always_enough_for_one_request(free):
    free(WEIGHTS + 60 * PAGE)
    assert plan(max_running_requests=4).pages == 24  # 40 % of what the weights leave
    free(WEIGHTS + 30 * PAGE)
    assert plan(max_running_requests=4).pages == 16


def test_if_nobody_can_tell_what_is_free_nothing_is_refused(free):
    free(None)
    assert plan(kv_pages=10**9).pages == 10**9


def test_a_backend_that_caches_nothing_has_pages_without_bytes(free):
    class Nothing(RowMajor):
        @classmethod
        def kv_cache(cls, spec):
            return {}

    free(2**30)
    assert plan(backend=Nothing).kv_bytes == 0


def test_what_does_not_fit_is_refused_with_the_numbers_before_anything_is_allocated(free):
    class Untouched(Toy):
        @classmethod
        def load(cls, ref, ctx):
            raise AssertionError("loaded although it cannot fit")

    free(2**30)
    with pytest.raises(ConfigError) as raised:
        Engine(configured(model=Untouched, kv_pages=10**7))
    assert "toy needs 0.00 GiB for weights, 19.07 GiB for 10000000 KV pages" in raised.value.what
    assert "1.00 GiB are free on cpu" in raised.value.what
    pages = int(raised.value.next.split()[1].rstrip(","))
    assert plan(kv_pages=pages).pages == pages  # what it proposes fits


def test_the_cache_of_a_draft_model_is_refused_if_it_does_not_fit_beside_the_targets(free):
    pages = 100
    free(WEIGHTS + (pages + 1) * PAGE * 3 // 2)  # the toy drafts for itself
    with pytest.raises(ConfigError) as raised:
        engine(spec_algo=Model, spec_tokens=3, kv_pages=pages)
    assert "the draft model toy needs" in raised.value.what
    pages = int(raised.value.next.split()[1].rstrip(","))
    assert pages > 50
    engine(spec_algo=Model, spec_tokens=3, kv_pages=pages).close()  # what it proposes fits


def test_weights_that_do_not_fit_say_what_helps(free):
    free(WEIGHTS // 2)
    with pytest.raises(ConfigError) as raised:
        plan(max_running_requests=1)
    assert "smaller model" in raised.value.next or "smaller --max" in raised.value.next


def test_the_machine_can_tell_what_is_free():
    assert free_bytes(torch.device("cpu")) is None or free_bytes(torch.device("cpu")) > 2**20


# ---- static buffers ------------------------------------------------------------------------------


def built(init, **config):
    """An engine whose backend runs `init(self, ctx)` when it is made."""

    class Building(RowMajor):
        def __init__(self, ctx):
            super().__init__(ctx)
            init(self, ctx)

    return engine(backend=Building, **config)


def test_a_static_buffer_is_zeroed_and_keeps_its_address():
    def init(self, ctx):
        first = ctx.static("slots", (4, 8), torch.int32)
        assert not first.any()
        first.fill_(7)
        again = ctx.static("slots", (4, 8), torch.int32)
        assert again.data_ptr() == first.data_ptr()
        assert (again == 7).all()

    built(init).close()


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 9), torch.int32), ((4, 8), torch.int64), ((32,), torch.int32)]
)
def test_a_static_buffer_asked_for_again_in_another_shape_or_type_is_refused(shape, dtype):
    def init(self, ctx):
        ctx.static("slots", (4, 8), torch.int32)
        ctx.static("slots", shape, dtype)

    with pytest.raises(PluginError, match=r"static 'slots' is \(4, 8\) torch.int32 and was asked"):
        built(init)


@pytest.mark.parametrize("host", ["inline", "threads"])
def test_host_values_reach_a_static_buffer_through_the_ring(host):
    seen = []

    def init(self, ctx):
        self.table = ctx.static("table", (2, 4), torch.int32)

    class Staging(RowMajor):
        def __init__(self, ctx):
            super().__init__(ctx)
            self.table = ctx.static("table", (2, 4), torch.int32)

        def init_forward_metadata_out_graph(self, batch):
            super().init_forward_metadata_out_graph(batch)
            front = self.ctx.stage("table", [batch.max_seq_len, 5])
            assert front.data_ptr() == self.table.data_ptr()
            seen.append(self.table.flatten().tolist())

    with engine(host=host, backend=Staging) as running:
        running.generate("abc", SamplingParams(max_new_tokens=3))
    assert seen == [[length, 5, 0, 0, 0, 0, 0, 0] for length in (3, 4, 5)]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tabel", [1], "no static buffer is called 'tabel'"),
        ("table", [1, 2, 3], "static 'table' holds 2 values and was given 3"),
    ],
)
def test_staging_into_what_is_not_there_or_too_small_is_refused(name, values, message):
    def init(self, ctx):
        ctx.static("table", (2,), torch.int32)
        ctx.stage(name, values)

    with pytest.raises(PluginError, match=message):
        built(init)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "1000", "memory.current": "400"}, 600),
        ({"memory.max": "max", "memory.current": "400"}, None),
        ({"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "100"}, 800),
        ({}, None),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert warcore.memory._group_bytes(tmp_path) == expected
