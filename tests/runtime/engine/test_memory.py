"""The engine loop leaks nothing: traced memory does not grow with the number of steps."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import count
from types import ModuleType

import pytest

from banyan.radix_cache import stats
from banyan.runtime.engine.scheduling import queue
from banyan.runtime.engine.speculation import quotes
from banyan.runtime.engine.speculation.depth_control import DepthController
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.protocol.wire import Abort, ProgramEnded, Sampling


def traced_bytes(fake: ModuleType, n_first: int, n_last: int) -> tuple[int, int]:
    """Traced bytes after n_first and n_last steps with all drafters, while programs start, fork, end and abort."""
    e = fake.engine(n_pages=24, context=64, max_running=2)
    e.drafting = e.scheduler.drafting = DepthController(
        [TreeDrafter(1024), NgramDrafter()]
    )  # a small text memory, so that it fills early
    rng, rids = random.Random(0), count()
    active: dict[int, int] = {}

    def submit() -> None:
        rid = next(rids)
        prompt = [rng.randrange(fake.VOCAB) for _ in range(rng.randint(1, 6))]
        sampling = Sampling(max_tokens=rng.randint(1, 6), temperature=float(rid % 2), logprobs=not rid % 5)
        active[rid] = rid // 2
        e.take(fake.run(rid, prompt, sampling, order=(rid // 2, rid % 2, rid), client=rid % 3))

    sizes = []
    for n in range(1, n_last + 1):
        while len(active) < 4:
            submit()
        if not n % 50:
            e.take(Abort(next(iter(active))))
        for finish in e.step().finished:
            serial = active.pop(finish.rid)
            if serial not in active.values():
                for client in range(3):
                    e.take(ProgramEnded(client, serial))
        assert not e.failed
        e.model.model.steps.clear()
        if n in (n_first, n_last):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    e.scheduler.check()
    return sizes[0], sizes[1]


@pytest.fixture
def growth(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[int, int], float]:
    """`growth(n_first, n_last)`: bytes per step, measured in a new process without threads of other tests."""

    def measure(n_first: int, n_last: int) -> float:
        done = run_python(__file__, str(n_first), str(n_last))
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    return measure


@pytest.mark.long
def test_memory_growth_over_a_few_steps_is_small(growth: Callable[[int, int], float]) -> None:
    """The statistics of output lengths and numpy's cache of small blocks are still filling during these steps."""
    assert growth(300, 700) < 50


@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_does_not_grow_over_many_steps(growth: Callable[[int, int], float]) -> None:
    assert growth(8000, 30_000) < 1


def main() -> None:
    import fake  # from the script's own folder

    n_first, n_last = map(int, sys.argv[1:])
    queue.N_KNOWN = stats.N_OWNERS = 128  # small program memories, so that they fill early
    quotes.N_KEYS = 8  # and few quote rules
    tracemalloc.start()
    first, last = traced_bytes(fake, n_first, n_last)
    print((last - first) / (n_last - n_first))


if __name__ == "__main__":
    main()
