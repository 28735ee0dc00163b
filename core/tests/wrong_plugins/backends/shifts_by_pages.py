"""It counts pages by shifting bits, and serves pages of twelve tokens."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.serves"


class Plugin(Right):
    def gather(self, batch):
        page = self.ctx.spec.page_size
        bits = page.bit_length() - 1
        slots = self.ctx.shared.req_to_token.index_select(0, batch.rows).long()
        self.slots(batch).copy_((slots >> bits) * page + slots % page)
