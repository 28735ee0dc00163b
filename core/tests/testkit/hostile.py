"""Plugins that do what no plugin should, for tests of who is harmed by it.

Importable under this file's name alone: each check runs in a process of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

import torch

from warcore import AttentionBackend


class Good(AttentionBackend):
    def forward(self, q, k, v, layer, batch):
        return q

    @classmethod
    def act(cls):
        """What the fake checks call."""


class Crashing(Good):
    @classmethod
    def act(cls):
        sys.stdout.write("about to crash\n")
        ctypes.string_at(0)


class Hanging(Good):
    @classmethod
    def act(cls):
        signal.pause()


class Leaving(Good):
    @classmethod
    def act(cls):
        os._exit(0)


class Exiting(Good):
    @classmethod
    def act(cls):
        sys.exit(0)


class Interrupting(Good):
    @classmethod
    def act(cls):
        raise KeyboardInterrupt


class Raising(Good):
    @classmethod
    def act(cls):
        torch.ones(2) @ torch.ones(3)


class Patricide(Good):
    @classmethod
    def act(cls):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


class Loud(Good):
    @classmethod
    def act(cls):
        sys.stdout.write("loud in Python\n")
        os.system("echo loud in a child; echo loud on stderr >&2")
        raise ValueError("and then this")


class Changing(Good):
    """Changes what is global in a process, and leaves a thread and a child behind."""

    @classmethod
    def act(cls):
        torch.set_num_threads(7)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.fork() == 0:
            signal.pause()
        threading.Thread(target=threading.Event().wait).start()
