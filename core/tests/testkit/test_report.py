"""What a run says: failures for a person, a document for a program, a line for the next listing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import attrs
import pytest
from testkit import fake_rules, hostile
from testkit.fake_rules import make

import warcore
from warcore.records import PluginRecord
from warcore.testkit.outcome import Failure, Outcome
from warcore.testkit.runs import lastreport, report
from warcore.testkit.runs.coverage import not_covered
from warcore.testkit.runs.lastreport import kept
from warcore.testkit.runs.lines import by_line
from warcore.testkit.runs.results import Result, Results
from warcore.testkit.runs.selection import Selection
from warcore.testkit.subject import Subject

PLATFORM = {
    "python": "3.11.1",
    "torch": "2.13",
    "system": "Linux",
    "machine": "x86_64",
    "detectors": {"page guard": None, "in-order poison": None},
}
FAILURE = Failure("decode: PRE_REPLAY", "a read", "x.py:3: y", ("guard", "poison"), "decode b=4", 7)
RECORD = PluginRecord("backend", "mine", "x-mine", "1.0", "x_mine:B", requires="warcore>=0.1,<0.2")


def results_of(*results, record=RECORD, pattern="", platform=PLATFORM, **facts):
    checks = tuple(result.check for result in results)
    selection = Selection(checks, len(checks) + 1, pattern)
    return Results(Subject(record, None, **facts), selection, "0.1", results, platform)


def result_of(outcome, failure=None, **facts):
    return Result(make(fake_rules.passes), outcome, failure=failure, **facts)


FAILED = result_of(Outcome.FAILED, FAILURE, output="it said\n")
PASSED = result_of(Outcome.PASSED)
SUBJECT = Subject(RECORD, None)


# ---- a failure -----------------------------------------------------------------------------------


def test_a_failure_has_all_that_its_author_needs_in_order():
    assert list(report.told(FAILED, SUBJECT)) == [
        ("declared", "decode: PRE_REPLAY"),
        ("observed", "a read"),
        ("at", "x.py:3: y"),
        ("seen by", "guard, poison"),
        ("so what", "So."),
        ("mend it", "Mend."),
        ("just this", "warcore check backend:mine -k backend.passes --cell 'decode b=4'"),
        ("and", "7 more of the kind"),
        ("also", ""),
        ("also at", ""),
        ("it printed", "it said"),
        ("trace", ""),
    ]


def test_the_command_repeats_the_device_and_the_grid_too():
    subject = attrs.evolve(SUBJECT, device="cuda", thorough=True)
    assert "--device cuda --all" in report.command(FAILED, subject)


def test_a_class_that_is_not_installed_is_repeated_by_pytest():
    record = PluginRecord.of_class("backend", hostile.Good)
    assert report.command(FAILED, Subject(record, None)) == "pytest -k backend.passes"


def test_as_text_leaves_out_what_there_is_nothing_to_say_of():
    text = report.as_text(FAILED, SUBJECT)
    assert text.startswith("backend.passes: failed\n    declared   decode: PRE_REPLAY\n")
    assert "trace" not in text


# ---- sums and coverage ---------------------------------------------------------------------------


def test_the_last_line_sums_the_outcomes_to_the_total():
    line = report.summed(results_of(PASSED, PASSED, FAILED))
    assert line == "3 checks: 2 passed · 1 failed"


def test_a_cpu_run_says_that_it_knows_nothing_of_cuda_kernels():
    assert any("CUDA kernels" in line for line in not_covered(results_of(PASSED)))
    on_cuda = list(not_covered(results_of(PASSED, device="cuda")))
    assert not any("CUDA kernels" in line for line in on_cuda)
    assert "The page guard did not run: host device only." in on_cuda


def test_what_was_left_out_is_said():
    platform = {**PLATFORM, "detectors": {"page guard": "this is no Linux"}}
    newer = attrs.evolve(PASSED, counted=False, cells=1)
    here = attrs.evolve(PASSED, here="it is local")
    run = results_of(newer, here, pattern="pass", cells="decode", platform=platform)
    text = "\n".join(not_covered(run))
    assert "The page guard did not run: this is no Linux." in text
    assert "1 of 3 checks were left out (-k pass)." in text
    assert "only the cells called 'decode'" in text
    assert "1 check is newer than the plugin's contract 0.1, and not counted." in text
    assert "Checks ran in this process, for it is local" in text


def test_the_document_is_json_with_a_schema_and_keeps_the_failure():
    document = json.loads(json.dumps(report.document(results_of(PASSED, FAILED))))
    assert document["schema"] == 1
    assert document["plugin"]["distribution"] == "x-mine"
    assert document["verdict"] == "not conformant"
    assert sum(document["counts"].values()) == document["total"] == 2
    failed = document["checks"][1]
    assert failed["failure"]["seen_by"] == ["guard", "poison"]
    assert failed["next"].startswith("warcore check backend:mine")


def test_every_field_of_the_document_is_in_the_reference_and_the_other_way_round():
    page = Path(__file__).resolve().parents[3] / "docs/reference/json.md"
    section = page.read_text().split("\n## warcore check\n")[1].split("\n## ")[0]
    known = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    told = result_of(Outcome.PASSED, ends={"none": {"decode": "IN_REPLAY"}})
    failed = result_of(Outcome.FAILED, by_line([FAILURE, attrs.evolve(FAILURE, where="y.py:1")]))
    document = json.loads(json.dumps(report.document(results_of(told, failed))))
    assert set(_fields(document)) == known


def _fields(value, path=""):
    if isinstance(value, list):
        for one in value:
            yield from _fields(one, f"{path}[]")
    elif isinstance(value, dict):
        for key, one in value.items():
            where = f"{path}.{'*' if path == 'counts' else key}".strip(".")
            yield where
            yield from _fields(one, where)


# ---- what is kept for the next listing -----------------------------------------------------------


@pytest.fixture
def record(tmp_path, monkeypatch):
    """An installed plugin, and a cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "x_mine"
    package.mkdir()
    for name in ("__init__", "inner"):
        (package / f"{name}.py").write_text("")
    return attrs.evolve(RECORD, file=str(package / "__init__.py"))


