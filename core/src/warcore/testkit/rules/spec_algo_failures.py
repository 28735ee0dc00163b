"""What an algorithm leaves behind: nothing, also when a step of it fails in the middle."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import attrs

from warcore.testkit.engines.answers import refuse_other_answers
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.specworkload import usual, workload
from warcore.testkit.outcome import Failure, Refuted
from warcore.testkit.packages.definitions import definition, line_of, with_methods
from warcore.testkit.runs.check import check
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.engine import Engine
    from warcore.spec import SpecContext
    from warcore.testkit.engines.specworkload import Way
    from warcore.testkit.engines.workload import Answer, Asked, Served, Workload
    from warcore.testkit.subject import Subject

PLANNED = "a failure of the kit's own"
POINTS = ("before-draft", "after-draft", "before-draft_extend", "in-a-runner")
CALL = 4
"""It is the call of this number that fails."""
KEPT = 2
"""So many batches may be kept for the next step."""


class Planned(Exception):
    """What the kit raises in the middle of a step."""

    def __init__(self) -> None:
        super().__init__(PLANNED)


@check("spec_algo", needs=("spec_algo.lossless",), devices=("host",))
def slots(subject: Subject) -> None:
    """After requests have ended, stepped back, been aborted or failed, no row, page, event or batch
    is still held; a step that fails ends its own requests, and the next one drafts as ever.

    Slots of drafted tokens that nobody gave back leaked from SGLang's pool with each request
    (#19518, #27789), until a check of the pool ended the server.

    Keep nothing of a batch; let no draft rely on `draft_extend` having been called before.
    """
    for way in usual(subject):
        if subject.wants(way):
            _refuse_leaks(subject, way)
        for point in POINTS:
            cell = f"{way}-{point}"
            if subject.wants(cell):
                _refuse_after_failure(subject, way, point, cell)


def _refuse_leaks(subject: Subject, way: Way) -> None:
    log = DraftLog()
    load = workload(subject, way, log)
    with quiet_torch(), load.engine() as engine:
        _refuse_held(engine, load.serve(engine), str(way))
        gc.collect()
        alive = sum(batch() is not None for batch in log.batches)
    if alive > KEPT:
        what = f"{alive} of {len(log.batches)} batches are still held once all is over"
        where = definition(subject.cls, "draft")
        raise Refuted(Failure("nothing of a batch is kept", what, where, cell=str(way)))


def _refuse_held(engine: Engine, served: Served, cell: str) -> None:
    rows, pages = served.leaked
    insides = Insides(engine)
    rings = [insides.done, *(runner.ring for runner in insides.runners)]
    events = sum(ticket is not None for ring in rings for ticket in ring.held)
    if rows or pages or events:
        what = f"{rows} rows, {pages} pages and {events} events are not free once all is over"
        raise Refuted(Failure("everything is given back", what, cell=cell))


def _refuse_after_failure(subject: Subject, way: Way, point: str, cell: str) -> None:
    failing, log = Failing(point), DraftLog()
    load: Workload = workload(subject, way, _Both(failing, log))
    owed = workload(subject, None, **way.fields).run()
    with quiet_torch(), load.engine() as engine:
        hurt, healed = load.serve(engine), load.serve(engine)
        _refuse_held(engine, healed, cell)
    errors = [error for error in log.errors if not isinstance(error, Planned)]
    where = line_of(errors[0], subject.cls) if errors else definition(subject.cls, "draft")
    declared = "a failure ends the requests of its step, and no others"
    failure = Failure(declared, "after a failure ", where, cell=cell)
    refuse_other_answers(load, hurt, owed, failure, _has_ended)
    refuse_other_answers(load, healed, owed, failure, _is_sampled)


def _has_ended(asked: Asked, got: Answer) -> bool:
    return PLANNED in (got.error or "") or _is_sampled(asked, got)


def _is_sampled(asked: Asked, got: Answer) -> bool:  # noqa: ARG001
    return asked.temperature > 0


@attrs.frozen
class _Both:
    """Two that follow an algorithm, the first one within the second."""

    inner: Any
    outer: Any

    def of(self, cls: Any) -> Any:
        """The class, followed by both."""
        return self.outer.of(self.inner.of(cls))


@attrs.define(eq=False)
class Failing:
    """Lets one call of an algorithm fail, at a point of its step."""

    point: str
    _calls: int = 0

    def of(self, cls: Any) -> Any:
        """The class, with one call that fails."""

        def __init__(algorithm: Any, ctx: SpecContext) -> None:  # noqa: N807 - the class's own
            if self.point == "in-a-runner":
                ctx = attrs.evolve(ctx, make_runner=self._failing(ctx.make_runner))
            cls.__init__(algorithm, ctx)

        def draft(algorithm: Any, *given: Any) -> Any:
            self._fail_at("before-draft")
            drafted = cls.draft(algorithm, *given)
            self._fail_at("after-draft")
            return drafted

        def draft_extend(algorithm: Any, *given: Any) -> None:
            self._fail_at("before-draft_extend")
            cls.draft_extend(algorithm, *given)

        return with_methods(cls, __init__=__init__, draft=draft, draft_extend=draft_extend)

    def _failing(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            runner = make(*given, **named)
            execute = runner.execute

            def executed(batch: Any) -> Any:
                self._fail_at("in-a-runner")
                return execute(batch)

            runner.execute = executed
            return runner

        return made

    def _fail_at(self, point: str) -> None:
        if point == self.point:
            self._calls += 1
            if self._calls == CALL:
                raise Planned
