"""The device layer: one protocol, three devices (host.py, cuda.py, virtual.py)."""

from __future__ import annotations

from warcore.device.base import Device, Event, Graph, Latch, Pending, Stream, Ticket

__all__ = ["Device", "Event", "Graph", "Latch", "Pending", "Stream", "Ticket"]
