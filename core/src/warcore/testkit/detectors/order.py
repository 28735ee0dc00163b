"""Order: what of a device's doings comes before what, on every device and in every schedule.

What counts is what holds on CUDA too:

- The work of a stream runs in the order of submission, and after what the submitting code did.
- A ticket brings the past of its record to the stream, or to the host, that goes on after it.
- The Python code of submitted work is the host's: on CUDA it runs when it is submitted, and only
  launches what the stream does later. So each stream is two actors. What its host code did comes
  before whatever the stream does next; what the stream did is known to no host code before that
  code has waited for a ticket, or has asked and heard that it was passed.

And what does not count, because only the host device has it:

- Latches. On CUDA the work that waits for one has found it open, and what the opener had launched
  may not have run.
- The outcome of work (`Pending.result`): its host code has ended then, and no more than that.
- That work which submits other work has come so far itself: its host code has, not its stream.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from warcore.testkit.detectors.clocks import Clocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warcore.device import Event, Stream
    from warcore.testkit.detectors.clocks import Clock

    Actor: TypeAlias = tuple[Stream | None, str]

MOST_RECORDS = 64
"""Records kept of an event. A wait for an older one, which CUDA refuses, counts as no order."""
MOST_OUTCOMES = 1024
"""Ended works whose outcome may still be taken; an older one counts as no order."""

_NOTHING: Clock = {}


def host_of(stream: Stream | None) -> Actor:
    """The host code of the work of `stream`; None: the code outside submitted work."""
    return stream, "host"


def device_of(stream: Stream) -> Actor:
    """What runs on `stream` in its order."""
    return stream, "device"


class Order:
    """The rules above, over vector clocks. For one thread at a time."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self._ended: OrderedDict[int, Clock] = OrderedDict()
        self._recorded: WeakKeyDictionary[Event, OrderedDict[int, Clock]] = WeakKeyDictionary()

    def submit(self, caller: Stream | None, work: int) -> Clock:
        """The past of the host code that submits `work`: an id that is unique until it ends."""
        self._ended.pop(work, None)
        return self.clocks.release(host_of(caller))

    def start(self, stream: Stream, told: Clock) -> None:
        """Work begins whose submission was told that past."""
        self.clocks.acquire(host_of(stream), told)
        self.launch(stream)

    def launch(self, stream: Stream) -> None:
        """What the stream does next was launched after all that its host code did so far."""
        self.clocks.acquire(device_of(stream), self.clocks.release(host_of(stream)))

    def end(self, stream: Stream, work: int) -> None:
        """The host code of the work has ended."""
        self._ended[work] = self.clocks.release(host_of(stream))
        if len(self._ended) > MOST_OUTCOMES:
            self._ended.popitem(last=False)

    def join(self, caller: Stream | None, work: int) -> None:
        """The host code that runs has taken the outcome of the work."""
        self._learn(caller, self._ended.get(work, _NOTHING))

    def record(self, stream: Stream, event: Event, generation: int) -> None:
        """The ticket stands for all that `stream` did so far."""
        told = self._recorded.setdefault(event, OrderedDict())
        told[generation] = self.clocks.release(device_of(stream))
        if len(told) > MOST_RECORDS:
            told.popitem(last=False)

    def wait(self, stream: Stream | None, event: Event, generation: int) -> None:
        """What `stream`, or the host, does next comes after that record."""
        actor = host_of(None) if stream is None else device_of(stream)
        self.clocks.acquire(actor, self._told(event, generation))

    def learn(self, caller: Stream | None, event: Event, generation: int) -> None:
        """The host code that runs has heard that the record was passed."""
        self._learn(caller, self._told(event, generation))

    def all_idle(self) -> None:
        """The host has seen every stream idle."""
        for actor in self.clocks.actors:
            self.clocks.acquire(host_of(None), self.clocks.release(actor))

    def settled(self, busy: Iterable[Stream]) -> Clock:
        """What is behind everybody who can still act; `busy`: the streams with work.

        Those and the host are all. What an idle stream will do comes after the submission of work
        by one of them, so after what they have in common now; and what one knows only grows, hence
        the same holds for all that they do later.
        """
        live: list[Actor] = [host_of(None)]
        for stream in busy:
            live += [host_of(stream), device_of(stream)]
        return self.clocks.settled(live)

    def _learn(self, caller: Stream | None, told: Clock) -> None:
        self.clocks.acquire(host_of(caller), told)
        if caller is not None:
            self.launch(caller)

    def _told(self, event: Event, generation: int) -> Clock:
        """The past of a record; nothing for one that was before the detector, or long ago."""
        records = self._recorded.get(event)
        return _NOTHING if records is None else records.get(generation, _NOTHING)
