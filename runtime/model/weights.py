"""Reads checkpoints, safetensors or GGUF, one tensor at a time, so that a checkpoint is never in memory twice.

This file parses the headers itself, without torch, so that a truncated or foreign file is found before memory is
allocated. The safetensors library maps the data when a tensor is taken.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.gguf import model as gguf
from banyan.runtime.model.gguf.container import shards
from banyan.runtime.model.quantised.config import split
from banyan.runtime.model.stored import Stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from banyan.kernels.linear.grouped import Grouped

Progress = Callable[[int, int], None]  # (bytes read so far, bytes in total)

_FLOATS = {"F64", "F32", "F16", "BF16"}
_KNOWN = _FLOATS | {"I64", "I32", "I8", "U8", "F8_E4M3", "BOOL"}  # quantised weights, tables and masks
_SAMPLE = 256  # bytes per sample of a tensor in a fingerprint
_MAX_HEADER = 100 << 20  # as in the safetensors library
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class Checkpoint:
    """The tensors of a model directory or .gguf file by name. A context manager that closes the files it opened. dtype:
    the dtype to which tensors from GGUF are converted. files: the files to read; None: the weights of the model at
    `path`.

    Raises BadModel if there are no safetensors, a shard is missing or a file is broken; Unsupported for unknown dtypes.
    """

    def __init__(
        self, path: Path, progress: Progress | None = None, dtype: torch.dtype | None = None,
        files: Sequence[Path] | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self._dtype = dtype
        self._gguf = gguf.read(path) if gguf.is_gguf(path) else None
        self.tensors = dict(self._gguf.tensors) if self._gguf else {}
        files = weight_files(path) if files is None and self._gguf is None else files
        for file in files or ():
            for name, stored in _header(file).items():
                if name in self.tensors:
                    raise BadModel(f"{name} is both in {self.tensors[name].file.name} and in {file.name} of {path}")
                self.tensors[name] = stored
        self._progress = progress or (lambda done, total: None)
        self._n_read = 0
        self._taken: set[str] = set()
        self._open: dict[Path, Any] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.clear()
        self._closing.close()

    @property
    def n_parameters(self) -> int:
        return sum(stored.n_elements for stored in self.tensors.values())

    @cached_property
    def n_bytes(self) -> int:
        return sum(stored.n_bytes for stored in self.tensors.values())

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @cached_property
    def modules(self) -> dict[str, set[str]]:
        """The tensors of each module, by their names inside the module."""
        found: dict[str, set[str]] = {}
        for name in self.tensors:
            module, suffix = split(name)
            found.setdefault(module, set()).add(suffix)
        return found

    def take(self, name: str, *shape: int, dtype: str | None = None) -> Tensor:
        """Read the tensor `name` to the CPU. A tensor from safetensors keeps its stored dtype; one from GGUF is
        converted to the checkpoint's `dtype`. dtype: the dtype in which safetensors must have the tensor; None: any
        float. BadModel: the tensor is missing, or its shape is not `shape`; Unsupported: it is stored in another
        dtype."""
        stored = self.tensors.get(name)
        if stored is None:
            raise BadModel(f"{self.path} has no tensor {name}; the checkpoint is incomplete or of another architecture")
        if shape and stored.shape != shape:
            raise BadModel(f"{name} has shape {list(stored.shape)}, but the configuration requires {list(shape)}")
        weight = self._read(name, stored, dtype)
        self._count(name)
        return weight

    def take_grouped(self, name: str, *shape: int) -> Grouped | None:
        """Read the quantised matrix `name` from GGUF. Returns None if GGUF has no quantised matrix of this name and
        shape. BadModel: the file cannot be read."""
        stored = self.tensors.get(name)
        if self._gguf is None or stored is None or stored.shape != shape:
            return None
        try:
            weight = self._gguf.take_grouped(name)
        except (OSError, ValueError) as e:
            raise BadModel(f"{stored.file} cannot be read: {e}") from e
        if weight is not None:
            self._count(name)
        return weight

    def _count(self, name: str) -> None:
        if name not in self._taken:
            self._taken.add(name)
            self._n_read += self.tensors[name].n_bytes
            self._progress(self._n_read, self.n_bytes)

    def _read(self, name: str, stored: Stored, dtype: str | None) -> Tensor:
        from safetensors import SafetensorError, safe_open

        try:
            if self._gguf is not None:
                assert self._dtype is not None
                return self._gguf.take(name, self._dtype)
            if stored.dtype not in (_FLOATS if dtype is None else {dtype}):
                raise Unsupported(f"{name} is stored as {stored.dtype}, but config.json requires {dtype or 'a float'}")
            if stored.file not in self._open:
                self._open[stored.file] = self._closing.enter_context(safe_open(stored.file, framework="pt"))
            tensor: Tensor = self._open[stored.file].get_tensor(name)
            return tensor
        except (SafetensorError, OSError, ValueError) as e:
            raise BadModel(f"{stored.file} cannot be read: {e}") from e

    def finish(self, ignore: Callable[[str], bool]) -> None:
        """Check that every tensor was taken, except those for which `ignore` is true. Unsupported: some were not; the
        message lists them."""
        left = sorted(name for name in self.tensors.keys() - self._taken if not ignore(name))
        if left:
            shown = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
            raise Unsupported(f"{self.path} has weights that this decoder does not use: {shown}")
        self._progress(self.n_bytes, self.n_bytes)


class Headers(Checkpoint):
    """A checkpoint whose tensors have shapes but no content, for a model that is only measured. device: meta, or cpu
    inside a FakeTensorMode, so that no tensor takes memory."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(path, dtype=dtype)
        self.device = device

    def _read(self, name: str, stored: Stored, dtype: str | None) -> Tensor:
        import torch

        return torch.empty(stored.shape, dtype=self._dtype, device=self.device)

    def take_grouped(self, name: str, *shape: int) -> Grouped | None:
        from banyan.runtime.model.gguf.dequantise import empty_grouped

        stored = self.tensors.get(name)
        return empty_grouped(stored, self.device) if self._gguf and stored and stored.shape == shape else None

    def finish(self, ignore: Callable[[str], bool]) -> None:
        """Does nothing. Whether `load` uses a tensor may depend on the tensor's content, which is not read here."""


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model directory, as listed in its index if it has one; the shards of a .gguf file."""
    if gguf.is_gguf(path):
        return shards(path)
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            files = [path / name for name in names]
            missing = [file.name for file in files if not file.is_file() or file.parent != path]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise BadModel(f"{index} is broken: {type(e).__name__}: {e}") from e
        if missing:
            raise BadModel(f"{path} lacks {len(missing)} of {len(files)} shards: {', '.join(missing[:4])}")
        return files
    single = path / "model.safetensors"
    if files := [single] if single.is_file() else sorted(path.glob("model*.safetensors")):
        return files
    pickled = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    found = f"{path} has pickled weights only ({', '.join(pickled[:3])})" if pickled else f"{path} has no safetensors"
    raise BadModel(
        f"{found}. Pickles can run any code and are never opened; convert weights that you trust with transformers: "
        'm = AutoModelForCausalLM.from_pretrained("DIR"); m.save_pretrained("NEW_DIR"), which writes safetensors'
    )


def version(path: Path) -> str:
    """Returns the names, sizes and modification times of the files, which identify the weights and configuration in a
    directory on this machine without reading them."""
    files = [*weight_files(path), *sorted(path.glob("config.json"))]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return ";".join(f"{name} {size} {changed}" for name, size, changed in facts)


def fingerprint(path: Path) -> bytes:
    """Identifies the weights in a directory on any machine: a 16-byte digest of config.json, and of each tensor's name,
    dtype, shape, offset, and samples from its start, middle and end. Takes 10 ms for 300 tensors. Changes elsewhere in
    a tensor are not detected; `version` detects them."""
    state = blake2b(digest_size=16)
    with suppress(FileNotFoundError):
        state.update(gguf.read_bytes(path / "config.json"))
    for name, stored in sorted(Checkpoint(path).tensors.items()):
        state.update(f"{name} {stored.dtype} {stored.shape} {stored.offset}".encode())
        start, end = stored.offset, stored.offset + stored.n_bytes
        with stored.file.open("rb") as f:
            for at in (start, (start + end) // 2, max(start, end - _SAMPLE)):
                f.seek(at)
                state.update(f.read(min(_SAMPLE, end - at)))
    return state.digest()


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


def _header(file: Path) -> dict[str, Stored]:
    """Returns name -> place and form of each tensor in a safetensors file. BadModel: the file is broken or incomplete;
    Unsupported: a dtype is unknown."""
    try:
        size = file.stat().st_size
        with file.open("rb") as f:
            start = f.read(8)
            n = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER + 1
            if n > min(_MAX_HEADER, size - 8):
                raise BadModel(f"{file} is not a whole safetensors file ({size} bytes)")
            header = msgspec.json.decode(f.read(n), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        end = 8 + n
        stored = {}
        for name, raw in header.items():
            entry = msgspec.json.decode(raw, type=_Entry)
            first, last = entry.data_offsets
            if first > last:
                raise ValueError(f"{name} ends before it starts")
            end = max(end, 8 + n + last)
            stored[name] = Stored(file, entry.dtype, entry.shape, 8 + n + first, last - first)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as e:
        raise BadModel(f"{file} is not a safetensors file: {type(e).__name__}: {e}") from e
    if end != size:
        raise BadModel(f"{file} has {size} bytes, but its header requires {end}; it is truncated or was changed")
    for name, tensor in stored.items():
        if tensor.dtype not in _KNOWN:
            raise Unsupported(f"{name} is stored as {tensor.dtype}; supported: {', '.join(sorted(_KNOWN))}")
    return stored


@contextmanager
def bar(title: str) -> Iterator[Progress | None]:
    """A progress bar on stderr for `load`, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
