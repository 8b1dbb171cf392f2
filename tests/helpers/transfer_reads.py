"""Reads of buffers, for the tests of transports."""

from __future__ import annotations

from banyan.runtime.engine.transfer.transport import TransferRead
from waits import wait_until


def all_of(read: TransferRead | None) -> bytes:
    """What arrives. The read is closed afterwards."""
    assert read is not None
    found: list[memoryview] = []
    try:
        wait_until(lambda: bool(found) or ((got := read.poll()) is not None and not found.append(got)), "the bytes")
        return bytes(found[0])
    finally:
        read.close()
