"""What a step costs in the three loops: the formulas, and the real engine in virtual time.

Quantities, in microseconds of one decode step:

    D       device time of the forward; its first `reads` are the shared reads (metadata)
    W       device time of the writes on the schedule stream (a copy of inputs, page table)
    H_pre   host work before the writes are submitted: choosing the batch, building its inputs
    H_post  host work from there until the forward is submitted
    H_res   host work after that: the barrier, and handling the results of the step before
    H       H_pre + H_post + H_res
    sync    whether the host waits for the schedule stream once a step, right after it submitted
            the writes, as it does in engines that make a blocking copy there

Where the formulas come from. Write h(n) for the time at which the host begins step n, w(n) for the
end of its writes, c(n) for the submission of its forward, S(n) for the start of its forward, and
R = D if the fence is coarse, `reads` if it is fine. The overlap loop runs next_batch, launch,
barrier, collect of the step before, and two streams and the host obey

    w(n)   = max(h(n) + H_pre, w(n-1), S(n-1) + R) + W     the barrier of step n-1 is in the middle
    c(n)   = max(h(n) + H_pre, [sync] w(n)) + H_post
    S(n)   = max(c(n), w(n), S(n-1) + D)
    h(n+1) = max(c(n), S(n-1) + D) + H_res                 it collects step n-1, not n

Such a system settles into a period: the largest mean weight of a cycle through h, w, c and S. Going
through all the simple cycles leaves

    without sync   overlap = max(D, R + W, H, (D + H_pre + W + H_res) / 2)
    with sync      overlap = max(D, R + W + H_post, H + W)

The first two terms are one forward after another, without and with the writes between; then the
host on its own; the last is a round of two steps, for S(n) hangs on results of step n-2. The normal
loop adds up, and only what the host does while the writes run is hidden:

    without sync   serial  = D + H_pre + max(W, H_post) + H_res
    with sync      serial  = D + H + W

The rule of thumb is: serial D + H + W, fine max(D, H), coarse max(D + W + [sync] H_post, H). Where
the formulas go beyond it:

- A host that waits for the writes is busy for H + W in each loop, also with a fine fence.
- Without a sync the normal loop hides writes behind H_post: it adds max(0, W - H_post), not W.
- A fine fence hides the writes in what follows the reads, if that is long enough:
  reads + W + [sync] H_post <= D.
- Without a sync, writes longer than H_post lie on the way from results to the forward after next.

What is assumed: the device runs the two streams side by side at full speed and the host beside
them, nothing is gained or lost at a submission, and every step costs the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
from host_step import Null, NullBackend, NullTokenizer

from warcore import EngineConfig, SamplingParams, SharedReadEnds
from warcore.assembly import assemble
from warcore.device import Observer
from warcore.device.virtual import VirtualDevice
from warcore.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES: Final = {
    "normal": ("normal", "declared"),
    "coarse": ("overlap", "coarse"),
    "fine": ("overlap", "declared"),
}
"""The loop and the fence of each mode."""
SETTLING, COUNTED = 24, 24
"""Decode steps until the period has settled, and those that are counted: an even number, since a
round may be of two steps."""


@attrs.frozen
class Costs:
    """What the parts of a step take, in microseconds (or any unit, if it is one for all)."""

    device: float
    writes: float
    reads: float
    """The first part of `device`, in which the forward reads what the writes change."""
    pre: float
    post: float
    results: float

    @classmethod
    def split(
        cls,
        device: float,
        host: float,
        writes: float,
        *,
        reads: float = 0.1,
        shares: tuple[float, float, float] = (0.4, 0.3, 0.3),
    ) -> Costs:
        """`host` in these shares before the writes, before the launch and after; reads: of D."""
        pre, post, results = (share * host for share in shares)
        return cls(device, writes, reads * device, pre, post, results)

    @property
    def host(self) -> float:
        return self.pre + self.post + self.results


def predicted(costs: Costs, mode: str, *, sync: bool) -> float:
    """The time per step, by the formulas above, in the unit of `costs`."""
    device, writes, host = costs.device, costs.writes, costs.host
    if mode == "normal":
        return device + host + (writes if sync else max(0.0, writes - costs.post))
    ends = device if mode == "coarse" else costs.reads
    if sync:
        return max(device, ends + writes + costs.post, host + writes)
    return max(device, ends + writes, host, (device + costs.pre + writes + costs.results) / 2)


def simulated(costs: Costs, mode: str, *, sync: bool) -> float:
    """The time per step of the real scheduler, launcher, runner and fence, in microseconds.

    One request decodes with pages of one token, so that every step writes the page table.
    """
    device = VirtualDevice()
    starts: list[float] = []
    backend = type("Timed", (Timed,), {"device": device, "costs": costs, "starts": starts})
    loop, fence = MODES[mode]
    steps = SETTLING + COUNTED + 2
    config = EngineConfig(
        model=Null,
        backend=backend,
        dtype="float32",
        graph_runner="none",
        loop=loop,
        fence=fence,
        page_size=1,
        kv_pages=2 * steps,
        context_length=2 * steps,
        max_running_requests=1,
    )
    assembly = assemble(config, device=device)
    core = assembly.scheduler
    for name, us in (("next_batch", costs.pre), ("collect", costs.results)):
        setattr(core, name, device.taking(us, getattr(core, name)))
    params = SamplingParams(max_new_tokens=steps, ignore_eos=True)
    core.add(
        Request.new(0, None, [1], params, tokenizer=NullTokenizer(), max_context=2 * steps, seed=0)
    )
    with device.watched_by(Charges(device, costs, sync=sync)):
        while core.has_work:
            assembly.loop(core)
    device.close()
    return (starts[SETTLING + COUNTED] - starts[SETTLING]) / COUNTED


class Timed(NullBackend):
    """Reads in its metadata and says so; the rest of the forward is spent before the layers."""

    device: VirtualDevice
    costs: Costs
    starts: list[float]

    def shared_read_ends(self, forward_mode: object) -> SharedReadEnds:  # noqa: ARG002
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch: Any) -> None:  # noqa: ARG002
        self.starts.append(self.device.time())
        self.device.spend(self.costs.reads)

    def init_forward_metadata_in_graph(self, batch: Any) -> None:  # noqa: ARG002
        self.device.spend(self.costs.device - self.costs.reads)


class Charges(Observer):
    """The device's observer: charges the writes, and the host for what it does before a launch."""

    def __init__(self, device: VirtualDevice, costs: Costs, *, sync: bool) -> None:
        self._device = device
        self._costs = costs
        self._sync = sync
        self._writes_end = 0.0

    def submitted(self, stream: Any, pending: Any) -> None:  # noqa: ARG002
        # Reported before the work may begin: what the host spends here delays it.
        if stream.name == "forward":
            if self._sync:
                self._device.move_to(self._writes_end)
            self._device.spend(self._costs.post)

    def started(self, stream: Any, pending: Any) -> None:  # noqa: ARG002
        if repr(pending).startswith("SharedBuffers._write_pages"):
            self._device.spend(self._costs.writes)
            self._writes_end = self._device.time()


