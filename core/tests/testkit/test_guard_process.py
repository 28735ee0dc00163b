"""The page guard in a process of its own: who else wants SIGSEGV, and how a process dies of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

import pytest

from warcore.testkit.detectors import faultcode, guarded
from warcore.testkit.detectors.guard import supported

needs_guard = pytest.mark.skipif(supported() is not None, reason=str(supported()))

PROLOGUE = """
import ctypes, faulthandler, mmap, os, signal, sys, threading
import torch
from warcore.testkit.detectors.guard import PageGuard

libc = ctypes.CDLL(None, use_errno=True)
PAGE = 4096

def genuine():
    ctypes.string_at(0)

class Foreign:
    '''A page of somebody else, with a handler that opens it, noting what it was called with.'''

    def __init__(self):
        self.memory = mmap.mmap(-1, PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.calls = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self.function = kind(self.handle)
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        self.action = (ctypes.c_uint64 * 19)(address, *[0] * 16, 0x4 | 0x40000000)

    def install(self):
        assert libc.sigaction(11, self.action, None) == 0
        return self

    def handle(self, number, info, context):
        self.calls.append(ctypes.c_uint64.from_address(info + 16).value - self.address)
        self.protect(3)

    def protect(self, what):
        libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(PAGE), what)

    def touch(self, offset):
        self.protect(0)
        ctypes.string_at(self.address + offset, 1)

def current():
    words = (ctypes.c_uint64 * 4)()
    libc.syscall(13, 11, None, words, 8)
    return words[0]


for line in sys.stdin:
    path = line.strip()
    child = os.fork()
    if not child:
        for number, name in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(path + name, os.O_WRONLY | os.O_CREAT), number)
        with open(path) as file:
            program = compile(file.read(), path, "exec")
        try:
            exec(program, globals())
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """A process that has torch and no guard, and forks one for each program."""

    def __init__(self, place):
        self.place = place
        self.count = 0
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROLOGUE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program, before=""):
        """The end of a process that runs `program` with a guard in force."""
        self.count += 1
        path = self.place / f"program{self.count}.py"
        path.write_text(
            f"{textwrap.dedent(before)}\nwith PageGuard() as guard:\n"
            "    writer, table = guard.allocate('table', (64, 1024), torch.int32)\n"
            f"    window = guard.window()\n{textwrap.indent(textwrap.dedent(program), '    ')}\n",
            encoding="utf-8",
        )
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        out, err = (Path(f"{path}{end}").read_text(encoding="utf-8") for end in (".out", ".err"))
        return subprocess.CompletedProcess(str(path), status, out, err)

    def said(self, program, before=""):
        """The words that it printed."""
        done = self.run(program, before)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    with nursery.process:
        yield nursery
        nursery.process.stdin.close()


# ---- faults of others ----------------------------------------------------------------------------

SEEN = "window.close(); table[3].sum(); assert len(window.open()) == 1\n"


@needs_guard
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_genuine_fault_kills_with_its_signal_and_one_report(nursery, when):
    enable = "faulthandler.enable()"
    early, late = (enable, "") if when == "before" else ("", enable)
    done = nursery.run(f"{late}\n{SEEN}window.close(); genuine()", early)
    assert done.returncode == -11
    assert done.stderr.count("Segmentation fault") == 1
    assert done.stderr.count("in genuine") == 1


@needs_guard
def test_a_genuine_fault_in_another_thread_kills_with_a_report_too(nursery):
    done = nursery.run(
        f"{SEEN}thread = threading.Thread(target=genuine); thread.start(); thread.join()",
        "faulthandler.enable()",
    )
    assert done.returncode == -11
    assert "in genuine" in done.stderr


@needs_guard
@pytest.mark.parametrize(
    "how", ["genuine()", "os.kill(os.getpid(), 11)", "signal.raise_signal(11)"]
)
@pytest.mark.parametrize("when", ["within", "after"])
def test_without_a_report_it_dies_all_the_same(nursery, how, when):
    leave = "" if when == "within" else "guard.__exit__(None, None, None)"
    done = nursery.run(f"{SEEN}{leave}\n{how}")
    assert done.returncode == -11
    assert not done.stderr


