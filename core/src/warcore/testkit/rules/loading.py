"""What holds for every plugin as soon as its class is imported: all kinds."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.contract import ForwardMode, GraphKind
from warcore.errors import ConfigError, WiringError
from warcore.hooks import NEAR, read_hooks
from warcore.options import parse_options
from warcore.testkit.outcome import Failure, Refuted, Unproven
from warcore.testkit.packages.definitions import where_said
from warcore.testkit.packages.interpreter import answered, ask
from warcore.testkit.packages.task import task_of
from warcore.testkit.packages.watching import DEVICE
from warcore.testkit.runs.check import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.subject import Subject

SEEN_BY: Final = ("a fresh interpreter",)
WATCH: Final = "warcore.testkit.packages.watching:watch_import"


@check(None)
def loads(subject: Subject) -> None:
    """A plugin's class is imported in an interpreter that has imported nothing else.

    A platform plugin of vLLM raised at import (vllm-plugin-FL #195); every command of the engine
    that it was installed beside then ended with its traceback.

    Import what may be missing inside the function that needs it, and import each module that the
    class needs in the module itself: another plugin may not have done it before.
    """
    ended = ask(WATCH, {**task_of(subject), "before": []})
    if ended.told is None and ended.code is None:
        raise Unproven(ended.how)
    error = ended.how if ended.told is None else ended.told["error"]
    if error is not None:
        raise Refuted(
            Failure(f"{subject.record.entry_point} can be imported", error, seen_by=SEEN_BY)
        )


@check(None, needs=("plugin.loads",))
def import_initialises_no_device(subject: Subject) -> None:
    """Importing a plugin opens no accelerator and makes no CUDA context.

    vLLM asked NVML which platform it is on while a module was imported (#8893); whoever forked
    afterwards got "Cannot re-initialize CUDA in forked subprocess".

    Ask for the device where you are given one: in `why_not`, `unavailable` or `__init__`. Allocate
    no tensor on a device and compile no kernel at module level.
    """
    _refute_changes(subject, device=True)


@check(None, needs=("plugin.loads",))
def import_leaves_no_trace(subject: Subject) -> None:
    """Importing a plugin prints nothing and changes nothing that the process shares.

    Known from this project alone: the package of one engine installed a handler for SIGSEGV when it
    was imported, over that of this kit's page guard; the trial that watched it died of its first
    fault.

    Leave thread counts, the default dtype and device, seeds, signal handlers and the environment
    to the program; log instead of printing. Where a step needs another setting, set it in the step
    and put it back.
    """
    _refute_changes(subject, device=False)


@check(None, needs=("plugin.loads",))
def options_parse(subject: Subject) -> None:
    """`Options` is an attrs class; each field has a default and a type that text can become.

    The fence of SGLang was on ROCm a variable of the environment that one had to know (#27967):
    runs without it had the hazard and said nothing, and no text that was mistyped would have.

    Decorate it with `attrs.frozen`, give every field a default, and use bool, int, float, str, or
    one of them with None; read anything else from a str in a converter of your own.
    """
    name, options = subject.record.name, subject.cls.Options
    where = where_said(options)
    if not attrs.has(options):
        raise Refuted(Failure("Options is an attrs class", f"it is {options!r}", where))
    try:
        made = parse_options(name, options, {})
        for field in attrs.fields(options):
            default = getattr(made, field.name)
            again = parse_options(name, options, {field.name: str(default)})
            if getattr(again, field.name) != default:
                raise Refuted(
                    Failure(
                        f"{name}.{field.name} is {default!r} if nobody says anything",
                        f"--opt {name}.{field.name}={default} makes it "
                        f"{getattr(again, field.name)!r}",
                        where,
                    )
                )
    except (ConfigError, NameError) as error:
        raise Refuted(Failure("Options can be given as text", str(error), where)) from error


@check(None)
def facts_are_of_their_kind(subject: Subject) -> None:
    """What a class declares as data has the type that the core takes it for.

    Until this project checked it, a graph runner whose `modes` named no ForwardMode went as far as
    the planning of captures; whatever went wrong there named no plugin.

    Declare `default_rank` as an int, `page_sizes` as a frozenset of ints or None, `modes` as a
    frozenset of ForwardMode, `kind` as a GraphKind, `later_prefill_reader` and `tree` as bools,
    `default_tokens` as an int from 1 on.
    """
    for name, fits, wanted in _facts(subject.record.kind, subject.cls):
        if not fits:
            value = getattr(subject.cls, name, None)
            raise Refuted(
                Failure(f"{name} is {wanted}", f"it is {value!r}", where_said(subject.cls, name))
            )


@check(None, needs=("plugin.loads",))
def hooks_are_spelt_right(subject: Subject) -> None:
    """No method of a plugin bears a hook's name on the wrong kind, or almost the name of a method
    of its base class.

    A wrapper around a backend of SGLang was to pass every answer on (#34982), but its methods never
    ran: the base class had answered already, and steps were fenced by its default.

    Give the method the name of the hook or of the base class's method; if it is your own, give it a
    name that is less alike. A hook that belongs to another kind goes into a plugin of that kind.
    """
    record, cls = subject.record, subject.cls
    try:
        read_hooks({f"{record.kind}:{record.name}": object.__new__(cls)})
    except WiringError as error:
        name = next((word for word in error.what.split() if hasattr(cls, word)), "")
        where = where_said(cls, name)
        raise Refuted(Failure("its hooks can be read", error.what, where)) from error
    for name, meant in _near_misses(cls):
        raise Refuted(
            Failure(
                f"{name} is a method of its own",
                f"it looks like {meant} misspelt, which keeps the base class's meaning",
                where_said(cls, name),
            )
        )


def _refute_changes(subject: Subject, *, device: bool) -> None:
    """Refuted if importing it changed the process: by holding a device, or in another way."""
    changes = [
        change
        for change in answered(WATCH, task_of(subject))["changes"]
        if (change["what"] == DEVICE) == device and not _of_a_library(change)
    ]
    if not changes:
        return
    first = changes[0]
    raise Refuted(
        Failure(
            "its import holds no device" if device else "its import leaves the process as it was",
            _told(first),
            first["where"],
            SEEN_BY,
            more=len(changes) - 1,
        )
    )


def _of_a_library(change: dict[str, Any]) -> bool:
    """Whether it is a variable that a library has set for itself: that is not the plugin's word."""
    return bool(change["what"] == "the environment" and change["imports"])


def _told(change: dict[str, Any]) -> str:
    what, before, after = (change[key] for key in ("what", "before", "after"))
    if what == "the environment":
        names = sorted({k for k in (*before, *after) if before.get(k) != after.get(k)})
        return f"it changes {', '.join(names)} in the environment"
    if what == "the output":
        return "it writes to standard output or standard error"
    if what == "Python's random numbers":
        return "it draws or seeds Python's random numbers"
    return f"it changes {what} from {before} to {after}"


def _facts(kind: str, cls: Any) -> Iterator[tuple[str, bool, str]]:
    """Each fact that such a class declares: its name, whether it fits, and what it must be."""
    yield "default_rank", type(cls.default_rank) is int, "an int"
    if kind == "backend":
        sizes = cls.page_sizes
        fits = sizes is None or (
            isinstance(sizes, frozenset)
            and bool(sizes)
            and all(type(size) is int and size > 0 for size in sizes)
        )
        yield "page_sizes", fits, "None, or a frozenset of tokens per page, each above 0"
    elif kind == "graph_runner":
        modes = getattr(cls, "modes", None)
        fits = isinstance(modes, (set, frozenset)) and bool(modes) and modes <= set(ForwardMode)
        yield "modes", fits, "a frozenset of ForwardMode that is not empty"
        kinds = {GraphKind.UNBROKEN, GraphKind.BREAKABLE}
        yield "kind", getattr(cls, "kind", None) in kinds, "GraphKind.UNBROKEN or BREAKABLE"
    elif kind == "spec_algo":
        for name in ("later_prefill_reader", "tree"):
            yield name, type(getattr(cls, name)) is bool, "True or False"
        tokens = cls.default_tokens
        yield "default_tokens", type(tokens) is int and tokens > 0, "an int from 1 on"


def _near_misses(cls: type) -> Iterator[tuple[str, str]]:
    """Public names of the plugin that are almost one of its base class's which it leaves alone."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("warcore.")]
    known = {name for base in bases for name in vars(base) if not name.startswith("_")}
    mine = {
        name
        for each in cls.__mro__
        if each not in bases and each is not object
        for name in vars(each)
        if not name.startswith("_")
    }
    for name in sorted(mine - known):
        near = difflib.get_close_matches(name, known - mine, 1, NEAR)
        if near:
            yield name, near[0]
