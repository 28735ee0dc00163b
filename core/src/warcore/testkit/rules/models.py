"""What a model family owes to the engine that runs its models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from warcore.testkit.detectors.waiting import Fetches, Waits
from warcore.testkit.models.comparing import (
    at_places,
    boundaries,
    close,
    hidden,
    prompt,
    refute_alike,
    refute_other_layer,
    same,
    steps,
    tensors,
)
from warcore.testkit.models.dense import Dense
from warcore.testkit.models.references import loaded, options_of
from warcore.testkit.outcome import Failure, Refuted
from warcore.testkit.runs.check import check

if TYPE_CHECKING:
    from warcore.testkit.subject import Subject

LENGTHS: Final = (9, 1, 6, 40, 2, 5, 1, 3)
"""Prompt tokens of the requests of a batch."""
LONG: Final = 60
"""Tokens of a prompt that is cut into chunks."""
DESCRIBED: Final = ("model.describe_agrees_with_load",)


@check("model")
def describe_agrees_with_load(subject: Subject) -> None:
    """What `describe` says from headers is what the loaded model is: layers, sizes, vocabulary.

    An engine made key and value caches for 32 layers, whatever the model had (ipex-llm #9771);
    another stored 32 where a model had 28 (LMCache #241). Both learned it from a shape error later.

    Build `ModelInfo` in one function that both `describe` and `load` call, and pass its `layers` to
    `attend` in order, once each.
    """
    it = loaded(subject)
    again = subject.cls.describe(it.ref, options_of(subject))
    same("describe says the same each time", again, it.described)
    same("a model's info is what its family described", it.model.info, it.described)
    same("its name is the canonical reference", it.described.name, it.ref)
    layers = it.described.layers
    same("layers are numbered from 0", [layer.index for layer in layers], [*range(len(layers))])
    for layer in layers:
        same("queries share keys evenly", layer.q_heads % layer.kv_heads, 0)
    dense = Dense(it.model, it.device)
    output = dense.forward(("only", prompt(it, 5)))
    same("attend is called once per layer, in order", dense.calls, [*layers])
    same("logits are [tokens, vocab]", [*output.logits.shape], [5, it.described.vocab_size])


@check("model", needs=DESCRIBED)
def rows_do_not_touch(subject: Subject) -> None:
    """A request's logits do not depend on the other requests of its batch, nor on padding.

    The longest text of a batch swayed the logits of the others in Bloom (transformers #26380), and
    padding tokens those of real ones in Mamba2 (mamba #783).

    Let nothing but `attend` look along the tokens: no statistics over [T, ...], no capacity that
    tokens compete for, no positions counted from the start of the batch.
    """
    it = loaded(subject)
    prompts = {f"r{n}": prompt(it, count, n) for n, count in enumerate(LENGTHS, 1)}
    alone = {who: steps(it, [who], prompts)[who] for who in prompts}
    everybody, few = [*prompts], [*prompts][:3]
    for order in (few, [few[2], *few[:2]], everybody[::-1]):
        for padding in (0, 3):
            cell = f"{'+'.join(order)}-padding{padding}"
            if not subject.wants(cell):
                continue
            for who, logits in steps(it, order, prompts, padding).items():
                close(
                    it,
                    f"{who} of {', '.join(order)} with {padding} padding tokens",
                    logits,
                    alone[who],
                    rule="a request's logits are its own",
                    cell=cell,
                )


@check("model", needs=DESCRIBED)
def chunks_equal_the_whole(subject: Subject) -> None:
    """A prompt gives the same logits whether it comes whole, in chunks, or token by token.

    Positions of a chunk were cut at one end only in vLLM (#10388) and counted anew in transformers
    (#43082): long prompts got a rotation that was not theirs.

    Take each token's position from `batch.positions`, never from its place in the batch, and keep
    nothing of one step for the next: what must last goes through `attend`.
    """
    it = loaded(subject)
    tokens = prompt(it, LONG)
    whole = Dense(it.model, it.device).forward(("only", tokens)).logits.clone()
    for size in (1, 3, 8, 40):
        if not subject.wants(f"chunks{size}"):
            continue
        dense = Dense(it.model, it.device)
        parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        logits = torch.cat([dense.forward(("only", part)).logits.clone() for part in parts])
        close(
            it,
            f"in chunks of {size}",
            logits,
            whole,
            rule="chunks give what the whole gives",
            cell=f"chunks{size}",
        )


@check("model", needs=DESCRIBED)
def places_differ(subject: Subject) -> None:
    """Each position of the context is told from every other one, to its end: in a layer whose
    queries and keys depend on the position at all, no two positions have the same.

    A table of rotations that ended at 4096 served contexts of ten times as many tokens (pegainfer
    #220). Shorter texts are right, and nothing is out of range where the table is cut or wraps.

    Make such tables for `max_context` positions and look each up as it is, or describe fewer.
    """
    it = loaded(subject)
    places = boundaries(it)
    for layer, found in enumerate(at_places(it, places)):
        refute_alike(it, layer, places, found)


@check("model", needs=DESCRIBED)
def logits_at_is_respected(subject: Subject) -> None:
    """Logits come for the tokens that `logits_at` names, in its order; for all if it is None.

    Under chunked prefill DJL-serving took log-probabilities from rows of other tokens (#2299) and
    sent a token that does not exist to the client.

    Select the rows with `index_select(0, batch.logits_at)` before the head, and nothing else.
    """
    it = loaded(subject)
    tokens = prompt(it, 7)
    every = Dense(it.model, it.device).forward(("only", tokens)).logits.clone()
    same("logits of every token", every.shape[0], 7)
    for places in ([6], [4, 1], [0, 6, 3]):
        cell = "+".join(map(str, places))
        if not subject.wants(cell):
            continue
        at = torch.tensor(places, device=it.device)
        logits = Dense(it.model, it.device).forward(("only", tokens), logits_at=at).logits
        same(f"logits of tokens {places}", logits.shape[0], len(places))
        close(
            it,
            f"at {places}",
            logits,
            every[at],
            rule="logits are those of the tokens named",
            cell=cell,
        )


@check("model", needs=DESCRIBED)
def hidden_states_are_those_asked_for(subject: Subject) -> None:
    """`hidden` holds the residual stream after each layer asked for, whatever else was asked.

    SGLang kept the stream of one model without a copy (#39286): the next layer wrote over it, and a
    draft head was right 1.06 times a step in place of 1.89. Counted from the other end of the layer
    it is wrong as well (#25454).

    Copy the stream after layer i, before layer i + 1 runs, and stack the copies in the order of
    `hidden_layers`; return None for `()`.
    """
    it = loaded(subject)
    layers, tokens = len(it.described.layers), prompt(it, 6)
    nothing = Dense(it.model, it.device).forward(("only", tokens)).hidden
    if nothing is not None:
        raise Refuted(Failure("no hidden states if none are asked for", "there are some"))
    asked = tuple(sorted({0, layers // 2, layers - 1}, reverse=True))
    together = hidden(it, tokens, asked)
    for place, layer in enumerate(asked):
        if not subject.wants(f"layer{layer}"):
            continue
        single = hidden(it, tokens, (layer,))[0]
        close(
            it,
            f"layer {layer} asked for with {asked}",
            together[place],
            single,
            rule="hidden states do not depend on what else is asked for",
            cell=f"layer{layer}",
        )
    for layer in asked:
        if subject.wants(f"layer{layer}"):
            refute_other_layer(it, tokens, layer)


@check("model", needs=DESCRIBED)
def forward_is_pure(subject: Subject) -> None:
    """The same batch gives the same output again, and forward writes nothing that it was given.

    With chunked prefill vLLM gave other nonsense each time at temperature 0 (#4697): memory that
    nobody had filled went into the sum.

    Write only to what you have made in this call; no `out=`, `copy_` or `+=` on the batch's tensors
    or on weights, no buffer that lasts from one step to the next.
    """
    it = loaded(subject)
    requests = [("first", prompt(it, 8)), ("second", prompt(it, 3, 1))]
    dense = Dense(it.model, it.device)
    batch = dense.batch(*requests)
    before = tensors(batch)
    one = dense.run(batch, requests).logits.clone()
    for name, tensor in tensors(batch).items():
        if not torch.equal(tensor, before[name]):
            raise Refuted(Failure("forward only reads its batch", f"batch.{name} was written"))
    if not subject.wants("again"):
        return
    Dense(it.model, it.device).forward(("other", prompt(it, 5, 2)))
    again = Dense(it.model, it.device).forward(*requests).logits
    close(
        it, "a second time", again, one, rule="the same batch gives the same output", cell="again"
    )


@check("model", needs=DESCRIBED)
def forward_never_waits(subject: Subject) -> None:
    """A forward asks the device for no value, and makes no tensor whose size depends on one.

    One such question in each step held up SGLang's scheduler until the device had come so far
    (#31468, #29075): the overlap was gone, and inside a graph it cannot be captured at all.

    Take sizes from shapes and from the batch's host numbers (`padded_tokens`, `max_seq_len`,
    `max_q_len`); use `torch.where` or `index_select` in place of boolean indexing, `.item()` and
    `.tolist()`.
    """
    it = loaded(subject)
    waits = Waits(Path(type(it.model).forward.__code__.co_filename).parent)
    dense = Dense(it.model, it.device)
    at = torch.tensor([5], device=it.device)
    with Fetches(waits), waits:
        dense.forward(("only", prompt(it, 6)), logits_at=at)
        dense.forward(("only", prompt(it, 1)))
    if waits.found:
        what, where = waits.found[0]
        others = len({place for _, place in waits.found} - {where})
        raise Refuted(
            Failure("forward never waits", f"it calls {what}", where, ("dispatch",), more=others)
        )
