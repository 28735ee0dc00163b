"""ModelRunner: what plugins see of a model that runs under the fence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.contract import SharedReadEnds
    from warcore.model import ModelInfo, Output


class ModelRunner(ABC):
    """A model with its backend. The core makes every one; plugins call them and name them.

    What it reads of the shared buffers it publishes itself: no plugin ever sees the fence.
    """

    info: ModelInfo

    @abstractmethod
    def execute(self, batch: ForwardBatch) -> Output:
        """Run one phase on the current stream: replayed if a captured step holds it, else eagerly.

        The output of a replay lies in static memory, which the next replay may write over.
        WiringError if another phase has settled this launch's fence: this one would read shared
        buffers that the next step may have rewritten. In a prefill step that a stager has vouched
        for, every pass of a staged runner but the one that was staged is refused too.
        """

    @abstractmethod
    def stage(self, batch: ForwardBatch) -> SharedReadEnds:
        """Read ahead what a later `execute` of these rows and positions would; what remains.

        For a stager, on the forward stream: runs the out-graph metadata and the snapshots of a
        prefill batch. PRE_REPLAY: nothing shared is read later in this step. Raises what the
        backend raises; WiringError once the step's reads were declared to be over.
        """
