"""Whole engines with an algorithm under check, and the requests that they serve."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch

from warcore.device import open_device
from warcore.options import parse_options
from warcore.spec import DraftSpec
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.tinymodel import Tiny, tiny
from warcore.testkit.engines.workload import MANY, ROOM, Asked, Workload, with_options
from warcore.testkit.outcome import NotApplicable
from warcore.testkit.stands.cell import CONTEXT, Shape
from warcore.testkit.stands.paged import Paged
from warcore.testkit.stands.pagedtrees import PagedTrees
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.engine import Engine
    from warcore.model import ModelInfo
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.engines.workload import Answer
    from warcore.testkit.subject import Subject


class Follows(Protocol):
    """Whoever looks on while an algorithm works."""

    def of(self, cls: Any) -> Any:
        """The class, followed from here."""


SHAPE = Shape(q_heads=2, head_dim=16, dtype="float64", windows=(None, None))
"""Exact enough that a batch of another size takes the same tokens."""
UNFENCED = {"fence": "coarse"}
"""For checks that are not about the fence: what they are not about must not end their steps."""
LENGTH = 48
"""Tokens of a sequence: room for up to 15 drafted ones is left behind it."""
REQUESTS = (
    Asked("abcdefg", 15),
    Asked("aborted", 20, aborted=6),
    Asked("hi", 16, stop=("ar", "zz")),
    Asked("a prompt of some chunks", 12),
    Asked("x", 20, temperature=0.8),
    Asked("to the end of its context", 99, arrives=5),
    Asked("y", 3, arrives=9),
    Asked("never begun", 8, arrives=3, aborted=4),
)
"""More than run at once, some in chunks; one stops, two are aborted, some step back."""
PAGES = 14
"""They hold few of the requests at once."""


@attrs.frozen(eq=False)
class SpecWorkload(Workload):
    """Its engines begin with caches in which every slot of nobody holds NaN.

    What nobody has written holds the worst that memory can hold, and the same in each run.
    """

    @contextmanager
    def engine(self, host: str = "inline", **fields: Any) -> Iterator[Engine]:
        """See `Workload.engine`."""
        with Workload.engine(self, host, **fields) as engine:
            with torch.inference_mode():
                for runner in Insides(engine).runners:
                    for layer in runner.recorded.backend.ctx.kv:
                        for memory in layer.values():
                            memory[1:] = float("nan")
            yield engine

    def agree(self, asked: Asked, one: Answer, other: Answer) -> bool:
        """See `Workload.agree`.

        One that is aborted has come further with drafts, or where results were collected earlier.
        """
        if asked.aborted is None:
            return one == other
        return not one.error and all(a == b for a, b in zip(one.tokens, other.tokens, strict=False))


@attrs.frozen
class Way:
    """One way to run an algorithm: a cell of its checks."""

    name: str
    tokens: int
    """K."""
    topk: int = 1
    fields: dict[str, Any] = attrs.field(factory=dict)
    """Of the EngineConfig."""
    requests: tuple[Asked, ...] = REQUESTS

    def __str__(self) -> str:
        return self.name


def tiny_info() -> ModelInfo:
    """The target that the engines serve."""
    info: ModelInfo = tiny(SHAPE).describe(Tiny.__name__, None)
    return info


def draft_spec(subject: Subject, way: Way, **fields: Any) -> DraftSpec:
    """What an algorithm has to serve in `way`."""
    given = {
        "target": tiny_info(),
        "num_tokens": way.tokens,
        "topk": way.topk,
        "max_context": min(LENGTH + way.tokens + 1, CONTEXT),
        "dtype": torch.float64,
        "device": torch.device("cuda" if subject.device == "cuda" else "cpu"),
    }
    return DraftSpec(**{**given, **fields})


def ways(subject: Subject, found: list[Way]) -> list[Way]:
    """Those of `found` that the algorithm can serve. NotApplicable, with its reasons, if none."""
    cls, reasons, fits = subject.cls, dict[str, None](), []
    for way in found:
        why = cls.why_not(draft_spec(subject, way)) if way.topk == 1 or cls.tree else ["no trees"]
        reasons |= dict.fromkeys(why)
        fits += [] if why else [way]
    if not fits:
        raise NotApplicable(f"it serves no engine of the kit's: {'; '.join(reasons)}")
    return fits


def usual(subject: Subject) -> list[Way]:
    """The default K, and a tree if it drafts such. NotApplicable if it can serve neither."""
    tokens = min(subject.cls.default_tokens, 7)
    return ways(subject, [Way("chain", tokens), Way("tree", max(tokens, 2), 2)])


def usual_and_many(subject: Subject) -> list[Way]:
    """`usual`, and the default K for many requests at once."""
    tokens = min(subject.cls.default_tokens, 7)
    return [*usual(subject), *ways(subject, [many(tokens)])]


def many(tokens: int) -> Way:
    """Steps of more requests and of longer prompts than the usual ones."""
    return Way("many", tokens, fields=ROOM, requests=MANY)


def workload(
    subject: Subject, way: Way | None, follows: Follows | None = None, **more: Any
) -> Workload:
    """The requests of one way under the algorithm. way None: the usual ones, without it.

    more: `requests` and `backend` in place of those, and fields of the EngineConfig.
    """
    fields = {"context_length": LENGTH, "kv_pages": PAGES}
    requests = more.pop("requests", REQUESTS if way is None else way.requests)
    backend = more.pop("backend", Paged)
    if way is not None:
        cls = with_options(subject.cls, _options(subject))
        named = {
            "spec_algo": cls if follows is None else follows.of(cls),
            "spec_tokens": way.tokens,
        }
        fields |= {**named, "spec_topk": way.topk, **way.fields}
        backend = PagedTrees if way.topk > 1 else backend
    return SpecWorkload(
        SHAPE, backend, device=subject.device, requests=requests, more={**fields, **more}
    )


def _options(subject: Subject) -> object:
    """Those of the subject, or else those that the algorithm is made to be checked with."""
    cls = subject.cls
    if subject.options is not None or not cls.check_options:
        return subject.options
    return parse_options(subject.record.name, cls.Options, cls.check_options)


@contextmanager
def guarded_engine(load: Workload, guard: PageGuard) -> Iterator[Engine]:
    """An engine whose shared tables lie in pages of `guard`."""
    device: Any = open_device("host", "inline")
    device.memory = guard.allocate
    with (
        quiet_torch(),
        load.engine(device=device) as engine,
        device.watched_by(guard.whereabouts),
    ):
        yield engine
