"""What an algorithm owes to the answers: they are those of the target alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warcore.backend import TensorSpec
from warcore.testkit.engines.answers import refuse_other_answers
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.specworkload import (
    UNFENCED,
    Way,
    draft_spec,
    many,
    tiny_info,
    usual_and_many,
    ways,
    workload,
)
from warcore.testkit.outcome import Failure, Refuted, Unproven
from warcore.testkit.packages.definitions import definition, line_of
from warcore.testkit.runs.check import check
from warcore.testkit.stands.recorders import Recording

if TYPE_CHECKING:
    from warcore.spec import Draft
    from warcore.testkit.engines.workload import Served
    from warcore.testkit.subject import Subject

TOTAL = 1e-2
"""Probabilities add up to 1 so far, in half precision too."""
BUILT = ("spec_algo.why_not",)


@check("spec_algo")
def why_not(subject: Subject) -> None:
    """`why_not` gives texts, the same each time, and what it accepts can be built and runs; its
    hidden layers are the target's, and its relay is of TensorSpecs.

    A draft with another vocabulary than the target's, or more drafted tokens than a row has room
    for, passed the start of an engine and gave an index out of range under load (SGLang #35059 was
    first taken for one of those).

    Give every reason that sizes, vocabulary, K and topk can be; allocate nothing there.
    """
    _refuse_other_layers(subject)
    for way in filter(subject.wants, _grid(subject)):
        cls = subject.cls
        first, second = (cls.why_not(draft_spec(subject, way)) for _ in range(2))
        if not isinstance(first, list) or not all(isinstance(r, str) and r for r in first):
            raise Refuted(_declared(subject, "why_not", "a list of texts", first, way))
        if first != second:
            raise Refuted(_declared(subject, "why_not", "the same reasons", second, way))
        if first or (way.topk > 1 and not cls.tree):
            continue
        _refuse_relay(subject, way)
        log = DraftLog()
        served = workload(subject, way, log, **UNFENCED).run()
        _refuse_errors(subject, served, log, "what it accepts runs", way)


def _grid(subject: Subject) -> list[Way]:
    tokens = sorted({1, 2, min(subject.cls.default_tokens, 7), 7})
    found = [Way(f"k{k}", k) for k in tokens]
    return [*found, Way("tree2", 2, 2), Way("tree5", 5, 2)]


def _refuse_other_layers(subject: Subject) -> None:
    info = tiny_info()
    asked = subject.cls.hidden_layers(info)
    there = {layer.index for layer in info.layers}
    if not isinstance(asked, tuple) or not there.issuperset(asked):
        what = f"hidden_layers: a tuple of layers among {sorted(there)}"
        raise Refuted(_declared(subject, "hidden_layers", what, asked))


def _refuse_relay(subject: Subject, way: Way) -> None:
    state = subject.cls.relay(draft_spec(subject, way))
    right = isinstance(state, dict) and all(
        isinstance(name, str) and isinstance(spec, TensorSpec) for name, spec in state.items()
    )
    if not right or state != subject.cls.relay(draft_spec(subject, way)):
        raise Refuted(_declared(subject, "relay", "relay: names and TensorSpecs", state, way))


def _declared(
    subject: Subject, name: str, owed: str, got: object, way: Way | None = None
) -> Failure:
    where = definition(subject.cls, name)
    return Failure(owed, f"it is {got!r}", where, cell="" if way is None else str(way))


# ---- drafts --------------------------------------------------------------------------------------


@check("spec_algo", needs=BUILT, devices=("host",))
def drafts(subject: Subject) -> None:
    """Each drafted token is one of the vocabulary, follows a node before it, and was drawn from a
    distribution if one is given; no more than K are meant.

    Drafted tokens go into the target's embedding unseen. One out of range is a fault on a GPU, a
    whole step later and in code that has nothing to do with it (`indexSelectSmallIndex` in SGLang
    #35059).

    Propose a valid token also where nothing is known, and shorten `lengths`. Beyond a request's own
    pages a draft model reads what others have had: draw from no distribution with NaN in it.
    """
    for way in filter(subject.wants, usual_and_many(subject)):
        log = DraftLog()
        workload(subject, way, log, **UNFENCED).run()
        for number, (draft, own) in enumerate(zip(log.drafts, log.own, strict=False)):
            wrong = _odd(draft, own, tiny_info().vocab_size)
            if wrong:
                what = f"draft {number} has {wrong}"
                where = definition(subject.cls, "draft")
                raise Refuted(Failure("drafts that a target can take", what, where, cell=str(way)))


def _odd(draft: Draft, own: torch.Tensor, vocab: int) -> str:
    """What is wrong with a draft, in words; empty if nothing is. own: where probabilities count."""
    tokens = own.shape[1]
    least, most = (int(each) for each in draft.tokens.aminmax())
    if least < 0 or most >= vocab:
        return f"tokens from {least} to {most}, of a vocabulary of {vocab}"
    if draft.parents is not None:
        before = torch.arange(tokens)
        if bool(((draft.parents < 0) | (draft.parents > before)).any()):
            return "a parent that does not come before its child"
    if draft.lengths is not None:
        least, most = (int(each) for each in draft.lengths.aminmax())
        if least < 0 or most > tokens:
            return f"lengths from {least} to {most}, with {tokens} tokens"
    if draft.probs is not None:
        if draft.probs.shape[-1] != vocab:
            return f"probabilities of {draft.probs.shape[-1]} tokens, of a vocabulary of {vocab}"
        total = draft.probs.double().sum(-1)
        # A NaN fails the second comparison.
        right = (draft.probs >= 0).all(-1) & ((total - 1).abs() < TOTAL)
        if not bool((right | ~own).all()):
            return "probabilities that do not add up to 1"
    return ""


# ---- answers -------------------------------------------------------------------------------------


@check(
    "spec_algo", needs=("spec_algo.drafts",), after=("spec_algo.last_reader",), devices=("host",)
)
def lossless(subject: Subject) -> None:
    """The answers with it are those without it, token for token, at temperature 0: in every loop,
    batch size and chunk, through steps back and aborts, and to the end of the context.

    Corruption by a race or by a wrong position is silent: answers stay fluent, and only a run of
    the same requests without speculation tells (SGLang #34959 was found by such an oracle, after
    throughput had looked right).

    Write into nothing that a batch holds, nor into the target's caches; execute draft runners on
    `batch` and `batch.after(tokens)`.
    """
    said = 0
    for way in filter(subject.wants, ways(subject, _situations(subject))):
        log = DraftLog()
        load = workload(subject, way, log)
        fields = {name: value for name, value in way.fields.items() if name != "loop"}
        owed = workload(subject, None, requests=way.requests, **fields).run()
        got = load.run()
        _refuse_errors(subject, got, log, "steps that run", way)
        failure = Failure("the answers of the target alone", "", cell=str(way))
        refuse_other_answers(load, got, owed, failure, log.excuses)
        said += log.drafted
    if not said and not subject.unmet():
        raise Unproven("inconclusive: it has never drafted a token")


def _situations(subject: Subject) -> list[Way]:
    usual_tokens = min(subject.cls.default_tokens, 7)
    fields: dict[str, dict[str, Any]] = {
        "normal": {"loop": "normal"},
        "mixed": {"mixed": True},
        "alone": {"max_running_requests": 1},
        "chunks": {"prefill_chunk": 3, "page_size": 1, "kv_pages": 56},
        "captured": {"graph_runner": Recording},
    }
    found = [Way(f"k{tokens}", tokens) for tokens in sorted({1, usual_tokens, 3, 7})]
    found += [Way(name, usual_tokens, 1, more) for name, more in fields.items()]
    return [
        *found,
        many(usual_tokens),
        Way("tree2", 2, 2),
        Way("tree5", 5, 2),
        Way("tree-mixed", 4, 2, {"mixed": True}),
    ]


def _refuse_errors(
    subject: Subject, served: Served, log: DraftLog, declared: str, way: Way
) -> None:
    if served.error is not None:
        where = line_of(log.errors[0], subject.cls) if log.errors else ""
        raise Refuted(Failure(declared, f"a step failed: {served.error}", where, cell=str(way)))
