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
    from warcore.limits import Limits

HOST_POSITIONS = 1024
"""On a CPU a replay saves what calling its operations one by one costs, some milliseconds; beyond
this many attended positions that is lost in the attention itself, and a capture costs as much as
four such steps."""
MOST_KEYS = 64
"""Length buckets of one shape; each is a capture at start."""
PREFILLS_ON_CUDA = (16, 32, 64, 128, 256, 512)
"""Token buckets of prefills where nobody named any; none on a CPU, where padding costs time."""


def plan_buckets(
    config: EngineConfig,
    limits: Limits,
    modes: frozenset[ForwardMode],
    graph_key: Callable[[ForwardBatch], int | None],
    device: torch.device,
    *,
    who: str = "backend",
    draft: bool = False,
) -> tuple[Bucket, ...]:
    """Every step to capture, the largest first, so that the others fit in its memory.

    who: whose `graph_key` it is, for messages. draft: what a draft runner runs, prefills apart.
    ConfigError for sizes beyond what may run, WiringError for keys that are none.
    """
    keys = LengthKeys(who, graph_key)
    sizes = _decode_sizes(config, limits)
    shapes = [
        (mode, rows, rows * width) for mode, width in _widths(limits, draft) for rows in sizes
    ]
    for tokens in () if draft else _prefill_sizes(config, limits, device):
        # Prefills of one request are common, and the padding of a batch would be most of them.
        rows = dict.fromkeys((1, min(tokens, limits.max_running)))
        shapes += [(ForwardMode.EXTEND, count, tokens) for count in rows]
    most = _positions(config, device)
    found = [
        bucket
        for mode, rows, tokens in shapes
        if mode in modes
        for bucket in keys.buckets(Bucket(mode, rows, tokens, _longest(mode, limits)), device)
        if most is None or rows * bucket.max_seq_len <= most
    ]
    return tuple(sorted(found, key=lambda b: (-b.rows * b.max_seq_len, -b.tokens)))


@attrs.frozen
class LengthKeys:
    """A backend's `graph_key`, asked about batches to come."""

    who: str
    graph_key: Callable[[ForwardBatch], int | None]

    def buckets(self, widest: Bucket, device: torch.device) -> Iterator[Bucket]:
        """`widest`, once for each key that the backend gives to shorter sequences."""
        batch = blank(widest, device)

        def key_of(length: int) -> int | None:
            return self.key_of(attrs.evolve(batch, max_seq_len=length))

        shortest, found = -(-widest.tokens // widest.rows), 0
        while shortest <= widest.max_seq_len:
            key = key_of(shortest)
            last = _last_alike(key_of, shortest, widest.max_seq_len)
            found += 1
            if found > MOST_KEYS:
                raise WiringError(
                    f"{self.who}: graph_key has more than {MOST_KEYS} keys for one shape: "
                    f"{widest.mode.name} of {widest.rows} requests, up to {widest.max_seq_len}",
                    next="tell fewer length buckets apart, powers of two for instance",
                )
            if key is not None:
                yield attrs.evolve(widest, max_seq_len=last, key=key)
            shortest = last + 1

    def key_of(self, batch: ForwardBatch) -> int | None:
        """What it answers, twice."""
        key: object = self.graph_key(batch)
        where = f"{self.who}: graph_key of a {batch.mode.name} batch returned {key!r}"
        if key is not None and (not isinstance(key, int) or isinstance(key, bool)):
            raise WiringError(
                where, next="return a whole number, or None for a batch that shall run eagerly"
            )
        again = self.graph_key(batch)
        if again != key:
            raise WiringError(
                f"{where}, then {again!r}", next="let it depend on nothing but the batch"
            )
        return key


def _widths(limits: Limits, draft: bool) -> list[tuple[ForwardMode, int]]:
    """The modes of steps without prefills, and how many tokens of each request they take."""
    width = limits.drafted + 1
    if draft:
        return [(ForwardMode.DECODE, 1), (ForwardMode.DRAFT_EXTEND, width)]
    return [(limits.decode_mode, width)]


def _longest(mode: ForwardMode, limits: Limits) -> int:
    """The longest sequence of a step, with what is drafted behind it."""
    return limits.longest + (0 if mode.is_prefill else limits.behind)


def _last_alike(key_of: Callable[[int], int | None], first: int, end: int) -> int:
    """The last length up to `end` with the key of `first`; lengths of one key are neighbours."""
    key, low, high = key_of(first), first, end
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if key_of(middle) == key else (low, middle - 1)
    return low


def _decode_sizes(config: EngineConfig, limits: Limits) -> Sequence[int]:
    """The named batch sizes, or powers of two and the largest batch."""
    # Each request that decodes holds a page.
    most = min(limits.max_running, limits.pages)
    if config.graph_buckets is None:
        powers = itertools.takewhile(lambda size: size < most, (1 << n for n in itertools.count()))
        return (*powers, most)
    largest = config.graph_buckets[-1]
    if largest > most:
        few = "max-running-requests" if largest > limits.max_running else "kv-pages"
        raise ConfigError(
            f"--graph-buckets {_text(config.graph_buckets)}: at most {most} requests run at once",
            next=f"--{few} {largest}, or smaller buckets",
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
