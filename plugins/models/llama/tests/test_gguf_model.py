"""Models in GGUF files: the same numbers as in safetensors, and clear words for wrong files."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from warcore import ModelError
from warcore_model_llama.config import Llama3Scaling
from warcore_model_llama.families import Gguf, Safetensors, WindowOptions

PROMPT = [3, 100, 7, 7, 250, 31, 5]


def logits(dense, model):
    return dense(model).forward(("a", PROMPT), logits_at=None).logits


def describe(path, **options):
    return Gguf.describe(f"gguf:{path}", WindowOptions(**options))


def test_gguf_and_safetensors_of_one_model_give_the_same_logits(files, load, dense):
    one = load(Gguf, str(files.gguf()))
    other = load(Safetensors, str(files.safetensors()))
    # GGUF keeps the norm's epsilon in fp32.
    torch.testing.assert_close(logits(dense, one), logits(dense, other), rtol=1e-6, atol=1e-6)


def test_a_file_without_an_output_tensor_has_a_tied_head(files, load, dense):
    config = attrs.evolve(files.config, tied=True)
    path = files.gguf(config=config)
    assert describe(path).parameters == describe(files.gguf("full.gguf")).parameters - 260 * 32
    other = load(Safetensors, str(files.safetensors(config=config)))
    one = load(Gguf, str(path))
    torch.testing.assert_close(logits(dense, one), logits(dense, other), rtol=1e-6, atol=1e-6)


def test_rope_factors_in_the_file_equal_llama3_scaling(files, load, dense):
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 32)
    directory = files.safetensors(
        rope_scaling={
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    )
    frequencies = 10000.0 ** -(np.arange(0, 8, 2) / 8)
    keep = np.clip((32 * frequencies / (2 * np.pi) - 1) / (4 - 1), 0, 1)
    factors = (1 / (keep + (1 - keep) / 8)).astype(np.float32)
    path = files.gguf(change=lambda tensors: tensors.update({"rope_freqs.weight": factors}))
    one, other = load(Gguf, str(path)), load(Safetensors, str(directory))
    torch.testing.assert_close(logits(dense, one), logits(dense, other), rtol=1e-5, atol=1e-5)
    plain = load(Gguf, str(files.gguf("plain.gguf")))
    assert not torch.allclose(logits(dense, one), logits(dense, plain), rtol=1e-2)


def test_a_quantized_tensor_is_dequantized(files, load):
    import gguf

    path = files.gguf()
    ours = load(Gguf, str(path), torch.float32).embed
    raw = gguf.quants.quantize(ours.numpy(), gguf.GGMLQuantizationType.Q8_0)

    writer_add = gguf.GGUFWriter.add_tensor

    def add(self, name, tensor):
        if name == "token_embd.weight":
            return writer_add(self, name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        return writer_add(self, name, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        quantized = files.gguf("q8.gguf")
    read = load(Gguf, str(quantized), torch.float32).embed
    assert not torch.equal(read, ours)
    torch.testing.assert_close(read, ours, rtol=0, atol=float(ours.abs().max()) / 100)


def test_the_window_option_reaches_every_layer(files):
    assert {layer.window for layer in describe(files.gguf(), window=9).layers} == {9}


def test_progress_ends_at_the_bytes_of_the_model(files, load):
    seen = []
    load(Gguf, str(files.gguf()), torch.float32, lambda done, total: seen.append((done, total)))
    done, totals = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]} == {describe(files.folder / "tiny.gguf").parameters * 4}


def test_another_architecture_is_refused(files):
    with pytest.raises(ModelError, match="architecture 'mamba'"):
        describe(files.gguf(architecture="mamba"))


def test_an_unknown_rope_scaling_is_refused(files):
    with pytest.raises(ModelError, match="rope scaling 'yarn'"):
        describe(files.gguf(strings={"llama.rope.scaling.type": "yarn"}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t.pop("blk.1.ffn_up.weight"),
            r"tiny\.gguf: tensor blk\.1\.ffn_up\.weight is missing",
        ),
        (lambda t: t.pop("token_embd.weight"), r"tensor token_embd\.weight is missing"),
        (
            lambda t: t.update({"blk.0.attn_k.weight": np.zeros((8, 32), np.float32)}),
            r"attn_k\.weight has shape \[8, 32\], but the header's sizes ask for \[16, 32\]",
        ),
        (
            lambda t: t.update({"blk.0.attn_q.bias": np.zeros(32, np.float32)}),
            r"attn_q\.bias has no place",
        ),
        (
            lambda t: t.update({"rope_freqs.weight": np.zeros(3, np.float32)}),
            r"rope_freqs\.weight has shape \[3\]",
        ),
    ],
)
def test_wrong_tensors_are_named_with_their_file(files, change, words):
    with pytest.raises(ModelError, match=words):
        describe(files.gguf(change=change))


def test_more_layers_than_tensors_are_refused_at_once(files):
    with pytest.raises(ModelError, match="2000000000 layers"):
        describe(files.gguf(layers=2_000_000_000))


def test_a_file_without_a_tokenizer_is_refused(files, load):
    with pytest.raises(ModelError, match=r"tiny\.gguf: there is no tokenizer"):
        load(Gguf, str(files.gguf(tokenizer=False)))


def test_an_unknown_pre_tokenizer_is_refused(files, load):
    with pytest.raises(ModelError, match="pre-tokenizer 'tekken' is not known"):
        load(Gguf, str(files.gguf(pre="tekken")))
