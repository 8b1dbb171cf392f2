"""Reads the header of a GGUF file: its metadata, and the offset, shape and format of each tensor.

The format is described in github.com/ggml-org/ggml/blob/master/docs/gguf.md; versions 2 and 3, little-endian, are
supported. Every count in the header is compared with the bytes that are left, before memory is allocated for it.

The reader uses neither torch nor numpy, because the server and the command line need it, too. For the 49,152 tokens of
a small vocabulary, it takes 0.1 s, and the package `gguf` takes 6 s (one core of an AMD EPYC).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from array import array
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.stored import Stored

MAX_HEADER = 64 << 20
"""Maximum number of bytes of a header. A vocabulary of 262,144 tokens with its merges takes 14 MB."""
_MAX_DIMENSIONS = 4

# GGUF's number for a value's type -> the type's code in `struct` and `array`
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Format(NamedTuple):
    """How weights are stored: blocks of `block` weights in `n_bytes` bytes. number: GGUF's number for the format."""

    number: int
    block: int
    n_bytes: int


FORMATS = {
    "F32": Format(0, 1, 4),
    "F16": Format(1, 1, 2),
    "BF16": Format(30, 1, 2),
    "Q4_0": Format(2, 32, 18),
    "Q4_1": Format(3, 32, 20),
    "Q5_0": Format(6, 32, 22),
    "Q5_1": Format(7, 32, 24),
    "Q8_0": Format(8, 32, 34),
    "Q4_K": Format(12, 256, 144),
    "Q5_K": Format(13, 256, 176),
    "Q6_K": Format(14, 256, 210),
}
_BY_NUMBER = {form.number: name for name, form in FORMATS.items()}
_OTHER_FORMATS = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


class GgufHeader(NamedTuple):
    """The header of a GGUF file. metadata: an array of numbers is a list. tensors: where each tensor is stored."""

    metadata: dict[str, Any]
    tensors: dict[str, Stored]


def shards(file: Path) -> list[Path]:
    """The files of a model whose first file is `file`: NAME-00001-of-00003.gguf is the first of three. BadModel: a file
    is missing."""
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", file.name)
    if match is None:
        return [file]
    files = [file.with_name(f"{match[1]}-{i + 1:05}-of-{match[3]}.gguf") for i in range(int(match[3]))]
    if missing := [path.name for path in files if not path.is_file()]:
        raise BadModel(f"{file.parent} lacks {len(missing)} of {len(files)} shards: {', '.join(missing[:4])}")
    return files


def read_header(file: Path) -> GgufHeader:
    """Read the header of a GGUF file. The result is cached until the file changes. BadModel: the file is broken.
    Unsupported: the version of GGUF or the format of some weights is not supported."""
    try:
        status = file.stat()
        return _read(file, status.st_size, status.st_mtime_ns)
    except (OSError, struct.error, UnicodeDecodeError) as e:
        raise BadModel(f"{file} cannot be read as GGUF: {type(e).__name__}: {e}") from e


def read_floats(stored: Stored) -> list[float]:
    """Read a tensor whose format is F32 into a list, without torch."""
    numbers = array("f")
    with stored.file.open("rb") as f:
        f.seek(stored.offset)
        numbers.frombytes(f.read(stored.n_bytes))
    return numbers.tolist()


@lru_cache(maxsize=4)
def _read(file: Path, size: int, changed: int) -> GgufHeader:
    if size < 24:
        raise BadModel(f"{file} is not a whole GGUF file ({size} bytes)")
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _HeaderReader(file, data).header()


class _HeaderReader:
    """Reads a header from start to end. Each method reads the next value."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file, self._data, self._at = file, data, 0
        self._end = min(len(data), MAX_HEADER)

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise BadModel(f"{self._file} is not a GGUF file")
        version = self._number("I")
        if version not in (2, 3):
            raise Unsupported(
                f"{self._file} is GGUF of version {version} or big-endian; little-endian files of versions 2 and 3 are "
                "supported"
            )
        n_tensors, n_values = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(self._checked(n_values, 13)):
            key = self._string()
            metadata[key] = self._value(self._number("I"))
        found = [self._tensor() for _ in range(self._checked(n_tensors, 24))]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise BadModel(f"{self._file} has general.alignment {alignment!r}")
        start = -(-self._at // alignment) * alignment
        tensors = {name: tensor._replace(offset=start + tensor.offset) for name, tensor in found}
        if len(tensors) < len(found):
            raise BadModel(f"{self._file} has two tensors of one name")
        needed = max((tensor.offset + tensor.n_bytes for tensor in tensors.values()), default=start)
        if needed > len(self._data):
            raise BadModel(
                f"{self._file} is truncated: it has {len(self._data)} bytes, and its header requires {needed}"
            )
        return GgufHeader(metadata, tensors)

    def _tensor(self) -> tuple[str, Stored]:
        """Read the entry of one tensor: its name, shape, format and offset. The offset counts from the start of the
        tensor data."""
        name = self._string()
        if (n_dimensions := self._number("I")) > _MAX_DIMENSIONS:
            raise BadModel(f"{self._file}: {name} has {n_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dimensions))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        if kind not in _BY_NUMBER:
            dtype = _OTHER_FORMATS.get(kind, f"format {kind}")
            raise Unsupported(f"{self._file}: {name} is stored as {dtype}; supported: {', '.join(FORMATS)}")
        form = FORMATS[dtype := _BY_NUMBER[kind]]
        if not shape or shape[-1] % form.block or not all(shape):
            raise BadModel(f"{self._file}: {name} has shape {list(shape)}, which {dtype} cannot store")
        return name, Stored(self._file, dtype, shape, offset, math.prod(shape) // form.block * form.n_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(self._code(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return [self._string() for _ in range(self._checked(count, 8))]
        code = self._code(kind)
        numbers = array("B" if code == "?" else code)
        numbers.frombytes(self._bytes(self._checked(count, numbers.itemsize) * numbers.itemsize))
        return numbers.tolist()

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise BadModel(f"{self._file}: a value in its metadata is of the unknown type {kind}")
        return _NUMBERS[kind]

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode()

    def _bytes(self, count: int) -> bytes:
        start = self._at
        self._at += self._checked(count, 1)
        return self._data[start : self._at]

    def _checked(self, count: int, width: int) -> int:
        """Return `count`, a count in the header, after a check that so many values fit into the rest of the header.
        width: the fewest bytes of a value. BadModel: they do not fit."""
        if count > (self._end - self._at) // width:
            raise BadModel(
                f"{self._file} is truncated or broken: at byte {self._at} its header announces {count:,} values of at "
                f"least {width} bytes, and the header may have {self._end:,} bytes"
            )
        return count
