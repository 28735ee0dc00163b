"""Training on a small scale: it computes what the head computes, learns, and leaves all it owes."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import attrs
import pytest
import torch

from warcore import (
    Engine,
    EngineConfig,
    ForwardBatch,
    ForwardMode,
    ModelError,
    SamplingParams,
    WarcoreError,
)
from warcore_spec_eagle.head import DraftHead
from warcore_spec_eagle.train import __main__ as training
from warcore_spec_eagle.train.features import frequent, load_target
from warcore_spec_eagle.train.learning import Surprise
from warcore_spec_eagle.train.network import Network
from warcore_spec_eagle.train.prompts import held_out_prompts, training_prompts
from warcore_spec_eagle.train.texts import Text, Writing, texts
from warcore_spec_eagle.weights import HeadSizes, untrained

QUICK = Writing("random:tiny", "float32", 24, 16, 160)
"""What `--quick` makes of it."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder of a small run."""
    folder = tmp_path_factory.mktemp("head")
    training.main(["--quick", "--folder", str(folder), "--threads", "1"])
    return folder


def test_a_quick_run_learns_and_draws_its_curve(quick):
    points = json.loads((quick / "curve.json").read_text())
    assert points[-1]["loss"] < points[0]["loss"]
    assert points[-1]["held_out"][0] > points[0]["held_out"][0]
    lines = ET.parse(quick / "curve.svg").iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == 1 + len(points[0]["held_out"])


def test_its_head_drafts_better_than_an_untrained_one_and_changes_no_text(quick):
    prompts = held_out_prompts(0)[:3]

    def served(**spec):
        with Engine(EngineConfig(model="random:tiny", dtype="float64", **spec)) as engine:
            params = SamplingParams(max_new_tokens=40, ignore_eos=True)
            outputs = engine.generate(prompts, params)
            return [output.output_ids for output in outputs], engine.stats()["drafts"]

    expected, _ = served()
    accepted = {}
    for head in ("random", str(quick / "head.safetensors")):
        got, drafts = served(spec_algo="eagle", options={"eagle.head": head})
        assert got == expected
        accepted[head] = drafts["accepted"] / drafts["drafted"]
    assert accepted[head] > accepted["random"]


def test_a_broken_run_writes_only_what_is_missing(quick):
    file = quick / "texts.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2]) + lines[-2][:9])
    count = len(lines) - 1  # the first says how they were written
    again = texts(QUICK, training_prompts(0), range(count), file)
    assert [text.prompt for text in again] == list(range(count))
    written = file.read_text().splitlines(keepends=True)
    assert written[:-2] == lines[:-2]
    assert len(written) == len(lines)


def test_texts_that_were_written_another_way_are_refused(tmp_path):
    file = tmp_path / "texts.jsonl"
    texts(QUICK, ["a b"], range(1), file)
    before = file.read_text()
    with pytest.raises(WarcoreError, match=r"was written by .*\n.*another --folder"):
        texts(attrs.evolve(QUICK, seed=1), ["a b"], range(1), file)
    assert file.read_text() == before
    file.write_text(before + "{}\n")
    with pytest.raises(WarcoreError, match="line 3 is no text"):
        texts(QUICK, ["a b"], range(1), file)


