"""Four engines behind sglang-router, and four engines of one server: hit rate and time of programs.

    python benchmarks/router.py --router PYTHON [--quick] [--policy cache_aware] [--rounds 3] [--json FILE]

PYTHON has sglang-router installed. Both sides run the pocket model with four engines of one thread each and the same KV
memory in total, and answer OpenAI's completions. One side is four servers with one engine each behind the router; the
other is one server with `replicas`. The workloads are W2 to W4 of serving_work.py. Each call is a request, sent when
its parent has answered; a program is one tree of calls. The rows "whole programs" send whole programs to the server's
socket instead. The sides take turns with new texts in each round; the figures are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, parser
from serving_work import Call, every, work

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.model.spec import resolve
from banyan.runtime.protocol import wire

N_ENGINES, KV_TOKENS = 4, 24_576
WORKLOADS = ("W2", "W3", "W4")
STARTING = 300.0
"""Seconds that the router may take to start."""
LONGEST = 600.0
"""Seconds that a call may take."""


class Cached(NamedTuple):
    """Counts of prompt tokens, and of the prompt tokens that were in a cache."""

    n_query: int
    n_hit: int

    @classmethod
    def of(cls, clients: list[client.Client]) -> Cached:
        caches = [c.ask("stats", 60)["cache"] for c in clients]
        return cls(sum(one["n_query_tokens"] for one in caches), sum(one["n_hit_tokens"] for one in caches))


class Side(NamedTuple):
    """One way to run programs. run: starts all programs at the same time, and returns the seconds of each."""

    clients: list[client.Client]
    run: Callable[[list[Call]], list[float]]


def pocket_words() -> list[str]:
    """Words that are one token each, with the space before them."""
    vocabulary = json.loads((resolve("pocket") / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(f" {token[1:]}" for token in vocabulary if re.fullmatch("\u0120[a-z]{3,8}", token))


async def complete(url: str, prompt: str, n_out: int, seconds: float = LONGEST) -> str:
    """The text of one completion. TimeoutError: it took longer than `seconds`."""
    host, port = url.removeprefix("http://").split(":")
    body = {"model": "pocket", "prompt": prompt, "max_tokens": n_out, "temperature": 0.0, "ignore_eos": True}
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, int(port))
        with closing(writer):
            writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            answer = await reader.read()
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    assert head_bytes.startswith(b"HTTP/1.1 200"), answer[:500]
    text: str = json.loads(rest[rest.index(b"{") : rest.rindex(b"}") + 1])["choices"][0]["text"]
    return text


def over_http(url: str, calls: list[Call]) -> list[float]:
    async def grow(call: Call, prompt: str) -> None:
        prompt += call.text
        prompt += await complete(url, prompt, call.n_out)
        await asyncio.gather(*(grow(child, prompt) for child in call.children))

    async def timed(tree: Awaitable[None]) -> float:
        start = time.monotonic()
        await tree
        return time.monotonic() - start

    async def run() -> list[float]:
        return await asyncio.gather(*(timed(grow(call, "")) for call in calls))

    return asyncio.run(run())


def as_programs(c: client.Client, calls: list[Call]) -> list[float]:
    """Runs each tree of calls as one program, submitted in one message. Returns the seconds of each."""

    def run(call: Call) -> float:
        ops: list[wire.Op] = []
        n = [0, 0]  # values, states

        def grow(call: Call, state: int) -> None:
            sampling = wire.Sampling(max_tokens=call.n_out, temperature=0.0, ignore_eos=True)
            ops.extend((wire.Append(state, (call.text,)), wire.Gen(state, n[0], sampling)))
            n[0] += 1
            states = [state]
            if len(call.children) > 1:
                states = list(range(n[1] + 1, n[1] + 1 + len(call.children)))
                n[1] += len(call.children)
                ops.append(wire.Fork(state, tuple(states)))
            for child, its in zip(call.children, states, strict=False):
                grow(child, its)

        grow(call, 0)
        start, program = time.monotonic(), c.program()
        program.submit(ops, last=True)
        for ref in range(n[0]):
            program.future(ref).result(LONGEST)
        return time.monotonic() - start

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


@contextmanager
def server(stack: ExitStack, n_engines: int) -> Iterator[tuple[client.Client, str]]:
    """Yields a client of a new server with n_engines engines, and the URL of its HTTP process."""
    n_tokens = KV_TOKENS * n_engines // N_ENGINES
    options = config.make(model="pocket", device="cpu", threads=n_engines, replicas=n_engines,
                          kv_memory=f"{n_tokens} tokens", speculate="off")  # fmt: skip
    process = launch.start(options)
    stack.callback(process.close)
    gateway = launch.start_gateway(config.HTTPConfig(socket=str(process.socket), address="0"))
    stack.callback(gateway.close)
    with closing(client.connect(process.socket, 60)) as c:
        yield c, gateway.url


def start_router(stack: ExitStack, python: str, policy: str, workers: list[str]) -> str:
    """Start a router in front of the servers `workers`. Returns its URL when it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as metrics:
        ports = [str(one.getsockname()[1]) for one in (free, metrics)]
    words = [
        *(python, "-m", "sglang_router.launch_router", "--worker-urls", *workers, "--policy", policy),
        *("--host", "127.0.0.1", "--port", ports[0], "--prometheus-port", ports[1], "--log-level", "warn"),
    ]
    process = subprocess.Popen(words, stdout=2)
    stack.callback(process.wait)
    stack.callback(process.kill)
    url, deadline = f"http://127.0.0.1:{ports[0]}", time.monotonic() + STARTING
    while True:
        try:
            asyncio.run(complete(url, " the", 1, STARTING))
            return url
        except (AssertionError, OSError, ValueError) as e:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the router does not answer: {e!r}") from e
            time.sleep(1)


