"""Every kind of step, with the shipped model and backend, replays the bits of an eager step."""

from __future__ import annotations

import attrs
import pytest
import torch

from warcore import (
    AttentionSpec,
    BackendContext,
    ForwardBatch,
    ForwardMode,
    GraphKind,
    ModelContext,
    NoOptions,
)
from warcore.device.host import HostDevice
from warcore.shared import SharedTables
from warcore_backend_torch_native import TorchNative
from warcore_model_llama.families import Random, RandomOptions

CPU = torch.device("cpu")
PAGE, CONTEXT, ROWS = 4, 128, 3

STEPS = {
    ForwardMode.DECODE: (1, 1, 1),
    ForwardMode.TARGET_VERIFY: (4, 4, 4),
    ForwardMode.DRAFT_EXTEND: (2, 1, 4),
    ForwardMode.EXTEND: (9,),
    ForwardMode.MIXED: (5, 1, 1),
}
"""New tokens of each request."""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Steps:
    """A model, its backend and the static batch of one kind of step."""

    def __init__(self, mode, dtype, *, window=None, tree=False):
        self.lens, self.mode, self.tree = STEPS[mode], mode, tree
        options = RandomOptions(window=window, window_layers="alternate")
        self.model = Random.load("random:tiny", ModelContext(CPU, dtype, options))
        layers = self.model.info.layers
        spec = AttentionSpec(
            q_heads=layers[0].q_heads,
            kv_heads=layers[0].kv_heads,
            head_dim=layers[0].head_dim,
            dtype=dtype,
            kv_dtype=dtype,
            page_size=PAGE,
            max_context=CONTEXT,
            windows=frozenset(layer.window for layer in layers),
            tree=tree,
            device=CPU,
            role="target",
        )
        slots = torch.arange(PAGE, PAGE + ROWS * CONTEXT, dtype=torch.int32).view(ROWS, CONTEXT)
        self.table = torch.cat((torch.zeros(1, CONTEXT, dtype=torch.int32), slots))
        self.kv = [
            {
                name: torch.randn(1 + ROWS * CONTEXT // PAGE, *memory.shape).to(dtype)
                for name, memory in TorchNative.kv_cache(spec).items()
            }
            for _ in layers
        ]
        self.backend = TorchNative(
            BackendContext(
                spec=spec,
                max_batch=ROWS,
                max_tokens=64,
                shared=SharedTables(self.table),
                kv=self.kv,
                graph=GraphKind.UNBROKEN,
                options=NoOptions(),
                static=lambda _, shape, dtype: torch.zeros(shape, dtype=dtype),
                stage=lambda *_: None,
            )
        )
        self.batch = self.draw()

    def draw(self):
        """A batch of this kind: other tokens and other lengths each time."""
        lens, count = torch.tensor(self.lens), sum(self.lens)
        rows = torch.randperm(ROWS)[: len(lens)] + 1
        old = torch.randint(20, 100, (len(lens),))
        q_start = torch.cat((torch.zeros(1, dtype=torch.int64), lens.cumsum(0)))
        q_row = torch.repeat_interleave(torch.arange(len(lens)), lens)
        positions = old[q_row] + torch.arange(count) - q_start[q_row]
        tree = torch.ones(count, max(self.lens), dtype=torch.bool).tril() if self.tree else None
        prefill = self.mode in {ForwardMode.EXTEND, ForwardMode.MIXED}
        return ForwardBatch(
            mode=self.mode,
            size=len(lens),
            padded_size=len(lens),
            padded_tokens=count,
            tokens=torch.randint(0, 250, (count,)),
            rows=rows,
            seq_lens=(old + lens).to(torch.int32),
            q_start=q_start.to(torch.int32),
            q_row=q_row,
            positions=positions,
            out_slots=self.table[rows[q_row], positions].long(),
            max_seq_len=CONTEXT,
            max_q_len=max(self.lens),
            extend_lens=self.lens if prefill else (),
            logits_at=q_start[1:] - 1 if prefill else None,
            tree_mask=tree,
        )

    def load(self, batch):
        """Other inputs at the same addresses."""
        for field in attrs.fields(ForwardBatch):
            old, new = getattr(self.batch, field.name), getattr(batch, field.name)
            if isinstance(old, torch.Tensor):
                old.copy_(new)

    def before(self):
        self.backend.init_forward_metadata_out_graph(self.batch)

    def body(self):
        """What is captured."""
        batch = self.batch
        self.backend.init_forward_metadata_in_graph(batch)
        output = self.model.forward(
            batch, lambda q, k, v, layer: self.backend.forward(q, k, v, layer, batch), (0, 1)
        )
        return output.logits, output.hidden

    def everything(self, *results):
        """The results, and the whole cache, as bytes."""
        cache = [memory for layer in self.kv for memory in layer.values()]
        return [t.contiguous().view(torch.uint8).clone() for t in (*results, *cache)]


def check(steps, device):
    stream, graph = device.stream("forward"), device.graph()
    stream.submit(steps.before).result()
    captured = stream.submit(graph.capture, steps.body).result()
    for _ in range(3):
        steps.load(steps.draw())
        untouched = [{name: t.clone() for name, t in layer.items()} for layer in steps.kv]
        stream.submit(steps.before).result()
        stream.submit(graph.replay).result()
        replayed = stream.submit(steps.everything, *captured).result()
        for layer, old in zip(steps.kv, untouched, strict=True):
            for name, memory in old.items():
                layer[name].copy_(memory)
        stream.submit(steps.before).result()
        eager = stream.submit(steps.body).result()
        wanted = stream.submit(steps.everything, *eager).result()
        assert all(map(torch.equal, replayed, wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", STEPS, ids=lambda mode: mode.value)
def test_a_replay_gives_the_bits_of_an_eager_step(mode, dtype):
    torch.manual_seed(0)
    with HostDevice("inline") as device:
        check(Steps(mode, dtype), device)


@pytest.mark.parametrize("mode", STEPS, ids=lambda mode: mode.value)
def test_so_do_replays_with_windows_and_call_by_call(mode):
    torch.manual_seed(0)
    with HostDevice("seeded", 1) as device:
        check(Steps(mode, torch.float32, window=16), device)


def test_so_do_replays_of_a_tree():
    torch.manual_seed(0)
    with HostDevice("threads") as device:
        check(Steps(ForwardMode.TARGET_VERIFY, torch.bfloat16, tree=True), device)
