"""Wiring of a stand: what an engine gives a backend, a model runner and a graph runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warcore.backend import BackendContext
from warcore.batch import Bucket
from warcore.buckets import LengthKeys
from warcore.capturing import build_graph_runner, capture
from warcore.contract import ForwardMode, GraphKind
from warcore.device import EventRing
from warcore.errors import blame
from warcore.options import Chosen
from warcore.runner import PublishingRunner
from warcore.scope import EngineScope
from warcore.statics import Statics
from warcore.testkit.stands.cell import DRAFTED
from warcore.testkit.stands.recorders import Recording, RecordingSegments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warcore.graphs import GraphRunner
    from warcore.testkit.stands.stand import Stand

CAPTURED: Final[Mapping[str, Mapping[str, tuple[ForwardMode, ...]]]] = {
    "target": {
        "target": (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.EXTEND),
        "draft": (ForwardMode.DRAFT_EXTEND,),
    },
    "draft": {"draft": (ForwardMode.DECODE, ForwardMode.DRAFT_EXTEND)},
}
"""By the role of a shape: the modes that the model runner of each role captures, if its graph
runner can. The grid has the shape of a target, and its draft-extends are the same attention's.
"""


def built_backend(stand: Stand, cls: Any, options: object) -> Any:
    """A backend on the tables and the pool of a stand. Raises what it raises, by its name."""
    statics = Statics(stand.device, stand.forward)
    context = BackendContext(
        spec=stand.spec,
        max_batch=stand.shape.rows,
        max_tokens=stand.shape.rows * stand.shape.context,
        shared=stand.tables.given,
        kv=stand.kv,
        graph=stand.graph,
        options=cls.Options() if options is None else options,
        static=statics.static,
        stage=statics.stage,
    )
    with blame(f"backend {cls.__name__}", "__init__"):
        return stand.forward.submit(cls, context).result()


def model_runner(stand: Stand, role: str) -> PublishingRunner:
    """Who runs the steps of a role."""
    model: Any = stand.model
    return PublishingRunner(
        stand.device,
        model,
        stand.backend,
        stand.scope,
        EngineScope(),
        ring=EventRing(stand.device),
        role=role,
    )


def build_captures(stand: Stand, role: str, cls: type[GraphRunner] | None, options: object) -> None:
    """Let a role's model runner capture. cls: the graph runner's; None: the kit's own."""
    if stand.graph is GraphKind.NONE:
        return
    unbroken = stand.graph is GraphKind.UNBROKEN
    named = cls or (Recording if unbroken else RecordingSegments)

    def built(context: Any) -> GraphRunner:
        stand.recorders.append(named(context))
        return stand.recorders[-1]

    runner = stand.runners[role]
    buckets = sorted(_buckets(stand, role, named), key=lambda b: (-b.tokens, -b.max_seq_len))
    if buckets:
        runner.buckets = tuple(buckets)
        build_graph_runner(
            Chosen(named.__name__, built, named.Options() if options is None else options),
            runner,
            device=stand.device,
            forward=stand.forward,
            spec=stand.spec,
            statics=Statics(stand.device, stand.forward),
        )
        capture([runner], stand.forward)


def _buckets(stand: Stand, role: str, cls: type[GraphRunner]) -> Iterator[Bucket]:
    """One for each key that the backend gives to shorter sequences, as an engine captures them."""
    keys = LengthKeys(f"backend:{type(stand.backend).__name__}", stand.backend.graph_key)
    for mode in CAPTURED[stand.shape.role][role]:
        if mode not in cls.modes:
            continue
        width = 1 if mode is ForwardMode.DECODE else DRAFTED
        shapes = [(rows, rows * width) for rows in stand.shape.buckets]
        for rows, tokens in [(1, 8)] if mode is ForwardMode.EXTEND else shapes:
            widest = Bucket(mode, rows, tokens, stand.shape.context)
            yield from keys.buckets(widest, stand.device.torch_device)
