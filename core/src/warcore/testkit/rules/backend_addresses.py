"""Which addresses the captured steps of a backend hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warcore.contract import GraphKind, SharedReadEnds
from warcore.resolution import resolve
from warcore.testkit.check import check
from warcore.testkit.cudadriver import Driver
from warcore.testkit.outcome import NotApplicable, Unproven
from warcore.testkit.reachability import Suspect, suspects
from warcore.testkit.recorders import Recording
from warcore.testkit.walk import stands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import Bucket
    from warcore.testkit.stand import Stand
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
    start = stand.table.data_ptr()
    shared = {"req_to_token": (start, start + stand.table.nbytes)}
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
