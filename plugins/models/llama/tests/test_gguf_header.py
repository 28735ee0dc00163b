"""GGUF headers: read with struct alone, and refused in words whatever the damage."""

from __future__ import annotations

import random

import gguf
import pytest

from warcore import ModelError
from warcore_model_llama.families import Gguf, WindowOptions
from warcore_model_llama.gguf_header import BLOCKS, read_header


def describe(path):
    return Gguf.describe(f"gguf:{path}", WindowOptions())


def test_block_sizes_are_those_of_the_format():
    known = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] for kind in BLOCKS} == BLOCKS


def test_the_header_equals_what_the_reference_reader_finds(files):
    path = files.gguf()
    header, reference = read_header(path), gguf.GGUFReader(path)
    for tensor in reference.tensors:
        mine = header.tensors[tensor.name]
        assert mine.shape == tuple(map(int, tensor.shape[::-1]))
        assert (mine.offset, mine.size) == (tensor.data_offset, tensor.n_bytes)
    texts = reference.fields["tokenizer.ggml.tokens"].contents()
    assert header.strings("tokenizer.ggml.tokens") == texts
    eps = reference.fields["llama.attention.layer_norm_rms_epsilon"].contents()
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(eps)


def test_a_file_that_lost_its_end_is_called_truncated(files):
    path = files.gguf()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"truncated: tensor \S+ ends at byte"):
        describe(path)


@pytest.mark.parametrize("length", [4, 10, 30, 200, 2000])
def test_a_header_that_breaks_off_is_called_truncated(files, length):
    path = files.gguf()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match="truncated: its header"):
        describe(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" * 10])
def test_another_kind_of_file_is_refused(tmp_path, content):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file"):
        read_header(path)


@pytest.mark.parametrize(
    ("version", "name"),
    [(b"\1\0\0\0", "GGUF version 1"), (b"\4\0\0\0", "version 4"), (b"\0\0\0\3", "big-endian")],
)
def test_other_versions_are_refused(files, version, name):
    path = files.gguf()
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + version + raw[8:])
    with pytest.raises(ModelError, match=name):
        describe(path)


def test_no_damage_to_a_header_ends_in_anything_but_a_model_error(files):
    path = files.gguf()
    raw = path.read_bytes()
    end = min(tensor.offset for tensor in read_header(path).tensors.values())
    rng = random.Random(7)
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(4, end)] = rng.choice((0, 1, 255, rng.randrange(256)))
        path.write_bytes(damaged)
        try:
            describe(path)
        except ModelError as error:
            assert 1 <= str(error).count("\n") + 1 <= 3  # noqa: PT017
