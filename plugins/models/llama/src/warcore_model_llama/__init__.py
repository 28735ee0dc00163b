"""Llama-family models for warcore. The families are entry points; see the README."""

from __future__ import annotations
