"""A BackendContext without an engine, for the unit tests of a backend's author."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore.backend import AttentionBackend, BackendContext
from warcore.contract import GraphKind
from warcore.device import open_device
from warcore.errors import ConfigError
from warcore.shared import SharedTables
from warcore.statics import Statics
from warcore.testkit.stands.memory import scattered_map, scattered_slots, unowned_pool

if TYPE_CHECKING:
    from warcore.backend import AttentionSpec


def context(
    spec: AttentionSpec,
    cls: type[AttentionBackend] = AttentionBackend,
    *,
    max_batch: int = 4,
    layers: int = 1,
    graph: GraphKind = GraphKind.NONE,
    options: object = None,
) -> BackendContext:
    """What an engine would build a backend of `spec` from, in ordinary memory of `spec.device`.

    cls: whose `kv_cache`, `window_pool` and `Options` it is made for; it is not built. max_batch:
    requests, each with a row of `spec.max_context` positions, in whole pages; `max_tokens` is all
    of their positions. layers: how many have a KV cache. graph: the kind of graph that the backend
    is told of; nothing is captured. options: an instance of `cls.Options`; None: the defaults.

    Every position of rows 1 to `max_batch` has a slot, in pages that lie in no order; row 0 is the
    padding row, and points at slot 0. KV slots hold NaN until they are written. There is a map for
    layers with windows where `spec` has them and `cls` has a `window_pool`. Nobody guards the
    shared tables: a test may write them itself, as a scheduler would. `stage` copies at once.

    ConfigError for less than one request or layer, DeviceError if `spec.device` is not there.
    """
    for name, count in (("max_batch", max_batch), ("layers", layers)):
        if count < 1:
            raise ConfigError(f"{name}={count}: there must be one at least", next=f"{name}=1")
    device = open_device("cuda" if spec.device.type == "cuda" else "host", "inline")
    statics = Statics(device, device.stream("forward"))
    width = -(-spec.max_context // spec.page_size) * spec.page_size
    slots = scattered_slots(spec.page_size, max_batch, width)
    full_to_swa = None
    if cls.window_pool and spec.windows != {None}:
        full_to_swa = scattered_map(spec.page_size, max_batch, width).to(spec.device, torch.int32)
    return BackendContext(
        spec=spec,
        max_batch=max_batch,
        max_tokens=max_batch * spec.max_context,
        shared=SharedTables(slots.to(spec.device, torch.int32), full_to_swa),
        kv=unowned_pool(cls, spec, layers, max_batch, width),
        graph=graph,
        options=cls.Options() if options is None else options,
        static=statics.static,
        stage=statics.stage,
    )
