"""Runs the programs of language.py in SGLang's language, in an SGLang environment without a GPU:

    PYTHON benchmarks/language_peers.py --programs N      # prints figures as JSON

tree_peers.py says how to install SGLang. The backend answers at once, so only the interpreter is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import language_hangs
from tree_peers import MockFinder

N_TURNS = 8
N_TIMES = 15
"""How often CPU time is measured; the best counts."""
NAME = "SGLang 0.5.23"


def programs() -> dict[str, Any]:
    """The programs of language.py, in SGLang's language."""
    from sglang.lang.api import assistant, function, gen, user

    @function
    def chat(s: Any, topic: str) -> None:
        for i in range(N_TURNS):
            s += user(f"Question {i} about {topic}?")
            s += assistant(gen(f"answer {i}", max_tokens=16))

    @function
    def tree(s: Any, topic: str) -> None:
        s += user(f"About {topic}")
        branches = s.fork(4)
        branches += gen("a")
        for branch in branches:
            branch["a"]

    return {"chat": chat, "tree": tree}


def backend(answer: Any) -> Any:
    """A backend whose gens return `answer()`."""
    from sglang.lang.backend.base_backend import BaseBackend

    class Scripted(BaseBackend):  # type: ignore[misc]
        def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
            return answer(), {}

    return Scripted()


def cpu_per_gen(chat: Any, n: int) -> float:
    """CPU microseconds per gen in a batch of n programs: the best of N_TIMES, as in language.py."""
    instant = backend(lambda: "yes")
    items = [{"topic": f"topic {i}"} for i in range(n)]
    chat.run_batch(items[:8], backend=instant)
    best = float("inf")
    for _ in range(N_TIMES):
        gc.collect()
        start = time.process_time()
        chat.run_batch(items, backend=instant)
        best = min(best, time.process_time() - start)
    return best / (n * N_TURNS) * 1e6


def threads(tree: Any) -> int:
    """The number of threads, without the main thread and the one that calls run_batch, while 32 programs wait for the
    values of 4 branches each."""
    waiting, go = threading.Semaphore(0), threading.Event()

    def answer() -> str:
        waiting.release()
        go.wait(60)
        return "yes"

    batch = threading.Thread(
        target=tree.run_batch,
        args=([{"topic": f"{i}"} for i in range(32)],),
        kwargs={"backend": backend(answer), "num_threads": 32},
    )
    batch.start()
    for _ in range(32 * 4):
        waiting.acquire(timeout=60)
    n = threading.active_count() - 2  # without this one and the one that calls run_batch
    go.set()
    batch.join()
    return n


def hangs() -> int:
    """How many programs of language_hangs.py hang."""
    import sglang
    from sglang.lang.backend.base_backend import BaseBackend

    class Failing(BaseBackend):  # type: ignore[misc]
        def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
            return language_hangs.answer(s.text_), {}

        def generate_stream(self, s: Any, sampling_params: Any) -> Iterator[tuple[str, dict[str, Any]]]:
            yield language_hangs.answer(s.text_), {}

    return len(language_hangs.hangs(sglang, Failing()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, required=True)
    args = parser.parse_args()
    sys.meta_path.insert(0, MockFinder())
    by_name = programs()
    found = {"cpu": cpu_per_gen(by_name["chat"], args.programs), "threads": threads(by_name["tree"]), "hangs": hangs()}
    print(json.dumps(found), flush=True)
    os._exit(0)  # hanging threads would block a normal exit


if __name__ == "__main__":
    main()
