"""How much of what was computed before is found again: the engine's scheduler and tree, without a model.

    python benchmarks/simulate_hits.py [--quick] [--json FILE]

Four shapes (simulate_work.py), all queued at once or as they arrive; caches of 10 to 100 % of the working set; orders
of eviction. A hit rate is of tokens of prompts, and what is computed a second time after a retraction is no hit. It is
given as a share of the offline optimum's: see `Optimum`.

The working set is the distinct tokens of all programs that are present (begun or waiting, and not over) at one time, at
the most: all queued, those of the whole work; arriving, what a run with a cache without bounds says. No cache is
smaller than the longest request.

"aware" is LRU for what nobody waits for; the paths of programs that wait for a tool, or whose users think, go last, and
of these the farthest first. When they go on is guessed, as a server does it (runtime/server/engine_link/kv_hints.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct
from simulate import Cost, Machine
from simulate_work import MAX_TOKENS, Body, Crowd, Optimum, agents, arrivals, chat, few_shot, tree_of_thought

COST = Cost(8e-3, 25e-6, 40e-9)
"""About a model of 8 billion parameters on an H100."""
PAGE = 16
SHAPES = ("few-shot", "chat", "tree of thought", "agents")
WAITS = "agents with tool waits"
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
LOAD = 0.7
"""Of what the machine can do with a cache without bounds, in the mean over the time in which programs arrive."""
N = {"few-shot": 1200, "chat": 160, "tree of thought": 60, "agents": 120, WAITS: 240}


def bodies(shape: str, is_online: bool, n: int, seed: int = 0) -> list[Body]:
    """n programs."""
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
    """n_missed: tokens of prompts that were computed. n_present: see Crowd. busy: seconds of virtual time in steps."""

    hit_rate: float
    n_missed: int
    n_present: int
    busy: float


def play(
    programs: list[Body], n_tokens: int, policy: str, seconds: float = 0.0, is_measured: bool = False, **options: object
) -> Outcome:
    """Run programs that arrive within about so many seconds on a cache of n_tokens."""
    is_aware = policy == "aware"
    machine = Machine(n_pages=-(-n_tokens // PAGE), page=PAGE, step_tokens=2048, cost=COST,
                      policy="lru" if is_aware else policy, **options)  # type: ignore[arg-type]  # fmt: skip
    crowd = Crowd(machine, arrivals(Random(1), programs, seconds), is_aware, is_measured)
    crowd.run()
    machine.scheduler.check()
    assert not crowd.present, "a program has not ended"
    counts = machine.scheduler.counts
    n_missed = counts["computed_tokens"] - counts["generated_tokens"]
    return Outcome(1 - n_missed / crowd.n_prompt, n_missed, crowd.n_present, machine.busy)


class Shape:
    """One shape, queued or arriving, on caches of all sizes and with all policies."""

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
        least = self.optimum.n_longest + MAX_TOKENS  # or the longest request is refused
        n_tokens = max(round(share * self.n_working), least)
        if policy == "aware" and not self.has_waits and (same := self.outcomes.get((share, "lru"))):
            self.outcomes[share, policy] = same  # where nobody waits, nothing is told to the tree
            return
        self.outcomes[share, policy] = play(bodies(*self._made), n_tokens, policy, self._seconds)

    def of_optimum(self, share: float, policy: str) -> float:
        return 100 * self.outcomes[share, policy].hit_rate / self.optimum.hit_rate

    def recomputed(self, share: float, policy: str) -> int:
        """Tokens of prompts that had been computed before."""
        return self.outcomes[share, policy].n_missed - (self.optimum.n_prompt - self.optimum.n_found)

    def measure(self, shares: Sequence[float], policies: Sequence[str]) -> None:
        """Play, and print in percent of the optimum's hit rate."""
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
    """The means over the four shapes, and what agents recompute: the program-aware order, beside others."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="half of the working set alone, beside LRU alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, help="other programs of the same shapes (default: 0)")
    options = parser.parse_args()
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
