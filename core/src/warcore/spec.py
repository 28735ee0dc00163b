"""Speculative algorithms and stagers: the base classes and what they declare to the fence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from warcore.options import NoOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.batch import ForwardBatch
    from warcore.contract import ForwardMode, SharedReadEnds
    from warcore.runner import ModelRunner


class SpecAlgorithm:
    """The plugin kind `spec_algo`. It declares data, never an identity that the core asks for."""

    later_prefill_reader: ClassVar[bool] = True
    """Whether a draft reads shared buffers after the target's prefill. True is the safe answer."""
    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0

    def last_shared_read_runner(
        self,
        forward_batch: ForwardBatch,  # noqa: ARG002
    ) -> ModelRunner | None:
        """The runner of the step's last phase that reads shared buffers; None: the target's."""
        return None

    def shared_read_ends(
        self,
        forward_mode: ForwardMode,  # noqa: ARG002
    ) -> SharedReadEnds | None:
        """Where reads of its own, outside any ModelRunner, end; None: it has none."""
        return None


class Stager(ABC):
    """The plugin kind `stager`: copies ahead what a draft's prefill would read."""

    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0

    @abstractmethod
    def stage(self, batch: ForwardBatch) -> bool:
        """Copy ahead; True only if no later shared read remains in this step."""

    def prefill_shared_read_stager(self) -> Callable[[ForwardBatch], bool] | None:
        """The hook: `stage` is the callable that the prefill gates call."""
        return self.stage
