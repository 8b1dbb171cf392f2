"""Runs in a peer's own environment: `PYTHON benchmarks/serving_peers.py PEER MODEL DTYPE`

Reads workloads from standard input, one name and seed to a line, and writes what came of each as a line of JSON: wall
seconds, and of each call (in the order of serving_work.every) its output ids, its cached prompt tokens and when its
tokens came. Settings are the best found for two cores; see benchmarks/serving.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from random_models import words
from serving_work import every, work

sys.path = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
# transformers looks for a package called `kernels`, and would take the benchmark of that name for it.

BEGAN = time.perf_counter()

Generate = Callable[[list[int], int, Callable[[], None]], Awaitable[tuple[list[int], int]]]
"""(prompt ids, output tokens, what to call as tokens come) -> output ids, cached prompt tokens."""


async def run(calls: list[Any], tokenize: Callable[[str], list[int]], generate: Generate) -> dict[str, Any]:
    order = {id(call): i for i, call in enumerate(every(calls))}
    records: list[dict[str, Any]] = [{} for _ in order]

    async def grow(before: list[int], call: Any) -> None:
        prompt = before + ids[id(call)]
        started, times = time.perf_counter(), []
        out, cached = await generate(prompt, call.n_out, lambda: times.append(time.perf_counter() - started))
        assert len(out) == call.n_out, (len(out), call.n_out)
        records[order[id(call)]] = {"out": out, "prompt": len(prompt), "cached": cached, "times": times}
        await asyncio.gather(*(grow(prompt + out, child) for child in call.children))

    ids = {id(call): tokenize(call.text) for call in every(calls)}
    started = time.perf_counter()
    await asyncio.gather(*(grow([], call) for call in calls))
    return {"wall": time.perf_counter() - started, "calls": records}


async def serve(model: str, generate: Generate, reset: Callable[[], Any], write: Callable[[Any], None]) -> None:
    """One workload after another, each on an empty cache."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    vocabulary = words(len(tokenizer))
    write({"startup": time.perf_counter() - BEGAN})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, seed = line.split()
        done = reset()
        if asyncio.iscoroutine(done):
            await done

        def tokenize(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False).input_ids

        write(await run(work(name, vocabulary, int(seed)), tokenize, generate))


def vllm(model: str, dtype: str, write: Callable[[Any], None]) -> None:
    """vLLM's CPU build, in process: its engine stepped by the client's own loop, which is its fastest way here."""
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": f"{os.cpu_count()}", "KMP_BLOCKTIME": "200",
        "KMP_AFFINITY": "granularity=fine,explicit,proclist=[0,1]",
    }  # fmt: skip
    if "LD_PRELOAD" not in os.environ:  # read when a process starts
        libraries = [Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), Path(sys.prefix, "lib", "libiomp5.so")]
        os.environ |= settings | {"LD_PRELOAD": ":".join(str(library) for library in libraries if library.exists())}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from vllm import EngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(model=model, dtype=dtype, max_model_len=8192, max_num_seqs=64, skip_tokenizer_init=True,
                   disable_log_stats=True)
    )  # fmt: skip
    arrived: dict[str, asyncio.Queue[Any]] = {}

    async def step() -> None:
        while True:
            if not engine.has_unfinished_requests():
                await asyncio.sleep(0.0005)
                continue
            for output in engine.step():
                arrived[output.request_id].put_nowait(output)
            await asyncio.sleep(0)

    async def generate(prompt: list[int], n: int, tick: Callable[[], None]) -> tuple[list[int], int]:
        name = f"{len(arrived)}"
        queue = arrived[name] = asyncio.Queue()
        engine.add_request(
            name, {"prompt_token_ids": prompt},
            SamplingParams(temperature=0.0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False,
                           output_kind=RequestOutputKind.DELTA),
        )  # fmt: skip
        out: list[int] = []
        cached = 0
        while True:
            output = await queue.get()
            for token in output.outputs[0].token_ids:
                out.append(token)
                tick()
            cached = output.num_cached_tokens or cached
            if output.finished:
                return out, cached

    async def main() -> None:
        stepping = asyncio.create_task(step())
        await serve(model, generate, lambda: engine.reset_prefix_cache() and None, write)
        stepping.cancel()

    asyncio.run(main())


def transformers(model: str, dtype: str, write: Callable[[Any], None]) -> None:
    """transformers' continuous batching."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    torch.set_grad_enabled(False)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    manager = net.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=8192, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=64, num_blocks=1024, max_batch_tokens=1024, max_requests_per_batch=64, allow_block_sharing=True
        ),
    )
    manager.warmup()
    manager.start()
    n_asked = 0

    async def generate(prompt: list[int], n: int, tick: Callable[[], None]) -> tuple[list[int], int]:
        nonlocal n_asked
        n_asked += 1
        name, queue = f"{n_asked}", asyncio.Queue[Any]()
        manager.register_result_handler(name, queue.put_nowait)
        manager.add_request(prompt, request_id=name, max_new_tokens=n, streaming=True, eos_token_id=-1)
        n_seen = 0
        while True:
            result = await queue.get()
            if result.error:
                raise RuntimeError(result.error)
            for _ in range(n_seen, len(result.generated_tokens)):
                tick()
            n_seen = len(result.generated_tokens)
            if result.is_finished():
                return list(result.generated_tokens), 0  # it does not say how much was cached

    try:
        asyncio.run(serve(model, generate, lambda: None, write))
    finally:
        manager.stop(block=True, timeout=10)


def main() -> None:
    peer, model, dtype = sys.argv[1:]
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peer itself prints

    def write(result: Any) -> None:
        print(json.dumps(result), file=lines, flush=True)

    {"vllm": vllm, "transformers": transformers}[peer](model, dtype, write)


if __name__ == "__main__":
    main()
