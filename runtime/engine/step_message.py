"""The message with which rank 0 describes a step to the other ranks: one buffer of int32, preceded by its length.

The buffer holds the changes to KV since the previous step, in their order, and the batch. On a CPU it also holds token
ids and wanted rows. On a GPU the ids may be known to the device only, so both are broadcast between the devices.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from socket import MSG_WAITALL, socket
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from banyan.kernels.attention.plan import Subtree
from banyan.kernels.attention.ragged import HostTables, from_host
from banyan.kernels.ops import Ragged
from banyan.radix_cache.host_tier import Move
from banyan.runtime.engine.kv_pool import KVPool

Ints: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int32]]"
_MOVE, _COPY, _COPY_SLOTS, _END = range(4)


class KVChanges:
    """Changes to KV that the other ranks have to make too, in order."""

    def __init__(self) -> None:
        self._ints = array("i")

    def move(self, moves: Sequence[Move]) -> None:
        if moves:
            self._add(_MOVE, [x for move in moves for x in (move.is_out, move.device, move.host)])

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        if copies:
            self._add(_COPY, [x for copy in copies for x in copy])

    def copy_slots(self, paths: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        if paths:
            self._add(_COPY_SLOTS, [x for path in paths for x in (len(path[0]), *path[0], *path[1])])

    def _add(self, kind: int, ints: list[int]) -> None:
        self._ints.extend((kind, len(ints), *ints))

    def take(self) -> Ints:
        """Return all changes since the last call, packed as the first part of a step's buffer."""
        ints, self._ints = self._ints, array("i")
        ints.append(_END)
        return np.frombuffer(ints, np.int32)


class Reader:
    """Reads the buffer that describes a step, which rank 0 has sent. Each call continues where the last one ended."""

    def __init__(self, ints: Ints) -> None:
        self._ints, self._at = ints, 0

    def take(self, n: int) -> Ints:
        self._at += n
        return self._ints[self._at - n : self._at]

    def one(self) -> int:
        return int(self.take(1)[0])

    def apply(self, store: KVPool) -> None:
        """Read the changes to KV, with which the buffer begins, and make them in `store`."""
        while (kind := self.one()) != _END:
            ints = self.take(self.one())
            if kind == _MOVE:
                store.move([Move(bool(is_out), device, host) for is_out, device, host in ints.reshape(-1, 3).tolist()])
            elif kind == _COPY:
                store.copy([(source, to, n) for source, to, n in ints.reshape(-1, 3).tolist()])
            else:
                left = iter(ints.tolist())
                store.copy_slots([(list(islice(left, n)), list(islice(left, n))) for n in left])


class StepMessage(NamedTuple):
    """The batch of a step, as another rank reads it. n_wanted: number of rows whose logits are needed. numbers: the
    token ids of all rows, then the indexes of the wanted rows, int64; None on a GPU, where they are broadcast between
    the devices instead."""

    ragged: Ragged
    n_rows: int
    n_wanted: int
    numbers: torch.Tensor | None


def pack(changes: Ints, ragged: Ragged, n_wanted: int, numbers: Sequence[np.ndarray]) -> Ints:
    """Make the buffer that describes a step to the other ranks. changes: see `KVChanges.take`. n_wanted: number of rows
    whose logits are needed. numbers: the ids of all rows and the indexes of the wanted rows; () on a GPU, where they
    are broadcast between the devices instead."""
    parts = [changes, np.array((n_wanted, bool(numbers))), *_pack_ragged(ragged), *numbers]
    n = sum(map(len, parts))
    return np.concatenate([np.array((n,)), *parts], dtype=np.int32, casting="same_kind")


def _pack_ragged(ragged: Ragged) -> list[np.ndarray]:
    host, tail = ragged.host, ragged.tail
    assert host is not None
    shared = [x for one in ragged.subtrees for x in (one.n_keys, len(one.requests), *one.requests)]
    sizes = (
        len(host.kv_len), host.page_table.shape[1], len(host.slots), len(shared), host.ancestors is not None,
        ragged.n_drafted, ragged.deterministic, tail is not None, ragged.windowed is not None,
    )  # fmt: skip
    parts = [np.array(sizes), host.q_start, host.kv_len, host.page_table.ravel(), host.slots, host.position]
    if host.ancestors is not None:
        parts.append(host.ancestors.view(np.int32))
    if shared:
        parts.append(np.array(shared))
    for more in (tail, ragged.windowed):
        parts += [] if more is None else _pack_ragged(more)
    return parts


def unpack(reader: Reader, device: torch.device) -> StepMessage:
    """Read the batch from a buffer whose changes to KV have been read. device: where the batch's tensors go."""
    n_wanted, has_numbers = reader.take(2).tolist()
    ragged = _unpack_ragged(reader, device)
    n_rows = len(ragged.slots)
    numbers = torch.from_numpy(reader.take(n_rows + n_wanted).astype(np.int64)) if has_numbers else None
    return StepMessage(ragged, n_rows, n_wanted, numbers)


def _unpack_ragged(reader: Reader, device: torch.device) -> Ragged:
    n, width, n_rows, n_shared, has_trees, n_drafted, deterministic, *has = reader.take(9).tolist()
    q_start, kv_len, table = reader.take(n + 1), reader.take(n), reader.take(n * width).reshape(n, width)
    slots, position = reader.take(n_rows).astype(np.int64), reader.take(n_rows)
    ancestors = reader.take(2 * n_rows).copy().view(np.int64) if has_trees else None  # a copy is aligned
    subtrees, shared = list[Subtree](), iter(reader.take(n_shared).tolist())
    for n_keys in shared:
        subtrees.append(Subtree(tuple(next(shared) for _ in range(next(shared))), n_keys))
    tail, windowed = (_unpack_ragged(reader, device) if there else None for there in has)
    tables = HostTables(q_start, kv_len, table, slots, position, ancestors)
    q_lens = tuple(np.diff(q_start).tolist())
    whole = from_host(
        tables, q_lens, tuple(kv_len.tolist()), tuple(subtrees), n_drafted, bool(deterministic), tail, device
    )
    return whole._replace(windowed=windowed)


def receive(peer: socket) -> Reader | None:
    """Receive the buffer that describes the next step from rank 0. Returns None if rank 0 has ended."""
    length = np.empty(1, np.int32)
    if peer.recv_into(length.data.cast("B"), 0, MSG_WAITALL) < length.nbytes:
        return None
    ints = np.empty(int(length[0]), np.int32)
    if peer.recv_into(ints.data.cast("B"), 0, MSG_WAITALL) < ints.nbytes:
        return None
    return Reader(ints)
