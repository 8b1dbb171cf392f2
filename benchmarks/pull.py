"""The time and CPU time that it takes to move KV from one engine to another.

    python benchmarks/pull.py                                   # 112 MiB between two processes, with each transport
    python benchmarks/pull.py --fleet models/M1-float32 --n 3   # decodes beside long prompts, prefill apart or not

The first command runs the engine's own exchange, cache and pool in two processes without a model. The time of a pull
goes from the command to export to the puller's report; all bytes are compared afterwards. The first pull allocates the
buffers, and later ones use them again.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import select
import statistics
import sys
import threading
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from random_models import words as random_words
from serving_work import Call, Source, chat, long_context, nothing_shared

import banyan as bn
from banyan.radix_cache.cache import Cache
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.transfer.exchange import KVExchange
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.protocol import wire
from waits import join, wait_until

PAGE, N_PAGES, N_MOVED = 16, 512, 299
SPEC = ModelSpec(
    name="m1", family="llama", n_layers=12, n_heads=12, n_kv_heads=4, head_dim=64, hidden=768, vocab_size=1000,
    max_context=PAGE * N_PAGES, eos_ids=(), dtype="float32", n_parameters=0,
)  # fmt: skip
"""Keys and values of the 110M model in float32: 24 KiB a token."""
KV = wire.KVFormat(1, b"", "cpu", "float32", "auto", PAGE, 12, 4, 64, PAGE * N_PAGES, False)


LONGEST = 60.0
"""Seconds that a pull may take."""
HAS_NIXL = importlib.util.find_spec("nixl") is not None


class NoScheduler:
    def take(self, order: Any) -> None:
        raise AssertionError(f"nothing is computed here: {order}")


class Side:
    """The cache, KV pool and exchange of one engine, without a model."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        torch.set_num_threads(1)
        self.store = KVPool(SPEC, N_PAGES, PAGE, "cpu")
        self.cache = Cache(N_PAGES, PAGE)
        runner = ModelRunner(None, self.store)  # type: ignore[arg-type]
        self.exchange = KVExchange(
            self.cache, runner, NoScheduler(), KV, host=host, transfer="nixl" if HAS_NIXL else "tcp"
        )

    def fill(self, ids: bytes, seed: int) -> None:
        """Store a prefix with random KV of this seed, in pages in random order."""
        generator = torch.Generator().manual_seed(seed)
        self.cache.pool.free = torch.randperm(N_PAGES, generator=generator).tolist()
        with closing(self.cache.open(ids)) as lease:
            assert lease.grow(len(ids) // 4)
            for pool in self.store._pools:
                pool[list(lease.pages)] = torch.randn((len(lease.pages), *pool.shape[1:]), generator=generator)
            lease.publish(ids)

    def content(self, ids: bytes) -> list[torch.Tensor]:
        with closing(self.cache.open(ids)) as lease:
            assert lease.n_cached == len(ids) // 4
            return [pool[list(lease.pages)].clone() for pool in self.store._pools]

    def answer(self, command: Any) -> Any:
        """Carry out a command. Returns its report, and the CPU seconds that this process took."""
        start, deadline = time.process_time(), time.monotonic() + LONGEST
        self.exchange.take(command)
        reports: list[Any] = []
        while not reports and not isinstance(command, wire.EndPull):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no report within {LONGEST:g} s on {type(command).__name__}")
            reports = list(self.exchange.work(0.0))
            if not reports and not self.exchange.is_busy and self.exchange.wake is not None:
                select.select([self.exchange.wake], [], [], LONGEST)
        return (*reports, None)[0], time.process_time() - start


def source(peer: Connection) -> None:
    """The main function of the process that exports."""
    side = Side()
    decode = msgspec.msgpack.Decoder(wire.EngineCommand).decode
    while True:
        data = peer.recv_bytes()
        if not data:
            side.exchange.close()
            return
        if data[:1] == b"\0":  # a new prefix
            side.cache.reset()
            side.fill(data[9:], int.from_bytes(data[1:9], "little"))
            peer.send_bytes(b"ok")
            continue
        report, seconds = side.answer(decode(data))
        peer.send_bytes(msgspec.msgpack.encode((seconds, report and wire.encode(report))))


def receive(peer: Connection) -> bytes:
    """The next answer of the process that exports. EOFError: it has ended."""
    if not peer.poll(2 * LONGEST):
        raise TimeoutError(f"the process that exports has not answered within {2 * LONGEST:g} s")
    return peer.recv_bytes()


def pull_once(side: Side, peer: Connection, number: int, ids: bytes, kind: str) -> tuple[float, float]:
    """Pull `ids` once. Returns wall seconds, and CPU seconds of both sides. kind: the transport, as the prefix of its
    places."""

    def ask(command: Any) -> tuple[float, Any]:
        peer.send_bytes(wire.encode(command))
        seconds, report = msgspec.msgpack.decode(receive(peer))
        return seconds, report and msgspec.msgpack.decode(report, type=wire.EngineReport)

    start = time.perf_counter()
    more = ids + bytes(4)  # a prompt has one token more than its pages
    cpu, exported = ask(wire.Export(number, wire.Run(0, more)))
    assert exported.n_tokens == len(ids) // 4, exported
    places = tuple(place for place in exported.places if place.startswith(kind))
    pulled, seconds = side.answer(wire.Pull(number, ids, 0, KV, places))
    assert pulled.n_tokens == len(ids) // 4, pulled
    wall = time.perf_counter() - start
    ask(wire.EndPull(number))
    return wall, cpu + seconds


def measure_pulls(n: int, kind: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=source, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that `ours` ends with the process
    side, reference = Side(), Side("")
    walls, cpus = [], []
    n_bytes = side.store.export_bytes(N_MOVED)
    for number in range(n + 1):
        ids = torch.full((N_MOVED * PAGE,), number, dtype=torch.int32).numpy().tobytes()
        ours.send_bytes(b"\0" + number.to_bytes(8, "little") + ids)
        assert receive(ours) == b"ok"
        side.cache.reset()
        wall, cpu = pull_once(side, ours, number, ids, kind)
        reference.cache.reset()
        reference.fill(ids, number)
        for mine, theirs_ in zip(side.content(ids), reference.content(ids), strict=True):
            assert mine.equal(theirs_), "the bytes differ"
        walls.append(wall)
        cpus.append(cpu)
    ours.send_bytes(b"")
    process.join(10)
    side.exchange.close()
    ms = [1000 * statistics.median(one[1:]) for one in (walls, cpus)]
    print(f"{kind}: {n_bytes / 2**20:.0f} MiB in {N_MOVED} pages, all bytes equal")
    print(f"the first, which makes the buffer: {1000 * walls[0]:.0f} ms, CPU of both sides {1000 * cpus[0]:.0f} ms")
    span = f"{1000 * min(walls[1:]):.0f} to {1000 * max(walls[1:]):.0f}"
    print(f"median of {n} more: {ms[0]:.0f} ms ({span}), CPU {ms[1]:.0f} ms")


# ---- decodes beside long prompts -----------------------------------------------------------------------------------


LOADS = {"W2": chat, "W5": nothing_shared, "W6": long_context}
"""Workloads that each kind of fleet also runs by themselves."""


@bn.function
def reader(s: Any, text: str, n_out: int) -> None:
    s += text
    s += bn.gen("answer", max_tokens=n_out, temperature=0.0, ignore_eos=True)


def gaps(backend: Any, source: Source, rounds: int, n_decodes: int) -> tuple[list[float], list[float]]:
    """Seconds between tokens of decodes that run beside long prompts (W6), and the seconds of each long prompt."""
    ends: list[float] = []
    arrivals: list[list[float]] = [[] for _ in range(n_decodes)]
    stop = threading.Event()

    def decode(k: int) -> None:
        while not stop.is_set():
            state = reader.run(text=source.text(40), n_out=400, backend=backend, stream=True)
            for _ in state.text_iter("answer"):
                arrivals[k].append(time.perf_counter())
                if stop.is_set():
                    state.cancel()
                    break
            arrivals[k].append(0.0)

    def all_run() -> bool:
        return all(thread.is_alive() for thread in threads)

    threads = [threading.Thread(target=decode, args=(k,), daemon=True) for k in range(n_decodes)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(times) > 20 for times in arrivals), "tokens of all decodes", alive=all_run, seconds=600)
    begin = time.perf_counter()
    for _ in range(rounds):
        start = time.perf_counter()
        calls = long_context(source)
        reader.run_batch([{"text": call.text, "n_out": call.n_out} for call in calls], backend=backend)
        ends.append(time.perf_counter() - start)
    end = time.perf_counter()
    assert all_run(), "a decode has failed"
    stop.set()
    join(*threads)
    found = []
    for times in arrivals:
        found += [b - a for a, b in itertools.pairwise(times) if a and b and begin <= a and b <= end]
    return found, ends


@bn.function
def chain(s: Any, call: Call) -> None:
    """Runs a call, and then each call's first child."""
    at: Call | None = call
    while at is not None:
        s += at.text
        s += bn.gen(f"{id(at)}", max_tokens=at.n_out, temperature=0.0, ignore_eos=True)
        at = at.children[0] if at.children else None


def seconds_of(backend: Any, calls: list[Call]) -> float:
    start = time.perf_counter()
    chain.run_batch([{"call": call} for call in calls], backend=backend, num_threads=len(calls))
    return time.perf_counter() - start


def measure_fleet(model: Path, rounds: int, repeats: int, dtype: str) -> None:
    """Compares one engine with two threads, two engines with one thread each, and two of which one only prefills. They
    take turns."""
    kinds: dict[str, dict[str, Any]] = {
        "one engine": {"replicas": 1},
        "two mixed": {"replicas": 2},
        "apart": {"replicas": 2, "prefill_replicas": 1},
    }
    words = random_words(json.loads((model / "config.json").read_text())["vocab_size"])
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    for k in range(repeats):
        for name, options in kinds.items():
            runtime = bn.Runtime(
                str(model), device="cpu", dtype=dtype, threads=2, kv_memory="65536 tokens", context=8192,
                speculate="off", **options,
            )  # fmt: skip
            with runtime:
                times, ends = gaps(runtime, Source(words, str(k)), rounds, 4)
                server = runtime.ask("stats")["server"]
                alone = [seconds_of(runtime, load(Source(words, f"{k} again"))) for load in LOADS.values()]
            times.sort()
            p50, p99 = (1000 * times[int(q * len(times))] for q in (0.5, 0.99))
            found[name].append((p50, p99, 1000 * times[-1], statistics.mean(ends), len(times), *alone))
            print(
                f"{name:12} p50 {p50:.1f} ms, p99 {p99:.1f}, most {1000 * times[-1]:.0f}; {len(times)} gaps", end="; "
            )
            print(
                f"W6 {found[name][-1][3]:.2f} s; {server['pulls']} pulls, {server['failed_pulls']} failed", flush=True
            )
    base = statistics.median(one[1] for one in found["one engine"])
    for name, rows in found.items():
        p50, p99, most, seconds, n, *alone = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {p50:.1f} | {p99:.1f} | {most:.0f} | {p99 / base:.2f} | {seconds:.2f} | {n:.0f}", end=" | ")
        print(*(f"{one:.2f}" for one in alone), sep=" | ", end=" |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=15, help="pulls to measure")
    parser.add_argument(
        "--fleet", type=Path, help="a folder made by random_models.py: measure prefill apart from decode"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of four long prompts")
    args = parser.parse_args()
    if args.fleet is None:
        for kind in ("memory", *(("nixl",) if HAS_NIXL else ()), "tcp"):
            measure_pulls(args.n, kind)
    else:
        measure_fleet(args.fleet, args.rounds, args.n, args.dtype)


if __name__ == "__main__":
    main()
