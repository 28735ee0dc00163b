"""The relay: what one forward makes and the next forward reads, by row.

Written and read on the forward stream only, so stream order is its whole synchronisation. The
schedule side never looks at it: it learns results after the launch's copy-done event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from warcore.backend import TensorSpec


class Relay:
    """Next token and true length of every row; the only truth about lengths on the device."""

    def __init__(
        self,
        rows: int,
        device: torch.device,
        state: Mapping[str, TensorSpec] | None = None,
    ) -> None:
        """state: what else a row leaves for its next step, one row of each."""
        import torch

        self.tokens = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        """[rows + 1] i64: the token that the row's next step takes as input."""
        self.lengths = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        """[rows + 1] i64: tokens of the row's sequence whose keys and values are written."""
        self.state = {
            name: torch.zeros((rows + 1, *spec.shape), dtype=spec.dtype, device=device)
            for name, spec in (state or {}).items()
        }
        """[rows + 1, *shape] of each name: an algorithm's."""

    def publish(self, rows: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> None:
        """Make a step's result the next step's input."""
        self.tokens.index_copy_(0, rows, tokens)
        self.lengths.index_copy_(0, rows, lengths)
