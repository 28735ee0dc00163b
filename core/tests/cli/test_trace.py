"""`warcore trace` writes a timeline that viewers open, sums it up, and leaves no half files."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

from warcore import __version__
from warcore.cli import main

SHORT = ("--max-new-tokens", "6", "--ignore-eos")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to be in."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def trace(command, folder):
    """`warcore trace ARGS` in that folder, with the toy model, in this process."""
    return command("trace")


def document(path="trace.json"):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def files():
    return sorted(path.name for path in Path().iterdir())


def events(found, *kinds):
    return [event for event in found["traceEvents"] if event["ph"] in kinds]


# ---- the format ----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["inline", "threads", "seeded:5"])
def test_every_rule_of_the_format_holds(trace, host):
    assert trace("abc", "de", "--host", host, *SHORT).code == 0
    found = document()
    assert {event["ph"] for event in found["traceEvents"]} == {"M", "X", "i", "s", "f"}
    for event in events(found, "X", "i", "s", "f"):
        assert {"name", "cat", "ph", "pid", "tid", "ts"} <= set(event)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
    stamps = [event["ts"] for event in events(found, "X", "i", "s", "f")]
    assert stamps == sorted(stamps)
    names_are_given_once(found)
    slices_nest(found)
    flows_are_pairs_within_slices(found)


def names_are_given_once(found):
    named = [(e["name"], e["tid"]) for e in events(found, "M")]
    assert len(named) == len(set(named))
    threads = {tid for name, tid in named if name == "thread_name"}
    assert threads == {tid for name, tid in named if name == "thread_sort_index"}
    assert {e["tid"] for e in events(found, "X", "i", "s", "f")} <= threads


def slices_nest(found):
    """A slice begins after the one before has ended, or ends before that one does."""
    stacks = defaultdict(list)
    for e in events(found, "X"):
        begin, end = whole_ns(e["ts"]), whole_ns(e["ts"]) + whole_ns(e["dur"])
        stack = stacks[e["tid"]]
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1], e
        stack.append(end)


def whole_ns(us):
    assert us * 1000 == pytest.approx(round(us * 1000), abs=1e-3)
    return round(us * 1000)


def flows_are_pairs_within_slices(found):
    starts = {e["id"]: e for e in events(found, "s")}
    ends = {e["id"]: e for e in events(found, "f")}
    assert len(starts) == len(events(found, "s"))
    assert starts.keys() == ends.keys()
    assert starts
    assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)
    assert {e["bp"] for e in ends.values()} == {"e"}
    for e in (*starts.values(), *ends.values()):
        alike = [s for s in events(found, "X") if s["tid"] == e["tid"]]
        assert any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in alike), e


def test_streams_are_threads_below_the_host(trace):
    trace("abc", *SHORT)
    named = [e["args"]["name"] for e in events(document(), "M") if e["name"] == "thread_name"]
    assert named == ["host", "schedule stream", "forward stream"]


def test_a_forward_says_mode_fence_and_requests(trace):
    trace("abc", "de", *SHORT)
    first, second, *_ = [e for e in events(document(), "X") if e["cat"] == "forward"]
    assert first["name"].startswith("extend 1 (fine")
    assert second["name"].startswith("decode 2 (fine")
    assert first["args"]["requests"] == [0, 1]
    assert (first["args"]["tokens"], second["args"]["tokens"]) == (5, 2)
    assert (first["args"]["fence"], first["args"]["reason"]) == ("fine", "fine")


def test_a_coarse_step_says_why_and_what_would_make_it_fine(trace):
    trace("abc", "--fence", "coarse", *SHORT)
    forward = next(e for e in events(document(), "X") if e["cat"] == "forward")
    assert forward["args"]["reason"] == "forced_coarse"
    assert forward["args"]["next"] == "--fence declared"
    assert forward["cname"] == "bad"


def test_the_file_says_what_it_was_made_with(trace):
    trace("abc", "--host", "seeded:2", *SHORT)
    found = document()
    assert found["displayTimeUnit"] == "ms"
    facts = found["otherData"]
    assert (facts["schema"], facts["warcore"], facts["clock"]) == (1, __version__, "wall")
    assert (facts["engine"]["backend"], facts["engine"]["host"]) == ("toy-rows", "seeded")
    assert (facts["steps"], facts["dropped_steps"]) == (6, 0)


# ---- what is said --------------------------------------------------------------------------------


def test_the_summary_is_short_and_ends_with_what_to_do_next(trace, folder):
    code, out, err = trace("abc", "--host", "threads", *SHORT)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("6 steps: 1 extend, 5 decode; ")
    assert lines[2] == "fence fine in 6 of 6 steps"
    assert lines[-1] == f"Next: open {folder / 'trace.json'} in ui.perfetto.dev"
    assert len(lines) == 4


def test_inline_streams_are_said_to_be_inline(trace):
    assert "--host threads shows them side by side" in trace("abc", "--host", "inline", *SHORT).out


def test_coarse_steps_are_counted_with_the_remedy(trace):
    out = trace("abc", "--fence", "coarse", *SHORT).out
    assert "fence fine in 0 of 6 steps\n" in out
    assert "  coarse in 5 decode steps: forced_coarse; to make it fine: --fence declared\n" in out


def test_one_step_is_no_steps(trace):
    out = trace("abc", "--fence", "coarse", "--max-new-tokens", "1").out
    assert out.startswith("1 step: 1 extend; ")
    assert "fence fine in 0 of 1 step\n" in out
    assert "  coarse in 1 extend step: forced_coarse" in out


def test_the_normal_loop_has_nothing_to_fence(trace):
    assert "no step was fenced" in trace("abc", "--loop", "normal", *SHORT).out


def test_only_the_last_steps_are_kept_and_that_is_said(trace):
    out = trace("abc", "--max-steps", "2", *SHORT).out
    assert out.startswith("the last 2 of 6 steps (--max-steps N keeps more)")
    assert document()["otherData"]["dropped_steps"] == 4


def test_a_program_gets_the_summary_as_a_document(trace, folder):
    result = trace("abc", "--html", "page.html", "--json", *SHORT)
    facts = json.loads(result.out)
    assert (facts["schema"], facts["steps"], facts["fine_steps"]) == (1, 6, 6)
    assert facts["engine"]["model"] == "toy"
    named = {"trace": str(folder / "trace.json"), "page": str(folder / "page.html")}
    assert facts["files"] == named


def test_stats_are_those_of_generate(trace):
    assert "MODE    FENCE" in trace("abc", "--stats", *SHORT).out


# ---- files ---------------------------------------------------------------------------------------


def test_an_existing_file_is_replaced_and_a_link_stays_a_link(trace, folder):
    real = folder / "real.json"
    real.write_text("old")
    (folder / "trace.json").symlink_to(real)
    trace("abc", *SHORT)
    assert (folder / "trace.json").is_symlink()
    assert document(real)["traceEvents"]
    assert files() == ["real.json", "trace.json"]


REFUSED = {
    "a folder that is not there": (("--out", "no/t.json"), "--out no/t.json: there is no folder"),
    "a folder in its place": (("--out", "."), "--out . is a folder"),
    "a device": (("--out", "/dev/null"), "--out /dev/null is no regular file"),
    "the standard output": (("--out", "-"), "--out '-' names the standard output"),
    "no name": (("--out", ""), "--out '' names no file"),
    "no name for the page": (("--html", ""), "--html '' names no file"),
    "one file for both": (("--out", "t", "--html", "./t"), "--out and --html name one file"),
    "a name too long": (("--html", "x" * 300), "cannot be written: File name too long"),
    "no step": (("--max-steps", "0"), "--max-steps"),
}


@pytest.mark.parametrize(("args", "what"), REFUSED.values(), ids=REFUSED)
def test_a_place_that_cannot_be_written_is_refused_before_the_model_loads(
    trace, toys, monkeypatch, args, what
):
    monkeypatch.setattr(toys.Toy, "load", None)
    code, out, err = trace("abc", *args)
    assert (code, out) == (2, "")
    assert what in err
    assert "\nNext: " in err
    assert files() == []
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "args",
    [
        ("hello", "--context-length", "1"),
        ("a", "--backend", "nobody"),
        ("a", "--max-new-tokens", "0"),
        (),
    ],
    ids=["refused", "no backend", "no token", "no prompt"],
)
def test_a_run_that_could_not_start_leaves_no_file(trace, args):
    assert trace(*args).code == 2
    assert files() == []


def test_without_a_prompt_the_hint_names_this_command(trace):
    assert "Next: warcore trace --model REF 'PROMPT'" in trace().err


def test_a_full_disk_leaves_what_was_there_and_no_part(trace, monkeypatch, folder):
    (folder / "trace.json").write_text("old")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("json.dumps", full)
    code, _, err = trace("abc", *SHORT)
    assert code == 2
    assert f"error: cannot write {folder / 'trace.json'}: No space left on device\n" in err
    assert files() == ["trace.json"]
    assert (folder / "trace.json").read_text() == "old"


def test_ctrl_c_writes_what_there_is_and_says_so(trace, press):
    press(6)
    code, out, err = trace("abc", "--loop", "normal")
    assert code == 130
    assert err == "interrupted: 0 of 1 finished, 1 cut short\n"
    assert out.startswith("4 steps: ")
    assert document()["otherData"]["steps"] == 4


def test_a_failed_step_is_drawn_and_told(trace, toys, monkeypatch):
    def broken(*_):
        raise ValueError("no such layer")

    monkeypatch.setattr(toys.RowMajor, "forward", broken)
    code, _, err = trace("abc", *SHORT)
    assert code == 1
    assert "no such layer" in err
    forward = next(e for e in events(document(), "X") if e["cat"] == "forward")
    assert (forward["args"]["fence"], forward["cname"]) == ("failed", "terrible")


def test_the_help_lists_the_options_of_generate_too(capsys):
    assert main(["trace", "--help"]) == 0
    text = capsys.readouterr().out
    for name in ("--out", "--html", "--max-steps", "--backend", "--top-p", "--prompts-file"):
        assert f"  {name}" in text


# ---- the page ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would find: elements with their attributes, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts.append((self.elements[-1][1].get("type"), data))

    @property
    def data(self):
        return json.loads(next(text for kind, text in self.scripts if kind == "application/json"))


@pytest.fixture
def drawn(trace, folder):
    """The page of a run, as text."""

    def draw(*args):
        result = trace("abc", *args, "--html", "page.html", *SHORT)
        assert result.out.endswith(f", or {folder / 'page.html'} in a browser\n")
        return (folder / "page.html").read_text(encoding="utf-8")

    return draw


def test_the_page_needs_nothing_but_itself(drawn):
    text = drawn()
    page = Page(text)
    assert "://" not in text
    assert not [tag for tag, attrs in page.elements if {"src", "href", "srcset"} & set(attrs)]
    assert not re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML", text)
    policy = next(attrs for tag, attrs in page.elements if "http-equiv" in attrs)
    assert policy["content"].startswith("default-src 'none'; ")


def test_the_page_holds_the_steps_and_slices_of_the_trace(drawn):
    found = Page(drawn()).data
    assert len(found["slices"]) == len(events(document(), "X"))
    assert len(found["arrows"]) == len(events(document(), "s"))
    assert len(found["marks"]) == len(events(document(), "i"))
    assert [step[0] for step in found["steps"]] == [1, 2, 3, 4, 5, 6]
    assert found["summary"]["fine_steps"] == 6
    assert found["engine"]["backend"] == "toy-rows"


def test_what_a_plugin_says_is_no_markup(drawn, toys, monkeypatch):
    evil = "</script><script>alert(1)</script><!--<img src=x>&amp;\u2028"

    def broken(*_):
        raise ValueError(evil)

    quiet = Page(drawn())
    monkeypatch.setattr(toys.RowMajor, "forward", broken)
    page = Page(drawn())
    assert page.elements == quiet.elements
    assert repr(ValueError(evil)) in page.data["words"]


def test_a_page_of_before_is_replaced(drawn, folder):
    (folder / "page.html").write_text("old")
    assert drawn().startswith("<!doctype html>")
    assert files() == ["page.html", "trace.json"]
