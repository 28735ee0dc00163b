"""Text to ids and back."""

from __future__ import annotations

import json
import random

import attrs
import pytest

from warcore import ModelError
from warcore_model_llama.byte_tokenizer import BOS, EOS, ByteTokenizer
from warcore_model_llama.families import DEMO_FILE, Gguf, Safetensors, SmolLM2
from warcore_model_llama.gguf_header import read_header
from warcore_model_llama.gguf_tokenizer import read_tokenizer

TEXTS = ["", " ", "hello", "don't  stop\n\n", "Ünïcödé 日本語 🎉", "<|eos|>hell<|bos|>", "a\ud800b"]


def test_bytes_are_their_own_ids():
    assert ByteTokenizer().encode("aé") == [BOS, 97, 0xC3, 0xA9]


def test_bytes_decode_without_specials_and_mark_what_is_incomplete():
    assert ByteTokenizer().decode([BOS, 97, 0xC3, 0xA9, 0xC3, EOS]) == "aé\N{REPLACEMENT CHARACTER}"


def test_ids_beyond_the_bytes_show_themselves():
    assert ByteTokenizer().decode([97, 1000]) == "a<1000>"


def test_the_byte_chat_template_puts_the_system_text_first():
    tokenizer = ByteTokenizer()
    assert tokenizer.chat("hi", None) == tokenizer.encode("hi\n")
    assert tokenizer.chat("hi", "be brief") == tokenizer.encode("be brief\nhi\n")


@pytest.fixture(params=["gguf", "safetensors"])
def tokenizer(request, files, load):
    if request.param == "gguf":
        return load(Gguf, str(files.gguf(pre="gpt-2"))).tokenizer
    return load(Safetensors, str(files.safetensors())).tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_way_there_and_back(tokenizer, text):
    plain = text.replace("<|eos|>", "").replace("<|bos|>", "").replace("\ud800", "?")
    assert tokenizer.decode(tokenizer.encode(text)) == plain


def test_merges_and_specials_are_found(tokenizer):
    he, ll, bos, eos = 256, 257, 258, 259
    assert tokenizer.encode("hell<|eos|>") == [he, ll, eos]
    assert tokenizer.eos_ids == {eos}
    assert tokenizer.chat("hell", None)[0] == bos


def test_incomplete_utf8_becomes_the_replacement_character(tokenizer):
    first, *_ = tokenizer.encode("é")
    assert tokenizer.decode([first]) == "\N{REPLACEMENT CHARACTER}"


def test_the_chat_template_is_rendered(tokenizer):
    text = "<|bos|>[system]s<|eos|>[user]p<|eos|>[assistant]"
    assert tokenizer.chat("p", "s") == tokenizer.encode(text)
    assert tokenizer.chat("p", None) == tokenizer.encode(text.replace("[system]s<|eos|>", ""))


def set_template(folder, template):
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"chat_template": template}))


def test_a_template_file_wins(files, load):
    folder = files.safetensors()
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    tokenizer = load(Safetensors, str(folder)).tokenizer
    assert tokenizer.chat("é'", None) == tokenizer.encode('"é\'"')


def test_without_a_template_chat_says_what_to_do(files, load):
    folder = files.safetensors()
    set_template(folder, None)
    with pytest.raises(ModelError, match=r"has no chat template(.|\n)*--raw"):
        load(Safetensors, str(folder)).tokenizer.chat("p", None)


def test_what_training_left_in_the_tokenizer_cuts_and_fills_no_prompt(files, load):
    import tokenizers

    folder = files.safetensors()
    text = "a prompt of more than eight tokens"
    whole = load(Safetensors, str(folder)).tokenizer.encode(text)
    core = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    core.enable_truncation(8)
    core.enable_padding(length=64)
    core.save(str(folder / "tokenizer.json"))
    tokenizer = load(Safetensors, str(folder)).tokenizer
    assert tokenizer.encode(text) == whole
    assert tokenizer.encode("a") == whole[:1]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if tools is not none or documents is not none %}tools{% endif %}hi", "hi"),
        ("{{ pad_token }}hi", "<|eos|>hi"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "p"),
        ("{{ [1, 'é'] | tojson(ensure_ascii=True, separators=(',', ':')) }}", '[1,"\\u00e9"]'),
    ],
)
def test_a_template_finds_what_transformers_gives_it(files, load, template, text):
    folder = files.safetensors()
    set_template(folder, template)
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|eos|>"}))
    tokenizer = load(Safetensors, str(folder)).tokenizer
    assert tokenizer.chat("p", None) == tokenizer.encode(text)


