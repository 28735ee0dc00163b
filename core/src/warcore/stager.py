"""Stagers: what they are given, and what `True` promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import attrs

from warcore.options import NoOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from warcore.batch import ForwardBatch
    from warcore.modelrunner import ModelRunner
    from warcore.shared import SharedTables
    from warcore.spec import SpecAlgorithm


@attrs.frozen(eq=False)
class StagerContext:
    """What a stager is built from. Fields are only ever added; authors never build one."""

    target: ModelRunner
    drafts: Sequence[ModelRunner]
    """The runners that the algorithm made, in its order."""
    shared: SharedTables
    """LIVE, and read-only."""
    static: Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
    """static(name, shape, dtype): zeroed memory, one address for life; same name, same memory."""
    stage: Callable[[str, Sequence[int]], torch.Tensor]
    """stage(name, values): host values into the front of static `name`, through the fenced ring."""
    options: object


class Stager(ABC):
    """The plugin kind `stager`: copies ahead what a draft's prefill would read.

    Then the target's prefill may publish its read-done event although a draft comes after it.
    """

    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0

    @classmethod
    def why_not(cls, algorithm: type[SpecAlgorithm]) -> list[str]:  # noqa: ARG003
        """Every reason why it cannot stage for `algorithm`, from what it declares; [] if it can."""
        return []

    def __init__(self, ctx: StagerContext) -> None:
        """Take static buffers from `ctx`; read nothing shared."""
        self.ctx = ctx

    @abstractmethod
    def stage(self, batch: ForwardBatch) -> bool:
        """Copy ahead; True only if no later shared read remains in this step.

        Called on the forward stream, after the target's out-graph metadata and before the event
        exists. False, or an exception, costs the overlap of this step and nothing else.
        """

    def prefill_shared_read_stager(self) -> Callable[[ForwardBatch], bool] | None:
        """The hook: `stage` is the callable that the prefill gates call."""
        return self.stage
