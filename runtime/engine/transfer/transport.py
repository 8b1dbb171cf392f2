"""Moving the bytes of pages from one engine to another: the interface of a transport, and shared memory on one host.

An engine copies pages into a buffer, and tells with `describe` where the buffer is. A buffer's memory is registered
once and used again: faulting in 112 MiB of new memory takes 100 ms of CPU, and a copy only 15 ms. So a buffer may be
filled with other pages while a peer still reads it. To detect that, the owner changes a number at the buffer's start
before it writes, and a reader compares the number after it has read (a seqlock).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable

HEADER = 64
"""Bytes at the start of a buffer: its name and the number of its content."""
KEPT = 60.0
"""Seconds for which unused buffers and unused maps of others' buffers are kept."""
MAX_BUFFERS = 1 << 30
"""Maximum number of bytes of all buffers of an engine. A prefix that does not fit is exported in part."""
_HEAD = struct.Struct("=16sQ")
_GRAIN = 1 << 20  # sizes of buffers are multiples of this


class TransferFailed(Exception):
    """The bytes did not arrive, or are not the exported ones. The prefix is computed instead."""


def head(name: bytes, number: int) -> bytes:
    """The header of a buffer, _HEAD.size bytes: its name, and the number that counts how often its content was
    replaced."""
    return _HEAD.pack(name, number)


