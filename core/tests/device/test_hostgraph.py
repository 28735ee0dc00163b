"""Host graphs: bit-identical to eager, in the same memory, and honest about what cannot be."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from warcore.device.host import HostDevice
from warcore.errors import DeviceError


@pytest.fixture(params=["inline", "threads", "seeded"])
def device(request):
    with HostDevice(request.param) as device:
        yield device


@pytest.fixture
def inline():
    with HostDevice("inline") as device:
        yield device


def capture(device, fn):
    stream, graph = device.stream("forward"), device.graph()
    return graph, stream.submit(graph.capture, fn).result(), lambda: stream.submit(graph.replay)


def same_bits(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def attention(x, weight, mask):
    q, k, v = functional.linear(x, weight).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.transpose(1, 2).reshape(2, 5, 32)


def norm_and_gate(x, weight, mask):
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    gate, up = (x @ weight.t()).chunk(2, -1)
    return functional.silu(gate) * up


def in_place_and_gather(x, weight, mask):
    y = torch.zeros(2, 5)
    y[:, 1] = x.sum((1, 2))
    y.add_(torch.arange(5)).mul_(2)
    best, where = y.max(-1)
    y.index_put_((torch.arange(2), where), best + 1)
    return torch.cat([y, y[:, :2]], 1).sort(descending=True).values


def mixed_dtypes(x, weight, mask):
    half = x.to(torch.bfloat16) @ weight.to(torch.bfloat16).t()
    ids = half.argmax(-1)
    return torch.where(mask[0], functional.embedding(ids, weight)[..., :5].float(), -1.0)


@pytest.mark.parametrize("fn", [attention, norm_and_gate, in_place_and_gather, mixed_dtypes])
def test_a_replay_is_bit_identical_to_eager(device, fn):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 32), torch.randn(96, 32)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    _, output, replay = capture(device, lambda: fn(x, weight, mask))
    address = output.data_ptr()
    for _ in range(3):
        x.copy_(torch.randn(2, 5, 32))
        replay().result()
        with torch.inference_mode():
            assert same_bits(output, fn(x, weight, mask))
    assert output.data_ptr() == address


def test_views_are_not_replayed(inline):
    x = torch.arange(12.0)
    graph, output, replay = capture(inline, lambda: x.view(3, 4).t()[1:].unsqueeze(0))
    assert len(graph) == 0
    x.zero_()
    replay().result()
    assert output.sum() == 0


def test_a_result_that_a_later_call_overwrites_is_made_anew_by_each_replay(inline):
    x = torch.ones(4)
    _, output, replay = capture(inline, lambda: torch.zeros(4).add_(x).add_(1))
    for _ in range(3):
        replay().result()
        assert output.tolist() == [2, 2, 2, 2]


def test_state_in_static_memory_goes_on_from_replay_to_replay(inline):
    count = torch.zeros(1)
    _, _, replay = capture(inline, lambda: count.add_(1))
    for _ in range(3):
        replay().result()
    assert count.item() == 4


def seen_at_the_marker(seed):
    """What another stream sees, after the marker, of what stands before and after it."""
    x, early, late = torch.ones(1), torch.zeros(1), torch.zeros(1)
    with HostDevice("seeded", seed) as device:
        stream, other = device.stream("forward"), device.stream("schedule")
        graph, marker = device.graph(), device.event(external=True)

        def body():
            early.add_(x)
            marker.record()
            for _ in range(60):
                late.add_(x)

        stream.submit(graph.capture, body).result()
        early.zero_()
        late.zero_()
        ticket = stream.submit(marker.rearm).result()
        replayed = stream.submit(graph.replay)
        other.wait(ticket)
        seen = other.submit(lambda: (early.item(), late.item())).result()
        replayed.result()
    assert late.item() == 60
    return seen


def test_the_marker_is_passed_where_it_stands_in_the_graph():
    seen = [seen_at_the_marker(seed) for seed in range(10)]
    assert all(early == 1 for early, _ in seen)
    assert any(late < 60 for _, late in seen)


def test_a_ticket_whose_replay_never_came_is_passed_with_the_next(inline):
    stream, graph, marker = inline.stream("forward"), inline.graph(), inline.event(external=True)
    stream.submit(graph.capture, marker.record).result()
    abandoned = stream.submit(marker.rearm).result()
    with pytest.raises(DeviceError, match="armed for a replay can never be reached"):
        abandoned.synchronize()
    ticket = stream.submit(marker.rearm).result()
    stream.submit(graph.replay).result()
    assert abandoned.query()
    assert ticket.query()


X = torch.tensor([1.0, -2.0, 3.0])
REFUSED = {
    "item": lambda: X.sum().item(),
    "float": lambda: float(X[0]),
    "bool": lambda: bool(X.any()),
    "tolist": X.tolist,
    "numpy": X.numpy,
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "nonzero": lambda: torch.nonzero(X),
    "where with one argument": lambda: torch.where(X > 0),
    "mask as index": lambda: X[X > 0],
    "masked_select": lambda: torch.masked_select(X, X > 0),
    "unique": lambda: torch.unique(X),
    "bincount": lambda: torch.bincount(X.abs().long()),
    "repeat_interleave": lambda: torch.repeat_interleave(X.abs().long()),
    "rand": lambda: torch.rand(3),
    "normal_": lambda: torch.zeros(3).normal_(),
    "dropout": lambda: functional.dropout(X, 0.5),
    "multinomial": lambda: torch.multinomial(X.abs(), 1),
    "resize_": lambda: torch.zeros(3).resize_(6),
    "set_": lambda: torch.zeros(3).set_(torch.ones(3)),
    "data": lambda: setattr(torch.zeros(3), "data", torch.ones(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_data_or_chance_fails_at_capture_and_names_the_line(inline, name):
    with pytest.raises(DeviceError, match="cannot be captured") as caught:
        capture(inline, REFUSED[name])
    assert "test_hostgraph.py" in str(caught.value)


def rebind(tensor):
    tensor.data = tensor.clone()


@pytest.mark.parametrize(
    "change",
    [rebind, lambda t: t.resize_(10**6), lambda t: t.untyped_storage().resize_(0)],
    ids=["data", "resize_", "freed"],
)
def test_a_replay_over_memory_that_was_replaced_is_refused(inline, change):
    x, y = torch.ones(3), torch.ones(3)
    _, _, replay = capture(inline, lambda: y + x)
    change(x)
    with pytest.raises(DeviceError, match=r"\(.*\) of torch.float32 was given other memory"):
        replay().result()


def test_a_weight_that_is_given_other_memory_is_missed_behind_a_view_of_it_too(inline):
    weight, x = torch.ones(3, 3), torch.ones(2, 3)
    _, _, replay = capture(inline, lambda: torch.nn.functional.linear(x, weight))
    rebind(weight)
    with pytest.raises(DeviceError, match="was given other memory"):
        replay().result()


def test_memory_that_was_freed_within_the_capture_is_refused_there(inline):
    x = torch.ones(3)

    def body():
        y = x + 1
        x.untyped_storage().resize_(0)
        return y

    with pytest.raises(DeviceError, match="was given other memory"):
        capture(inline, body)


def test_a_break_does_what_a_capture_may_not(inline):
    graph, stream, x = inline.graph(), inline.stream("forward"), torch.ones(3)

    def outside():
        inline.event().record()
        return torch.full((3,), x.sum().item()) + x[x > 0].sum()

    def body():
        return graph.outside(outside) + 1

    output = stream.submit(graph.capture, body).result()
    x.fill_(2)
    stream.submit(graph.replay).result()
    assert output.tolist() == [13, 13, 13]


def test_after_a_break_the_capture_goes_on_to_refuse(inline):
    graph, stream = inline.graph(), inline.stream("forward")

    def body():
        return graph.outside(lambda: torch.ones(1)).item()

    with pytest.raises(DeviceError, match="cannot be captured"):
        stream.submit(graph.capture, body).result()


def test_a_break_that_fails_at_capture_fails_the_capture(inline):
    graph, stream = inline.graph(), inline.stream("forward")

    def fails():
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        stream.submit(graph.capture, lambda: graph.outside(fails)).result()
    assert stream.submit(graph.capture, lambda: torch.ones(2)).result().tolist() == [1, 1]


def test_a_break_has_one_shape(inline):
    graph, stream, x = inline.graph(), inline.stream("forward"), torch.ones(3)
    stream.submit(graph.capture, lambda: graph.outside(lambda: x[x > 0])).result()
    x[0] = -1
    with pytest.raises(DeviceError, match=r"gave \(2,\) .* in a replay, and \(3,\)"):
        stream.submit(graph.replay).result()


def test_calls_that_differ_only_in_the_type_of_a_number_are_different_calls(inline):
    x = torch.tensor([3])
    _, output, _ = capture(inline, lambda: [x * 2, x * 2.0, x * 1, x * True, x / 2])
    assert [t.dtype for t in output] == [
        torch.int64,
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    ]


def test_what_only_looks_like_it_is_captured(inline):
    counts = torch.tensor([1, 2, 0])
    query = torch.randn(1, 2, 3, 8)

    def fn():
        attended = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        return attended, torch.repeat_interleave(X, counts, output_size=3), X[torch.tensor([0, 2])]

    _, output, replay = capture(inline, fn)
    replay().result()
    assert output[1].tolist() == [1.0, -2.0, -2.0]
    assert output[2].tolist() == [1.0, 3.0]


def test_a_failed_replay_lets_go_of_whoever_waits_for_its_marker():
    """In threads and in every order: the other stream's thread may be asleep at the ticket."""
    for device in (HostDevice("threads"), *(HostDevice("seeded", seed) for seed in range(5))):
        with device:
            stream, other = device.stream("forward"), device.stream("schedule")
            graph, marker, gate = device.graph(), device.event(external=True), device.latch()
            works = [True]

            def body(graph=graph, marker=marker, works=works):
                def broken():
                    if not works:
                        raise LookupError("mine")
                    return torch.ones(1)

                graph.outside(broken)
                marker.record()

            def step(graph=graph, marker=marker, gate=gate):
                gate.wait()
                try:
                    graph.replay()
                except LookupError:
                    marker.disarm()
                    raise

            stream.submit(graph.capture, body).result()
            works.clear()
            ticket = stream.submit(marker.rearm).result()
            replayed = stream.submit(step)
            other.wait(ticket)
            waiting = other.submit(lambda: "after")
            gate.set()
            assert waiting.result() == "after"
            with pytest.raises(LookupError, match="mine"):
                replayed.result()
