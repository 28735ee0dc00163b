"""The Triton kernels as an operator of torch, and two threads that launch it.

TRITON_INTERPRET=1 pytest plugins/backends/trtllm_mha
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode

from warcore import ForwardMode
from warcore_backend_trtllm_mha.providers import PROVIDERS

WHY_NOT = PROVIDERS["triton"].missing(torch.device("cpu"))
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"cannot run kernels on {WHY_NOT}")


def arguments(case):
    """What a layer hands to the operator."""
    backend, layer, batch = case.backend, case.layers[0], case.batch
    attention, tables = backend._attention, backend._tables.of(batch)
    tiling = attention.tiling(layer, batch)
    return (
        case.q, case.kv[0]["k"], case.kv[0]["v"], tables.pages, batch.q_start, batch.seq_lens,
        batch.positions, batch.tree_mask, layer.scale, layer.window, tiling.tokens, tiling.tiles,
        tiling.keys, tiling.splits, attention._partial, attention._sums, torch.zeros_like(case.q),
    )  # fmt: skip


def test_the_operator_does_what_its_schema_says(paged):
    given = {"tree": True, "drafts": 2, "kernels": "triton", "kv_heads": 1}
    case = paged(ForwardMode.TARGET_VERIFY, prefixes=(3, 5), lens=(2, 2), **given)
    case.run()
    torch.library.opcheck(
        torch.ops.warcore_backend_trtllm_mha.attend,
        arguments(case),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_a_step_of_fake_tensors_has_its_shapes(paged):
    case = paged.ragged(ForwardMode.DECODE, kernels="triton", kv_heads=1)
    case.run()
    given = arguments(case)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in given]
        assert torch.ops.warcore_backend_trtllm_mha.attend(*fake) is None
    assert fake[-1].shape == case.q.shape


def test_two_threads_may_launch_at_once(paged):
    # The interpreter alone cannot: it keeps the place in the grid in one object.
    sizes = {"kernels": "triton", "head_dim": 16}
    cases = [paged.ragged(ForwardMode.DECODE, seed=seed, **sizes) for seed in (1, 2)]
    outs, ready = {}, threading.Barrier(2)

    def run(case):
        torch.set_num_threads(1)
        ready.wait()
        outs[case.seed] = [case.run() for _ in range(5)]

    threads = [threading.Thread(target=run, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for case in cases:
        assert len(outs[case.seed]) == 5
        for out in outs[case.seed]:
            case.check(out)
