"""Which plugins an engine is made of, or one error that says everything at once."""

from __future__ import annotations

import threading

import attrs
import pytest
import torch
import toys
from parts import configured
from toys import INFO, RowMajor, Toy

import warcore.choices
import warcore.fitting
from warcore import Layer, ModelError, PluginError, PluginRecord, WiringError
from warcore.choices import choose
from warcore.device.host import HostDevice
from warcore.errors import ConfigError

HOST = HostDevice("inline")


def record(kind, name, cls):
    return attrs.evolve(PluginRecord.of_class(kind, cls), name=name)


def backend(name, *reasons, rank=0, page_sizes=None):
    def why_not(cls, spec):
        return list(reasons)

    made = type(
        name.title(),
        (RowMajor,),
        {"why_not": classmethod(why_not), "default_rank": rank, "page_sizes": page_sizes},
    )
    return record("backend", name, made)


def broken(kind, name):
    """An installed plugin whose module is not there."""
    return PluginRecord(kind, name, f"x-{name}", "1.0", f"x_{name}_is_missing:Thing")


@pytest.fixture
def installed(monkeypatch):
    """installed(*records): what find_plugins finds."""

    def install(*records):
        monkeypatch.setattr(
            warcore.choices, "find_plugins", lambda disable: (record("model", "toy", Toy), *records)
        )

    install()
    return install


def chosen(**config):
    return choose(configured(**{"backend": None, "page_size": None, **config}), HOST)


# ---- backends ------------------------------------------------------------------------------------


def test_the_only_backend_that_can_serve_is_taken(installed):
    installed(backend("alpha", "no"), backend("beta"), broken("backend", "gamma"))
    assert chosen().backend.name == "beta"


def test_of_several_the_highest_rank_is_taken(installed):
    installed(backend("alpha"), backend("beta", rank=2), backend("gamma", "no", rank=3))
    assert chosen().backend.name == "beta"


def test_a_tie_is_an_error_that_lists_those_that_tie(installed):
    installed(backend("alpha", rank=1), backend("beta", rank=1), backend("gamma"))
    with pytest.raises(WiringError) as raised:
        chosen()
    assert str(raised.value) == (
        "several attention backends can serve this model: alpha, beta\nNext: --backend alpha"
    )


def test_if_none_can_serve_the_reasons_of_all_are_shown_together(installed):
    raising = backend("delta")
    raising.given.why_not = classmethod(lambda cls, spec: 1 / 0)
    installed(
        backend("alpha", "no windows", "no float64"),
        backend("beta", page_sizes=frozenset({32})),
        broken("backend", "gamma"),
        raising,
    )
    with pytest.raises(WiringError) as raised:
        chosen(page_size=4)
    head, *lines, remedy = str(raised.value).splitlines()
    assert head == "no attention backend can serve this model:"
    assert lines[:2] == ["  alpha: no windows; no float64", "  beta: a page size of 4 (it has 32)"]
    assert lines[2].startswith("  backend gamma (x-gamma 1.0): there is no module")
    assert lines[3].startswith("  backend delta: why_not raised ZeroDivisionError")
    assert remedy == "Next: warcore list-plugins --kind backend"


def test_without_any_backend_it_says_so(installed):
    with pytest.raises(WiringError, match=r"no attention backend .*: none is installed"):
        chosen()


def test_a_named_backend_that_cannot_serve_gives_all_reasons_and_who_could(installed):
    installed(backend("alpha", "no windows", "no float64"), backend("beta"), backend("gamma", "no"))
    with pytest.raises(WiringError) as raised:
        chosen(backend="alpha")
    assert str(raised.value) == (
        "alpha cannot serve this:\n  no windows\n  no float64\nNext: --backend beta"
    )


def test_all_who_could_are_named_the_best_one_first(installed):
    others = [backend("beta", rank=-1), backend("gamma", rank=2), backend("delta", rank=1)]
    installed(backend("alpha", "no windows"), *others)
    with pytest.raises(WiringError) as raised:
        chosen(backend="alpha")
    assert raised.value.next == "--backend gamma, or one of: delta, beta"


