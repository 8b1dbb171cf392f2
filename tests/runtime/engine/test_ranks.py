"""The ranks of an engine: what rank 0 tells the others, that their KV follows, and that they end together."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from socket import socketpair
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from banyan.kernels.ops import Ragged, ragged
from banyan.radix_cache.host_tier import Move
from banyan.runtime import config as configs
from banyan.runtime import launch
from banyan.runtime.client import client
from banyan.runtime.config import Config, Resolved
from banyan.runtime.engine import rank, ranks, step_message
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.ranks import ParallelRunner, PoolSize, Ranks
from banyan.runtime.engine.step_message import CopyPages, CopySlots, KVChange, MovePages, StepMessage, layout_of
from banyan.runtime.errors import ConfigError, EngineLost, OutOfMemory
from banyan.runtime.model import load
from banyan.runtime.model.parallel import Shard
from banyan.runtime.protocol.wire import Append, Fork, Gen, Sampling
from forms import in_short
from waits import wait_until

CPU = torch.device("cpu")


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool((a == b).all()) if hasattr(a, "all") and hasattr(b, "all") else bool(a == b)


BATCHES: dict[str, Ragged] = {
    "decodes": ragged([1, 1], [17, 40], [[3, 5], [3, 7, 8]], 16),
    "a shared prefix and a chunk": ragged([1, 30, 1], [40, 60, 35], [[1, 2, 3], [1, 2, 4, 5], [9, 2, 7]], 16),
    "draft trees": ragged([4, 1], [20, 3], [[1, 2], [3]], 16, parents=[[-1, 0, 0, 2], None]),
    "a last layer of few rows": ragged([200, 4], [200, 9], [range(13), [20]], 16, parents=[None, [-1, 0, 1, 1]],
                                       wanted=[1, 2]),
    "deterministic": ragged([3], [3], [[6]], 16, deterministic=True),
    "windowed layers": ragged([1, 2], [17, 4], [[3, 5], [3]], 16)._replace(
        windowed=ragged([1, 2], [17, 4], [[9, 2], [7]], 16)),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_another_rank_reads_the_batch_that_was_sent(name: str) -> None:
    batch = BATCHES[name]
    numbers = torch.arange(len(batch.slots) + 2)
    ours, theirs = socketpair()
    with ours, theirs:
        for known in (numbers.numpy(), None):  # on a GPU, the numbers are shared on the device
            ours.sendall(step_message.pack(StepMessage([], layout_of(batch), 2, known)))
            message = step_message.receive(theirs)
            assert message is not None
            assert equal(step_message.batch_of(message.layout, CPU), batch)
            assert message.n_wanted == 2
            assert (message.numbers is None) == (known is None)
            assert known is None or (message.numbers == known).all()
        ours.close()
        assert step_message.receive(theirs) is None, "rank 0 has ended"


class Recorder:
    """Stands in for a KVPool, and records the changes to it."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def move(self, *args: Any) -> None:
        self.made.append(("move", *args))

    def copy(self, *args: Any) -> None:
        self.made.append(("copy", *args))

    def copy_slots(self, *args: Any) -> None:
        self.made.append(("copy_slots", *args))


def test_changes_to_kv_arrive_in_order() -> None:
    changes: list[KVChange] = [
        CopyPages([(1, 2, 16), (3, 4, 5)]),
        MovePages([Move(True, 7, 0), Move(False, 8, 1, b"label")]),
        CopySlots([([1, 2], [3, 4]), ([9], [8])]),
        CopySlots([([4], [5])]),
    ]
    ours, theirs = socketpair()
    with ours, theirs:
        ours.sendall(step_message.pack(StepMessage(changes, layout_of(BATCHES["decodes"]), 2, None)))
        message = step_message.receive(theirs)
    recorder: Any = Recorder()
    assert message is not None
    step_message.make(message.changes, recorder)
    assert recorder.made == [
        ("copy", [(1, 2, 16), (3, 4, 5)]),
        ("move", [Move(True, 7, 0), Move(False, 8, 1, b"label")]),
        ("copy_slots", [([1, 2], [3, 4]), ([9], [8])]),
        ("copy_slots", [([4], [5])]),
    ]