def only_file(tmp_path):
    (file,) = (tmp_path / "cache/warcore/checks").iterdir()
    return file


def test_a_whole_run_is_kept_for_each_device(record):
    absent = result_of(Outcome.NOT_APPLICABLE)
    lastreport.keep(results_of(PASSED, PASSED, absent, record=record))
    lastreport.keep(results_of(PASSED, FAILED, record=record, device="cuda"))
    assert list(map(str, kept(record))) == ["checked 2/2 on host", "checked 1/2 on cuda"]
    assert [report.verdict for report in kept(record)] == ["conformant", "not conformant"]


@pytest.mark.parametrize("part", [{"pattern": "votes"}, {"cells": "decode"}])
def test_a_part_of_a_run_is_not_kept(record, part):
    lastreport.keep(results_of(PASSED, record=record, **part))
    assert kept(record) == ()


def test_a_run_on_a_model_that_told_nothing_is_not_kept(record):
    lastreport.keep(results_of(PASSED, record=record, reference="mine:a"))
    lastreport.keep(results_of(result_of(Outcome.UNPROVEN), record=record, reference="mine:b"))
    assert list(map(str, kept(record))) == ["checked 1/1 on host"]


def test_a_report_of_another_version_or_distribution_is_none(record):
    lastreport.keep(results_of(PASSED, record=record))
    assert kept(attrs.evolve(record, version="1.1")) == ()
    assert kept(attrs.evolve(record, distribution="other")) == ()
    assert kept(attrs.evolve(record, distribution=None)) == ()


def test_a_report_of_another_warcore_is_none(record, monkeypatch):
    lastreport.keep(results_of(PASSED, record=record))
    monkeypatch.setattr(lastreport, "__version__", f"{warcore.__version__}.post1")
    assert kept(record) == ()


def test_a_report_with_another_torch_is_none(record, monkeypatch):
    lastreport.keep(results_of(PASSED, record=record))
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.1")
    assert kept(record) == ()


@pytest.mark.parametrize("name", ["inner.py", "kernel.cu", "below/kernel.cu"])
@pytest.mark.parametrize("happens", ["changed", "removed"])
def test_sources_that_changed_since_make_a_report_stale(record, name, happens):
    file = Path(record.file).parent / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    lastreport.keep(results_of(PASSED, record=record))
    if happens == "changed":
        os.utime(file, ns=(0, 2**62))
    else:
        file.unlink()
    assert kept(record) == ()


def test_the_package_of_a_module_deep_within_counts_as_a_whole(record):
    inner = Path(record.file).with_name("inner")
    inner.mkdir()
    (inner / "__init__.py").write_text("")
    deep = attrs.evolve(record, file=str(inner / "__init__.py"))
    lastreport.keep(results_of(PASSED, record=deep))
    os.utime(record.file, ns=(0, 2**62))
    assert kept(deep) == ()


def test_what_python_compiled_of_the_sources_is_none_of_them(record):
    lastreport.keep(results_of(PASSED, record=record))
    cache = Path(record.file).with_name("__pycache__")
    cache.mkdir()
    (cache / "inner.pyc").write_text("")
    assert len(kept(record)) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"schema": 1}'])
def test_a_file_that_cannot_be_read_is_ignored(record, tmp_path, content):
    lastreport.keep(results_of(PASSED, record=record))
    only_file(tmp_path).write_bytes(content)
    assert kept(record) == ()


def test_a_field_of_another_type_is_ignored(record, tmp_path):
    lastreport.keep(results_of(PASSED, record=record))
    file = only_file(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "passed": "all"}))
    assert kept(record) == ()


def test_a_cache_that_cannot_be_written_is_no_error(record, tmp_path):
    (tmp_path / "cache").write_text("a file")
    lastreport.keep(results_of(PASSED, record=record))
    assert kept(record) == ()