@pytest.mark.parametrize("threads", ["0", "-1", "x"])
def test_a_count_of_threads_that_is_none_is_refused(threads, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        training.main(["--quick", "--threads", threads, "--folder", str(tmp_path)])
    assert "--threads" in capsys.readouterr().err


def test_a_model_of_nobody_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as raised:
        training.main(["--quick", "--model", "nobody:knows", "--folder", str(tmp_path)])
    assert raised.value.code == 1
    assert "nobody:knows" in capsys.readouterr().err
    with pytest.raises(ModelError, match="nobody:knows"):
        load_target("nobody:knows", torch.float32)


@pytest.mark.parametrize("prompts", ["", "3", "5:5", "0:a", "0:99999", "1:2:3:4"])
def test_prompts_that_are_none_are_refused(prompts, tmp_path, capsys):
    with pytest.raises(SystemExit):
        training.main(["--prompts", prompts, "--folder", str(tmp_path)])
    assert "are no prompts" in capsys.readouterr().err


def test_topics_are_either_learnt_or_kept_apart():
    learnt, apart = training_prompts(0), held_out_prompts(0)
    assert not set(learnt) & set(apart)
    assert training_prompts(0) == learnt != training_prompts(1)
    assert len(apart) >= 100


def test_the_vocabulary_is_what_answers_use_most():
    written = [Text(0, (7, 7, 3, 5, 5, 9), 2), Text(1, (1, 5, 9, 2), 1)]
    assert frequent(written, 12, 2).tolist() == [5, 9]
    assert frequent(written, 12, 6).tolist() == [0, 1, 2, 3, 5, 9]


def test_the_written_out_gradient_is_that_of_the_cross_entropy():
    draws = torch.Generator().manual_seed(2)
    logits = torch.randn((3, 9), generator=draws, requires_grad=True)
    likeliest = torch.tensor([[0, 3], [8, 1], [4, 5]])
    probs = torch.tensor([[0.9, 0.1], [0.5, 0.5], [1.0, 0.0]])
    dense = torch.zeros(3, 9).scatter_(1, likeliest, probs)
    lost = torch.nn.functional.cross_entropy(logits, dense, reduction="none")
    found = Surprise.apply(logits, likeliest, probs)
    torch.testing.assert_close(found, lost)
    gradients = [
        torch.autograd.grad(e @ torch.tensor([1.0, 2.0, 3.0]), logits) for e in (lost, found)
    ]
    torch.testing.assert_close(*gradients)


# ---- the network and the head --------------------------------------------------------------------


def decoding(tokens, positions, mode):
    size = len(tokens)
    return ForwardBatch(
        mode=mode, size=size, padded_size=size, padded_tokens=size, tokens=tokens,
        rows=torch.ones(size, dtype=torch.int64), seq_lens=positions.int() + 1,
        q_start=torch.arange(size + 1).int(), q_row=torch.arange(size), positions=positions,
        out_slots=positions, max_seq_len=int(positions.max()) + 1,
    )  # fmt: skip


class Cached:
    """Attention over a cache of one sequence, written at the batch's positions."""

    def __init__(self, length, sizes):
        shape = (length, sizes.kv_heads, sizes.head_dim)
        self.k, self.v = torch.zeros(shape), torch.zeros(shape)

    def at(self, positions):
        def attend(q, k, v, layer):
            self.k[positions], self.v[positions] = k, v
            group = layer.q_heads // layer.kv_heads
            keys, values = (e.repeat_interleave(group, 1) for e in (self.k, self.v))
            scores = torch.einsum("thd,lhd->htl", q, keys) * layer.scale
            hidden = torch.arange(len(self.k)) > positions[:, None]
            return torch.einsum(
                "htl,lhd->thd", scores.masked_fill(hidden, -1e9).softmax(-1), values
            )

        return attend


@torch.no_grad()
def test_the_network_computes_what_the_head_drafts_step_by_step():
    target = load_target("random:tiny", torch.float32)
    sizes = HeadSizes(32, 258, 64, 4, 2, 8, 48)
    weights = attrs.evolve(untrained(sizes, seed=3))
    head = DraftHead(weights, target, device=torch.device("cpu"), dtype=torch.float32)
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 258, (12,), generator=draws)
    hidden = torch.randn((12, 32), generator=draws)
    network = Network(weights, target)
    levels = network(tokens[None], hidden[None], 3)
    for begin in (2, 5, 8):
        # A draft that begins once `begin` places of the text are known, and is always right.
        cache = Cached(12, sizes)
        known = torch.arange(begin)
        head.follow(hidden[:begin], prompt=True)
        batch = decoding(tokens[1 : begin + 1], known, ForwardMode.EXTEND)
        output = head.forward(batch, cache.at(known))
        head.keep_features(1)
        for depth, level in enumerate(levels):
            place = begin - 1 + depth
            torch.testing.assert_close(output.logits[-1], level.normed[0, place] @ network.rows.T)
            head.follow(output.hidden[0, -1:], prompt=False)
            at = torch.tensor([place + 1])
            batch = decoding(tokens[place + 2, None], at, ForwardMode.DECODE)
            output = head.forward(batch, cache.at(at))
