"""Events of the CUDA device, and which record of an event CUDA would wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warcore.device.base import Event, Stream, Ticket
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from warcore.device.cuda import CudaDevice, CudaStream
    from warcore.device.cudagraph import CudaGraph


class CudaEvent(Event):
    """A CUDA event and the generation of its newest record.

    external: recorded within a capture it becomes a node of the graph, and every launch of that
    graph records it anew. Several graphs may hold it: the newest launch is what it stands for.
    """

    def __init__(self, device: CudaDevice, number: int, *, external: bool) -> None:
        self.external = external
        kind: Any = torch.cuda.Event
        self.raw = kind(external=True) if external else kind()
        self._device = device
        self._number = number
        self._generation = 0
        self._recorded = 0
        """The record that CUDA would wait for now."""
        self._armed = 0
        """The ticket that the next launch reaches; 0: none."""
        self._captured: set[int] = set()

    def __repr__(self) -> str:
        return f"{'external ' if self.external else ''}event {self._number}"

    @property
    def generation(self) -> int:
        return self._generation

    def record(self, stream: Stream | None = None) -> Ticket:
        local = self._device.local
        target: CudaStream | None = local.stream if stream is None else stream  # type: ignore[assignment]
        if target is None:
            raise DeviceError(
                f"{self!r} was recorded outside submitted work, and no stream was named",
                next="event.record(stream), or record within stream.submit(...)",
            )
        if local.capture is not None:
            return self._record_in(local.capture, target)  # type: ignore[arg-type]
        self._generation += 1
        self._record_now(target, self._generation)
        return Ticket(self, self._generation)

    def rearm(self) -> Ticket:
        if not self.external:
            raise DeviceError(
                f"{self!r} is not external: no replay can reach it",
                next="device.event(external=True)",
            )
        if not self._captured:
            raise DeviceError(
                f"{self!r} is in no graph yet", next="record it within a capture first"
            )
        if self._device.local.stream is None:
            raise DeviceError(
                f"{self!r} was re-armed outside submitted work: "
                "which replay it belongs to would be a matter of luck",
                next="re-arm in the submitted work that replays",
            )
        self._generation += 1
        self._armed = self._generation
        return Ticket(self, self._generation)

    def disarm(self) -> bool:
        stream: CudaStream | None = self._device.local.stream  # type: ignore[assignment]
        if stream is None:
            raise DeviceError(
                f"{self!r} was disarmed outside submitted work",
                next="disarm it in the submitted work that re-armed it",
            )
        if self._armed:
            # Behind whatever of the replay was launched: later than its node, never too early.
            self._record_now(stream, self._armed)
            return True
        return False

    def reached(self, generation: int) -> bool:
        if generation > self._recorded or generation in self._captured:
            return False
        self.check(generation)
        return generation == 0 or bool(self.raw.query())

    def synchronize(self, generation: int | None = None) -> None:
        generation = self._generation if generation is None else generation
        self.check(generation)
        if generation:
            self.raw.synchronize()
            device = self._device
            if device.observer is not None:
                device.observer.waited(device.local.stream, Ticket(self, generation))

    def check(self, generation: int) -> None:
        """DeviceError unless `generation` is what CUDA would wait for now."""
        if generation in self._captured:
            why = "belongs to a capture and is never reached"
            remedy = "wait for the ticket that rearm() gives before the replay"
        elif generation > self._recorded:
            why = "can never be reached: its replay has not been launched"
            remedy = "wait after the replay"
        elif generation < self._recorded and generation:
            why = f"was overwritten by record {self._recorded}, which CUDA would wait for instead"
            remedy = "hold tickets in an EventRing, which refuses to overwrite them"
        else:
            return
        raise DeviceError(f"record {generation} of {self!r} {why}", next=remedy)

    def launched(self, stream: CudaStream) -> None:
        """A graph that holds this event was launched on `stream`."""
        if not self._armed:
            self._generation += 1
        self._is_newest(stream, self._armed or self._generation)

    def _record_in(self, graph: CudaGraph, target: CudaStream) -> Ticket:
        if not self.external:
            raise DeviceError(
                f"{self!r} was recorded within a capture, but is not external",
                next="device.event(external=True)",
            )
        if target is not self._device.local.stream:
            raise DeviceError(
                f"{self!r} was recorded on {target!r} within a capture on another stream: no "
                "replay would reach it",
                next="record it on the stream of the capture",
            )
        self.raw.record(target.raw)
        self._generation += 1
        self._captured.add(self._generation)
        graph.add_marker(self)
        return Ticket(self, self._generation)

    def _record_now(self, stream: CudaStream, generation: int) -> None:
        self.raw.record(stream.raw)
        self._is_newest(stream, generation)

    def _is_newest(self, stream: CudaStream, generation: int) -> None:
        self._recorded, self._armed = generation, 0
        if self._device.observer is not None:
            self._device.observer.recorded(stream, Ticket(self, generation))