class Thread:
    """Stands in for `Ranks`: one other rank, in a thread of this process."""

    def __init__(self, config: Config, resolved: Resolved, path: Path) -> None:
        store = dist.HashStore()  # type: ignore[attr-defined]
        self.shard = Shard(0, 2, config.deterministic)
        self.model = load.load(path, shard=self.shard, deterministic=config.deterministic)
        self.changes: set[type] = set()
        self._socket, theirs = socketpair()

        def run() -> None:
            shard = Shard(1, 2, config.deterministic)
            model = load.load(path, shard=shard, deterministic=config.deterministic)
            sizes = resolved.n_pages, config.page, "cpu", resolved.n_host
            shard.connect(store, CPU)
            pool = KVPool(model.spec, *sizes, n_window_pages=resolved.n_window_pages)
            with theirs:
                rank.run(theirs, model, pool, shard)

        self._thread = threading.Thread(target=run)
        self._thread.start()
        self.shard.connect(store, CPU)

    def send(self, message: StepMessage) -> None:
        self.changes.update(map(type, message.changes))
        self._socket.sendall(step_message.pack(message))

    def give_up(self) -> None:
        pytest.fail("a step failed")

    def close(self) -> None:
        self._socket.close()
        self._thread.join()


Engines = Callable[..., tuple[EngineLoop, set[type]]]


@pytest.fixture
def engines(tiny_model: Callable[..., Path]) -> Iterator[Engines]:
    """`engines(tp, **options)` -> an engine with a tiny llama (or mistral, which has windows), and the kinds of changes
    to KV that were sent to the other rank."""
    threads: list[Thread] = []

    def make(
        tp: int, n_pages: int = 256, n_host: int = 0, n_window_pages: int = 0, **options: Any
    ) -> tuple[EngineLoop, set[type]]:
        config = configs.make(tp=tp, **options)
        resolved = Resolved(
            device="cpu",
            dtype="float32",
            context=config.context or 128,
            n_pages=n_pages,
            n_window_pages=n_window_pages,
            n_host=n_host,
            threads=1,
            decisions=(),
        )
        path, at = (
            tiny_model("mistral" if n_window_pages else "llama"),
            {"clock": lambda: 0.0, "stopwatch": lambda: 0.0},
        )
        if tp == 1:
            model = load.load(path, deterministic=config.deterministic)
            return EngineLoop(config, model, resolved, **at), set()  # type: ignore[arg-type]
        threads.append(Thread(config, resolved, path))
        runner: Any = partial(ParallelRunner, threads[-1])
        e = EngineLoop(config, threads[-1].model, resolved, make_runner=runner, **at)  # type: ignore[arg-type]
        return e, threads[-1].changes

    yield make
    for thread in threads:
        thread.close()


def scripts(known: dict[int, list[int]]) -> list[Any]:
    """Drafts of a wrong token and, as another branch, of the right ones."""

    def right(request: Any, n: int) -> list[int]:
        return known[request.rid][request.n_out :][:n]

    return [lambda request, n: [i + 1 for i in right(request, 1)], right]


OPTIONS: list[dict[str, Any]] = [
    {"speculate": "off"},
    {"speculate": "tree"},
    {"speculate": "tree", "n_window_pages": 60, "step_tokens": 16, "page": 4},
    {"n_pages": 24, "n_host": 200, "max_running": 4, "page": 4, "context": 90, "speculate": "off"},
    {"deterministic": True, "speculate": "off"},
]


