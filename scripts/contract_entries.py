"""The public API as text: one entry per name, field, member, method and hook argument list.

Annotations are the text of the source, so that every Python version gives the same entries.
"""

from __future__ import annotations

import enum
import inspect
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator


def entries() -> dict[str, str]:
    """Every promise of the installed warcore, sorted by name."""
    import warcore
    from warcore import hookspecs, testkit

    found: dict[str, str] = {}
    for name in warcore.__all__:
        if not name.startswith("__"):
            found |= of_object(name, getattr(warcore, name))
    for name in testkit.__all__:
        found |= of_object(f"testkit.{name}", getattr(testkit, name))
    for owner in (hookspecs.ScopeHooks, hookspecs.EngineHooks):
        for name, hook in vars(owner).items():
            if name in hookspecs.ANSWERED_BY:
                kinds = ", ".join(sorted(hookspecs.ANSWERED_BY[name]))
                found[f"hook.{name}"] = f"{signature(hook)}, answered by {kinds}"
    return dict(sorted(found.items()))


def of_object(name: str, value: Any) -> dict[str, str]:
    """The entries of one public name."""
    if not inspect.isclass(value):
        return {name: f"function {signature(value)}" if callable(value) else f"value {value!r}"}
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    found = {name: f"class ({bases})" if bases else "class"}
    if issubclass(value, enum.Enum):
        found |= {f"{name}.{m.name}": f"member = {m.value!r}" for m in value}
    if attrs.has(value):
        found |= {f"{name}.{f.name}": _field(f) for f in attrs.fields(value) if _is_public(f.name)}
    for member, text in _members(value):
        found.setdefault(f"{name}.{member}", text)
    return found


def signature(function: Any) -> str:
    """Arguments with annotations and defaults, and the result."""
    found = inspect.signature(function)
    parts, kinds = [], [p.kind for p in found.parameters.values()]
    for index, p in enumerate(found.parameters.values()):
        first_keyword = p.kind is p.KEYWORD_ONLY and p.kind not in kinds[:index]
        if first_keyword and p.VAR_POSITIONAL not in kinds:
            parts.append("*")
        parts.append(_STARS.get(p.kind, "") + _parameter(p))
        if p.kind is p.POSITIONAL_ONLY and p.kind not in kinds[index + 1 :]:
            parts.append("/")
    result = found.return_annotation
    arrow = "" if result is found.empty else f" -> {_annotation(result)}"
    return f"({', '.join(parts)}){arrow}"


_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameter(p: inspect.Parameter) -> str:
    text = p.name if p.annotation is p.empty else f"{p.name}: {_annotation(p.annotation)}"
    if p.default is p.empty:
        return text
    return f"{text} = {_plain(p.default)}"


def _field(field: attrs.Attribute[Any]) -> str:
    text = f"field {_annotation(field.type)}"
    if not field.init:
        return f"{text}, derived"
    return text if field.default is attrs.NOTHING else f"{text} = {_plain(field.default)}"


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Methods, properties and annotated attributes of `cls` and its bases within warcore."""
    for owner in cls.__mro__:
        if owner.__module__.split(".")[0] != "warcore":
            continue
        for name, value in vars(owner).items():
            # NOTE: a Protocol gets an __init__ of the standard library, which differs by version.
            written = name == "__init__" and getattr(value, "__module__", "") == owner.__module__
            if (_is_public(name) or written) and (text := _member(value)):
                yield name, text
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            if _is_public(name):
                value = vars(owner).get(name)
                default = f" = {_plain(value)}" if name in vars(owner) else ""
                yield name, f"attribute {_annotation(annotation)}{default}"


def _member(value: Any) -> str:
    abstract = "abstract " if getattr(value, "__isabstractmethod__", False) else ""
    if isinstance(value, property):
        result = inspect.signature(value.fget).return_annotation if value.fget else Any
        return f"{abstract}property {_annotation(result)}"
    if isinstance(value, classmethod | staticmethod):
        return f"{abstract}{type(value).__name__} {signature(value.__func__)}"
    return f"{abstract}method {signature(value)}" if inspect.isfunction(value) else ""


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__name__", None) or repr(annotation)


def _plain(default: Any) -> str:
    """A default as it would be typed; a word in its place where it prints an address or a set."""
    if default is attrs.NOTHING:
        return "a Factory"  # what attrs calls an argument that has one
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, frozenset | set):
        return f"{{{', '.join(sorted(map(_plain, default)))}}}"
    if default is None or isinstance(default, bool | int | float | str | tuple):
        return repr(default)
    if isinstance(default, type):
        return default.__name__
    return f"a {type(default).__name__}"
