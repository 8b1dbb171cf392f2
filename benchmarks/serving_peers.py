"""Runs a peer in its own environment: `PYTHON benchmarks/serving_peers.py PEER MODEL DTYPE [LLAMA_SERVER]`

Reads workloads from standard input, a name and a seed per line, and writes a line of JSON for each: the wall seconds,
and for each call (in the order of serving_work.every) its output ids, cached prompt tokens and the times of its tokens.
Settings are the best found for two cores; see benchmarks/serving.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from random_models import gguf_of, words
from serving_work import every, work

BEGAN = time.perf_counter()
ANSWERS = "SERVING_PEERS_FD"
"""Environment variable with the file descriptor for answers; a peer that re-executes itself inherits it."""

sys.path = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
# Otherwise transformers would import the benchmark kernels.py as its package `kernels`.

Generate = Callable[[list[int], int, Callable[[], None]], Awaitable[tuple[list[int], int | None]]]
"""(prompt ids, number of output tokens, callback per token) -> output ids, number of cached prompt tokens (None:
unknown)."""


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
    """Runs the workloads that standard input names, each with an empty cache."""
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
    """vLLM in this process: the client's event loop steps its engine, which is fastest here. On a GPU it has its
    default settings."""
    if has_gpu := Path("/dev/nvidia0").exists():
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    cpus = sorted(os.sched_getaffinity(0))
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": f"{len(cpus)}", "KMP_BLOCKTIME": "200",
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cpus))}]",
    }  # fmt: skip
    if not has_gpu and "LD_PRELOAD" not in os.environ:  # only read when a process starts
        libraries = [Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), Path(sys.prefix, "lib", "libiomp5.so")]
        preload = ":".join(str(library) for library in libraries if library.exists())
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings | {"LD_PRELOAD": preload})
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
    """transformers' continuous batching. On a GPU it chooses itself how much KV it has and how much a step computes."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    torch.set_grad_enabled(False)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    has_gpu = torch.cuda.is_available()
    net.to("cuda" if has_gpu else "cpu")
    limits = {} if has_gpu else {"num_blocks": 1024, "max_batch_tokens": 1024}
    fields = ContinuousBatchingConfig.__dataclass_fields__
    size = "page_size" if "page_size" in fields else "block_size"  # its older name
    manager = net.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=8192, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            **{size: 64}, **limits, max_requests_per_batch=64, allow_block_sharing=True
        ),
    )
    manager.warmup()
    manager.start()
    n_asked = 0

    async def generate(prompt: list[int], n: int, tick: Callable[[], None]) -> tuple[list[int], None]:
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
                return list(result.generated_tokens), None  # it does not report cached tokens

    try:
        asyncio.run(serve(model, generate, lambda: None, write))
    finally:
        manager.stop(block=True, timeout=10)


def sglang(model: str, dtype: str, write: Callable[[Any], None]) -> None:
    """SGLang's engine with torch's attention, as its CPU kernels are in no package registry. Its processes sleep while
    they wait."""
    os.environ |= {"OMP_NUM_THREADS": f"{os.cpu_count()}", "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    import sglang

    engine = sglang.Engine(
        model_path=model, dtype=dtype, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="none", skip_tokenizer_init=True, mem_fraction_static=0.2, max_total_tokens=65536, page_size=1,
        chunked_prefill_size=2048, disable_overlap_schedule=True, max_running_requests=64, schedule_policy="lpm",
        stream_interval=1, sleep_on_idle=True, log_level="error", skip_server_warmup=True,
    )  # fmt: skip

    async def generate(prompt: list[int], n: int, tick: Callable[[], None]) -> tuple[list[int], int]:
        sampling = {"temperature": 0.0, "max_new_tokens": n, "ignore_eos": True}
        out: list[int] = []
        cached = n_seen = 0
        async for part in await engine.async_generate(input_ids=prompt, sampling_params=sampling, stream=True):
            n_now, ids = part["meta_info"]["completion_tokens"], list(part["output_ids"])
            for _ in range(n_seen, n_now):
                tick()
            n_seen, cached = n_now, part["meta_info"]["cached_tokens"]
            out = ids if len(ids) == n_now else out + ids
        return out, cached

    async def reset() -> None:
        while not (await engine.tokenizer_manager.flush_cache()).success:  # a request is still running
            await asyncio.sleep(0.05)

    engine.loop.run_until_complete(serve(model, generate, reset, write))
    engine.shutdown()


async def _post(port: int, path: str, body: Any, take: Callable[[Any], None] = lambda event: None) -> int:
    """Send a request to this machine. Calls `take` with each event of the stream. Returns the HTTP status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    status = int((await reader.readline()).split()[1])
    async for line in reader:
        if line.startswith(b"data: "):
            take(json.loads(line[6:]))
    writer.close()
    return status


def llamacpp(model: str, dtype: str, write: Callable[[Any], None], server: str) -> None:
    """llama.cpp's server over HTTP: 16 slots with one unified KV cache, and flash attention."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    n = f"{os.cpu_count()}"
    command = [server, "-m", str(gguf_of(Path(model))), "--port", f"{port}", "-t", n, "-tb", n, "-c", "65536",
               "-np", "16", "-b", "2048", "-ub", "512", "-fa", "on", "-sps", "0.1", "--cache-ram", "0", "--kv-unified",
               "--no-warmup", "--threads-http", "2", "-lv", "1", "--slot-save-path", "/tmp"]  # fmt: skip
    process = subprocess.Popen(command, stdout=2, stdin=subprocess.DEVNULL)

    async def generate(prompt: list[int], n: int, tick: Callable[[], None]) -> tuple[list[int], int]:
        out: list[int] = []
        last: dict[str, Any] = {}

        def take(event: dict[str, Any]) -> None:
            for token in event.get("tokens", ()):
                out.append(token)
                tick()
            last.update(event)

        body = {"prompt": prompt, "n_predict": n, "samplers": ["top_k"], "top_k": 1, "ignore_eos": True, "stream": True,
                "return_tokens": True, "cache_prompt": True}  # fmt: skip
        if await _post(port, "/completion", body, take) != 200:
            raise RuntimeError(f"llama-server refused a prompt of {len(prompt)} tokens")
        return out, last["timings"]["cache_n"]

    async def reset() -> None:
        for slot in range(16):
            await _post(port, f"/slots/{slot}?action=erase", {})

    async def main() -> None:
        while True:
            try:
                if await _post(port, "/completion", {"prompt": [5], "n_predict": 1}) == 200:
                    break
            except OSError:
                pass  # it does not listen yet
            await asyncio.sleep(0.02)
            if process.poll() is not None:
                raise SystemExit(f"llama-server ended with status {process.returncode}")
        await serve(model, generate, reset, write)

    try:
        asyncio.run(main())
    finally:
        process.terminate()


def main() -> None:
    peer, model, dtype, *rest = sys.argv[1:]
    answers = int(os.environ.setdefault(ANSWERS, f"{os.dup(1)}"))
    os.set_inheritable(answers, True)
    os.dup2(2, 1)  # the peer's own output goes to stderr
    lines = os.fdopen(answers, "w")

    def write(result: Any) -> None:
        print(json.dumps(result), file=lines, flush=True)

    run: Callable[..., None] = {"vllm": vllm, "sglang": sglang, "transformers": transformers, "llamacpp": llamacpp}[
        peer
    ]
    run(model, dtype, write, *rest)


if __name__ == "__main__":
    main()
