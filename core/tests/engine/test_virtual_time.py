"""A long run in virtual time: whatever came and went, everything is given back."""

from __future__ import annotations

import random

import pytest
import torch
from parts import all_is_free, engine
from toys import EOS, VOCAB, RowMajor, Toy, ToyModel

from warcore import Draft, Output, SamplingParams, SpecAlgorithm
from warcore.device.virtual import VirtualDevice

STEPS = 100_000
ROWS, PAGE, PAGES, CONTEXT = 4, 4, 20, 48


class Nothing(RowMajor):
    """Caches nothing and attends to nothing."""

    @classmethod
    def kv_cache(cls, spec):
        return {}

    def init_forward_metadata_out_graph(self, batch):
        pass


class Quick(ToyModel):
    """Next tokens from a wheel of logits that ends an answer now and then."""

    tokens = range(VOCAB)

    def __init__(self, dtype):
        super().__init__(dtype)
        wheel = random.Random(3).choices(self.tokens, k=200) + [EOS] * 8
        self.wheel = torch.nn.functional.one_hot(torch.tensor(wheel), VOCAB).float()
        self.at = 0

    def forward(self, batch, attend, hidden_layers=()):
        count = batch.padded_tokens if batch.logits_at is None else len(batch.logits_at)
        self.at = (self.at + 7) % (len(self.wheel) - count)
        return Output(self.wheel[self.at : self.at + count])


class Few(Quick):
    """Says little else than two tokens, so that drafts stand as often as not."""

    tokens = (1, 2)


class Drafter(SpecAlgorithm):
    """Draws one of two tokens, as many times as it likes."""

    later_prefill_reader = False

    def __init__(self, ctx):
        super().__init__(ctx)
        self.draws = torch.Generator().manual_seed(5)

    def draft(self, batch):
        shape, most = (batch.size, self.ctx.num_tokens), self.ctx.num_tokens + 1
        lengths = torch.randint(0, most, shape[:1], generator=self.draws)
        return Draft(torch.randint(1, 3, shape, generator=self.draws), lengths=lengths)


class Family(Toy):
    model = Quick

    @classmethod
    def load(cls, ref, ctx):
        return cls.model(ctx.dtype)


class FewWords(Family):
    model = Few


def disturb(running, draw, alive):
    """What people do between two steps: send requests, and give up on some."""
    if len(alive) < 3 * ROWS and draw.random() < 0.3:
        prompt = [draw.randrange(EOS) for _ in range(draw.randint(1, CONTEXT - 8))]
        params = SamplingParams(max_new_tokens=draw.choice([0, 1, 5, 20, None]))
        alive.add(running.add_request(prompt, params))
    if alive and draw.random() < 0.02:
        running.abort(draw.choice(sorted(alive)))


DRAFTED = {"model": FewWords, "spec_algo": Drafter, "spec_tokens": 3}
RUNS = [
    pytest.param({}, STEPS, id="chunks apart"),
    pytest.param({"mixed": True}, STEPS // 4, id="mixed"),
    pytest.param(DRAFTED, STEPS // 10, id="drafted"),
    pytest.param(DRAFTED, STEPS, id="drafted for long", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("config", "steps"), RUNS)
def test_after_many_steps_of_arrivals_aborts_and_retracts_all_is_free(config, steps):
    device = VirtualDevice({"forward": 1000.0, "schedule": 10.0})
    draw, alive, reasons = random.Random(17), set(), set()
    with engine(
        device=device,
        backend=Nothing,
        max_running_requests=ROWS,
        kv_pages=PAGES,
        context_length=CONTEXT,
        prefill_chunk=10,
        **{"model": Family, **config},
    ) as running:
        scheduler = running._assembly.scheduler
        while scheduler.steps < steps:
            disturb(running, draw, alive)
            for output in running.step():
                alive.remove(output.index)
                reasons.add(output.finish_reason)
        for number in sorted(alive)[::2]:
            running.abort(number)
        while running.has_work:
            running.step()
        assert reasons == {"stop", "length", "abort"}
        assert running.stats()["retracts"] > steps // 500
        drafts = running.stats()["drafts"]
        assert drafts is None or 0.3 < drafts["accepted"] / drafts["drafted"] < 0.7
        assert all_is_free(running)
        assert scheduler.in_flight is None
        assert device.now >= 1000.0 * scheduler.steps * 0.9
