"""How much a long prompt delays running decodes, on a real model in bfloat16, with our engine and with vLLM, each with
its default chunk size; used by chaos.py.

The file is also the process that runs our engine, with the protocol of serving_peers.py:

    python benchmarks/chaos_latency.py MODEL DTYPE
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peer_process import PeerProcess
from report import percentile
from serving_work import N_DECODES

HERE = Path(__file__).resolve().parent
DTYPE, STEP_TOKENS = "bfloat16", 512


class Latency(NamedTuple):
    """p99 of the seconds between two tokens of a decode: alone, and beside long prompts. rise: how much long prompts
    add to the p99 of a decode step's CPU seconds, relative to the longest step while only long prompts run; 0 if the
    peer does not report steps."""

    alone: float
    beside: float
    rise: float


def gaps(peer: PeerProcess, name: str, seed: int) -> tuple[float, float]:
    """p99 of the seconds between two tokens of the decodes, and p99 of the CPU seconds of the steps, each counted once
    for each of its decodes."""
    found = peer.ask(f"{name} {seed}")
    calls = found["calls"][:N_DECODES]
    between = [b - a for call in calls for a, b in zip(call["times"], call["times"][1:], strict=False)]
    cpu = [cpu for cpu, n in found.get("steps", ()) for _ in range(n)] or [0.0]
    return percentile(between, 0.99), percentile(cpu, 0.99)


def least(rounds: Sequence[tuple[float, float, float, float, float]]) -> Latency:
    """The latency, computed from the minimum of each column over the rounds, because other load only adds. Columns: p99
    of the gaps, alone and beside long prompts; p99 of the steps' CPU seconds, alone and beside; the longest step. The
    rise of a single round would be too low if other load fell on the decodes that run alone."""
    alone, beside, was, now, chunk = (min(column) for column in zip(*rounds, strict=True))
    return Latency(alone, beside, (now - was) / chunk)


def measure(model: Path, vllm: Path | None, n_rounds: int) -> tuple[Latency, Latency | None]:
    """Our latency and vLLM's, measured in turns; see `least`."""
    commands = [[sys.executable, str(HERE / "chaos_latency.py"), str(model), DTYPE]]
    if vllm is not None:
        commands.append([str(vllm), str(HERE / "serving_peers.py"), "vllm", str(model), DTYPE])
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(PeerProcess(command))) for command in commands]
        for peer in peers:
            peer.ask("warm-up 0")
        found: list[list[tuple[float, float, float, float, float]]] = [[] for _ in peers]
        for seed in range(1, n_rounds + 1):
            for peer, rounds in zip(peers, found, strict=True):
                chunk = max(cpu for cpu, _ in peer.ask(f"long-prompts {seed}").get("steps", [(1.0, 0)]))
                (alone, was), (beside, now) = gaps(peer, "decodes", seed), gaps(peer, "interrupted", seed)
                rounds.append((alone, beside, was, now, chunk))
        ours, *theirs = map(least, found)
        return ours, theirs[0] if theirs else None


async def answer(model: str, dtype: str, write: Callable[[Any], None]) -> None:
    """Answer requests from standard input with our engine, whose steps run in this event loop, as serving_peers.py runs
    vLLM."""
    from serving_peers import serve

    from banyan.runtime import config as configs
    from banyan.runtime.engine.process import build
    from banyan.runtime.protocol.wire import Ask, Run, Sampling

    e = build(configs.make(model=model, dtype=dtype, device="cpu", kv_memory="2GiB", speculate="off",
                           step_tokens=STEP_TOKENS))  # fmt: skip
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

    def reset() -> None:
        e.take(Ask(0, "flush"))
        e.answers.clear()
        steps.clear()

    stepping = asyncio.create_task(loop())
    await serve(model, generate, reset, lambda found: write(found | {"steps": list(steps)}))
    stepping.cancel()


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(answer(sys.argv[1], sys.argv[2], lambda result: print(json.dumps(result), file=lines, flush=True)))
