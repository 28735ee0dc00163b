"""`warcore new`: what it writes, what it refuses, and that it never takes anything away."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from warcore import __version__
from warcore.cli import main, templates
from warcore.cli.templates import contract_range
from warcore.registry import ALLOWLIST

TEMPLATES = Path(templates.__file__).parents[1] / "templates"
WORDS = re.compile(r"PLUGIN_[A-Z]+|WARCORE_RANGE")
FOLDER = "warcore-backend-fast-rows"
KINDS = ["backend", "spec_algo"]


@pytest.fixture
def new(site, monkeypatch, capsys, tmp_path):
    """`new(ARGS)`: `warcore new ARGS` in a folder of its own; code, stdout, stderr."""
    monkeypatch.delenv(ALLOWLIST, raising=False)
    monkeypatch.syspath_prepend(site.path)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(*args):
        code = main(["new", *map(str, args)])
        return (code, *capsys.readouterr())

    return run


def tree(folder="."):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


# --- what it writes


def test_a_backend_has_all_that_a_package_needs(new):
    assert new("backend", "fast-rows")[0] == 0
    assert tree(FOLDER) == [
        ".github/workflows/check.yml",
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "src/warcore_backend_fast_rows/__init__.py",
        "src/warcore_backend_fast_rows/backend.py",
        "src/warcore_backend_fast_rows/py.typed",
        "tests/test_backend.py",
        "tests/test_contract.py",
    ]


def test_an_algorithm_has_all_that_a_package_needs(new):
    assert new("spec-algo", "twice")[0] == 0
    assert tree("warcore-spec-twice") == [
        ".github/workflows/check.yml",
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "src/warcore_spec_twice/__init__.py",
        "src/warcore_spec_twice/algorithm.py",
        "src/warcore_spec_twice/py.typed",
        "tests/test_algorithm.py",
        "tests/test_contract.py",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_of_the_template_is_left(new, kind):
    new(kind, "fast-rows", "--dir", "p")
    for path in tree("p"):
        assert not WORDS.search(path)
        assert not WORDS.search(Path("p", path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x", "fast-rows", "sliding-window-rows"])
@pytest.mark.parametrize("width", ["88", "100"])
def test_its_modules_are_as_ruff_writes_them(new, kind, name, width):
    new(kind, name, "--dir", "p")
    rules = "E,F,W,I,UP,B,RUF,SIM,TC,N,A,C4,PT,PL,RET,ARG005"
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", rules], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *command, "--no-cache", "--isolated", "--line-length", width],
            cwd="p",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "file"), [("backend", "backend"), ("spec_algo", "algorithm")])
def test_its_class_says_what_it_is_and_each_method_too(new, kind, file):
    new(kind, "fast-rows", "--dir", "p")
    (path,) = Path("p").glob(f"src/*/{file}.py")
    text = path.read_text(encoding="utf-8")
    (cls,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert cls.name == "FastRows"
    assert all(
        ast.get_docstring(node) for node in ast.walk(cls) if isinstance(node, ast.FunctionDef)
    )


@pytest.mark.parametrize(
    ("version", "range_"),
    [("0.1.0", ">=0.1,<0.2"), ("0.10.3", ">=0.10,<0.11"), ("2.0.0rc1", ">=2.0,<2.1")],
)
def test_it_requires_the_minor_that_wrote_it(version, range_):
    assert contract_range(version) == range_


def test_the_package_requires_the_running_warcore(new):
    new("backend", "fast-rows")
    text = Path(FOLDER, "pyproject.toml").read_text(encoding="utf-8")
    assert f'"warcore{contract_range(__version__)}"' in text


def test_it_ends_with_what_to_type_next(new):
    _, out, _ = new("backend", "fast-rows")
    assert out.splitlines()[-5:] == [
        "Next:",
        f"    cd {FOLDER}",
        "    pip install hatchling -e '.[test]'",
        "    warcore check fast_rows",
        "    pytest",
    ]


def test_in_an_empty_folder_there_is_nowhere_to_go(new):
    code, out, _ = new("backend", "fast-rows", "--dir", ".")
    assert code == 0
    assert "    cd " not in out
    assert "pyproject.toml" in tree()


def test_a_folder_with_a_space_can_be_typed(new):
    assert "    cd 'my rows/deep'" in new("backend", "rows", "--dir", "my rows/deep")[1]


def test_a_program_gets_the_same_as_one_document(new):
    _, out, _ = new("backend", "fast-rows", "--json")
    document = json.loads(out)
    assert document["files"] == tree(FOLDER)
    assert document["name"] == "fast_rows"
    assert document["entry_point"] == "warcore_backend_fast_rows:FastRows"
    assert document["next"][0] == f"cd {FOLDER}"


def test_it_imports_no_torch(tmp_path):
    code = (
        "import sys; from warcore.cli import main; main(['new', 'backend', 'fast-rows']);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


# --- what it refuses


@pytest.mark.parametrize(
    ("args", "what", "remedy"),
    [
        (
            ("backnd", "x"),
            "no kind of plugin 'backnd'; did you mean backend?",
            "new backend|spec_algo NAME",
        ),
        (("model", "x"), "there is no template of a model", "warcore new backend|spec_algo NAME"),
        (("backend", "FastRows"), "'FastRows' cannot be a plugin's name", "backend fast-rows"),
        (("backend", "fast.rows"), "'fast.rows' cannot be a plugin's name", "backend fast-rows"),
        (("backend", "../up"), "'../up' cannot be a plugin's name", "backend up"),
        (("backend", "3d"), "begins with a small letter", "backend my-3d"),
        (("backend", ""), "'' cannot be a plugin's name", "backend NAME"),
        (("backend", "a--b"), "'a--b' cannot be a plugin's name", "backend a-b"),
        (("backend", "none"), "would be None, which is a word of Python", "my-none"),
        (("backend", "attention-backend"), "AttentionBackend, which is a word of warcore", "my-"),
        (("backend", "warcore-backend-x"), "gets its first words by itself", "backend x"),
        (("backend",), "missing argument 'NAME'", "warcore new --help"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_type(new, args, what, remedy):
    code, out, err = new(*args)
    assert (code, out) == (2, "")
    assert what in err
    assert remedy in err.splitlines()[1]
    assert tree() == []


def test_the_name_of_an_installed_plugin_is_taken_however_it_is_spelt(new, site):
    site.add("others", {"model": {"fast-rows": "others:Rows"}}, others="")
    code, _, err = new("backend", "fast_rows")
    assert code == 2
    assert "'fast_rows' is taken by model fast-rows (others 1.0)" in err


def test_nothing_is_written_where_something_is(new):
    Path(FOLDER).mkdir()
    Path(FOLDER, "README.md").write_text("mine")
    code, _, err = new("backend", "fast-rows")
    assert code == 2
    assert f"{FOLDER} is not empty, and nothing is overwritten" in err
    assert "Next: --dir D" in err
    assert tree(FOLDER) == ["README.md"]


def test_a_file_in_the_place_of_the_folder_stays(new):
    Path(FOLDER).write_text("mine")
    code, _, err = new("backend", "fast-rows")
    assert code == 2
    assert "is no folder" in err
    assert Path(FOLDER).read_text() == "mine"


def test_if_a_file_cannot_be_written_no_file_is_left(new, monkeypatch):
    filled = templates.filled
    blocked = {"README.md/below": ""}
    monkeypatch.setattr("warcore.cli.new.filled", lambda plugin: {**filled(plugin), **blocked})
    code, _, err = new("backend", "fast-rows", "--dir", "a/b")
    assert code == 2
    assert "cannot write into a/b" in err
    assert not Path("a").exists()


# --- the templates themselves


@pytest.mark.parametrize("folder", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_every_file_of_a_template_is_marked_as_one(folder):
    assert all(path.endswith(templates.SUFFIX) for path in tree(folder))
