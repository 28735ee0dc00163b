"""Kernels for Triton's interpreter; loaded by its test with TRITON_INTERPRET=1."""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_some(source, target, count, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + lane, mask=lane < count)  # the load
    tl.store(target + lane, values, mask=lane < count)  # the store


@triton.jit
def one_more(pointer):
    return tl.load(pointer) + 1  # the load within


@triton.jit
def count_up(source, target):
    tl.store(target, one_more(source + 3))


@triton.jit
def add_one(target):
    tl.atomic_add(target + 2, 1)


@triton.jit
def nothing(source):
    tl.program_id(0)


@torch.library.custom_op("warcore_tests_triton::head", mutates_args=())
def head(table: torch.Tensor, count: int) -> torch.Tensor:
    target = torch.zeros_like(table)
    copy_some[(1,)](table, target, count, BLOCK=16)
    return target
