"""What `find_plugins` says of each kind of installation."""

from __future__ import annotations

import shutil
import sys
import zipfile

import pytest

import warcore
from warcore import PluginError
from warcore.registry import KINDS


def test_a_healthy_plugin_is_available_with_all_its_facts(site):
    site.backend("good")
    record = site.one()
    assert (record.kind, record.name, record.state) == ("backend", "good", "available")
    assert (record.distribution, record.version) == ("x-good", "1.0")
    assert record.entry_point == "x_good:Backend"
    assert record.file == str(site.path / "x_good.py")
    assert record.requires == "warcore>=0.1,<0.2"
    assert (record.cause, record.next, record.needs_attention) == (None, None, False)


def test_finding_imports_nothing(site):
    site.backend("good")
    site.find()
    assert "x_good" not in sys.modules


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_group_and_can_be_asked_for_alone(site, kind):
    site.add("x-all", {k: {"a": "x_all:A"} for k in KINDS}, x_all="")
    assert [r.kind for r in site.find(kind=kind)] == [kind]
    assert [r.kind for r in site.find()] == list(KINDS)


def test_other_groups_and_distributions_are_left_alone(site):
    site.add("x-other", {"console_scripts.x": {"a": "b:c"}, "pytest.x": {"warcore.": "b:c"}})
    site.add("x-third", {"warcore.of_somebody_else": {"a": "b:c"}})
    site.add("x-none")
    assert site.find() == ()


def test_a_misspelt_group_is_told_with_the_right_one(site):
    site.add("x-typo", {"warcore.backend": {"a": "x_typo:A"}}, x_typo="")
    record = site.one()
    assert (record.kind, record.state) == ("backend", "broken")
    assert "warcore.backends" in record.cause


def test_unknown_kind_is_an_error_that_lists_the_kinds(site):
    with pytest.raises(PluginError, match=r"'backends'(.|\n)*Next: use backend, graph_runner"):
        site.find(kind="backends")


