"""The four hooks that ask plugins where the shared reads of a step end. There are no others.

They are read once, at wiring; no step calls through pluggy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.batch import ForwardBatch
    from warcore.contract import ForwardMode, SharedReadEnds
    from warcore.modelrunner import ModelRunner

PROJECT: Final = "warcore"
hookspec: Final = pluggy.HookspecMarker(PROJECT)

ANSWERED_BY: Final[dict[str, frozenset[str]]] = {
    "shared_read_ends": frozenset({"backend", "spec_algo"}),
    "prepare_prefill_shared_read_snapshot": frozenset({"backend", "spec_algo"}),
    "last_shared_read_runner": frozenset({"spec_algo"}),
    "prefill_shared_read_stager": frozenset({"stager"}),
}
"""Which kinds of plugin answer which hook; on any other kind the name is an error."""


class ScopeHooks:
    """Asked of the readers of one ModelRunner: its backend, and the algorithm if it reads too."""

    @hookspec
    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds | None:
        """Where this reader's last read of the shared buffers ends, in a step of this mode.

        Pure and total over ForwardMode; asked at wiring. A backend must answer with a
        SharedReadEnds; another reader may answer None (it reads nothing). The scope's answer is
        the latest vote, so a plugin can only delay a fence, never advance somebody else's.
        """

    @hookspec
    def prepare_prefill_shared_read_snapshot(
        self, forward_batch: ForwardBatch, num_qo_tokens: int
    ) -> SharedReadEnds | None:
        """Copy what the layers of this EXTEND batch would read later, and say where reads end now.

        Called once per EXTEND batch on the forward stream, after metadata init and before the
        body, if the first two prefill gates pass. `num_qo_tokens` is the padded bucket when a
        graph will replay. None keeps the static vote. The answer is a value and leaves no flag
        behind. If it raises, the step is coarse with the reason `snapshot_error`.
        """


class EngineHooks:
    """Asked of the engine's algorithm and stagers."""

    @hookspec
    def last_shared_read_runner(self, forward_batch: ForwardBatch) -> ModelRunner | None:
        """The ModelRunner of the step's last phase that reads shared buffers.

        Asked once a step on the forward stream, before the first phase, except in prefill steps.
        Nobody answers: the target's. Two different answers make the step coarse
        (`declaration_error`).
        """

    @hookspec
    def prefill_shared_read_stager(self) -> Callable[[ForwardBatch], bool] | None:
        """A callable that copies ahead what a draft's prefill would read; asked once, at wiring.

        It returns True only when no later shared read remains, and it is called strictly before
        the read-done event exists. Every stager is called and every one must return True;
        anything that is not a bool, or an exception, makes the step coarse (`stager_error`).
        """
