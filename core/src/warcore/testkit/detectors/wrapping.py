"""Methods of living objects, wrapped from outside: what is not watched costs nothing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    Method = Callable[..., Any]

_OF_CLASS = object()


class Wrapping:
    """Wraps methods of single objects, and puts back what they had. Keeps none of them alive.

    A context manager.
    """

    def __init__(self) -> None:
        self._before: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()

    def wrap(self, owner: Any, name: str, around: Callable[[Method], Method]) -> None:
        """Let `owner.name` be `around` of what it is now. A second time changes nothing."""
        before = self._before.setdefault(owner, {})
        if name not in before:
            before[name] = vars(owner).get(name, _OF_CLASS)
            setattr(owner, name, around(getattr(owner, name)))

    def after(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        """Call `then(result, *args)` whenever `owner.name` has returned."""

        def around(method: Method) -> Method:
            @functools.wraps(method)
            def wrapped(*args: Any, **named: Any) -> Any:
                result = method(*args, **named)
                then(result, *args, **named)
                return result

            return wrapped

        self.wrap(owner, name, around)

    def before(self, owner: Any, name: str, first: Callable[..., None]) -> None:
        """Call `first(*args)` whenever `owner.name` is called, and then the method itself."""

        def around(method: Method) -> Method:
            @functools.wraps(method)
            def wrapped(*args: Any, **named: Any) -> Any:
                first(*args, **named)
                return method(*args, **named)

            return wrapped

        self.wrap(owner, name, around)

    def restore(self) -> None:
        """Every object as it was before. Idempotent."""
        for owner, names in self._before.items():
            for name, before in names.items():
                if before is _OF_CLASS:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
        self._before.clear()
