"""The demo model in fp32 says, token for token, what was recorded from transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from warcore_model_llama.families import SmolLM2

pytestmark = pytest.mark.model
VECTORS = Path(__file__).parents[4] / "tests" / "vectors" / "golden_smollm2.json"


@pytest.fixture(scope="module")
def cases():
    if not VECTORS.is_file():
        pytest.skip("the recorded vectors are in the repository only")
    return json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]


def test_greedy_tokens_are_the_recorded_ones(demo, cases, load, dense):
    """All requests in one batch; each leaves it when its recorded answer ends."""
    run = dense(load(SmolLM2, demo, torch.float32))
    made = [[] for _ in cases]
    while True:
        waiting = [i for i, case in enumerate(cases) if len(made[i]) < len(case["output_ids"])]
        if not waiting:
            break
        logits = run.forward(*((i, made[i][-1:] or cases[i]["prompt_ids"]) for i in waiting)).logits
        for i, token in zip(waiting, logits.argmax(-1).tolist(), strict=True):
            made[i].append(token)
    assert made == [case["output_ids"] for case in cases]


def test_the_chat_template_gives_the_recorded_prompts(demo, cases):
    from warcore_model_llama.gguf_header import read_header
    from warcore_model_llama.gguf_tokenizer import read_tokenizer

    tokenizer = read_tokenizer(read_header(SmolLM2.path(demo)), 49152)
    for case in cases:
        assert tokenizer.chat(case["prompt"], None) == case["prompt_ids"]
        assert tokenizer.decode(case["output_ids"]) == case["text"].replace("<|im_end|>", "")
