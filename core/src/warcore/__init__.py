"""warcore: ask every plugin when its shared reads end, and fence the next write exactly there.

This file is the table of contents of the public API. Importing it imports no torch: each name
loads its module when it is first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warcore.backend import (
        AttentionBackend,
        AttentionSpec,
        BackendContext,
        TensorSpec,
    )
    from warcore.batch import Bucket, ForwardBatch
    from warcore.config import EngineConfig
    from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
    from warcore.device.base import Event
    from warcore.device.graph import Graph
    from warcore.engine import Engine
    from warcore.errors import ModelError, PluginError, WarcoreError, WiringError
    from warcore.graphs import GraphRunner, RunnerContext
    from warcore.model import Layer, Model, ModelContext, ModelFamily, ModelInfo, Output, Tokenizer
    from warcore.modelrunner import ModelRunner
    from warcore.options import NoOptions
    from warcore.output import RequestOutput
    from warcore.plan import FencePlan
    from warcore.records import PluginRecord
    from warcore.registry import find_plugins
    from warcore.samplingparams import SamplingParams
    from warcore.spec import Accepted, Draft, DraftSpec, SpecAlgorithm, SpecContext
    from warcore.stager import Stager, StagerContext

_HOME = {
    # the words
    "SharedReadEnds": "contract",
    "ForwardMode": "contract",
    "GraphKind": "contract",
    "ForwardBatch": "batch",
    "AttentionSpec": "backend",
    "DraftSpec": "spec",
    "TensorSpec": "backend",
    "Layer": "model",
    "ModelInfo": "model",
    # you subclass
    "AttentionBackend": "backend",
    "GraphRunner": "graphs",
    "SpecAlgorithm": "spec",
    "Stager": "stager",
    "ModelFamily": "model",
    "Model": "model",
    "Tokenizer": "model",
    "NoOptions": "options",
    # you are given
    "BackendContext": "backend",
    "RunnerContext": "graphs",
    "SpecContext": "spec",
    "StagerContext": "stager",
    "Accepted": "spec",
    "ModelContext": "model",
    "ModelRunner": "modelrunner",
    # you return
    "Output": "model",
    "Draft": "spec",
    "Bucket": "batch",
    "Event": "device.base",
    "Graph": "device.graph",
    # you run
    "Engine": "engine",
    "EngineConfig": "config",
    "RequestOutput": "output",
    "SamplingParams": "samplingparams",
    "find_plugins": "registry",
    "PluginRecord": "records",
    "FencePlan": "plan",
    # you catch
    "WarcoreError": "errors",
    "PluginError": "errors",
    "WiringError": "errors",
    "ModelError": "errors",
}

__version__ = "0.1.0"
__all__ = [
    "Accepted",
    "AttentionBackend",
    "AttentionSpec",
    "BackendContext",
    "Bucket",
    "Draft",
    "DraftSpec",
    "Engine",
    "EngineConfig",
    "Event",
    "FencePlan",
    "ForwardBatch",
    "ForwardMode",
    "Graph",
    "GraphKind",
    "GraphRunner",
    "Layer",
    "Model",
    "ModelContext",
    "ModelError",
    "ModelFamily",
    "ModelInfo",
    "ModelRunner",
    "NoOptions",
    "Output",
    "PluginError",
    "PluginRecord",
    "RequestOutput",
    "RunnerContext",
    "SamplingParams",
    "SharedReadEnds",
    "SpecAlgorithm",
    "SpecContext",
    "Stager",
    "StagerContext",
    "TensorSpec",
    "Tokenizer",
    "WarcoreError",
    "WiringError",
    "__version__",
    "find_plugins",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'warcore' has no attribute {name!r}")
    value = getattr(import_module(f"warcore.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
