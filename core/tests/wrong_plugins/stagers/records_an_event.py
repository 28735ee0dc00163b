"""Records an event of its own once it has staged."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.order"


class Plugin(Right):
    def stage(self, batch):
        staged = super().stage(batch)
        self.ctx.target._device.event().record()
        return staged
