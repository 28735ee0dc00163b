"""Where in a plugin's code something was said, and a plugin's class with a method replaced."""

from __future__ import annotations

import inspect
import re
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from warcore.testkit.access import Place
from warcore.testkit.outcome import Failure, Refuted
from warcore.testkit.packages.sources import homes_of, is_home, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def definition(cls: Any, method: str) -> str:
    """file:line: the line at which a class, or what it derives from, defines `method`.

    Empty if that has no Python source.
    """
    function = inspect.unwrap(getattr(cls, method))
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return ""
    place = place_of(code.co_filename, code.co_firstlineno)
    if place.text.startswith("@"):
        place = place_of(code.co_filename, code.co_firstlineno + 1)
    return str(place)


def where_said(cls: Any, name: str = "") -> str:
    """file:line: the line at which a class, or what it derives from, says what `name` is.

    That of the class itself if none does. Empty if there is no Python source.
    """
    owner = next((each for each in getattr(cls, "__mro__", ()) if name in vars(each)), cls)
    if inspect.isroutine(getattr(cls, name, None)):
        return definition(cls, name)
    try:
        file, (lines, start) = inspect.getsourcefile(owner), inspect.getsourcelines(owner)
    except (OSError, TypeError):
        return ""
    says = re.compile(rf"\s*{re.escape(name)}\s*[:=]") if name else re.compile("")
    at = next((index for index, line in enumerate(lines) if says.match(line)), 0)
    return str(place_of(file or "", start + at))


def line_of(error: BaseException, cls: Any) -> str:
    """file:line: the innermost line of a plugin's own code that led to `error`; empty if none did.

    Looks at what it was raised from, too.
    """
    seen: BaseException | None = error
    while seen is not None:
        for frame in reversed(traceback.extract_tb(seen.__traceback__)):
            if is_home(frame.filename, homes_of(cls)):
                return str(Place(frame.filename, frame.lineno or 0, frame.line or ""))
        seen = seen.__cause__
    return ""


def said_line(text: str) -> tuple[str, str]:
    """The core's message about a capture, and the file:line: that it has in it, or nothing."""
    kept, where = [], ""
    for line in text.splitlines():
        path, _, rest = line.partition(":")
        if path.endswith(".py") and rest.partition(":")[0].isdecimal():
            where = where or line
        elif not line.startswith("For its author: "):
            kept.append(line)
    return "\n".join(kept), where


def with_methods(cls: Any, **methods: Callable[..., Any]) -> Any:
    """A subclass of `cls` with these methods, under the same name."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**names, **methods})


def with_context(cls: Any, **fields: Any) -> Any:
    """The same of a class whose instances find these fields in their contexts."""

    def __init__(self: Any, ctx: Any) -> None:  # noqa: N807 - the class's own
        cls.__init__(self, attrs.evolve(ctx, **fields))

    return with_methods(cls, __init__=__init__)


@contextmanager
def judged(cls: Any, declared: str, cell: str, when: str = "") -> Iterator[None]:
    """Within, an error that a plugin's own code has led to refutes what it has declared.

    when: the beginning of what is said of it.
    """
    try:
        yield
    except Refuted:
        raise
    except Exception as error:
        where = line_of(error, cls)
        if not where:
            raise
        what = f"{when}it raised {type(error).__name__}: {error}"
        raise Refuted(Failure(declared, what, where, cell=cell)) from error
