"""What a backend says that it can serve, and whether it can."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.backend import TensorSpec
from warcore.contract import GraphKind
from warcore.device.operations import OperationMode, line_of_use
from warcore.testkit.contexts import context
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import definition, judged
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cell import shapes
from warcore.testkit.stands.claims import claimed, claims, few_steps, servable_of, walked
from warcore.testkit.stands.memory import spec_of
from warcore.testkit.stands.owing import compare
from warcore.testkit.stands.walk import new_stand, note_sizes, quiet_torch

if TYPE_CHECKING:
    from warcore.backend import AttentionSpec
    from warcore.testkit.stands.cell import Shape
    from warcore.testkit.subject import Subject


def _every_shape(subject: Subject) -> list[Shape]:
    usual = shapes(subject.cls.page_sizes, thorough=subject.thorough)
    return list(dict.fromkeys(chain(usual, claims(subject))))


# ---- why_not -------------------------------------------------------------------------------------


@check("backend", needs=("plugin.facts_are_of_their_kind",))
def why_not(subject: Subject) -> None:
    """`why_not` answers with a list of texts, the same each time, and computes and allocates
    nothing.

    A gate of SGLang asked for the platform where it meant a feature (#27967, #36054): one kind of
    machine started without what the fence stood on, and memory faults were the first to tell.

    Judge the spec alone, and answer with every reason in words; [] if there is none.
    """
    specs = [spec_of(shape, _device(subject)) for shape in _every_shape(subject)]
    specs += [attrs.evolve(spec, kv_dtype=torch.float8_e5m2) for spec in specs[:1]]
    answers = [_answer(subject, spec) for spec in specs]
    for spec, before in reversed(list(zip(specs, answers, strict=True))):
        if _answer(subject, spec) != before:
            _refute(subject, f"it answered {before} first, and something else later, to {spec}")


def _answer(subject: Subject, spec: AttentionSpec) -> list[str]:
    """What it says of one spec. Refuted if that is no list of texts."""
    with _NoOperations(subject):
        answer: Any = subject.cls.why_not(spec)
    if not isinstance(answer, list) or not all(isinstance(each, str) for each in answer):
        _refute(subject, f"why_not returned {answer!r}")
    return list(answer)


def _refute(subject: Subject, what: str, where: str = "") -> None:
    where = where or definition(subject.cls, "why_not")
    raise Refuted(Failure("a list of reasons, of the spec alone", what, where))


class _NoOperations(OperationMode):
    """Refutes whoever computes."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._subject = subject

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        where = line_of_use().strip()
        _refute(self._subject, f"why_not computes: it calls {func}", where)


# ---- what it accepts -----------------------------------------------------------------------------


@check("backend", needs=("backend.why_not",))
def builds(subject: Subject) -> None:
    """A backend can be built for every spec that its `why_not` accepts, under each kind of graph.

    Two backends were built side by side in SGLang where one should have wrapped the other (#31439):
    constructors had decided it, and what a constructor decides nobody can ask for beforehand.

    Say it in `why_not`, where it costs a message, and not in `__init__`, where it costs a start; or
    let `__init__` build what was accepted.
    """
    served = 0
    for shape in servable_of(subject, _every_shape(subject)):
        served += 1
        for graph in GraphKind:
            _build(subject, shape, graph)
    if not served:
        raise NotApplicable("it serves none of the kit's shapes")


def _build(subject: Subject, shape: Shape, graph: GraphKind) -> None:
    claim = "a backend for every spec that why_not accepts"
    cls, spec = subject.cls, spec_of(shape, _device(subject))
    memory: Any = {}
    with judged(cls, claim, str(shape)):
        memory = cls.kv_cache(spec)
        if _is_memory(memory):
            with quiet_torch(), torch.inference_mode():
                sizes = {"max_batch": shape.rows, "layers": len(shape.windows)}
                cls(context(spec, cls, graph=graph, options=subject.options, **sizes))
    if not _is_memory(memory):
        what = f"kv_cache returned {memory!r}, which is no dict of TensorSpec"
        raise Refuted(Failure(claim, what, definition(cls, "kv_cache"), cell=str(shape)))


def _is_memory(answer: Any) -> bool:
    return isinstance(answer, dict) and all(isinstance(m, TensorSpec) for m in answer.values())


def _device(subject: Subject) -> torch.device:
    return torch.device("cuda" if subject.device == "cuda" else "cpu")


@check(
    "backend",
    needs=("backend.builds",),
    after=("backend.parity", "backend.padding", "backend.rows"),
)
def serves(subject: Subject) -> None:
    """What `why_not` accepts gives the right numbers: element types, head sizes and counts, page
    sizes that are no power of two, windows, trees, a context of a few tokens, a long one, and a
    batch of many requests.

    A speculative engine gave a few wrong tokens (SGLang #34959), and for long nobody knew: nothing
    crashed, the texts were nearly right, and there was no oracle to compare them with.

    Refuse in `why_not` what no test of yours computes, or compute it and test it.
    """
    served = 0
    for shape, graph in claimed(subject, claims(subject)):
        if not subject.wants(shape):
            continue
        served += 1
        _serve(subject, shape, graph)
    if not served and not subject.cells:
        raise NotApplicable("it serves no shape besides those of every other check")


def _serve(subject: Subject, shape: Shape, graph: GraphKind) -> None:
    name, claim = str(shape), "that it serves what why_not accepts"
    how = "" if graph is GraphKind.NONE else f"{graph.value} "
    begins = f"before the first of its {how}steps "
    with (
        judged(subject.cls, claim, name, begins),
        quiet_torch(),
        new_stand(subject, shape, graph) as stand,
    ):
        for cell in walked(stand, list(few_steps(shape, graph))):
            when = f"in {how}{cell.mode.value} steps "
            note_sizes(subject, cell)
            with judged(subject.cls, claim, name, when):
                for batch in stand.steps(cell):
                    output, _ = stand.run(batch)
                    compare(stand, batch, output, name, when)
