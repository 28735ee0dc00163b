"""Reading plugins' hook implementations out of pluggy, once, at wiring.

Any method that bears a hook's name is an implementation, as in pytest: there is no marker that an
override could forget and thereby lose its word about the fence.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

import pluggy

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.errors import WiringError, shown
from warcore.hookspecs import ANSWERED_BY, PROJECT, EngineHooks, ScopeHooks
from warcore.scope import BoundHook, EngineScope, Reader, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pluggy import HookimplOpts

    from warcore.backend import AttentionBackend
    from warcore.spec import SpecAlgorithm

ARGUMENTS = {
    hook: tuple(inspect.signature(getattr(owner, hook)).parameters)[1:]
    for owner in (ScopeHooks, EngineHooks)
    for hook in vars(owner)
    if hook in ANSWERED_BY
}
"""The arguments of every hook; an implementation may take fewer."""
NEAR = 0.85
"""How alike a method's name must be to a hook's to count as a slip of the pen."""


class _Hooks(pluggy.PluginManager):
    """A plugin manager that takes methods by their name."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> HookimplOpts | None:
        if name not in ANSWERED_BY or not callable(getattr(plugin, name, None)):
            return None
        # The order of implementations means nothing here: a scope takes the latest vote.
        return {
            "wrapper": False,
            "hookwrapper": False,
            "optionalhook": False,
            "tryfirst": False,
            "trylast": False,
            "specname": None,
        }


def read_scope(
    backend_name: str,
    backend: AttentionBackend,
    algorithm: SpecAlgorithm | None = None,
    algorithm_name: str = "",
) -> Scope:
    """Ask a runner's readers, once. WiringError for a bad vote, a misspelt or misplaced hook."""
    plugins: dict[str, object] = {f"backend:{backend_name}": backend}
    if algorithm is not None:
        plugins[f"spec_algo:{algorithm_name or type(algorithm).__name__}"] = algorithm
    hooks = read_hooks(plugins)
    snapshots = {hook.plugin: hook for hook in hooks["prepare_prefill_shared_read_snapshot"]}
    voters = {hook.plugin: hook for hook in hooks["shared_read_ends"]}
    readers = []
    first = SharedReadEnds.PRE_REPLAY
    for plugin in plugins:
        mandatory = plugin.startswith("backend:")
        votes = take_votes(plugin, voters[plugin], mandatory=mandatory) if plugin in voters else {}
        if not mandatory and votes.get(ForwardMode.DRAFT_EXTEND, first) > first:
            # It reads behind the verify, and has not said that the verify's event is late enough.
            votes.setdefault(ForwardMode.TARGET_VERIFY, SharedReadEnds.UNKNOWN)
        readers.append(Reader(plugin, votes, snapshots.get(plugin)))
    return Scope.of(tuple(readers))


def read_engine_scope(
    algorithm: SpecAlgorithm | None = None,
    stagers: Mapping[str, object] | None = None,
    algorithm_name: str = "",
) -> EngineScope:
    """Ask the algorithm and the stagers, once."""
    plugins: dict[str, object] = {f"stager:{name}": s for name, s in (stagers or {}).items()}
    own = "" if algorithm is None else f"spec_algo:{algorithm_name or type(algorithm).__name__}"
    if algorithm is not None:
        plugins[own] = algorithm
    hooks = read_hooks(plugins)
    answers = [(hook.plugin, _stager(hook)) for hook in hooks["prefill_shared_read_stager"]]
    return EngineScope(
        later_prefill_reader=algorithm is not None and algorithm.later_prefill_reader,
        algorithm=own,
        owners=tuple(hooks["last_shared_read_runner"]),
        stagers=tuple((plugin, answer) for plugin, answer in answers if answer is not None),
    )


def _stager(hook: BoundHook) -> Callable[..., Any] | None:
    """What one stager answers, once."""
    where = f"{hook.plugin}: prefill_shared_read_stager"
    try:
        answer: Callable[..., Any] | None = hook()
    except Exception as error:
        raise WiringError(
            f"{where} raised {shown(error)}", next="return a callable, or None"
        ) from error
    if answer is not None and not callable(answer):
        raise WiringError(
            f"{where} returned {shown(answer)}",
            next="return a callable that takes the batch, or None",
        )
    return answer


