"""The engine's process: its arguments, its connection to the server, and how it ends.

    python -m banyan.runtime.engine --socket ipc://DIR/engine --config JSON --alive-fd N [--flight-fd M] [--host HOST]

It first sends Ready, or one Failed with program -1 that says why it could not start. It ends when its parent does, at
EOF of `--alive-fd` or by a SIGKILL from the kernel, and at SIGTERM. The server handles Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

import msgspec
import zmq

from banyan.runtime import config as configs
from banyan.runtime.config import Config
from banyan.runtime.engine.capacity import fit
from banyan.runtime.engine.hardware import probe, use_huge_pages
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.ranks import ParallelRunner, PoolSize, Ranks
from banyan.runtime.engine.speculation import drafters
from banyan.runtime.errors import BanyanError, Unsupported
from banyan.runtime.malloc import MallocOption, mallopt
from banyan.runtime.model import load, spec, weights
from banyan.runtime.model.parallel import Shard, sharded
from banyan.runtime.model.size import least_bytes, measure, tensors_of
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.decoders import decode_command
from banyan.runtime.protocol.flight_record import FlightRecord

PATIENCE = 2.0
"""Seconds of warming up a GPU after which a Notice says that kernels are compiled."""
_PR_SET_PDEATHSIG = 1
_MAX_ORDERS = 256  # taken before the first step: about 3 ms
_ORDERS_SECONDS = 0.0005
"""Maximum CPU time in seconds spent on orders between two steps, while running requests wait; half of them for
receiving."""
_log = logging.getLogger("banyan.kernels")
_LINGER_MS = 2000  # how long a process that ends waits for the server to read its last message


def main(argv: list[str]) -> int:
    """Run an engine. Returns 0 when the parent has ended or closed the pipe; 1 when the engine could not start or the
    loop failed."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.engine")
    parser.add_argument("--socket", required=True, help="ZeroMQ address to which the server's PAIR socket is bound")
    parser.add_argument("--config", required=True, help="a Config as JSON")
    parser.add_argument("--alive-fd", type=int, help="end at EOF of this file descriptor")
    parser.add_argument("--replica", type=int, default=0, help="number among the engines of its server: picks its GPU")
    parser.add_argument("--flight-fd", type=int, help="memory that records the requests in flight: flight_record.py")
    parser.add_argument("--host", default="", help="name or address by which engines elsewhere reach this one for KV")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if args.alive_fd is not None:
        end_with_parent()
    with zmq.Context() as context:
        link = ServerLink(context, args.socket, args.alive_fd)
        _log.setLevel(logging.INFO)
        _log.addHandler(_ToServer(link))
        try:
            flight = None if args.flight_fd is None else FlightRecord(args.flight_fd)
            engine = build(msgspec.json.decode(args.config, type=Config), flight, args.replica, args.host)
            settle()
            engine.run(link)
            engine.close()
        except BanyanError as e:
            link.send([wire.Failed(-1, 0, e.code, e.message)])
            return 1
        except Exception as e:
            traceback.print_exc(file=sys.stderr)
            link.send([wire.Failed(-1, 0, "error", f"the engine ended: {e!r}")])
            return 1
        finally:
            link.close()
    return 0


def end_with_parent() -> None:
    """Let the kernel end this process with SIGKILL when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def build(config: Config, flight: FlightRecord | None = None, replica: int = 0, host: str = "") -> EngineLoop:
    """Build an engine from its configuration: read the model, and resolve "auto" options by what the machine has now.
    replica: the engine's number among the engines of the server. host: see KVExchange."""
    path = spec.resolve(config.model)
    source = drafters.find(config, path)
    if source is not None and source.kind != "model" and config.tp > 1:
        raise Unsupported(
            f"draft_model {config.draft_model} reads a whole model's weights; with tp, name another model"
        )
    hardware = probe(config.device != "cpu", config.tp, replica)
    known = sharded(spec.windowed(spec.read_spec(path), config.window, configs.n_sinks(config)), config.tp)
    placement = configs.place(config, hardware, known.name, known.max_context, known.dtype)
    least = least_bytes(path, known, placement.dtype, config.weight_dtype)
    early, facts = fit(config, hardware, known, placement, source, least)
    resolved = configs.resolve(early, hardware, facts)  # raises if memory is too small, before anything is loaded
    ranks = Ranks(config, placement, resolved.threads, str(path)) if config.tp > 1 else None
    shard = Shard(0, config.tp, config.deterministic) if ranks is not None else None
    with weights.bar(f"loading {config.model}") as progress:
        model = load.load(
            path, device=resolved.device, dtype=resolved.dtype, max_context=resolved.context,
            deterministic=config.deterministic, weight_dtype=config.weight_dtype,
            window=config.window, sinks=configs.n_sinks(config), shard=shard, progress=progress,
        )  # fmt: skip
    n_bytes = measure(model).n_bytes
    known = msgspec.structs.replace(known, windows=model.spec.windows)  # more exact than config.json
    if resolved.device == "cpu":
        use_huge_pages(tensors_of(getattr(model, "module", model)))
    config, facts = fit(config, hardware, known, placement, source, n_bytes)
    resolved = configs.resolve(config, hardware, facts)
    if ranks is not None and shard is not None:
        sizes = resolved.n_pages, resolved.n_host, config.page, config.kv_dtype, resolved.n_window_pages
        ranks.connect(shard, PoolSize(*sizes), resolved.device)
    suffix = "" if config.weight_dtype == "auto" else f" {config.weight_dtype}"
    engine = EngineLoop(
        config, model, resolved, flight=flight, weights=weights.version(path) + suffix,
        fingerprint=weights.fingerprint(path) + suffix.encode(),
        draft_model=drafters.read(source, resolved, model) if source else None,
        make_runner=ModelRunner if ranks is None else partial(ParallelRunner, ranks), host=host,
    )  # fmt: skip
    for name, directory in config.adapters.items():
        engine.adapters.names[name] = engine.adapters.load(directory, name)
    with _compiling_on(hardware.gpu if resolved.device == "cuda" else None):
        engine.warm_up()
    return engine