def main() -> None:
    options = parser(__doc__, quick="one round")
    options.add_argument("--router", required=True, metavar="PYTHON", help="a Python that has sglang-router")
    options.add_argument("--policy", default="cache_aware", help="the router's policy")
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    words = pocket_words()
    with ExitStack() as stack:
        singles = [stack.enter_context(server(stack, 1)) for _ in range(N_ENGINES)]
        url = start_router(stack, args.router, args.policy, [url for _, url in singles])
        c, ours_url = stack.enter_context(server(stack, N_ENGINES))
        sides = {
            "router": Side([one for one, _ in singles], lambda calls: over_http(url, calls)),
            "ours": Side([c], lambda calls: over_http(ours_url, calls)),
            "programs": Side([c], lambda calls: as_programs(c, calls)),
        }
        report = Report("router", f"sglang-router ({args.policy}) and `replicas`, {N_ENGINES} engines of the pocket "
                        f"model, {KV_TOKENS} tokens of KV in all")  # fmt: skip
        for name in WORKLOADS:
            hits: dict[str, list[float]] = {side: [] for side in sides}
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for n_round in range(1 if args.quick else args.rounds):
                for side in random.Random(n_round).sample(sorted(sides), len(sides)):
                    calls = work(name, words, f"{side} {n_round}")
                    before = Cached.of(sides[side].clients)
                    seconds[side].append(statistics.fmean(sides[side].run(calls)))
                    after = Cached.of(sides[side].clients)
                    hits[side].append((after.n_hit - before.n_hit) / (after.n_query - before.n_query))
            n_calls = len(list(every(calls)))
            for side, what in (("ours", "over HTTP"), ("programs", "whole programs")):
                rate, their_rate = statistics.median(hits[side]), statistics.median(hits["router"])
                row = f"{name}, {n_calls} calls, {what}"
                report.row(f"{row}: tokens cached", "", rate, their_rate, "router", "ratio > 1", more_is_better=True)
                mean, theirs = statistics.median(seconds[side]), statistics.median(seconds["router"])
                report.row(f"{row}: a program", "s", mean, theirs, "router", "ratio > 1")
    sys.exit(report.end(args.json))


if __name__ == "__main__":
    main()
