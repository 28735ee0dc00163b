"""How much memory an engine takes, said before any of it is allocated; then the KV pools."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from warcore.errors import ConfigError, blame
from warcore.pools import pages_for
from warcore.windows import most_window_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warcore.backend import AttentionBackend, AttentionSpec
    from warcore.choices import Choices
    from warcore.config import EngineConfig
    from warcore.model import ModelInfo
    from warcore.options import Chosen

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
    swa_pages: int = 0
    """Pages of the window pool; 0: there is none."""

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.weight_bytes + self.kv_bytes + self.table_bytes


def plan_memory(config: EngineConfig, choices: Choices) -> MemoryPlan:
    """How many pages, and whether all fits. ConfigError with the numbers if it does not."""
    spec, info = choices.spec, choices.info
    layer_page = _layer_page(choices.backend, spec)
    windowed = 0 if choices.window is None else sum(x.window is not None for x in info.layers)
    page, swa_page = (len(info.layers) - windowed) * layer_page, windowed * layer_page
    most = _most_window_pages(config, choices)
    weights = info.parameters * spec.dtype.itemsize
    free = free_bytes(spec.device)
    per_request = pages_for(spec.max_context, spec.page_size)
    pages = config.kv_pages
    if pages is None:
        wanted = config.max_running_requests * per_request
        # Pages of a backend that caches nothing have no bytes: all are affordable.
        affordable = wanted
        if free is not None:
            share = int((free - weights) * KV_SHARE)
            affordable = _affordable(share, page, swa_page, most, otherwise=wanted)
        pages = max(min(wanted, affordable), min(per_request, wanted))
    # With as many pages as the full pool has, each of its pages has one: no more is ever needed.
    swa_pages = min(most, pages)
    kv_bytes = (pages + 1) * page + (swa_pages + 1) * swa_page
    tables = _table_bytes(config, choices)
    if choices.window is not None:
        tables += (pages + 1) * spec.page_size * 4
    plan = MemoryPlan(pages, weights, kv_bytes, tables, swa_pages)
    if free is not None and plan.total > free:
        raise ConfigError(
            f"{info.name} needs {_gib(weights)} for weights, {_gib(plan.kv_bytes)} for {pages} KV "
            f"pages and {_gib(plan.table_bytes)} for the tables of {config.max_running_requests} "
            f"requests; {_gib(free)} are free on {spec.device}",
            next=_remedy(plan, _affordable(_left(plan, free), page, swa_page, most), free),
        )
    return plan


def refuse_large_draft(
    info: ModelInfo, spec: AttentionSpec, backend: Chosen, pages: int, beside: int
) -> None:
    """ConfigError with the numbers if a draft model's keys and values do not fit.

    Which model drafts is known only once its algorithm is built, so `plan_memory` cannot tell.
    beside: bytes of the target's pool, which a CPU gives only as they are written.
    """
    page = len(info.layers) * _layer_page(backend, spec)
    free, needed = free_bytes(spec.device), (pages + 1) * page
    taken = beside if spec.device.type == "cpu" else 0
    if free is None or needed + taken <= free:
        return
    fewer = max(free * 9 // 10 * pages // (needed + taken), 1)
    raise ConfigError(
        f"the draft model {info.name} needs {_gib(needed)} for the keys and values of {pages} "
        f"pages, beside {_gib(taken)} of the target; {_gib(free)} are free on {spec.device}",
        next=f"--kv-pages {fewer}, or a smaller draft model",
    )


def _layer_page(backend: Chosen, spec: AttentionSpec) -> int:
    """Bytes of one page of one layer."""
    with blame(f"backend {backend.name}", "kv_cache"):
        tensors = backend.cls.kv_cache(spec).values()
    return sum(_bytes(tensor.shape, tensor.dtype) for tensor in tensors)


def _most_window_pages(config: EngineConfig, choices: Choices) -> int:
    """What the window pool needs however many pages the full pool has; 0 without one."""
    if choices.window is None:
        return 0
    return most_window_pages(
        choices.window,
        choices.spec.page_size,
        requests=config.max_running_requests,
        chunk=config.prefill_chunk,
        drafted=choices.drafted,
    )


def _affordable(
    free: int, page: int, swa_page: int, most: int, *, otherwise: int | None = None
) -> int:
    """How many pages of `page` bytes fit, if up to `most` of them need `swa_page` more each.

    otherwise: where they have no bytes.
    """
    paired = free // max(page + swa_page, 1)
    if paired > most:
        paired = max((free - most * swa_page) // page, most) if page else otherwise or paired
    return paired


def _table_bytes(config: EngineConfig, choices: Choices) -> int:
    """The page table in int32, and the int64 indices of one step's requests and tokens."""
    spec, rows = choices.spec, config.max_running_requests
    context = pages_for(spec.max_context, spec.page_size) * spec.page_size
    return (rows + 1) * context * 4 + (3 * rows + config.prefill_chunk) * 8


def _left(plan: MemoryPlan, free: int) -> int:
    """What weights and tables leave, with some room for what is not counted."""
    return (free - plan.weight_bytes - plan.table_bytes) * 9 // 10


def _remedy(plan: MemoryPlan, affordable: int, free: int) -> str:
    if plan.table_bytes > free // 2:
        return "a smaller --max-running-requests, --context-length, --prefill-chunk or --page-size"
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
    backend: type[AttentionBackend], spec: AttentionSpec, pages: Sequence[int]
) -> list[dict[str, torch.Tensor]]:
    """kv[layer][name]: [pages[layer] + 1, *shape]; page 0 is the padding page.

    The other pages hold anything until their owner writes them: not touching them here leaves
    most of a large pool to the operating system until it is needed.
    """
    import torch

    specs = backend.kv_cache(spec)
    pool = [
        {
            name: torch.empty((count + 1, *each.shape), dtype=each.dtype, device=spec.device)
            for name, each in specs.items()
        }
        for count in pages
    ]
    for layer in pool:
        for memory in layer.values():
            memory[0].zero_()
    return pool