def test_so_they_are_where_two_halves_cannot_serve_and_all_reasons_are_given(installed):
    of_16, of_64 = (
        backend(name, f"no {name}", page_sizes=frozenset({size}))
        for name, size in (("alpha", 16), ("beta", 64))
    )
    installed(of_16, of_64, backend("gamma"), backend("delta", rank=1))
    with pytest.raises(WiringError) as raised:
        chosen(prefill_backend="alpha", decode_backend="beta")
    assert str(raised.value) == (
        "alpha+beta cannot serve this:\n  no page size in common\n"
        "  prefill by Alpha: no alpha\n  decode by Beta: no beta\n"
        "Next: --backend delta, or one of: gamma; "
        "or other names for --prefill-backend and --decode-backend"
    )


def test_a_page_size_that_does_not_fit_is_shown_with_the_other_reasons(installed):
    installed(backend("alpha", "no windows", page_sizes=frozenset({16, 32})))
    with pytest.raises(WiringError) as raised:
        chosen(backend="alpha", page_size=4)
    assert raised.value.what == (
        "alpha cannot serve this:\n  a page size of 4 (it has 16, 32)\n  no windows"
    )


def test_a_class_can_be_given_and_needs_no_registration(installed):
    choices = chosen(backend=RowMajor, model=Toy)
    assert choices.backend.cls is RowMajor
    assert choices.backend.name == "RowMajor"
    assert (choices.family, choices.ref) == (Toy, "Toy")


def test_a_given_family_is_asked_for_the_reference_that_comes_with_it(installed):
    assert chosen(backend=RowMajor, model=Toy, model_ref="toy").ref == "toy"
    with pytest.raises(ModelError, match="Toy does not recognise 'other'"):
        chosen(backend=RowMajor, model=Toy, model_ref="other")


def test_layers_of_several_sizes_are_refused(installed, monkeypatch):
    layers = (toys.LAYERS[0], attrs.evolve(toys.LAYERS[1], head_dim=16))
    monkeypatch.setattr(toys, "INFO", attrs.evolve(toys.INFO, layers=layers))
    with pytest.raises(WiringError, match="several sizes"):
        chosen(backend=RowMajor, model=Toy)


def test_a_given_class_of_the_wrong_kind_is_refused(installed):
    with pytest.raises(PluginError, match=r"not a subclass of warcore.AttentionBackend"):
        chosen(backend=dict)


def test_an_unknown_backend_gets_a_suggestion(installed):
    installed(backend("alpha"))
    with pytest.raises(PluginError, match="no backend is called 'alpa'; did you mean alpha"):
        chosen(backend="alpa")


def test_a_named_backend_that_is_broken_is_an_error_with_its_cause(installed):
    installed(backend("alpha"), broken("backend", "gamma"))
    with pytest.raises(PluginError, match="there is no module x_gamma_is_missing") as raised:
        chosen(backend="gamma")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


# ---- page sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "allowed", "size"),
    [
        (None, None, 16),
        (None, {1, 16, 64}, 16),
        (None, {64, 32}, 32),
        (None, {1, 8}, 1),
        (4, None, 4),
        (64, {32, 64}, 64),
    ],
)
def test_the_page_size_is_the_users_else_16_else_the_smallest(installed, wanted, allowed, size):
    installed(backend("alpha", page_sizes=allowed and frozenset(allowed)))
    assert chosen(page_size=wanted).spec.page_size == size


# ---- the spec ------------------------------------------------------------------------------------


def test_the_spec_says_what_the_model_asks_for(installed):
    installed(backend("alpha"))
    spec = chosen(context_length=20).spec
    assert (spec.q_heads, spec.kv_heads, spec.head_dim) == (2, 2, 8)
    assert (spec.dtype, spec.kv_dtype) == (torch.float64, torch.float64)
    assert (spec.max_context, spec.device, spec.role, spec.tree) == (
        20,
        HOST.torch_device,
        "target",
        False,
    )
    assert spec.windows == {None}