class TestOnePathEntryAfterAnother:
    def test_the_same_distribution_twice_on_the_path_is_one(self, site, tmp_path):
        site.backend("good")
        site.backend("good", place=tmp_path / "again")
        assert len(site.find(before=[tmp_path / "again", site.path])) == 1

    def test_the_first_hides_the_others_also_when_it_has_no_plugins(self, site, tmp_path):
        site.backend("good", version="2.0")
        site.add("X.Good", version="1.0", place=tmp_path / "old")
        assert site.find(before=[tmp_path / "old"]) == ()

    def test_places_that_do_not_exist_are_passed_over(self, site, tmp_path):
        site.backend("good")
        assert len(site.find(before=[tmp_path / "nowhere"])) == 1

    def test_what_pip_could_not_remove_does_not_count(self, site):
        info = site.backend("good")
        info.rename(info.with_name("~_good-1.0.dist-info"))
        assert site.find() == ()

    def test_an_archive_on_the_path_is_read(self, site, tmp_path):
        site.backend("good")
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for file in site.path.rglob("*"):
                archive.write(file, file.relative_to(site.path))
        (record,) = site.find(before=[tmp_path / "a.zip"])
        assert (record.name, record.distribution) == ("good", "x-good")
        assert record.requires == "warcore>=0.1,<0.2"

    @pytest.mark.parametrize("within_egg", [False, True])
    def test_an_egg_is_read_with_its_own_files(self, site, tmp_path, within_egg):
        place = tmp_path / "x_old-1.0.egg" if within_egg else site.path
        info = place / ("EGG-INFO" if within_egg else "x_old-1.0-py3.11.egg-info")
        info.mkdir(parents=True)
        (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: x-old\nVersion: 1.0\n")
        (info / "requires.txt").write_text("warcore<0.1\n")
        (info / "entry_points.txt").write_text("[warcore.backends]\nold = x_old:B\n")
        (place / "x_old.py").write_text("")
        (record,) = site.find(before=[place])
        assert (record.name, record.requires) == ("old", "warcore<0.1")
        assert record.state == "incompatible"


class TestBroken:
    def test_a_module_that_is_not_there(self, site):
        site.add("x-gone", {"backend": {"gone": "x_gone.sub:B"}})
        record = site.one()
        assert (record.state, record.file) == ("broken", None)
        assert record.cause == "there is no module x_gone"
        assert record.next == "pip install --upgrade --force-reinstall --no-deps x-gone"

    @pytest.mark.parametrize("value", ["x_odd", "x_odd:", "x odd:B", ":B", "x_odd:B:C"])
    def test_an_entry_point_that_is_no_module_and_class(self, site, value):
        site.add("x-odd", {"backend": {"odd": value}}, x_odd="")
        record = site.one()
        assert record.state == "broken"
        assert repr(value) in record.cause

    def test_extras_after_the_class_are_allowed(self, site):
        site.add("x-ex", {"backend": {"ex": "x_ex:B [fast]"}}, x_ex="")
        assert (site.one().entry_point, site.one().state) == ("x_ex:B", "available")

    @pytest.mark.parametrize("form", ["dist-info", "egg-info", "archive"])
    def test_metadata_that_is_gone_breaks_no_listing(self, site, tmp_path, form):
        site.backend("good")
        info = site.backend("bad")
        (info / "METADATA").unlink()
        if form == "egg-info":
            info.rename(info.with_suffix(".egg-info"))
        if form == "archive":
            with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
                archive.write(info / "entry_points.txt", "x_bad-1.0.dist-info/entry_points.txt")
            shutil.rmtree(info)
        found = site.find(before=[tmp_path / "a.zip"] if form == "archive" else [])
        assert "available" in {r.state for r in found if r.name == "good"}

    def test_metadata_that_is_gone(self, site):
        (site.backend("good") / "METADATA").unlink()
        record = site.one()
        assert (record.state, record.version) == ("broken", None)
        assert "METADATA" in record.cause

    def test_a_requirement_that_is_nonsense(self, site):
        site.backend("good", requires=["warcore=!1"])
        assert site.one().state == "broken"
        assert "warcore=!1" in site.one().cause

    def test_bytes_that_are_no_text_spoil_nobody_elses_record(self, site):
        site.backend("good")
        info = site.backend("bad")
        (info / "entry_points.txt").write_bytes(b"[warcore.backends]\n\xff\xfe = \x00\n= =\n")
        states = {r.name: r.state for r in site.find()}
        assert states.pop("good") == "available"
        assert set(states.values()) == {"broken"}


class TestIncompatible:
    @pytest.mark.parametrize(
        ("version", "requirement", "state"),
        [
            ("0.1.0", "warcore>=0.1,<0.2", "available"),
            ("0.1.0", "Warcore (>=0.1)", "available"),
            ("0.1.0", "warcore", "available"),
            ("0.1.0", "warcore<0.1", "incompatible"),
            ("0.1.0", "warcore[torch]>=0.2", "incompatible"),
            ("0.1.0", "warcore>=0.2; python_version < '3'", "available"),
            ("0.1.0", "warcore>=0.2; extra == 'new'", "available"),
            ("0.1.0", "warcore-other<0.1", "available"),
            ("0.2.0.dev1", "warcore>=0.1,<0.2", "incompatible"),
            ("0.2.0rc1", "warcore>=0.1", "available"),
            ("0.2.0rc1", "warcore>=0.2", "incompatible"),
        ],
    )
    def test_the_requirement_of_the_distribution_decides(
        self, site, monkeypatch, version, requirement, state
    ):
        monkeypatch.setattr("warcore.description.__version__", version)
        site.backend("good", requires=[requirement, "torch>=2.9"])
        assert site.one().state == state

    @pytest.mark.parametrize(
        ("requirement", "remedy"),
        [
            ("warcore<0.1", "pip install --upgrade x-good"),
            ("warcore>=7,<8", "pip install 'warcore<8,>=7'"),
            ("warcore~=7.0", "pip install 'warcore~=7.0'"),
        ],
    )
    def test_the_remedy_upgrades_what_is_behind(self, site, requirement, remedy):
        site.backend("good", requires=[requirement])
        record = site.one()
        assert record.cause.endswith(f"{warcore.__version__} is installed")
        assert record.next == remedy


class TestConflict:
    def test_two_distributions_with_one_name_are_both_shown(self, site):
        site.add("x-one", {"backend": {"same": "x_one:B"}}, x_one="")
        site.add("x-two", {"backend": {"same": "x_two:B"}}, x_two="")
        one, two = site.find()
        assert (one.state, two.state) == ("conflict", "conflict")
        assert one.cause == "x-two 1.0 has a backend of this name too"
        assert one.next == "pip uninstall x-two"
        assert two.next == "pip uninstall x-one"

    def test_one_name_in_two_kinds_is_no_conflict(self, site):
        site.add("x-one", {"backend": {"same": "x_one:B"}}, x_one="")
        site.add("x-two", {"stager": {"same": "x_two:S"}}, x_two="")
        assert [r.state for r in site.find()] == ["available", "available"]


class TestStale:
    @pytest.fixture
    def source(self, tmp_path):
        source = tmp_path / "a source"
        source.mkdir()
        return source

    def write(self, source, entries, head=""):
        lines = [f'[project.entry-points."warcore.{k}s"]\n{v}' for k, v in entries.items()]
        text = f'[project]\nname = "x-good"\n{head}\n' + "\n".join(lines)
        (source / "pyproject.toml").write_text(text)

    def test_equal_entry_points_are_not_stale(self, site, source):
        self.write(source, {"backend": 'good = "x_good:Backend"'})
        site.backend("good", editable=source)
        assert site.one().state == "available"

    @pytest.mark.parametrize(
        ("declared", "cause"),
        [
            ('good = "x_good:Renamed"', "says x_good:Renamed"),
            ("", "has it no more"),
        ],
    )
    def test_what_pyproject_says_otherwise_is_stale(self, site, source, declared, cause):
        self.write(source, {"backend": declared})
        site.backend("good", editable=source)
        record = site.one()
        assert record.state == "stale"
        assert record.cause == f"{source}/pyproject.toml {cause}"
        assert record.next == f"pip install --no-deps --editable '{source}'"

    def test_what_is_not_installed_yet_is_shown(self, site, source):
        self.write(source, {"backend": 'new = "x_new:B"'})
        site.add("x-new", editable=source, x_new="")
        record = site.one()
        assert (record.name, record.state) == ("new", "stale")
        assert "does not know it yet" in record.cause

    @pytest.mark.parametrize("text", ["entry-points = [", "# entry-points\n[tool.x]\n"])
    def test_a_pyproject_that_cannot_tell_changes_nothing(self, site, source, text):
        (source / "pyproject.toml").write_text(text)
        site.backend("good", editable=source)
        assert site.one().state == "available"

    def test_dynamic_entry_points_change_nothing(self, site, source):
        self.write(source, {}, head='dynamic = ["entry-points"]')
        site.backend("good", editable=source)
        assert site.one().state == "available"

    def test_sources_that_are_gone_are_broken(self, site, source):
        site.backend("good", editable=source)
        source.rmdir()
        assert site.one().state == "broken"
        assert str(source) in site.one().cause


class TestSwitchingOff:
    @pytest.fixture(autouse=True)
    def plugins(self, site):
        site.backend("alpha")
        site.backend("beta")
        site.add("x-both", {"stager": {"alpha": "x_both:S"}}, x_both="")

    def states(self, records):
        return {f"{r.kind}:{r.name}": r.state for r in records}

    def test_a_name_switches_off_every_plugin_that_has_it(self, site):
        off = [r.kind for r in site.find("alpha") if r.state == "disabled"]
        assert off == ["backend", "stager"]

    def test_kind_and_name_switch_off_one(self, site):
        off = [r.kind for r in site.find("stager:alpha") if r.state == "disabled"]
        assert off == ["stager"]

    def test_a_disabled_plugin_says_how_to_have_it_back_and_needs_no_attention(self, site):
        record = next(r for r in site.find("beta") if r.name == "beta")
        assert record.next == "leave out --disable beta"
        assert not record.needs_attention

    def test_the_allowlist_disables_all_others(self, site, monkeypatch):
        monkeypatch.setenv("WARCORE_PLUGINS", " backend:alpha , beta,")
        assert self.states(site.find()) == {
            "backend:alpha": "available",
            "backend:beta": "available",
            "stager:alpha": "disabled",
        }

    @pytest.mark.parametrize("value", ["", " , "])
    def test_an_empty_allowlist_is_none(self, site, monkeypatch, value):
        monkeypatch.setenv("WARCORE_PLUGINS", value)
        assert set(self.states(site.find()).values()) == {"available"}

    def test_disable_goes_before_the_allowlist(self, site, monkeypatch):
        monkeypatch.setenv("WARCORE_PLUGINS", "beta")
        record = next(r for r in site.find("beta") if r.name == "beta")
        assert record.cause == "--disable names it"

    def test_a_disabled_twin_is_no_conflict(self, site):
        site.add("x-twin", {"backend": {"beta": "x_twin:B"}}, x_twin="")
        assert [r.state for r in site.find("beta") if r.name == "beta"] == ["disabled"] * 2

    @pytest.mark.parametrize("kind", [None, "model"])
    def test_an_unknown_name_is_an_error_with_a_suggestion(self, site, kind):
        with pytest.raises(PluginError, match=r"'alhpa'; did you mean alpha\?") as caught:
            site.find("alhpa", kind=kind)
        assert caught.value.next == "warcore list-plugins"

    def test_an_unknown_name_in_the_allowlist_says_where_it_stands(self, site, monkeypatch):
        monkeypatch.setenv("WARCORE_PLUGINS", "alpha,bta")
        with pytest.raises(PluginError, match=r"WARCORE_PLUGINS: .*'bta'; did you mean beta") as e:
            site.find()
        assert e.value.next == "env -u WARCORE_PLUGINS warcore list-plugins"
