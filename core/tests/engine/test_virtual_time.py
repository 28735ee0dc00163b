"""A long run in virtual time: whatever came and went, everything is given back."""

from __future__ import annotations

import random

import pytest
import torch
from parts import all_is_free, engine
from toys import EOS, VOCAB, RowMajor, Toy, ToyModel

from warcore import Output, SamplingParams
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

    def __init__(self, dtype):
        super().__init__(dtype)
        wheel = random.Random(3).choices(range(VOCAB), k=200) + [EOS] * 8
        self.wheel = torch.nn.functional.one_hot(torch.tensor(wheel), VOCAB).float()
        self.at = 0

    def forward(self, batch, attend, hidden_layers=()):
        self.at = (self.at + 7) % (len(self.wheel) - ROWS)
        return Output(self.wheel[self.at : self.at + batch.size])


class Family(Toy):
    @classmethod
    def load(cls, ref, ctx):
        return Quick(ctx.dtype)


def disturb(running, draw, alive):
    """What people do between two steps: send requests, and give up on some."""
    if len(alive) < 3 * ROWS and draw.random() < 0.3:
        prompt = [draw.randrange(EOS) for _ in range(draw.randint(1, CONTEXT - 8))]
        params = SamplingParams(max_new_tokens=draw.choice([0, 1, 5, 20, None]))
        alive.add(running.add_request(prompt, params))
    if alive and draw.random() < 0.02:
        running.abort(draw.choice(sorted(alive)))


@pytest.mark.parametrize(
    ("mixed", "steps"), [(False, STEPS), (True, STEPS // 4)], ids=["chunks apart", "mixed"]
)
def test_after_many_steps_of_arrivals_aborts_and_retracts_all_is_free(mixed, steps):
    device = VirtualDevice({"forward": 1000.0, "schedule": 10.0})
    draw, alive, reasons = random.Random(17), set(), set()
    with engine(
        device=device,
        model=Family,
        backend=Nothing,
        mixed=mixed,
        max_running_requests=ROWS,
        kv_pages=PAGES,
        context_length=CONTEXT,
        prefill_chunk=10,
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
        assert all_is_free(running)
        assert scheduler.in_flight is None
        assert device.now >= 1000.0 * scheduler.steps * 0.9
