"""The header of a GGUF file: metadata and tensor table, read with `struct` alone.

Source: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore import ModelError
from warcore_model_llama.refusals import damaged, unreadable

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = b"GGUF"
VERSIONS: Final = frozenset({2, 3})
LONGEST_NAME: Final = 256
"""Characters; a longer name of a key or tensor is taken for damage."""

_SCALARS: Final = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]

BLOCKS: Final[dict[int, tuple[int, int]]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 28: (1, 8), 29: (256, 56), 30: (1, 2),
}  # fmt: skip
"""Weights per block and bytes per block of each tensor type that can be dequantized."""


@attrs.frozen
class Strings:
    """An array of strings that is still in the file."""

    offset: int
    count: int


@attrs.frozen
class GgufTensor:
    """One row of the tensor table. shape: [out, in] for matrices, slowest first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    """Bytes from the start of the file."""
    size: int
    """Bytes."""


@attrs.frozen
class GgufHeader:
    """What a GGUF file says of itself."""

    path: Path
    metadata: dict[str, Any]
    """Scalars, tuples, text, and `Strings` for arrays of text."""
    tensors: dict[str, GgufTensor]

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of `key` as `kind`; `default` if it is absent, ModelError without one."""
        value = self.metadata.get(key, default)
        if value is None:
            raise damaged(self.path, f"the header lacks {key}")
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise damaged(self.path, f"{key} in the header is not of type {kind.__name__}")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        """A value that is a name, fit to stand in a message."""
        value = self.get(key, str, default)
        if len(value) > LONGEST_NAME or not value.isprintable():
            raise damaged(self.path, f"{key} in the header is not a name")
        return str(value)

    def strings(self, key: str) -> list[str]:
        """An array of text, read now."""
        at = self.get(key, Strings)
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            cursor = _Cursor(self.path, data, at.offset)
            return [cursor.text() for _ in range(at.count)]


def check_magic(path: Path) -> None:
    """ModelError unless the file can be read and starts as a GGUF file does."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise unreadable(path, error) from error
    if start != MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file: it does not start with 'GGUF'",
            next=f"fetch {path.name} again, or convert the model with llama.cpp; "
            "a directory of safetensors is --model safetensors:DIRECTORY",
        )


def read_header(path: Path) -> GgufHeader:
    """The header. ModelError for a foreign, damaged or truncated file, naming file and place."""
    check_magic(path)
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _parse(_Cursor(path, data, 4), len(data))
    except OSError as error:
        raise unreadable(path, error) from error


def _parse(cursor: _Cursor, size: int) -> GgufHeader:
    path = cursor.path
    version = cursor.scalar(_U32)
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        kind = "a big-endian GGUF file" if swapped else f"GGUF version {version}"
        raise ModelError(
            f"{path} is {kind}; little-endian versions 2 and 3 can be read",
            next="convert the model again with a present llama.cpp, without --bigendian",
        )
    tensor_count, value_count = cursor.scalar(_U64), cursor.scalar(_U64)
    metadata = {}
    for _ in range(value_count):
        key = cursor.name()
        metadata[key] = cursor.value(cursor.scalar(_U32), key)
    rows = [_tensor_row(cursor) for _ in range(tensor_count)]
    align = metadata.get("general.alignment", 32)
    if type(align) is not int or align <= 0:
        raise damaged(path, "general.alignment in the header is not a positive number")
    start = -(-cursor.offset // align) * align
    tensors = {row.name: attrs.evolve(row, offset=start + row.offset) for row in rows}
    for tensor in tensors.values():
        if tensor.offset + tensor.size > size:
            end = tensor.offset + tensor.size
            raise damaged(
                path, f"truncated: tensor {tensor.name} ends at byte {end}, the file at {size}"
            )
    return GgufHeader(path, metadata, tensors)


def _tensor_row(cursor: _Cursor) -> GgufTensor:
    """A row whose offset still counts from the start of the data."""
    name = cursor.name()
    rank = cursor.scalar(_U32)
    if rank > 4:
        raise damaged(cursor.path, f"tensor {name} has {rank} dimensions; 4 are the most")
    # GGUF lists the fastest dimension first.
    shape = tuple(cursor.scalar(_U64) for _ in range(rank))[::-1]
    kind, offset = cursor.scalar(_U32), cursor.scalar(_U64)
    if kind not in BLOCKS:
        raise ModelError(
            f"{cursor.path}: tensor {name} has type {kind}, which cannot be read",
            next="use a file of the same model quantized as F16, Q8_0 or Q4_K_M",
        )
    per_block, block_bytes = BLOCKS[kind]
    if shape and shape[-1] % per_block:
        raise damaged(cursor.path, f"rows of tensor {name} do not fill whole blocks")
    count = 1
    for length in shape:
        count *= length
    return GgufTensor(name, shape, kind, offset, count // per_block * block_bytes)


class _Cursor:
    """Reads forward through the header and refuses to leave the file."""

    def __init__(self, path: Path, data: mmap.mmap, offset: int) -> None:
        self.path = path
        self.data = data
        self.offset = offset
        self._size = len(data)

    def scalar(self, form: struct.Struct) -> Any:
        if self.offset + form.size > self._size:
            self._truncated()
        (value,) = form.unpack_from(self.data, self.offset)
        self.offset += form.size
        return value

    def text(self) -> str:
        length = self.scalar(_U64)
        end = self.offset + length
        if end > self._size:
            self._truncated()
        raw = self.data[self.offset : end]
        self.offset = end
        return raw.decode(errors="replace")

    def name(self) -> str:
        start, name = self.offset, self.text()
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise damaged(self.path, f"no name stands at byte {start} of the header")
        return name

    def value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise damaged(self.path, f"{key} in the header has the unknown type {kind}")
        kind, count = self.scalar(_U32), self.scalar(_U64)
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise damaged(self.path, f"{key} in the header is an array of type {kind}")
        form = _SCALARS[kind]
        end = self.offset + count * form.size
        if end > self._size:
            self._truncated()
        values = tuple(value for (value,) in form.iter_unpack(self.data[self.offset : end]))
        self.offset = end
        return values

    def _strings(self, count: int) -> Strings:
        """Walks over the array: only the lengths are looked at."""
        start = offset = self.offset
        data, last, unpack = self.data, self._size - 8, _U64.unpack_from
        for _ in range(count):
            if offset > last:
                self._truncated()
            offset += 8 + unpack(data, offset)[0]
        if offset > self._size:
            self._truncated()
        self.offset = offset
        return Strings(start, count)

    def _truncated(self) -> None:
        raise damaged(
            self.path, f"truncated: its header goes on after the last byte ({self._size})"
        )
