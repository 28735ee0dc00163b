"""Each wrong backend turns exactly its check red, by name and line; right ones none."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from wrong_plugins.backends.right import Composite, InGraph, InLayers, Right, Snapshot
from wrong_plugins.catalogue import entries

from warcore import ForwardMode, PluginRecord, SharedReadEnds
from warcore.contract import GraphKind
from warcore.errors import WarcoreError
from warcore.testkit.detectors.attributes import held
from warcore.testkit.detectors.guard import supported
from warcore.testkit.outcome import NotApplicable, Outcome, Refuted
from warcore.testkit.packages.definitions import said_line
from warcore.testkit.rules.backends import changed_in_claims
from warcore.testkit.runs.check import checks_of
from warcore.testkit.runs.verdict import judge
from warcore.testkit.stands.cell import Shape, cells
from warcore.testkit.stands.owing import compare
from warcore.testkit.stands.stand import TREE, Stand
from warcore.testkit.subject import Subject

CHECKS = {check.name: check for check in checks_of("backend") if check.kind == "backend"}
MINE = {
    "warcore.testkit.rules.backends",
    "warcore.testkit.rules.backend_claims",
    "warcore.testkit.rules.backend_hooks",
    "warcore.testkit.rules.backend_memory",
    "warcore.testkit.rules.backend_rows",
    "warcore.testkit.rules.backend_snapshots",
    "warcore.testkit.rules.backend_tables",
}
"""Engines and devices have tests of their own."""
HELD = [check for check in CHECKS.values() if check.run.__module__ in MINE]
ENTRIES = [each for each in entries() if each.name.startswith("backends/")]
TRITON = "triton"
WRONG = [each for each in ENTRIES if not each.is_right]
needs_guard = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def subject(cls, **more):
    return Subject(PluginRecord.of_class("backend", cls), cls, **more)


def plugin(entry):
    if TRITON in entry.name and find_spec(TRITON) is None:
        pytest.skip("triton is not installed")
    module = f"wrong_plugins.{entry.name.replace('/', '.')}"
    # Anew: some remember in their class what an earlier test has asked.
    sys.modules.pop(module, None)
    return import_module(module).Plugin


def wrong(name):
    (entry,) = [each for each in WRONG if each.name == f"backends/{name}"]
    return plugin(entry)


def verdict(check, cls):
    return judge(check.run, check.rule, subject(cls))


def red(cls):
    """The checks that a backend fails; those that would only repeat it are left out."""
    bad, failed = set(), set()
    for check in HELD:
        if bad.intersection((*check.needs, *check.after)):
            bad.add(check.name)
            continue
        found = verdict(check, cls)
        assert found.outcome is not Outcome.UNPROVEN, (check.name, found)
        if found.outcome is Outcome.FAILED:
            bad.add(check.name)
            failed.add(check.name)
    return failed


def refuted(check, cls, **more):
    with pytest.raises(Refuted) as raised:
        CHECKS[f"backend.{check}"].run(subject(cls, **more))
    return raised.value.failure


# ---- all of them ---------------------------------------------------------------------------------


@needs_guard
@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_a_wrong_backend_turns_its_check_red(entry):
    found = verdict(CHECKS[entry.breaks], plugin(entry))
    assert found.outcome is Outcome.FAILED, found
    assert set(entry.detectors) <= set(found.failure.seen_by)
    if "attribution" in found.failure.seen_by:
        assert "wrong_plugins/backends/" in found.failure.where


@needs_guard
@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_a_backend_turns_no_other_check_red(entry):
    assert red(plugin(entry)) == ({entry.breaks} if entry in WRONG else set())


@needs_guard
@pytest.mark.parametrize(
    ("check", "cls"),
    [(c, Snapshot) for c in HELD if "snapshot" in c.name]
    + [(CHECKS["backend.composite"], Composite)],
    ids=lambda value: str(value) if value in HELD else "",
)
def test_a_right_backend_with_a_hook_of_its_own_passes(check, cls):
    assert verdict(check, cls).outcome is Outcome.PASSED


def test_every_check_has_a_wrong_backend():
    assert {check.name for check in HELD} == {entry.breaks for entry in WRONG}


def test_every_check_says_rule_incident_and_remedy():
    for check in HELD:
        assert all(len(text) > 40 for text in (check.rule, check.incident, check.mend)), check


# ---- lies that hang on what it serves ------------------------------------------------------------


SERVED = {
    "bfloat16": lambda spec: spec.dtype is torch.bfloat16,
    "head128": lambda spec: spec.head_dim == 128,
    "8over1": lambda spec: spec.q_heads == 8 * spec.kv_heads,
    "page1": lambda spec: spec.page_size == 1,
    "page64": lambda spec: spec.page_size == 64,
}


def late_for(which):
    """A backend that reads too late for the specs that `which` fits, and for no others."""

    class Late(Right):
        def forward(self, q, k, v, layer, batch):
            if which(self.ctx.spec):
                self.gather(batch)
            return super().forward(q, k, v, layer, batch)

    return Late


@needs_guard
def test_a_lie_that_hangs_on_what_the_backend_serves_is_found_by_the_default_grid():
    found = verdict(CHECKS["backend.no_late_access"], late_for(lambda s: s.dtype is torch.bfloat16))
    assert found.outcome is Outcome.FAILED
    assert found.failure.cell.endswith("page4-bfloat16")
    assert found.failure.seen_by == ("guard", "attribution", "poison")


@needs_guard
def test_nor_does_a_call_that_fails_on_closed_memory_hide_it(tmp_path):
    class Saves(Right):
        def forward(self, q, k, v, layer, batch):
            if self.ctx.spec.dtype is torch.bfloat16:
                # The kernel reads the table, and says EFAULT to whoever asked.
                with (tmp_path / "table").open("wb", buffering=0) as file:
                    file.write(self.ctx.shared.req_to_token.numpy())
            return super().forward(q, k, v, layer, batch)

    assert verdict(CHECKS["backend.no_late_access"], Saves).outcome is Outcome.FAILED


@needs_guard
@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_a_lie_hangs_on_no_type_size_or_count_unseen(name):
    late = subject(late_for(SERVED[name]))
    assert verdict(CHECKS["backend.no_late_access"], late.cls).outcome is Outcome.FAILED
    assert next(changed_in_claims(late)).seen_by == ("poison",)


def test_what_a_backend_cannot_run_at_all_is_for_another_check_to_tell():
    class Raising(Right):
        def forward(self, q, k, v, layer, batch):
            if self.ctx.spec.dtype is torch.bfloat16:
                raise ValueError("never in bfloat16")
            return super().forward(q, k, v, layer, batch)

    assert list(changed_in_claims(subject(Raising))) == []


# ---- what a failure says -------------------------------------------------------------------------


@needs_guard
@pytest.mark.parametrize(
    ("name", "elements", "operation", "phase", "line"),
    [
        (
            "declares_early",
            "[1, 0:64]",
            "aten.index_select",
            "body, layer 0",
            "index_select(0, batch.rows)",
        ),
        ("lists_too_late", "[1, 0:2]", "Tensor.tolist", "body, layer 0", "# too late"),
        ("looks_without_use", "[1, 0:64]", "aten.index_select", "body, layer 2", "# too late"),
        ("gathers_in_graph", "[1, 0:64]", "aten.index_select", "in_graph", "batch.rows"),
    ],
)
def test_a_late_access_is_named_by_elements_operation_phase_layer_and_line(
    name, elements, operation, phase, line
):
    (entry,) = [each for each in WRONG if each.name == f"backends/{name}"]
    failure = refuted("no_late_access", plugin(entry))
    assert failure.declared.startswith("PRE_REPLAY for ")
    assert failure.observed.startswith(f"req_to_token{elements} was read later by ")
    assert f"{operation} in phase {phase}" in failure.observed
    assert line in failure.where
    assert failure.cell


@needs_guard
def test_what_only_the_guard_has_seen_is_told_by_its_first_element():
    failure = refuted("no_late_access", wrong("reads_bytes"))
    assert re.match(
        r"req_to_token was read later, near \[0, 0\], by \S+ in phase body, layer 0;",
        (failure.observed),
    )


@needs_guard
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("reads_bytes", "# too late"),
        ("aliases_with_numpy", "# too late"),
        ("hides_a_pointer", "self.address"),
        ("looks_up_in_a_pool", "# too late"),
        ("dumps_the_table", "# too late"),
        ("looks_when_a_batch_goes", "# too late"),
    ],
)
def test_what_no_operation_explains_has_its_line_on_any_thread(name, line):
    failure = refuted("no_late_access", wrong(name), cells="decode-none-*float32")
    assert line in failure.where
    assert "attribution" not in failure.seen_by


@needs_guard
def test_a_thread_that_runs_no_line_of_the_plugin_has_the_line_that_started_it():
    failure = refuted("no_late_access", wrong("reads_on_a_thread"), cells="decode-none-*float32")
    assert "on a thread that is started at" in failure.observed


@needs_guard
def test_a_system_call_that_is_handed_closed_memory_is_a_late_access():
    failure = refuted("no_late_access", wrong("dumps_the_table"), cells="decode-none-*float32")
    assert failure.observed.startswith("a system call was handed memory of req_to_token")
    assert failure.seen_by == ("guard",)


@needs_guard
def test_a_touch_that_no_repeat_shows_is_said_to_be_one():
    class Once(Right):
        looked = False

        def forward(self, q, k, v, layer, batch):
            if not self.looked and batch.mode is ForwardMode.DECODE:
                type(self).looked = True
                self.gather(batch)
            return super().forward(q, k, v, layer, batch)

    failure = refuted("no_late_access", Once, cells="decode-none-*float32")
    assert failure.observed.endswith("it hangs on a count or on time")


@needs_guard
def test_each_line_that_reads_too_late_is_told_with_its_cells():
    (entry,) = [each for each in WRONG if each.name == "backends/looks_in_two_places"]
    failure = refuted("no_late_access", plugin(entry), cells="*-page4-*")
    (other,) = failure.elsewhere
    assert failure.where.endswith("# too late in a prefill")
    assert other.where.endswith("# too late in a decode step")
    for line, mode in ((failure, "extend"), (other, "decode")):
        assert {cell.split("-")[0] for cell in line.cells} == {mode}
        assert {cell.split("-")[1] for cell in line.cells} == {"none", "unbroken", "breakable"}
    assert failure.more == len(failure.cells) - 1


@needs_guard
def test_a_step_that_reads_too_late_at_two_lines_is_told_of_both():
    (entry,) = [each for each in WRONG if each.name == "backends/translates_in_its_layers"]
    failure = refuted("no_late_access", plugin(entry), cells="decode-none-1+1-*")
    (other,) = failure.elsewhere
    assert failure.where != other.where
    assert failure.cells == other.cells


@needs_guard
def test_every_mode_that_poison_refutes_is_told():
    (entry,) = [each for each in WRONG if each.name == "backends/reads_through_the_kernel"]
    failure = refuted("overwritten", plugin(entry), cells="*-none-*-page4-*")
    modes = {cell.split("-")[0] for cell in failure.cells}
    assert modes == {"extend", "decode", "target_verify", "draft_extend"}


@pytest.mark.parametrize(
    ("name", "check", "line"),
    [
        ("asks_for_a_length", "captures", "# a host read"),
        ("selects_what_is_there", "captures", "# a shape that depends on data"),
        ("tries_it_out", "why_not", "# what it should not do"),
        ("refuses_when_built", "builds", "# too late"),
        ("rebinds_its_metadata", "static_addresses", "slots = self.slots(batch)"),
        ("speaks_for_one_child", "composite", "def shared_read_ends"),
        ("answers_yes", "snapshot_answers", "def prepare_prefill_shared_read_snapshot"),
    ],
)
def test_a_failure_points_at_the_line_to_mend(name, check, line):
    (entry,) = [each for each in WRONG if each.name == f"backends/{name}"]
    assert line in refuted(check, plugin(entry)).where


def test_an_unknown_argument_is_told_with_those_that_there_are():
    (entry,) = [each for each in WRONG if each.name == "backends/wants_the_batch"]
    assert "shared_read_ends may take forward_mode" in refuted("votes", plugin(entry)).observed


class Short(Right):
    def forward(self, q, k, v, layer, batch):
        return super().forward(q, k, v, layer, batch)[:, :1]


def test_an_output_of_another_shape_is_the_backends_fault():
    failure = refuted("parity", Short)
    assert "as wide as the queries" in failure.declared


class Nowhere(Right):
    @classmethod
    def why_not(cls, spec):
        return ["anything"]


def test_a_backend_that_serves_nothing_here_is_not_judged():
    with pytest.raises(NotApplicable, match="anything"):
        CHECKS["backend.parity"].run(subject(Nowhere))


# ---- what the checks are made of -----------------------------------------------------------------


def test_children_are_found_in_containers_and_in_objects_of_the_same_package():
    class Box:
        __slots__ = ("child",)

    Box.__module__ = __name__
    owner = Box.__new__(type("Owner", (), {"__module__": __name__}))
    inner = Box()
    inner.child = 3
    owner.box, owner.many, owner.named = inner, [1, 2], {"a": 4}
    found = dict(held(owner))
    assert found["box.child"] == 3
    assert (found["many[1]"], found["named['a']"]) == (2, 4)


def test_the_trees_of_the_kit_are_no_chains():
    chain = tuple(tuple(at <= row for at in range(len(TREE))) for row in range(len(TREE)))
    assert chain != TREE


def test_pages_of_any_size_are_served():
    with Stand(Right, Shape(page_size=12), GraphKind.NONE) as stand:
        assert stand.tables.table.shape[1] == 72
        batch = stand.batch(ForwardMode.EXTEND, [1, 2], (0, 0), (13, 25))
        compare(stand, batch, stand.run(batch)[0], "")


def test_the_line_of_a_refusal_is_taken_out_of_its_message():
    text = "it cannot be captured\n/some/where.py:3: x.item()\nFor its author: do not"
    assert said_line(text) == ("it cannot be captured", "/some/where.py:3: x.item()")


def test_steps_without_an_end_are_not_held_against_a_backend():
    class Silent(InLayers):
        def shared_read_ends(self, forward_mode):
            return SharedReadEnds.UNKNOWN

    with pytest.raises(NotApplicable, match="every step is coarse"):
        CHECKS["backend.overwritten"].run(subject(Silent))


def test_one_cell_can_be_asked_for():
    cell = next(cells(Shape(windows=(None, None, None)), GraphKind.NONE, thorough=False))
    asked = subject(Right, cells=str(cell))
    CHECKS["backend.parity"].run(asked)
    assert [name for name, wanted in asked.offered.items() if wanted] == [str(cell)]


# ---- ends that could be earlier ------------------------------------------------------------------


def loose(cls):
    """What `could_be_earlier` says of such a backend if it declares the end of every step."""

    class Loose(cls):
        def shared_read_ends(self, forward_mode):
            return SharedReadEnds.POST_REPLAY

    failure = refuted("could_be_earlier", Loose)
    return {each.declared: each.observed for each in (failure, *failure.elsewhere)}


@needs_guard
def test_every_end_that_could_be_earlier_is_told_with_the_earliest_and_what_the_later_one_costs():
    later = "the tables of the next step wait for the in-graph metadata and the layers in vain"
    assert loose(Right) == {
        "POST_REPLAY for extend steps": "nothing is read later than PRE_REPLAY in any extend step: "
        "the tables of the next step wait for the whole prefill in vain",
        **{
            f"POST_REPLAY for {mode} steps": "nothing is read later than PRE_REPLAY in any "
            f"{mode} step: {later}"
            for mode in ("decode", "target_verify", "draft_extend")
        },
    }


@needs_guard
def test_a_prefill_that_reads_in_its_in_graph_metadata_gains_nothing_from_an_earlier_end():
    found = loose(InGraph)
    assert list(found) == [
        f"POST_REPLAY for {mode} steps" for mode in ("decode", "target_verify", "draft_extend")
    ]
    assert all(
        "than IN_REPLAY" in what and "for the layers in vain" in what for what in found.values()
    )


# ---- steps that can be captured ------------------------------------------------------------------


def test_a_step_that_cannot_run_is_told_with_the_cell_that_repeats_it():
    class Picky(Right):
        def init_forward_metadata_out_graph(self, batch):
            if len(batch.rows) == 3:
                raise WarcoreError("not three")
            super().init_forward_metadata_out_graph(batch)

    assert refuted("captures", Picky).cell.startswith("extend-none-")
