"""`python -m warcore_spec_eagle.train`: write texts, learn from them, measure, draw the curve."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import torch

from warcore import WarcoreError
from warcore_spec_eagle.train.curve import picture
from warcore_spec_eagle.train.features import features, frequent, load_target
from warcore_spec_eagle.train.learning import Learning, Point, learn
from warcore_spec_eagle.train.measuring import measure
from warcore_spec_eagle.train.network import Network
from warcore_spec_eagle.train.prompts import held_out_prompts, training_prompts
from warcore_spec_eagle.train.texts import Writing, texts
from warcore_spec_eagle.weights import HeadSizes, HeadWeights, untrained, write_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore import Model
    from warcore_spec_eagle.train.texts import Text


PROMPTS: Final = "0:3158"
"""All that there are."""


@attrs.frozen
class Recipe:
    """Everything that a head follows from."""

    writing: Writing
    learning: Learning
    prompts: str = PROMPTS
    """FROM:TO, or several with commas: which of the prompts are learnt from."""
    held_out: int = 48
    """Prompts whose texts are foreseen, not learnt."""
    measured: int = 20
    """Of these, prompts that an engine answers with the head in the end."""
    draft_vocab: int = 8192
    drafted: int = 4

    def places(self) -> list[int]:
        """The places that `prompts` names. WarcoreError if it names none that there are."""
        try:
            spans = [_span(*map(int, span.split(":"))) for span in self.prompts.split(",")]
        except (ValueError, TypeError) as error:
            raise _unclear(self.prompts) from error
        places = [place for span in spans for place in span]
        there = range(len(training_prompts(self.writing.seed)))
        if not places or not set(places) <= set(there):
            raise _unclear(self.prompts)
        return places


def _span(first: int, end: int) -> range:
    return range(first, end)


def _unclear(prompts: str) -> WarcoreError:
    return WarcoreError(
        f"--prompts {prompts} are no prompts", next="--prompts FROM:TO, or several with commas"
    )


def recipe_of(arguments: argparse.Namespace) -> Recipe:
    """What was asked for; --quick is a small one of the same kind."""
    model = arguments.model or ("random:tiny" if arguments.quick else "smollm2")
    seed = arguments.seed
    if arguments.quick:
        writing = Writing(model, "float32", new_tokens=24, running=16, context=160, seed=seed)
        learning = Learning(8, texts=4, rate=3e-2, seed=seed, mixed=False)
        return Recipe(writing, learning, "0:24", 8, 2, 64)
    writing = Writing(model, seed=seed)
    return Recipe(writing, Learning(arguments.epochs, seed=seed), arguments.prompts)


def train(recipe: Recipe, folder: Path) -> Path:
    """Train a head; the file that it lies in. What is in `folder` already is not made again."""
    writing, seed = recipe.writing, recipe.writing.seed
    apart = held_out_prompts(seed)[: recipe.held_out]
    learnt = texts(writing, training_prompts(seed), recipe.places(), folder / "texts.jsonl")
    kept = texts(writing, apart, range(len(apart)), folder / "held-out.jsonl")
    _say(f"{_answered(learnt)} tokens to learn from, {_answered(kept)} kept apart")
    target = load_target(writing.model, getattr(torch, writing.dtype))
    start = _start(target, recipe, learnt)
    head, curve = folder / "head.safetensors", folder / "curve"

    def best(weights: HeadWeights, point: Point) -> None:
        made_by = {"target": target.info.name, "recipe": json.dumps(attrs.asdict(recipe))}
        write_head(head, weights, {**made_by, "step": str(point.step)})
        _say(f"step {point.step}: loss {point.loss:.3f}, foreseen {point.held_out}")

    points = learn(
        Network(start, target),
        features(target, learnt, start.to_target),
        features(target, kept, start.to_target),
        recipe.learning,
        best=best,
        curve=curve.with_suffix(".json"),
    )
    drawn = picture(points, f"Training a draft head for {target.info.name}")
    curve.with_suffix(".svg").write_text(drawn, encoding="utf-8")
    measured = measure(
        writing.model,
        head,
        apart[: recipe.measured],
        dtype=writing.dtype,
        tokens=recipe.drafted,
        new_tokens=writing.new_tokens,
    )
    _say(f"{measured}")
    return head


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _answered(learnt: Sequence[Text]) -> int:
    return sum(len(text.ids) - text.start for text in learnt)


def _start(target: Model, recipe: Recipe, learnt: Sequence[Text]) -> HeadWeights:
    """Untrained weights over the most frequent tokens."""
    if target.embedding is None:
        raise WarcoreError(
            f"{target.info.name} shows no embedding, which a head shares", next="another --model"
        )
    own = target.unembedding is None
    sizes = HeadSizes.like(target.info, recipe.draft_vocab, own_rows=own)
    weights = untrained(sizes, recipe.learning.seed)
    often = frequent(learnt, target.info.vocab_size, sizes.draft_vocab)
    return attrs.evolve(weights, to_target=often)


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser("python -m warcore_spec_eagle.train", description=__doc__)
    parser.add_argument("--model", help="the target (smollm2; with --quick: random:tiny)")
    parser.add_argument("--folder", type=Path, default=Path("eagle-head"), help="where all goes")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--prompts", default=PROMPTS, help="FROM:TO,...: which to learn from")
    parser.add_argument("--epochs", type=int, default=Learning().epochs)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=_count, default=torch.get_num_threads())
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    try:
        _say(f"{train(recipe_of(arguments), arguments.folder)}")
    except WarcoreError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
