"""What a backend must keep to: its words, its captures, its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.contract import GraphKind
from warcore.errors import WarcoreError, WiringError
from warcore.testkit.outcome import Failure, NotApplicable, Refuted, Unproven
from warcore.testkit.packages.definitions import definition, line_of, said_line
from warcore.testkit.runs.check import check
from warcore.testkit.runs.lines import by_line
from warcore.testkit.stands.claims import in_claims
from warcore.testkit.stands.late import NO_END, changed_by, late_accesses, tells_an_end
from warcore.testkit.stands.owing import compare
from warcore.testkit.stands.walk import cells_of, declared, stands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.stands.cell import Cell
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject


@check("backend", needs=("backend.builds",))
def votes(subject: Subject) -> None:
    """A backend answers `shared_read_ends` for every mode with a SharedReadEnds, twice the same.

    An answer that nobody had given on purpose, that of the base class, stood for what a wrapper of
    SGLang held (#34982), and steps were fenced by it.

    Answer every ForwardMode from constants, or leave that to the base class; what depends on a
    batch belongs into `prepare_prefill_shared_read_snapshot`.
    """
    try:
        # Wiring asks for every vote, twice.
        for _ in stands(subject, graphs=(GraphKind.NONE,)):
            pass
    except WiringError as error:
        where = line_of(error, subject.cls) or definition(subject.cls, "shared_read_ends")
        remedy = f": {error.next}" if error.next else ""
        raise Refuted(Failure("a vote for every mode", error.what + remedy, where)) from error


@check("backend", needs=("backend.votes",), after=("backend.static_addresses",))
def captures(subject: Subject) -> None:
    """The in-graph metadata and the layers can be captured: no host reads, no data in shapes.

    Questions to the device in each step held up SGLang's scheduler (#31468, #29075), and eagerly
    they only cost time: in a graph there is no host to wait, and the value is that of the capture.

    Keep host reads and shapes that depend on data in `init_forward_metadata_out_graph`; or answer
    None in `graph_key`, and such steps run eagerly.
    """
    name = ""
    try:
        for stand in stands(subject):
            for cell in cells_of(subject, stand):
                name = str(cell)
                for batch in stand.steps(cell):
                    stand.run(batch)
            name = ""  # the next stand captures before it has a cell
    except WarcoreError as error:
        what, where = said_line(error.what)
        where = where or line_of(error, subject.cls)
        raise Refuted(Failure("steps that can be captured", what, where, cell=name)) from error


@check(
    "backend",
    needs=("backend.votes",),
    after=(
        "backend.captures",
        "backend.snapshot_may_be_missing",
        "backend.snapshot_is_of_its_batch",
        "backend.snapshot_may_fail",
    ),
)
def parity(subject: Subject) -> None:
    """The output of every live token is what attention owes it, in every mode and under graphs.

    Drafts of vLLM attended with lengths and slots that were those of padding (#26498): acceptance
    fell by a twentieth with long drafts, and nothing else told.

    Compare the failing cell with dense attention; lengths, windows and masks are the usual places.
    A shape that you do not mean to serve is refused in `why_not`.
    """
    for stand in stands(subject):
        for cell in cells_of(subject, stand):
            for batch in stand.steps(cell):
                output, _ = stand.run(batch)
                compare(stand, batch, output, str(cell))


@check(
    "backend",
    needs=("backend.votes",),
    after=(
        "backend.captures",
        "backend.never_writes",
        "backend.composite",
        "backend.snapshot_is_true",
    ),
    devices=("host",),
)
def no_late_access(subject: Subject) -> None:
    """Nothing of the shared tables is touched after the point that the backend declares.

    A fused kernel of SGLang looked into the live tables again in each replay, behind the event of
    its step (#31686), and a draft's graph gathered its rows anew (#36335): wrong pages, and no
    error.

    Copy what the layers need into memory from `ctx.static` before the declared end, or declare the
    later end.
    """
    found = list(late_accesses(subject))
    if found:
        raise Refuted(by_line(found))


@check("backend", needs=("backend.votes",), after=("backend.no_late_access",))
def overwritten(subject: Subject) -> None:
    """The output does not change when the tables are overwritten right after the declared end.

    A lost fence was so hard to see in SGLang that its CI poisons what the fence guards (#30435,
    #30471). This is the worst that a scheduler may legally do, made deterministic: an alias in
    place of a copy, or a kernel with a pointer of its own, shows whatever it is written in.

    Keep a copy in memory of your own, not a view; `.to()` and slicing may give views. Or declare
    the later end.
    """
    told = False
    found: list[Failure] = []
    for stand in stands(subject):
        for cell in cells_of(subject, stand):
            if tells_an_end(stand, cell):
                told = True
                found += filter(None, (_changed(stand, cell, each) for each in stand.steps(cell)))
    if subject.device != "host":
        # On the host the page guard has looked at these, and nothing escapes it.
        found += changed_in_claims(subject)
    if found:
        raise Refuted(by_line(found))
    if not told and not subject.cells:
        raise NotApplicable(NO_END)


def changed_in_claims(subject: Subject) -> Iterator[Failure]:
    """The same for a few eager steps of each shape beyond the grid that it serves."""

    def look(stand: Stand, cell: Cell) -> Iterator[Failure]:
        if tells_an_end(stand, cell):
            yield from filter(None, (_changed(stand, cell, each) for each in stand.steps(cell)))

    return in_claims(subject, look)


def _changed(stand: Stand, cell: Cell, batch: ForwardBatch) -> Failure | None:
    try:
        shows = changed_by(stand, batch)
    except Unproven as why:
        raise Unproven(f"{cell}: {why}") from why
    if shows is None:
        return None
    what = f"the output changes when the table is overwritten after that with {shows}"
    return Failure(declared(stand, cell), what, "", ("poison",), str(cell))