@needs_guard
def test_a_report_is_as_good_after_the_guard_has_gone(nursery):
    done = nursery.run(
        f"{SEEN}guard.__exit__(None, None, None); genuine()", "faulthandler.enable()"
    )
    assert done.returncode == -11
    assert done.stderr.count("in genuine") == 1


@needs_guard
def test_a_handler_that_was_there_before_gets_its_faults_with_all_that_belongs_to_them(nursery):
    program = """
    for _ in range(3):
        window.close()
        foreign.touch(40)
        table[3].sum()
        foreign.touch(48)
        assert len(window.open()) == 1
    assert not guard.stolen, guard.stolen
    print(*foreign.calls)
    """
    assert nursery.said(program, "foreign = Foreign().install()") == ["40", "48"] * 3


@needs_guard
def test_a_handler_of_python_hears_of_a_signal_that_was_sent(nursery):
    before = "heard = []\nsignal.signal(11, lambda *_: heard.append(1))"
    assert nursery.said(f"{SEEN}os.kill(os.getpid(), 11); {SEEN}print(*heard)", before) == ["1"]


@needs_guard
def test_an_ignored_signal_stays_ignored_when_sent_and_kills_when_meant(nursery):
    before = "signal.signal(11, signal.SIG_IGN)"
    assert nursery.said(f"os.kill(os.getpid(), 11)\n{SEEN}print('on')", before) == ["on"]
    assert nursery.run("genuine()", before).returncode == -11


@needs_guard
def test_where_a_page_cannot_be_opened_alone_the_whole_buffer_is(nursery):
    program = """
    pages = int(open("/proc/sys/vm/max_map_count").read()) + 64
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    base = libc.mmap(None, pages * PAGE, 0, 0x4022, -1, 0)
    window.close()
    for page in range(0, pages, 2):
        if libc.mprotect(base + page * PAGE, PAGE, 1):
            break
    libc.mprotect(base + page * PAGE, PAGE, 1)
    table[3].sum()
    table[9].sum()
    print(*[fault.offset // PAGE for fault in guard.look()])
    """
    assert nursery.said(program) == ["3"]


# ---- thieves -------------------------------------------------------------------------------------


@needs_guard
def test_the_signal_is_taken_back_and_the_thief_named(nursery):
    program = """
    ours = current()
    foreign = Foreign().install()
    assert current() != ours
    for offset in (40, 48):
        window.close()
        assert current() == ours
        table[3].sum()
        foreign.touch(offset)
        print(len(window.open()))
    print(len(guard.stolen), *foreign.calls)
    print(*guard.stolen)
    """
    words = nursery.said(program)
    assert words[:5] == ["1", "1", "1", "40", "48"]
    assert words[5:]


@needs_guard
def test_a_thief_has_the_signal_again_after_the_guard(nursery):
    program = """
    foreign = Foreign().install()
    theirs = current()
    window.close()
    table[3].sum()
    print(len(window.open()))
    guard.__exit__(None, None, None)
    assert current() == theirs
    foreign.touch(40)
    print(*foreign.calls)
    """
    assert nursery.said(program) == ["1", "40"]


@needs_guard
@pytest.mark.parametrize(
    ("theft", "name"),
    [
        ("signal.signal(11, signal.SIG_DFL)", "default"),
        ("signal.signal(11, signal.SIG_IGN)", "ignored"),
        ("signal.signal(11, genuine)", "signal.signal with <function genuine"),
        ("faulthandler.enable()", "faulthandler"),
    ],
)
def test_thieves_that_are_known_are_named(nursery, theft, name):
    words = nursery.said(f"{theft}\n{SEEN}{SEEN}print(*guard.stolen)")
    assert name in " ".join(words)


@needs_guard
def test_a_thief_that_hands_on_to_us_ends_with_the_one_before(nursery):
    program = """
    faulthandler.enable()
    window.close(); window.open()
    faulthandler.disable()
    faulthandler.enable()
    window.close(); window.open()
    signal.signal(11, signal.SIG_DFL)
    window.close(); window.open()
    faulthandler.disable()
    faulthandler.enable()
    window.close(); table[3].sum(); assert len(window.open()) == 1
    guard.__exit__(None, None, None)
    guard = PageGuard().__enter__()
    window = guard.window()
    window.close()
    genuine()
    """
    done = nursery.run(program, "faulthandler.enable()")
    assert done.returncode == -11
    assert 1 <= done.stderr.count("Segmentation fault") <= 2


