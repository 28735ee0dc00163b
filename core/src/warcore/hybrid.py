"""HybridBackend: one attention backend for prefills, another one for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from warcore.backend import AttentionBackend
from warcore.hooks import read_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from warcore.backend import AttentionSpec, BackendContext, TensorSpec
    from warcore.batch import ForwardBatch
    from warcore.contract import ForwardMode, SharedReadEnds
    from warcore.model import Layer
    from warcore.scope import BoundHook


class HybridBackend(AttentionBackend):
    """Lets one backend serve EXTEND and MIXED steps, and another one every other step.

    Both read and write one KV cache. In each mode it answers as the one that serves it: neither may
    speak for the other. `hybrid_of` makes the class of two.
    """

    children: ClassVar[Mapping[str, type[AttentionBackend]]]
    """{"prefill": class, "decode": class}."""

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:
        """The reasons of both, and whether they keep different caches."""
        reasons = [
            f"{part} by {child.__name__}: {reason}"
            for part, child in cls.children.items()
            for reason in child.why_not(spec)
        ]
        prefill, decode = (child.kv_cache(spec) for child in cls.children.values())
        if prefill != decode:
            names = " and ".join(child.__name__ for child in cls.children.values())
            reasons.append(f"{names} keep keys and values in different forms")
        return reasons

    @classmethod
    def kv_cache(cls, spec: AttentionSpec) -> dict[str, TensorSpec]:
        """The prefill child's, which is the other's too."""
        return cls.children["prefill"].kv_cache(spec)

    def __init__(self, ctx: BackendContext) -> None:
        """ctx.options: {"prefill": options, "decode": options}.

        WiringError for a hook of a child that no backend may have: a misspelt one, say.
        """
        super().__init__(ctx)
        options: Any = ctx.options
        self.prefill, self.decode = (
            child(
                attrs.evolve(
                    ctx,
                    options=options[part],
                    static=_own_names(part, ctx.static),
                    stage=_own_names(part, ctx.stage),
                )
            )
            for part, child in self.children.items()
        )
        # As the wiring reads a backend of its own: a child may take fewer arguments, and no more
        # than another may it misspell its word.
        self._prefill_hooks, self._decode_hooks = map(_hooks_of, (self.prefill, self.decode))

    def _serving(self, mode: ForwardMode) -> AttentionBackend:
        return self.prefill if mode.is_prefill else self.decode

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """The serving child's."""
        self._serving(batch.mode).init_forward_metadata_out_graph(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """The serving child's."""
        self._serving(batch.mode).init_forward_metadata_in_graph(batch)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """The serving child's."""
        return self._serving(batch.mode).forward(q, k, v, layer, batch)

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """The serving child's."""
        hooks = self._prefill_hooks if forward_mode.is_prefill else self._decode_hooks
        vote: SharedReadEnds = hooks["shared_read_ends"](forward_mode=forward_mode)
        return vote

    def prepare_prefill_shared_read_snapshot(
        self, forward_batch: ForwardBatch, num_qo_tokens: int
    ) -> SharedReadEnds | None:
        """The prefill child's."""
        hook = self._prefill_hooks["prepare_prefill_shared_read_snapshot"]
        answer: SharedReadEnds | None = hook(
            forward_batch=forward_batch, num_qo_tokens=num_qo_tokens
        )
        return answer

    def graph_key(self, batch: ForwardBatch) -> int | None:
        """The serving child's."""
        return self._serving(batch.mode).graph_key(batch)


def hybrid_of(
    prefill: type[AttentionBackend], decode: type[AttentionBackend]
) -> type[HybridBackend]:
    """The class of two backends; it has the `page_sizes` and the `window_pool` of both."""
    either = [sizes for sizes in (prefill.page_sizes, decode.page_sizes) if sizes is not None]
    members: dict[str, object] = {
        "children": {"prefill": prefill, "decode": decode},
        "page_sizes": frozenset.intersection(*either) if either else None,
        "window_pool": prefill.window_pool and decode.window_pool,
    }
    inherited = AttentionBackend.prepare_prefill_shared_read_snapshot
    if prefill.prepare_prefill_shared_read_snapshot is inherited:
        # Nobody decides per batch, and whoever looks at the class sees so: the plan does.
        members["prepare_prefill_shared_read_snapshot"] = inherited
    return type(f"{prefill.__name__}And{decode.__name__}", (HybridBackend,), members)


def _hooks_of(child: AttentionBackend) -> dict[str, BoundHook]:
    found = read_hooks({f"backend:{type(child).__name__}": child})
    return {name: hook for name, hooks in found.items() for hook in hooks}


def _own_names(part: str, memory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`ctx.static` or `ctx.stage`, so that two backends may call their memory the same."""

    def named(name: str, *rest: Any) -> torch.Tensor:
        return memory(f"{part}.{name}", *rest)

    return named
