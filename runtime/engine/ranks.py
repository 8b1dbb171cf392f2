"""Tensor parallelism on rank 0. Rank 0 has the scheduler, the tree and the sampler, and starts the other ranks
(rank.py), each of which only runs its part of the model."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from socket import socket, socketpair
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]  # the stubs forget to export it

from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.ops import Ragged
from banyan.radix_cache.host_tier import Move
from banyan.runtime.config import Config, KVDtype, ModelPlacement
from banyan.runtime.engine import step_message
from banyan.runtime.engine.cuda_graphs import Graphs
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.errors import ConfigError, EngineLost, from_code
from banyan.runtime.model import load
from banyan.runtime.model.parallel import Shard

T = TypeVar("T")

COMMAND = (sys.executable, "-m", "banyan.runtime.engine.rank")
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRACE = 5.0
"""After an error in a step, `Ranks._watch` has this many seconds to notice that a rank has ended, the likely cause."""


class RankStart(msgspec.Struct, frozen=True):
    """The first line that a rank reads from its socket. store_fd: shared memory with the torch.distributed store
    through which the ranks connect."""

    rank: int
    config: Config
    placement: ModelPlacement
    threads: int
    path: str
    store_fd: int


class PoolSize(msgspec.Struct, frozen=True):
    """The second line that a rank reads, once all ranks have loaded their parts: the size of the KV pool to
    allocate."""

    n_pages: int
    n_host: int
    page: int
    kv_dtype: KVDtype
    n_window_pages: int = 0


class RankReport(msgspec.Struct, frozen=True):
    """A line that a rank writes when it has loaded its part of the model, and again when it has allocated its KV pool.
    code: the code of its error; "": it succeeded."""

    code: str = ""
    message: str = ""


class Ranks:
    """The processes of all ranks but rank 0, which is this process. When this process ends, they end too. When one of
    them ends, it ends this process, because no rank can continue alone; the server then starts another engine."""

    def __init__(self, config: Config, placement: ModelPlacement, threads: int, path: str) -> None:
        """Start the other ranks, which begin to load their parts of the model. ConfigError: there are too few GPUs."""
        if placement.device == "cuda" and torch.cuda.device_count() < config.tp:
            raise ConfigError(f"tp={config.tp} needs {config.tp} GPUs, but torch sees {torch.cuda.device_count()}")
        self._store_fd = os.memfd_create("banyan-ranks")
        self._peers: list[socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, config.tp):
            ours, theirs = socketpair()
            fds = theirs.fileno(), self._store_fd
            with theirs:
                process = subprocess.Popen(
                    [*COMMAND, str(fds[0])], pass_fds=fds, stdin=subprocess.DEVNULL, stdout=2,
                )  # fmt: skip
            self._peers.append(ours)
            self._processes.append(process)
            start = RankStart(rank, config, placement, threads, path, self._store_fd)
            ours.sendall(msgspec.json.encode(start) + b"\n")
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def connect(self, shard: Shard, size: PoolSize, device: str) -> None:
        """Wait until all ranks have loaded their parts and allocated their KV pools, and connect them. Raises the error
        of the first rank that could not."""
        self._read_reports("loaded its part of the model")
        for peer in self._peers:
            with suppress(BrokenPipeError):  # it has ended, as the next read shows
                peer.sendall(msgspec.json.encode(size) + b"\n")
        self._read_reports("allocated its KV pool")
        self._watcher.start()  # not before: a rank that reports an error ends too
        shard.connect(store(self._store_fd, shard.n_ranks), torch.device(device))

    def _read_reports(self, doing: str) -> None:
        for rank, peer in enumerate(self._peers, 1):
            if (report := read(peer, RankReport)) is None:
                how = self._processes[rank - 1].wait()
                raise EngineLost(f"rank {rank} ended while it {doing}: exit code {how}")
            if report.code:
                raise from_code(report.code, f"rank {rank}: {report.message}")

    def send(self, message: step_message.StepMessage) -> None:
        data = step_message.pack(message)
        for peer in self._peers:
            peer.sendall(data)

    def give_up(self) -> None:
        """End this process after an error in a step, since the other ranks would wait for it forever."""
        traceback.print_exc()
        self._watcher.join(_GRACE)
        os._exit(1)

    def _watch(self) -> None:
        """When a rank ends, end this process with a corresponding signal or exit code, which tells the server whether a
        request caused the end."""
        by_fd = {os.pidfd_open(process.pid): (rank, process) for rank, process in enumerate(self._processes, 1)}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        rank, process = by_fd[poll.poll()[0][0]]
        code = process.wait()
        print(f"banyan: rank {rank} ended with exit code {code}; the engine ends too", file=sys.stderr, flush=True)
        if code < 0:
            os.kill(os.getpid(), signal.SIGKILL if -code in _FROM_OUTSIDE else -code)
        os._exit(code or 1)


class ParallelRunner(ModelRunner):
    """Runs each step on all ranks. Decode steps are not captured: the ranks would have to capture together."""

    has_whole_pages = False

    def __init__(self, ranks: Ranks, model: load.Model, store: KVPool, graphs: Graphs | None) -> None:
        super().__init__(model, store)
        self._ranks = ranks
        self._changes: list[step_message.KVChange] = []  # since the last step

    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, rows: Tensor,
                adapted: AdaptedRows | None = None) -> Tensor:  # fmt: skip
        try:
            numbers = torch.cat([ids, rows])
            known = None if ids.is_cuda else numbers.numpy()
            self._ranks.send(step_message.StepMessage(self._changes, step_message.layout_of(ragged), len(rows), known))
            self._changes = []
            if ids.is_cuda:
                self.model.shard.share(numbers)  # type: ignore[attr-defined]
            return super().forward(ids, positions, ragged, rows, adapted)
        except Exception:
            self._ranks.give_up()
            raise

    def move(self, moves: Sequence[Move]) -> None:
        super().move(moves)
        if moves:
            self._changes.append(step_message.MovePages(moves))

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        super().copy(copies)
        if copies:
            self._changes.append(step_message.CopyPages(copies))

    def copy_slots(self, paths: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        super().copy_slots(paths)
        if paths:
            self._changes.append(step_message.CopySlots(list(paths)))  # the scheduler clears its list


def read(peer: socket, kind: type[T]) -> T | None:
    """Read the next line; None: the other process has ended. The other process must not write more until this line is
    answered."""
    line = b""
    with peer.makefile("rb") as file, suppress(ConnectionResetError):  # it ended before it read all that was sent
        line = file.readline()
    return msgspec.json.decode(line, type=kind) if line else None


def store(fd: int, n_ranks: int) -> Any:
    """A torch.distributed.Store in memory that the ranks inherit, and that no other process can reach."""
    return FileStore(f"/proc/self/fd/{fd}", n_ranks)
