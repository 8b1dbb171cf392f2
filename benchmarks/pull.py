"""What it takes to move KV from one engine to another.

    python benchmarks/pull.py            # 112 MiB between two processes, over each transport
    python benchmarks/pull.py --fleet    # decodes beside long prompts: one engine, and prefill apart from decode

The first part runs the engine's own exchange, cache and pool in two processes without a model. A pull begins with the
order to export and ends with the puller's report, and all bytes are compared afterwards. The first pull of all makes
the buffers; later ones use them again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from banyan.radix_cache.cache import Cache
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.transfer.exchange import KVExchange
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.protocol import wire

PAGE, N_PAGES, N_MOVED = 16, 512, 299
SPEC = ModelSpec(
    name="m1", family="llama", n_layers=12, n_heads=12, n_kv_heads=4, head_dim=64, hidden=768, vocab_size=1000,
    max_context=PAGE * N_PAGES, eos_ids=(), dtype="float32", n_parameters=0,
)  # fmt: skip
"""Keys and values of the 110M model in float32: 24 KiB a token."""
KV = wire.KVFormat(1, b"", "cpu", "float32", "auto", PAGE, 12, 4, 64, PAGE * N_PAGES, False)


class NoScheduler:
    def take(self, order: Any) -> None:
        raise AssertionError(f"nothing is computed here: {order}")


class Side:
    """One engine without a model."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.store = KVPool(SPEC, N_PAGES, PAGE, "cpu")
        self.cache = Cache(N_PAGES, PAGE)
        runner = ModelRunner(None, self.store)  # type: ignore[arg-type]
        self.exchange = KVExchange(self.cache, runner, NoScheduler(), KV)

    def fill(self, ids: bytes, seed: int) -> None:
        """Store a prefix with KV that depends on the seed. Its pages are in no order."""
        generator = torch.Generator().manual_seed(seed)
        self.cache.pool.free = torch.randperm(N_PAGES, generator=generator).tolist()
        with self.cache.open(ids) as lease:
            assert lease.grow(len(ids) // 4)
            for pool in self.store._pools:
                pool[lease.pages] = torch.randn((len(lease.pages), *pool.shape[1:]), generator=generator)
            lease.publish(ids)

    def content(self, ids: bytes) -> list[torch.Tensor]:
        with self.cache.open(ids) as lease:
            assert lease.n_cached == len(ids) // 4
            return [pool[lease.pages].clone() for pool in self.store._pools]

    def answer(self, command: Any) -> Any:
        """The report on a command, and CPU seconds of this thread."""
        start = time.thread_time()
        self.exchange.take(command)
        reports: list[Any] = []
        while not reports and not isinstance(command, wire.EndPull):
            reports = list(self.exchange.work(0.0))
        return (*reports, None)[0], time.thread_time() - start


def source(peer: Connection) -> None:
    """The process that exports."""
    side = Side()
    decode = msgspec.msgpack.Decoder(wire.EngineCommand).decode
    while True:
        data = peer.recv_bytes()
        if not data:
            return
        if data[:1] == b"\0":  # a new prefix
            side.cache.reset()
            side.fill(data[9:], int.from_bytes(data[1:9], "little"))
            peer.send_bytes(b"ok")
            continue
        report, seconds = side.answer(decode(data))
        peer.send_bytes(msgspec.msgpack.encode((seconds, report and wire.encode(report))))


def pull_once(side: Side, peer: Connection, number: int, ids: bytes) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of both sides."""

    def ask(command: Any) -> tuple[float, Any]:
        peer.send_bytes(wire.encode(command))
        seconds, report = msgspec.msgpack.decode(peer.recv_bytes())
        return seconds, report and msgspec.msgpack.decode(report, type=wire.EngineReport)

    start = time.perf_counter()
    more = ids + bytes(4)  # a prompt has one token more than its pages
    cpu, exported = ask(wire.Export(number, wire.Run(0, more)))
    assert exported.n_tokens == len(ids) // 4, exported
    pulled, seconds = side.answer(wire.Pull(number, ids, 0, KV, exported.places))
    assert pulled.n_tokens == len(ids) // 4, pulled
    wall = time.perf_counter() - start
    ask(wire.EndPull(number))
    return wall, cpu + seconds


def measure_pulls(n: int) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=source, args=(theirs,), daemon=True)
    process.start()
    side, reference = Side(), Side()
    walls, cpus = [], []
    n_bytes = side.store.export_bytes(N_MOVED)
    for number in range(n + 1):
        ids = torch.full((N_MOVED * PAGE,), number, dtype=torch.int32).numpy().tobytes()
        ours.send_bytes(b"\0" + number.to_bytes(8, "little") + ids)
        assert ours.recv_bytes() == b"ok"
        side.cache.reset()
        wall, cpu = pull_once(side, ours, number, ids)
        reference.cache.reset()
        reference.fill(ids, number)
        for mine, theirs_ in zip(side.content(ids), reference.content(ids), strict=True):
            assert mine.equal(theirs_), "the bytes differ"
        walls.append(wall)
        cpus.append(cpu)
    ours.send_bytes(b"")
    process.join(10)
    ms = [1000 * statistics.median(one[1:]) for one in (walls, cpus)]
    print(f"{n_bytes / 2**20:.0f} MiB in {N_MOVED} pages, all bytes equal")
    print(f"the first, which makes the buffer: {1000 * walls[0]:.0f} ms, CPU of both sides {1000 * cpus[0]:.0f} ms")
    span = f"{1000 * min(walls[1:]):.0f} to {1000 * max(walls[1:]):.0f}"
    print(f"median of {n} more: {ms[0]:.0f} ms ({span}), CPU {ms[1]:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=15, help="pulls to measure")
    args = parser.parse_args()
    measure_pulls(args.n)


if __name__ == "__main__":
    main()
