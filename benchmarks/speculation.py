"""Every installed speculative algorithm against no speculation: tokens per second, accept length.

    python benchmarks/speculation.py [--quick] [--rounds N] [--threads N] [--algo NAME[:K[:T]] ...]

The demo model in bfloat16 answers 20 prompts (chat, code, lists), and 6 that ask for something
again, at most 1, 4 and 16 of them at a time. The algorithms take turns with no speculation; `x` is
the ratio of tokens per second, `accepted` the tokens per request and verify. Only tokens that were
answered count. The topics are none that the head of eagle was trained on. NAME:K:T drafts K tokens
with T alternatives at each place: `eagle:12:4` is a tree of twelve.
"""

from __future__ import annotations

from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

import attrs
from measure import arguments, parse, report, take_turns

from warcore import Engine, EngineConfig, SamplingParams, find_plugins

if TYPE_CHECKING:
    from warcore import RequestOutput

CHAT = (
    "Why do leaves change their colour in autumn?",
    "What does a conductor of an orchestra do?",
    "Explain how a lighthouse works to a ten-year-old.",
    "How do I remove a coffee stain from a shirt?",
    "Write a short letter to a neighbour whose dog barks at night.",
    "Tell me about the life of a lighthouse keeper.",
    "What is the difference between a violin and a viola?",
)
CODE = (
    "Write a Python function that rotates a list by n places.",
    "Write a Python class for a thermostat with a target temperature.",
    "Write a JavaScript function that shuffles an array.",
    "Write a C function that trims the spaces at both ends of a string.",
    "Write a SQL query that finds the ten customers with the most orders.",
    "Write a Python script that draws a chess board with characters.",
    "Write a shell script that makes a backup of a directory every day.",
)
LISTS = (
    "List eight things to pack for a week at the seaside.",
    "Give me ten names for a sailing boat.",
    "List the steps to change the tyre of a car.",
    "Make a table of five rivers with their lengths and countries.",
    "What should I check before I rent a flat? Answer with bullet points.",
    "Name six instruments of a brass band, with a sentence about each.",
)
RECIPE = (
    "Mix two cups of flour with one cup of sugar. Add two eggs and one cup of milk. Stir the "
    "dough for five minutes. Pour the dough into a round pan. Bake it for forty minutes."
)
ROWS = "\n".join(f"| item {n} | {n * 10} pieces | shelf {n % 4} |" for n in range(1, 13))
AGAIN = (
    f"Repeat this text word for word, twice: {RECIPE}",
    f"Write this text again without any change: {RECIPE}",
    f"Copy this table exactly:\n{ROWS}",
    f"Write this table again, and add one row at the end:\n{ROWS}",
    "Write the numbers from one to forty as words, one on each line.",
    "Write the multiplication table of seven, from 7 x 1 to 7 x 30, one on each line.",
)
WORKLOADS = {"chat, code, lists": CHAT + CODE + LISTS, "repetition": AGAIN}
MODEL = "smollm2"
TREES = ("eagle:12:4",)
"""Beside what each algorithm drafts by itself."""
NEEDS_STAGER = frozenset({"standalone", "eagle"})
"""Their drafts read the prompt too; what they read is staged ahead."""


@attrs.define
class Case:
    """One engine, and what it answered last."""

    engine: Engine
    outputs: list[RequestOutput] = attrs.field(factory=list)

    def run(self, prompts: tuple[str, ...], new_tokens: int) -> None:
        params = SamplingParams(max_new_tokens=new_tokens)
        self.outputs = self.engine.generate(list(prompts), params)

    @property
    def tokens(self) -> int:
        return sum(len(output.output_ids) for output in self.outputs)

    @property
    def accept_length(self) -> float | None:
        """Of a request, on average."""
        lengths = [o.accept_length for o in self.outputs if o.accept_length is not None]
        return mean(lengths) if lengths else None


def well_formed(text: str) -> str:
    """NAME[:K[:T]]. ValueError for anything else."""
    name, *counts = text.split(":")
    if not name or len(counts) > 2 or not all(count.isdecimal() for count in counts):
        raise ValueError(text)
    return text


def speculation_of(wish: str) -> dict[str, Any]:
    """What NAME[:K[:T]] asks of an engine."""
    name, *counts = wish.split(":")
    asked = dict(zip(("spec_tokens", "spec_topk"), map(int, counts), strict=False))
    stagers = {"stagers": ("draft_extend",)} if name in NEEDS_STAGER else {}
    return {"spec_algo": name, **asked, **stagers}


def opened(wish: str | None, batch: int) -> Case:
    speculation = {} if wish is None else speculation_of(wish)
    config = EngineConfig(
        model=MODEL,
        dtype="bfloat16",
        context_length=1024,
        max_running_requests=batch,
        **speculation,
    )
    return Case(Engine(config))


def rows_of(names: list[str], batch: int, given: Any) -> list[dict[str, Any]]:
    """A row for each algorithm and workload, with at most `batch` requests at a time."""
    cases = {name: opened(name, batch) for name in names}
    cases["none"] = opened(None, batch)
    rows = []
    try:
        for workload, prompts in WORKLOADS.items():
            chosen = prompts[:: len(prompts) // 3] if given.quick else prompts
            turns = {
                name: partial(case.run, chosen, given.new_tokens) for name, case in cases.items()
            }
            took = take_turns(turns, given.rounds)
            base = cases["none"].tokens / took["none"].wall
            by_cpu = cases["none"].tokens / took["none"].cpu
            for name, case in cases.items():
                rows.append(
                    {
                        "prompts": workload,
                        "batch": batch,
                        "algorithm": name,
                        "accepted": case.accept_length,
                        "tokens/s": case.tokens / took[name].wall,
                        "x": case.tokens / took[name].wall / base,
                        "x by cpu": case.tokens / took[name].cpu / by_cpu,
                    }
                )
    finally:
        for case in cases.values():
            case.engine.close()
    return rows


def installed() -> list[str]:
    """Every algorithm there is, and the trees of those that draft some."""
    names = [record.name for record in find_plugins(kind="spec_algo")]
    return names + [tree for tree in TREES if tree.partition(":")[0] in names]


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--algo", nargs="+", type=well_formed, help="default: all, and a tree")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--new-tokens", type=int, default=96)
    given = parse(parser)
    if given.quick:
        given.rounds, given.new_tokens, given.batch = 1, 24, [1]
    names = given.algo or installed()
    rows = [row for batch in given.batch for row in rows_of(names, batch, given)]
    report("speculation", rows, **vars(given))


if __name__ == "__main__":
    main()
