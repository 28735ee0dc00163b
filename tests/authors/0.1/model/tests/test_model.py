"""What this family says before a model is loaded, and its tokenizer."""

import pytest

from warcore_model_sample import Sample
from warcore_model_sample.network import END, Bytes


@pytest.mark.parametrize("ref", ["sample", "Sample"])
def test_its_name_is_its_own_and_the_canonical_one(ref):
    assert Sample.recognises(ref) == "sample"
    assert Sample.recognises(f"{ref}:other") is None


def test_text_comes_back_from_its_bytes_without_the_end():
    ids = Bytes().encode("grün")
    assert len(ids) == 5
    assert Bytes().decode([*ids, END]) == "grün"
