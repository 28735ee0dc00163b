"""Each wrong package turns exactly its check red; the packages of this repository none."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from warcore.registry import find_plugins, load
from warcore.testkit.check import checks_of
from warcore.testkit.outcome import NotApplicable, Refuted
from warcore.testkit.subject import Subject

toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
FOLDER = Path(__file__).parents[1] / "wrong_plugins"
WRONG = sorted(path.parent.name for path in FOLDER.glob("*/pyproject.toml"))
SLOW = {"plugin.wheel_is_found"}
IN_A_PROCESS = {"plugin.loads", "plugin.import_initialises_no_device"} | {
    "plugin.import_leaves_no_trace"
}
OWN = ["torch_native", *(pytest.param(n, marks=pytest.mark.slow) for n in ("full", "breakable"))]
OWN += [pytest.param(n, marks=pytest.mark.slow) for n in ("random", "gguf", "safetensors")]
OWN += [pytest.param("smollm2", marks=[pytest.mark.slow, pytest.mark.model])]


class Installed:
    """One wrong package as an editable install would leave it."""

    def __init__(self, name, site, monkeypatch):
        source = FOLDER / name
        data = toml.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        self.breaks = data["tool"]["warcore-kit"]["breaks"]
        project = data["project"]
        dist = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        dist.mkdir(parents=True)
        fields = [
            "Metadata-Version: 2.1",
            f"Name: {project['name']}",
            f"Version: {project['version']}",
            *(f"Requires-Dist: {line}" for line in project["dependencies"]),
        ]
        if "description" in project:
            readme = (source / project["readme"]).read_text(encoding="utf-8")
            fields += [f"Summary: {project['description']}", "", readme]
        (dist / "METADATA").write_text("\n".join(fields), encoding="utf-8")
        (group, entries), *_ = project["entry-points"].items()
        ((self.name, value),) = entries.items()
        (dist / "entry_points.txt").write_text(f"[{group}]\n{self.name} = {value}\n")
        url = {"url": source.as_uri(), "dir_info": {"editable": True}}
        (dist / "direct_url.json").write_text(json.dumps(url))
        for place in (source, site):
            monkeypatch.syspath_prepend(place)

    def subject(self):
        """Its class is imported only where that does no harm to the tests."""
        (record,) = [each for each in find_plugins() if each.name == self.name]
        return Subject(record, None if self.breaks in IN_A_PROCESS else load(record))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    return lambda name: Installed(name, tmp_path / "site", monkeypatch)


def red(subject, names):
    """Those of the checks that the plugin fails, with their failures."""
    failures = {}
    for check in checks_of(subject.record.kind):
        if check.name not in names or any(need in failures for need in check.needs):
            continue
        try:
            check.run(subject)
        except Refuted as refuted:
            failures[check.name] = refuted.failure
        except NotApplicable:
            assert check.name not in IN_A_PROCESS
    return failures


def of_packages(subject):
    """Every check of a package, without those that need a class where there is none."""
    names = {check.name for check in checks_of("backend") if check.kind is None}
    if subject.cls is None:
        without = {"options_parse", "facts_are_of_their_kind", "hooks_are_spelt_right"}
        names -= {f"plugin.{name}" for name in without | {"is_described"}}
    return names


def expected(package):
    return set() if package.breaks == "plugin.nothing" else {package.breaks}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_package_turns_its_check_red_and_no_quick_one(installed, name):
    package = installed(name)
    subject = package.subject()
    quick = of_packages(subject) - SLOW - IN_A_PROCESS
    assert set(red(subject, quick | {package.breaks})) == expected(package)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_package_turns_exactly_its_check_red(installed, name):
    package = installed(name)
    subject = package.subject()
    assert set(red(subject, of_packages(subject))) == expected(package)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("prints_at_import", 'print("fast kernels found")'),
        ("sets_threads", "torch.set_num_threads(torch.get_num_threads() + 1)"),
        ("handles_segv", "faulthandler.enable()"),
        ("opens_cuda", "torch.cuda._initialized = True"),
        ("takes_private_names", "from warcore.contract import ForwardMode"),
        ("forgets_torch", "import torch"),
        ("misspells_a_hook", "def shared_reads_end(self, forward_mode):"),
    ],
)
def test_a_failure_names_the_line_at_fault(installed, name, line):
    package = installed(name)
    failure = red(package.subject(), {package.breaks})[package.breaks]
    assert f": {line}" in failure.where
    assert f"wrong_{name}.py:" in failure.where


def test_a_process_that_ends_tells_how(installed):
    package = installed("ends_the_process")
    failure = red(package.subject(), {"plugin.loads"})["plugin.loads"]
    assert "exit code 3" in failure.observed


def test_a_wheel_that_lacks_a_module_tells_which(installed):
    package = installed("leaves_a_module_out")
    failure = red(package.subject(), SLOW)["plugin.wheel_is_found"]
    assert "wrong_leaves_a_module_out_kernels" in failure.observed


@pytest.mark.parametrize("name", OWN)
def test_a_plugin_of_this_repository_keeps_what_its_package_owes(name):
    records = [each for each in find_plugins() if each.name == name]
    if not records:
        pytest.skip(f"{name} is not installed")
    subject = Subject(records[0], load(records[0]))
    assert red(subject, of_packages(subject)) == {}
