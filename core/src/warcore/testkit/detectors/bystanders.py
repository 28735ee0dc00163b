"""Bystanders: whether threads of a plugin's own have anything to do with guarded memory.

When they run is luck, so what one run shows of them proves nothing. But a thread whose torch calls
are never handed such memory, in a process in which nobody has its address, cannot touch it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from warcore.device.operations import CORE, OperationMode, frame_of_use, operation_name
from warcore.testkit.detectors.ownthreads import threads_started
from warcore.testkit.detectors.seeing import HANDS_OUT, READS, Methods
from warcore.testkit.packages.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from warcore.testkit.detectors.guard import PageGuard


class Bystanders:
    """Looks at the calling thread and at those that a plugin starts meanwhile. A context manager.

    Enter it before the plugin is built: an address that was taken earlier is not known of.
    """

    def __init__(self, guard: PageGuard) -> None:
        self._guard = guard
        self._seen: dict[str, None] = {}
        self._entered = ExitStack()

    @property
    def touches(self) -> tuple[str, ...]:
        """What could let a thread touch guarded memory, with the lines; empty: nothing can."""
        return tuple(self._seen)

    def __enter__(self) -> Self:
        self._entered.enter_context(threads_started(self._on_thread))
        self._entered.enter_context(Methods(HANDS_OUT, self._method))
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered.close()

    @contextmanager
    def _on_thread(self) -> Iterator[None]:
        with Methods(HANDS_OUT | READS, self._method), _Calls(self):
            yield

    def _method(self, name: str, tensor: torch.Tensor, caller: str) -> None:
        # The core looks at addresses for its own purposes only.
        if not caller.startswith(CORE):
            self.note(f"Tensor.{name}", tensor)

    def note(self, operation: str, handed: Any) -> None:
        """Somebody calls it with these arguments."""
        for leaf in tree_leaves(handed):
            buffer = self._guard.name_of(leaf) if isinstance(leaf, torch.Tensor) else None
            if buffer is not None:
                frame = frame_of_use()
                place = place_of(frame.f_code.co_filename, frame.f_lineno)
                self._seen[f"{operation} of {buffer} at {place}"] = None


class _Calls(OperationMode):
    """Sees the torch calls of one thread."""

    def __init__(self, bystanders: Bystanders) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bystanders = bystanders

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._bystanders.note(operation_name(func), (args, kwargs))
        return func(*args, **(kwargs or {}))
