"""What a race detector hears of in an engine: whose calls, and whose addresses."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warcore.device import open_device
from warcore.statics import Statics
from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.guardtouches import GuardTouches
from warcore.testkit.detectors.hostcopies import HostCopies
from warcore.testkit.detectors.wrapping import Wrapping
from warcore.testkit.engines.enginetouches import watch_races, watched_tensors
from warcore.testkit.engines.insides import Insides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from warcore.device import Device
    from warcore.engine import Engine
    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.detectors.races import RaceDetector
    from warcore.testkit.detectors.sightings import AddressTaken


@contextmanager
def in_pages_of(guard: PageGuard) -> Iterator[Device]:
    """A device for one engine, whose shared tables and static memory lie in pages of `guard`."""
    device: Any = open_device("host", "inline")
    device.memory = guard.allocate
    owner: Any = Statics

    def first(statics: Statics, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if name not in statics.named:
            statics.named[name] = guard.allocate(f"static {name!r}", shape, dtype)[1]

    with Wrapping() as wrapping:
        wrapping.before(owner, "static", first)
        yield device


class RaceSight:
    """Tells `detector` of what `engine` touches: as attribution, and as `guard` if there is one."""

    def __init__(
        self,
        engine: Engine,
        detector: RaceDetector,
        guard: PageGuard | None = None,
        *,
        writes_only: bool = False,
    ) -> None:
        """writes_only: the guard lets everybody read."""
        insides, tensors = Insides(engine), watched_tensors(engine)
        named = {**tensors, **_statics(insides)}
        self._engine, self._detector = engine, detector
        self._attribution = Attribution(named, detector.see)
        self._copies = HostCopies(detector, _device_memory(insides, tensors.values()))
        self._touches: GuardTouches | None = None
        self._names: dict[str, str] = {}
        if guard is not None:
            inside = ((guard.name_of(tensor), name) for name, tensor in named.items())
            self._names = {buffer: name for buffer, name in inside if buffer is not None}
            window = guard.window("", self._names, writes_only=writes_only)
            self._touches = GuardTouches(window, self._names, detector)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, all that happens on the engine's device."""
        others, touches = (self._attribution, self._copies), self._touches
        if touches is None:
            with watch_races(self._engine, *others, detector=self._detector):
                yield
            return
        with (
            watch_races(self._engine, *others, detector=self._detector, around=touches.before),
            touches.closed(),
        ):
            yield

    @property
    def by_address(self) -> tuple[AddressTaken, ...]:
        """The addresses taken of what the guard sees: whoever has one is seen."""
        known = self._names.values()
        return tuple(a for a in self._attribution.addresses_taken if a.buffer in known)

    @property
    def unseen(self) -> tuple[str, ...]:
        """What was out of sight."""
        known = self._names.values()
        taken = (a for a in self._attribution.addresses_taken if a.buffer not in known)
        return (*map(str, taken), *self._attribution.missing)

    @property
    def strays(self) -> list[Fault]:
        """What threads of a plugin's own have touched."""
        return [] if self._touches is None else self._touches.strays


def _statics(insides: Insides) -> dict[str, torch.Tensor]:
    """The static memory that its plugins have taken so far."""
    found: dict[str, torch.Tensor] = {}
    for number, (plugin, statics) in enumerate(insides.statics.items()):
        whose = f" of {plugin}" if number else ""
        found |= {f"static '{name}{whose}'": tensor for name, tensor in statics.named.items()}
    return found


def _device_memory(insides: Insides, fixed: Iterable[torch.Tensor]) -> Callable[[int], bool]:
    """Whether an address is that of memory which the core made for the device."""
    caches = [
        memory
        for runner in insides.runners
        for layer in runner.recorded.backend.ctx.kv
        for memory in layer.values()
    ]
    known = {tensor.untyped_storage().data_ptr() for tensor in (*fixed, *caches)}

    def is_device(address: int) -> bool:
        later = {tensor.untyped_storage().data_ptr() for tensor in _statics(insides).values()}
        return address in known or address in later

    return is_device
