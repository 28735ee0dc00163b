"""Each wrong backend turns its check red, by name and line; right ones stay green."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from toys import Inside, Late, RowMajor

from warcore import ForwardMode, PluginRecord, SharedReadEnds
from warcore.testkit.check import checks_of
from warcore.testkit.guard import supported
from warcore.testkit.outcome import NotApplicable, Refuted
from warcore.testkit.subject import Subject

CHECKS = {check.name: check for check in checks_of("backend") if check.kind == "backend"}
needs_guard = pytest.mark.skipif(supported() is not None, reason=str(supported()))


class Honest(RowMajor):
    """Serves the kit's plain shapes."""

    @classmethod
    def why_not(cls, spec):
        no = {
            "windows": spec.windows != {None},
            "trees": spec.tree,
            "grouped heads": spec.q_heads != spec.kv_heads,
        }
        return [reason for reason, applies in no.items() if applies]

    def forward(self, q, k, v, layer, batch):
        group = layer.q_heads // layer.kv_heads
        cache = self.ctx.kv[layer.index]
        keys, values = (cache[name].flatten(0, 1) for name in "kv")
        keys[batch.out_slots], values[batch.out_slots] = k, v
        slots = self.slots(batch)[batch.q_row]
        at = torch.arange(slots.shape[1])
        seen = at <= batch.positions[:, None]
        slots = torch.where(seen, slots, batch.out_slots[:, None])
        k, v = (memory[slots].repeat_interleave(group, 2) for memory in (keys, values))
        scores = torch.einsum("thd,tlhd->thl", q, k) * layer.scale
        scores.masked_fill_(~seen[:, None], -torch.inf)
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), v)


class Plain(Honest):
    """The same, over grouped heads too."""

    @classmethod
    def why_not(cls, spec):
        return ["windows or trees"] if spec.tree or spec.windows != {None} else []


class InGraph(Plain, Inside):
    """Gathers in the graph, and says so."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.IN_REPLAY


class InLayers(Plain):
    """Gathers in every layer, and says so."""

    shared_read_ends = Late.shared_read_ends

    def init_forward_metadata_out_graph(self, batch):
        pass

    def forward(self, q, k, v, layer, batch):
        self.gather(batch)
        return super().forward(q, k, v, layer, batch)


def subject(cls):
    return Subject(PluginRecord.of_class("backend", cls), cls)


def refuted(check, cls):
    with pytest.raises(Refuted) as raised:
        CHECKS[check].run(subject(cls))
    return raised.value.failure


@needs_guard
@pytest.mark.parametrize("cls", [Plain, InGraph, InLayers], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("check", CHECKS)
def test_right_backends_pass(check, cls):
    with suppress(NotApplicable):
        CHECKS[check].run(subject(cls))


# ---- late accesses -------------------------------------------------------------------------------


class DeclaresEarly(InLayers):
    """Reads in its layers, and declares that it does not."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY


class GathersInGraph(InGraph):
    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY


class DeadRead(Plain):
    """Looks without using what it sees: no output will ever show it."""

    def forward(self, q, k, v, layer, batch):
        if layer.index == 2 and batch.mode is ForwardMode.DECODE:
            self.ctx.shared.req_to_token.index_select(0, batch.rows)  # too late
        return super().forward(q, k, v, layer, batch)


class LateToHost(Plain):
    """Reads without any ATen call."""

    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None:
            self.ctx.shared.req_to_token[1, :2].tolist()  # too late
        return super().forward(q, k, v, layer, batch)


class LazyWhenLong(Plain):
    """Only beyond a size that small tests never reach."""

    def forward(self, q, k, v, layer, batch):
        if batch.mode is ForwardMode.EXTEND and batch.max_seq_len > 40:
            self.gather(batch)
        return super().forward(q, k, v, layer, batch)


class Writes(Plain):
    """Writes the scheduler's table."""

    def forward(self, q, k, v, layer, batch):
        self.ctx.shared.req_to_token[0, 0] = 0  # not its to write
        return super().forward(q, k, v, layer, batch)


