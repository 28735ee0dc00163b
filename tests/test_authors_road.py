"""The road of an author, from `warcore new` to a wheel that is checked, in a clean environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from following import ROOT, Settler, blocks
from tree_rules.sources import distributions

PAGE = Path("docs/authors/tutorial.md")
FINE = {"passed", "not applicable"}
ANSWER = ("abc", "--model", "random:tiny", "--raw", "--max-new-tokens", "5", "--ignore-eos")
RUN = ("warcore", "generate", *ANSWER)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Those of this repository."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [path.parent for path, _ in distributions(ROOT)]
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    command = [sys.executable, "-m", "pip", "wheel", *offline, "-w", folder, *sources]
    subprocess.run(command, check=True)
    return sorted(folder.glob("*.whl"))


def test_a_new_package_goes_the_whole_road(wheels, tmp_path):
    author = Settler(tmp_path, wheels)
    check = ("warcore", "check")
    author.run("warcore", "new", "backend", "row-major")
    author.folder /= "warcore-backend-row-major"
    author.run("pip", "install", "-e", ".[test]")
    assert outcomes(author.run(*check, "row_major")) <= FINE

    (lie,) = (block.text for block in blocks(PAGE) if block.file == "lie.diff")
    (author.folder / "lie.diff").write_text(lie, encoding="utf-8")
    honest = author.run(*RUN, "--backend", "row_major")
    author.run("git", "apply", "lie.diff")
    assert author.run(*RUN, "--backend", "row_major") == honest, "no token tells of the lie"
    refused = author.attempt(*check, "row_major", "-k", "no_late_access")
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "backend.py:69: slots = self.ctx.shared.req_to_token[rows," in refused.stdout
    (again,) = re.findall(r"^    just this  warcore (.*)$", refused.stdout, re.MULTILINE)
    just_this = ("warcore", *again.split())
    author.run("git", "apply", "-R", "lie.diff")
    assert outcomes(author.run(*just_this)) <= FINE

    author.run("pip", "wheel", "--wheel-dir", "dist", ".")
    author.run("pip", "uninstall", "--yes", "warcore-backend-row-major")
    author.run("pip", "install", *(author.folder / "dist").glob("*.whl"))
    assert installed_in(author)
    listing = json.loads(author.run("warcore", "list-plugins", "--json", "--strict"))
    assert "row_major" in {row["name"] for row in listing["plugins"]}
    assert author.run(*RUN, "--backend", "row_major") == honest
    assert outcomes(author.run(*just_this)) <= FINE


@pytest.mark.slow
def test_the_tutorial_is_what_happens(wheels, tmp_path):
    author = Settler(tmp_path, wheels)
    author.follow(PAGE, model=False)
    assert installed_in(author), "the page ends with the wheel"


def outcomes(said):
    """Those of the checks in a report."""
    found = re.findall(r"^  (\S[\w ]*?)  +\w+\.\w+", said, re.MULTILINE)
    assert found, said
    return set(found)


def installed_in(author):
    """Whether the backend that is imported lies in the author's environment, not in the sources."""
    where = "import warcore_backend_row_major as it; print(it.__file__)"
    return Path(author.run("python", "-c", where).strip()).is_relative_to(author.home)
