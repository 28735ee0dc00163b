"""Late steps: what of the shared tables is touched in a whole engine after a step's event.

The page guard gives the verdict: the tables are closed from where the step's fence settles to the
end of its launch. Attribution names the line, and overwritten tables show what comes of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.fence import FenceReason
from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.elements import region
from warcore.testkit.detectors.used import note
from warcore.testkit.detectors.wrapping import Wrapping
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.specworkload import guarded_engine
from warcore.testkit.outcome import Failure
from warcore.testkit.packages.definitions import line_of
from warcore.testkit.stands.late import page_guard
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.engine import Engine
    from warcore.launch import Launch
    from warcore.testkit.access import Access
    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.engines.workload import Served, Workload

    Load = Callable[[DraftLog], Workload]
    """The workload of one run, whose algorithm is written down."""
    Which = Callable[[Launch], bool]


def is_decode(launch: Launch) -> bool:
    """Whether a step drafts."""
    return not launch.mode.is_prefill


def is_prefill(launch: Launch) -> bool:
    """Whether a step takes prompts in."""
    return launch.mode.is_prefill


@attrs.define(eq=False)
class Late:
    """What one run has shown of its late steps."""

    settled: int = 0
    """Launches whose fence settled fine: there the tables were closed."""
    faults: list[Fault] = attrs.field(factory=list)
    refused: list[tuple[str, str]] = attrs.field(factory=list)
    """(which phase came too late, the line that ran it), as the core has refused it."""


@contextmanager
def at_ends(
    engine: Engine, which: Which, ended: Callable[[], None], over: Callable[[], None]
) -> Iterator[list[Launch]]:
    """`ended` is called where a launch's fence settles fine, `over` at the end of that launch.

    Inline host devices only. The launches of which `ended` was called.
    """
    found = list[Any]()

    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(launch: Launch) -> None:
            fence: Any = launch.fence
            if fence is None or not which(launch):
                method(launch)
                return
            fine = list[bool]()

            def offered(*_: object) -> None:
                if fence.settled and fence.reason is FenceReason.FINE and not fine:
                    fine.append(True)
                    ended()

            try:
                with Wrapping() as inner:
                    inner.after(fence, "offer", offered)
                    method(launch)
            finally:
                if fine:
                    found.append(launch)
                    over()

        return run

    with Wrapping() as wrapping:
        # Where the work ends; what follows is the core's own.
        wrapping.wrap(Insides(engine).step, "_forward", around)
        yield found


def look(load: Load, which: Which, cls: Any) -> tuple[Late, Served]:
    """One run with the tables closed from the settling event on. Unproven without a page guard."""
    late, log = Late(), DraftLog()
    workload = load(log)
    with page_guard() as guard, guarded_engine(workload, guard) as engine:
        window = guard.window("forward")

        def over() -> None:
            late.faults += window.open()

        with (
            _noting_refusals(engine, late, which, log, cls),
            at_ends(engine, which, window.close, over) as found,
            quiet_torch(),
        ):
            served = workload.serve(engine)
        late.settled = len(found)
    return late, served


@contextmanager
def _noting_refusals(
    engine: Engine, late: Late, which: Which, log: DraftLog, cls: Any
) -> Iterator[None]:
    """Note each phase that the core refuses to run, for it would read too late."""
    insides = Insides(engine)
    current: list[Any] = []
    refused: list[str] = []

    def begins(launch: Launch) -> None:
        current[:] = [launch]

    def asked(is_late: object, runner: Any) -> None:
        if is_late and which(current[0]):
            refused.append(runner.role)

    try:
        with Wrapping() as wrapping:
            wrapping.before(insides.step, "run", begins)
            for each in insides.runners:
                wrapping.after(each, "_comes_too_late", lambda is_late, r=each: asked(is_late, r))
            yield
    finally:
        line = line_of(log.errors[0], cls) if log.errors else ""
        late.refused += [(role, line) for role in refused]


def told(load: Load, which: Which, late: Late) -> Failure | None:
    """What to say of a late step; None if there was none."""
    if late.refused:
        role, where = late.refused[0]
        what = f"a {role} runner executes after the phase whose event the step has published"
        return Failure("", f"{what}: the core refuses it, and its requests end", where)
    if not late.faults:
        return None
    fault, seen_by = late.faults[0], ["guard"]
    phase = f" in phase {fault.phase}" if fault.phase else ""
    by = fault.code or "native code"
    elements, where = fault.buffer, ""
    named = _named(load, which)
    if named is not None:
        seen_by.append("attribution")
        access, elements = named
        by, where = f"{by}: {access.operation}", str(access.place or "")
    what = f"{elements} was touched after the step's event{phase}, by {by}"
    changed = _changed(load, which)
    if changed:
        seen_by.append("poison")
        what = f"{what}; with other tables from the event on, {changed}"
    return Failure("", what, where, tuple(seen_by))


def _named(load: Load, which: Which) -> tuple[Access, str] | None:
    """The first touch after an event, by operation and line, and which elements it was of."""
    late: list[Access] = []
    ended: list[bool] = []
    workload = load(DraftLog())

    def tell(access: Access) -> None:
        if ended:
            late.append(access)

    with quiet_torch(), workload.engine() as engine:
        insides = Insides(engine)
        table = insides.shared.tables.req_to_token
        seen = Attribution({"req_to_token": table}, tell)
        with (
            insides.device.watched_by(seen),
            at_ends(engine, which, lambda: ended.append(True), ended.clear),
        ):
            workload.serve(engine)
    if not late:
        return None
    return late[0], region("req_to_token", table, late[0].start, late[0].stop)


def _changed(load: Load, which: Which) -> str:
    """What changes if the tables are other ones from each event to the end of its launch."""
    quiet, again, other = DraftLog(), DraftLog(), DraftLog()
    owed, once_more = _poisoned(load(quiet), None), _poisoned(load(again), None)
    if owed != once_more or not quiet.equals(again):
        return ""
    workload = load(other)
    got = _poisoned(workload, which)
    if not all(map(workload.agree, workload.requests, got.answers, owed.answers)):
        return "the answers change"
    return "" if other.equals(quiet) else "the drafts or what is kept for them change"


def _poisoned(workload: Workload, which: Which | None) -> Served:
    note("in-order poison")
    kept: list[torch.Tensor] = []
    with quiet_torch(), workload.engine() as engine:
        writer = Insides(engine).shared.writer

        def ended() -> None:
            kept.append(writer.clone())
            with torch.inference_mode():
                writer.copy_(writer.flip(0))

        def over() -> None:
            with torch.inference_mode():
                writer.copy_(kept.pop())

        with at_ends(engine, which or (lambda _: False), ended, over):
            return workload.serve(engine)
