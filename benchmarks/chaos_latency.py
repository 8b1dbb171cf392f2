"""What a long prompt does to those who decode beside it, on a real model; ours and vLLM in their own processes: for
chaos.py. In ours' environment it is also what runs there, over the protocol of serving_peers.py:

    python benchmarks/chaos_latency.py MODEL DTYPE
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serving_work import N_DECODES

HERE = Path(__file__).resolve().parent
STEP_TOKENS = 512


class Latency(NamedTuple):
    """Seconds between two tokens of a decode, p99: alone, and beside long prompts. rise: of the same in CPU seconds,
    over those of the longest step of these prompts by themselves; 0 where the peer does not tell."""

    alone: float
    beside: float
    rise: float


class Side:
    """One of the two, in its own process; stopped, except while it runs."""

    def __init__(self, command: list[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()
        self.ask("warm-up", 0)

    def ask(self, name: str, seed: int) -> Any:
        os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        print(name, seed, file=self._process.stdin, flush=True)
        answer = self._read()
        os.kill(self._process.pid, signal.SIGSTOP)
        return answer

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self._process.args!r} ended with status {self._process.wait()}")
        return json.loads(line)

    def gaps(self, name: str, seed: int) -> tuple[float, float]:
        """Between tokens of the decodes, p99: in seconds, and in CPU seconds of the steps that gave them."""
        found = self.ask(name, seed)
        calls = found["calls"][:N_DECODES]
        gaps = [b - a for call in calls for a, b in zip(call["times"], call["times"][1:], strict=False)]
        return _p99(gaps), _p99([cpu for cpu, n in found.get("steps", ()) for _ in range(n)] or [0.0])

    def close(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.communicate(timeout=60)


def measure(model: Path, vllm: Path | None, n_rounds: int) -> tuple[Latency, Latency | None]:
    """Ours and vLLM's, turn by turn; of the rounds the least, as what else runs on the machine only adds."""
    sides = [Side([sys.executable, str(HERE / "chaos_latency.py"), str(model), "bfloat16"])]
    if vllm is not None:
        sides.append(Side([str(vllm), str(HERE / "serving_peers.py"), "vllm", str(model), "bfloat16"]))
    try:
        found: list[list[Latency]] = [[] for _ in sides]
        for seed in range(1, n_rounds + 1):
            for side, rounds in zip(sides, found, strict=True):
                chunk = max(cpu for cpu, _ in side.ask("long-prompts", seed).get("steps", [(1.0, 0)]))
                (alone, was), (beside, now) = side.gaps("decodes", seed), side.gaps("interrupted", seed)
                rounds.append(Latency(alone, beside, (now - was) / chunk))
        ours, *theirs = (Latency(*(min(column) for column in zip(*rounds, strict=True))) for rounds in found)
        return ours, theirs[0] if theirs else None
    finally:
        for side in sides:
            side.close()


def _p99(some: list[float]) -> float:
    some = sorted(some)
    return some[min(len(some) - 1, int(0.99 * len(some)))]


# ---- ours, in its process ------------------------------------------------------------------------------------------


async def answer(model: str, dtype: str, write: Callable[[Any], None]) -> None:
    """Our engine, stepped by the client's own loop, as vLLM is there."""
    from random_models import words
    from serving_peers import run
    from serving_work import work
    from transformers import AutoTokenizer

    from banyan.runtime import config as configs
    from banyan.runtime.engine.process import build
    from banyan.runtime.protocol.wire import Ask, Run, Sampling

    e = build(configs.make(model=model, dtype=dtype, device="cpu", kv_memory="2GiB", speculate="off",
                           step_tokens=STEP_TOKENS))  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(model)
    waiting: dict[int, tuple[list[int], Callable[[], None], asyncio.Future[Any]]] = {}
    steps: list[tuple[float, int]] = []  # CPU seconds of all threads, and for how many decodes
    n_asked = 0

    async def loop() -> None:
        while True:
            if e.scheduler.is_idle:
                await asyncio.sleep(0.0005)
                continue
            before, n_old = time.process_time(), sum(r.n_left <= 1 for r in e.scheduler.running)
            step = e.step()
            steps.append((time.process_time() - before, min(n_old, N_DECODES)))
            ids = iter(array("i", step.ids))
            for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
                for _ in range(n):
                    waiting[rid][0].append(next(ids))
                    waiting[rid][1]()
            for finish in step.finished:
                out, _, done = waiting.pop(finish.rid)
                done.set_result((out, finish.n_cached))
            await asyncio.sleep(0)

    async def generate(prompt: list[int], n: int, tick: Callable[[], None]) -> tuple[list[int], int]:
        nonlocal n_asked
        n_asked += 1
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting[n_asked] = [], tick, done
        e.take(Run(n_asked, array("i", prompt).tobytes(), Sampling(max_tokens=n, temperature=0.0, ignore_eos=True)))
        found: tuple[list[int], int] = await done
        return found

    stepping = asyncio.create_task(loop())
    vocabulary = words(len(tokenizer))
    write({"startup": 0.0})
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        name, seed = line.split()
        e.take(Ask(0, "flush"))
        e.answers.clear()
        steps.clear()
        calls = work(name, vocabulary, int(seed))
        found = await run(calls, lambda text: tokenizer(text, add_special_tokens=False).input_ids, generate)
        write(found | {"steps": list(steps)})
    stepping.cancel()


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(answer(*sys.argv[1:3], lambda result: print(json.dumps(result), file=lines, flush=True)))
