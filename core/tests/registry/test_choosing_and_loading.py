"""Choosing a plugin among records, and turning the record into a class."""

from __future__ import annotations

import sys

import pytest

from warcore import AttentionBackend, PluginError, PluginRecord
from warcore.registry import LoadError, candidates, load, select


class Given(AttentionBackend):
    def forward(self, q, k, v, layer, batch): ...


@pytest.fixture
def importable(site, monkeypatch):
    """The site on the path, and whatever is imported from it forgotten afterwards."""
    monkeypatch.syspath_prepend(site.path)
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        if name.startswith("x_"):
            del sys.modules[name]


class TestSelect:
    def test_by_name_and_by_kind_and_name(self, site):
        site.backend("good")
        records = site.find()
        assert select(records, "backend", "good") is records[0]
        assert select(records, "backend", "backend:good") is records[0]

    def test_an_unknown_name_gets_a_suggestion_and_the_listing(self, site):
        site.backend("good")
        with pytest.raises(PluginError) as caught:
            select(site.find(), "backend", "god")
        assert str(caught.value) == (
            "no backend is called 'god'; did you mean good?\n"
            "Next: warcore list-plugins --kind backend"
        )

    @pytest.mark.parametrize("name", ["good", "backend:good"])
    def test_a_name_of_another_kind_is_told_so(self, site, name):
        site.backend("good")
        with pytest.raises(PluginError, match=r"backend good \(x-good 1.0\) has this name"):
            select(site.find(), "model", name)

    def test_a_plugin_that_cannot_be_used_gives_its_cause_and_remedy(self, site):
        site.backend("good", requires=["warcore<0.1"])
        with pytest.raises(PluginError, match=r"x-good 1.0\) is incompatible \(it requires") as e:
            select(site.find(), "backend", "good")
        assert e.value.next == "pip install --upgrade x-good"

    def test_a_disabled_plugin_cannot_be_chosen(self, site):
        site.backend("good")
        with pytest.raises(PluginError, match=r"is disabled \(--disable names it\)"):
            select(site.find("good"), "backend", "good")

    def test_candidates_are_the_available_ones_of_the_kind(self, site):
        site.backend("good")
        site.backend("old", requires=["warcore<0.1"])
        site.add("x-s", {"stager": {"s": "x_s:S"}}, x_s="")
        assert [r.name for r in candidates(site.find(), "backend")] == ["good"]


class TestLoad:
    def load(self, site, source, value="x_it:Backend", kind="backend"):
        site.add("x-it", {kind: {"it": value}}, x_it=source)
        return load(site.one())

    def test_a_healthy_plugin_is_its_class(self, importable):
        importable.backend("good")
        cls = load(importable.one())
        assert issubclass(cls, AttentionBackend)
        assert cls.__module__ == "x_good"

    @pytest.mark.parametrize("cause", ["sys.exit(3)", "1 / 0", "raise ValueError('a\\nb')"])
    def test_what_the_import_raises_is_chained_and_placed(self, importable, cause):
        with pytest.raises(LoadError) as caught:
            self.load(importable, f"import sys\n{cause}\n")
        error = caught.value
        assert str(error).startswith("backend it (x-it 1.0): importing it raised ")
        assert "x_it.py:2)" in error.what
        assert error.__cause__ is not None
        assert error.next == "python -c 'import x_it'"

    def test_a_syntax_error_is_told(self, importable):
        with pytest.raises(LoadError, match="raised SyntaxError"):
            self.load(importable, "class :")

    def test_a_requirement_that_is_missing_is_installed_by_pip_install(self, importable):
        with pytest.raises(LoadError, match="needs the module no_such_thing") as caught:
            self.load(importable, "import no_such_thing.sub")
        assert caught.value.next == "pip install x-it"

    def test_a_submodule_that_is_missing_is_the_distributions_fault(self, importable):
        package = importable.path / "x_pkg"
        package.mkdir()
        (package / "__init__.py").write_text("")
        with pytest.raises(LoadError, match=r"there is no module x_pkg\.sub") as caught:
            self.load(importable, "", "x_pkg.sub:B")
        assert caught.value.next.endswith("--no-deps x-it")

    def test_a_class_that_is_missing_gets_a_suggestion(self, importable):
        with pytest.raises(LoadError, match=r"x_it has no Backed; did you mean Backend\?"):
            self.load(importable, "class Backend: ...", "x_it:Backed")

    @pytest.mark.parametrize(
        ("kind", "base"),
        [
            ("backend", "AttentionBackend"),
            ("graph_runner", "GraphRunner"),
            ("spec_algo", "SpecAlgorithm"),
            ("stager", "Stager"),
            ("model", "ModelFamily"),
        ],
    )
    def test_each_kind_has_its_base_class(self, importable, kind, base):
        with pytest.raises(LoadError, match=rf"Backend is not a subclass of warcore\.{base}\n"):
            self.load(importable, "class Backend: ...", kind=kind)

    def test_a_function_is_no_class(self, importable):
        with pytest.raises(LoadError, match="it is a function, not a class"):
            self.load(importable, "def Backend(): ...")

    def test_methods_that_are_not_defined_are_named(self, importable):
        source = "import warcore\nclass Backend(warcore.AttentionBackend): ..."
        with pytest.raises(LoadError, match="Backend does not define forward"):
            self.load(importable, source)


class TestOfClass:
    def test_the_record_names_the_class_and_loads_it(self):
        record = PluginRecord.of_class("backend", Given)
        assert record.state == "loaded"
        assert record.file == __file__
        assert str(record) == f"backend Given ({__name__}:Given)"
        assert load(record) is Given

    @pytest.mark.parametrize("thing", [int, AttentionBackend, "torch", print])
    def test_what_is_no_usable_class_is_refused(self, thing):
        with pytest.raises(PluginError, match="backend"):
            PluginRecord.of_class("backend", thing)
