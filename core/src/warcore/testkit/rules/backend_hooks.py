"""What a backend must keep to in its hooks: the word of its children, and memory that stays."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.backend import AttentionBackend
from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.errors import WarcoreError
from warcore.testkit.detectors.attributes import held
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import definition, line_of, said_line
from warcore.testkit.runs.check import check
from warcore.testkit.runs.lines import by_line
from warcore.testkit.stands.residence import Residence
from warcore.testkit.stands.snapshots import HOOK, Asked
from warcore.testkit.stands.walk import cells_of, stands

if TYPE_CHECKING:
    from warcore.testkit.stands.cell import Cell
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

REFUSED: Final = (
    "makes anew each time",
    "was given other memory",
    "it gives a tensor other memory",
    "was asked for as",
)
"""What the core's messages about memory that does not stay have in them."""


# ---- memory --------------------------------------------------------------------------------------


@check("backend", needs=("backend.votes",))
def static_addresses(subject: Subject) -> None:
    """What a captured step reads stays where it lay at its capture: no rebinding, no resizing, no
    two buffers that take turns.

    A metadata method of SGLang that built its tensors anew, where it had copied into them before,
    left every replay with the page table of its capture (#26019).

    Write in place, into memory from `ctx.static`; one buffer for one purpose, as large as it gets.
    Or answer None in `graph_key`: such steps run eagerly, and nothing is captured.
    """
    residence = Residence()
    followed = attrs.evolve(subject, cls=residence.within(subject.cls))
    try:
        for stand in stands(followed, graphs=(GraphKind.UNBROKEN,)):
            for cell in cells_of(subject, stand):
                for batch in stand.steps(cell):
                    stand.run(batch)
                    for name in stand.tables.moved:
                        _moved(
                            f"{name}, which the scheduler writes, has other memory", "", str(cell)
                        )
                    if residence.look():
                        where = definition(subject.cls, "init_forward_metadata_out_graph")
                        _moved(residence.moved[0], where, str(cell))
    except WarcoreError as error:
        what, where = said_line(error.what)
        # What else cannot be captured is another check's business.
        if any(refused in what for refused in REFUSED):
            _moved(what, where or line_of(error, subject.cls), "")


def _moved(what: str, where: str, cell: str) -> None:
    raise Refuted(Failure("memory that stays where it lay at the capture", what, where, cell=cell))


# ---- children ------------------------------------------------------------------------------------


@check("backend", needs=("backend.votes",), after=("backend.captures",))
def composite(subject: Subject) -> None:
    """A backend that holds others never tells an earlier end than the one of them that serves.

    A wrapper of SGLang forwarded by `__getattr__` (#34982), which is never asked for a name that
    the base class defines: it answered with the default, and the backend inside read on.

    Override `shared_read_ends` and return the latest answer of the children, or of the one chosen.
    """
    asked = Asked()
    watched = attrs.evolve(subject, cls=asked.watching(subject.cls))
    serving: dict[tuple[object, ForwardMode], set[str]] = {}
    found: list[Failure] = []
    for stand in stands(watched):
        children = Children(stand)
        for cell in cells_of(subject, stand) if children.all else ():
            # A replay calls nobody: whom an eager step of this mode calls has been captured.
            known = serving.setdefault((stand.shape, cell.mode), set())
            for batch in stand.steps(cell):
                asked.told.clear()
                children.forget()
                stand.run(batch)
                known |= children.serving
                own, hook = _word(stand, cell, asked)
                for path in known:
                    its = children.end_of(path, cell.mode)
                    if own < its:
                        name = type(children.all[path]).__name__
                        what = f"{path}, a {name}, serves these steps, and says {its.name}"
                        where = definition(subject.cls, hook)
                        claim = f"{own.name} for {cell.mode.value} steps"
                        found.append(Failure(claim, what, where, cell=str(cell)))
    if found:
        raise Refuted(by_line(found))
    if not serving:
        raise NotApplicable("it holds no other backend")


class Children:
    """The backends that the backend of a stand holds, and which of them a step calls."""

    def __init__(self, stand: Stand) -> None:
        self.all = {
            path: each for path, each in held(stand.backend) if isinstance(each, AttentionBackend)
        }
        self.serving: set[str] = set()
        """Whose `forward` was called."""
        self._told: dict[str, Any] = {}
        for path, child in self.all.items():
            child.forward = self._noting(path, child.forward)  # type: ignore[method-assign]
            setattr(child, HOOK, self._hearing(path, getattr(child, HOOK)))

    def forget(self) -> None:
        """A new step."""
        self.serving, self._told = set(), {}

    def end_of(self, path: str, mode: ForwardMode) -> SharedReadEnds:
        """Where the reads of a child end in the present step, by its own word."""
        told = self._told.get(path)
        return told if isinstance(told, SharedReadEnds) else self.all[path].shared_read_ends(mode)

    def _noting(self, path: str, forward: Any) -> Any:
        @wraps(forward)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.serving.add(path)
            return forward(*args, **kwargs)

        return noting

    def _hearing(self, path: str, hook: Any) -> Any:
        @wraps(hook)
        def hearing(*args: Any, **kwargs: Any) -> Any:
            self._told[path] = hook(*args, **kwargs)
            return self._told[path]

        return hearing


def _word(stand: Stand, cell: Cell, asked: Asked) -> tuple[SharedReadEnds, str]:
    """What the backend itself has said of the step, and in which hook."""
    answers = [answer for *_, answer in asked.told if isinstance(answer, SharedReadEnds)]
    if cell.mode is ForwardMode.EXTEND and answers:
        return answers[-1], HOOK
    return stand.scope.ends[cell.mode], "shared_read_ends"
