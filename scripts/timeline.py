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
    from warcore.tracing import Timeline

HOST: Final = {"next_batch": 60.0, "collect": 20.0}
"""Microseconds that each takes the host: choosing a batch, settling results."""
WRITES: Final = {"_copy": 20.0, "SharedBuffers._write_pages": 40.0}
"""Microseconds on the schedule stream: a copy of host values, a write of the tables."""
METADATA, BODY = 40.0, 160.0
"""Microseconds on the forward stream: a backend's metadata, and the layers of one forward."""


class Timed(AttentionBackend):
    """Says that it reads its rows in the metadata; takes time, and computes nothing."""

    device: VirtualDevice
    reads_late = False
    """Whether it breaks its word and reads in the layers."""

    def shared_read_ends(self, forward_mode: object) -> SharedReadEnds:  # noqa: ARG002
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        if not self.reads_late:
            self._read(batch)
        self.device.spend(METADATA)

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:  # noqa: ARG002
        if self.reads_late:
            self._read(batch)
        self.device.spend(BODY / len(self.ctx.kv))
        return torch.zeros_like(q)

    def _read(self, batch: Any) -> None:
        self.ctx.shared.req_to_token.index_select(0, batch.rows)


class Charging(Recorder):
    """A recorder that also lets the writes of the schedule stream take their time."""

    def started(self, stream: Any, pending: Any) -> None:
        super().started(stream, pending)
        stream.spend(WRITES.get(repr(pending).partition(" ")[0], 0.0))


def run(fence: str, *, reads_late: bool = False, steps: int = 12) -> Timeline:
    """One request that decodes for `steps` steps, a page of one token each.

    fence: "declared" or "coarse".
    """
    device = VirtualDevice()
    backend = type("Timed", (Timed,), {"device": device, "reads_late": reads_late})
    config = EngineConfig(
        model="random:tiny", backend=backend, graph_runner="none", fence=fence, page_size=1
    )
    assembly = assemble(config, device=device)
    core = assembly.scheduler
    for name, us in HOST.items():
        setattr(core, name, device.taking(us, getattr(core, name)))
    params = SamplingParams(max_new_tokens=steps, ignore_eos=True)
    tokenizer = assembly.model.tokenizer
    core.add(Request.new(0, None, [1, 2], params, tokenizer=tokenizer, max_context=64, seed=0))
    with Charging(device, core) as recorder:
        while core.has_work:
            assembly.loop(core)
        timeline = recorder.timeline()
    device.close()
    return timeline
