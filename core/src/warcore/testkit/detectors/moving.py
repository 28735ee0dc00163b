"""Moved: a tensor's storage whose memory is a guarded buffer's for a while.

All tensors over a storage ask the storage for the address, so pointing it elsewhere moves them all,
views made earlier included. torch has no call for that which can be undone; the word in which a
storage keeps its address is looked for, and whether torch follows it is tried, each time.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

import torch

from warcore.errors import WarcoreError

if TYPE_CHECKING:
    from warcore.testkit.detectors.guard import PageGuard

_WORDS = 8


class Moved:
    """`storage`, of the CPU and not empty, in memory of `guard` until `put_back`.

    WarcoreError if it cannot be moved; then it is as before. Nobody else may use the memory while
    it is moved and while it is put back. An address of it that was taken before, as a numpy array
    has it, leads to the old memory, which is then another one.
    """

    def __init__(self, guard: PageGuard, name: str, storage: torch.UntypedStorage) -> None:
        self.name = name
        self._storage = storage
        self._old = storage.data_ptr()
        self._writer, self._reader = guard.allocate(name, (storage.nbytes(),), torch.uint8)
        self.start = self._reader.data_ptr()
        """The address of the guarded memory."""
        self._before = ctypes.string_at(self._old, storage.nbytes())
        ctypes.memmove(self._writer.data_ptr(), self._before, len(self._before))
        self._word = _point(storage, self.start)
        self._is_back = False

    def put_back(self, *, keep: bool) -> str | None:
        """Into the old memory with what is in the new one; what went wrong meanwhile, for people.

        Once; then nothing. keep: the new memory stays as long as the storage, for somebody may have
        its address, as an array has that was made meanwhile.
        """
        if self._is_back:
            return None
        self._is_back = True
        if keep:
            weakref.finalize(self._storage, _let_go, self._reader).atexit = False
        if self._storage.data_ptr() != self.start:
            return "was given other memory by the step: what touched that was not guarded"
        size = len(self._before)
        is_stale = ctypes.string_at(self._old, size) != self._before
        ctypes.memmove(self._old, self._writer.data_ptr(), size)
        self._word.value = self._old
        if is_stale:
            return (
                "was written through an address taken before, as a numpy array has it: the step "
                "did not see that, and it is lost; make the array within the step"
            )
        return None


def _let_go(memory: torch.Tensor) -> None:
    """The last one to hold it."""


def _point(storage: torch.UntypedStorage, address: int) -> ctypes.c_void_p:
    """Let the storage's memory be at `address`: the word that says so."""
    old = storage.data_ptr()
    first = storage._cdata  # noqa: SLF001 - no public form
    words = [ctypes.c_void_p.from_address(first + 8 * place) for place in range(_WORDS)]
    word = next((word for word in words if word.value == old), None)
    if word is not None:
        word.value = address
        if storage.data_ptr() == address:
            return word
        word.value = old
    raise WarcoreError(
        f"torch {torch.__version__} does not say where a storage keeps its address",
        next="run observe with a torch release that warcore is tested with",
    )
