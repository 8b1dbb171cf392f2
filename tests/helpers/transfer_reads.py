"""Reads a buffer to its end, for the tests of transports."""

from __future__ import annotations

from banyan.runtime.engine.transfer.transport import TransferRead
from waits import wait_until


def all_of(read: TransferRead | None) -> bytes:
    """Wait for a read, close it, and return its bytes."""
    assert read is not None
    found: list[memoryview] = []
    try:
        wait_until(lambda: bool(found) or ((got := read.poll()) is not None and not found.append(got)), "the bytes")
        return bytes(found[0])
    finally:
        read.close()