def test_windows_of_layers_are_in_the_spec(installed):
    class Windowed(Toy):
        @classmethod
        def describe(cls, ref, options):
            return attrs.evolve(INFO, layers=(*INFO.layers, Layer(2, 2, 2, 8, 1.0, window=32)))

    installed(backend("alpha"))
    assert chosen(model=Windowed).spec.windows == {None, 32}


def test_a_context_longer_than_the_model_was_made_for_is_refused(installed):
    installed(backend("alpha"))
    with pytest.raises(ConfigError) as raised:
        chosen(context_length=65)
    assert str(raised.value) == (
        "--context-length 65: toy was made for 64 tokens\nNext: --context-length 64"
    )


# ---- models --------------------------------------------------------------------------------------


def test_an_unknown_model_gets_a_suggestion(installed):
    with pytest.raises(ModelError) as raised:
        chosen(model="toi")
    assert str(raised.value) == (
        "no installed model family recognises 'toi'; did you mean toy?\n"
        "Next: warcore list-plugins --kind model"
    )


def test_what_could_not_be_asked_is_listed_with_its_cause(installed):
    aside = attrs.evolve(
        backend("alpha"), state="disabled", cause="--disable names it", distribution="x"
    )
    installed(aside)
    with pytest.raises(WiringError) as raised:
        chosen()
    assert "alpha (x" in raised.value.what
    assert "is disabled: --disable names it" in raised.value.what


def test_a_kind_may_stand_before_the_name_of_a_model(installed):
    installed(backend("alpha"))
    assert chosen(model="model:toy").ref == "toy"


def test_an_import_that_takes_long_has_a_name(installed, monkeypatch, caplog):
    gate = threading.Event()
    monkeypatch.setattr(warcore.fitting, "PATIENCE", 0.0)
    monkeypatch.setattr(warcore.fitting.log, "warning", lambda *a: (said.append(a), gate.set()))
    said = []
    record = backend("alpha")
    monkeypatch.setattr(warcore.fitting, "load", lambda record: gate.wait(60) and RowMajor)
    assert warcore.fitting.load_unselected(record) is RowMajor
    message, *values = said[0]
    assert (message % tuple(values)).endswith("Next: --disable alpha")


def family(name, answer, rank=0):
    def recognises(cls, ref):
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = type(name.title(), (Toy,), {"recognises": classmethod(recognises), "default_rank": rank})
    return record("model", name, made)


def test_a_path_goes_to_the_family_of_the_highest_rank_that_recognises_it(installed):
    installed(
        backend("alpha"),
        family("low", "low:/x"),
        family("high", "high:/x", rank=1),
        family("no", None, 2),
    )
    assert chosen(model="/some/path").ref == "high:/x"


def test_a_broken_family_does_not_hide_the_one_that_recognises(installed):
    installed(
        backend("alpha"),
        broken("model", "gamma"),
        family("odd", ZeroDivisionError()),
        family("ok", "ok"),
    )
    assert chosen(model="/some/path").ref == "ok"


def test_if_nobody_recognises_it_the_broken_ones_are_named(installed):
    installed(broken("model", "gamma"), family("odd", ZeroDivisionError("odd")))
    with pytest.raises(ModelError) as raised:
        chosen(model="/some/path")
    assert "x_gamma_is_missing" in raised.value.what
    assert "model odd: recognises('/some/path') raised ZeroDivisionError" in raised.value.what


def test_a_family_that_knows_what_is_wrong_with_its_own_file_says_so(installed):
    installed(family("mine", ModelError("truncated header")), family("other", "other"))
    with pytest.raises(ModelError, match="truncated header"):
        chosen(model="/some/path")


def test_a_family_named_by_its_word_must_work(installed):
    installed(broken("model", "gamma"), family("ok", "ok"))
    with pytest.raises(PluginError, match="x_gamma_is_missing"):
        chosen(model="gamma:small")


def test_a_page_larger_than_the_context_is_refused():
    from toys import RowMajor, Toy

    from warcore import Engine, EngineConfig
    from warcore.errors import ConfigError

    with pytest.raises(ConfigError, match=r"--page-size 1000: .* context of 64"):
        Engine(EngineConfig(model=Toy, backend=RowMajor, dtype="float32", page_size=1000))
