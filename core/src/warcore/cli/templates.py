"""Template: the files of a new package, in warcore/templates/KIND, and the words in them."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import attrs

import warcore
from warcore.errors import ConfigError
from warcore.records import KINDS, Kind, suggestion
from warcore.registry import find_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import Traversable

SUFFIX: Final = ".template"
"""Of every file: so that nobody takes one for the code or the settings of the core itself."""
SHORT: Final[dict[Kind, str]] = {"spec_algo": "spec"}
"""Kinds that distributions call otherwise."""
DOTTED: Final = {"gitignore": ".gitignore", "github": ".github"}
"""What would mean something to git where the templates lie."""
NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@attrs.frozen
class Plugin:
    """What a new plugin is called: as a plugin, a distribution, a module and a class."""

    kind: Kind
    name: str
    """As `--backend` takes it: small letters, digits and `_`."""

    @classmethod
    def named(cls, kind: Kind, text: str) -> Plugin:
        """The plugin that a person means; `-` is as good as `_`.

        ConfigError, with a name that would do where one is near, if `text` cannot be a name, or an
        installed plugin has it.
        """
        name = text.replace("-", "_")
        plugin = cls(kind, name)
        if not NAME.fullmatch(name):
            what = (
                f"{text!r} cannot be a plugin's name, which begins with a small letter and takes "
                "small letters, digits and `-`"
            )
            raise ConfigError(what, next=f"warcore new {kind} {_near(text)}")
        for prefix in (f"warcore_{kind}_", "warcore_"):
            if name.startswith(prefix):
                short = name.removeprefix(prefix).replace("_", "-")
                what = f"{text!r}: the distribution gets its first words by itself"
                raise ConfigError(what, next=f"warcore new {kind} {short}")
        if plugin.cls in warcore.__all__ or keyword.iskeyword(plugin.cls):
            whose = "Python" if keyword.iskeyword(plugin.cls) else "warcore"
            what = f"{text!r}: its class would be {plugin.cls}, which is a word of {whose}"
            raise ConfigError(what, next=f"warcore new {kind} my-{text}")
        for record in find_plugins():
            if record.name.replace("-", "_") == name:
                raise ConfigError(f"{text!r} is taken by {record}", next="another name")
        return plugin

    @property
    def distribution(self) -> str:
        return f"warcore-{SHORT.get(self.kind, self.kind)}-{self.name}".replace("_", "-")

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def cls(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def words(self) -> dict[str, str]:
        """What stands in the place of each word of a template."""
        return {
            "PLUGIN_DISTRIBUTION": self.distribution,
            "PLUGIN_MODULE": self.module,
            "PLUGIN_CLASS": self.cls,
            "PLUGIN_NAME": self.name,
            "WARCORE_RANGE": contract_range(warcore.__version__),
        }


def contract_range(version: str) -> str:
    """The versions of warcore that keep the contract of `version`: its minor, and no other."""
    from packaging.version import Version

    parsed = Version(version)
    return f">={parsed.major}.{parsed.minor},<{parsed.major}.{parsed.minor + 1}"


def kind_of(word: str) -> Kind:
    """The kind that `word` names. ConfigError if there is none, or no template of it."""
    there = [kind for kind in KINDS if (_root() / kind).is_dir()]
    for kind in there:
        if word.replace("-", "_") == kind:
            return kind
    if word in KINDS:
        what = f"there is no template of a {word} in this version of warcore"
    else:
        what = f"there is no kind of plugin {word!r}{suggestion(word, KINDS)}"
    raise ConfigError(what, next=f"warcore new {'|'.join(there)} NAME")


def filled(plugin: Plugin) -> dict[str, str]:
    """Each file of the package: its path, with `/`, and its text."""
    words = re.compile("|".join(plugin.words))

    def fill(text: str) -> str:
        return words.sub(lambda found: plugin.words[found[0]], text)

    return {
        fill(path): fill(file.read_text(encoding="utf-8"))
        for path, file in sorted(_files(_root() / plugin.kind))
    }


def _root() -> Traversable:
    return files("warcore") / "templates"


def _files(folder: Traversable, below: str = "") -> Iterator[tuple[str, Traversable]]:
    """Each template of a folder, with the path at which it will lie."""
    for child in folder.iterdir():
        name = child.name.removesuffix(SUFFIX)
        path = below + DOTTED.get(name, name)
        if child.is_dir():
            yield from _files(child, f"{path}/")
        elif child.name.endswith(SUFFIX):
            yield path, child


def _near(text: str) -> str:
    """A name that would do, made of `text`; NAME if little is left of it."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text)
    near = re.sub(r"[^a-z0-9]+", "-", spaced.lower()).strip("-")
    near = f"my-{near}" if near[:1].isdigit() else near
    return near if NAME.fullmatch(near.replace("-", "_")) else "NAME"
