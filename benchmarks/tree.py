"""What the tree's operations cost, beside SGLang's trees and vLLM's block table, on the same work in the same run.

    python benchmarks/tree.py [--quick] [--json FILE] [--sglang PYTHON] [--vllm PYTHON]

--sglang and --vllm name interpreters of environments that have them (how to make one: tree_peers.py); without them the
columns stay empty.
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
from report import Report, correct
from tree_work import Adapter, Ids, measure

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.tree import PagePool

HERE = Path(__file__).resolve().parent
TARGETS = {  # of figures at 100k nodes, microseconds
    "match, 1": 2.0,
    "match, 8": 5.0,
    "match, 64": 15.0,
    "insert": 5.0,
    "evict a page": 1.5,
    "cycle": 25.0,
}
LIST = ["match, 1", "match, 8", "match, 64", "lock and unlock, 1", "lock and unlock, 64", "insert", "evict a page",
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
        return self.cache.evict(n_tokens // self.cache.page)

    def cycle(self, key: bytes, pages: list[int]) -> None:
        lease = self.cache.open(key, b"", len(key) // 4 - 1)
        lease.grow(len(key) // 4)
        lease.take_copies()
        lease.publish(key)
        lease.close()


class Cycles(Banyan):
    """The same, but that no pages are taken outside the clock."""

    def pages(self, key: bytes) -> list[int]:
        return [] if self.hogs else super().pages(key)


def elsewhere(python: str, peer: str, n_nodes: int) -> dict[str, float]:
    """The figures of a peer, from a process of its own."""
    command = [python, str(HERE / "tree_peers.py"), peer, "--nodes", str(n_nodes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{peer} does not run in {python}:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def here(n_nodes: int) -> dict[str, float]:
    """Ours, likewise."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(n_nodes)], capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def allocation() -> float:
    """Microseconds to take a page and give it back."""
    pool, times = PagePool(100_000), []
    for _ in range(2000):
        before = time.perf_counter_ns()
        pool.give(pool.take(1))
        times.append(time.perf_counter_ns() - before)
    return statistics.median(times) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10k nodes, and no tests first")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--sglang", metavar="PYTHON")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--measure", type=int, metavar="NODES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Cycles, options.measure)))
        return 0
    if not options.quick:
        correct("tests/radix_cache")
    n_nodes = 10_000 if options.quick else 100_000
    ours = here(n_nodes)
    peers = {}
    if options.sglang:
        peers["SGLang 0.5.23, Rust"] = elsewhere(options.sglang, "sglang-rust", n_nodes)
        peers["SGLang 0.5.23, Python"] = elsewhere(options.sglang, "sglang-python", n_nodes)
    if options.vllm:
        peers["vLLM 0.32, sha256"] = elsewhere(options.vllm, "vllm", n_nodes)
    small = here(1000)
    report = Report("tree", f"{n_nodes} nodes, page 16, prompts of 4096 tokens")
    for name in LIST:
        target = f"<= {TARGETS[name]}" if name in TARGETS else ""
        report.row(name, "us", ours[name], target=target)
        for peer, theirs in peers.items():
            report.row(f"{name}, beside {peer}", "us", ours[name], theirs[name], peer,
                       "ratio > 1" if "Rust" in peer else "")  # fmt: skip
    for name in LIST:
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