@pytest.mark.parametrize("options", in_short(OPTIONS[-1:], OPTIONS), ids=str)
def test_outputs_with_two_ranks_are_those_of_one(
    native: None, fake: ModuleType, engines: Engines, options: dict[str, Any]
) -> None:
    """Prompts share part of a page, which is copied. Drafts that branch move slots, in pages of windowed layers too.
    Where there are few pages, they move to the host and back. The second round starts with the KV of the first."""
    sampling = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    outputs, changes = [], set[type]()
    for tp in (1, 2):
        e, changes = engines(tp, **options)
        e.warm_up()
        if options["speculate"] == "tree" and outputs:
            fake.use_drafts(e, scripts(outputs[0][0]))
        rounds = [fake.drive(e, fake.forked_runs(8, sampling), check=True) for _ in range(2)]
        outputs.append([{rid: output.ids for rid, output in done.items()} for done in rounds])
    assert outputs[0] == outputs[1]
    expected = {CopyPages: True, CopySlots: "tree" in options["speculate"], MovePages: "n_host" in options}
    assert changes == {kind for kind, is_expected in expected.items() if is_expected}


@pytest.mark.parametrize(("options", "message"), [
    ({"tp": 0}, "tp is 0; it must be at least 1"),
    ({"tp": 2, "host_memory": "1MB", "host_file": "kv"}, "host_file holds the KV of one process"),
    ({"tp": 2, "adapters": {"a": "dir"}}, "adapters cannot be split"),
])  # fmt: skip
def test_options_that_do_not_go_with_tp_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configs.make(**options)


def test_only_the_rooms_of_the_model_and_the_runner_know_about_ranks() -> None:
    root = Path(rank.__file__).parents[1]
    knowing = {"model_runner.py", "process.py", "rank.py", "ranks.py", "step_message.py", "capacity.py"}
    words = ("config.tp", "n_ranks", "model.parallel", "engine.rank", "ParallelRunner", "step_message")
    found = [
        f"{path.relative_to(root)}: {word}"
        for path in sorted(root.rglob("*.py"))
        for word in words
        if path.parent.name != "model" and path.name not in knowing and word in path.read_text()
    ]
    assert found == ["config.py: config.tp"]


# ---- processes -----------------------------------------------------------------------------------------------------


def options(tiny_model: Callable[..., Path], **more: Any) -> Config:
    return configs.make(model=str(tiny_model("llama")), device="cpu", threads=1, kv_memory="8MiB", **more)


def test_a_tp_that_does_not_divide_the_heads_is_refused_at_the_start(tiny_model: Callable[..., Path]) -> None:
    from banyan.runtime.engine.process import build

    with pytest.raises(ConfigError, match=r"tp is 3, .* tp can be 1, 2, 4$"):
        build(options(tiny_model, tp=3))


REPORTS = "import os, socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.makefile().readline(); "
HAS_LOADED = "s.sendall(b'{}\\n'); s.makefile().readline(); "  # the size of the KV pool
DOES_NOT_FIT = """s.sendall(b'{"code": "out_of_memory", "message": "it does not fit"}\\n')"""


SIZE = PoolSize(1, 0, 16, "auto")
Two = Callable[[str], tuple[Ranks, list[Any]]]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """`two(code)` -> a rank 0 whose other rank runs `code`, and a list that tells how rank 0 ended."""

    def make(code: str) -> tuple[Ranks, list[Any]]:
        ends: list[Any] = []
        names = {name: getattr(os, name) for name in ("memfd_create", "pidfd_open", "getpid")}
        own = {"kill": lambda pid, signal: ends.append(signal), "_exit": lambda code: ends.append(code)}
        monkeypatch.setattr(ranks, "os", SimpleNamespace(**names, **own))
        monkeypatch.setattr(ranks, "COMMAND", (sys.executable, "-S", "-c", REPORTS + code))
        monkeypatch.setattr(Shard, "connect", lambda *_: None)
        made.append(Ranks(configs.make(tp=2), configs.ModelPlacement("cpu", "float32", 9), 1, "path"))
        return made[-1], ends

    made: list[Ranks] = []
    yield make
    for one in made:
        close(one)


def close(one: Ranks) -> None:
    for peer in one._peers:
        peer.close()
    os.close(one._store_fd)
    one._processes[0].wait()


