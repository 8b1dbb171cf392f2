"""The cost of the radix tree's operations, compared with SGLang's trees and vLLM's block table on the same work.

    python benchmarks/tree.py [--quick] [--json FILE] [--sglang PYTHON] [--vllm PYTHON]

--sglang, --vllm: interpreters of environments that have them (tree_peers.py says how to make one); without them those
rows are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct, parser
from tree_work import Adapter, Ids, measure

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.tree import PagePool

HERE = Path(__file__).resolve().parent
TARGETS = {  # microseconds at 100k nodes
    "match, 1": 2.0,
    "match, 8": 5.0,
    "match, 64": 15.0,
    "insert": 5.0,
    "evict a page": 1.5,
    "cycle": 25.0,
}
FIGURES = ["match, 1", "match, 8", "match, 64", "lock and unlock, 1", "lock and unlock, 64", "insert", "evict a page",
        "evict 512", "cycle"]  # fmt: skip


class Banyan(Adapter):
    name = "Banyan"

    def __init__(self, page: int, n_tokens: int) -> None:
        self.cache = Cache(n_tokens // page, page)
        self.tree = self.cache.tree
        self.hogs: list[Lease] = []

    def key(self, ids: Ids) -> bytes:
        return ids.tobytes()

    def pages(self, key: bytes) -> list[int]:
        n = len(key) // self.tree.width
        if n > len(self.cache.pool.free):
            self.tree.evict(n)
        return self.cache.pool.take(n)

    def match(self, key: bytes) -> tuple[int, Any]:
        tree = self.tree
        node, n = tree.match(tree.roots[b""], key, len(key) // 4)
        return n, node

    def lock_unlock(self, handle: Any) -> None:
        self.tree.lock(handle)
        self.tree.unlock(handle)

    def insert(self, key: bytes, pages: list[int]) -> None:
        tree = self.tree
        root = tree.root(b"")
        tree.lock(root)
        node, spare = tree.insert(root, key, pages)
        tree.unlock(node)
        tree.pool.give(spare)

    def fill(self) -> None:
        self.hogs.append(self.cache.open(b""))
        self.hogs[-1].grow(len(self.cache.pool.free) * self.cache.page)

    def evict(self, n_tokens: int) -> int:
        return self.cache.hints.evict(n_tokens // self.cache.page)

    def cycle(self, key: bytes, pages: list[int]) -> None:
        lease = self.cache.open(key, b"", len(key) // 4 - 1)
        lease.grow(len(key) // 4)
        lease.take_copies()
        lease.publish(key)
        lease.close()


class Cycles(Banyan):
    """Like `Banyan`, but `cycle` takes its pages itself, inside the timed call."""

    def pages(self, key: bytes) -> list[int]:
        return [] if self.hogs else super().pages(key)


def figures(*command: str) -> dict[str, float]:
    """The figures that a process prints as its last line."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def allocation() -> float:
    """Median microseconds to take a page and give it back."""
    pool, times = PagePool(100_000), []
    for _ in range(2000):
        before = time.perf_counter_ns()
        pool.give(pool.take(1))
        times.append(time.perf_counter_ns() - before)
    return statistics.median(times) / 1e3


def main() -> int:
    arguments = parser(__doc__, quick="10k nodes, and no tests first")
    arguments.add_argument("--sglang", metavar="PYTHON")
    arguments.add_argument("--vllm", metavar="PYTHON")
    arguments.add_argument("--measure", type=int, metavar="NODES", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.measure:
        print(json.dumps(measure(Cycles, options.measure)))
        return 0
    if not options.quick:
        correct("tests/radix_cache")
    n_nodes = 10_000 if options.quick else 100_000
    ours = figures(sys.executable, __file__, "--measure", str(n_nodes))
    peers = {
        name: figures(python, str(HERE / "tree_peers.py"), peer, "--nodes", str(n_nodes))
        for name, peer, python in (
            ("SGLang 0.5.23, Rust", "sglang-rust", options.sglang),
            ("SGLang 0.5.23, Python", "sglang-python", options.sglang),
            ("vLLM 0.32, sha256", "vllm", options.vllm),
        )
        if python
    }
    small = figures(sys.executable, __file__, "--measure", "1000")
    report = Report("tree", f"{n_nodes} nodes, page 16, prompts of 4096 tokens")
    for name in FIGURES:
        target = f"<= {TARGETS[name]}" if name in TARGETS else ""
        report.row(name, "us", ours[name], target=target)
        for peer, theirs in peers.items():
            report.row(f"{name}, beside {peer}", "us", ours[name], theirs[name], peer,
                       "ratio > 1" if "Rust" in peer else "")  # fmt: skip
    for name in FIGURES:
        report.row(f"{name}: p99 by median", "x", ours[f"{name}, p99"] / ours[name], target="<= 10")
    report.row("evict a page: by that at 1k nodes", "x", ours["evict a page"] / small["evict a page"], target="<= 1.5")
    report.row("take a page and give it back", "us", allocation(), target="< 1")
    report.row("bytes per cached token, pool and all", "B", ours["bytes per token"], target="<= 20")
    for peer, theirs in peers.items():
        report.row(f"bytes per cached token, beside {peer}", "B", ours["bytes per token"], theirs["bytes per token"],
                   peer, "ratio > 1" if "Rust" in peer else "")  # fmt: skip
    return report.end(options.json)


if __name__ == "__main__":
    sys.exit(main())
