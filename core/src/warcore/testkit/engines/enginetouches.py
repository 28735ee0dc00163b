"""EngineTouches: what the engine's own parts read and write, told to a race detector.

A backend's reads are no business of this file: whoever sees them tells the same detector.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from warcore.testkit.detectors.races import RaceDetector
from warcore.testkit.detectors.several import Several
from warcore.testkit.detectors.wrapping import Wrapping
from warcore.testkit.engines.insides import Insides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch
    from typing_extensions import Self

    from warcore.device import Observer
    from warcore.engine import Engine
    from warcore.launch import Launch
    from warcore.staging import StagingRing
    from warcore.testkit.access import Kind

REQ_TO_TOKEN, RELAY_TOKENS, RELAY_LENGTHS = "req_to_token", "relay.tokens", "relay.lengths"
FULL_TO_SWA = "full_to_swa"
STEP_INPUTS, RESULTS = "step inputs", "results"


@contextmanager
def watch_races(
    engine: Engine,
    *others: Observer,
    detector: RaceDetector | None = None,
    around: Callable[[Observer], Observer] = lambda observer: observer,
) -> Iterator[RaceDetector]:
    """Detect races between the engine's own parts; `detector.races` has them at any time.

    To see more, tell the detector of other accesses: `watched_tensors` names what is shared.
    others: see what happens on the device behind the detector; detector: the one that they tell.
    around: puts somebody in front of them all.
    DeviceError if somebody watches the device already.
    """
    device = Insides(engine).device
    with (
        detector or RaceDetector(device) as found,
        EngineTouches(engine, found),
        device.watched_by(around(Several(found, *others))),
    ):
        yield found


def watched_tensors(engine: Engine) -> dict[str, torch.Tensor]:
    """The tensors that streams share, under the names by which a detector is told of them."""
    insides = Insides(engine)
    relay, tables = insides.relay, insides.shared.tables
    found = {
        REQ_TO_TOKEN: tables.req_to_token,
        RELAY_TOKENS: relay.tokens,
        RELAY_LENGTHS: relay.lengths,
    }
    if tables.full_to_swa is not None:
        found[FULL_TO_SWA] = tables.full_to_swa
    return found | {f"relay.{name}": tensor for name, tensor in relay.state.items()}


class EngineTouches:
    """Wraps the methods through which an engine touches what its streams share, until closed.

    The tables, the relay, the host memory that copies read, the inputs that cross for a step, and
    the results that come back. A context manager.
    """

    def __init__(self, engine: Engine, detector: RaceDetector) -> None:
        self._detector = detector
        insides = Insides(engine)
        self._device = insides.device
        self._tensors = watched_tensors(engine)
        self._wrapping = wrap = Wrapping()
        launcher, step, batching = insides.launcher, insides.step, insides.batching
        shared = insides.shared
        self._page_bytes = shared.page_size * shared.tables.req_to_token.element_size()
        wrap.before(launcher, "launch", self._count_step)
        wrap.after(launcher, "collect", self._collected)
        wrap.before(shared, "_write_pages", partial(self._writes, REQ_TO_TOKEN))
        wrap.before(shared, "_write_map", partial(self._writes, FULL_TO_SWA))
        wrap.before(batching, "_slots", self._reads_slots)
        wrap.before(batching, "batch", self._reads_inputs)
        wrap.after(step, "_forward", self._wrote_result)
        wrap.before(step, "_void", lambda _: self._whole("write", RELAY_LENGTHS, "Step._void"))
        wrap.before(insides.relay, "publish", self._publishes)
        self._watch_ring("staging of the launcher", insides.staging)
        self._watch_ring("staging of the backend", next(iter(insides.statics.values())).staging)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Every method as it was. Idempotent."""
        self._wrapping.restore()

    # ---- tables and relay ------------------------------------------------------------------------

    def _writes(self, buffer: str, places: torch.Tensor, _: torch.Tensor) -> None:
        """Pages of a table, or of the map: both are as many entries wide as a page has tokens."""
        size = self._page_bytes
        wrote = "_write_pages" if buffer == REQ_TO_TOKEN else "_write_map"
        operation = f"SharedBuffers.{wrote}"
        if places.device.type != "cpu":
            self._whole("write", buffer, operation)
            return
        for start, stop in _spans((place * size for place in places.tolist()), size):
            self._detector.touch(buffer, "write", start, stop, operation=operation)

    def _reads_slots(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        table, operation = self._tensors[REQ_TO_TOKEN], "Batching._slots"
        if rows.device.type != "cpu":
            self._whole("read", REQ_TO_TOKEN, operation)
            return
        width, size = table.shape[1], table.element_size()
        # One row for each position, or one for all those of a request.
        rows = rows.expand_as(positions).flatten()
        at = zip(rows.tolist(), positions.flatten().tolist(), strict=True)
        for start, stop in _spans(((row * width + column) * size for row, column in at), size):
            self._detector.touch(REQ_TO_TOKEN, "read", start, stop, operation=operation)

    def _publishes(self, *_: object) -> None:
        for buffer in (RELAY_TOKENS, RELAY_LENGTHS):
            self._whole("write", buffer, "Relay.publish")

    def _whole(self, kind: Kind, buffer: str, operation: str) -> None:
        size = self._tensors[buffer].nbytes
        self._detector.touch(buffer, kind, 0, size, operation=operation)

    # ---- a step's inputs and results -------------------------------------------------------------

    def _count_step(self, *_: object, **__: object) -> None:
        self._detector.step += 1

    def _reads_inputs(self, launch: Launch) -> None:
        for buffer in (RELAY_TOKENS, RELAY_LENGTHS):
            self._whole("read", buffer, "Batching.batch")
        if launch.block is not None:
            self._memory("read", STEP_INPUTS, launch.block, "Batching.batch")

    def _wrote_result(self, _: None, launch: Launch) -> None:
        if launch.result is not None:
            self._memory("write", RESULTS, launch.result, "Step._forward")

    def _collected(self, tokens: list[int] | None, launch: Launch) -> None:
        if tokens is not None and launch.result is not None:
            self._memory("read", RESULTS, launch.result, "Launcher.collect")

    def _memory(self, kind: Kind, buffer: str, tensor: torch.Tensor, operation: str) -> None:
        """A touch of a tensor of one step; a later step may be given the same memory."""
        at, size = tensor.data_ptr(), tensor.nbytes
        self._detector.touch(buffer, kind, 0, size, operation=operation, base=at)

    # ---- host memory on its way ------------------------------------------------------------------

    def _watch_ring(self, buffer: str, ring: StagingRing) -> None:
        """Host code fills a slot, and the ring's stream copies it when it comes so far."""
        touch = self._detector.touch
        into: list[torch.Tensor | None] = [None]

        def put(words: object, target: torch.Tensor | None = None) -> None:  # noqa: ARG001
            into[0] = target

        def filled(slot: Any, words: int) -> None:
            at, size = slot.memory.data_ptr(), 8 * words
            touch(buffer, "write", 0, size, operation="StagingRing.put", by_host=True, base=at)
            copies = partial(copied, at, size, into[0])
            if self._device.current_stream() is ring.stream:
                copies()
            else:
                self._detector.when_next_starts(ring.stream, copies)

        def copied(at: int, size: int, target: torch.Tensor | None) -> None:
            touch(buffer, "read", 0, size, operation="StagingRing copy", base=at)
            if target is not None:
                self._memory("write", STEP_INPUTS, target, "StagingRing copy")

        for slot in ring.slots:
            self._detector.hear(slot.event)
        self._wrapping.before(ring, "put", put)
        self._wrapping.after(ring, "_vacant", filled)


def _spans(starts: Iterable[int], size: int) -> Iterator[tuple[int, int]]:
    """Pieces of `size` bytes at `starts`, joined where they touch."""
    begin = end = -1
    for start in sorted(set(starts)):
        if start != end:
            if end > begin:
                yield begin, end
            begin = start
        end = start + size
    if end > begin:
        yield begin, end
