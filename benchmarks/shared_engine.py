"""The CPU time that the host of a shared engine takes for a step and for a request.

    python benchmarks/shared_engine.py

A step has a token for each request, and no logprobs. Socket calls are not counted, because a host with a single server
makes the same calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.shared_engine import SHIFT, SharedEngine

N = 2000
"""Messages in a round."""


def microseconds(work: Callable[[], object]) -> float:
    """The median CPU time of a call over 5 rounds."""
    rounds = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(N):
            work()
        rounds.append(1e6 * (time.thread_time() - start) / N)
    return statistics.median(rounds)


def step(n_requests: int, n_servers: int) -> bytes:
    """An encoded step of the requests of all servers."""
    rids = array("q", (k % n_servers << SHIFT | k for k in range(n_requests)))
    ones = array("i", [1] * n_requests)
    return wire.encode(wire.Step(rids.tobytes(), ones.tobytes(), ones.tobytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=2, help="servers that share the engine (default: 2)")
    n_servers = parser.parse_args().servers
    shared, servers = SharedEngine(), range(n_servers)
    print(f"{n_servers} servers; microseconds of CPU time")
    for n in (1, 16, 64):
        data = step(n, n_servers)
        print(f"  a step of {n:2} requests: {microseconds(lambda data=data: shared.report(data, servers)):5.1f}")  # type: ignore[misc]
    for n in (100, 2000):
        run = wire.encode(wire.Run(1, array("i", range(n)).tobytes(), order=(1, 0)))
        print(f"  a request of {n:4} tokens: {microseconds(lambda run=run: [*shared.take(1, run)]):5.1f}")  # type: ignore[misc]


if __name__ == "__main__":
    main()
