"""What an attention backend cannot do is refused at wiring: with all reasons, and who could."""

from __future__ import annotations

import attrs
import pytest
from parts import configured
from toys import INFO, LAYERS, Toy

from warcore import FencePlan, WiringError


def family(*, window=None, **sizes):
    """Models with layers of these sizes, whose weights nobody loads."""
    layers = tuple(attrs.evolve(layer, window=window, **sizes) for layer in LAYERS)

    class Sized(Toy):
        @classmethod
        def describe(cls, ref, options):
            return attrs.evolve(INFO, layers=layers)

    return Sized


LARGE = family(head_dim=512)
ODD = family(q_heads=3)
WIDE = family(q_heads=128)
WINDOWED = family(window=4)
HALVES = {"backend": None, "prefill_backend": "trtllm_mha", "decode_backend": "deepseek_v4"}
NO_WINDOWS = "a model without sliding windows (a layer with one is what it is for)"
REFUSED = {
    "head size": ({"backend": "triton", "model": LARGE}, ["heads of 512 (up to 256)"]),
    "head size and dtype": (
        {"backend": "triton", "model": LARGE, "dtype": "float64"},
        ["torch.float64 (its kernels sum in float32)", "heads of 512 (up to 256)"],
    ),
    "group": (
        {"backend": "triton", "model": WIDE},
        ["64 query heads over one KV head (up to 32)"],
    ),
    "page size": (
        {"backend": "trtllm_mha", "page_size": 8},
        ["a page size of 8 (it has 16, 32, 64)"],
    ),
    "no window": ({"backend": "deepseek_v4"}, [NO_WINDOWS]),
    "halves": (
        {**HALVES, "page_size": 8},
        ["a page size of 8 (it has 16, 32, 64)", f"decode by DeepseekV4: {NO_WINDOWS}"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_every_reason_is_given_and_the_reference_could(case):
    config, reasons = REFUSED[case]
    with pytest.raises(WiringError) as raised:
        FencePlan.of(configured(**{"dtype": "float32", "page_size": 16, **config}))
    lines = [line.strip() for line in raised.value.what.splitlines()[1:]]
    # Where Triton is missing or not interpreted, that stands first.
    assert [line for line in lines if "Triton" not in line] == reasons
    assert raised.value.next.startswith("--backend torch_native")


@pytest.mark.parametrize("backend", ["torch_native", "trtllm_mha", "deepseek_v4"])
def test_heads_that_no_backend_can_divide_are_refused_by_each(backend):
    with pytest.raises(WiringError, match="3 query heads over 2 KV heads") as raised:
        FencePlan.of(configured(model=ODD, backend=backend, page_size=16))
    assert raised.value.next == "warcore list-plugins --kind backend"


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("backend", ["torch_native", "deepseek_v4"])
def test_what_all_pages_can_hold_is_served_under_windows(backend, page_size):
    plan = FencePlan.of(configured(model=WINDOWED, backend=backend, page_size=page_size))
    assert plan.engine["backend"] == backend


def test_kernels_that_are_named_and_cannot_serve_are_refused_alike():
    options = {"trtllm_mha.kernels": "flashinfer"}
    with pytest.raises(WiringError, match="heads of 512") as raised:
        FencePlan.of(configured(model=LARGE, backend="trtllm_mha", page_size=16, options=options))
    assert "torch" in raised.value.next
