"""`warcore list-plugins` as a person and as a program meet it: in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from warcore.registry import KINDS

KEYS = ["kind", "name", "distribution", "version", "entry_point"]
KEYS += ["file", "requires", "state", "cause", "next"]


def listing(site, *args, **env):
    result = site.warcore("list-plugins", "--json", *args, **env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def saying(word, body):
    """The source of a backend with a class method `word`."""
    return (
        "import warcore\n"
        "class Backend(warcore.AttentionBackend):\n"
        "    def forward(self): ...\n"
        "    @classmethod\n"
        f"    def {word}(cls): {body}\n"
    )


def loaded(site, source, **env):
    """What --load says of a plugin with this source."""
    site.add("x-it", {"backend": {"it": "x_it:Backend"}}, x_it=source)
    (plugin,) = listing(site, "--load", **env)["plugins"]
    return plugin


class TestTable:
    def test_no_plugins_says_so_with_the_next_command(self, site):
        result = site.warcore("list-plugins")
        assert result.returncode == 0
        assert "No plugin is installed.\nNext: pip install PACKAGE" in result.stdout
        assert result.stderr == ""

    def test_no_plugins_of_a_kind_names_its_group(self, site):
        site.backend("good")
        result = site.warcore("list-plugins", "--kind", "stager")
        assert "No stager is installed." in result.stdout
        assert "warcore.stagers" in result.stdout

    def test_a_row_has_kind_name_distribution_and_state(self, site):
        site.backend("good")
        lines = site.warcore("list-plugins").stdout.splitlines()
        assert lines[0].split() == ["KIND", "NAME", "DISTRIBUTION", "STATE"]
        assert lines[1].split() == ["backend", "good", "x-good", "1.0", "available"]
        assert lines[-1] == "1 plugin: 1 available. Nothing was imported."

    def test_what_needs_attention_has_its_cause_and_a_command(self, site):
        site.backend("good")
        site.backend("old", requires=["warcore<0.1"])
        lines = site.warcore("list-plugins").stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if " old " in line)
        assert lines[at].endswith("incompatible")
        assert "it requires warcore<0.1" in lines[at + 1]
        assert lines[at + 2].strip() == "Next: pip install --upgrade x-old"
        assert lines[-1].startswith("2 plugins: 1 available, 1 incompatible.")

    def test_a_pipe_gets_whole_names_and_no_colour(self, site):
        name = "n" * 300
        site.backend(name="x", requires=[])
        site.add("x-long", {"backend": {name: "x_long:[red]B"}}, x_long="")
        output = site.warcore("list-plugins", COLUMNS="40", TERM="xterm-256color").stdout
        assert name in output
        assert "'x_long:[red]B'" in output
        assert "\x1b" not in output

    @pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
    def test_a_terminal_gets_colour_unless_no_color_is_set(self, site, env, coloured):
        site.backend("good")
        ours, theirs = pty.openpty()
        subprocess.run(
            site.command("list-plugins"),
            env=site.environment(TERM="xterm-256color", **env),
            stdout=theirs,
            check=True,
        )
        os.close(theirs)
        output = b""
        with suppress(OSError):  # a terminal whose other end is closed reads as an error
            while chunk := os.read(ours, 65536):
                output += chunk
        os.close(ours)
        assert b"available" in output
        assert (b"\x1b[32m" in output) is coloured

    def test_an_allowlist_in_force_is_mentioned(self, site):
        site.backend("good")
        site.backend("other")
        output = site.warcore("list-plugins", WARCORE_PLUGINS="good").stdout
        assert "1 available, 1 disabled" in output
        assert "Only what WARCORE_PLUGINS=good names is enabled." in output

    def test_an_ascii_stdout_gets_substitutes(self, site):
        site.backend("größe")
        result = site.warcore("list-plugins", PYTHONIOENCODING="ascii")
        assert result.returncode == 0
        assert "gr??e" in result.stdout


class TestJson:
    def test_schema(self, site):
        site.backend("good")
        document = listing(site)
        assert list(document) == ["schema", "warcore", "plugins"]
        assert document["schema"] == 1
        assert document["warcore"] == "0.1.0"
        assert [list(p) for p in document["plugins"]] == [KEYS]

    def test_no_plugins_is_an_empty_list(self, site):
        assert listing(site)["plugins"] == []

    def test_load_adds_times_and_classes_without_touching_the_plugins_keys(self, site):
        site.backend("good")
        document = listing(site, "--load")
        assert [list(p) for p in document["plugins"]] == [KEYS]
        (load,) = document["loads"]
        assert load.pop("seconds") > 0
        names = {"kind": "backend", "name": "good", "class": "x_good:Backend"}
        assert load == {**names, "note": None}

    def test_ascii_stdout_gets_escapes(self, site):
        site.backend("größe")
        (plugin,) = listing(site, PYTHONIOENCODING="ascii")["plugins"]
        assert plugin["name"] == "größe"


class TestChoosing:
    def test_kind_and_only_narrow_the_list(self, site):
        site.add("x-a", {k: {"a": "x_a:A", "b": "x_a:B"} for k in KINDS}, x_a="")
        assert len(listing(site, "--kind", "model")["plugins"]) == 2
        assert len(listing(site, "--only", "a")["plugins"]) == 5
        assert len(listing(site, "--only", "stager:a")["plugins"]) == 1

    @pytest.mark.parametrize("option", ["--only", "--disable"])
    def test_an_unknown_name_is_an_error_with_a_suggestion(self, site, option):
        site.backend("good")
        result = site.warcore("list-plugins", option, "goood")
        assert result.returncode == 2
        assert result.stdout == ""
        assert result.stderr == (
            "error: no plugin is called 'goood'; did you mean good?\nNext: warcore list-plugins\n"
        )

    def test_an_unknown_kind_is_a_usage_error_that_lists_them(self, site):
        result = site.warcore("list-plugins", "--kind", "backends")
        assert result.returncode == 2
        assert "graph_runner" in result.stderr

    def test_a_disabled_plugin_is_not_loaded(self, site):
        site.backend("good")
        document = listing(site, "--load", "--disable", "good")
        assert document["plugins"][0]["state"] == "disabled"
        assert document["loads"] == []


class TestStrict:
    @pytest.mark.parametrize(
        ("requires", "args", "code"),
        [
            ([], [], 0),
            (["warcore<0.1"], [], 1),
            (["warcore<0.1"], ["--json"], 1),
            (["warcore<0.1"], ["--disable", "good"], 0),
        ],
    )
    def test_exit_code(self, site, requires, args, code):
        site.backend("good", requires=requires)
        assert site.warcore("list-plugins", "--strict", *args).returncode == code

    def test_what_only_loading_shows_counts(self, site):
        site.add("x-it", {"backend": {"it": "x_it:B"}}, x_it="")
        assert site.warcore("list-plugins", "--strict").returncode == 0
        assert site.warcore("list-plugins", "--strict", "--load").returncode == 1


class TestLoad:
    def test_a_healthy_plugin_is_loaded_with_time_and_class(self, site):
        site.backend("good")
        lines = site.warcore("list-plugins", "--load").stdout.splitlines()
        assert lines[0].split()[-2:] == ["IMPORT", "CLASS"]
        assert lines[1].split()[4::3] == ["loaded", "x_good:Backend"]
        assert lines[-1] == "1 plugin: 1 loaded. 1 imported, each in a process of its own."

    def test_one_that_fails_does_not_keep_others_from_loading(self, site):
        site.add("x-bad", {"backend": {"bad": "x_bad:B"}}, x_bad="import os; os._exit(0)")
        site.backend("good")
        states = {p["name"]: p["state"] for p in listing(site, "--load")["plugins"]}
        assert states == {"bad": "broken", "good": "loaded"}

    def test_a_segfault_is_broken_with_its_signal(self, site):
        plugin = loaded(site, "import ctypes; ctypes.string_at(0)")
        assert plugin["state"] == "broken"
        assert plugin["cause"].startswith("importing it ended the process with SIGSEGV")
        assert plugin["next"] == "python -X faulthandler -c 'import x_it'"

    def test_a_signal_without_a_name_is_told_by_number(self, site):
        number = int(signal.SIGRTMIN) + 1
        plugin = loaded(site, f"import os; os.kill(os.getpid(), {number})")
        assert f"ended the process with signal {number}" in plugin["cause"]

    @pytest.mark.parametrize("code", [0, 3])
    def test_ending_the_process_is_broken_with_its_code_and_last_words(self, site, code):
        source = f"import os, sys; print('so long', file=sys.stderr, flush=True); os._exit({code})"
        plugin = loaded(site, source)
        assert plugin["state"] == "broken"
        assert plugin["cause"] == (
            f"importing it ended the process with exit code {code}; its last line was: so long"
        )

    def test_a_hang_is_broken_with_the_time_out_and_leaves_no_process(self, site, tmp_path):
        # A grandchild holds the writing end, so reading comes to an end only when it is gone.
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        reading = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        hang = "import threading; threading.Event().wait()"
        grandchild = f"gate = open({str(gate)!r}, 'w'); print(flush=True); {hang}"
        source = (
            "import subprocess, sys\n"
            f"command = [sys.executable, '-c', {grandchild!r}]\n"
            "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
            "child.stdout.readline()\n"
            f"{hang}\n"
        )
        plugin = loaded(site, source, WARCORE_LOAD_TIMEOUT="1.5")
        assert plugin["state"] == "broken"
        assert plugin["cause"] == "importing it did not end within 1.5 s"
        assert os.read(reading, 1) == b""
        os.close(reading)

    def test_printing_and_reading_disturb_nothing(self, site):
        source = "import os; print('garbage'); os.system('echo more'); import sys; sys.stdin.read()"
        plugin = loaded(
            site,
            f"{source}\nimport warcore\n"
            "class Backend(warcore.AttentionBackend):\n    def forward(self): ...",
        )
        assert plugin["state"] == "loaded"

    def test_threads_and_exit_handlers_that_stay_behind_hold_nobody(self, site):
        source = (
            "import atexit, threading, warcore\n"
            "threading.Thread(target=threading.Event().wait).start()\n"
            "atexit.register(threading.Event().wait)\n"
            "class Backend(warcore.AttentionBackend):\n    def forward(self): ...\n"
        )
        assert loaded(site, source)["state"] == "loaded"

    def test_an_exception_is_broken_with_its_place(self, site):
        plugin = loaded(site, "\nraise RuntimeError('no licence')")
        assert plugin["state"] == "broken"
        assert "raised RuntimeError: no licence" in plugin["cause"]
        assert "x_it.py:2)" in plugin["cause"]

    @pytest.mark.parametrize(
        ("body", "state", "cause"),
        [
            ("return None", "loaded", None),
            ("return 'it needs a GPU'", "unavailable", "it needs a GPU"),
            ("return 1 / 0", "broken", "unavailable() raised ZeroDivisionError: division by zero"),
        ],
    )
    def test_a_class_may_say_why_this_machine_cannot_run_it(self, site, body, state, cause):
        plugin = loaded(site, saying("unavailable", body))
        assert (plugin["state"], plugin["cause"]) == (state, cause)
        assert (plugin["next"] is None) is (cause is None)

    def test_a_class_may_say_what_a_person_should_know_of_it_here(self, site):
        source = saying("note", "return 'slow\\n kernels'")
        site.add("x-it", {"backend": {"it": "x_it:Backend"}}, x_it=source)
        (load,) = listing(site, "--load")["loads"]
        assert load["note"] == "slow kernels"
        lines = site.warcore("list-plugins", "--load").stdout.splitlines()
        assert lines[2] == "    slow kernels"
        assert "slow kernels" not in site.warcore("list-plugins").stdout

    def test_a_note_that_raises_is_broken(self, site):
        plugin = loaded(site, saying("note", "return 1 / 0"))
        assert plugin["state"] == "broken"
        assert plugin["cause"] == "note() raised ZeroDivisionError: division by zero"

    @pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
    def test_a_time_out_that_is_no_number_is_an_error(self, site, value):
        result = site.warcore("list-plugins", "--load", WARCORE_LOAD_TIMEOUT=value)
        assert result.returncode == 2
        assert f"WARCORE_LOAD_TIMEOUT={value}" in result.stderr


class TestProcess:
    def imports(self, site, *args):
        """The modules that a command leaves imported."""
        program = (
            "import sys; from warcore.cli import main; code = main(sys.argv[1:]);"
            "print(code, *sys.modules, file=sys.stderr)"
        )
        result = subprocess.run(
            [sys.executable, "-S", "-c", program, *args],
            env=site.environment(),
            text=True,
            capture_output=True,
            check=True,
        )
        code, *modules = result.stderr.split()
        assert code == "0"
        return set(modules)

    @pytest.mark.parametrize("args", [["list-plugins"], ["list-plugins", "--json"], ["--help"]])
    def test_neither_torch_nor_a_plugin_is_imported(self, site, args):
        site.add("x-it", {"backend": {"it": "x_it:B"}}, x_it="import torch")
        assert not {"torch", "numpy", "x_it"} & self.imports(site, *args)

    def test_help_imports_no_command(self, site):
        commands = {m for m in self.imports(site, "--help") if m.startswith("warcore.cli.")}
        shared = ("commands", "interrupts", "output", "streams")
        assert commands == {f"warcore.cli.{module}" for module in shared}

    @pytest.mark.parametrize("args", [[], ["--json"]])
    def test_a_closed_pipe_is_silent(self, site, args):
        # More than a pipe holds, so that the writer meets the closed end.
        site.add("x-m", {"backend": {f"name{i:060}": "x_m:B" for i in range(1000)}}, x_m="")
        reading, writing = os.pipe()
        process = subprocess.Popen(
            site.command("list-plugins", *args),
            env=site.environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        assert process.communicate()[1] == ""
        assert process.returncode == 141

    def test_a_full_disk_is_an_error_with_a_remedy(self, site):
        site.backend("good")
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                site.command("list-plugins"),
                env=site.environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert result.returncode == 2
        assert result.stderr == (
            "error: cannot write the output: No space left on device\n"
            "Next: send it to a place that can hold it\n"
        )

    def test_ctrl_c_is_one_line_and_130_and_ends_the_plugin_too(self, site):
        gate = site.path / "gate"
        os.mkfifo(gate)
        source = (
            "import threading\n"
            f"gate = open({str(gate)!r}, 'w')\n"
            "gate.write('loading')\n"
            "gate.flush()\n"
            "threading.Event().wait()\n"
        )
        site.add("x-it", {"backend": {"it": "x_it:B"}}, x_it=source)
        process = subprocess.Popen(
            site.command("list-plugins", "--load"),
            env=site.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with gate.open() as reading:
            assert reading.read(7) == "loading"
            process.send_signal(signal.SIGINT)
            assert process.communicate()[1] == "interrupted\n"
            assert process.returncode == 130
            assert reading.read() == "", "the plugin's process still holds the gate"

    def test_version(self, site):
        assert site.warcore("--version").stdout == "warcore 0.1.0\n"

    def test_an_unknown_command_gets_a_suggestion(self, site):
        result = site.warcore("list-plugin")
        assert result.returncode == 2
        assert "no command 'list-plugin'; did you mean list-plugins?" in result.stderr

    @pytest.mark.parametrize(
        "args", [["--debug", "list-plugins"], ["list-plugins", "--debug"]], ids=["before", "after"]
    )
    def test_debug_shows_the_traceback(self, site, args):
        result = site.warcore(*args, "--only", "nobody")
        assert result.returncode == 2
        assert "Traceback" in result.stderr
        assert result.stderr.endswith("Next: warcore list-plugins\n")
