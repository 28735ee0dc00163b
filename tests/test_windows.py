"""Models with sliding windows, whole engines: their layers have a smaller pool, and the text holds.

The reference is the model itself with a dense mask over all that it has seen, in float64.
"""

from __future__ import annotations

import random
from functools import cache

import attrs
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from warcore import Engine, EngineConfig, ForwardBatch, ForwardMode, ModelContext, SamplingParams
from warcore.registry import find_plugins
from warcore.serving import find_model

MODEL = "random:swa-tiny"
NEW = 40


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are not worth a second thread, which would only be waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model(**options):
    family, ref = find_model(EngineConfig(model=MODEL), find_plugins())
    context = ModelContext(torch.device("cpu"), torch.float64, family.Options(**options), None)
    return family.load(ref, context)


def attend(q, k, v, layer):
    """Attention of a whole sequence under its mask."""
    at = torch.arange(len(q))
    seen = at <= at[:, None]
    if layer.window is not None:
        seen &= at > at[:, None] - layer.window
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    shared = layer.q_heads != layer.kv_heads
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=layer.scale, enable_gqa=shared
    )
    return out.transpose(0, 1)


def sequence(tokens):
    """A batch of one whole sequence; slots are nobody's business here."""
    count = len(tokens)
    at = torch.arange(count)
    return ForwardBatch(
        mode=ForwardMode.EXTEND,
        size=1,
        padded_size=1,
        padded_tokens=count,
        tokens=torch.tensor(tokens),
        rows=torch.tensor([1]),
        seq_lens=torch.tensor([count], dtype=torch.int32),
        q_start=torch.tensor([0, count], dtype=torch.int32),
        q_row=torch.zeros(count, dtype=torch.int64),
        positions=at,
        out_slots=at,
        max_seq_len=count,
        extend_lens=(count,),
        logits_at=torch.tensor([count - 1]),
    )


@cache
def dense(prompt, **options):
    """The `NEW` tokens that follow, each computed from the whole sequence before it."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(NEW):
            logits = model(**options).forward(sequence(tokens), attend).logits
            tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]


def prompts():
    draw = random.Random(4)
    return [tuple(draw.choices(range(97, 123), k=length)) for length in (1, 9, 17, 33, 60, 5)]


ENGINES = {
    "eager": {"graph_runner": "none"},
    "alone": {"graph_runner": "none", "max_running_requests": 1, "page_size": 1},
    "full graphs": {"graph_runner": "full", "graph_prefill_buckets": (4, 16)},
    "broken graphs": {"graph_runner": "breakable", "graph_buckets": (1, 4)},
    "chunks": {"graph_runner": "none", "prefill_chunk": 5, "page_size": 8},
    "mixed": {"graph_runner": "none", "prefill_chunk": 7, "mixed": True},
    "few pages": {"graph_runner": "full", "kv_pages": 30, "prefill_chunk": 11},
    "normal loop": {"graph_runner": "none", "loop": "normal", "host": "inline"},
    "threads": {"graph_runner": "full", "host": "threads"},
}


BACKENDS = {
    "torch_native": {},
    "deepseek_v4": {"deepseek_v4.sparse_above": "512"},
    "deepseek_v4 sparse": {"deepseek_v4.sparse_above": "4"},
}


def engine(options=None, backend="torch_native", **config):
    """backend: one of BACKENDS."""
    given = {"page_size": 4, "max_running_requests": 4, "host": "seeded:11", **config}
    given |= {"backend": backend.split()[0], "options": {**(options or {}), **BACKENDS[backend]}}
    return Engine(EngineConfig(model=MODEL, dtype="float64", context_length=104, **given))


WINDOWS = [{}, {"window": 5, "window_layers": "alternate"}]
QUICK = [
    ("torch_native", WINDOWS[0]),
    ("torch_native", WINDOWS[1]),
    ("deepseek_v4 sparse", WINDOWS[0]),
    ("deepseek_v4", WINDOWS[1]),
]
SLOW = [("deepseek_v4 sparse", WINDOWS[1]), ("deepseek_v4", WINDOWS[0])]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("backend", "window"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
    ids=str,
)
def test_the_text_is_that_of_a_dense_mask(name, backend, window):
    options = {f"random.{key}": str(value) for key, value in window.items()}
    with engine(options, backend, **ENGINES[name]) as running:
        facts = running._assembly.describe()
        outputs = running.generate(prompts(), SamplingParams(max_new_tokens=NEW, ignore_eos=True))
        assert facts["swa_pages"]
        if name == "few pages":
            assert running.stats()["retracts"]
    for prompt, output in zip(prompts(), outputs, strict=True):
        assert output.output_ids == dense(prompt, **window), f"{name}, {len(prompt)} tokens"


def test_the_smaller_pool_has_the_pages_that_windows_need():
    """16 tokens of window need few pages, however long the context is."""
    with engine(prefill_chunk=16, graph_runner="none") as running:
        facts, kv = running._assembly.describe(), running._assembly.wired.kv
        windowed, full = (len(kv[layer]["k"]) - 1 for layer in (0, 1))
    assert (windowed, full) == (facts["swa_pages"], facts["kv_pages"])
    assert windowed == 4 * (4 + 2) + 4
    assert full == 4 * 26


def test_without_windows_there_is_one_pool():
    with engine(options={"random.window": "0"}, graph_runner="none") as running:
        assert running._assembly.describe()["swa_pages"] is None
        assert running._assembly.wired.shared.tables.full_to_swa is None


def test_a_model_whose_layers_all_have_windows_needs_the_full_pool_for_its_table_alone():
    options = {"random.window": "6", "random.window_layers": "all"}
    window = {"window": 6, "window_layers": "all"}
    with engine(options, prefill_chunk=16, graph_runner="none") as running:
        (output,) = running.generate(
            [prompts()[4]], SamplingParams(max_new_tokens=NEW, ignore_eos=True)
        )
        assert output.output_ids == dense(prompts()[4], **window)
        rows = {len(layer["k"]) for layer in running._assembly.wired.kv}
        assert rows == {running._assembly.describe()["swa_pages"] + 1}


def test_the_presets_say_which_layers_have_windows():
    assert [layer.window for layer in model().info.layers] == [16, None, 16, None]
    assert attrs.asdict(model(window=3).info.layers[1])["window"] == 3
