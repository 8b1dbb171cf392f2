"""The loop keeps nothing of what has ended: what Python holds does not grow with the number of steps."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tracemalloc
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


def held(fake: ModuleType, n_first: int, n_last: int) -> tuple[int, int]:
    """Bytes that are traced after so many steps of an engine with all its drafters, while programs come, fork, end and
    are given up."""
    e = fake.engine(n_pages=24, context=64, max_running=2)
    e.drafting = e.scheduler.drafting = DepthController(
        [TreeDrafter(1024), NgramDrafter()]
    )  # it remembers texts, and that fills too
    chance, rids = random.Random(0), count()
    living: dict[int, int] = {}

    def send() -> None:
        rid = next(rids)
        prompt = [chance.randrange(fake.VOCAB) for _ in range(chance.randint(1, 6))]
        sampling = Sampling(max_tokens=chance.randint(1, 6), temperature=float(rid % 2), logprobs=not rid % 5)
        living[rid] = rid // 2
        e.take(fake.run(rid, prompt, sampling, order=(rid // 2, rid % 2, rid), client=rid % 3))

    found = []
    for n in range(1, n_last + 1):
        while len(living) < 4:
            send()
        if not n % 50:
            e.take(Abort(next(iter(living))))
        for finish in e.step().finished:
            serial = living.pop(finish.rid)
            if serial not in living.values():
                for client in range(3):
                    e.take(ProgramEnded(client, serial))
        assert not e.failed
        e.model.model.steps.clear()
        if n in (n_first, n_last):
            gc.collect()
            found.append(tracemalloc.get_traced_memory()[0])
    e.scheduler.check()
    return found[0], found[1]


def growth(n_first: int, n_last: int) -> float:
    """Bytes a step. In a process of its own: threads that other tests left in this one would count too."""
    command = [sys.executable, __file__, str(n_first), str(n_last)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def test_a_few_steps() -> None:
    """What is remembered of lengths still fills, and numpy's store of small blocks."""
    assert growth(600, 1500) < 50


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_steps() -> None:
    assert growth(8000, 30_000) < 1


def main() -> None:
    import fake  # from the script's own folder

    n_first, n_last = map(int, sys.argv[1:])
    queue.N_KNOWN = stats.N_OWNERS = 128  # programs are remembered for a while, which fills
    quotes.N_KEYS = 8  # and so are rules of quotes, of which texts as short as these have few
    tracemalloc.start()
    first, last = held(fake, n_first, n_last)
    print((last - first) / (n_last - n_first))


if __name__ == "__main__":
    main()
