"""A day of traffic on the radix tree: does its memory or its time per request grow?

    python benchmarks/simulate_day.py [--quick] [--requests N] [--json FILE]

Ten million requests in 24 hours of virtual time, more by day than by night. Sessions of several turns begin with system
prompts that change over time, in several namespaces. Some sessions fork, some are cancelled, and some send hints: they
say when they will continue, pin their KV or drop it. Most live sessions fit on the device or in host memory; old ones
are evicted.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct, parser, resident

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import check
from banyan.radix_cache.hints import KVHint

DAY = 86_400.0
N_REQUESTS = 10_000_000
N_SYSTEMS = 64
N_SESSIONS = 2000
N_PAGES, N_HOST, PAGE = 100_000, 20_000, 16
TURNS = 8
"""Mean number of turns of a session."""


class Session:
    """A conversation. text: its token ids so far, as bytes; handle: its KV hint, which the next turn releases."""

    __slots__ = ("handle", "namespace", "number", "text")

    def __init__(self, number: int, namespace: bytes, text: bytes) -> None:
        self.number, self.namespace, self.text = number, namespace, text
        self.handle: KVHint | None = None


class Tenth(NamedTuple):
    """Statistics of a tenth of the day. us: CPU microseconds per request: the mean of each thousand requests, and the
    median of these means. memory (bytes), n_nodes, hit_rate: at the end of the tenth."""

    us: float
    memory: int
    n_nodes: int
    hit_rate: float


class Day:
    def __init__(self, n_requests: int, seed: int = 0, scale: float = 1.0) -> None:
        """scale: factor on the numbers of sessions and pages."""
        self.n_requests, self.chance = n_requests, Random(seed)
        self.cache = Cache(int(N_PAGES * scale), PAGE, n_host=int(N_HOST * scale))
        self.now, self.n_begun = 0.0, 0
        self._words = self.chance.randbytes(1 << 26)
        self.systems = [self._system() for _ in range(N_SYSTEMS)]
        self.sessions = [self._session() for _ in range(int(N_SESSIONS * scale))]

    def _system(self) -> tuple[bytes, bytes]:
        namespace = b"tenant %d" % self.chance.randrange(8)
        return namespace, self._text(50, 800)

    def _text(self, minimum: int, maximum: int) -> bytes:
        """Random tokens: a slice of one long text at a random offset."""
        draw = self.chance.random
        start = 4 * int(draw() * ((len(self._words) >> 2) - maximum))
        return self._words[start : start + 4 * int(minimum + draw() * (maximum - minimum))]

    def _session(self) -> Session:
        self.n_begun += 1
        return Session(self.n_begun, *self.chance.choice(self.systems))

    def tenths(self, n: int = 10) -> list[Tenth]:
        """Run the whole day. n_requests must be a multiple of n thousand."""
        found = []
        for _ in range(n):
            times = []
            for _ in range(self.n_requests // n // 1000):
                times.append(self._thousand())
            check(self.cache)
            stats = self.cache.stats()
            gc.collect()
            found.append(
                Tenth(statistics.median(times), resident(), stats.n_nodes, stats.n_hit_tokens / stats.n_query_tokens)
            )
            print(f"{self.now / 3600:5.1f} h  {found[-1].us:6.1f} us a request  {found[-1].memory / 2**20:7.1f} MiB  "
                  f"{stats.n_nodes:6} nodes  found {found[-1].hit_rate:.1%}", flush=True)  # fmt: skip
        return found

    def _thousand(self) -> float:
        """Run a thousand requests. Returns the CPU microseconds per request."""
        spent, draw, sessions = 0, self.chance.random, self.sessions
        for _ in range(1000):
            by_day = 1.0 + 0.6 * math.sin(2 * math.pi * self.now / DAY)
            self.now -= math.log(1.0 - draw()) * DAY / self.n_requests / by_day
            if draw() < 0.001:  # replaces a system prompt
                self.systems[int(draw() * N_SYSTEMS)] = self._system()
            session = sessions.pop(int(math.sqrt(draw()) * len(sessions)))  # more likely a recent one
            prompt, output, kind = self._text(10, 120), self._text(1, 60), draw()
            before = time.thread_time_ns()
            self._request(session, prompt, output, kind)
            spent += time.thread_time_ns() - before
            if draw() < 1 / TURNS:
                self._end(session, kind)
                session = self._session()
            sessions.append(session)
        return spent / 1e6

    def _request(self, session: Session, new: bytes, output: bytes, kind: float) -> None:
        """Run one turn: make the calls of the cache that an engine would make for it."""
        cache, prompt = self.cache, session.text + new
        n_prompt, n_all = len(prompt) // 4, (len(prompt) + len(output)) // 4
        cache.tick(self.now, self.now)
        lease = cache.open(prompt, session.namespace, n_prompt - 1, owner=session.number)
        if session.handle is not None:
            session.handle.release()
            session.handle = None
        lease.grow(n_all)
        lease.take_copies()
        if kind > 0.7:
            lease.publish(prompt)
        if kind < 0.05:  # cancelled
            self._close(lease)
            return
        if kind > 0.95:  # a fork generates something else
            with closing(cache.open(prompt, session.namespace, owner=session.number)) as other:
                other.grow(n_prompt + 16)
                other.take_copies()
                other.publish(prompt + output[::-1][: 4 * 16])
        session.text = prompt + output
        lease.publish(session.text)
        self._close(lease)
        if 0.5 < kind < 0.6:
            session.handle = cache.handle(session.text, session.namespace)
            if kind < 0.59:
                session.handle.expect(60.0)
            else:
                session.handle.pin(self.now + 300.0)

    def _close(self, lease: Lease) -> None:
        lease.close()
        self.cache.take_moves()

    def _end(self, session: Session, kind: float) -> None:
        if kind < 0.3:
            self.cache.handle(session.text, session.namespace).drop(n_shared=800)
        if session.handle is not None:
            session.handle.release()


def main() -> int:
    arguments = parser(__doc__, quick="200,000 requests, and no tests first")
    arguments.add_argument("--requests", type=int, default=N_REQUESTS, metavar="N", help=f"default: {N_REQUESTS:,}")
    options = arguments.parse_args()
    if options.requests <= 0 or options.requests % 10_000:
        arguments.error("--requests must be a multiple of 10,000")
    if not options.quick:
        correct("tests/radix_cache")
    n_requests = 200_000 if options.quick else options.requests
    day = Day(n_requests)
    gc.freeze()
    tenths = day.tenths()
    first, last = tenths[2], tenths[-1]  # by then the cache is full
    report = Report("simulate_day", f"{n_requests:,} requests in 24 h, {N_PAGES:,} pages and {N_HOST:,} in host memory")
    report.row("a request, last tenth", "us", last.us)
    report.row("  by the third tenth", "x", last.us / first.us, target="<= 1.15")
    report.row("memory, last tenth", "MiB", last.memory / 2**20)
    report.row("  more than in the third tenth", "MiB", (last.memory - first.memory) / 2**20, target="<= 2")
    report.row("nodes, last tenth", "", last.n_nodes)
    return report.end(options.json)


if __name__ == "__main__":
    sys.exit(main())