class Buffer:
    """Memory for pages that other engines read, or that are read from other engines. memory: the bytes of the pages.
    number: counts how often the content was replaced. address: where the buffer begins, with its header, in this
    process. before_close: called before the memory is released."""

    def __init__(self, n_bytes: int) -> None:
        """OSError: no file descriptor or no memory is left."""
        self.name, self.number, self.unused_since = secrets.token_bytes(16), 0, 0.0
        self.n_bytes = -(-n_bytes // _GRAIN) * _GRAIN
        self.fd = os.memfd_create("banyan-kv", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, HEADER + self.n_bytes)
            self._map = mmap.mmap(self.fd, HEADER + self.n_bytes)
        except OSError:
            os.close(self.fd)
            raise
        self.memory = memoryview(self._map)[HEADER:]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.before_close: Callable[[], object] = lambda: None
        self.reuse()

    @property
    def head(self) -> bytes:
        """The header at the start of the buffer, as it is now."""
        return self._map[: _HEAD.size]

    def reuse(self) -> None:
        """Mark the content as outdated before other content is written. Peers discard what they read from now on."""
        self.number += 1
        self._map[: _HEAD.size] = head(self.name, self.number)

    def close(self) -> None:
        self.reuse()
        self.before_close()
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # a tensor over it still exists; the map ends with it
            self.memory.release()
            self._map.close()


class Buffers:
    """Buffers for KV transfer, of at most `limit` bytes together. Free buffers are kept, to be used again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, limit: int = MAX_BUFFERS) -> None:
        self._clock, self._limit = clock, limit
        self._free: list[Buffer] = []
        self.n_used = 0  # bytes of the buffers in use

    @property
    def n_bytes(self) -> int:
        return self.n_used + sum(buffer.n_bytes for buffer in self._free)

    @property
    def room(self) -> int:
        """The largest size in bytes that `take` can be asked for now."""
        return self._limit - self.n_used

    def take(self, n_bytes: int) -> Buffer:
        """A buffer of at least n_bytes, at most `room`: the smallest free one that is large enough, or a new one.
        OSError: a new one cannot be made."""
        self.trim(n_bytes)
        fitting = [buffer for buffer in self._free if buffer.n_bytes >= n_bytes]
        buffer = min(fitting, key=lambda one: one.n_bytes) if fitting else Buffer(n_bytes)
        if fitting:
            self._free.remove(buffer)
        self.n_used += buffer.n_bytes
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. Peers that still read it discard what they read."""
        self.n_used -= buffer.n_bytes
        buffer.reuse()
        buffer.unused_since = self._clock()
        self._free.append(buffer)

    def trim(self, n_more: int = 0) -> None:
        """Close the free buffers that have not been used for a long time, or that leave no room for n_more bytes."""
        old = self._clock() - KEPT
        for buffer in sorted(self._free, key=lambda one: one.unused_since):
            is_short = self.n_bytes + n_more > self._limit and buffer.n_bytes < n_more
            if buffer.unused_since < old or is_short:
                self._free.remove(buffer)
                buffer.close()

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


class TransferRead:
    """One buffer of a peer that is being read."""

    def poll(self) -> memoryview | None:
        """Return the bytes, or None while they are on their way. TransferFailed: they will not arrive."""
        raise NotImplementedError

    def confirm(self) -> None:
        """Check, after the bytes were used, that they were the exported ones. TransferFailed: they were overwritten
        meanwhile."""

    def close(self) -> None:
        """Stop reading. Idempotent."""


class ThreadRead(TransferRead):
    """Copies a peer's buffer on a separate thread, so what arrives needs no confirmation. Subclasses define `_fetch`,
    and `_release` if the memory must be given back."""

    def __init__(self, memory: memoryview, wake: int, name: str) -> None:
        """Start to read on a new thread. memory: where the bytes go. wake: an eventfd, to which the thread writes when
        the read has ended. name: the name of the thread."""
        self._memory, self._wake, self._lock = memory, wake, threading.Lock()
        self._is_closed = self._has_ended = False
        self._error = ""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            self._release()
            raise

    def poll(self) -> memoryview | None:
        if not self._has_ended:
            return None
        if self._error:  # set before _has_ended
            raise TransferFailed(self._error)
        return self._memory

    def close(self) -> None:
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            if is_first and self._has_ended:
                self._release()

    def _run(self) -> None:
        try:
            self._fetch()
        except Exception as e:  # the libraries' errors have no common base
            self._error = str(e) if isinstance(e, TransferFailed) else f"the other engine could not be read: {e!r}"
        with self._lock:
            self._has_ended = True
            if self._is_closed:
                self._release()
        os.eventfd_write(self._wake, 1)

    def _fetch(self) -> None:
        """Fill the memory and check it; return early once `_is_closed` is set. TransferFailed: the bytes did not
        arrive."""
        raise NotImplementedError

    def _release(self) -> None:
        """Give the memory back. Called once, after the read has both ended and been closed, or if its thread could not
        be started."""


class Transport:
    """One way to move pages between engines."""

    def describe(self, buffer: Buffer) -> str:
        """Where peers find the current content of a buffer. TransferFailed: this transport cannot give it to them."""
        raise NotImplementedError

    def read(self, place: str, n_bytes: int) -> TransferRead | None:
        """Begin to read the content that a peer described as `place`. None: this transport cannot reach that place.
        TransferFailed: the content is gone."""
        raise NotImplementedError

    def trim(self) -> None:
        """Free memory that has not been used for a long time."""

    def close(self) -> None:
        """Stop all reads, and free all memory."""
        raise NotImplementedError


def this_host() -> str:
    """Return an identifier that is equal in all processes that can map each other's memory: this machine's boot id and
    the PID namespace. If they cannot be read, it is random, so that it equals no other process's."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return secrets.token_hex(16)


class SharedMemory(Transport):
    """The transport over memory of another process on the same host, found by process id and file descriptor. The
    memory has no name in a file system, so nothing is left behind, however its owner ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._host = clock, this_host()
        self._maps: dict[str, tuple[mmap.mmap, float]] = {}  # buffer -> map, when it was used last

    def describe(self, buffer: Buffer) -> str:
        return f"memory {self._host} {os.getpid()} {buffer.fd} {buffer.name.hex()} {buffer.number}"

    def read(self, place: str, n_bytes: int) -> TransferRead | None:
        kind, _, rest = place.partition(" ")
        if kind != "memory" or not rest.startswith(f"{self._host} "):
            return None
        pid, fd, name, number = rest.removeprefix(self._host).split()
        mapped = self._open(int(pid), int(fd), name)
        if len(mapped) < HEADER + n_bytes:
            raise TransferFailed(f"the buffer has {len(mapped) - HEADER} bytes, and {n_bytes} were exported")
        return _MappedRead(mapped, head(bytes.fromhex(name), int(number)), n_bytes)

    def _open(self, pid: int, fd: int, name: str) -> mmap.mmap:
        if name in self._maps:
            mapped = self._maps[name][0]
        else:
            try:
                with open(f"/proc/{pid}/fd/{fd}", "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            except (OSError, ValueError) as e:
                raise TransferFailed(f"the memory of process {pid} cannot be read: {e}") from e
        self._maps[name] = mapped, self._clock()
        return mapped

    def trim(self) -> None:
        """Forget the maps that have not been used for a long time. They are unmapped when nobody reads them any
        more."""
        old = self._clock() - KEPT
        for name in [name for name, (_, used) in self._maps.items() if used < old]:
            del self._maps[name]

    def close(self) -> None:
        self._maps.clear()


class _MappedRead(TransferRead):
    """Reads a buffer in another process on the same host. Its memory is mapped into this process, so its bytes are
    available at once, without a copy."""

    def __init__(self, mapped: mmap.mmap, head: bytes, n_bytes: int) -> None:
        self._map, self._head, self._n_bytes = mapped, head, n_bytes

    def poll(self) -> memoryview | None:
        self.confirm()
        return memoryview(self._map)[HEADER : HEADER + self._n_bytes]

    def confirm(self) -> None:
        if self._map[: _HEAD.size] != self._head:
            raise TransferFailed("the buffer was filled with other pages meanwhile")
