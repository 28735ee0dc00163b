"""Which steps are captured: sizes, times the length buckets that the backend tells apart."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import attrs

from warcore.batch import Bucket
from warcore.contract import ForwardMode
from warcore.errors import ConfigError, WiringError
from warcore.inputs import blank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from warcore.batch import ForwardBatch
    from warcore.config import EngineConfig
    from warcore.scheduler import Limits

HOST_POSITIONS = 1024
"""On a CPU a replay saves what calling its operations one by one costs, some milliseconds; beyond
this many attended positions that is lost in the attention itself, and a capture costs as much as
four such steps."""
PREFILLS_ON_CUDA = (16, 32, 64, 128, 256, 512)
"""Token buckets of prefills where nobody named any; none on a CPU, where padding costs time."""


def plan_buckets(
    config: EngineConfig,
    limits: Limits,
    modes: frozenset[ForwardMode],
    graph_key: Callable[[ForwardBatch], int | None],
    device: torch.device,
) -> tuple[Bucket, ...]:
    """Every step to capture, the largest first, so that the others fit in its memory.

    ConfigError for sizes beyond what may run.
    """
    shapes = [(ForwardMode.DECODE, rows, rows) for rows in _decode_sizes(config, limits)]
    for tokens in _prefill_sizes(config, limits, device):
        # Prefills of one request are common, and the padding of a batch would be most of them.
        rows = dict.fromkeys((1, min(tokens, limits.max_running)))
        shapes += [(ForwardMode.EXTEND, count, tokens) for count in rows]
    most = _positions(config, device)
    found = [
        bucket
        for mode, rows, tokens in shapes
        if mode in modes
        for bucket in _lengths(Bucket(mode, rows, tokens, limits.longest), graph_key, device)
        if most is None or rows * bucket.max_seq_len <= most
    ]
    return tuple(sorted(found, key=lambda b: (-b.rows * b.max_seq_len, -b.tokens)))


def _lengths(
    widest: Bucket, graph_key: Callable[[ForwardBatch], int | None], device: torch.device
) -> Iterator[Bucket]:
    """`widest`, once for each key that the backend gives to shorter sequences."""
    batch = blank(widest, device)

    def key_of(length: int) -> int | None:
        key: object = graph_key(attrs.evolve(batch, max_seq_len=length))
        if key is not None and (not isinstance(key, int) or isinstance(key, bool)):
            raise WiringError(
                f"graph_key of a {widest.mode.name} batch returned {key!r}",
                next="return a whole number, or None for a batch that shall run eagerly",
            )
        return key

    shortest = -(-widest.tokens // widest.rows)
    while shortest <= widest.max_seq_len:
        key = key_of(shortest)
        last = _last_alike(key_of, shortest, widest.max_seq_len)
        if key is not None:
            yield attrs.evolve(widest, max_seq_len=last, key=key)
        shortest = last + 1


def _last_alike(key_of: Callable[[int], int | None], first: int, end: int) -> int:
    """The last length up to `end` with the key of `first`; lengths of one key are neighbours."""
    key, low, high = key_of(first), first, end
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if key_of(middle) == key else (low, middle - 1)
    return low


def _decode_sizes(config: EngineConfig, limits: Limits) -> Sequence[int]:
    """The named batch sizes, or powers of two and the largest batch."""
    if config.graph_buckets is None:
        powers = itertools.takewhile(
            lambda size: size < limits.max_running, (1 << n for n in itertools.count())
        )
        return (*powers, limits.max_running)
    if config.graph_buckets[-1] > limits.max_running:
        raise ConfigError(
            f"--graph-buckets {_text(config.graph_buckets)}: at most {limits.max_running} requests "
            "run at once",
            next=f"--max-running-requests {config.graph_buckets[-1]}, or smaller buckets",
        )
    return config.graph_buckets


def _prefill_sizes(config: EngineConfig, limits: Limits, device: torch.device) -> Sequence[int]:
    """The named token buckets, or those that suit the device, up to a whole chunk."""
    if config.graph_prefill_buckets is None:
        suit = PREFILLS_ON_CUDA if device.type == "cuda" else ()
        return [tokens for tokens in suit if tokens <= limits.prefill_chunk]
    if config.graph_prefill_buckets[-1] > limits.prefill_chunk:
        raise ConfigError(
            f"--graph-prefill-buckets {_text(config.graph_prefill_buckets)}: a prefill step has at "
            f"most {limits.prefill_chunk} tokens",
            next=f"--prefill-chunk {config.graph_prefill_buckets[-1]}, or smaller buckets",
        )
    return config.graph_prefill_buckets


def _positions(config: EngineConfig, device: torch.device) -> int | None:
    """How many positions a captured step may attend to, over all its rows; None: any number."""
    if config.graph_positions is not None:
        return config.graph_positions
    return None if device.type == "cuda" else HOST_POSITIONS


def _text(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
