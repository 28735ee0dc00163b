"""Options of plugins: which plugin gets them, what they are parsed to, what is refused."""

from __future__ import annotations

from typing import Optional, Union

import attrs
import pytest
from parts import configured
from toys import RowMajor, Toy

from warcore import NoOptions
from warcore.choices import choose
from warcore.device.host import HostDevice
from warcore.errors import ConfigError
from warcore.options import parse_options


@attrs.frozen
class Options:
    chunk: int = 8
    rate: float = 0.5
    fast: bool = False
    name: str = "x"
    limit: Optional[int] = None  # noqa: UP045  the spelling of older plugins
    either: Union[int, str] = 0  # noqa: UP007


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("chunk", "12", 12),
        ("rate", "2", 2.0),
        ("fast", "yes", True),
        ("fast", "0", False),
        ("name", "12", "12"),
        ("limit", "none", None),
        ("limit", "7", 7),
        ("either", "7", 7),
        ("either", "seven", "seven"),
    ],
)
def test_text_becomes_the_type_of_the_field(key, text, value):
    parsed = getattr(parse_options("mine", Options, {key: text}), key)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nothing_given_is_the_defaults():
    assert parse_options("mine", Options, {}) == Options()


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("chunk", "1.5", "--opt mine.chunk=1.5: not int"),
        ("fast", "maybe", "--opt mine.fast=maybe: not bool"),
        ("limit", "x", "--opt mine.limit=x: not int or NoneType"),
        ("chnk", "1", "mine has no option 'chnk'\nNext: did you mean mine.chunk?"),
    ],
)
def test_what_does_not_fit_is_refused(key, text, message):
    with pytest.raises(ConfigError) as raised:
        parse_options("mine", Options, {key: text})
    assert str(raised.value) == message


def test_a_plugin_without_options_says_so():
    with pytest.raises(ConfigError, match="it has no options"):
        parse_options("mine", NoOptions, {"x": "1"})


def test_what_a_plugins_own_check_refuses_is_a_config_error():
    @attrs.frozen
    class Checked:
        size: int = attrs.field(default=1, validator=attrs.validators.gt(0))

    with pytest.raises(ConfigError, match=r"options of mine: .*size"):
        parse_options("mine", Checked, {"size": "0"})


class Tunable(RowMajor):
    Options = Options


class TunableToy(Toy):
    Options = Options


def choices(**options):
    config = configured(model=TunableToy, backend=Tunable, options=options)
    return choose(config, HostDevice("inline"))


def test_each_option_goes_to_the_plugin_of_its_name():
    made = choices(**{"Tunable.chunk": "3", "TunableToy.name": "bear"})
    assert made.backend.options == Options(chunk=3)
    assert made.model_options == Options(name="bear")


def test_an_option_of_nobody_in_this_engine_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError) as raised:
        choices(**{"Tunabel.chunk": "3"})
    assert str(raised.value) == (
        "--opt Tunabel.chunk: 'Tunabel' is not part of this engine\nNext: did you mean Tunable?"
    )


@pytest.mark.parametrize("path", ["chunk", ".chunk", "Tunable.", ""])
def test_a_path_that_names_no_option_is_refused(path):
    with pytest.raises(ConfigError, match="names no option"):
        choices(**{path: "3"})


def test_the_backend_gets_its_options_in_its_context():
    from parts import engine

    seen = []

    class Seeing(Tunable):
        def __init__(self, ctx):
            super().__init__(ctx)
            seen.append(ctx.options)

    with engine(backend=Seeing, options={"Seeing.rate": "0.25"}):
        assert seen == [Options(rate=0.25)]
