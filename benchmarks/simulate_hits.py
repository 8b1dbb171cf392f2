"""Cache hit rates of the engine's scheduler and tree, simulated without a model.

    python benchmarks/simulate_hits.py [--quick] [--json FILE]

Four workloads (simulate_work.py), queued all at once or arriving over time; caches of 10 to 100 % of the working set;
several eviction policies. The hit rate counts prompt tokens; tokens recomputed after a preemption are no hits. It is
shown as a percentage of the offline optimum's (see `Optimum`).

The working set is the maximum number of distinct tokens of the programs that are present at once: all programs if they
are queued, else measured in a run with an unbounded cache. No cache is smaller than the longest request.

"aware" is LRU, but the prefixes of programs that wait for a tool or a user are evicted last, those with the longest
expected wait first. Waits are predicted as by a server (runtime/server/engine_link/kv_hints.py).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct, parser
from simulate import Cost, Machine
from simulate_work import MAX_TOKENS, Body, Crowd, Optimum, agents, arrivals, chat, few_shot, tree_of_thought

COST = Cost(8e-3, 25e-6, 40e-9)
"""Roughly a model of 8 billion parameters on an H100."""
PAGE = 16
SHAPES = ("few-shot", "chat", "tree of thought", "agents")
WAITS = "agents with tool waits"
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
LOAD = 0.7
"""The mean load while programs arrive, as a share of the machine's throughput with an unbounded cache."""
N = {"few-shot": 1200, "chat": 160, "tree of thought": 60, "agents": 120, WAITS: 240}


def bodies(shape: str, is_online: bool, n: int, seed: int = 0) -> list[Body]:
    """The n programs of a workload."""
    chance = Random(f"{shape} {seed}")
    make: dict[str, Callable[[], list[Body]]] = {
        "few-shot": lambda: few_shot(chance, n),
        "chat": lambda: chat(chance, n, think=20.0 if is_online else 0.0),
        "tree of thought": lambda: tree_of_thought(chance, n),
        "agents": lambda: agents(chance, n),
        WAITS: lambda: agents(chance, n, wait=10.0),
    }
    return make[shape]()


class Outcome(NamedTuple):
    """Figures of one run. n_missed: prompt tokens that were computed, counted each time. n_present: see Crowd. busy:
    virtual seconds in steps."""

    hit_rate: float
    n_missed: int
    n_present: int
    busy: float


