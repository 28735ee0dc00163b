"""What an algorithm that draws owes to samples: they are distributed like the target's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warcore.samplingparams import SamplingParams
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.specworkload import UNFENCED, usual, workload
from warcore.testkit.models.distribution import FAR, deviation, expected_counts, observed_counts
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import definition
from warcore.testkit.runs.check import check
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from warcore.testkit.engines.specworkload import Way
    from warcore.testkit.subject import Subject

SAMPLES, TOGETHER, HEAT = 1_200, 60, 6.0
"""Requests that are sampled from, how many run at once, and the temperature."""
PROMPT = "ab"


@check("spec_algo", needs=("spec_algo.drafts",), devices=("host",))
def distribution(subject: Subject) -> None:
    """With a temperature, samples are distributed like the target's own, whatever was drafted.

    Rejection sampling is exact if a drafted token was drawn from just the distribution that comes
    with it (Leviathan et al. 2023). The likeliest token with its softmax beside it, as a draft that
    was written for greedy decoding gives, makes likely tokens too likely; no text shows it.

    Draw each token from `probs` on its own, or leave `probs` out: then it counts as it is.
    """
    tested = False
    for way in filter(subject.wants, usual(subject)):
        log = DraftLog()
        answers, model = _sampled(subject, way, log)
        if not log.draws:
            continue
        tested = True
        prompt = model.tokenizer.encode(PROMPT)
        for place in (1, 2):
            expected = expected_counts(model, prompt, answers, place, HEAT)
            observed = observed_counts(answers, place, model.info.vocab_size)
            off = deviation(observed, expected)
            if off > FAR:
                worst = int((observed - expected).abs().argmax())
                what = (
                    f"token {worst} came {int(observed[worst])} times among {len(answers)} samples "
                    f"at place {place}, and {float(expected[worst]):.0f} times are to be expected "
                    f"(chi-square, {off:.0f} standard deviations)"
                )
                where = definition(subject.cls, "draft")
                raise Refuted(Failure("samples of the target", what, where, cell=str(way)))
    if not tested and not subject.unmet():
        raise NotApplicable("it gives no probabilities: what it drafts counts as it is, exactly")


def _sampled(subject: Subject, way: Way, log: DraftLog) -> tuple[list[tuple[int, ...]], Any]:
    """Answers of three tokens to one prompt, each with a seed of its own; and the target."""
    load = workload(
        subject,
        way,
        log,
        max_running_requests=TOGETHER,
        kv_pages=8 * TOGETHER,
        context_length=16,
        **UNFENCED,
    )
    with quiet_torch(), torch.random.fork_rng([]), load.engine() as engine:
        torch.manual_seed(1)
        params = [
            SamplingParams(max_new_tokens=4, temperature=HEAT, seed=seed, ignore_eos=True)
            for seed in range(SAMPLES)
        ]
        few = engine.generate([PROMPT] * TOGETHER, params[:TOGETHER], raw=True)
        if log.draws:
            few += engine.generate([PROMPT] * (SAMPLES - TOGETHER), params[TOGETHER:], raw=True)
        return [tuple(output.output_ids) for output in few], Insides(engine).model
