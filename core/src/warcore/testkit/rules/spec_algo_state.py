"""Where an algorithm keeps what lasts from one step to the next, and that it never waits."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warcore.testkit.detectors.waiting import Fetches, Waits
from warcore.testkit.engines.answers import refuse_other_schedules
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.engineraces import refuse_races
from warcore.testkit.engines.specworkload import UNFENCED, usual, usual_and_many, workload
from warcore.testkit.engines.twin import Twins
from warcore.testkit.outcome import Failure, Refuted, Unproven
from warcore.testkit.packages.definitions import definition, with_methods
from warcore.testkit.runs.check import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.spec import Accepted
    from warcore.testkit.engines.specworkload import Way
    from warcore.testkit.engines.workload import Workload
    from warcore.testkit.subject import Subject

SEEDS, THOROUGH_SEEDS = 8, 80
FIRST = 2
"""So many calls of a method may set things up."""
LOSSLESS = ("spec_algo.lossless",)


@check("spec_algo", needs=(*LOSSLESS, "spec_algo.slots"), devices=("host",))
def relay_only(subject: Subject) -> None:
    """What one step leaves for the next goes through `ctx.relay`, on the forward stream: a new
    instance drafts the same from the relay and the caches, and no access is unordered.

    With suffix matching on the early fence, a verify indexed out of range one step later: accepted
    tokens were gathered beside the forward stream while a forward still wrote them, which the late
    fence had hidden (SGLang #35059, mended by #35198).

    Declare tensors in `relay(spec)` and index them by `batch.rows`; keep nothing of a request in
    Python, and submit nothing to another stream.
    """
    refuse_races(_relays(subject), "accesses that the forward stream orders")


def _relays(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """The engines whose races are asked for, each once its state has been judged."""
    for way in usual_and_many(subject):
        if subject.wants(f"{way}-state"):
            _refuse_other_state(subject, way)
        if subject.wants(f"{way}-races"):
            yield f"{way}-races", workload(subject, way)


def _refuse_other_state(subject: Subject, way: Way) -> None:
    twins = Twins()
    workload(subject, way, twins).run()
    if twins.unsteady:
        raise Unproven(
            f"{way}: asked twice it drafts differently, so its state cannot be told from its luck; "
            "let it draw with torch's own generator"
        )
    if twins.differ:
        what = (
            "a new instance with the same relay and the same caches drafts otherwise in "
            f"{twins.differ} of {twins.asked} steps: it keeps something elsewhere"
        )
        where = definition(subject.cls, "draft")
        raise Refuted(Failure("state in ctx.relay only", what, where, cell=f"{way}-state"))


@check("spec_algo", needs=(*LOSSLESS, "spec_algo.relay_only"), devices=("host",))
def schedules(subject: Subject) -> None:
    """A whole engine with it gives the answers of its serial run, whichever stream goes on at each
    point.

    The plan of an algorithm's next pass was made on a stream of its own and read what a forward had
    not finished; it showed as a fault or as fewer accepted tokens under load (SGLang #28034,
    #37980).

    Let nothing depend on how far another stream has come: no question whether an event is done, no
    Python state that work of two streams shares.
    """
    seeds = range(THOROUGH_SEEDS if subject.thorough else SEEDS)
    for way in usual(subject):
        log = DraftLog()
        logged, load = workload(subject, way, log), workload(subject, way)
        # A draft that is drawn may be another one for each order of steps.
        refuse_other_schedules(subject, load, str(way), seeds, serial=logged, excused=log.excuses)


@check("spec_algo", needs=("spec_algo.why_not",), devices=("host",))
def no_host_sync(subject: Subject) -> None:
    """Neither `draft` nor `draft_extend` asks the device for a value, or makes a tensor whose size
    depends on one.

    Drafting stands in the middle of a step: one question there holds up the launch of the next one
    until the device has come so far, and the whole overlap is lost; a scheduler was held up like
    that in each step (SGLang #31468, #29075).

    Stay in tensors: `torch.where`, `gather` and `index_select` in place of `.item()`, `.tolist()`,
    boolean indexing and `nonzero`; say with `Draft.lengths` how much is meant.
    """
    for way in filter(subject.wants, usual_and_many(subject)):
        waits = Waits(Path(inspect.getfile(subject.cls)).parent)
        workload(subject, way, _Asking(waits), **UNFENCED).run()
        if waits.found:
            what, where = waits.found[0]
            more = len({place for _, place in waits.found} - {where})
            raise Refuted(
                Failure("drafts without a wait", f"it calls {what}", where, (), str(way), more)
            )


class _Asking:
    """Lets `waits` see all calls of an algorithm's methods but the first ones."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._calls = {"draft": 0, "draft_extend": 0}

    def of(self, cls: Any) -> Any:
        """The class, seen from here."""

        def draft(algorithm: Any, batch: ForwardBatch) -> Any:
            return self._seen("draft", cls.draft, algorithm, batch)

        def draft_extend(algorithm: Any, batch: ForwardBatch, accepted: Accepted) -> None:
            self._seen("draft_extend", cls.draft_extend, algorithm, batch, accepted)

        return with_methods(cls, draft=draft, draft_extend=draft_extend)

    def _seen(self, name: str, method: Any, *given: Any) -> Any:
        self._calls[name] += 1
        if self._calls[name] <= FIRST:
            return method(*given)
        with Fetches(self._waits), self._waits:
            return method(*given)
