"""Layouts, numbers and signatures of the CUDA driver, as `cuda.h` has them: its ABI."""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_void_p,
)
from typing import Any, Final

KINDS: Final = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host function",
    4: "graph",
    5: "empty",
    6: "event wait",
    7: "event record",
    8: "semaphore signal",
    9: "semaphore wait",
    10: "allocation",
    11: "free",
    12: "memory operations",
    13: "conditional",
}
"""CUgraphNodeType."""


class KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("params", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("context", c_void_p),
    )


class CopyEnd(Structure):
    """Where a copy takes from or writes to: one half of CUDA_MEMCPY3D_v2."""

    _fields_ = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("memory_type", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class CopyParams(Structure):
    """CUDA_MEMCPY3D_v2."""

    _fields_ = (
        ("source", CopyEnd),
        ("target", CopyEnd),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


class SetParams(Structure):
    """CUDA_MEMSET_NODE_PARAMS_v1."""

    _fields_ = (
        ("target", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class EdgeData(Structure):
    """CUgraphEdgeData."""

    _fields_ = (
        ("from_port", c_ubyte),
        ("to_port", c_ubyte),
        ("type", c_ubyte),
        ("reserved", c_ubyte * 5),
    )


SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuGraphGetNodes": (c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "cuGraphGetEdges_v2": (
        c_void_p,
        POINTER(c_void_p),
        POINTER(c_void_p),
        POINTER(EdgeData),
        POINTER(c_size_t),
    ),
    "cuGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, POINTER(KernelParams)),
    "cuGraphMemcpyNodeGetParams": (c_void_p, POINTER(CopyParams)),
    "cuGraphMemsetNodeGetParams": (c_void_p, POINTER(SetParams)),
    "cuGraphEventRecordNodeGetEvent": (c_void_p, POINTER(c_void_p)),
    "cuGraphChildGraphNodeGetGraph": (c_void_p, POINTER(c_void_p)),
    "cuKernelGetFunction": (POINTER(c_void_p), c_void_p),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuFuncGetName": (POINTER(c_char_p), c_void_p),
}
"""Since CUDA 12.4 all of them are there."""
