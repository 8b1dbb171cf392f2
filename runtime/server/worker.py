"""The server as a process: its loop, its sockets, its end.

    python -m banyan.runtime.server --config JSON --ready-fd N --alive-fd M [--private]

One thread that never waits for anything but its sockets. Text that takes long to encode goes to a thread and comes
back as a call on the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shutil
import signal
import sys
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import zmq

from banyan.runtime import launch
from banyan.runtime.config import Config, parse_bytes
from banyan.runtime.errors import BadMessage, BanyanError, ConfigError, ConnectFailed, EngineLost, from_code
from banyan.runtime.model.spec import resolve
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.server.constraints.constraint_checker import ConstraintChecker
from banyan.runtime.server.engine_link.link import EngineLink
from banyan.runtime.server.engine_link.questions import OURSELVES, Questions
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.listeners import Listeners
from banyan.runtime.server.policy import quota
from banyan.runtime.server.policy.run_limits import Timers
from banyan.runtime.server.policy.tenants import Tenant, Tenants, configured
from banyan.runtime.server.programs.generation import EngineGenerator
from banyan.runtime.server.programs.journal import Durables, Journal
from banyan.runtime.server.programs.programs import Programs
from banyan.runtime.server.telemetry.observer import Observer
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.tokenizer import Files, Tokenizer

LONG = 4096
"""Characters that are encoded on the loop at most: about 1 ms. A thread's round trip takes 0.1 ms."""

MAX_BARREN = 2
"""Engines that may end one after another before they are ready; then there is nothing to go on with."""

MOST_REFUSALS = 16
"""Messages of a peer that are refused with a word; then nothing is read of it any more."""

MOST_KNOWN = 4096
"""Peers whose refusals are counted."""

LEVELS = ("quiet", "info", "debug")


