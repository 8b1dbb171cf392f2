"""Buffers over a loopback socket: whole, or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import zmq
from transfer_reads import all_of

from banyan.runtime.engine.transfer import chunks
from banyan.runtime.engine.transfer.chunks import CHUNK, Chunks
from banyan.runtime.engine.transfer.transport import Buffer, Buffers, SharedMemory, ThreadRead, TransferFailed


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Chunks, Chunks]]:
    monkeypatch.setattr(chunks, "_POLL_MS", 50)
    found = Chunks("127.0.0.1"), Chunks("127.0.0.1")
    yield found
    for one in found:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("banyan-kv")]


@pytest.mark.parametrize("n", [1, CHUNK, 2 * CHUNK + 5])
def test_bytes_arrive_whole(ends: tuple[Chunks, Chunks], buffer: Buffer, n: int) -> None:
    assert all_of(ends[1].read(ends[0].describe(buffer), n)) == bytes(buffer.memory[:n])


def test_buffer_with_other_content_is_not_sent(ends: tuple[Chunks, Chunks], buffer: Buffer) -> None:
    place = ends[0].describe(buffer)
    buffer.reuse()
    with pytest.raises(TransferFailed, match="does not have the pages any more"):
        all_of(ends[1].read(place, 100))


def test_unknown_name_gets_nothing(ends: tuple[Chunks, Chunks], buffer: Buffer) -> None:
    place = ends[0].describe(buffer).replace(buffer.name.hex(), "00" * 16)
    with pytest.raises(TransferFailed, match="does not have the pages"):
        all_of(ends[1].read(place, 100))


def test_more_than_the_buffer_has_is_not_sent(ends: tuple[Chunks, Chunks], buffer: Buffer) -> None:
    with pytest.raises(TransferFailed, match="does not have the pages"):
        all_of(ends[1].read(ends[0].describe(buffer), 4 * CHUNK))


def test_wrong_checksum_is_seen(ends: tuple[Chunks, Chunks], buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = chunks.crc32, []

    def flipped(data: bytes) -> int:
        calls.append(data)
        return real(data) ^ (len(calls) == 1)

    monkeypatch.setattr(chunks, "crc32", flipped)
    with pytest.raises(TransferFailed, match="checksum"):
        all_of(ends[1].read(ends[0].describe(buffer), CHUNK))


def test_peer_that_is_gone_ends_the_read(
    ends: tuple[Chunks, Chunks], buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_LOST_MS", 200)
    gone = Chunks("127.0.0.1")
    place = gone.describe(buffer)
    gone.close()
    with pytest.raises(TransferFailed, match="does not answer"):
        all_of(ends[1].read(place, 100))


def test_nobody_without_the_key_connects(ends: tuple[Chunks, Chunks], buffer: Buffer) -> None:
    place = ends[0].describe(buffer)
    _, address, _, name, number = place.split(" ")
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(f"tcp://{address}")
        plain.send(chunks._ASKED.pack(bytes.fromhex(name), int(number), 0, 10))
        assert not plain.poll(300)


def test_long_and_broken_requests_do_no_harm(ends: tuple[Chunks, Chunks], buffer: Buffer) -> None:
    place = ends[0].describe(buffer)
    assert ends[0]._chunk(b"") == ends[0]._chunk(bytes(39)) == b""
    assert ends[0]._chunk(chunks._ASKED.pack(buffer.name, buffer.number, 0, CHUNK + 1)) == b""
    assert ends[0]._chunk(chunks._ASKED.pack(buffer.name, buffer.number, 1 << 63, 1)) == b""
    assert all_of(ends[1].read(place, 10)) == bytes(buffer.memory[:10])


def test_places_of_other_transports_are_left_to_them(ends: tuple[Chunks, Chunks], buffer: Buffer) -> None:
    memory = SharedMemory()
    assert ends[0].read(memory.describe(buffer), 10) is None
    assert memory.read(ends[0].describe(buffer), 10) is None


def test_closed_buffer_is_not_sent(ends: tuple[Chunks, Chunks]) -> None:
    buffers = Buffers(limit=1 << 21)
    buffer = buffers.take(100)
    place = ends[0].describe(buffer)
    buffers.give(buffer)
    buffers.close()
    with pytest.raises(TransferFailed, match="does not have the pages"):
        all_of(ends[1].read(place, 10))


def test_read_that_fails_while_it_is_polled_gives_no_bytes() -> None:
    class FailingRead(ThreadRead):
        """A read that fails right after its error has been looked up."""

        error, may_fail = "", threading.Event()

        def _fetch(self) -> None:
            self.may_fail.wait(20)
            raise TransferFailed("the peer is gone")

        def _release(self) -> None:
            pass

        @property
        def _error(self) -> str:
            found = self.error
            self.may_fail.set()
            self.thread.join()
            return found

        @_error.setter
        def _error(self, error: str) -> None:
            self.error = error

    wake = os.eventfd(0)
    read = FailingRead(memoryview(b"garbage"), wake, "banyan-kv-test")
    assert read.poll() is None
    read.may_fail.set()
    read.thread.join()
    with pytest.raises(TransferFailed, match="the peer is gone"):
        read.poll()
    read.close()
    os.close(wake)


def test_memory_is_used_again_and_closed_when_it_is_short() -> None:
    now = [0.0]
    buffers = Buffers(lambda: now[0], limit=3 << 20)
    small, large = buffers.take(10), buffers.take(1 << 21)
    assert buffers.room == 0
    buffers.give(small)
    buffers.give(large)
    assert buffers.take(5) is small
    assert buffers.n_bytes == 3 << 20
    buffers.give(small)
    whole = buffers.take(3 << 20)
    assert buffers.n_bytes == buffers.n_used == 3 << 20, "the others were closed"
    buffers.give(whole)
    now[0] = 61.0
    buffers.trim()
    assert buffers.n_bytes == 0