@pytest.mark.parametrize(("end", "expected"), [
    ("os.kill(os.getpid(), 9)", signal.SIGKILL),
    ("os.kill(os.getpid(), 15)", signal.SIGKILL),
    ("os.kill(os.getpid(), 11)", signal.SIGSEGV),
    ("sys.exit(3)", 3),
    ("", 1),
])  # fmt: skip
def test_rank_0_ends_as_the_rank_did(two: Two, end: str, expected: int) -> None:
    """From its end, the server knows whether the engine was ended from outside, or perhaps by a request."""
    rank_0, ends = two(f"{HAS_LOADED}s.sendall(b'{{}}\\n'); {end}")
    rank_0.connect(Shard(0, 2), SIZE, "cpu")
    rank_0._watcher.join()
    assert ends[0] == expected


@pytest.mark.parametrize(("code", "error", "message"), [
    (DOES_NOT_FIT, OutOfMemory, "rank 1: it does not fit"),
    ("sys.exit(7)", EngineLost, "rank 1 ended while it loaded its part of the model: exit code 7"),
    (HAS_LOADED + DOES_NOT_FIT, OutOfMemory, "rank 1: it does not fit"),
    (HAS_LOADED + "sys.exit(7)", EngineLost, "rank 1 ended while it allocated its KV pool: exit code 7"),
    ("s.sendall(b'{}\\n'); sys.exit(7)", EngineLost, "while it allocated its KV pool: exit code 7"),
    ("s.sendall(b'{}\\n'); s.recv(1); sys.exit(7)", EngineLost, "while it allocated its KV pool: exit code 7"),
])  # fmt: skip
def test_a_rank_that_cannot_start_is_an_error_at_the_start(
    two: Two, code: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        two(code)[0].connect(Shard(0, 2), SIZE, "cpu")


NO_POOL = """
import sys
from banyan.runtime.engine import rank
from banyan.runtime.errors import OutOfMemory
def no_pool(*_):
    raise OutOfMemory("the pages do not fit")
rank.KVPool = no_pool
sys.exit(rank.main(int(sys.argv[1])))
"""


def test_a_pool_that_does_not_fit_on_another_rank_is_an_error_at_the_start(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from banyan.runtime.engine import process

    made: list[Ranks] = []
    monkeypatch.setattr(ranks, "COMMAND", (sys.executable, "-c", NO_POOL))
    monkeypatch.setattr(process, "Ranks", lambda *args: made.append(Ranks(*args)) or made[0])
    with pytest.raises(OutOfMemory, match="rank 1: the pages do not fit"):
        process.build(options(tiny_model, tp=2))
    close(made[0])


def ranks_of(c: client.Client) -> list[psutil.Process]:
    return psutil.Process(c.ask("info", timeout=60)["engine_pid"]).children()


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def values(c: client.Client, kill: Callable[[], object] | None = None) -> list[str]:
    """The texts of a program with forks. kill: called when its gens run."""
    before = c.ask("stats", timeout=60)["engine"]["steps"]
    program = c.program("forked")
    sampling = Sampling(temperature=0.0, max_tokens=200, ignore_eos=True)
    program.submit([Append(0, ("the quick brown fox ",)), Fork(0, (1, 2, 3))])
    program.submit([op for k in (1, 2, 3) for op in (Append(k, (f"{k} jumps",)), Gen(k, k, sampling))])
    if kill is not None:
        wait_until(lambda: c.ask("stats", timeout=60)["engine"]["steps"] > before + 20, "some steps of the program")
        assert not program.future(1).done(), "the kill interrupts work"
        kill()
    return [sample.text for ref in (1, 2, 3) for sample in program.future(ref).result(100).samples]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_programs_go_on_when_a_rank_is_killed_and_no_rank_is_left(tiny_model: Callable[..., Path]) -> None:
    # With drafts, the second run of the same texts would take them from the tree and need only a few steps.
    server = launch.start(options(tiny_model, tp=2, speculate="off"), timeout=100)
    try:
        c = client.connect(server.socket, timeout=60)
        calm = values(c)
        (other,) = ranks_of(c)
        assert values(c, kill=other.kill) == calm
        engine = psutil.Process(c.ask("info", timeout=60)["engine_pid"])
        (other,) = ranks_of(c)
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(lambda: is_over(other), "the end of the other rank")
    finally:
        server.close()