@needs_guard
@pytest.mark.parametrize(
    ("cls", "operation", "line"),
    [
        (DeclaresEarly, "aten.index_select", "index_select"),
        (GathersInGraph, "aten.index_select", "index_select"),
        (DeadRead, "aten.index_select", "# too late"),
        (LateToHost, "Tensor.tolist", "# too late"),
        (LazyWhenLong, "aten.index_select", "index_select"),
        (Writes, "aten.", "# not its to write"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_late_access_is_found_with_its_operation_and_line(cls, operation, line):
    failure = refuted("backend.no_late_access", cls)
    assert failure.declared.startswith("PRE_REPLAY for ")
    assert failure.observed.startswith("req_to_token was ")
    assert operation in failure.observed
    assert line in failure.where
    assert failure.seen_by == ("guard", "attribution")


class WritesEarly(Plain):
    """Tidies the table up before it copies it."""

    def init_forward_metadata_out_graph(self, batch):
        self.ctx.shared.req_to_token[0].zero_()
        super().init_forward_metadata_out_graph(batch)


@needs_guard
def test_a_write_before_the_declared_end_is_found_too():
    assert "was written" in refuted("backend.never_writes", WritesEarly).observed


class Cautious(Plain):
    """Reads before the replay, and says nothing so early."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.POST_REPLAY


@needs_guard
def test_an_end_that_could_be_earlier_is_told_and_by_how_much():
    failure = refuted("backend.could_be_earlier", Cautious)
    assert failure.declared.startswith("POST_REPLAY for ")
    assert "nothing is read later than IN_REPLAY" in failure.observed


class Masking(Plain):
    """Multiplies what nobody owns by 0."""

    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        values = self.ctx.kv[layer.index]["v"].flatten(0, 1)
        return out + 0 * values[-1].repeat_interleave(layer.q_heads // layer.kv_heads, 0)


def test_what_nobody_owns_must_not_show():
    assert "is NaN" in refuted("backend.parity", Masking).observed


class Neighbours(Plain):
    """Takes a little of every slot, whoever's it is."""

    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        values = self.ctx.kv[layer.index]["v"].flatten(0, 1)
        every = values.nan_to_num(3).mean(0)
        return out + 1e-3 * every.repeat_interleave(layer.q_heads // layer.kv_heads, 0)


def test_another_requests_memory_must_not_show():
    assert "slots of nobody" in refuted("backend.padding", Neighbours).observed


class Alias(Plain):
    """Keeps a view where it should keep a copy."""

    def slots(self, batch):
        return self.view[batch.rows].long()

    def gather(self, batch):
        self.view = self.ctx.shared.req_to_token


@needs_guard
@pytest.mark.parametrize("check", ["backend.no_late_access", "backend.overwritten"])
def test_an_alias_is_no_copy(check):
    assert refuted(check, Alias).declared.startswith("PRE_REPLAY for ")


# ---- numbers, votes, captures --------------------------------------------------------------------


class OffByOne(Plain):
    """Forgets the token itself."""

    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        return out * (1 + 1e-3)


def test_wrong_numbers_are_found():
    failure = refuted("backend.parity", OffByOne)
    assert failure.observed.startswith("an output is off by 0.00")
    assert failure.cell


class Undecided(Plain):
    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY if forward_mode is ForwardMode.DECODE else None


def test_a_mode_without_a_vote_is_found():
    observed = refuted("backend.votes", Undecided).observed
    assert "shared_read_ends(EXTEND) returned None" in observed


class Syncs(Plain):
    def init_forward_metadata_in_graph(self, batch):
        self.longest = batch.seq_lens.max().item()


def test_a_host_read_in_the_graph_is_found_with_its_line():
    assert "batch.seq_lens.max().item()" in refuted("backend.captures", Syncs).observed


class Nowhere(Plain):
    @classmethod
    def why_not(cls, spec):
        return ["anything"]


def test_a_backend_that_serves_nothing_here_is_not_judged():
    with pytest.raises(NotApplicable, match="anything"):
        CHECKS["backend.parity"].run(subject(Nowhere))


def test_every_check_says_rule_incident_and_remedy():
    for check in CHECKS.values():
        assert all(len(text) > 40 for text in (check.rule, check.incident, check.mend)), check
