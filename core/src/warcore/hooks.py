"""Reading plugins' hook implementations out of pluggy, once, at wiring.

Any method that bears a hook's name is an implementation, as in pytest: there is no marker that an
override could forget and thereby lose its word about the fence.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING

import pluggy

from warcore.errors import WiringError
from warcore.hookspecs import ANSWERED_BY, PROJECT, EngineHooks, ScopeHooks
from warcore.scope import BoundHook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pluggy import HookimplOpts

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
