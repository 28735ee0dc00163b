"""A backend whose rows are copied by a kernel."""

from __future__ import annotations

import os
from unittest import mock

from wrong_plugins.backends.right import Right

BLOCK = 64


class InTriton(Right):
    """Copies its rows before the replay, in Triton."""

    @classmethod
    def why_not(cls, spec):
        return [*super().why_not(spec), *([] if spec.page_size == 4 else ["it takes its time"])]

    def gather(self, batch):
        self.launch(batch)

    def launch(self, batch):
        with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
            from wrong_plugins.backends.kernels import copy_rows

            slots, table = self.slots(batch), self.ctx.shared.req_to_token
            width = table.shape[1]
            grid = batch.padded_size, -(-width // BLOCK)
            copy_rows[grid](table, batch.rows, slots, width, BLOCK=BLOCK)
