"""More plugins that do what no plugin should: to the streams, files and processes around them.

Importable under this file's name alone: each check runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import torch

from warcore import AttentionBackend


class Good(AttentionBackend):
    def forward(self, q, k, v, layer, batch):
        return q

    @classmethod
    def act(cls):
        """What the fake checks call."""


class Mute(Good):
    """Takes standard output away, in Python and below."""

    @classmethod
    def act(cls):
        sys.stdout = None
        sys.stderr = object()
        os.close(1)
        os.close(2)


class Blunt(Good):
    """Closes every file that it can find."""

    @classmethod
    def act(cls):
        os.closerange(0, 256)


class Homeless(Good):
    """Deletes the folder in which it runs."""

    @classmethod
    def act(cls):
        here = os.environ["WARCORE_TEST_FOLDER"]
        os.chdir(here)
        shutil.rmtree(here)


class Endless(Good):
    """Starts threads that never end, and that are no daemons."""

    @classmethod
    def act(cls):
        for _ in range(50):
            threading.Thread(target=threading.Event().wait).start()


class Leaving(Good):
    """Leaves a process behind that belongs to no one: in a session of its own, its parent gone."""

    @classmethod
    def act(cls):
        program = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"
        file = os.environ["WARCORE_TEST_FILE"]
        program = f"open({file!r}, 'w').close(); " + program.replace(
            "time.sleep", f"open({file!r}, 'w').write(str(os.getpid())); time.sleep"
        )
        subprocess.run([sys.executable, "-c", program], start_new_session=True, check=True)
        while not Path(file).read_text():
            pass


class Greedy(Good):
    """Takes 5 GB."""

    @classmethod
    def act(cls):
        cls.taken = torch.empty(5_000_000_000, dtype=torch.uint8)
        cls.taken[:: 1 << 21] = 1


class Starved(Good):
    """Takes more than there is."""

    @classmethod
    def act(cls):
        torch.empty(1 << 50, dtype=torch.uint8)


class Chatty(Good):
    """Prints without end."""

    @classmethod
    def act(cls):
        line = "x" * 99 + "\n"
        for _ in range(300):
            sys.stdout.write(line * 1000)
        sys.stdout.write("the end\n")


class Replacing(Good):
    """Replaces what the kit tells its verdict with."""

    @classmethod
    def act(cls):
        json.dumps = lambda *_, **__: '{"loaded": true}'
        Path.replace = None


class Sweeping(Good):
    """Deletes the folder in which the kit keeps what comes of the check."""

    @classmethod
    def act(cls):
        shutil.rmtree(Path("/proc/self/fd/1").readlink().parent)


class Multiplying(Good):
    """Goes on in two processes, both of which come back to the kit."""

    @classmethod
    def act(cls):
        os.fork()
