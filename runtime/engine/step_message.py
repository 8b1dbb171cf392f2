"""The message with which rank 0 describes a step to the other ranks: msgpack, preceded by its length in 4 bytes.

It has the changes to KV since the previous step, in their order, and the batch. On a CPU it also has token ids and
wanted rows. On a GPU the ids may be known to the device only, so both are broadcast between the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from socket import MSG_WAITALL, socket
from typing import Any

import msgspec
import numpy as np
import torch

from banyan.kernels.attention.plan import Subtree
from banyan.kernels.attention.ragged import HostTables, from_host
from banyan.kernels.ops import Ragged
from banyan.radix_cache.host_tier import Move
from banyan.runtime.engine.kv_pool import KVPool


class MovePages(msgspec.Struct, tag=True):
    moves: Sequence[Move]


class CopyPages(msgspec.Struct, tag=True):
    copies: Sequence[tuple[int, int, int]]


class CopySlots(msgspec.Struct, tag=True):
    paths: Sequence[tuple[Sequence[int], Sequence[int]]]


KVChange = MovePages | CopyPages | CopySlots
"""A call of the method of `KVPool` with this argument."""


class BatchLayout(msgspec.Struct, array_like=True):
    """The fields of `Ragged` from which another rank builds the batch on its device."""

    host: HostTables
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    subtrees: tuple[Subtree, ...]
    n_drafted: int
    deterministic: bool
    tail: BatchLayout | None
    windowed: BatchLayout | None


class StepMessage(msgspec.Struct, array_like=True):
    """What another rank needs to know about a step. n_wanted: number of rows whose logits are needed. numbers: the
    token ids of all rows, then the indexes of the wanted rows, int64; None on a GPU, where they are broadcast between
    the devices instead."""

    changes: Sequence[KVChange]
    layout: BatchLayout
    n_wanted: int
    numbers: np.ndarray | None


def layout_of(ragged: Ragged) -> BatchLayout:
    assert ragged.host is not None
    tail, windowed = (None if more is None else layout_of(more) for more in (ragged.tail, ragged.windowed))
    return BatchLayout(
        ragged.host, ragged.q_lens, ragged.kv_lens, ragged.subtrees, ragged.n_drafted, ragged.deterministic, tail,
        windowed,
    )  # fmt: skip


def batch_of(layout: BatchLayout, device: torch.device) -> Ragged:
    """The batch that `layout_of` was given, with its tensors on `device`."""
    host, q_lens, kv_lens, subtrees, n_drafted, deterministic, *more = msgspec.structs.astuple(layout)
    tail, windowed = (None if each is None else batch_of(each, device) for each in more)
    batch = from_host(host, q_lens, kv_lens, subtrees, n_drafted, deterministic, tail, device)
    return batch._replace(windowed=windowed)


def make(changes: Sequence[KVChange], store: KVPool) -> None:
    """Make the changes to KV in `store`, in their order."""
    for change in changes:
        match change:
            case MovePages(moves):
                store.move(moves)
            case CopyPages(copies):
                store.copy(copies)
            case CopySlots(paths):
                store.copy_slots(paths)


def _encode_array(array: np.ndarray) -> tuple[str, tuple[int, ...], memoryview]:
    return array.dtype.str, array.shape, array.data


def _decode_array(_: type, encoded: tuple[str, list[int], bytes]) -> Any:
    dtype, shape, data = encoded
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # writable, as torch wants it


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoder = msgspec.msgpack.Decoder(StepMessage, dec_hook=_decode_array)


def pack(message: StepMessage) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(4, "little") + data


def receive(peer: socket) -> StepMessage | None:
    """Receive the next step from rank 0. Returns None if rank 0 has ended."""
    n = int.from_bytes(peer.recv(4, MSG_WAITALL), "little")
    data = peer.recv(n, MSG_WAITALL) if n else b""
    return _decoder.decode(data) if len(data) == n > 0 else None
