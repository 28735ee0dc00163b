"""Backends in whole engines: races, schedules and events, each found with what a person needs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryFile

import attrs
import pytest
import torch
from wrong_plugins.backends_engine.right import device_of
from wrong_plugins.catalogue import entries, under_check

from warcore import SharedReadEnds
from warcore.records import PluginRecord
from warcore.testkit.detectors.guard import supported
from warcore.testkit.engines import engineraces
from warcore.testkit.outcome import NotApplicable, Refuted, Unproven
from warcore.testkit.rules import backend_engine
from warcore.testkit.runs.check import checks_of
from warcore.testkit.stands.paged import Paged
from warcore.testkit.subject import Subject

CHECKS = {
    check.name: check
    for check in checks_of("backend")
    if check.run.__module__ == backend_engine.__name__
}
ENTRIES = [each for each in entries() if each.path.parent.name == "backends_engine"]
WRONG = [each for each in ENTRIES if not each.is_right]
RIGHT = [each for each in ENTRIES if each.is_right]
needs_guard = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def refuted(check, subject):
    with pytest.raises(Refuted) as raised:
        CHECKS[check].run(subject)
    return raised.value.failure


@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_a_wrong_backend_is_found_by_the_detector_that_it_names(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        failure = refuted(entry.breaks, subject)
        assert failure.seen_by == entry.detectors
        again = refuted(entry.breaks, attrs.evolve(subject, cells=failure.cell))
    assert again.cell == failure.cell


@pytest.mark.slow
@pytest.mark.parametrize("entry", RIGHT, ids=str)
@pytest.mark.parametrize("check", CHECKS)
def test_a_right_backend_raises_no_alarm(entry, check, tmp_path):
    with under_check(entry, tmp_path) as subject:
        CHECKS[check].run(subject)


def test_a_thorough_run_draws_more_and_breaks_the_graphs(tmp_path):
    (right,) = (entry for entry in RIGHT if entry.path.stem == "right")
    with under_check(right, tmp_path) as subject:
        thorough = attrs.evolve(subject, thorough=True, cells="seed99-breakable")
        CHECKS["backend.schedules"].run(thorough)
        assert len(thorough.offered) == 300


# ---- what a failure says -------------------------------------------------------------------------


def wrong(name):
    (entry,) = (each for each in WRONG if each.path.stem == name)
    return entry


def failure_of(name, tmp_path):
    entry = wrong(name)
    with under_check(entry, tmp_path) as subject:
        return refuted(entry.breaks, subject)


def test_a_race_names_the_buffer_and_both_places(tmp_path):
    failure = failure_of("refills_pinned_memory", tmp_path)
    assert failure.observed.startswith("WAR on host memory copied at ")
    for line in ("self.pinned.fill_(size)", "copy_(self.pinned, non_blocking=True)"):
        assert line in failure.observed
    assert failure.where.endswith("copy_(self.pinned, non_blocking=True)")


def test_a_race_on_static_memory_names_it(tmp_path):
    failure = failure_of("gathers_on_the_schedule_stream", tmp_path)
    assert "on static 'paged.slots'" in failure.observed
    assert failure.where.endswith("schedule.submit(self._gather, batch)")


def test_a_schedule_is_named_by_its_seed_and_drawn_again_from_it(tmp_path):
    entry = wrong("shares_numbers_between_streams")
    with under_check(entry, tmp_path) as subject:
        seeds = [
            refuted(entry.breaks, attrs.evolve(subject, cells=f"seed{seed}-none"))
            for seed in (3, 3, 4)
        ]
    assert [failure.cell for failure in seeds] == ["seed3-none", "seed3-none", "seed4-none"]
    assert seeds[0].observed == seeds[1].observed


@pytest.mark.parametrize("name", ["records_an_event_of_its_own", "records_on_the_schedule_stream"])
def test_an_event_of_its_own_is_shown_by_the_line_that_records_it(name, tmp_path):
    failure = failure_of(name, tmp_path)
    assert f"{name}.py:" in failure.where
    assert ": self.event.record(" in failure.where


# ---- where there is no verdict -------------------------------------------------------------------


class Right(Paged):
    """Serves the kit's plain shapes."""

    @classmethod
    def why_not(cls, spec):
        return ["windows or trees"] if spec.tree or spec.windows != {None} else []


def subject_of(cls):
    return Subject(PluginRecord.of_class("backend", cls), cls)


class TakesTheAddress(Right):
    """As a kernel does that is called with a pointer."""

    def init_forward_metadata_out_graph(self, batch):
        self.ctx.shared.req_to_token.data_ptr()
        super().init_forward_metadata_out_graph(batch)


@needs_guard
def test_the_guard_sees_what_a_pointer_reads():
    CHECKS["backend.races"].run(attrs.evolve(subject_of(TakesTheAddress), cells="none"))


