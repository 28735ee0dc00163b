"""Each hazard has its four things: a wrong plugin, a check, a paragraph and a picture."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import attrs
import hazards
import pytest
from panels import Panel
from reference_checks import anchor
from timeline import run
from wrong_plugins.catalogue import entries

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/hazards.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
WRONG = {entry.path.resolve(): entry for entry in entries()}
NAMES = [hazard.name for hazard in hazards.HAZARDS]


@cache
def panels_of(name):
    return list(next(hazard for hazard in hazards.HAZARDS if hazard.name == name).panels())


def section_of(name):
    (section,) = [each for each in SECTIONS if f"hazard-{name}-light.svg" in each]
    return section


def links(text):
    return re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", text)


def test_every_section_is_a_hazard_with_a_picture_and_every_hazard_has_a_section():
    assert len(SECTIONS) == len(NAMES) >= 12
    for name in NAMES:
        section_of(name)


@pytest.mark.parametrize("hazard", hazards.HAZARDS, ids=lambda hazard: hazard.name)
def test_a_hazard_has_a_picture_for_light_and_for_dark_pages_and_says_what_it_shows(hazard):
    section = section_of(hazard.name)
    for theme in ("light", "dark"):
        assert f"pictures/hazard-{hazard.name}-{theme}.svg" in section
        picture = ROOT / f"docs/pictures/hazard-{hazard.name}-{theme}.svg"
        assert picture.stat().st_size < 30_000
        assert f"<title>{hazard.alt}</title>" in picture.read_text(encoding="utf-8")
    assert f'alt="{hazard.alt}"' in section


@pytest.mark.parametrize("name", NAMES)
def test_the_wrong_plugin_of_a_hazard_turns_its_check_red(name):
    plugins = [target for _, target in links(section_of(name)) if "wrong_plugins" in target]
    checks = [text for text, target in links(section_of(name)) if "checks.md" in target]
    assert [WRONG[(ROOT / "docs" / each).resolve()].breaks for each in plugins] == checks
    assert f"reference/checks.md#{anchor(checks[0])}" in section_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_hazard_has_a_paragraph_where_it_happened_and_how_to_mend_it(name):
    _, _, what, where, mend, *_ = section_of(name).split("\n\n")
    assert len(what.split()) > 40
    assert re.match(r"\*Where it happened\.\* .*#\d+", where, re.DOTALL)
    assert mend.startswith("*To mend it.* ")


def test_the_table_at_the_top_lists_the_sections_in_their_order():
    rows = re.findall(r"^\| \[([^\]]+)\]\(#", PAGE, flags=re.MULTILINE)
    assert rows == [section.partition("\n")[0] for section in SECTIONS]


# ---- what the pictures show ----------------------------------------------------------------------


SLOW = {"host-read", "cautious"}
"""They wait too long: nothing collides."""
OLD = {"rebound", "kept"}
"""They go by what an earlier step left: nothing collides."""


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_shows_what_goes_wrong(name):
    panels = panels_of(name)
    wrong = [panel for panel in panels if panel.colour == "alarm"]
    if name in SLOW:
        slow, right = panels
        assert slow.period > right.period
    elif name in OLD:
        assert any(bar.what == "stale" for bar in wrong[0].bars)
    else:
        assert list(wrong[0].collisions)
        assert not [clash for each in panels if each not in wrong for clash in each.collisions]


def test_a_right_backend_collides_with_nothing():
    timeline = run()
    for clash in (("read", "write", 1), ("sends", "fills", 1), ("touch", "write", 1)):
        assert not list(Panel("right", timeline, "good", clash=clash).collisions)


def test_a_late_read_is_drawn_behind_the_write_that_it_should_have_come_before():
    (panel,) = panels_of("late-read")
    reads = [bar for bar in panel.bars if bar.what == "read" and bar.step == 5]
    (write,) = [bar for bar in panel.bars if bar.what == "write" and bar.step == 6]
    early, late = reads
    ends = [record for record, _ in panel.fences if early.end <= record <= late.start]
    assert early.end == ends[0] <= write.start < write.end <= late.start


def test_what_a_captured_step_is_busy_with_shows_in_each_replay():
    (panel,) = panels_of("late-gather")
    steps = [bar.step for bar in panel.bars if bar.what == "read" and bar.lane == "forward"]
    assert steps == sorted(set(steps))
    assert len(steps) > 5


def test_a_run_is_the_same_each_time():
    first, second = (attrs.asdict(run()) for _ in range(2))
    assert first == second
