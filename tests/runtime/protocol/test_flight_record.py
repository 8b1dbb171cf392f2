from __future__ import annotations

import multiprocessing
import os
import random
import signal

import pytest

from banyan.runtime.protocol.flight_record import COMPILER, LOOP, FlightRecord


@pytest.fixture
def fd() -> int:
    return FlightRecord.make()


def test_server_reads_the_requests_the_engine_noted(fd: int) -> None:
    engine, server = FlightRecord(fd), FlightRecord(fd)
    os.close(fd)
    assert server.rids() == set()
    engine.note(LOOP, [1, 2**60])
    engine.note(COMPILER, [3])
    assert server.rids() == {1, 2**60, 3}
    engine.note(LOOP, [])
    assert server.rids() == {3}
    engine.close()
    server.close()


def test_record_is_truncated_to_the_first_requests(fd: int) -> None:
    flight = FlightRecord(fd)
    flight.note(COMPILER, [7])
    flight.note(LOOP, range(100, 10_000))
    assert flight.rids() == {7, *range(100, 4195)}


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_do_not_crash_the_reader(fd: int, seed: int) -> None:
    """A dying process may have written anywhere."""
    os.pwrite(fd, random.Random(seed).randbytes(2**16 - 8), 0)
    assert len(FlightRecord(fd).rids()) <= 2 * 4095


def _die(fd: int) -> None:
    FlightRecord(fd).note(LOOP, [4, 5])
    os.kill(os.getpid(), signal.SIGKILL)


def test_record_outlives_its_writer(fd: int) -> None:
    child = multiprocessing.get_context("fork").Process(target=_die, args=(fd,))
    child.start()
    child.join()
    assert child.exitcode == -9
    assert FlightRecord(fd).rids() == {4, 5}
