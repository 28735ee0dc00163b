"""Checks with cells and devices of their own, for tests of what is asked for."""

from __future__ import annotations

from warcore.testkit.outcome import Failure, Refuted


def walks(subject):
    """Looks at two cells, and refutes in the second."""
    if subject.wants("decode-4"):
        return
    if subject.wants("verify-4"):
        raise Refuted(Failure("a", "b", cell="verify-4"))


def looks(subject):
    """Looks at another one."""
    subject.wants("extend-1")


def measures(subject):
    """Looks at a short step of many requests, and at a long one."""
    subject.sized(tokens=40, requests=17, head_dim=64)
    subject.sized(tokens=1040, requests=1, head_dim=16)
