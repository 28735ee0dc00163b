"""Gates: points of a step at which one can ask whether its read-done event is done.

On an inline host device a stream stands still while it passes a gate: whoever waits for the event
would go on there if it is done, and not otherwise. A gate within a capture is passed by each of its
replays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.device import Observer
from warcore.device.operations import CORE, frame_of_use
from warcore.testkit.detectors.used import note
from warcore.testkit.packages.sources import place_of

if TYPE_CHECKING:
    import torch

    from warcore.batch import ForwardBatch
    from warcore.device import Event, Stream, Ticket
    from warcore.model import Layer
    from warcore.testkit.access import Place
    from warcore.testkit.stands.stand import Stand

METADATA_OUT: Final = "the end of the out-graph metadata"
METADATA_IN: Final = "the end of the in-graph metadata"
LAYERS: Final = "the first layer's attention"
LAYERS_END: Final = "the end of the last layer's attention"
REPLAY: Final = "the replay"


@attrs.frozen
class Record:
    """One record of an event within a step."""

    stream: Stream
    ticket: Ticket
    place: Place | None
    """The line that records; None: the core's, or that of a replay."""


class Gates(Observer):
    """The gates of one stand, and an observer of its device.

    `gated` is the class to build the stand with; `watch` then lets it see a step.
    """

    def __init__(self, cls: Any) -> None:
        self.passed: list[str] = []
        """The gates of the last step in the order in which it came to them."""
        self.done_before: int | None = None
        """How many gates it had passed when its event was done; None: it never was."""
        self.foreign: list[Record] = []
        """What was recorded in the last step, not by the core, and for no stream of its own."""
        self.gated = _gated(cls, self)
        self._recorded: list[Record] = []
        self._waited: list[tuple[Stream | None, Ticket]] = []

    def watch(self, stand: Stand, batch: ForwardBatch) -> None:
        """Run a step of `stand`, whose backend is `gated`. Raises what the backend raises."""
        note("event position")
        self.passed, self.done_before, self._recorded, self._waited = [], None, [], []
        with stand.watched_by(self):
            stand.run(batch, self._done)
        core = _events_of_the_core(stand)
        awaited = {
            ticket
            for stream, ticket in self._waited
            if stream not in {None, stand.forward, stand.schedule}
        }
        self.foreign = [
            record
            for record in self._recorded
            if record.ticket.event not in core
            # What orders a stream of the plugin's own with the forward stream is nobody's fence.
            and (
                record.stream is stand.schedule
                or (record.stream is stand.forward and record.ticket not in awaited)
            )
        ]

    def put(self, backend: Any, name: str) -> None:
        """A gate, here: in a capture, one that each replay passes."""
        capture = _device_of(backend).local.capture
        if capture is None:
            self._pass(name)
        else:
            capture.add(partial(self._pass, name))

    def _pass(self, name: str) -> None:
        self.passed.append(name)

    def _done(self) -> None:
        self.done_before = len(self.passed)

    # ---- the device reports ----------------------------------------------------------------------

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        """Somebody's event is done: within the step there are few whose it may be."""
        self._recorded.append(Record(stream, ticket, _line_of_record()))

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        """Somebody goes on behind it."""
        self._waited.append((stream, ticket))

    def phase(self, stream: Stream | None, name: str) -> None:  # noqa: ARG002
        """The core begins a replay."""
        if name == "replay":
            self._pass(REPLAY)


def _gated(cls: Any, gates: Gates) -> Any:
    """The backend `cls`, with gates around what the core calls in a step."""

    class Gated(cls):  # type: ignore[misc]
        def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
            super().init_forward_metadata_out_graph(batch)
            gates.put(self, METADATA_OUT)

        def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
            super().init_forward_metadata_in_graph(batch)
            gates.put(self, METADATA_IN)

        def forward(
            self,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            layer: Layer,
            batch: ForwardBatch,
        ) -> torch.Tensor:
            if layer.index == 0:
                gates.put(self, LAYERS)
            out: torch.Tensor = super().forward(q, k, v, layer, batch)
            if layer.index == len(self.ctx.kv) - 1:
                gates.put(self, LAYERS_END)
            return out

    Gated.__name__, Gated.__module__ = cls.__name__, cls.__module__
    return Gated


def _line_of_record() -> Place | None:
    frame = frame_of_use()
    file = frame.f_code.co_filename
    return None if file.startswith(CORE) else place_of(file, frame.f_lineno)


def _device_of(backend: Any) -> Any:
    return backend.ctx.static.__self__.device


def _events_of_the_core(stand: Stand) -> set[Event]:
    """What the core records in a step: rings, markers, and its copies for the backend."""
    runners = stand.runners.values()
    events = {event for runner in runners for event in runner.ring.events if event}
    captures = [runner.captures for runner in runners if runner.captures is not None]
    for each in captures:
        events |= {marker for marker in each.markers.values() if marker}
    statics: Any = stand.backend.ctx.stage.__self__
    return events | {slot.event for slot in statics.staging.slots}
