"""Fixtures for the tests of transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from banyan.runtime.engine.transfer.transport import Buffer


@pytest.fixture
def buffer() -> Iterator[Buffer]:
    """A buffer of 3 MiB with known content."""
    buffer = Buffer(3 << 20)
    buffer.memory[:] = bytes(k % 251 for k in range(4096)) * (len(buffer.memory) // 4096)
    yield buffer
    buffer.close()
