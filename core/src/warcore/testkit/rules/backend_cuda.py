"""What only CUDA can tell of a backend: its captured steps, node by node, and their markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warcore.contract import GraphKind, SharedReadEnds
from warcore.resolution import resolve
from warcore.testkit.detectors.cudadriver import Driver
from warcore.testkit.detectors.reachability import Suspect, suspects
from warcore.testkit.outcome import Failure, NotApplicable, Refuted, Unproven
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cudagates import position_of_marker, why_no_gates
from warcore.testkit.stands.recorders import Recording
from warcore.testkit.stands.walk import cells_of, declared, stands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import Bucket
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject


@check("backend", needs=("backend.overwritten",), devices=("cuda",))
def no_late_address(subject: Subject) -> None:
    """Nothing of a captured step that may run after the declared end is given an address in the
    shared tables. So no replay reads them too late, whatever the data: it is proved for this graph.

    A fused kernel of an attention backend of SGLang read the page table anew in each replay, behind
    an event that had been recorded before it (#31686, #33587); nothing but its parameters told.

    Where overwriting the tables showed nothing, the address may be one that is never followed: pass
    the kernel a copy, or a null pointer, and the suspicion ends.
    """
    driver = Driver()
    looked = 0
    found: dict[str, list[Suspect]] = {}
    kinds = (GraphKind.UNBROKEN, GraphKind.BREAKABLE)
    for stand in stands(subject, graphs=kinds, legible=True):
        for bucket, graph in _captures(stand):
            cell = f"{bucket.mode.value}-{stand.graph.value}-bucket{bucket.rows}-{stand.shape}"
            ends = _end(stand, bucket, graph)
            if ends in {SharedReadEnds.PRE_REPLAY, SharedReadEnds.IN_REPLAY} and subject.wants(
                cell
            ):
                looked += 1
                late = list(_late(stand, driver, graph, ends))
                found |= {cell: late} if late else {}
    if found:
        cell, late = next(iter(found.items()))
        more = f"; likewise in {len(found) - 1} more captured steps" if len(found) > 1 else ""
        raise Unproven(
            f"suspect, although overwriting the tables showed nothing: in {cell} {late[0]}{more}"
        )
    if not looked and not subject.offered:
        raise NotApplicable("none of its captured steps ends its reads before the end of a replay")


@check("backend", needs=("backend.captures",), devices=("cuda",))
def marker_position(subject: Subject) -> None:
    """The event of a replay is done when its in-graph metadata are, and no sooner: not while a gate
    before the marker is shut, and while one behind it still is.

    Whether an event within a graph fires there at all, or for the replay before, was a matter of
    the driver's version elsewhere (PyTorch #196919); nobody had asked it before the numbers did.

    Leave the marker to the core, and the capture on one stream; where the event is done too early
    with every backend, the driver is at fault: vote POST_REPLAY.
    """
    why = why_no_gates()
    if why is not None:
        raise Unproven(why)
    looked = 0
    for stand in stands(subject, graphs=(GraphKind.UNBROKEN, GraphKind.BREAKABLE)):
        for cell in cells_of(subject, stand):
            ends = stand.scope.ends[cell.mode]
            batch = stand.steps(cell)[0]
            if ends is not SharedReadEnds.IN_REPLAY or not stand.marked(batch):
                continue
            looked += 1
            found = position_of_marker(stand, batch)
            if found.early or found.late:
                what = "while what comes before its marker has not happened"
                if not found.early:
                    what = "only after something that comes behind its marker"
                seen_by = ("event position",)
                raise Refuted(
                    Failure(
                        declared(stand, cell), f"its event is done {what}", "", seen_by, str(cell)
                    )
                )
    if not looked:
        raise NotApplicable("no captured step of it ends its reads at a marker")


def _captures(stand: Stand) -> Iterator[tuple[Bucket, Any]]:
    for recorder in stand.recorders:
        if isinstance(recorder, Recording):
            yield from recorder.graphs.items()


def _end(stand: Stand, bucket: Bucket, graph: Any) -> SharedReadEnds:
    """Where the fence of a replay of `bucket` falls."""
    marked = any(markers for _, markers in graph.sections)
    return resolve(stand.scope.ends[bucket.mode], graph=True, marker=marked)


def _late(stand: Stand, driver: Driver, graph: Any, ends: SharedReadEnds) -> Iterator[Suspect]:
    """The suspects of all sections, in order, that may run after the fence."""
    shared = {
        name: (table.data_ptr(), table.data_ptr() + table.nbytes)
        for name, table in stand.tables.named.items()
    }
    passed = ends is SharedReadEnds.PRE_REPLAY
    for raw, markers in graph.sections:
        nodes = driver.read(raw.raw_cuda_graph())
        after = None
        if not passed and markers:
            after = nodes.recording(markers[0].raw.cuda_event)
            if after is None:
                raise Unproven("the marker is not among the nodes of its graph")
            passed = True
        if passed:
            yield from suspects(nodes, shared, after)
