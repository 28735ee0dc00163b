"""Which kernels serve, and what is said of those that do not."""

from __future__ import annotations

import attrs
import pytest
import torch

from warcore import AttentionSpec, ForwardMode, WiringError
from warcore_backend_trtllm_mha import TrtllmMha, providers
from warcore_backend_trtllm_mha.providers import PROVIDERS, provider_of, said

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SPEC = AttentionSpec(
    q_heads=8,
    kv_heads=2,
    head_dim=128,
    dtype=torch.bfloat16,
    kv_dtype=torch.bfloat16,
    page_size=16,
    max_context=64,
    windows=frozenset({None}),
    tree=False,
    device=CUDA,
    role="target",
)


@pytest.fixture
def machine(monkeypatch):
    """Sets what is installed and which chip there is."""

    def of(*, flashinfer=None, triton=True, chip=(9, 0), interprets=False):
        there = {"flashinfer": flashinfer is not None, "triton": triton}
        monkeypatch.setattr(providers, "find_spec", lambda name: there[name] or None)
        monkeypatch.setattr(providers, "version", lambda _: flashinfer)
        monkeypatch.setattr(providers, "interprets", lambda: interprets)
        monkeypatch.setattr(providers, "_capability", lambda _: chip)

    return of


@pytest.mark.parametrize(
    ("installed", "spec", "serves"),
    [
        ({"flashinfer": "0.7.4", "chip": (10, 0)}, {}, "flashinfer"),
        ({"flashinfer": "0.5.3", "chip": (10, 3)}, {}, "flashinfer"),
        ({"flashinfer": "0.6.0.dev1", "chip": (10, 0), "triton": False}, {}, "flashinfer"),
        ({"flashinfer": "0.4.1", "chip": (10, 0)}, {}, "triton"),
        ({"flashinfer": "0.7.4", "chip": (9, 0)}, {}, "triton"),
        ({"flashinfer": "0.7.4", "chip": (12, 0)}, {}, "triton"),
        ({"flashinfer": "0.7.4", "chip": (10, 0)}, {"dtype": torch.float32}, "triton"),
        ({"flashinfer": "0.7.4", "chip": (10, 0)}, {"head_dim": 80}, "triton"),
        ({"flashinfer": "0.7.4", "chip": (10, 0)}, {"tree": True}, "triton"),
        ({"flashinfer": "0.7.4", "chip": (10, 0)}, {"dtype": torch.float64}, "torch"),
        ({"chip": (9, 0)}, {"head_dim": 512}, "torch"),
        ({"chip": (9, 0)}, {"q_heads": 128}, "torch"),
        ({"chip": (7, 5)}, {}, "torch"),
        ({"triton": False}, {}, "torch"),
        ({"interprets": True}, {}, "torch"),
        ({"interprets": True}, {"device": CPU}, "torch"),
        ({"interprets": False}, {"device": CPU}, "torch"),
    ],
    ids=str,
)
def test_the_first_that_is_installed_and_that_the_chip_and_the_model_allow(
    machine, installed, spec, serves
):
    machine(**installed)
    assert provider_of(attrs.evolve(SPEC, **spec), "auto") == serves


def test_the_interpreter_serves_whoever_names_it(machine):
    machine(interprets=True)
    assert provider_of(attrs.evolve(SPEC, device=CPU), "triton") == "triton"


def test_named_kernels_that_cannot_serve_are_refused_with_all_reasons(machine):
    machine(flashinfer="0.4.1")
    with pytest.raises(WiringError) as refusal:
        provider_of(attrs.evolve(SPEC, dtype=torch.float32, head_dim=80, tree=True), "flashinfer")
    assert refusal.value.what.splitlines() == [
        "trtllm_mha: the flashinfer kernels cannot serve this:",
        "  a GPU of compute capability 9.0 (trtllm-gen is for 10.x)",
        "  release 0.4 (0.5 or newer)",
        "  torch.float32 (it computes in bfloat16, float16)",
        "  heads of 80 (it has 64, 128, 256)",
        "  tree masks (use chain drafts)",
    ]
    assert refusal.value.next == "--opt trtllm_mha.kernels=auto, or one of: triton, torch"


def test_so_are_named_triton_kernels(machine):
    machine(interprets=True, chip=(7, 5))
    spec = attrs.evolve(SPEC, dtype=torch.float64, head_dim=512, q_heads=128)
    assert PROVIDERS["triton"].why_not(spec) == [
        "a GPU while Triton's interpreter is on (unset TRITON_INTERPRET)",
        "a GPU of compute capability 7.5 (8.0 or newer)",
        "torch.float64 (its kernels sum in float32)",
        "heads of 512 (up to 256)",
        "64 query heads over one KV head (up to 32)",
    ]
    assert PROVIDERS["triton"].missing(torch.device("meta")) == ["a meta device"]
    machine(triton=False)
    assert PROVIDERS["triton"].missing(CUDA) == ["not installed (pip install triton)"]


@pytest.mark.parametrize(
    ("installed", "device", "words"),
    [
        ({"flashinfer": "0.7.4", "chip": (10, 0)}, CUDA, "flashinfer kernels"),
        (
            {"chip": (9, 0)},
            CUDA,
            (
                "triton kernels; flashinfer: a GPU of compute capability 9.0 (trtllm-gen is for "
                "10.x), not installed (pip install flashinfer-python)"
            ),
        ),
        (
            {"interprets": True},
            CPU,
            (
                "torch kernels; flashinfer: a cpu device (trtllm-gen is for Blackwell GPUs), not "
                "installed (pip install flashinfer-python); triton: a CPU, where it is interpreted "
                "and serves by name only"
            ),
        ),
    ],
    ids=str,
)
def test_what_is_said_names_the_kernels_and_why_none_before_them(machine, installed, device, words):
    machine(**installed)
    assert said(device) == words


def test_the_backend_says_so_of_this_machine():
    assert TrtllmMha.note() == said(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def test_a_distribution_without_a_release_is_too_old(machine, monkeypatch):
    machine(flashinfer="unknown", chip=(10, 0))
    assert PROVIDERS["flashinfer"].missing(CUDA) == ["release 0.0 (0.5 or newer)"]

    def none(_):
        raise providers.PackageNotFoundError

    monkeypatch.setattr(providers, "version", none)
    assert PROVIDERS["flashinfer"].missing(CUDA) == ["release 0.0 (0.5 or newer)"]


def test_every_reason_against_a_spec_is_given_at_once():
    assert TrtllmMha.why_not(SPEC) == []
    odd = attrs.evolve(SPEC, q_heads=7, dtype=torch.int8, kv_dtype=torch.float8_e4m3fn)
    reasons = TrtllmMha.why_not(odd)
    assert len(reasons) == 3
    assert "7 query heads over 2 KV heads" in reasons
    assert TrtllmMha.page_sizes == {16, 32, 64}


def test_an_option_that_names_no_kernels_is_refused():
    with pytest.raises(ValueError, match="kernels=cuda is none of auto, flashinfer, triton, torch"):
        TrtllmMha.Options("cuda")


def test_a_backend_whose_named_kernels_cannot_serve_is_not_built(paged, machine):
    machine()
    with pytest.raises(WiringError, match="flashinfer kernels cannot serve this"):
        paged.ragged(ForwardMode.DECODE, kernels="flashinfer")
