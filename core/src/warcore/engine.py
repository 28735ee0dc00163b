"""Engine: what a person calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import RequestError, WarcoreError
from warcore.outbox import Outbox
from warcore.output import output_of, refusal
from warcore.prompts import one_each, request_of, several
from warcore.request import FinishReason
from warcore.samplingparams import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from warcore.assembly import Assembly
    from warcore.config import EngineConfig
    from warcore.device import Device
    from warcore.output import RequestOutput
    from warcore.request import Request
    from warcore.tracing import Recorder


class Engine:
    """A model served by an overlap scheduler whose parts come from plugins.

    A context manager: leaving it ends the device's threads and aborts what still runs. Its methods
    are for one thread, but for `abort`.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        progress: Callable[[str, int, int], None] | None = None,
        device: Device | None = None,
    ) -> None:
        """Wire, load and capture.

        `progress(what, done, total)` hears of "weights" as they load and of "graphs" as they are
        captured. device: one that is open already, in place of what the config names; the engine
        closes it.

        WarcoreError, with the remedy, if something is not there, broken or does not fit.
        """
        from warcore.assembly import assemble

        self.config = config
        self._assembly: Assembly = assemble(config, progress=progress, device=device)
        self._requests: dict[int, Request] = {}
        self._outbox = Outbox()
        self._next_id = 0
        self._seconds = 0.0
        self._closed = False
        # Not one that lets its own thread in again: a signal handler, or the garbage collector that
        # closes a forgotten stream, comes in the middle of a step.
        self._in_use = threading.Lock()
        self._ends: deque[tuple[int, bool]] = deque()
        """Requests to be ended between two steps, and whether somebody will hear of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the device's threads; requests that have not finished are lost. Idempotent."""
        if not self._closed:
            self._closed = True
            self._assembly.device.close()

    # ---- whole answers ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> list[RequestOutput]:
        """The answers to `prompts`, in their order.

        A prompt that cannot be served gives an output with an error; the others go on.
        prompts: texts or token ids. params: one for all or one each. raw: no chat template.
        system: the system message, in place of the template's own.
        """
        results: dict[int, RequestOutput] = {}
        for output in self._run(prompts, params, system=system, raw=raw, streams=False):
            results[output.index] = output
        return [results[place] for place in sorted(results)]

    def stream(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> Iterator[RequestOutput]:
        """Outputs as they grow: one whenever a request has new text, and a last one each.

        Closing the iterator early aborts what is left.
        """
        return self._run(prompts, params, system=system, raw=raw, streams=True)

    def _run(
        self, prompts: Any, params: Any, *, system: str | None, raw: bool, streams: bool
    ) -> Iterator[RequestOutput]:
        texts = several(prompts)
        each = one_each(params, len(texts))
        index_of: dict[int, int] = {}
        try:
            for place, (prompt, one) in enumerate(zip(texts, each, strict=True)):
                try:
                    number = self.add_request(prompt, one, system=system, raw=raw, stream=streams)
                    index_of[number] = place
                    self._outbox.keep(number)
                except RequestError as error:  # noqa: PERF203  one bad prompt stops no other
                    yield refusal(place, prompt, error)
            while index_of:
                # Somebody else's step may have brought some already.
                with self._alone():
                    outputs = self._outbox.take(index_of)
                    if not outputs:
                        self._step()
                for output in outputs:
                    place = index_of[output.index]
                    if output.finished:
                        del index_of[output.index]
                    yield attrs.evolve(output, index=place)
        finally:
            for number in index_of:
                self._end(number, heard=False)

    # ---- step by step ----------------------------------------------------------------------------

    def add_request(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        stream: bool = False,
    ) -> int:
        """Queue one request; its number. Nothing runs until `step`.

        stream: whether `step` reports it after every token, or only once it has finished.
        RequestError if it can never be served: empty, too long, or larger than the KV pool.
        """
        with self._alone():
            # A refused prompt takes a number too: what becomes of it must not change the seeds of
            # the others.
            number, self._next_id = self._next_id, self._next_id + 1
            request = request_of(
                prompt,
                params or SamplingParams(),
                self._assembly,
                number=number,
                system=system,
                raw=raw,
                streams=stream,
            )
            self._requests[number] = request
            self._assembly.scheduler.add(request)
        return number

    def abort(self, number: int) -> None:
        """End a request; the next `step` reports it. Unknown numbers are ignored.

        At any moment and from anywhere: another thread, a signal handler, the middle of a step,
        which then goes on first.
        """
        self._end(number, heard=True)

    def step(self) -> list[RequestOutput]:
        """One iteration of the loop; what finished, and what grew of the streaming requests.

        Its `index` is the request's number. Outputs of a `generate` or `stream` that goes on are
        kept for it.

        Whatever the step itself raises ends the engine: what a schedule-stream write raised, an
        allocation on the host that failed, KeyboardInterrupt. A forward that fails ends the
        requests of its launch, and raises nothing.
        """
        with self._alone():
            self._step()
            return self._outbox.take(self._outbox.free)

    @property
    def has_work(self) -> bool:
        """Whether `step` still has something to do or to report."""
        scheduler = self._assembly.scheduler
        wanted = any(request.id in self._requests for request in scheduler.news)
        return scheduler.has_work or wanted or bool(self._outbox.free)

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and where every fence fell: {mode, reason, count}.

        "drafts": None without an algorithm, else tokens drafted and accepted, over all requests.
        "graphs": None without a graph runner, else its captures, their bytes, and the replays.
        """
        facts = self._assembly.counts()
        pace = facts["tokens"] / self._seconds if self._seconds else 0.0
        return {**facts, "seconds": self._seconds, "tokens_per_second": pace}

    def describe(self) -> dict[str, Any]:
        """What this engine was assembled from, and how large it is."""
        return self._assembly.describe()

    def trace(self, *, max_steps: int | None = None) -> Recorder:
        """Watch every step from here on, until the recorder is closed; it is a context manager.

        max_steps: how many of the last steps are kept (default: `warcore.tracing.MAX_STEPS`).
        """
        from warcore.tracing import MAX_STEPS, Recorder

        kept = MAX_STEPS if max_steps is None else max_steps
        return Recorder(self._assembly.device, self._assembly.scheduler, max_steps=kept)

    # ---- inside ----------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a closed engine, and a second thread before it can touch anything."""
        if self._closed:
            raise WarcoreError("this engine is closed", next="make a new Engine")
        # An end that comes from another thread is over in a moment; a step may take long.
        if not self._in_use.acquire(timeout=0.1):
            raise WarcoreError(
                "two threads use one engine at the same time, or a step is interrupted by another",
                next="give every thread an engine, or let one thread drive it",
            )
        try:
            yield
        finally:
            self._in_use.release()

    def _step(self) -> None:
        """One iteration; what came of it lies in the outbox then."""
        import torch

        scheduler = self._assembly.scheduler
        started = time.perf_counter()
        try:
            self._end_those()
            if scheduler.has_work:
                # Work that runs inline finds the mode set, which is cheaper than setting it.
                with torch.inference_mode():
                    self._assembly.loop(scheduler)
                self._end_those()
            news, scheduler.news = scheduler.news, []
            wanted = dict.fromkeys(request for request in news if request.id in self._requests)
            outputs = [self._output(request) for request in wanted]
            self._outbox.put(output for output in outputs if output.finished or output.delta)
        except BaseException:
            # Rows or tables may be half written, or outputs lost: nothing can be trusted any more.
            self.close()
            raise
        finally:
            self._seconds += time.perf_counter() - started

    def _end(self, number: int, *, heard: bool) -> None:
        """End a request now, or between this step and the next."""
        self._ends.append((number, heard))
        if self._in_use.acquire(blocking=False):
            try:
                self._end_those()
            finally:
                self._in_use.release()

    def _end_those(self) -> None:
        while self._ends:
            number, heard = self._ends.popleft()
            request = self._requests.get(number)
            if request is not None and not self._closed:
                self._assembly.scheduler.end(request, FinishReason.ABORT)
            if not heard:
                self._requests.pop(number, None)
                self._outbox.drop([number])

    def _output(self, request: Request) -> RequestOutput:
        if request.finished:
            self._requests.pop(request.id, None)
        return output_of(request)