def test_a_refusal_names_the_system_message_only_if_there_is_one(files, load):
    folder = files.safetensors()
    set_template(folder, "{{ raise_exception('never') }}")
    tokenizer = load(Safetensors, str(folder)).tokenizer
    for system, remedy in ((None, "continue the raw"), ("s", "leave out --system, or continue")):
        with pytest.raises(ModelError) as caught:
            tokenizer.chat("p", system)
        assert caught.value.next.startswith(remedy)


def test_a_template_that_refuses_is_quoted(files, load):
    folder = files.safetensors()
    set_template(folder, "{{ raise_exception('no system role') }}")
    with pytest.raises(ModelError, match="the chat template refuses: no system role"):
        load(Safetensors, str(folder)).tokenizer.chat("p", "s")


def test_a_template_cannot_leave_its_sandbox(files, load):
    folder = files.safetensors()
    set_template(folder, "{{ messages.__class__.__mro__ }}")
    with pytest.raises(ModelError, match="unsafe"):
        load(Safetensors, str(folder)).tokenizer.chat("p", None)


def test_all_end_tokens_of_the_generation_settings_count(files, load):
    folder = files.safetensors()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load(Safetensors, str(folder)).tokenizer.eos_ids == {7, 9, 259}


def test_a_vocabulary_beyond_the_embeddings_is_refused(files, load):
    config = attrs.evolve(files.config, vocab=100)
    with pytest.raises(ModelError, match="260 tokens, but embeddings for 100"):
        load(Gguf, str(files.gguf(config=config)))
    with pytest.raises(ModelError, match="token 259, but the model has embeddings for 100"):
        load(Safetensors, str(files.safetensors(config=config)))


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["a", " 12", "\n", "\n", "345"]),
        ("smollm", ["a", " ", "1", "2", "\n\n", "3", "4", "5"]),
        ("llama-bpe", ["a", " ", "12", "\n\n", "345"]),
    ],
)
def test_each_pre_tokenizer_cuts_words_its_own_way(files, pre, pieces):
    """Sources: the tokenizers of GPT-2, SmolLM2 (digits apart, then GPT-2) and Llama 3."""
    core = read_tokenizer(read_header(files.gguf(pre=pre)), 260)._core
    cut = core.pre_tokenizer.pre_tokenize_str("a 12\n\n345")
    assert [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in cut] == pieces


PIECES = [
    "hello", "World", " ", "  ", "\n", "\n\n", "\t", "é", "naïve", "日本語", "🎉", "<|im_start|>",
    "<|im_end|>", "<|endoftext|>", "user", "don't", "I'LL", "'s", "!!", "...", "def f(x):\n    y",
    "\u00a0", "العربية", "\r\n", "e\u0301", "ﬁ", "_", "-", "straße", "https://example.org/?q=a&b",
]  # fmt: skip


@pytest.mark.model
@pytest.mark.filterwarnings("ignore")
def test_the_demo_tokenizer_equals_transformers(demo):
    """Without digits: transformers loses the step that sets them apart when it reads a GGUF."""
    transformers = pytest.importorskip("transformers")

    path = SmolLM2.path(demo)
    ours = read_tokenizer(read_header(path), 49152)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=DEMO_FILE)
    rng = random.Random(0)
    for _ in range(400):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        for system in (None, "Be brief."):
            told = [] if system is None else [{"role": "system", "content": system}]
            chat = theirs.apply_chat_template(
                [*told, {"role": "user", "content": text}],
                add_generation_prompt=True,
                return_dict=False,
            )
            assert ours.chat(text, system) == chat