def take_votes(
    plugin: str, hook: BoundHook, *, mandatory: bool
) -> dict[ForwardMode, SharedReadEnds]:
    """Ask one reader for every mode. WiringError for a bad vote: it must never reach a step.

    mandatory: the backend's vote is total; another reader may answer None where it reads nothing.
    """
    votes = {}
    for mode in ForwardMode:
        where = f"{plugin}: shared_read_ends({mode.name})"
        try:
            vote = hook(forward_mode=mode)
            again = hook(forward_mode=mode)
        except Exception as error:
            raise WiringError(
                f"{where} raised {shown(error)}",
                next="answer every ForwardMode without reading anything",
            ) from error
        if vote is None and not mandatory:
            continue
        if not isinstance(vote, SharedReadEnds):
            raise WiringError(
                f"{where} returned {shown(vote)}, which is no SharedReadEnds",
                next="return PRE_REPLAY, IN_REPLAY, POST_REPLAY or UNKNOWN for every mode",
            )
        if again is not vote:
            raise WiringError(
                f"{where} returned {vote.name}, then {shown(again)}: a vote must be pure",
                next="decide per batch in prepare_prefill_shared_read_snapshot instead",
            )
        votes[mode] = vote
    return votes


def read_hooks(plugins: Mapping[str, object]) -> dict[str, list[BoundHook]]:
    """Every implementation of every hook among `plugins` (`kind:name` to instance).

    WiringError: a hook on a kind that does not answer it, a near miss of a hook's name, a wrapper,
    or an argument that the hook does not have.
    """
    manager = _Hooks(PROJECT)
    manager.add_hookspecs(ScopeHooks)
    manager.add_hookspecs(EngineHooks)
    for name, plugin in plugins.items():
        _check_names(name, plugin)
        try:
            manager.register(plugin, name=name)
        except pluggy.PluginValidationError as error:
            what = " ".join(str(error).split())
            raise WiringError(f"{name}: {what}", next=_remedy(error)) from error
    found: dict[str, list[BoundHook]] = {}
    for hook in ANSWERED_BY:
        caller = getattr(manager.hook, hook)
        found[hook] = [
            BoundHook(
                impl.plugin_name,
                impl.function,
                (*impl.argnames, *(name for name in impl.kwargnames if name in ARGUMENTS[hook])),
            )
            for impl in caller.get_hookimpls()
        ]
    return found


def _check_names(plugin_name: str, plugin: object) -> None:
    kind = plugin_name.partition(":")[0]
    for attribute in dir(type(plugin)):
        if attribute in ANSWERED_BY:
            _check_hook(plugin_name, kind, attribute, getattr(type(plugin), attribute))
            continue
        near = difflib.get_close_matches(attribute, ANSWERED_BY, 1, NEAR)
        if near and callable(getattr(type(plugin), attribute)):
            raise WiringError(
                f"{plugin_name}: {attribute} looks like the hook {near[0]} misspelt",
                next=f"rename it to {near[0]}, or to something less alike",
            )


def _check_hook(plugin_name: str, kind: str, hook: str, function: object) -> None:
    if kind not in ANSWERED_BY[hook]:
        kinds = " or ".join(sorted(ANSWERED_BY[hook]))
        raise WiringError(
            f"{plugin_name}: {hook} is not for a {kind} to answer",
            next=f"move it to a {kinds}, or rename it",
        )
    marked = getattr(function, f"{PROJECT}_impl", None) or {}
    if marked.get("wrapper") or marked.get("hookwrapper"):
        raise WiringError(
            f"{plugin_name}: {hook} is a wrapper",
            next="answer for yourself; the fence is no place for wrappers",
        )


def _remedy(error: pluggy.PluginValidationError) -> str | None:
    for hook, arguments in ARGUMENTS.items():
        if hook in str(error):
            return f"{hook} may take {', '.join(arguments) or 'no arguments'}"
    return None
