"""What a forward promises, whatever the weights."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warcore import ModelError, ModelInfo
from warcore_model_llama import linear
from warcore_model_llama.families import Random

PROMPT = [256, *b"the quick brown fox jumps"]


@pytest.fixture
def tiny(load):
    return load(Random, "random:tiny")


@pytest.mark.parametrize("preset", ["tiny", "swa-tiny"])
def test_text_does_not_depend_on_chunks(load, dense, preset):
    model = load(Random, f"random:{preset}")
    expected = dense(model).greedy(PROMPT, 30)
    for size in (1, 7):
        run = dense(model)
        for start in range(0, len(PROMPT) - 1, size):
            run.forward(("only", PROMPT[start : min(start + size, len(PROMPT) - 1)]))
        assert run.greedy(PROMPT[-1:], 30) == expected


def test_logits_do_not_depend_on_the_rest_of_the_batch(tiny, dense):
    alone = dense(tiny).forward(("a", PROMPT)).logits[0]
    together = dense(tiny).forward(("b", [1, 2]), ("a", PROMPT), ("c", [9])).logits[1]
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


def test_logits_come_for_the_tokens_asked_for(tiny, dense):
    every = dense(tiny).forward(("a", PROMPT), logits_at=None).logits
    assert every.shape == (len(PROMPT), 258)
    chosen = dense(tiny).forward(("a", PROMPT), logits_at=torch.tensor([5, 2])).logits
    torch.testing.assert_close(chosen, every[[5, 2]], rtol=1e-12, atol=1e-12)
    none = dense(tiny).forward(("a", PROMPT), logits_at=torch.tensor([], dtype=torch.long)).logits
    assert none.shape == (0, 258)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_logits_come_in_the_dtype_of_the_model(load, dense, dtype):
    logits = dense(load(Random, "random:tiny", dtype)).forward(("a", PROMPT)).logits
    assert logits.dtype == dtype
    assert logits.isfinite().all()


def test_the_last_hidden_state_is_what_the_head_sees(tiny, dense):
    output = dense(tiny).forward(("a", PROMPT), hidden_layers=(1, 0), logits_at=None)
    assert output.hidden.shape == (2, len(PROMPT), 32)
    normed = torch.nn.functional.rms_norm(output.hidden[0], (32,), tiny.norm, tiny.eps)
    torch.testing.assert_close(tiny.head.linear(normed), output.logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_hidden_state_is_not_written_over_by_later_layers(load, dense, dtype):
    model = load(Random, "random:tiny", dtype)
    both = dense(model).forward(("a", PROMPT), hidden_layers=(0, 1)).hidden
    one = dense(model).forward(("a", PROMPT), hidden_layers=(0,)).hidden
    assert torch.equal(both[0], one[0])
    assert not torch.equal(both[0], both[1])


def test_no_hidden_state_without_asking(tiny, dense):
    assert dense(tiny).forward(("a", PROMPT)).hidden is None


def test_a_layer_that_does_not_exist_is_refused(tiny, dense):
    with pytest.raises(ModelError, match="layer 2 asked for, but its layers are 0 to 1"):
        dense(tiny).forward(("a", PROMPT), hidden_layers=(2,))


def test_a_window_hides_what_lies_before_it(load, dense):
    model = load(Random, "random:tiny", window=4)
    one = dense(model).forward(("a", [1, *PROMPT])).logits
    other = dense(model).forward(("a", [2, *PROMPT])).logits
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_without_a_window_the_first_token_sways_the_last(load, dense):
    model = load(Random, "random:tiny")
    one = dense(model).forward(("a", [1, *PROMPT])).logits
    other = dense(model).forward(("a", [2, *PROMPT])).logits
    assert (one - other).abs().max() > 1e-3


class NoSync(TorchDispatchMode):
    """Refuses what would make a device wait for the host, or break a capture."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        assert not any(word in name for word in ("_local_scalar", "nonzero", "masked_select")), name
        return func(*args, **(kwargs or {}))


def test_a_forward_never_asks_the_device_for_a_value(tiny, dense):
    run = dense(tiny)
    with NoSync():
        run.forward(("a", PROMPT), hidden_layers=(0,))


def test_the_same_seed_gives_the_same_weights_in_every_dtype(load):
    wide, narrow = (load(Random, "random:tiny", d, seed=3) for d in (torch.float64, torch.float32))
    assert torch.equal(wide.embed, narrow.embed.double())
    assert not torch.equal(wide.embed, load(Random, "random:tiny", seed=4).embed)


def test_a_model_tells_what_its_family_described(load):
    model = load(Random, "random:swa-tiny", window=3)
    assert isinstance(model.info, ModelInfo)
    assert [layer.window for layer in model.info.layers] == [3, 3, 3, 3]


@pytest.mark.skipif(
    not linear.packs(torch.device("cpu"), torch.bfloat16), reason="this CPU has no bf16 products"
)
@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_packed_products_equal_plain_ones(rows):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    x, residual, weight, other = draw(rows, 48), draw(rows, 96), draw(96, 48), draw(96, 48)
    kwargs = {"rtol": 2e-2, "atol": 1e-1}
    plain, packed = linear.Plain(weight), linear.Packed(weight)
    torch.testing.assert_close(packed.linear(x), plain.linear(x), **kwargs)
    torch.testing.assert_close(
        packed.linear_add(x, residual.clone()), plain.linear_add(x, residual.clone()), **kwargs
    )
    gated = linear.PackedGated(weight, other).gated(x)
    torch.testing.assert_close(gated, linear.PlainGated(weight, other).gated(x), **kwargs)


def test_a_truncated_model_is_the_front_of_the_whole_one_with_its_head(tiny, dense):
    whole = dense(tiny).forward(("a", PROMPT), hidden_layers=(0,), logits_at=None)
    cut = tiny.truncated(1)
    assert (len(cut.info.layers), len(tiny.info.layers)) == (1, 2)
    front = dense(cut).forward(("a", PROMPT), hidden_layers=(0,), logits_at=None)
    torch.testing.assert_close(front.hidden, whole.hidden)
    normed = torch.nn.functional.rms_norm(front.hidden[0], (32,), tiny.norm, tiny.eps)
    torch.testing.assert_close(front.logits, tiny.head.linear(normed))


def test_a_model_shows_what_a_draft_may_share(tiny, dense):
    last = len(tiny.info.layers) - 1
    output = dense(tiny).forward(("a", PROMPT), hidden_layers=(last,), logits_at=None)
    normed = torch.nn.functional.rms_norm(output.hidden[0], (32,), tiny.norm, tiny.eps)
    torch.testing.assert_close(normed @ tiny.unembedding.T, output.logits)
    assert tiny.embedding.shape == (tiny.info.vocab_size, tiny.info.hidden_size)
