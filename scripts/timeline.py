"""Runs of the real scheduler, fence and runner in virtual time, recorded as any run is.

The costs below are chosen; the order of everything, and who waits for whom, is what the code does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from warcore import AttentionBackend, EngineConfig, SamplingParams, SharedReadEnds
from warcore.assembly import assemble
from warcore.device.virtual import VirtualDevice
from warcore.request import Request
from warcore.tracing import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore.tracing import Timeline

HOST: Final = {"next_batch": 60.0, "collect": 20.0}
"""Microseconds that each takes the host: choosing a batch, settling results."""
WRITES: Final = {"_copy": 20.0, "SharedBuffers._write_pages": 40.0}
"""Microseconds on the schedule stream: a copy of host values, a write of the tables."""
METADATA, BODY = 40.0, 160.0
"""Microseconds on the forward stream: a backend's metadata, and the layers of one forward."""


def note(device: VirtualDevice, what: str) -> None:
    """Say that the running work goes on to `what` (of LEGEND); a captured step says it too."""
    device.phase(what)
    capture = device.local.capture
    if capture is not None:
        capture.add(lambda: device.phase(what))


class Timed(AttentionBackend):
    """Says that it reads its rows in the metadata, and does; takes time, and computes nothing."""

    device: VirtualDevice

    def shared_read_ends(self, forward_mode: object) -> SharedReadEnds:  # noqa: ARG002
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        self.reads(batch, METADATA)

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:  # noqa: ARG002
        self.device.spend(BODY / len(self.ctx.kv))
        return torch.zeros_like(q)

    def reads(self, batch: Any, us: float) -> None:
        """Look its rows up in the shared table."""
        rows = self.ctx.static("rows", (self.ctx.max_batch,), torch.int64)[: batch.padded_size]
        rows.copy_(self.ctx.shared.req_to_token.index_select(0, batch.rows)[:, 0])
        self.is_busy("read", us)

    def is_busy(self, what: str, us: float) -> None:
        """Be busy with `what` of LEGEND, then with the rest of the forward."""
        note(self.device, what)
        self.device.spend(us)
        note(self.device, "body")


class Charging(Recorder):
    """A recorder that also lets the writes of the schedule stream take their time."""

    def started(self, stream: Any, pending: Any) -> None:
        super().started(stream, pending)
        stream.spend(WRITES.get(repr(pending).partition(" ")[0], 0.0))


def run(
    backend: type[Timed] = Timed,
    fence: str = "declared",
    *,
    steps: int = 12,
    prompts: Sequence[Sequence[int]] = ((1, 2),),
    around: Callable[[VirtualDevice, Any], None] = lambda *_: None,
    **config: Any,
) -> Timeline:
    """Requests that decode for `steps` steps, a page of one token each.

    fence: "declared" or "coarse". around: may put something around the scheduler's methods.
    """
    device = VirtualDevice()
    named = {"graph_runner": "none", "page_size": 1, **config}
    timed = type(backend.__name__, (backend,), {"device": device})
    assembly = assemble(
        EngineConfig(model="random:tiny", backend=timed, fence=fence, **named), device=device
    )
    core = assembly.scheduler
    for name, us in HOST.items():
        setattr(core, name, device.taking(us, getattr(core, name)))
    around(device, core)
    params = SamplingParams(max_new_tokens=steps, ignore_eos=True)
    given = {"tokenizer": assembly.model.tokenizer, "max_context": 64, "seed": 0}
    for number, ids in enumerate(prompts):
        core.add(Request.new(number, None, list(ids), params, **given))
    with Charging(device, core) as recorder:
        while core.has_work:
            assembly.loop(core)
        timeline = recorder.timeline()
    device.close()
    return timeline
