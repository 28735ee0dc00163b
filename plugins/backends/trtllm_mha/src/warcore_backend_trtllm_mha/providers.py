"""The providers of kernels, in the order in which they are preferred, and what each cannot do.

Nothing here imports one of them: `find_spec` and the version of a distribution say what is there.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import torch

from warcore import WiringError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from warcore import AttentionSpec, ForwardBatch, Layer
    from warcore_backend_trtllm_mha.tables import Tables

AUTO: Final = "auto"
BLACKWELL: Final = 10
"""Major compute capability of the GPUs that trtllm-gen is built for (10.0, 10.3)."""
FLASHINFER: Final = (0, 5)
"""The oldest release whose functions take a cache of [page, head] order (`kv_layout`)."""
AMPERE: Final = (8, 0)
"""The oldest GPUs for Triton: those before have no bfloat16."""
HEAD_DIMS: Final = (64, 128, 256)
"""For which trtllm-gen has kernels over a paged cache."""
LARGEST_HEAD: Final = 256
LARGEST_GROUP: Final = 32
"""Query heads over one KV head, all in one tile of the Triton kernel."""
HALVES: Final = frozenset({torch.bfloat16, torch.float16})
OFF: Final = frozenset({"", "0", "false", "off", "no", "n"})


class Attention(Protocol):
    """The kernels of one provider. Built from (ctx, the PageTables); imported only if it serves."""

    def captured_length(self, batch: ForwardBatch) -> int | None:
        """The KV length that a captured step is for; None: such a batch runs eagerly."""

    def plan(self, batch: ForwardBatch, tables: Tables) -> object:
        """What all layers of a step share. Captured; reads nothing that is shared."""

    def attend(
        self,
        q: torch.Tensor,
        memory: Mapping[str, torch.Tensor],
        layer: Layer,
        *,
        batch: ForwardBatch,
        pages: torch.Tensor,
        plan: Any,
    ) -> torch.Tensor:
        """Attention of q [T, q_heads, D] over `pages` [B, P] of memory; shaped like q."""


@attrs.frozen
class Provider:
    """A provider, whether or not it is installed."""

    place: str
    """MODULE:CLASS of its Attention, in this package."""
    missing: Callable[[torch.device], list[str]]
    """Why it cannot serve on a device, whatever the model; [] if it can."""
    unfit: Callable[[AttentionSpec], list[str]]
    """Why it cannot serve a model, whatever the device; [] if it can."""

    def why_not(self, spec: AttentionSpec) -> list[str]:
        """Every reason; [] if it can serve."""
        return [*self.missing(spec.device), *self.unfit(spec)]

    def load(self) -> Any:
        """Its class of Attention, imported."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(f"{__package__}.{module}"), name)


def provider_of(spec: AttentionSpec, wanted: str) -> str:
    """The name of the provider that serves `spec`: the one that is wanted, or the first that can.

    WiringError with every reason if the one that is wanted cannot.
    """
    if wanted == AUTO:
        # The interpreter is for whoever asks for it: it is thousands of times slower than torch.
        able = [name for name in PROVIDERS if name != "triton" or spec.device.type == "cuda"]
        return next(name for name in able if not PROVIDERS[name].why_not(spec))
    reasons = PROVIDERS[wanted].why_not(spec)
    if reasons:
        lines = "".join(f"\n  {reason}" for reason in reasons)
        able = [name for name, other in PROVIDERS.items() if not other.why_not(spec)]
        raise WiringError(
            f"trtllm_mha: the {wanted} kernels cannot serve this:{lines}",
            next=f"--opt trtllm_mha.kernels={AUTO}, or one of: {', '.join(able)}",
        )
    return wanted


