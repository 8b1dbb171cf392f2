"""Buffers read by NIXL, NVIDIA's library for moving tensors: by RDMA where the network has it, else over TCP.

UCX, on which NIXL builds, does not encrypt. Whoever reaches an engine and knows its metadata may read its buffers, so
this transport is for networks that only engines can reach. The memory of buffers and of reads is registered once and
used again, as in transport.py.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import weakref
from base64 import b64decode, b64encode
from contextlib import ExitStack
from typing import Any

from banyan.runtime.engine.transfer.transport import (
    HEADER,
    Buffer,
    Buffers,
    ThreadRead,
    TransferFailed,
    TransferRead,
    Transport,
    head,
)
from banyan.runtime.errors import ConfigError

POLL = 0.0005
"""Seconds between two checks of a transfer's state."""


class Nixl(Transport):
    """The transport over NIXL, NVIDIA's library for moving tensors. See the module."""

    def __init__(self, wake: int) -> None:
        """wake: an eventfd that becomes readable when a read has ended. ConfigError: NIXL is not installed."""
        try:
            from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
        except ImportError as e:
            raise ConfigError(f"kv_transfer is nixl, which is not installed ({e}); pip install 'banyan[nixl]'") from e
        logging.getLogger("nixl").setLevel(logging.WARNING)
        sync = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        self.agent = nixl_agent(secrets.token_hex(16), nixl_agent_config(backends=["UCX"], sync_mode=sync))
        self.wake = wake
        self._targets, self._lock = Buffers(), threading.Lock()
        self._registered: weakref.WeakKeyDictionary[Buffer, bytes] = weakref.WeakKeyDictionary()  # -> its metadata
        self._reads: weakref.WeakSet[_NixlRead] = weakref.WeakSet()

    def describe(self, buffer: Buffer) -> str:
        metadata = b64encode(self._register(buffer)).decode()
        return f"nixl {metadata} {buffer.address} {buffer.name.hex()} {buffer.number}"

    def _register(self, buffer: Buffer) -> bytes:
        if buffer not in self._registered:
            try:
                with ExitStack() as undo:
                    memory = self.agent.register_memory([(buffer.address, HEADER + buffer.n_bytes, 0, "")], "DRAM")
                    undo.callback(self.agent.deregister_memory, memory)
                    self._registered[buffer] = self.agent.get_partial_agent_metadata(memory, inc_conn_info=True)
                    buffer.before_close = undo.pop_all().close
            except Exception as e:  # NIXL's errors have no common base class
                raise TransferFailed(f"NIXL cannot register the memory of a buffer: {e!r}") from e
        return self._registered[buffer]

    def read(self, place: str, n_bytes: int) -> TransferRead | None:
        kind, *words = place.split(" ")
        if kind != "nixl" or len(words) != 4:
            return None
        metadata, address, name, number = words
        try:
            peer = self.agent.add_remote_agent(b64decode(metadata))
        except Exception as e:  # NIXL's errors have no common base class
            raise TransferFailed(f"NIXL does not reach the other engine: {e!r}") from e
        with self._lock:
            target = self._targets.take(n_bytes)
        try:
            self._register(target)
        except TransferFailed:
            self.give(target)
            raise
        expected = head(bytes.fromhex(name), int(number))
        read = _NixlRead(self, peer, int(address), expected, target, n_bytes)
        self._reads.add(read)
        return read

    def give(self, target: Buffer) -> None:
        """Take back the memory of a read that has ended."""
        with self._lock:
            self._targets.give(target)

    def trim(self) -> None:
        """Free the memory of reads that has not been used for a long time."""
        with self._lock:
            self._targets.trim()

    def close(self) -> None:
        for read in list(self._reads):
            read.close()
            read.thread.join()
        self._targets.close()


class _NixlRead(ThreadRead):
    """Reads a buffer, on a thread that waits for NIXL."""

    def __init__(
        self, nixl: Nixl, peer: str | bytes, address: int, expected: bytes, target: Buffer, n_bytes: int
    ) -> None:
        """expected: the `head` of the buffer while it has the described content; another `head` means that the content
        was overwritten."""
        self._nixl, self._peer, self._address, self._expected, self._target = nixl, peer, address, expected, target
        super().__init__(target.memory[:n_bytes], nixl.wake, "banyan-kv-nixl")

    def _fetch(self) -> None:
        for n_bytes in (HEADER + len(self._memory), HEADER):  # read the head again: it changes before the content does
            self._fetch_first(n_bytes)
            if self._target.head != self._expected and not self._is_closed:
                raise TransferFailed("the buffer was filled with other pages meanwhile")

    def _release(self) -> None:
        self._nixl.give(self._target)

    def _fetch_first(self, n_bytes: int) -> None:
        """Read the first n_bytes of the buffer, or until this read is closed."""
        agent = self._nixl.agent
        here, there = (
            agent.get_xfer_descs([(address, n_bytes, 0)], "DRAM") for address in (self._target.address, self._address)
        )
        transfer: Any = agent.initialize_xfer("READ", here, there, self._peer)
        try:
            state = agent.transfer(transfer)
            while state == "PROC" and not self._is_closed:
                time.sleep(POLL)
                state = agent.check_xfer_state(transfer)
        finally:
            transfer.release()
        if state == "ERR":
            raise TransferFailed("the other engine is gone, or its buffer")
