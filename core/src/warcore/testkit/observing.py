"""observe: who touches shared tensors in a step of anybody's engine, before or after its marks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.errors import WarcoreError
from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.guard import PageGuard, supported
from warcore.testkit.detectors.moving import Moved
from warcore.testkit.detectors.naming import Extent, Naming, merged
from warcore.testkit.detectors.overwriting import leaves, poisoned, restore, values_of
from warcore.testkit.detectors.ranges import runs_of
from warcore.testkit.marking import marks_go_to, one_observation
from warcore.testkit.observation import Observation
from warcore.testkit.outcome import Unproven

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.testkit.access import Access
    from warcore.testkit.detectors.fault import Fault

_SHARED = 'observe(step, {"req_to_token": tensor})'


def observe(
    step: Callable[[], object], shared: Mapping[str, torch.Tensor], *, rerun: bool = False
) -> Observation:
    """Run `step`, once, and say who touched the tensors `shared`, where, before or after a `mark`.

    On the CPU the page guard sees every late touch, whoever makes it, and attribution names the
    operation and the line of those on the calling thread. For that the tensors, and every view of
    their storages, lie in guarded memory until the step ends; their contents go along both ways.

    rerun: the step may be run again, some three times for each tensor, with the contents of
    `shared` as they were. Then what it returns is compared after overwriting a tensor at the mark:
    on a GPU the only way to see what kernels read. What the step did last stays; the contents of
    `shared` are those of its first run.

    If the step raises, so does this; the error's attribute `observation` says what was seen.
    WarcoreError if another step is being observed, there is nothing to observe, a tensor is not
    strided, or `step` or `shared` is something else.
    """
    _refuse_others(step, shared)
    with one_observation():
        begin = values_of(shared) if rerun else {}
        watch = _Watch(shared)
        found = watch.run(step)
        return _overwritten(found, step, shared, begin) if rerun and found.marks else found


def _refuse_others(step: object, shared: object) -> None:
    """WarcoreError for what is no step, and for what are no tensors that have memory."""
    if not callable(step):
        raise WarcoreError(f"the step is {step!r}, which cannot be called", next=_SHARED)
    if not isinstance(shared, Mapping):
        kind = type(shared).__name__
        raise WarcoreError(f"`shared` is a {kind}, and gives tensors no names", next=_SHARED)
    if not shared:
        raise WarcoreError("there is nothing to observe: `shared` is empty", next=_SHARED)
    for name, tensor in shared.items():
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise WarcoreError(f"shared tensor {name!r} is a {kind}, and no tensor", next=_SHARED)
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise WarcoreError(
                f"shared tensor {name!r} has no memory of its own: {tensor.layout} on "
                f"{tensor.device}",
                next="observe the tensors that it is made of",
            )


def _overwritten(
    found: Observation,
    step: Callable[[], object],
    shared: Mapping[str, torch.Tensor],
    begin: Mapping[str, torch.Tensor],
) -> Observation:
    """`found`, and what overwriting the tensors after the mark shows."""
    expected = leaves(found.result, shared)
    end = values_of(shared)
    try:
        late, missing = poisoned(step, shared, begin, expected)
    except Unproven as why:
        return attrs.evolve(found, missing=(*found.missing, f"poison: {why}"))
    finally:
        restore(shared, end)
    return attrs.evolve(
        found,
        after=_with_poison(found.after, late),
        detectors=(*found.detectors, "poison"),
        missing=(*found.missing, *missing),
    )


class _Watch:
    """One run of a step, under the page guard and attribution. It hears of the marks."""

    def __init__(self, shared: Mapping[str, torch.Tensor]) -> None:
        self._shared = shared
        self._guard: PageGuard | None = None
        self._moved: list[Moved] = []
        self._missing: list[str] = []
        self._marks: list[str] = []
        self._before: list[Access] = []
        self._is_late = False
        # NOTE: reentrant, for a finalizer that runs in here may touch the tensors.
        self._lock = threading.RLock()
        self._thread = threading.current_thread()
        self._pending: list[tuple[Fault, str]] = []
        """Faults that nobody has told Naming of, each with its phase."""

    @property
    def _phase(self) -> str:
        return self._marks[-1] if self._marks else ""

    def run(self, step: Callable[[], object]) -> Observation:
        """Run it. What it raises bears the observation."""
        with ExitStack() as stack:
            extents = self._move(stack)
            self._naming = Naming(extents, self._thread.name)
            attribution = Attribution(self._shared, self._tell)
            try:
                with marks_go_to(self), attribution:
                    result = step()
            except BaseException as error:
                self._explain(error)
                with suppress(AttributeError):
                    error.observation = self._end(attribution, None)  # type: ignore[attr-defined]
                raise
            return self._end(attribution, result)

    def passed(self, name: str, *, late: bool) -> None:
        """A mark: from here on touches are late, or welcome again."""
        with self._lock:
            self._look()
            if threading.current_thread() is self._thread:
                # The marking thread is at no call, so none of the next ones has made these.
                self._naming.settle(self._taken())
            self._marks.append(name)
            if self._guard is not None and late != self._is_late:
                if late:
                    self._window.close()
                else:
                    self._window.open()
            self._is_late = late

    def _tell(self, access: Access) -> None:
        """Attribution tells of a touch by this thread."""
        with self._lock:
            access = attrs.evolve(access, phase=self._phase, stream="")
            if self._is_late:
                self._look()
                self._naming.told(access, self._taken())
            else:
                self._before.append(access)

    def _look(self) -> None:
        """Note the faults so far, and close the pages again that they have opened."""
        if self._guard is None:
            return
        found = self._guard.look()
        self._pending += [(fault, self._phase) for fault in found]
        if found:
            self._window.rearm()

    def _taken(self) -> list[tuple[Fault, str]]:
        taken, self._pending = self._pending, []
        return taken

    def _move(self, stack: ExitStack) -> dict[str, Extent]:
        """Bring what can be into guarded memory, until the stack ends: where each tensor lies."""
        why = supported()
        if why is not None:
            self._missing.append(f"page guard: {why}")
            return {}
        guard = PageGuard()
        stack.enter_context(guard)
        moved: dict[int, Moved] = {}
        extents = {}
        for name, tensor in self._shared.items():
            if not tensor.numel():
                continue
            storage = tensor.untyped_storage()
            identity = int(storage._cdata)  # noqa: SLF001 - two tensors may share one storage
            try:
                _refuse_unmovable(tensor)
                if identity not in moved:
                    moved[identity] = place = Moved(guard, f"the storage of {name}", storage)
                    stack.callback(place.put_back, keep=True)
            except WarcoreError as error:
                self._missing.append(f"page guard: {name} stays where it is: {error.what}")
                continue
            place = moved[identity]
            runs = [(start - place.start, stop - place.start) for start, stop in runs_of(tensor)]
            extents[name] = Extent(place.name, runs)
        self._moved = list(moved.values())
        if extents:
            self._guard = guard
            self._window = guard.window("", [each.name for each in self._moved])
        return extents

    def _explain(self, error: BaseException) -> None:
        """A system call that was handed closed memory fails in a way that nobody understands."""
        why = None if self._guard is None else self._guard.explain(error)
        if why is not None:
            self._missing.append(f"page guard: {why.what}")

    def _end(self, attribution: Attribution, result: Any) -> Observation:
        """Open everything, put the tensors back, and say what was seen."""
        with self._lock:
            self._look()
            after = self._naming.finish(self._taken())
            if self._guard is not None and self._is_late:
                self._window.open()
            self._is_late = False
        taken = tuple(attribution.addresses_taken)
        for each in self._moved:
            remark = each.put_back(keep=bool(taken))
            if remark is not None:
                self._missing.append(f"page guard: {each.name} {remark}")
        if self._guard is not None and self._guard.lost:
            self._missing.append(f"page guard: {self._guard.lost} touches came too fast to be kept")
        for thief in () if self._guard is None else self._guard.stolen:
            self._missing.append(
                f"page guard: {thief} took SIGSEGV, until the next mark or the end of the step"
            )
        if not self._marks:
            self._missing.append("no mark() was passed: every touch counts as before it")
        guarded = () if self._guard is None else ("guard",)
        return Observation(
            before=tuple(merged(self._before)),
            after=tuple(after),
            marks=tuple(self._marks),
            detectors=(*guarded, "attribution"),
            missing=(*self._missing, *attribution.missing),
            addresses_taken=taken,
            result=result,
        )


def _refuse_unmovable(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise WarcoreError(f"it is on {tensor.device}, where only overwriting it can show (rerun)")
    if tensor.is_pinned():
        raise WarcoreError("it is pinned, and a device may know its address")


def _with_poison(after: tuple[Access, ...], late: list[Access]) -> tuple[Access, ...]:
    """What poison found becomes part of what else was seen of that tensor, where anything was."""
    found = {access.buffer for access in late}
    known = {access.buffer for access in after if access.kind == "read"}
    named = [
        attrs.evolve(access, seen_by=access.seen_by | {"poison"})
        if access.buffer in found and access.kind == "read"
        else access
        for access in after
    ]
    return (*named, *(access for access in late if access.buffer not in known))