class Peer:
    """A client that said Hello."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_silent = 0  # heartbeats since it was last heard


class Server:
    """One model's server: everything that runs in its process.

    `run` returns when the parent is gone, a signal asked for the end, or no engine comes up.
    """

    def __init__(
        self, config: Config, alive_fd: int | None, ready_fd: int | None, is_private: bool, engine: Sequence[str]
    ) -> None:
        """`is_private`: the directory of the socket goes with the server."""
        self.config, self._alive_fd, self._ready_fd, self._is_private = config, alive_fd, ready_fd, is_private
        self.is_stopping = False
        self._error: BanyanError | None = None
        self.tenants = Tenants(configured(config), config.isolate == "connection")
        if config.bind and not self.tenants.asks_for_token:
            raise ConfigError(f"bind is {config.bind}, and anybody could come in there; say who may, with token_file")
        self._peers: dict[bytes, Peer] = {}
        self._refusals: OrderedDict[bytes, int] = OrderedDict()  # of peers that broke the rules lately
        self._waiting: dict[bytes, tuple[wire.Hello, Tenant]] = {}  # who said Hello before the engine was ready
        self._n_barren = 0  # engines in a row that died before they were ready
        self._started = time.monotonic()
        self._calls: deque[Callable[[], None]] = deque()
        with contextlib.ExitStack() as undo:
            self._open(undo, engine)
            self._undo = undo.pop_all()

    def _open(self, undo: contextlib.ExitStack, engine: Sequence[str]) -> None:
        """Everything that must be closed again, on `undo`."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        undo.callback(os.close, self._wake)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        undo.callback(self._context.destroy, 0)
        path = Path(self.config.socket)
        self.front = Listeners(self._context, self.config)
        if self._is_private:
            undo.callback(shutil.rmtree, path.parent, ignore_errors=True)
        undo.callback(self.front.release)
        undo.callback(path.unlink, missing_ok=True)
        directory = resolve(self.config.model)
        self.directory = directory
        self.name = self.config.model if self.config.model == "pocket" else directory.name
        self.link = EngineLink(self._context, msgspec.structs.replace(self.config, model=str(directory)), path, engine)
        undo.callback(self.link.close)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="banyan-encode")
        undo.callback(self._threads.shutdown, wait=False, cancel_futures=True)
        self._load(directory, undo)  # while the engine loads its weights

    def _load(self, directory: Path, undo: contextlib.ExitStack) -> None:
        files = Files.read(directory)
        self.tokenizer = Tokenizer(directory, files)
        template = ChatTemplate(files.template, files.special_tokens) if files.template else None
        text_config = files.config.get("text_config") or files.config
        self.observed = Observer(self.config, self.name, undo)
        self.requests = EngineRequests(
            self.tokenizer,
            text_config.get("vocab_size"),
            self._order,
            call_later=self._later,
            on_end=self.observed.ended,
        )
        vocabulary = self.tokenizer.vocabulary()
        self.link.first = (vocabulary,)
        self.grammars = ConstraintChecker(
            self._context,
            Path(self.config.socket),
            vocabulary,
            text_config.get("vocab_size") or len(self.tokenizer.spelling),
            most_bytes=self.config.constraint_bytes,
            seconds=self.config.constraint_seconds,
            engine=self.config.constraint_engine,
            changed=self._watch,
        )
        undo.callback(self.grammars.close)
        check = self.grammars.check
        generator = EngineGenerator(self.tokenizer, template, self.requests, self._offload, Random(), check)
        self.timers = Timers()
        self.programs = Programs(
            generator,
            self._say,
            self.timers,
            quota.QuotaLimits.of(self.config),
            root_key=self.tenants.root,
            telemetry=self.observed,
            durables=self._durables(undo),
        )
        self.questions = Questions(
            self.tenants,
            self.tokenizer,
            order=self._order,
            say=self._say,
            stats=self._stats,
            info=self._info,
            check=lambda: self.programs.check(self.requests),
            noted=self.observed.note,
        )
        self.chat = generator.with_call_format(template.chat_markers()) if template else None

    def _durables(self, undo: contextlib.ExitStack) -> Durables:
        """Programs can be durable where their client could come back to them."""
        if self._is_private:
            why = "this server ends with the process that started it; use `banyan serve --socket PATH`"
            return Durables(why=why)
        if self.config.isolate == "connection":
            why = "a client that comes back has another connection, and this server isolates connections"
            return Durables(why=why)
        journal = Journal(Path(f"{self.config.socket}.journal"), parse_bytes(self.config.durable_bytes))
        undo.callback(journal.close)
        return Durables(journal)

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        beat = time.monotonic() + ipc.HEARTBEAT
        self._watch()
        with self._undo:
            while not self.is_stopping:
                ready = dict(self._poller.poll(int(1000 * self.timers.wait(max(0.0, beat - time.monotonic()))) + 1))
                if self.link.socket in ready:
                    self.link.receive(self._report)
                if self.link.life in ready:
                    self._engine_died()
                if any(source in ready for source in self.front.sockets):
                    self._receive()
                if self._wake in ready:
                    self._call()
                if any(source in ready for source in self.grammars.sockets):
                    self.grammars.receive()
                if any(source in ready for source in self.front.breaks) and self.front.has_broken():
                    beat = min(beat, time.monotonic() + 0.05)  # by then the socket knows whom it lost
                    self._probe()
                if self._alive_fd in ready:
                    self.stop()
                self.timers.run()
                if time.monotonic() >= beat:
                    beat = time.monotonic() + ipc.HEARTBEAT
                    self._beat()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        """What the loop sleeps on. Made anew with each process that it talks to."""
        self._poller = zmq.Poller()
        ours = (*self.front.sockets, *self.front.breaks, self._wake, self._alive_fd)
        for source in (*ours, self.link.socket, self.link.life, *self.grammars.sockets):
            if source is not None:
                self._poller.register(source, zmq.POLLIN)

    def stop(self) -> None:
        self.is_stopping = True

    def _note(self, level: Literal["quiet", "info", "debug"], text: str) -> None:
        """Say it on stderr, if the log is at least as talkative as `level`."""
        if LEVELS.index(level) <= LEVELS.index(self.config.log):
            print(f"banyan: {text}", file=sys.stderr, flush=True)

    def _call(self) -> None:
        os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()

    def _later(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        os.eventfd_write(self._wake, 1)

    def _offload(self, n_chars: int, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        if n_chars <= LONG:
            then(work())
            return

        def on_thread() -> None:
            try:
                result = work()
            except Exception as e:  # the loop decides what it means
                result = e
            self._later(partial(then, result))

        self._threads.submit(on_thread)

    # ---- clients ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        for client, frames in self.front.receive():
            if self._refusals.get(client, 0) >= MOST_REFUSALS:
                continue
            try:
                message = _decode(frames)
                if not isinstance(message, wire.Ping):
                    self._note("debug", f"{client.hex()}: {type(message).__name__}, {len(frames[0])} bytes")
                self._take(client, message)
            except BanyanError as e:
                self._refuse(client, e)
            except Exception as e:  # a bug of ours costs the client that met it, not all the others
                traceback.print_exc()
                self._refuse(client, BanyanError(f"the server failed on this message: {e!r}"))

    def _take(self, client: bytes, message: wire.ClientMessage) -> None:
        peer = self._peers.get(client)
        if isinstance(message, wire.Hello):
            if message.version != wire.VERSION:
                raise ConnectFailed(
                    f"the server speaks version {wire.VERSION} of the protocol, the client {message.version}; "
                    "install the same version of banyan on both sides"
                )
            self._waiting[client] = message, self.tenants.identify(message)
            if self.link.ready is not None:
                self._welcome(self.link.ready)
            return
        if peer is None:
            raise BadMessage(f"{type(message).__name__} came before Hello")
        peer.n_silent = 0
        match message:
            case wire.Submit():
                self.programs.submit(client, message)
            case wire.Define():
                self.programs.define(client, message)
            case wire.Undefine():
                self.programs.undefine(client, message)
            case wire.Cancel():
                self.programs.cancel(client, message)
            case wire.Ask():
                self.questions.ask(client, message)
            case wire.Ping():
                self._say(client, wire.Pong())
            case wire.Resend():
                self.programs.delivery.resend(client, message)
            case wire.Sync():
                self.programs.delivery.sync(client, message)

    def _welcome(self, ready: wire.Ready) -> None:
        for client, (hello, tenant) in self._waiting.items():
            self._peers[client] = Peer(hello.client)
            self.tenants.join(client, tenant)
            whose = f" of {tenant.name}" if tenant.name else ""
            self._note("info", f"client {hello.client}{whose} joined as {client.hex()}")
            self._say(
                client,
                wire.Welcome(
                    version=wire.VERSION,
                    model=self.name,
                    max_context=ready.max_context,
                    chat=self.chat,
                    max_message=self.config.max_message,
                    credit=self.config.max_programs,
                ),
            )
        self._waiting.clear()

    def _say(self, client: bytes, message: wire.ServerMessage) -> None:
        if not self.front.send(client, wire.encode(message)):
            # Not now: who called may be in the middle of its program.
            self._later(partial(self._forget, client))

    def _refuse(self, client: bytes, error: BanyanError) -> None:
        """A peer that breaks the rules: told so, then forgotten."""
        self._note("info", f"refused {client.hex()}: {error.message}")
        self._refusals[client] = self._refusals.pop(client, 0) + 1
        if len(self._refusals) > MOST_KNOWN:
            self._refusals.popitem(last=False)
        self._say(client, wire.Failed(program=-1, seq=0, code=error.code, message=error.message))
        self._forget(client)

    def _forget(self, client: bytes) -> None:
        if (peer := self._peers.pop(client, None)) is not None:
            self._note("info", f"client {peer.name} is gone")
            self.programs.forget(client)
            self.tenants.leave(client)

    def _probe(self) -> None:
        """A connection broke: find out whose. A send to a client that is gone fails."""
        for client in list(self._peers):
            self._say(client, wire.Pong())

    def _beat(self) -> None:
        self.link.beat()
        if self.observed.wants_counters and self.link.ready is not None:
            self.questions.ask(OURSELVES, wire.Ask(id=0, what="stats"))
        self._probe()
        for client, peer in list(self._peers.items()):
            peer.n_silent += 1
            if peer.n_silent > ipc.SILENT:
                self._forget(client)

    def _info(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "model_path": str(self.directory),
            "config": self.config,
            "engine": msgspec.structs.asdict(self.link.ready) if self.link.ready else None,
            "pid": os.getpid(),
            "engine_pid": self.link.pid,
            "protocol": wire.VERSION,
            "address": self.front.address,
        }

    # ---- the engine ------------------------------------------------------------------------------------------------

    def _order(self, order: wire.EngineOrder) -> None:
        self.link.send(order)

    def _report(self, report: wire.EngineReport) -> None:
        match report:
            case wire.Step():
                self.observed.step(report)
                self.requests.take(report)
            case wire.Failed(program=-1):
                self._error = self._error or from_code(report.code, report.message)
            case wire.Failed():
                self.requests.fail(report)
            case wire.Answer():
                self.questions.take(report)
            case wire.Ready():
                self._n_barren = 0
                self.tenants.weights = report.weights
                lines = (*report.report, *self.front.lines)
                for line in lines:
                    self._note("info", line)
                self._tell(launch.StartReport(pid=os.getpid(), lines=lines))
                self._welcome(report)

    def _stats(self) -> dict[str, float]:
        return {
            "clients": len(self._peers),
            "programs": len(self.programs),
            "requests": len(self.requests),
            "engine_starts": self.link.n_starts,
            **({f"slo_{name}": n for name, n in self.observed.goodput.counts.items()} if self.config.slo else {}),
            "seconds": round(time.monotonic() - self._started, 3),
        }

    def _engine_died(self) -> None:
        """Start another and give it what ran. Without one that ever was ready, there is nothing to go on with."""
        self.link.receive(self._report)  # its last words
        death, was_ready = self.link.death(), self.link.ready is not None
        self._n_barren += not (was_ready or death.is_blameless)
        why = "" if self._error is None else f": {self._error.message}"
        lost = EngineLost(f"the engine process died ({death.how}){why}")
        self.link.close()
        self.questions.fail(lost.message)
        if self._ready_fd is not None or self._n_barren >= MAX_BARREN:
            self._error = self._error or lost
            self.requests.fail_all(lost.code, self._error.message)
            self.stop()
            return
        self._error = None
        self._note("quiet", f"{lost.message}; starting another")
        self.link.start()
        self._watch()
        self.requests.replay(death)

    def _tell(self, report: launch.StartReport) -> None:
        """Report to who started us; only the first time."""
        if self._ready_fd is not None:
            launch.tell(self._ready_fd, report)
            self._ready_fd = None


def main(argv: list[str], engine: Sequence[str] = launch.ENGINE) -> int:
    """0: asked to end, or the parent is gone. 1: no start, or no engine; the ready pipe and stderr say why."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server")
    parser.add_argument("--config", required=True, help="a Config as JSON; its socket is where to listen")
    parser.add_argument("--ready-fd", type=int, help="where one line of JSON goes when the server is ready, or why not")
    parser.add_argument("--alive-fd", type=int, help="end at EOF of this file descriptor")
    parser.add_argument("--private", action="store_true", help="remove the socket's directory at the end")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server: Server | None = None
    ready_fd: int | None = args.ready_fd
    try:
        config = _read(args.config)
        server = Server(config, args.alive_fd, ready_fd, args.private, engine)
        _listen_to_signals(server, has_parent=args.alive_fd is not None)
        gc.freeze()  # what is alive now stays
        server.run()
    except BanyanError as e:
        pending = ready_fd if server is None else server._ready_fd
        if pending is not None:
            launch.tell(pending, launch.StartReport(pid=os.getpid(), code=e.code, message=e.message))
        print(f"banyan: {e.message}", file=sys.stderr, flush=True)
        return 1
    return 0


def _decode(frames: Sequence[bytes]) -> wire.ClientMessage:
    if len(frames) != 1:
        raise BadMessage(f"a message has 1 frame, not {len(frames)}")
    try:
        message: wire.ClientMessage = wire.decode_client(frames[0])
    except wire.UNREADABLE as e:
        raise BadMessage(f"bytes that are no message of this protocol: {e}") from e
    return message


def _read(config: str) -> Config:
    try:
        return msgspec.json.decode(config, type=Config)
    except msgspec.DecodeError as e:
        raise ConfigError(f"--config is no Config: {e}") from e


def _listen_to_signals(server: Server, has_parent: bool) -> None:
    parent = os.getppid()

    def end(*_: Any) -> None:
        server.stop()
        os.eventfd_write(server._wake, 1)

    def orphaned(*_: Any) -> None:
        if os.getppid() != parent:  # else it was only the thread that started us
            end()

    signal.signal(signal.SIGTERM, end)
    if has_parent:
        signal.signal(signal.SIGHUP, orphaned)
        launch.tie_to_parent(signal.SIGHUP)
