"""What is asked of flashinfer, held to the signatures of its releases.

Its kernels run on Blackwell GPUs only. On any other machine two functions stand in for them, which
take exactly the parameters of a release (`flashinfer.json`, written by `record_flashinfer.py` from
its wheel), hold the arguments to what its documentation says of shapes, types and units, and attend
page by page as it describes. That shows what this package hands over, and nothing of the kernels.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import attrs
import pytest
import torch

from warcore import Bucket, ForwardMode, PluginError
from warcore_backend_trtllm_mha import flashinfer_attention, providers

RELEASES = json.loads(Path(__file__).with_name("flashinfer.json").read_text(encoding="utf-8"))
DECODES = "trtllm_batch_decode_with_kv_cache"
PREFILLS = "trtllm_batch_context_with_kv_cache"
MODES = pytest.mark.parametrize("mode", list(ForwardMode), ids=lambda m: m.name)
HALF = {"dtype": torch.bfloat16}


class StandIn:
    """The two functions of one release, and what they were given."""

    def __init__(self, release):
        self.calls = []
        for name, parameters in RELEASES[release].items():
            setattr(self, name, self._function(name, parameters))

    def _function(self, name, parameters):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature(
            [
                inspect.Parameter(each, kind, default=eval_default(default))
                for each, default in parameters.items()
            ]
        )

        def function(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self.calls.append((name, bound.arguments))
            return answer(name, bound.arguments)

        return function


def eval_default(text):
    return inspect.Parameter.empty if text is None else json.loads(PLAIN.get(text, text))


PLAIN = {"None": "null", "True": "true", "False": "false", "'HND'": '"HND"', "'auto'": '"auto"'}
PLAIN["'trtllm-gen'"] = '"trtllm-gen"'


def answer(name, given):
    """What the documentation of both functions says, in torch: writes and returns `out`."""
    q, table, lens, out = (given[each] for each in ("query", "block_tables", "seq_lens", "out"))
    hold(name, given)
    if name == DECODES:
        batch = q.shape[0] // given["q_len_per_req"]
        starts = torch.arange(batch + 1) * given["q_len_per_req"]
        longest = given["max_seq_len"]
    else:
        batch, starts, longest = given["batch_size"], given["cum_seq_lens_q"], given["max_kv_len"]
        lengths = given["cum_seq_lens_kv"].diff()
        assert lengths.tolist() == lens[:batch].tolist()
        assert max(starts.diff().tolist()) <= given["max_q_len"]
    assert table.shape[0] == lens.shape[0] == batch
    assert max(lens.tolist()) <= longest <= table.shape[1] * given["kv_cache"][0].shape[1]
    for request in range(batch):
        length = int(lens[request])
        own = slice(int(starts[request]), int(starts[request + 1]))
        # Only so many of the row's pages are looked at.
        pages = table[request, : -(-length // given["kv_cache"][0].shape[1])].long()
        k, v = (cache[pages].flatten(0, 1)[:length].double() for cache in given["kv_cache"])
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        score = torch.einsum("thd,lhd->htl", q[own].double(), k) * given["bmm1_scale"]
        # The last token of a request is the last of its sequence.
        here = torch.arange(length - (own.stop - own.start), length)[:, None]
        hidden = torch.arange(length) > here
        if given["window_left"] >= 0:
            hidden |= torch.arange(length) < here - given["window_left"]
        weights = score.masked_fill(hidden, float("-inf")).softmax(-1)
        out[own] = (torch.einsum("htl,lhd->thd", weights, v) * given["bmm2_scale"]).to(out.dtype)
    return out


def hold(name, given):
    """AssertionError unless the arguments are of the documented shapes and types."""
    q, out, table, lens = (given[each] for each in ("query", "out", "block_tables", "seq_lens"))
    assert q.dtype in {torch.bfloat16, torch.float16}
    assert q.is_contiguous()
    assert (out.shape, out.dtype, out.is_contiguous()) == (q.shape, q.dtype, True)
    assert given["kv_layout"] == "NHD"
    k, v = given["kv_cache"]
    assert isinstance(given["kv_cache"], tuple)
    assert k.shape == v.shape == (k.shape[0], k.shape[1], k.shape[2], q.shape[2])
    assert k.shape[1] in {16, 32, 64}
    assert k.dtype == v.dtype == q.dtype
    assert k.stride(-1) == v.stride(-1) == 1
    assert (table.dtype, table.ndim, table.is_contiguous()) == (torch.int32, 2, True)
    assert (lens.dtype, lens.ndim, lens.is_contiguous()) == (torch.int32, 1, True)
    assert given["workspace_buffer"].nbytes == flashinfer_attention.WORKSPACE
    assert isinstance(given["bmm1_scale"], float)
    assert isinstance(given["window_left"], int)
    if name == DECODES:
        assert given["backend"] == "trtllm-gen"
        assert isinstance(given["max_seq_len"], int)
        return
    assert isinstance(given["max_q_len"], int)
    assert isinstance(given["max_kv_len"], int)
    for each in ("cum_seq_lens_q", "cum_seq_lens_kv"):
        assert (given[each].dtype, given[each].shape) == (torch.int32, (given["batch_size"] + 1,))


@pytest.fixture(params=list(RELEASES))
def flashinfer(request, monkeypatch):
    """A flashinfer of that release is there, and so is a GPU that it serves."""
    made = StandIn(request.param)
    modules = {name: ModuleType(name) for name in ("flashinfer", *PLACES)}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    for place, function in PLACES.items():
        setattr(modules[place], function, getattr(made, function))
    # Hundreds of megabytes that nobody looks into.
    monkeypatch.setattr(flashinfer_attention, "WORKSPACE", 1024)
    provider = attrs.evolve(providers.PROVIDERS["flashinfer"], missing=lambda _: [])
    monkeypatch.setitem(providers.PROVIDERS, "flashinfer", provider)
    return made


PLACES = {"flashinfer.decode": DECODES, "flashinfer.prefill": PREFILLS}


# --- what it computes, if the kernels do what their documentation says


@MODES
@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_ragged_batches_attend_to_their_own_past(paged, flashinfer, mode, page_size):
    case = paged.ragged(mode, **HALF, ratio=4, page_size=page_size, kernels="auto", tree=False)
    assert case.backend.kernels == "flashinfer"
    case.check()
    assert [name for name, _ in flashinfer.calls] == [
        DECODES if mode is ForwardMode.DECODE else PREFILLS
    ]


@MODES
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seq_len", [0, 1])
def test_windows_and_padding_change_no_live_token(paged, flashinfer, mode, mapped, seq_len):
    windows = {"windows": (None, 1, 9), "mapped": mapped, "tree": False}
    case = paged.ragged(mode, **HALF, **windows, padded=True, pad_seq_len=seq_len, kernels="auto")
    case.check()
    assert [given["window_left"] for _, given in flashinfer.calls] == [-1, 0, 8]


@MODES
def test_padding_tokens_give_zeros_where_no_kernel_writes(paged, flashinfer, mode):
    if mode is ForwardMode.DECODE:
        pytest.skip("each padding row has a token")
    case = paged.ragged(mode, **HALF, padded=True, kernels="auto", tree=False)
    assert not case.run()[:, sum(case.lens) :].count_nonzero()


@MODES
def test_the_host_gives_bounds_that_a_replay_may_fill(paged, flashinfer, mode):
    case = paged.ragged(mode, **HALF, kernels="auto", tree=False, padded=True)
    tokens, rows = case.batch.padded_tokens, case.batch.padded_size
    bucket = Bucket(mode, rows, tokens, max_seq_len=case.width)
    most = {"max_seq_len": case.width, "max_q_len": max(case.lens) + 1}
    case.batch = attrs.evolve(case.batch, bucket=bucket, **most)
    case.check()
    ((name, given),) = flashinfer.calls
    if name == DECODES:
        assert given["max_seq_len"] == case.width
    else:
        assert (given["max_q_len"], given["max_kv_len"]) == (max(case.lens) + 1, case.width)


def test_an_eager_prefill_says_how_long_its_longest_is(paged, flashinfer):
    case = paged.ragged(ForwardMode.EXTEND, **HALF, kernels="auto")
    case.check()
    ((_, given),) = flashinfer.calls
    assert given["max_q_len"] == max(case.lens)


def test_whole_pages_are_numbers_before_anything_is_written(paged, flashinfer):
    case = paged(ForwardMode.DECODE, prefixes=(0, 0), lens=(1, 1), **HALF, kernels="auto")
    assert all(memory[name].isfinite().all() for memory in case.kv for name in "kv")


def test_captured_lengths_are_few(paged, flashinfer):
    case = paged(ForwardMode.DECODE, prefixes=(5000,), lens=(1,), **HALF, kernels="auto")
    batches = [attrs.evolve(case.batch, max_seq_len=n) for n in (1, 1024, 1025, 4097)]
    assert [case.backend.graph_key(batch) for batch in batches] == [1024, 1024, 4096, 5024]


# --- what is there


def test_a_flashinfer_that_cannot_be_imported_is_named(paged, flashinfer, monkeypatch):
    monkeypatch.delattr(sys.modules["flashinfer.decode"], DECODES)
    with pytest.raises(PluginError, match="flashinfer is installed and cannot be imported") as e:
        paged.ragged(ForwardMode.DECODE, **HALF, kernels="auto")
    assert "kernels=triton" in e.value.next


@pytest.mark.skipif(find_spec("flashinfer") is None, reason="flashinfer is not installed")
@pytest.mark.parametrize(("place", "function"), PLACES.items())
def test_the_installed_release_has_what_the_oldest_of_the_record_has(place, function):
    from importlib import import_module

    found = inspect.signature(getattr(import_module(place), function)).parameters
    oldest = next(iter(RELEASES.values()))[function]
    assert list(oldest) == [name for name in found if name in oldest], version("flashinfer-python")


@pytest.mark.gpu
@MODES
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_kernels_compute_the_same_on_a_gpu_that_has_them(paged, mode, head_dim):
    device = torch.device("cuda")
    missing = providers.PROVIDERS["flashinfer"].missing(device)
    if missing:
        pytest.skip(f"no kernels of flashinfer: {', '.join(missing)}")
    shape = {"windows": (None, 9), "ratio": 4, "head_dim": head_dim, "device": device}
    paged.ragged(mode, **HALF, **shape, padded=True, tree=False, kernels="flashinfer").check()
