"""Models in safetensors directories: equal to transformers, and clear words for wrong ones."""

from __future__ import annotations

import json
import math
import struct

import attrs
import pytest
import torch

from warcore import ModelError
from warcore_model_llama.families import Safetensors, WindowOptions

PROMPT = [3, 100, 7, 7, 250, 31, 5, 90, 91, 17, 18, 19]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

OUTSIDE = {name: value for name, value in LLAMA3.items() if not name.startswith("original")}


def describe(folder, **options):
    return Safetensors.describe(f"safetensors:{folder}", WindowOptions(**options))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("facts", "tied"),
    [
        ({}, False),
        ({}, True),
        ({"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 5000.0}}, False),
        (
            {"rope_theta": 5000.0, "rope_scaling": OUTSIDE, "original_max_position_embeddings": 32},
            False,
        ),
        ({"model_type": "mistral", "sliding_window": 4}, False),
    ],
    ids=["plain", "tied", "llama3", "llama3 outside", "mistral"],
)
def test_logits_equal_those_of_transformers(files, load, dense, facts, tied):
    transformers = pytest.importorskip("transformers")

    config = attrs.evolve(files.config, tied=tied)
    folder = files.safetensors(config=config, **facts)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    ours = dense(load(Safetensors, str(folder), torch.float32))
    logits = ours.forward(("a", PROMPT), logits_at=None).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_shards_hold_the_same_model(files, load, dense):
    whole = load(Safetensors, str(files.safetensors("whole")))
    parts = load(Safetensors, str(files.safetensors("parts", shards=3)))
    outputs = [dense(model).forward(("a", PROMPT)).logits for model in (whole, parts)]
    assert torch.equal(*outputs)


def test_a_missing_shard_is_named(files):
    folder = files.safetensors(shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors cannot be read"):
        describe(folder)


def test_a_tensor_that_the_index_lists_and_no_shard_has_is_named(files):
    folder = files.safetensors(shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(
        ModelError, match=r"tensor model\.extra\.weight, which .* lists, is missing"
    ):
        describe(folder)


def test_a_missing_tensor_is_named(files):
    weights = files.weights()
    del weights["1.down"]
    with pytest.raises(
        ModelError, match=r"tensor model\.layers\.1\.mlp\.down_proj\.weight is missing"
    ):
        describe(files.safetensors(weights=weights))


def test_a_wrong_shape_is_named(files):
    weights = files.weights() | {"0.k": torch.zeros(8, 32)}
    with pytest.raises(ModelError, match=r"k_proj\.weight has shape \[8, 32\].*asks for \[16, 32"):
        describe(files.safetensors(weights=weights))


def test_a_truncated_file_is_called_so(files):
    path = files.safetensors() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match="truncated: its tensors end at byte"):
        describe(path.parent)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        struct.pack("<Q", 4) + b"[1]\n",
        struct.pack("<Q", 9) + b'{"a":{}}\n',
        struct.pack("<Q", 48) + b'{"a":{"data_offsets":[0,null],"shape":[1]}}'.ljust(48),
        struct.pack("<Q", 48) + b'{"a":{"data_offsets":[0,"8"],"shape":[1]}}'.ljust(48),
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
)
def test_a_damaged_header_is_called_so(files, content):
    path = files.safetensors() / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"truncated or not|damaged safetensors header"):
        describe(path.parent)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"model_type": "qwen2"}, "architecture 'qwen2' is not supported"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"hidden_size": "big"}, "hidden_size is 'big', not of type int"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 10**12}, "layers; from 1 to 4096"),
        ({"num_key_value_heads": 3}, "4 query heads do not divide among 3"),
        ({"max_position_embeddings": 0}, "max_context is 0, it must be positive"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"layer_types": ["full_attention"]}, "layer_types does not name 2 layers"),
        ({"sliding_window": 5}, "sliding_window is nothing that 'llama' has"),
        ({"model_type": "mistral", "sliding_window": -1}, "the sliding window is -1, it must be"),
        (
            {"model_type": "mistral", "num_key_value_heads": ...},
            "4 query heads do not divide .* 8",
        ),
        ({"rope_theta": 10**400}, "rope theta inf"),
        ({"rope_scaling": LLAMA3 | {"factor": math.nan}}, "the factors of the rope scaling"),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": -32}},
            "the factors of the rope scaling",
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(files, facts, words):
    with pytest.raises(ModelError, match=words) as caught:
        describe(files.safetensors(**facts))
    assert "config.json" in str(caught.value)


def test_layer_types_say_which_layers_slide(files):
    kinds = ["sliding_attention", "full_attention"]
    facts = {"model_type": "mistral", "sliding_window": 5}
    info = describe(files.safetensors(**facts, layer_types=kinds))
    assert [layer.window for layer in info.layers] == [5, None]


def test_a_directory_without_a_tokenizer_is_refused(files, load):
    folder = files.safetensors()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer: tokenizer\.json is missing"):
        load(Safetensors, str(folder))


def test_integer_weights_are_refused(files, load):
    weights = files.weights() | {"0.k": torch.zeros(16, 32, dtype=torch.int8)}
    with pytest.raises(ModelError, match=r"k_proj\.weight is of type torch\.int8"):
        load(Safetensors, str(files.safetensors(weights=weights)))


def test_as_many_kv_heads_as_query_heads_where_none_are_named(files):
    weights = files.weights() | {f"{i}.{n}": torch.zeros(32, 32) for i in (0, 1) for n in "kv"}
    for number, facts in enumerate(({"num_key_value_heads": ...}, {"num_key_value_heads": None})):
        info = describe(files.safetensors(str(number), weights=weights, **facts))
        assert {layer.kv_heads for layer in info.layers} == {4}


@pytest.mark.parametrize(("facts", "window"), [({}, 4096), ({"sliding_window": None}, None)])
def test_a_mistral_that_does_not_name_its_window_has_the_usual_one(files, facts, window):
    info = describe(files.safetensors(model_type="mistral", **facts))
    assert {layer.window for layer in info.layers} == {window}


def test_a_directory_with_two_sets_of_weights_is_refused(files):
    folder = files.safetensors(shards=2)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"both model.safetensors and .*\n.*move away"):
        describe(folder)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_head_beside_tied_embeddings_must_be_their_copy(files, load, factor):
    from safetensors.torch import load_file, save_file

    folder = files.safetensors(config=attrs.evolve(files.config, tied=True))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"] * factor
    save_file(tensors | {"lm_head.weight": head.clone()}, path, metadata={"format": "pt"})
    if factor == 1:
        load(Safetensors, str(folder))
    else:
        with pytest.raises(ModelError, match=r"lm_head\.weight is no copy of the embeddings"):
            load(Safetensors, str(folder))