def said(device: torch.device) -> str:
    """Which kernels serve on `device`, and why none that are preferred to them, for people."""
    passed = []
    for name, provider in PROVIDERS.items():
        reasons = provider.missing(device)
        if name == "triton" and device.type == "cpu" and not reasons:
            reasons = ["a CPU, where it is interpreted and serves by name only"]
        if not reasons:
            break
        passed.append(f"; {name}: {', '.join(reasons)}")
    return f"{name} kernels{''.join(passed)}"


def _flashinfer_missing(device: torch.device) -> list[str]:
    reasons = []
    if device.type != "cuda":
        reasons.append(f"a {device.type} device (trtllm-gen is for Blackwell GPUs)")
    elif (capability := _capability(device))[0] != BLACKWELL:
        found = f"{capability[0]}.{capability[1]}"
        reasons.append(f"a GPU of compute capability {found} (trtllm-gen is for {BLACKWELL}.x)")
    release = _flashinfer_release()
    if release is None:
        reasons.append("not installed (pip install flashinfer-python)")
    elif release < FLASHINFER:
        found, oldest = (".".join(map(str, each)) for each in (release, FLASHINFER))
        reasons.append(f"release {found} ({oldest} or newer)")
    return reasons


def _flashinfer_unfit(spec: AttentionSpec) -> list[str]:
    reasons = []
    if spec.dtype not in HALVES:
        reasons.append(f"{spec.dtype} (it computes in bfloat16, float16)")
    if spec.head_dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        reasons.append(f"heads of {spec.head_dim} (it has {sizes})")
    if spec.tree:
        reasons.append("tree masks (use chain drafts)")
    return reasons


def _flashinfer_release() -> tuple[int, int] | None:
    if find_spec("flashinfer") is None:
        return None
    try:
        major, minor, *_ = version("flashinfer-python").split(".")
        return int(major), int(minor)
    except (PackageNotFoundError, ValueError):
        return 0, 0


def _triton_missing(device: torch.device) -> list[str]:
    if find_spec("triton") is None:
        return ["not installed (pip install triton)"]
    if device.type == "cpu":
        if interprets():
            return []
        return ["a CPU without Triton's interpreter (set TRITON_INTERPRET=1 before Python starts)"]
    if device.type != "cuda":
        return [f"a {device.type} device"]
    reasons = []
    if interprets():
        reasons.append("a GPU while Triton's interpreter is on (unset TRITON_INTERPRET)")
    capability = _capability(device)
    if capability < AMPERE:
        found = f"{capability[0]}.{capability[1]}"
        reasons.append(f"a GPU of compute capability {found} (8.0 or newer)")
    return reasons


def _triton_unfit(spec: AttentionSpec) -> list[str]:
    reasons = []
    if spec.dtype not in {*HALVES, torch.float32}:
        reasons.append(f"{spec.dtype} (its kernels sum in float32)")
    if spec.head_dim > LARGEST_HEAD:
        reasons.append(f"heads of {spec.head_dim} (up to {LARGEST_HEAD})")
    group = spec.q_heads // spec.kv_heads
    if group > LARGEST_GROUP:
        reasons.append(f"{group} query heads over one KV head (up to {LARGEST_GROUP})")
    return reasons


def _nothing(_: object) -> list[str]:
    return []


def interprets() -> bool:
    """Whether Triton's kernels run in its interpreter.

    Triton decides when a kernel is decorated, its own ones too: once it is imported, the variable
    changes nothing any more.
    """
    if "triton.language.standard" not in sys.modules:
        return os.environ.get("TRITON_INTERPRET", "").lower() not in OFF
    standard = sys.modules["triton.language.standard"]
    return type(standard.max).__name__ == "InterpretedFunction"


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


PROVIDERS: Final = {
    "flashinfer": Provider(
        "flashinfer_attention:FlashinferAttention", _flashinfer_missing, _flashinfer_unfit
    ),
    "triton": Provider("triton_attention:TritonAttention", _triton_missing, _triton_unfit),
    "torch": Provider("torch_attention:TorchAttention", _nothing, _nothing),
}
"""By name, the preferred ones first. The last serves whatever the backend accepts."""
