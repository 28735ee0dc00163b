"""Every command and block of code in the pages is run, and every link leads somewhere.

What is checked instead of run, because it would set up the machine or take minutes: `make TARGET`
(the target exists), `source` of the virtual environment, benchmarks and pytest calls on this tree
(their paths exist). `pip` installs the page's package into a folder of the test's own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "core/*.md", "plugins/*/*/*.md", "changelog.d/*.md")
    for path in ROOT.glob(pattern)
)
# The signatures of the reference are no programs; tests/test_reference.py holds those pages.
READ = [page for page in PAGES if page.parts[:2] != ("docs", "reference")]
RUN, SHOWN = {"bash", "console", "python", "toml"}, {"text", "json"}


# ---- pages as blocks -----------------------------------------------------------------------------


@attrs.frozen
class Block:
    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file(self) -> str | None:
        """Where a reader is told to put it."""
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), None)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: tuple[int, list[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if opened is None and line.startswith("```"):
            opened, lines = (number, line[3:].split()), []
        elif opened is not None and line == "```":
            language, *words = opened[1] or [""]
            text = "".join(f"{each}\n" for each in lines)
            found.append(Block(page, opened[0], language, tuple(words), text))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{page}:{opened[0]} is never closed"
    return found


# ---- running them --------------------------------------------------------------------------------


class Reader:
    """Somebody who follows a page from its first block to its last, in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder / "work"
        self.site = folder / "site"
        self.names = {"__name__": "page"}
        self.folder.mkdir()
        self.site.mkdir()

    def follow(self, page: Path, *, model: bool) -> None:
        every = blocks(page)
        for block, after in zip(every, [*every[1:], None], strict=True):
            if "model" in block.words and not model:
                continue
            if block.file:
                path = self.folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                said = self.python(block)
                if after is not None and "output" in after.words:
                    assert alike(said, after.text), f"{after} is not what {block} prints:\n{said}"
            elif block.language == "bash":
                for command in filter(None, map(str.strip, block.text.splitlines())):
                    self.command(command, block)
            elif block.language == "console":
                for command, expected in conversation(block.text):
                    said = self.command(command, block)
                    assert alike(said, expected), f"{block}: {command}\n{said}"

    def python(self, block: Block) -> str:
        code = compile("\n" * block.line + block.text, str(ROOT / block.page), "exec")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, self.names)
        return said.getvalue()

    def command(self, command: str, block: Block) -> str:
        words = shlex.split(command, comments=True)
        if not words or checked(words, block):
            return ""
        if words[0] == "pip":
            return self.pip(words[1:])
        return self.shell(command, ROOT if "scripts/" in command else self.folder)

    def pip(self, words: list[str]) -> str:
        if words[0] == "uninstall":
            shutil.rmtree(self.site)
            self.site.mkdir()
            return ""
        assert words == ["install", "-e", "."]
        quiet = "-q --disable-pip-version-check --no-index --no-deps --no-build-isolation"
        return self.shell(f"python -m pip install {quiet} --target {self.site} .", self.folder)

    def shell(self, command: str, place: Path) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=place,
            env={
                **os.environ,
                "PATH": path,
                "PYTHONPATH": str(self.site),
                "NO_COLOR": "1",
                "XDG_CACHE_HOME": str(self.folder.parent / "cache"),
            },
            text=True,
            capture_output=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def checked(words: list[str], block: Block) -> bool:
    """Whether it is one of the commands that are checked and not run; asserts what they name."""
    program, *rest = words
    if program == "make":
        targets = re.findall(
            r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert rest[0] in targets, f"{block}: no target {rest[0]}"
        return True
    if program == "source":
        return rest == [".venv/bin/activate"]
    if program == ".venv/bin/python" or (program == "python" and "benchmarks/" in rest[0]):
        named = [word for word in rest if "/" in word]
        assert all((ROOT / word.partition("::")[0]).exists() for word in named), f"{block}: {words}"
        return True
    return False


def conversation(text: str) -> list[tuple[str, str]]:
    """[(command, what it answers)] of a console block."""
    turns = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(turn.partition("\n")[0], turn.partition("\n")[2]) for turn in turns]


def alike(said: str, expected: str) -> bool:
    """Whether the answer is the expected one, in which `...` stands for anything."""
    pattern = ".*?".join(map(re.escape, expected.strip("\n").split("...")))
    return re.fullmatch(pattern, said.strip("\n"), re.DOTALL) is not None


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


def with_blocks(*, model: bool) -> list[Path]:
    """The pages that have something to run, with or without the demo model."""
    return [
        page
        for page in READ
        if any(b.language in RUN and ("model" in b.words or not model) for b in blocks(page))
    ]


@pytest.mark.parametrize("page", with_blocks(model=False), ids=str)
def test_the_blocks_of_a_page_do_what_it_says(page, reader):
    reader.follow(page, model=False)


@pytest.mark.model
@pytest.mark.parametrize("page", with_blocks(model=True), ids=str)
def test_the_blocks_of_a_page_that_need_the_demo_model_do_what_it_says(page, reader):
    reader.follow(page, model=True)


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
    from tree_rules.floors import FLOORS

    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.*?) \|", text, flags=re.MULTILINE)
    for number, names in rows:
        rooms = set(re.findall(r"`(\w+)(?:\.py|/)`", names))
        there = {p.name.removesuffix(".py") for p in (ROOT / "core/src/warcore").iterdir()}
        assert rooms == set(FLOORS[int(number)].split()) & there
    assert len(rows) == len(FLOORS)
