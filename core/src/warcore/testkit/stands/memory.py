"""The memory that the kit gives a backend: pages in no order, and slots of nobody full of NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warcore.backend import AttentionSpec

if TYPE_CHECKING:
    from warcore.testkit.stands.cell import Shape


def scattered_slots(page_size: int, rows: int, context: int) -> torch.Tensor:
    """[rows + 1, context] i64: a slot for each position of each row, its pages anywhere.

    Row 0 is the padding row, and points at slot 0.
    """
    pages = rows * context // page_size
    order = 1 + torch.randperm(pages, generator=torch.Generator().manual_seed(5))
    slots = order.repeat_interleave(page_size) * page_size + torch.arange(page_size).repeat(pages)
    nothing = torch.zeros(1, context, dtype=torch.int64)
    return torch.cat([nothing, slots.view(rows, context)])


def scattered_map(page_size: int, rows: int, context: int) -> torch.Tensor:
    """[slots] i64: a slot of a window pool of as many pages for each of the full pool, in no order.

    The padding page leads to the padding page.
    """
    pages = rows * context // page_size
    order = 1 + torch.randperm(pages, generator=torch.Generator().manual_seed(6))
    led = torch.cat([torch.zeros(1, dtype=torch.int64), order])
    return (led[:, None] * page_size + torch.arange(page_size)).flatten()


def unowned_pool(
    cls: Any, spec: AttentionSpec, layers: int, rows: int, context: int
) -> list[dict[str, torch.Tensor]]:
    """The backend's KV cache, [pages, ...] of each name and layer: NaN, but for the padding page.

    So whoever reads a slot that no step has written shows it in the output.
    """
    pages = 1 + rows * context // spec.page_size
    pool = [
        {
            name: torch.full((pages, *memory.shape), float("nan")).to(spec.device, memory.dtype)
            for name, memory in cls.kv_cache(spec).items()
        }
        for _ in range(layers)
    ]
    for layer in pool:
        for memory in layer.values():
            memory[0].zero_()
    return pool


def spec_of(shape: Shape, device: torch.device) -> AttentionSpec:
    """What a backend is asked to serve."""
    dtype = getattr(torch, shape.dtype)
    return AttentionSpec(
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
        kv_dtype=dtype,
        page_size=shape.page_size,
        max_context=shape.max_context,
        windows=frozenset(shape.windows),
        tree=shape.tree,
        device=device,
        role=shape.role,
    )