# ---- children ------------------------------------------------------------------------------------


@needs_guard
def test_a_forked_child_is_free_and_may_guard_for_itself(nursery):
    program = """
    window.close()
    child = os.fork()
    if not child:
        table[3].sum()
        window.open()
        window.close()
        table[3].sum()
        assert guard.look() == [] and guard.faults == []
        assert current() == before
        with PageGuard() as own:
            _, mine = own.allocate("mine", (64, 1024), torch.int32)
            with own.window():
                mine[5].sum()
            assert len(own.faults) == 1
        assert current() == before
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    table[4].sum()
    print(*[fault.offset // PAGE for fault in window.open()])
    """
    assert nursery.said(program, "before = current()") == ["4"]


@needs_guard
def test_a_child_process_that_runs_another_program_starts_as_ever(nursery):
    program = """
    import subprocess
    window.close()
    done = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"])
    print(done.returncode, len(window.open()))
    """
    assert nursery.said(program) == ["-11", "0"]


# ---- kernels in an interpreter -------------------------------------------------------------------


@needs_guard
def test_a_kernel_in_the_interpreter_of_triton_is_seen(nursery, tmp_path):
    pytest.importorskip("triton")
    # A kernel's source is read from its file.
    (tmp_path / "kernels.py").write_text(
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\n"
        "def copy(source, target, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)\n"
        "    tl.store(target + at, tl.load(source + at))\n",
        encoding="utf-8",
    )
    before = (
        "import warnings; warnings.simplefilter('ignore')\n"
        f"os.environ['TRITON_INTERPRET'] = '1'; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from kernels import copy"
    )
    program = """
    target = torch.zeros(16, dtype=torch.int32)
    writer[3] = 5
    window.close()
    copy[(1,)](table[3], target, 16)
    print(*[fault.offset for fault in window.open()], target.sum().item())
    """
    assert nursery.said(program, before) == [str(3 * 4096), "80"]


# ---- where it works ------------------------------------------------------------------------------


def test_the_machine_code_is_what_its_listing_says(tmp_path):
    if not (shutil.which("as") and shutil.which("objcopy")):
        pytest.skip("needs an assembler")
    text = "\n".join(line.partition("|")[2] for line in faultcode.LISTING.strip().splitlines())
    (tmp_path / "code.s").write_text(f".intel_syntax noprefix\n{text}\n", encoding="ascii")
    subprocess.run(["as", "--64", "code.s", "-o", "code.o"], cwd=tmp_path, check=True)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", "code.o", "code"], cwd=tmp_path, check=True
    )
    assert (tmp_path / "code").read_bytes() == faultcode.CODE


@pytest.mark.parametrize(
    ("part", "offset"), [("actions", 32), ("labels", 512), ("ranges", 1024), ("records", 16384)]
)
def test_the_state_lies_as_the_code_takes_it(part, offset):
    assert getattr(faultcode.State, part).offset == offset


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (("sys.platform", "darwin"), "needs Linux, and this is darwin"),
        (("platform.machine", lambda: "aarch64"), "x86-64, and this is aarch64"),
        (("mmap.PAGESIZE", 16384), "pages of 4096"),
    ],
)
def test_other_platforms_are_told_why_they_have_none(patch, why):
    with mock.patch(f"warcore.testkit.detectors.guarded.{patch[0]}", patch[1]):
        assert why in guarded.lacking()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os; os.kill(os.getpid(), 11)", "status -11: it said nothing"),
        ("raise OSError('mprotect refused')", "status 1: OSError: mprotect refused"),
        ("", "status 0: it said nothing"),
    ],
)
def test_a_trial_that_fails_is_a_reason(program, why):
    run_it = subprocess.run

    def other(command, **more):
        return run_it([*command[:2], program], **more)

    with mock.patch("warcore.testkit.detectors.guarded.subprocess.run", other):
        assert why in guarded._tried()


def test_where_no_process_can_be_started_that_is_the_reason():
    with mock.patch("warcore.testkit.detectors.guarded.sys.executable", "/nowhere/python"):
        assert "could not be tried" in guarded._tried()
