"""Each wrong package turns exactly its check red; the packages of this repository none."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from wrong_plugins.catalogue import entries, under_check

from warcore.registry import find_plugins, load
from warcore.testkit.outcome import NotApplicable, Refuted
from warcore.testkit.runs.check import checks_of
from warcore.testkit.subject import Subject

WRONG = {entry.name: entry for entry in entries() if entry.is_package}
SLOW = {"plugin.wheel_is_found"}
IN_A_PROCESS = {"plugin.loads", "plugin.import_initialises_no_device"} | {
    "plugin.import_leaves_no_trace"
}
OWN = ["torch_native", *(pytest.param(n, marks=pytest.mark.slow) for n in ("full", "breakable"))]
OWN += [pytest.param(n, marks=pytest.mark.slow) for n in ("random", "gguf", "safetensors")]
OWN += [pytest.param("smollm2", marks=[pytest.mark.slow, pytest.mark.model])]


@pytest.fixture
def installed(tmp_path):
    """The subject of one wrong package, as an editable install would leave it."""
    with ExitStack() as stack:
        yield lambda entry: stack.enter_context(
            # Its class is imported only where that does no harm to the tests.
            under_check(entry, tmp_path / "site", imported=entry.breaks not in IN_A_PROCESS)
        )


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
        names -= {f"plugin.{name}" for name in without}
    return names


def expected(entry):
    return set() if entry.is_right else {entry.breaks}


@pytest.mark.parametrize("entry", WRONG.values(), ids=str)
def test_a_wrong_package_turns_its_check_red_and_no_quick_one(installed, entry):
    subject = installed(entry)
    quick = of_packages(subject) - SLOW - IN_A_PROCESS
    assert set(red(subject, quick | {entry.breaks})) == expected(entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", WRONG.values(), ids=str)
def test_a_wrong_package_turns_exactly_its_check_red(installed, entry):
    subject = installed(entry)
    assert set(red(subject, of_packages(subject))) == expected(entry)


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
    failure = red(installed(WRONG[name]), {WRONG[name].breaks})[WRONG[name].breaks]
    assert f": {line}" in failure.where
    assert f"wrong_{name}.py:" in failure.where


def test_a_process_that_ends_tells_how(installed):
    subject = installed(WRONG["ends_the_process"])
    failure = red(subject, {"plugin.loads"})["plugin.loads"]
    assert "exit code 3" in failure.observed


def test_a_wheel_that_lacks_a_module_tells_which(installed):
    failure = red(installed(WRONG["leaves_a_module_out"]), SLOW)["plugin.wheel_is_found"]
    assert "wrong_leaves_a_module_out_kernels" in failure.observed


@pytest.mark.parametrize("name", OWN)
def test_a_plugin_of_this_repository_keeps_what_its_package_owes(name):
    records = [each for each in find_plugins() if each.name == name]
    if not records:
        pytest.skip(f"{name} is not installed")
    subject = Subject(records[0], load(records[0]))
    assert red(subject, of_packages(subject)) == {}
