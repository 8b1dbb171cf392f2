"""Clients take turns on the threads that encode."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from banyan.runtime.server.policy.fair_threads import FairThreads


def test_clients_take_turns() -> None:
    done: list[str] = []
    may_start = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        threads = FairThreads(pool)
        threads.submit("busy", may_start.wait)
        for k in range(4):
            threads.submit("busy", lambda k=k: done.append(f"busy {k}"))  # type: ignore[misc]
        for client in ("small", "late"):
            threads.submit(client, lambda client=client: done.append(client))  # type: ignore[misc]
        may_start.set()
    assert done == ["busy 0", "small", "late", "busy 1", "busy 2", "busy 3"]
    assert not threads._waiting
