"""Every refusal says what to do: one kind of mistake each, from the file to the message."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest
import torch

from warcore import ModelError
from warcore_model_llama.families import Gguf, Random, Safetensors
from warcore_model_llama.refusals import unreadable


def gguf(**values):
    return lambda files: files.gguf(**values)


def gguf_bytes(change):
    def make(files):
        path = files.gguf()
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def folder(**values):
    return lambda files: files.safetensors(**values)


def folder_with(name, content):
    """content: None removes the file."""

    def make(files):
        directory = files.safetensors()
        path = directory / name
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        return directory

    return make


def weights(**changed):
    """Weights of the tiny model, some changed; None removes."""

    def make(files):
        mine = files.weights() | changed
        return files.safetensors(weights={name: t for name, t in mine.items() if t is not None})

    return make


def bad_index(files):
    directory = files.safetensors(shards=2)
    (directory / "model.safetensors.index.json").write_text("{}")
    return directory


def lost_shard(files):
    directory = files.safetensors(shards=2)
    (directory / "model-00002-of-00002.safetensors").unlink()
    return directory


GGUF_AGAIN = "fetch tiny.gguf again: this copy is damaged or incomplete"
PLAIN_LLAMA = "use a plain Llama model, such as --model smollm2"
ORIGINAL = "use the model's original directory, with its tokenizer.json"

KINDS = {
    # mistake: (what makes the file, what the message says, what comes next)
    "foreign file": (gguf_bytes(lambda raw: b"PK" + raw), "not a GGUF file", "fetch tiny.gguf"),
    "old version": (gguf_bytes(lambda raw: raw[:4] + b"\1" + raw[5:]), "version 1", "convert"),
    "truncated header": (gguf_bytes(lambda raw: raw[:99]), "truncated: its header", GGUF_AGAIN),
    "truncated tensors": (gguf_bytes(lambda raw: raw[:-99]), "truncated: tensor", GGUF_AGAIN),
    "GGUF of another architecture": (gguf(architecture="mamba"), "'mamba'", PLAIN_LLAMA),
    "GGUF rope type": (gguf(strings={"llama.rope.scaling.type": "yarn"}), "'yarn'", PLAIN_LLAMA),
    "GGUF missing tensor": (
        gguf(change=lambda tensors: tensors.pop("output_norm.weight")),
        "output_norm.weight is missing",
        GGUF_AGAIN,
    ),
    "GGUF extra tensor": (
        gguf(change=lambda tensors: tensors.update({"blk.0.x": np.zeros(1, np.float32)})),
        "blk.0.x has no place",
        PLAIN_LLAMA,
    ),
    "GGUF without a tokenizer": (gguf(tokenizer=False), "there is no tokenizer", ORIGINAL),
    "GGUF rope factor": (
        gguf(floats={"llama.rope.scaling.factor": 4.0}),
        "llama.rope.scaling.factor = 4.0 is not supported",
        PLAIN_LLAMA,
    ),
    "GGUF rope factor of old": (
        gguf(floats={"llama.rope.scale_linear": 4.0}),
        "scale_linear = 4.0",
        PLAIN_LLAMA,
    ),
    "GGUF no pre-tokenizer": (gguf(pre=None), "pre-tokenizer 'default'", ORIGINAL),
    "GGUF pre-tokenizer": (gguf(pre="tekken"), "pre-tokenizer 'tekken'", ORIGINAL),
    "another architecture": (folder(model_type="qwen2"), "'qwen2'", PLAIN_LLAMA),
    "rope type": (folder(rope_scaling={"type": "yarn"}), "'yarn'", PLAIN_LLAMA),
    "impossible size": (folder(head_dim=7), "head_dim is 7", "fetch config.json again"),
    "missing size": (folder(hidden_size=None), "hidden_size is missing", "fetch config.json again"),
    "bad JSON": (folder_with("config.json", b"{"), "not valid JSON", "fetch config.json again"),
    "JSON of another kind": (folder_with("config.json", b"[]"), "not an object", "fetch config"),
    "deep JSON": (folder_with("config.json", b"[" * 100_000), "not valid JSON", "fetch config"),
    "missing tensor": (
        weights(norm=None),
        "model.norm.weight is missing",
        "fetch model.safetensors and config.json again",
    ),
    "wrong shape": (weights(norm=torch.ones(3)), "has shape [3]", "fetch model.safetensors and"),
    "integer weights": (
        weights(norm=torch.ones(32, dtype=torch.int8)),
        "of type torch.int8",
        PLAIN_LLAMA,
    ),
    "missing shard": (lost_shard, "model-00002-of-00002.safetensors cannot be read", "put model-0"),
    "no weights": (folder_with("model.safetensors", None), "cannot be read", "put model.safe"),
    "truncated weights": (
        folder_with("model.safetensors", b"abc"),
        "truncated",
        "fetch model.safetensors again",
    ),
    "index without a table": (
        bad_index,
        "no weight_map",
        "fetch model.safetensors.index.json again",
    ),
    "no tokenizer": (
        folder_with("tokenizer.json", None),
        "has no tokenizer",
        "put tokenizer.json of the same model beside config.json",
    ),
    "bad tokenizer": (
        folder_with("tokenizer.json", b'{\n"model": 1}'),
        "not a tokenizer",
        "fetch tokenizer.json again",
    ),
    "tokenizer of a larger model": (
        lambda files: files.safetensors(config=attrs.evolve(files.config, vocab=100)),
        "embeddings for 100",
        "fetch tokenizer.json and config.json again",
    ),
    "template of another encoding": (
        folder_with("chat_template.jinja", b"\xff"),
        "not UTF-8",
        "fetch chat_template.jinja again",
    ),
    "bad template": (
        folder_with("tokenizer_config.json", json.dumps({"chat_template": "{% x"}).encode()),
        "chat template is not valid",
        "mend its chat template",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_mistake_has_a_remedy(files, load, kind):
    make, says, remedy = KINDS[kind]
    path = make(files)
    with pytest.raises(ModelError) as caught:
        load(Gguf if path.suffix == ".gguf" else Safetensors, str(path))
    assert says in caught.value.what
    assert str(path) in caught.value.what
    assert caught.value.next.startswith(remedy) or remedy in caught.value.next
    assert str(caught.value).count("\n") == 1


def test_one_part_of_a_split_gguf_file_says_how_to_merge(files, monkeypatch):
    import gguf

    begin = gguf.GGUFWriter.add_block_count

    def split(writer, count):
        writer.add_uint16("split.count", 2)
        begin(writer, count)

    monkeypatch.setattr(gguf.GGUFWriter, "add_block_count", split)
    path = files.gguf()
    with pytest.raises(ModelError, match=r"one part(.|\n)*llama-gguf-split --merge"):
        Gguf.describe(f"gguf:{path}", Gguf.Options())


def test_a_file_that_may_not_be_read_is_to_be_looked_at(tmp_path):
    error = unreadable(tmp_path / "x.gguf", PermissionError(13, "Permission denied"))
    assert error.next == f"see that x.gguf is a file which you may read: ls -l {tmp_path}/x.gguf"


def test_a_template_that_refuses_in_many_lines_takes_one(files, load):
    directory = files.safetensors()
    refusal = "{{ raise_exception('no\n\nsystem\nrole') }}"
    (directory / "chat_template.jinja").write_text(refusal)
    with pytest.raises(ModelError, match=r"no system role\nNext: leave out --system"):
        load(Safetensors, str(directory)).tokenizer.chat("p", "s")


def test_a_hidden_state_beyond_the_layers_names_those_there_are(load, dense):
    with pytest.raises(ModelError, match="Next: ask for hidden states of layers 0 to 1"):
        dense(load(Random, "random:tiny")).forward(("a", [1]), hidden_layers=(2,))
