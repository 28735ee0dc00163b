"""Prefills of a backend that answers per batch: the steps, its answers, and a hook that fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.backend import AttentionBackend
from warcore.contract import ForwardMode
from warcore.device.operations import OperationMode
from warcore.testkit.packages.definitions import with_methods
from warcore.testkit.stands.claims import LONG, claimed, of_engines, runs
from warcore.testkit.stands.walk import new_stand, quiet_torch, stands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

HOOK: Final = "prepare_prefill_shared_read_snapshot"
STEPS: Final = (
    ((1,), (0,), (6,)),
    ((2,), (0,), (7,)),
    ((1, 3), (6, 0), (5, 12)),
    ((4,), (0,), (40,)),
    ((3, 5, 2), (12, 0, 7), (3, 2, 9)),
    ((1,), (11,), (5,)),
)
"""Rows, tokens before and new tokens of one prefill after the other.

The first two and the last fit into a bucket of more tokens; each has other rows than the one
before, or other tokens of them; there are short and long ones.
"""
LONG_STEPS: Final = (((1,), (0,), (6,)), ((2,), (0,), (300,)), ((1,), (6,), (600,)))
"""The same of long requests."""


def has_snapshot(cls: Any) -> bool:
    """Whether a backend answers the snapshot hook itself."""
    return getattr(cls, HOOK) is not getattr(AttentionBackend, HOOK)


@attrs.define(eq=False)
class Asked:
    """What the hook was asked, and what it answered; of the last step."""

    told: list[tuple[int, int, Any]] = attrs.Factory(list)
    """(tokens of the batch, num_qo_tokens, answer)."""

    def watching(self, cls: Any) -> Any:
        """The class, with every call of its hook noted here."""

        def hook(backend: Any, forward_batch: ForwardBatch, num_qo_tokens: int) -> Any:
            answer = _own(cls, backend, forward_batch, num_qo_tokens)
            self.told.append((forward_batch.padded_tokens, num_qo_tokens, answer))
            return answer

        return with_methods(cls, **{HOOK: hook})


def unasked(cls: Any) -> Any:
    """The class, as if nobody ever called its hook."""
    return with_methods(cls, **{HOOK: getattr(AttentionBackend, HOOK)})


class Broken(Exception):
    """Raised into a hook."""


@attrs.define(eq=False)
class Breaking:
    """A hook that raises after `allowed` of its operations; None: it goes through."""

    allowed: int | None = None
    operations: int = 0
    """How many its last call has made."""
    at_end: bool = False
    """Whether it raises when all is done."""
    raised: bool = False
    """Whether its last call has raised, and not caught what it met."""

    def within(self, cls: Any) -> Any:
        """The class with that hook."""

        def hook(backend: Any, forward_batch: ForwardBatch, num_qo_tokens: int) -> Any:
            self.operations, self.raised = 0, True
            if self.allowed == 0:
                raise Broken("before it has begun")
            with _Counting(self._count):
                answer = _own(cls, backend, forward_batch, num_qo_tokens)
            if self.at_end:
                raise Broken("when it was done")
            self.raised = False
            return answer

        return with_methods(cls, **{HOOK: hook})

    def _count(self) -> None:
        self.operations += 1
        if self.allowed is not None and self.operations > self.allowed:
            raise Broken(f"after {self.allowed} of its operations")


def _own(cls: Any, backend: Any, batch: ForwardBatch, num_qo_tokens: int) -> Any:
    """Call the hook with the arguments that it takes."""
    given = {"forward_batch": batch, "num_qo_tokens": num_qo_tokens}
    function = getattr(cls, HOOK)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    takes_all = function.__code__.co_flags & 0x08
    return function(backend, **(given if takes_all else {name: given[name] for name in names}))


class _Counting(OperationMode):
    """Tells of each operation before it is made."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tell = tell

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._tell()
        return func(*args, **(kwargs or {}))


# ---- the steps -----------------------------------------------------------------------------------


def prefill_stands(subject: Subject, cls: Any, guard: PageGuard | None = None) -> Iterator[Stand]:
    """A stand of `cls` in the place of the subject's own, for each shape and kind of graph."""
    yield from stands(attrs.evolve(subject, cls=cls), guard=guard)


def claimed_stands(subject: Subject, cls: Any, guard: PageGuard | None = None) -> Iterator[Stand]:
    """The same of the shapes that every engine has, if their steps come to an end."""
    watched = attrs.evolve(subject, cls=cls)
    for shape, graph in claimed(watched, of_engines(watched)):
        if runs(watched, shape, graph, partial(_run, watched)):
            with quiet_torch(), new_stand(watched, shape, graph, guard=guard) as stand:
                yield stand


def _run(subject: Subject, stand: Stand) -> None:
    for _, batch in prefills(subject, stand):
        stand.run(batch)


def prefills(subject: Subject, stand: Stand) -> Iterator[tuple[str, ForwardBatch]]:
    """The steps, each with its name as a cell; all must be run, in this order.

    A step that the subject does not ask for comes without a name.
    """
    for rows, prefixes, lens in LONG_STEPS if stand.shape.max_context == LONG else STEPS:
        lengths = "_".join(f"{p}+{n}" for p, n in zip(prefixes, lens, strict=True))
        cell = f"extend-{stand.graph.value}-{lengths}-snapshot-{stand.shape}"
        batch = stand.batch(ForwardMode.EXTEND, list(rows), prefixes, lens)
        yield cell if subject.wants(cell) else "", batch
