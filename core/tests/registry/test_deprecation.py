"""What is to leave the contract warns for two minors, with the distribution and the page."""

from __future__ import annotations

import warnings

import attrs
import pytest

from warcore import AttentionBackend, PluginRecord, deprecation
from warcore.deprecation import ContractDeprecation, Deprecated
from warcore.records import load

OLD_METHOD = Deprecated("backend", "plan", None, "0.3", "rename it to prepare", "docs/plan.md")
OLD_ARGUMENT = attrs.evolve(OLD_METHOD, method="forward", argument="sink")
MODULE = """
from warcore import AttentionBackend

class Old(AttentionBackend):
    def plan(self): "Plan."
    def forward(self, q, k, v, layer, batch, sink=None): return q

class Heir(Old):
    def plan(self): "Plan better."

class Static(AttentionBackend):
    @classmethod
    def plan(cls, sink): "Plan for all."
    def forward(self, q, k, v, layer, batch): return q

class New(AttentionBackend):
    def forward(self, q, k, v, layer, batch): return q
"""


@pytest.fixture
def deprecate(monkeypatch):
    return lambda *entries: monkeypatch.setattr(deprecation, "DEPRECATED", entries)


@pytest.fixture
def loaded(site, monkeypatch):
    """`loaded(CLASS)`: what is warned of when an installed plugin is loaded."""
    monkeypatch.syspath_prepend(site.path)
    site.add("rows-of-mine", {}, rows_of_mine=MODULE)

    def of(name, kind="backend"):
        record = PluginRecord(kind, "rows", "rows-of-mine", "1.4", f"rows_of_mine:{name}")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            load(record)
        assert all(each.category is ContractDeprecation for each in told)
        return [str(each.message) for each in told]

    return of


def test_it_names_the_distribution_the_minors_the_remedy_and_the_page(deprecate, loaded):
    deprecate(OLD_METHOD)
    (said,) = loaded("Old")
    assert said == (
        "backend rows (rows-of-mine 1.4): it defines plan, deprecated since warcore 0.3 and gone "
        "in 0.5; rename it to prepare (see docs/plan.md)"
    )


def test_an_argument_is_told_apart_from_its_method(deprecate, loaded):
    deprecate(OLD_ARGUMENT)
    (said,) = loaded("Old")
    assert "it defines sink of forward," in said
    assert loaded("New") == []


@pytest.mark.parametrize("name", ["Heir", "Static"])
def test_inherited_and_class_methods_are_uses_too(deprecate, loaded, name):
    deprecate(OLD_METHOD)
    assert len(loaded(name)) == 1


def test_each_use_is_told(deprecate, loaded):
    deprecate(OLD_METHOD, OLD_ARGUMENT)
    assert len(loaded("Old")) == 2


def test_what_a_base_of_warcore_defines_is_no_use_of_the_plugin(deprecate, loaded):
    deprecate(attrs.evolve(OLD_METHOD, method="shared_read_ends"))
    assert loaded("New") == []


def test_another_kind_may_use_the_name(deprecate, loaded):
    deprecate(attrs.evolve(OLD_METHOD, kind="stager"))
    assert loaded("Old") == []


def test_a_class_that_is_given_directly_is_told_too(deprecate):
    class Mine(AttentionBackend):
        def plan(self):
            raise AssertionError

        def forward(self, q, k, v, layer, batch):
            return q

    deprecate(OLD_METHOD)
    with pytest.warns(ContractDeprecation, match="backend Mine"):
        PluginRecord.of_class("backend", Mine)


@pytest.mark.parametrize(("since", "gone"), [("0.3", "0.5"), ("0.9", "0.11"), ("1.0", "1.2")])
def test_what_warns_stays_for_two_minors(since, gone):
    assert attrs.evolve(OLD_METHOD, since=since).gone == gone