class _ToServer(logging.Handler):
    """Sends log records to the server."""

    def __init__(self, link: ServerLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        self._link.send([wire.Notice(record.getMessage())])


@contextlib.contextmanager
def _compiling_on(gpu: str | None) -> Iterator[None]:
    """A context manager around the warm-up of a GPU. If the warm-up takes longer than PATIENCE seconds, reports that
    Triton compiles kernels. Triton does not say in advance whether its cache lacks any. gpu: the name for the report;
    None if there is no GPU; then nothing is reported."""
    text = "compiling the Triton kernels for %s; at the first start with a model this takes about 20 s"
    timer = threading.Timer(PATIENCE, _log.info, (text, gpu))
    if gpu is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if gpu is not None:
            timer.join()  # a socket is used by one thread at a time


def settle() -> None:
    """Prepare the process for a long run: keep the garbage collector from scanning the objects that exist now, and let
    malloc keep large freed buffers. Called once, when the engine is built."""
    gc.freeze()  # collections skip what is alive now, which includes the model
    gc.enable()  # off since the process started (__main__.py)
    # glibc returns large buffers to the kernel and faults them in again in the next step: a cumsum of 64 x 8192 float64
    # then takes 6.4 ms, and 0.5 ms where memory is kept (one core of an AMD EPYC, torch 2.13).
    mallopt(MallocOption.MMAP_THRESHOLD, 1 << 30)
    mallopt(MallocOption.TRIM_THRESHOLD, (1 << 31) - 1)


class ServerLink:
    """The engine's connection to the server: one PAIR socket, and the pipe that shows when the parent ends."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, alive_fd: int | None) -> None:
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # sending never blocks the loop
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        if alive_fd is not None:
            self._poller.register(alive_fd, zmq.POLLIN)
        self._alive_fd = alive_fd
        # client -> its requests; the client whose turn is next is first
        self._waiting: dict[int, dict[int, wire.Run]] = {}

    def drain(self, block: bool) -> Iterator[wire.EngineCommand]:
        """Yield messages of the server that have arrived. Yields first what is no request, and then new requests, one
        of each client in turn. So thousands of requests of one client delay neither other clients nor questions. A call
        yields at most _MAX_ORDERS of each kind, and stops after about _ORDERS_SECONDS of CPU time. With `block`, it
        waits for a message and has no time limit. Raises EOFError when the parent has ended."""
        events = dict(self._poller.poll(None if block and not self._waiting else 0))
        if self._alive_fd in events:
            raise EOFError("the parent has ended")
        start = time.thread_time()
        end = math.inf if block else start + _ORDERS_SECONDS
        for order in self._receive() if self._socket in events else ():
            match order:
                case wire.Run():
                    self._waiting.setdefault(order.client, {})[order.rid] = order
                case wire.Abort(rid=rid) if any(runs.pop(rid, None) for runs in self._waiting.values()):
                    # The server, or its host, counts a request as running until its Finish.
                    self.send([wire.Step(finished=(wire.Finish(rid, "abort"),))])
                case wire.Ask(what="unload_adapter"):  # after the requests that it concerns
                    yield from self._take_turns()
                    yield order
                case _:
                    yield order
            if time.thread_time() > (start + end) / 2:
                break
        for run in islice(self._take_turns(), _MAX_ORDERS):
            yield run
            if time.thread_time() > end:
                return

    def _receive(self) -> Iterator[wire.EngineCommand]:
        for _ in range(_MAX_ORDERS):
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield decode_command(data)
            except wire.UNREADABLE as e:
                print(f"banyan: ignored an unreadable order of {len(data)} bytes: {e}", file=sys.stderr, flush=True)

    def _take_turns(self) -> Iterator[wire.Run]:
        while self._waiting:
            client, runs = next(iter(self._waiting.items()))
            del self._waiting[client]
            if runs:
                run = runs.pop(next(iter(runs)))
                self._waiting[client] = runs  # after the clients that wait already
                yield run

    def watch(self, fd: int) -> None:
        """Let writes to this eventfd also end the wait of `drain`."""
        self._poller.register(fd, zmq.POLLIN)

    def send(self, reports: Iterable[wire.EngineReport]) -> None:
        for report in reports:
            self._socket.send(wire.encode(report))

    def close(self) -> None:
        self._socket.close()
