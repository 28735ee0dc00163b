"""What this backend promises of its own, one step at a time and without an engine."""

import pytest
import torch
from warcore import AttentionSpec, ForwardBatch, ForwardMode, Layer
from warcore.testkit import context

from warcore_backend_sample import Sample

SPEC = AttentionSpec(
    q_heads=2,
    kv_heads=1,
    head_dim=8,
    dtype=torch.float32,
    kv_dtype=torch.float32,
    page_size=4,
    max_context=32,
    windows=frozenset({None}),
    tree=False,
    device=torch.device("cpu"),
    role="target",
)
LAYER = Layer(index=0, q_heads=2, kv_heads=1, head_dim=8, scale=8**-0.5)


@pytest.fixture
def backend():
    return Sample(context(SPEC, Sample))


def token(backend, position):
    """A decode step of one request, in row 1, whose new token has this position."""
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        size=1,
        padded_size=1,
        padded_tokens=1,
        tokens=torch.tensor([0]),
        rows=torch.tensor([1]),
        seq_lens=torch.tensor([position + 1], dtype=torch.int32),
        q_start=torch.tensor([0, 1], dtype=torch.int32),
        q_row=torch.tensor([0]),
        positions=torch.tensor([position]),
        out_slots=backend.ctx.shared.req_to_token[1, position : position + 1].long(),
        max_seq_len=position + 1,
    )


def attend(backend, batch, value):
    q, k = torch.randn(1, 2, 8), torch.randn(1, 1, 8)
    return backend.forward(q, k, torch.full((1, 1, 8), value), LAYER, batch)


def test_the_table_may_be_rewritten_once_the_metadata_is_there(backend):
    first, second = token(backend, 0), token(backend, 1)
    backend.init_forward_metadata_out_graph(first)
    attend(backend, first, value=7.0)
    backend.init_forward_metadata_out_graph(second)
    backend.ctx.shared.req_to_token.zero_()
    # A mean of sevens: both tokens were found where the table had them.
    assert torch.allclose(attend(backend, second, value=7.0), torch.tensor(7.0))