def play(
    programs: list[Body], n_tokens: int, policy: str, seconds: float = 0.0, is_measured: bool = False, **options: object
) -> Outcome:
    """Run programs that arrive within about `seconds` (0: all are queued), with a cache of n_tokens."""
    is_aware = policy == "aware"
    machine = Machine(n_pages=-(-n_tokens // PAGE), page=PAGE, step_tokens=2048, cost=COST,
                      policy="lru" if is_aware else policy, **options)  # type: ignore[arg-type]  # fmt: skip
    crowd = Crowd(machine, arrivals(Random(1), programs, seconds), is_aware, is_measured)
    crowd.run()
    machine.scheduler.check()
    assert not crowd.present, "a program did not end"
    counts = machine.scheduler.counts
    n_missed = counts["computed_tokens"] - counts["generated_tokens"]
    return Outcome(1 - n_missed / crowd.n_prompt, n_missed, crowd.n_present, machine.busy)


class Shape:
    """One workload, with all programs queued or arriving over time; runs it with all cache sizes and policies."""

    def __init__(self, name: str, is_online: bool, n: int, seed: int = 0) -> None:
        self.name, self.is_online = name, is_online
        self._made = name, is_online, n, seed
        self.optimum = Optimum(bodies(*self._made))
        self.n_working = self.optimum.n_all
        self._seconds = 0.0
        if is_online:
            self._seconds = play(bodies(*self._made), 2 * self.optimum.n_all, "lru").busy / LOAD
            free = play(bodies(*self._made), 2 * self.optimum.n_all, "lru", self._seconds, is_measured=True)
            self.n_working = free.n_present
        self.has_waits = name in (WAITS, "tree of thought") or (is_online and name == "chat")
        self.outcomes: dict[tuple[float, str], Outcome] = {}

    def play(self, share: float, policy: str) -> None:
        least = self.optimum.n_longest + MAX_TOKENS  # a smaller cache would reject the longest request
        n_tokens = max(round(share * self.n_working), least)
        if policy == "aware" and not self.has_waits and (same := self.outcomes.get((share, "lru"))):
            self.outcomes[share, policy] = same  # without waits there are no hints
            return
        self.outcomes[share, policy] = play(bodies(*self._made), n_tokens, policy, self._seconds)

    def of_optimum(self, share: float, policy: str) -> float:
        return 100 * self.outcomes[share, policy].hit_rate / self.optimum.hit_rate

    def recomputed(self, share: float, policy: str) -> int:
        """Prompt tokens that were computed more than once."""
        return self.outcomes[share, policy].n_missed - (self.optimum.n_prompt - self.optimum.n_found)

    def measure(self, shares: Sequence[float], policies: Sequence[str]) -> None:
        """Run all combinations and print hit rates in percent of the optimum's."""
        when = "arriving" if self.is_online else "all queued"
        print(f"\n{self.name}, {when}: the optimum finds {self.optimum.hit_rate:.1%} of {self.optimum.n_prompt:,} "
              f"tokens; working set {self.n_working:,} tokens")  # fmt: skip
        print(f"{'cache':>8}" + "".join(f"{policy:>9}" for policy in policies))
        for share in shares:
            for policy in policies:
                self.play(share, policy)
            line = "".join(f"{self.of_optimum(share, policy):>8.1f}%" for policy in policies)
            print(f"{share:>8.0%}{line}", flush=True)


def rows(report: Report, shapes: list[Shape], share: float, others: Sequence[str]) -> None:
    """Add rows that compare "aware" with other policies: means over the four workloads, and tokens that agents with
    tool waits recompute."""
    for is_online in (False, True):
        some = [shape for shape in shapes if shape.is_online == is_online and shape.name in SHAPES]
        means = {
            policy: statistics.mean(shape.of_optimum(share, policy) for shape in some) for policy in ("aware", *others)
        }
        name = f"{'arriving' if is_online else 'all queued'}, cache {share:.0%}: of the optimum, mean"
        target = ">= 96" if share == 0.5 and not is_online else ""
        report.row(name, "%", means["aware"], target=target)
        for policy in others:
            report.row(f"  beside {policy}", "%", means["aware"], means[policy], policy, more_is_better=True)
    waiting = next(shape for shape in shapes if shape.name == WAITS)
    ours = waiting.recomputed(share, "aware")
    for policy in others:
        target = "ratio >= 1.334" if share == 0.5 and policy == "lru" else ""  # at most 0.75 times as many
        report.row(f"{WAITS}, cache {share:.0%}: recomputed", "tokens", ours, waiting.recomputed(share, policy),
                   policy, target)  # fmt: skip


def main() -> int:
    arguments = parser(__doc__, quick="only half of the working set, compared with LRU only")
    arguments.add_argument("--seed", type=int, default=0, help="other programs of the same shapes (default: 0)")
    options = arguments.parse_args()
    if not options.quick:
        correct("tests/benchmarks/test_simulate.py", "tests/radix_cache")
    shares, others = ((0.5,), ("lru",)) if options.quick else (SHARES, ("lru", "slru", "lfu"))
    shapes = []
    for is_online in (False, True):
        for name in (*SHAPES, WAITS) if is_online else SHAPES:
            shapes.append(Shape(name, is_online, N[name], options.seed))
            shapes[-1].measure(shares, (*others, "aware"))
    print()
    report = Report("simulate_hits", f"{PAGE} slots a page, programs: {N}, seed {options.seed}")
    for share in shares:
        rows(report, shapes, share, others)
    return report.end(options.json)


if __name__ == "__main__":
    sys.exit(main())