def compared(costs: Costs) -> Iterator[dict[str, Any]]:
    """A row for each mode, without and with a sync: the engine beside the model, in ms."""
    for sync in (False, True):
        for mode in MODES:
            step, model = simulated(costs, mode, sync=sync), predicted(costs, mode, sync=sync)
            yield {
                "D": costs.device / 1e3,
                "reads": costs.reads / 1e3,
                "W": costs.writes / 1e3,
                "H_pre": costs.pre / 1e3,
                "H_post": costs.post / 1e3,
                "H_res": costs.results / 1e3,
                "sync": sync,
                "loop": mode,
                "engine": step / 1e3,
                "model": model / 1e3,
                "off": step / model - 1,
            }


def grid(*, quick: bool) -> list[Costs]:
    """From a host that hardly matters to one that is slower than the device; W from small to not.

    Three ways to split H, and reads from none to all of the forward.
    """
    splits = [(0.1, (0.4, 0.3, 0.3)), (0.5, (0.1, 0.8, 0.1)), (0.0, (0.5, 0.0, 0.5))]
    ratios, writes = (0.1, 0.3, 0.6, 0.9, 1.0, 1.2, 2.0), (0.005, 0.02, 0.1, 0.4)
    sizes = (2_000.0, 20_000.0)
    if quick:
        ratios, writes, sizes, splits = ratios[1::2], writes[1::2], sizes[1:], splits[:2]
    return [
        Costs.split(size, ratio * size, write * size, reads=reads, shares=shares)
        for size in sizes
        for ratio in ratios
        for write in writes
        for reads, shares in splits
    ]
