"""Workload: a whole engine around the plugins under check, and the requests that it serves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.config import EngineConfig
from warcore.engine import Engine
from warcore.samplingparams import SamplingParams
from warcore.testkit.detectors.used import note
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.tinymodel import tiny
from warcore.testkit.packages.definitions import with_context
from warcore.testkit.stands.cell import Shape
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warcore.device import Device
    from warcore.output import RequestOutput

MOST_STEPS = 2_000
"""A workload that needs more does not end."""


@attrs.frozen
class Asked:
    """One request of a workload."""

    prompt: str
    tokens: int
    """It wants at most so many."""
    arrives: int = 0
    """The engine's step before which it is added."""
    aborted: int | None = None
    """The step before which it is aborted; None: never."""
    stop: tuple[str, ...] = ()
    temperature: float = 0.0


REQUESTS = (
    Asked("abcdefg", 15),
    Asked("hi", 16, stop=("ar", "zz")),
    Asked("a prompt of some chunks", 12),
    Asked("x", 20, temperature=0.8),
    Asked("aborted while it runs", 20, arrives=4, aborted=44),
    Asked("late, and long enough", 11, arrives=9),
    Asked("y", 3, arrives=9),
    Asked("never begun", 8, arrives=5, aborted=6),
)
"""More than run at once, some in chunks; one stops, two are aborted, one steps back."""
MANY = (
    Asked("a prompt of more tokens than most of them", 6),
    *(Asked(letter * count, 9) for count, letter in enumerate("bcdefgh", 1)),
)
"""As many as run at once with `ROOM`; the prompt of the first comes whole, in a large step."""
ROOM = {"max_running_requests": len(MANY), "kv_pages": 96, "prefill_chunk": 48}
"""Fields of the EngineConfig with which no request of `MANY` waits or steps back."""
PAGES_FOR, FEWEST_PAGES = 44, 4
"""The pool holds the pages of so many tokens, and at least so many."""


@attrs.frozen
class Answer:
    """What one request got."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None
    """stop, length, abort or error."""
    error: str | None


@attrs.frozen
class Served:
    """What came of a workload."""

    answers: tuple[Answer, ...]
    retracts: int
    replays: int
    leaked: tuple[int, int]
    """Rows, and pages of both pools, that nobody has and that are not free, once all is over."""

    @property
    def error(self) -> str | None:
        """Why a step failed, if one did."""
        return next((answer.error for answer in self.answers if answer.error), None)


@attrs.frozen(eq=False)
class Workload:
    """Engines of the plugins under check, and the requests that they serve.

    The engines are small: three requests run at once, prompts come in chunks of 6 tokens, and
    requests step back for want of pages.
    """

    shape: Shape = attrs.field(factory=Shape)
    backend: Any = None
    """A class or a name; None: the installed one that can serve."""
    graph_runner: Any = "none"
    device: str = "host"
    requests: tuple[Asked, ...] = REQUESTS
    more: Mapping[str, Any] = attrs.field(factory=dict)
    """Further fields of the EngineConfig, for what else is under check."""

    def config(self, host: str = "inline", **fields: Any) -> EngineConfig:
        """That of an engine. host: who runs next, on the host device; fields: beside `more`."""
        page = self.shape.page_size
        here = {"device": self.device, **({"host": host} if self.device == "host" else {})}
        chosen = {
            "model": tiny(self.shape),
            "backend": self.backend,
            "graph_runner": self.graph_runner,
            "dtype": self.shape.dtype,
            "page_size": page,
            "kv_pages": max(-(-PAGES_FOR // page), FEWEST_PAGES),
            "max_running_requests": 3,
            "prefill_chunk": 6,
            **here,
        }
        return EngineConfig(**{**chosen, **self.more, **fields})

    @contextmanager
    def engine(
        self, host: str = "inline", *, device: Device | None = None, **fields: Any
    ) -> Iterator[Engine]:
        """A new engine, as `config` says. WarcoreError if its parts do not fit.

        device: one of the caller's, which the engine closes.
        """
        with Engine(self.config(host, **fields), device=device) as engine:
            yield engine

    def run(self, host: str = "inline", **fields: Any) -> Served:
        """What an engine of its own makes of the requests; torch draws the same each time."""
        if host.startswith("seeded"):
            note("seeded schedules")
        with quiet_torch(), torch.random.fork_rng([]), self.engine(host, **fields) as engine:
            torch.manual_seed(1)
            return self.serve(engine)

    def agree(self, asked: Asked, one: Answer, other: Answer) -> bool:  # noqa: ARG002
        """Whether two answers to one request are the same."""
        return one == other

    def serve(self, engine: Engine) -> Served:
        """Let `engine` serve the requests, each in its time, until nothing is left to do.

        The order of its steps does not depend on who runs next. Raises what `Engine.step` raises.
        """
        numbers: dict[int, int] = {}
        outputs: dict[int, RequestOutput] = {}
        step = 0
        while step < MOST_STEPS and (step <= self._last or engine.has_work):
            for place, asked in enumerate(self.requests):
                if asked.arrives == step:
                    numbers[place] = engine.add_request(asked.prompt, _params(asked), raw=True)
                if asked.aborted == step:
                    engine.abort(numbers[place])
            outputs |= {output.index: output for output in engine.step()}
            step += 1
        stats = engine.stats()
        return Served(
            answers=tuple(_answer(outputs.get(numbers[p])) for p in range(len(self.requests))),
            retracts=stats["retracts"],
            replays=stats["graphs"]["replays"] if stats["graphs"] else 0,
            leaked=_leaked(engine),
        )

    @property
    def _last(self) -> int:
        """The step before which somebody comes or goes for the last time."""
        return max(max(asked.arrives, asked.aborted or 0) for asked in self.requests)


def _params(asked: Asked) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=asked.tokens,
        stop=asked.stop,
        ignore_eos=True,
        temperature=asked.temperature,
        seed=len(asked.prompt),
    )


def _answer(output: RequestOutput | None) -> Answer:
    if output is None:
        return Answer((), "", None, f"it got no answer within {MOST_STEPS} steps")
    return Answer(tuple(output.output_ids), output.text, output.finish_reason, output.error)


def _leaked(engine: Engine) -> tuple[int, int]:
    scheduler = Insides(engine).scheduler
    rows, pages = scheduler.rows, scheduler.pages
    windows = scheduler.windows
    held = 0 if windows is None else windows.capacity - len(windows)
    return rows.capacity - len(rows), pages.capacity - len(pages) + held


def with_options(cls: Any, options: object) -> Any:
    """The plugin's class with `options` in place of those that a person would name; None: as it is.

    An EngineConfig takes options as text, and a check has them parsed.
    """
    if options is None:
        return cls

    return with_context(cls, options=options)
