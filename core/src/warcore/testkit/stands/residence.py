"""Residence: where the memory lies that a backend's captured steps read, from step to step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_leaves

from warcore.device.operations import OperationMode
from warcore.testkit.detectors.attributes import held
from warcore.testkit.packages.definitions import with_methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.batch import Bucket, ForwardBatch


@attrs.frozen
class _Form:
    """Where a tensor lies, and how."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Form:
        return cls(tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


class Residence:
    """Follows the memory of the backend that was built last from `within(cls)`.

    What it cannot see: memory that is reached through an object of another package, or not held in
    any attribute.
    """

    def __init__(self) -> None:
        self.moved: list[str] = []
        """What lay elsewhere than it had to, in words."""
        self._statics: dict[str, tuple[torch.Tensor, _Form]] = {}
        self._held: dict[Bucket, dict[str, int]] = {}
        self._read: dict[Bucket, set[int]] = {}
        self._made: dict[Bucket, set[int]] = {}
        """Memory that a captured step makes or writes itself: what it reads there is its own."""

    def within(self, cls: Any) -> Any:
        """The class, followed from here."""

        def __init__(backend: Any, ctx: Any) -> None:  # noqa: N807  it becomes the class's
            self._statics.clear()
            self._held.clear()
            self._read.clear()
            self._made.clear()
            cls.__init__(backend, attrs.evolve(ctx, static=self._noted(ctx.static)))

        def init_forward_metadata_out_graph(backend: Any, batch: ForwardBatch) -> None:
            cls.init_forward_metadata_out_graph(backend, batch)
            if batch.bucket is not None:
                self._compare(backend, batch.bucket)

        def init_forward_metadata_in_graph(backend: Any, batch: ForwardBatch) -> None:
            with self._reading(batch.bucket):
                cls.init_forward_metadata_in_graph(backend, batch)

        def forward(backend: Any, *args: Any, **kwargs: Any) -> Any:
            batch: ForwardBatch = kwargs["batch"] if "batch" in kwargs else args[-1]
            # The model has made them, where captured steps keep what they make.
            with self._reading(batch.bucket, made=(args, kwargs)):
                return cls.forward(backend, *args, **kwargs)

        methods = (
            __init__,
            init_forward_metadata_out_graph,
            init_forward_metadata_in_graph,
            forward,
        )
        return with_methods(cls, **{method.__name__: method for method in methods})

    def look(self) -> bool:
        """Whether anything has moved; for what `ctx.static` has given, it is found out here."""
        for name, (tensor, form) in self._statics.items():
            now = _Form.of(tensor)
            if now == form:
                continue
            what = f"static {name!r} has other memory"
            if now.address == form.address:
                what = f"static {name!r} is {now.shape}, strides {now.stride}"
                what = f"{what}, and was {form.shape}, {form.stride}"
            self.moved.append(what)
        return bool(self.moved)

    def _noted(self, static: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def noted(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            tensor = static(name, shape, dtype)
            self._statics.setdefault(name, (tensor, _Form.of(tensor)))
            return tensor

        return noted

    def _compare(self, backend: Any, bucket: Bucket) -> None:
        """In a capture, note what is held; in a replay, whether it is where the graph reads."""
        now = {
            path: _memory(value)
            for path, value in held(backend)
            if isinstance(value, torch.Tensor) and value.layout is torch.strided
        }
        read = self._read.get(bucket)
        if read is None:
            self._held[bucket] = now
            return
        for path, then in self._held[bucket].items():
            if then in read and now.get(path, then) != then:
                self.moved.append(
                    f"{path} is other memory after init_forward_metadata_out_graph than at the "
                    f"capture of {bucket}, whose replays read on in that"
                )

    @contextmanager
    def _reading(self, bucket: Bucket | None, made: Any = ()) -> Iterator[None]:
        if bucket is None:
            yield
            return
        known = self._made.setdefault(bucket, set())
        known.update(_memories(made))
        with _Noting(self._read.setdefault(bucket, set()), known):
            yield


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Noting(OperationMode):
    """Notes the memory that operations are given, but for what they have made themselves."""

    def __init__(self, read: set[int], made: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._read, self._made = read, made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = set(_memories((args, kwargs)))
        out = func(*args, **(kwargs or {}))
        self._read |= given - self._made
        self._made |= set(_memories(out)) - given
        return out


def _memories(tree: Any) -> Iterator[int]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield _memory(leaf)
