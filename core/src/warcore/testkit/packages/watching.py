"""What an import leaves behind in the process, and which line of the plugin left it.

Runs in a fresh interpreter. Between any two lines of the plugin's own files the state of the
process is compared with what it was: the line that lies between is the one that changed it, be it
itself, or by what it imports or calls.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore.records import LoadError, PluginRecord, load
from warcore.testkit.packages.sources import place_of

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    State = dict[str, Any]

MOST_LINES: Final = 20_000
"""So many lines are looked at one by one: beyond them a change has no line, but is seen."""
DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci")
"""How the files begin by which a process holds an accelerator."""
DEVICE: Final = "a device"


def watch_import(task: dict[str, Any]) -> dict[str, Any]:
    """Load the plugin of `task`, and say what changed meanwhile.

    {"error": why it cannot be loaded, or None, "changes": [{"what", "before", "after", "where",
    "imports": whether that line is an import}]}.
    """
    record = PluginRecord(**task["record"])
    if "torch" in task["before"]:
        import torch  # noqa: F401 - its own import is not the plugin's doing

    error = None
    with Watch(task["root"]) as watch:
        try:
            load_there(record)
        except LoadError as raised:
            error = str(raised)
    return {"error": error, "changes": watch.changes}


def load_there(record: PluginRecord) -> type:
    """The class of a record in another process than the one that found it.

    A class that was given directly may lie in a module that only a test runner can import by its
    name; its file is known.
    """
    module = record.entry_point.partition(":")[0]
    if record.distribution is None and record.file is not None and not _importable(module):
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(module, record.file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = made = module_from_spec(spec)
        spec.loader.exec_module(made)
    return load(record)


def _importable(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@attrs.define(eq=False)
class Watch:
    """Compares the state of the process line by line while code below `root` runs."""

    root: str
    changes: list[dict[str, Any]] = attrs.field(factory=list)
    _last: State = attrs.field(factory=dict)
    _at: tuple[str, int] | None = None
    _lines: int = 0

    def __enter__(self) -> Watch:  # noqa: PYI034 - Self is not in typing before 3.11
        self._last = state()
        sys.settrace(self._call)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        sys.settrace(None)
        self._compare()

    def _call(self, frame: FrameType, event: str, value: Any) -> Any:  # noqa: ARG002
        return self._line if self._is_mine(frame) else None

    def _is_mine(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self.root)

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:  # noqa: ARG002
        self._lines += 1
        if self._lines > MOST_LINES:
            self._at = None
            return None
        self._compare()
        if event == "return":
            caller = frame.f_back
            while caller is not None and not self._is_mine(caller):
                caller = caller.f_back
            self._at = caller and (caller.f_code.co_filename, caller.f_lineno)
        else:
            self._at = frame.f_code.co_filename, frame.f_lineno
        return self._line

    def _compare(self) -> None:
        now = state()
        for what in now:
            if now[what] == self._last.get(what):
                continue
            place = self._at and place_of(*self._at)
            change = {
                "what": what,
                "before": self._last.get(what),
                "after": now[what],
                "where": str(place) if place else "",
                "imports": bool(place and place.text.split(" ")[0] in {"import", "from"}),
            }
            self.changes.append(change)
        self._last = now


def state() -> State:
    """What of the process an import must leave alone, by its name for people."""
    found: State = {
        "the environment": dict(os.environ),
        "the current directory": _directory(),
        "Python's random numbers": hash(random.getstate()),
        "signal handlers": _handled_signals(),
        "the output": os.fstat(1).st_size,
        DEVICE: _devices(),
    }
    torch = sys.modules.get("torch")
    # Half imported, it lacks what it will have.
    if torch is not None and hasattr(torch, "compile"):
        found |= {
            "torch's threads": torch.get_num_threads(),
            "torch's threads between operations": torch.get_num_interop_threads(),
            "the default dtype": str(torch.get_default_dtype()),
            "the default device": str(torch.get_default_device()),
            "grad mode": torch.is_grad_enabled(),
            "torch's seed": torch.initial_seed(),
            "the precision of float32 products": torch.get_float32_matmul_precision(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        }
    return found


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _handled_signals() -> list[str]:
    """Names of the signals with a handler, C ones too where the kernel tells."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        named = {signal.SIGINT, signal.SIGTERM, signal.SIGSEGV}
        return sorted(s.name for s in named if callable(signal.getsignal(s)))
    # Real-time signals are the C library's own business.
    return [s.name for s in signal.Signals if s.value < 32 and mask >> (s.value - 1) & 1]


def _devices() -> list[str]:
    """Accelerators that this process holds."""
    found = set()
    try:
        for link in Path("/proc/self/fd").iterdir():
            try:
                name = os.readlink(link)  # noqa: PTH115 - a pathlib object for each costs more
            except OSError:
                continue
            if name.startswith(DEVICES):
                found.add(name)
    except OSError:
        pass
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu", "npu"):
        runtime = getattr(torch, name, None)
        if runtime is not None and getattr(runtime, "is_initialized", bool)():
            found.add(name)
    return sorted(found)
