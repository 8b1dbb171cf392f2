"""The transport for engines on different hosts: buffers are read in chunks with checksums, over ZeroMQ with CURVE.

Whoever knows a buffer's name, 16 random bytes, may read it. Names are sent only over the servers' own connections and
over encrypted sockets; a peer that knows no name gets nothing. The size of a request, the size of a chunk and the
number of chunks that a reader asks for ahead are bounded.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import weakref
from zlib import crc32

import zmq

from banyan.runtime.engine.transfer.transport import Buffer, ThreadRead, TransferFailed, TransferRead, Transport

CHUNK = 1 << 20
AHEAD = 4
"""Maximum number of chunks that a reader has requested but not received yet."""
_ASKED = struct.Struct("=16sQQQ")  # name and number of a buffer; offset and length
_HANDSHAKE = 4096  # bytes of a message beyond its content; CURVE's own are below 1 KiB
_POLL_MS = 500
_HEARTBEAT_MS = 1000
_LOST_MS = 5000  # a peer that does not answer for so long counts as gone


class Chunks(Transport):
    """The transport over ZeroMQ. wake: an eventfd that becomes readable when a read has ended."""

    def __init__(self, host: str) -> None:
        """host: the name or address under which other engines reach this machine."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._buffers: weakref.WeakValueDictionary[bytes, Buffer] = weakref.WeakValueDictionary()
        self._public, secret = zmq.curve_keypair()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_secretkey, self._socket.curve_publickey = secret, self._public
        self._socket.curve_server = True
        _configure(self._socket, _HANDSHAKE)
        for option, value in (zmq.RCVHWM, 4 * AHEAD), (zmq.SNDHWM, 4 * AHEAD), (zmq.ROUTER_MANDATORY, 1):
            self._socket.setsockopt(option, value)
        self._port = self._socket.bind_to_random_port(f"tcp://{host}")
        self._host, self._is_closing = host, False
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._reads: weakref.WeakSet[_ChunkRead] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._serve, name="banyan-kv-chunks", daemon=True)
        self._thread.start()

    def describe(self, buffer: Buffer) -> str:
        self._buffers[buffer.name] = buffer
        key = self._public.decode()
        return f"tcp {self._host}:{self._port} {key} {buffer.name.hex()} {buffer.number}"

    def read(self, place: str, n_bytes: int) -> TransferRead | None:
        kind, *words = place.split(" ")
        if kind != "tcp" or len(words) != 4:
            return None
        address, key, name, number = words
        read = _ChunkRead(self._context, address, key.encode(), bytes.fromhex(name), int(number), n_bytes, self.wake)
        self._reads.add(read)
        return read

    def close(self) -> None:
        self._is_closing = True
        for read in list(self._reads):
            read.close()
            read.thread.join()
        self._thread.join()
        self._context.destroy(0)
        os.close(self.wake)

    def _serve(self) -> None:
        """Answer requests. Runs on a separate thread."""
        socket = self._socket
        while not self._is_closing:
            if not socket.poll(_POLL_MS):
                continue
            peer, asked = socket.recv_multipart()[:2]
            chunk = self._chunk(asked)
            with contextlib.suppress(zmq.ZMQError):  # the peer is gone, or does not read
                socket.send_multipart([peer, asked, crc32(chunk).to_bytes(4, "little"), chunk], zmq.NOBLOCK)
        socket.close(0)

    def _chunk(self, asked: bytes) -> bytes:
        """Return the part of a buffer that a peer has requested. asked: the packed name and number of the buffer, the
        offset and the length in bytes. Returns b"" if the request is malformed or too large, or if the buffer no longer
        has this content."""
        if len(asked) != _ASKED.size:
            return b""
        name, number, offset, length = _ASKED.unpack(asked)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.number != number or length > CHUNK or offset + length > buffer.n_bytes:
            return b""
        try:
            chunk = bytes(buffer.memory[offset : offset + length])
        except ValueError:  # the buffer was closed
            return b""
        return chunk if buffer.number == number else b""


def _configure(socket: zmq.Socket[bytes], max_size: int) -> None:
    """Set the options of both ends. max_size: bytes of a message from the peer."""
    for option, value in (
        (zmq.LINGER, 0), (zmq.MAXMSGSIZE, max_size), (zmq.IPV6, 1), (zmq.HANDSHAKE_IVL, _LOST_MS),
        (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS), (zmq.HEARTBEAT_TIMEOUT, _LOST_MS),
    ):  # fmt: skip
        socket.setsockopt(option, value)


class _ChunkRead(ThreadRead):
    """Reads another engine's buffer over ZeroMQ, in chunks of at most CHUNK bytes."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, key: bytes, name: bytes, number: int, n_bytes: int,
        wake: int,
    ) -> None:  # fmt: skip
        self._context, self._address, self._key = context, address, key
        self._name, self._number = name, number
        super().__init__(memoryview(bytearray(n_bytes)), wake, "banyan-kv-read")

    def _fetch(self) -> None:
        with self._context.socket(zmq.DEALER) as socket:
            self._fetch_over(socket)

    def _fetch_over(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = self._key
        _configure(socket, CHUNK + _HANDSHAKE)
        socket.connect(f"tcp://{self._address}")
        n_bytes = len(self._memory)
        left = iter(range(0, n_bytes, CHUNK))
        waiting: dict[int, bytes] = {}
        silent_ms = 0
        while True:
            while len(waiting) < AHEAD and (offset := next(left, None)) is not None:
                asked = _ASKED.pack(self._name, self._number, offset, min(CHUNK, n_bytes - offset))
                waiting[offset] = asked
                socket.send(asked)
            if not waiting or self._is_closed:
                return
            if not socket.poll(_POLL_MS):
                silent_ms += _POLL_MS
                if silent_ms >= _LOST_MS:
                    raise TransferFailed(f"{self._address} does not answer")
                continue
            silent_ms = 0
            asked, crc, chunk = socket.recv_multipart()
            offset, length = _ASKED.unpack(asked)[2:]
            if waiting.pop(offset, None) != asked:
                raise TransferFailed(f"{self._address} sent a chunk that was not requested")
            if len(chunk) != length:
                raise TransferFailed("the other engine does not have the pages any more")
            if crc32(chunk).to_bytes(4, "little") != crc:
                raise TransferFailed("the checksum of a chunk is wrong")
            self._memory[offset : offset + length] = chunk
