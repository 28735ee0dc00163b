"""How much memory an engine takes, said before any of it is allocated; then the KV pool itself."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from warcore.errors import ConfigError, blame
from warcore.pools import pages_for

if TYPE_CHECKING:
    import torch

    from warcore.backend import AttentionBackend, AttentionSpec
    from warcore.config import EngineConfig
    from warcore.wiring import Choices

KV_SHARE = 0.4
"""How much of the free memory the KV pool takes when nobody says how many pages."""


@attrs.frozen
class MemoryPlan:
    """Pages of the KV pool and the bytes of what is large."""

    pages: int
    weight_bytes: int
    kv_bytes: int
    table_bytes: int
    """Of what grows with requests and tokens per step, however small each is."""

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.weight_bytes + self.kv_bytes + self.table_bytes


def plan_memory(config: EngineConfig, choices: Choices) -> MemoryPlan:
    """How many pages, and whether all fits. ConfigError with the numbers if it does not."""
    spec, info = choices.spec, choices.info
    with blame(f"backend {choices.backend_name}", "kv_cache"):
        tensors = choices.backend.kv_cache(spec).values()
    page = len(info.layers) * sum(_bytes(tensor.shape, tensor.dtype) for tensor in tensors)
    weights = info.parameters * spec.dtype.itemsize
    free = free_bytes(spec.device)
    per_request = pages_for(spec.max_context, spec.page_size)
    pages = config.kv_pages
    if pages is None:
        wanted = config.max_running_requests * per_request
        # Pages of a backend that caches nothing have no bytes: all are affordable.
        affordable = (
            wanted if free is None or not page else int((free - weights) * KV_SHARE) // page
        )
        pages = max(min(wanted, affordable), min(per_request, wanted))
    plan = MemoryPlan(pages, weights, (pages + 1) * page, _table_bytes(config, choices))
    if free is not None and plan.total > free:
        raise ConfigError(
            f"{info.name} needs {_gib(weights)} for weights, {_gib(plan.kv_bytes)} for {pages} KV "
            f"pages and {_gib(plan.table_bytes)} for the tables of {config.max_running_requests} "
            f"requests; {_gib(free)} are free on {spec.device}",
            next=_remedy(plan, page, free),
        )
    return plan


def _table_bytes(config: EngineConfig, choices: Choices) -> int:
    """The page table in int32, and the int64 indices of one step's requests and tokens."""
    spec, rows = choices.spec, config.max_running_requests
    context = pages_for(spec.max_context, spec.page_size) * spec.page_size
    return (rows + 1) * context * 4 + (3 * rows + config.prefill_chunk) * 8


def _remedy(plan: MemoryPlan, page: int, free: int) -> str:
    if plan.table_bytes > free // 2:
        return "a smaller --max-running-requests, --context-length, --prefill-chunk or --page-size"
    affordable = (free - plan.weight_bytes - plan.table_bytes) * 9 // 10 // max(page, 1)
    if affordable < 1:
        return "choose a smaller model, or --dtype bfloat16"
    return f"--kv-pages {affordable}, or a smaller --context-length"


def free_bytes(device: torch.device) -> int | None:
    """Memory that `device` can still give; None if nobody can tell."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    known = [free for free in (_machine_bytes(), _group_bytes()) if free is not None]
    return min(known, default=None)


def _machine_bytes() -> int | None:
    """What the kernel says could be given without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return sizes[0] * 1024 if sizes else None


CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""(limit, use) of a container's memory, in cgroup 2 and 1."""


def _group_bytes(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What is left of a container's limit; None where there is none."""
    for names in CGROUPS:
        try:
            limit, used = ((root / name).read_text(encoding="ascii").strip() for name in names)
        except OSError:
            continue
        return int(limit) - int(used) if limit.isdigit() else None
    return None


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return prod(shape) * dtype.itemsize


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def kv_pool(
    backend: type[AttentionBackend], spec: AttentionSpec, layers: int, pages: int
) -> list[dict[str, torch.Tensor]]:
    """kv[layer][name]: [pages + 1, *shape]; page 0 is the padding page.

    The other pages hold anything until their owner writes them: not touching them here leaves
    most of a large pool to the operating system until it is needed.
    """
    import torch

    specs = backend.kv_cache(spec)
    pool = [
        {
            name: torch.empty((pages + 1, *each.shape), dtype=each.dtype, device=spec.device)
            for name, each in specs.items()
        }
        for _ in range(layers)
    ]
    for layer in pool:
        for memory in layer.values():
            memory[0].zero_()
    return pool