def test_without_a_guard_what_a_pointer_reads_is_out_of_sight_and_no_verdict_is_given(monkeypatch):
    monkeypatch.setattr(engineraces, "supported", lambda: "no pages")
    with pytest.raises(Unproven, match="takes the address of req_to_token"):
        CHECKS["backend.races"].run(attrs.evolve(subject_of(TakesTheAddress), cells="none"))


class CountsThroughAnAddress(Right):
    """On a stream of its own that nothing orders: a read and then a write of the same page."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.stream = device_of(ctx).stream("plan")

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        self.stream.submit(self.count)

    def count(self):
        counts = self.ctx.static("counts", (4,), torch.int64).numpy()
        counts += 1

    def forward(self, q, k, v, layer, batch):
        self.ctx.static("counts", (4,), torch.int64).sum()
        return super().forward(q, k, v, layer, batch)


@needs_guard
def test_a_write_through_an_address_is_seen_behind_a_read():
    failure = refuted(
        "backend.races", attrs.evolve(subject_of(CountsThroughAnAddress), cells="none")
    )
    assert "static 'counts'" in failure.observed
    assert "write" in failure.observed
    assert failure.where.endswith(".numpy()")


class DumpsInTime(Right):
    """Lets the system read the table before the declared end."""

    def init_forward_metadata_out_graph(self, batch):
        with TemporaryFile() as file:
            os.write(file.fileno(), memoryview(self.ctx.shared.req_to_token.numpy()).cast("B"))
        super().init_forward_metadata_out_graph(batch)


def test_a_system_call_that_fails_on_guarded_memory_is_no_failure_of_the_step():
    with pytest.raises(Unproven, match=r"Tensor.numpy takes the address of req_to_token"):
        CHECKS["backend.races"].run(attrs.evolve(subject_of(DumpsInTime), cells="none"))


class OnAThread(Right):
    """Lets threads of its own read the table."""

    def init_forward_metadata_out_graph(self, batch):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._gather, batch)


def test_what_a_thread_of_its_own_touches_is_out_of_sight_and_named_by_its_line():
    subject = attrs.evolve(subject_of(OnAThread), cells="none")
    with pytest.raises(Unproven, match=r"test_rules_backend_engine.py:\d+: pool.submit"):
        CHECKS["backend.races"].run(subject)


class MasksOnAThread(Right):
    """Lets a pool of threads prepare what it needs of its own, and copies nothing but that."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.pool = ThreadPoolExecutor(1)

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        positions = batch.positions.clone()
        self.mask = self.pool.submit(lambda: positions > self.least(positions))

    def least(self, positions):
        return 2


class ListsOnAThread(MasksOnAThread):
    def least(self, positions):
        return len(self.ctx.shared.req_to_token[0, :2].tolist())


class RemembersAnArray(MasksOnAThread):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.array = ctx.shared.req_to_token.numpy()


@needs_guard
def test_a_thread_that_is_handed_nothing_shared_is_no_matter_of_order():
    CHECKS["backend.races"].run(attrs.evolve(subject_of(MasksOnAThread), cells="none"))


@needs_guard
@pytest.mark.parametrize("cls", [ListsOnAThread, RemembersAnArray])
def test_a_thread_that_could_touch_the_table_leaves_the_order_open(cls):
    with pytest.raises(Unproven, match=r"self.pool.submit.* starts may do it at any time"):
        CHECKS["backend.races"].run(attrs.evolve(subject_of(cls), cells="none"))


class Undeclared(Right):
    vote = SharedReadEnds.UNKNOWN


def test_a_backend_that_declares_no_end_has_no_event_to_look_at():
    with pytest.raises(NotApplicable, match="every step is coarse"):
        CHECKS["backend.event_position"].run(subject_of(Undeclared))


class Nowhere(Right):
    @classmethod
    def why_not(cls, spec):
        return ["anything"]


@pytest.mark.parametrize("check", CHECKS)
def test_a_backend_that_serves_nothing_here_is_not_judged(check):
    with pytest.raises(NotApplicable, match="anything"):
        CHECKS[check].run(subject_of(Nowhere))


class Fails(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.max_seq_len > 20:
            raise RuntimeError("too long")
        return super().forward(q, k, v, layer, batch)


@pytest.mark.parametrize("check", ["backend.races", "backend.schedules"])
def test_a_step_that_fails_is_no_answer(check):
    assert "too long" in refuted(check, subject_of(Fails)).observed


class Inside(Right):
    vote = SharedReadEnds.IN_REPLAY


class Behind(Right):
    vote = SharedReadEnds.POST_REPLAY


@pytest.mark.parametrize("cls", [Right, Inside, Behind])
def test_the_event_of_a_right_backend_is_where_it_says(cls):
    CHECKS["backend.event_position"].run(subject_of(cls))
