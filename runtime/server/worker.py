"""The server process: its event loop and its sockets.

    python -m banyan.runtime.server --config JSON --ready-fd N --alive-fd M [--private]

One thread runs the loop and blocks only in poll. Long texts are tokenised on other threads, and the results come back
as calls on the loop.
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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import zmq

from banyan.runtime import launch
from banyan.runtime.config import LIMITS, Config, parse_bytes
from banyan.runtime.errors import BadMessage, BanyanError, ConfigError, ConnectFailed, EngineLost, Overloaded
from banyan.runtime.malloc import MallocOption, malloc_trim, mallopt
from banyan.runtime.model.images import image_spec
from banyan.runtime.model.spec import name_of, read_config, resolve, sampling_defaults
from banyan.runtime.protocol import decoders, ipc, wire
from banyan.runtime.server.constraints.constraint_checker import ConstraintChecker
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.changes import EngineChanges
from banyan.runtime.server.engine_link.questions import OURSELVES, Questions
from banyan.runtime.server.engine_link.ray_engines import RayEngines
from banyan.runtime.server.engine_link.remote import EngineHosts
from banyan.runtime.server.engine_link.replicas import Replicas
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.listeners import Listeners
from banyan.runtime.server.policy.fair_threads import FairThreads
from banyan.runtime.server.policy.tenants import Tenant, Tenants, WrongToken, configured
from banyan.runtime.server.policy.token_throttle import TokenThrottle, network
from banyan.runtime.server.policy.work_queue import QueuedWork, WorkQueue
from banyan.runtime.server.programs.durables import Durables
from banyan.runtime.server.programs.generation import EngineGenerator
from banyan.runtime.server.programs.journal import Journal
from banyan.runtime.server.programs.programs import Programs
from banyan.runtime.server.telemetry.loop_times import LoopTimes
from banyan.runtime.server.telemetry.observer import Observer
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.images import Images
from banyan.runtime.server.text.tokenizer import Files, Tokenizer
from banyan.runtime.server.timers import Timer, Timers

MAX_INLINE = 4096
"""Characters that are tokenised on the loop itself: at most 1 ms. The round trip to a thread takes 0.1 ms."""

SWITCH = 0.0005
"""Python's switch interval: the seconds for which a thread that encodes a prompt may keep the loop waiting for the GIL.
Python's default is 5 ms."""

MAX_REFUSALS = 16
"""This many bad messages of one peer are answered with an error. Later ones are ignored."""

MAX_COUNTED_PEERS = 4096
"""Maximum number of peers whose refused messages are counted."""

MAX_LOGGED = 1000
"""Maximum number of characters of a line of the log."""

MAX_LOGGED_NAME = 100
"""Maximum number of characters of a client's name for itself that the log shows."""

PING = wire.encode(wire.Ping())
ACKNOWLEDGE, CANCEL = (wire.encode(one).partition(b"\0")[0] for one in (wire.Acknowledge(0), wire.Cancel(0, 0)))
"""The first bytes of an encoded Acknowledge or Cancel: all that come before the number of its program."""

LEAVE_TIMEOUT = 1.0
"""Maximum time in seconds for which the server still receives the last messages of a client that left."""

LEVELS = ("quiet", "info", "debug")


class Peer:
    """A connected client."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_silent = 0  # heartbeats since its last message


class Server:
    """Everything that runs in the server process.

    `run` returns when the parent process is gone or a signal asked for the end. It raises an error if the server cannot
    continue, for example because no engine can be started any more."""

    def __init__(
        self, config: Config, alive_fd: int | None, ready_fd: int | None, is_private: bool, engine: Sequence[str]
    ) -> None:
        """is_private: remove the socket's directory at the end. engine: the command that starts an engine."""
        self.config, self._alive_fd, self.ready_fd, self._is_private = config, alive_fd, ready_fd, is_private
        self.is_stopping = False
        self._error: BanyanError | None = None  # why the server ends
        tokens = configured(config)
        if config.bind and not tokens:
            raise ConfigError(
                f"bind is {config.bind}, where anybody could connect; set token_file, so that only clients with a "
                "token can"
            )
        self.tenants = Tenants(tokens, config.isolate == "connection")
        self._peers: dict[bytes, Peer] = {}
        self._addresses: dict[bytes, str] = {}  # addresses of peers whose Hello waits
        self._refusals: OrderedDict[bytes, int] = OrderedDict()  # refused messages of recent peers
        # clients that wait until they learn whether their token is right -> the call that tells them
        self._throttled: dict[bytes, Timer] = {}
        # clients that wait until an engine is ready -> (name, tenant)
        self._waiting: dict[bytes, tuple[str, Tenant]] = {}
        self._has_free_memory = False  # whether a client has left since memory was last given back
        self._n_collected = 0  # how many programs had begun at the last full garbage collection
        self._started = time.monotonic()
        self._calls: deque[Callable[[], None]] = deque()
        self._gone: dict[bytes, float] = {}  # clients to which sending failed -> when they are forgotten at the latest
        self.times = LoopTimes()
        self.work = WorkQueue(self._begin, self.times, config.max_client)
        with contextlib.ExitStack() as undo:
            self._open(undo, engine)
            self._undo = undo.pop_all()

    def _open(self, undo: contextlib.ExitStack, engine: Sequence[str]) -> None:
        """Open the sockets, start the engines and load the tokenizer. undo: gets the calls that close everything again.
        engine: the command that starts an engine."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        undo.callback(os.close, self._wake)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        undo.callback(self._context.destroy, 0)
        path = Path(self.config.socket)
        self.listeners = Listeners(self._context, self.config)
        if self._is_private:
            undo.callback(shutil.rmtree, path.parent, ignore_errors=True)
        undo.callback(self.listeners.release)
        undo.callback(path.unlink, missing_ok=True)
        directory = resolve(self.config.model)
        read_config(directory)  # raises if the model cannot be read, before a process is started
        self.hosts: EngineHosts | None = None
        self.ray = RayEngines(self.config) if self.config.ray else None
        if self.ray is not None:
            undo.callback(self.ray.close)
        if self.ray is not None or self.config.engines_at:
            at = self.config if self.ray is None else self.ray.config
            self.hosts = EngineHosts(at, lambda line: self.call_soon(partial(self.log, "quiet", line)))
            undo.callback(self.hosts.close)
        self.replicas = Replicas(self._context, self.config, directory, engine, self.hosts, self.call_soon)
        undo.callback(self.replicas.close)
        if self.ray is not None and self.hosts is not None:
            command = () if engine == launch.ENGINE else tuple(engine)
            self.ray.start(self.hosts.address, self.config.model, command)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="banyan-encode")
        undo.callback(self._threads.shutdown, wait=False, cancel_futures=True)
        self._encoding = FairThreads(self._threads)
        image_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="banyan-images")
        undo.callback(image_thread.shutdown, wait=False, cancel_futures=True)
        self._decoding = FairThreads(image_thread)
        self._load(undo, directory)  # while the engine loads its weights

    def _load(self, undo: contextlib.ExitStack, directory: Path) -> None:
        is_of_model = self.config.sampling_defaults == "model"
        self.sampling = wire.Sampling(**sampling_defaults(directory) if is_of_model else {})
        files = Files.read(directory)
        self._special_tokens = files.special_tokens
        self.tokenizer = Tokenizer(directory, files)
        undo.callback(self.tokenizer.close)
        self._template = template = ChatTemplate(files.template, files.special_tokens) if files.template else None
        spec = image_spec(directory, files.config)
        spell = self.tokenizer.spelling.__getitem__
        self.images = spec if isinstance(spec, str) else Images(directory, spec, lambda i: spell(i).decode())
        if isinstance(self.images, Images):
            undo.callback(self.images.close)
        text_config = files.config.get("text_config") or files.config
        self.observer = Observer(self.config, name_of(directory), undo)
        self.timers = Timers()
        self.requests = EngineRequests(
            self.tokenizer,
            text_config.get("vocab_size"),
            call_later=self.call_soon,
            on_end=self.observer.request_ended,
            is_late=self.work.is_late,
            row_id=0 if isinstance(spec, str) else spec.row_id,
            call_in=self.timers.call,
            n_prefill=self.config.prefill_replicas,
            max_bytes=self.config.max_client,
        )
        self.requests.routes.counts_work = bool(self.config.max_replicas)
        vocabulary = self.tokenizer.vocabulary()
        self.replicas.connect(self.requests, vocabulary)
        self.constraints = ConstraintChecker(
            self._context,
            Path(self.config.socket),
            vocabulary,
            text_config.get("vocab_size") or len(self.tokenizer.spelling),
            max_bytes=self.config.constraint_bytes,
            seconds=self.config.constraint_seconds,
            engine=self.config.constraint_engine,
            on_sockets_changed=self.make_poller,
        )
        undo.callback(self.constraints.close)
        check = self.constraints.check
        self.adapters = AdapterNames()
        generator = EngineGenerator(
            self.tokenizer, template, self.requests, self.offload, Random(), check, self.adapters, self.images
        )
        self._throttle = TokenThrottle(self.timers, partial(self.log, "info"))
        self.programs = Programs(
            generator,
            self._send,
            self.timers,
            self.config,
            root_key=self.tenants.root,
            telemetry=self.observer,
            durables=self._durables(undo),
            is_late=self.work.is_late,
            later=self._later,
        )
        self.questions = Questions(
            self.tenants,
            self.tokenizer,
            engines=self.replicas,
            send=self._send,
            stats=self._stats,
            info=self._info,
            programs=self.programs.overview,
            check=self.programs.check,
            on_counters=self.observer.counters,
            change=lambda ask, then: self.changes.change(ask, then),
            offload=self.offload,
            adapters=self.adapters,
            refuse=lambda engine, why: self.changes.refuse(engine, why),
            log=partial(self.log, "quiet"),
        )
        self.changes = EngineChanges(
            self,
            self.config,
            directory,
            self.replicas,
            self.requests,
            self.questions,
            programs=self.programs,
            adapters=self.adapters,
            tenants=self.tenants,
            images=self.images,
            observer=self.observer,
            ray=self.ray,
        )
        self.chat = generator.with_call_format(template.chat_markers()) if template else None

    def _durables(self, undo: contextlib.ExitStack) -> Durables:
        """Make the journal of durable programs. The result has no journal if no client could come back to its programs:
        if the server ends with the process that started it, or if each connection is its own tenant."""
        if self._is_private:
            why = "this server ends with the process that started it; use `banyan serve --socket PATH`"
            return Durables(unsupported=why)
        if self.config.isolate == "connection":
            why = "a client that reconnects has a new connection, and this server isolates connections"
            return Durables(unsupported=why)
        journal = Journal(Path(f"{self.config.socket}.journal"), parse_bytes(self.config.durable_bytes))
        undo.callback(journal.close)
        self._delete_old_files(journal)
        return Durables(journal)

    def _delete_old_files(self, journal: Journal) -> None:
        journal.delete_old()
        self.timers.call(60.0, lambda: self._delete_old_files(journal))

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the end. Raises the error that ended the server, if one did."""
        next_heartbeat = time.monotonic() + ipc.HEARTBEAT
        self.make_poller()
        if not self.config.replicas:
            self._report_start(())
        with self._undo:
            while not self.is_stopping:
                timeout = self.timers.wait(max(0.0, next_heartbeat - time.monotonic()))
                is_busy = self.work or self.replicas.is_busy or self._gone
                poller = self._poller
                ready = dict(poller.poll(0 if is_busy else int(1000 * timeout) + 1))
                self.work.start_slice()
                if self.hosts is not None:
                    self._listen_to_hosts(self.hosts, ready)
                for replica in self.replicas:
                    if replica.link.socket in ready or replica.link.is_busy:
                        start = self.times.clock()
                        replica.link.receive(partial(self.changes.handle, replica), self.work.is_late)
                        self.times.since("report", start)
                    if replica.link.life in ready and self._poller is poller:
                        self.changes.died(replica)
                    if self._poller is not poller:  # engines were started or ended: `ready` may name closed sockets
                        break
                if any(source in ready for source in self.listeners.sockets):
                    self._receive()
                if self._gone:
                    self._forget_gone()
                if self._wake in ready:
                    self._run_calls()
                if any(source in ready for source in self.constraints.sockets):
                    self.constraints.receive()
                if any(source in ready for source in self.listeners.monitors) and self.listeners.has_broken():
                    next_heartbeat = min(next_heartbeat, time.monotonic() + 0.05)  # until libzmq has dropped the peer
                    self._probe_clients()
                if self._alive_fd in ready:
                    self.stop()
                if self.ray is not None and self.ray.life in ready:
                    self.fail(EngineLost("the process that runs engines on Ray died; the log says why"))
                start = self.times.clock()
                self.timers.run(self.work.is_late)
                self.times.since("timers", start)
                self.work.run()
                start = self.times.clock()
                gc.collect(0)  # collects only the objects of this round; Python would let far more pile up first
                self.times.since("garbage", start)
                if time.monotonic() >= next_heartbeat:
                    next_heartbeat = time.monotonic() + ipc.HEARTBEAT
                    start = self.times.clock()
                    self._heartbeat()
                    self.times.since("heartbeat", start)
        if self._error is not None:
            raise self._error

    def make_poller(self) -> None:
        """Make the poller again. Called whenever a child process was started or ended."""
        self._poller = zmq.Poller()
        ours = (*self.listeners.sockets, *self.listeners.monitors, self._wake, self._alive_fd)
        engines = (source for replica in self.replicas for source in (replica.link.socket, replica.link.life))
        hosts = self.hosts.sockets if self.hosts is not None else ()
        launcher = () if self.ray is None else (self.ray.life,)
        for source in (*ours, *engines, *hosts, *launcher, *self.constraints.sockets):
            if source not in (None, -1):
                self._poller.register(source, zmq.POLLIN)

    def stop(self) -> None:
        self.is_stopping = True

    def fail(self, error: BanyanError) -> None:
        self._error = error
        self.stop()

    def wake(self) -> None:
        """Make the loop run. Safe in a signal handler and on any thread."""
        os.eventfd_write(self._wake, 1)

    def log(self, level: Literal["quiet", "info", "debug"], text: str) -> None:
        """Print a line. `text` may contain text of a client, so it is cut, and its control characters are escaped."""
        if LEVELS.index(level) <= LEVELS.index(self.config.log):
            line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:MAX_LOGGED])
            print(f"banyan: {line}", file=sys.stderr, flush=True)

    def _run_calls(self) -> None:
        os.eventfd_read(self._wake)
        while self._calls:
            start = self.times.clock()
            try:
                self._calls.popleft()()
            except Exception:  # a bug of ours must not end the loop
                traceback.print_exc()
            self.times.since("call", start)
            if self.work.is_late():
                self.wake()
                return

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` on the loop later. Safe on any thread."""
        self._calls.append(call)
        self.wake()

    def offload(
        self, client: Hashable, n_chars: int, work: Callable[[], Any], then: Callable[[Any], None],
        has_images: bool = False,
    ) -> None:  # fmt: skip
        """Run `work`, and then call `then` on the loop with its result or exception. If the work is long, it runs on a
        thread, and clients get the threads in turn; otherwise both run now.

        n_chars: the cost of `work`, in units of encoding one character. has_images: use the thread where images are
        decoded."""

        def result() -> Any:
            try:
                return work()
            except BanyanError as e:
                # a traceback refers to all objects of the thread's frames, which the loop would have to free
                return e.with_traceback(None)
            except Exception as e:  # `then` decides what it means
                return e

        if n_chars <= MAX_INLINE:
            then(result())
        else:
            threads = self._decoding if has_images else self._encoding
            threads.submit(client, lambda: self.call_soon(partial(then, result())))

    # ---- clients ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take messages from the sockets. Pings and acknowledgements are handled at once, because a client that leaves
        sends acknowledgements last. Other messages wait for their client's turn."""
        start = self.times.clock()
        for client, frames in self.listeners.receive():
            if self._refusals.get(client, 0) >= MAX_REFUSALS:
                continue
            if (peer := self._peers.get(client)) is not None:
                peer.n_silent = 0
            else:
                self._addresses[client] = self.listeners.peer
            if len(frames) != 1:
                self._refuse(client, BadMessage(f"a message has 1 frame, not {len(frames)}"))
            elif frames[0] == PING and peer is not None:
                self._send(client, wire.Pong())
            elif frames[0].startswith(ACKNOWLEDGE) and peer is not None:
                deque(self._begin(client, frames[0]).steps, 0)
            elif not self.work.add(client, frames[0]):
                self._refuse(
                    client, Overloaded(f"more than {self.config.max_client} bytes of your messages wait; send slower")
                )
            if self.work.is_late():
                break
        self.times.since("receive", start)

    def _begin(self, client: bytes, data: bytes) -> QueuedWork:
        """Decode a message. Returns the work that it asks for. If the message is invalid, the client is refused, and
        the work is empty."""
        try:
            message: wire.SlicedMessage = decoders.decode_sliced(data)
        except wire.UNREADABLE as e:
            self._refuse(client, BadMessage(f"this is not a message of the protocol: {e}"))
            return QueuedWork("invalid", iter(()))
        if self.config.log == "debug":
            self.log("debug", f"{client.hex()}: {type(message).__name__}, {len(data)} bytes")
        return QueuedWork(str(message.__struct_config__.tag), self._serve(client, message))

    def _later(self, client: bytes, steps: Iterator[None]) -> None:
        self.work.add(client, QueuedWork("program", steps))

    def _serve(self, client: bytes, message: wire.SlicedMessage) -> Iterator[None]:
        try:
            yield from self._handle(client, message)
        except BanyanError as e:
            self._refuse(client, e)
        except Exception as e:  # a bug: only the client that triggered it is disconnected
            traceback.print_exc()
            self._refuse(client, BanyanError(f"the server failed on this message: {e!r}"))

    def _handle(self, client: bytes, message: wire.SlicedMessage) -> Iterable[None]:
        if isinstance(message, wire.Hello):
            if message.version != wire.VERSION:
                raise ConnectFailed(
                    f"the server speaks version {wire.VERSION} of the protocol, the client {message.version}; "
                    "install the same version of banyan on both sides"
                )
            if client in self._throttled:
                raise BadMessage("a second Hello came before the answer to the first")
            self._identify(client, message)
        elif client not in self._peers:
            name = type(message).__name__.removeprefix("Sliced")
            seconds = ipc.HEARTBEAT * ipc.MAX_SILENT
            raise BadMessage(
                f"{name} came before Hello, or from a client that was disconnected because it was refused or sent "
                f"nothing for {seconds:g} s"
            )
        match message:
            case wire.SlicedSubmit():
                return self.programs.submit(client, message)
            case wire.SlicedDefine():
                return self.programs.define(client, message)
            case wire.Undefine():
                self.programs.undefine(client, message)
            case wire.Cancel():
                self.programs.cancel(client, message)
            case wire.Acknowledge():
                self.programs.acknowledge(client, message)
            case wire.Ask():
                return self.questions.ask(client, message)
            case wire.Ping():
                self._send(client, wire.Pong())
        return ()

    def _identify(self, client: bytes, hello: wire.Hello) -> None:
        """Accept or refuse a client by its token, after the pause of TokenThrottle for the client's address."""
        address = network(self._addresses.pop(client, ""))
        try:
            answer = partial(self._accept, client, hello.client[:MAX_LOGGED_NAME], self.tenants.identify(hello))
        except WrongToken as e:
            self._throttle.note_wrong(address)
            answer = partial(self._turn_away, client, e)
        except ConnectFailed as e:  # the token is right, but the client may not act for the tenant that it names
            answer = partial(self._refuse, client, e)
        if not (pause := self._throttle.pause(address)):
            answer()
            return

        def end_pause() -> None:
            del self._throttled[client]
            answer()

        self._throttled[client] = self.timers.call(pause, end_pause)

    def _accept(self, client: bytes, name: str, tenant: Tenant) -> None:
        self._waiting[client] = name, tenant
        if (ready := self.replicas.ready) is not None:
            self._welcome(ready)

    def _welcome(self, ready: wire.Ready) -> None:
        """Accept the clients that have sent Hello and wait for a Welcome. ready: the report of a ready engine."""
        welcome = wire.Welcome(
            version=wire.VERSION,
            model=self.changes.name,
            max_context=ready.max_context,
            chat=self.chat,
            max_message=self.config.max_message,
            max_programs=self.config.max_programs,
            max_client=self.config.max_client,
            sampling=self.sampling,
            images=isinstance(self.images, Images),
            no_images=self.images if isinstance(self.images, str) else "",
        )
        for client, (name, tenant) in self._waiting.items():
            self._peers[client] = Peer(name)
            self.tenants.join(client, tenant)
            whose = f" of {tenant.name}" if tenant.name else ""
            self.log("info", f"client {name}{whose} joined as {client.hex()}")
            self._send(client, welcome)
        self._waiting.clear()

    def _send(self, client: bytes, message: wire.ServerMessage) -> None:
        if not self.listeners.send(client, wire.encode(message)):
            # The client is forgotten later, because the caller may be in the middle of one of its programs.
            self._gone.setdefault(client, time.monotonic() + LEAVE_TIMEOUT)

    def _refuse(self, client: bytes, error: BanyanError) -> None:
        """Send an error to a peer that violated the protocol, and disconnect it."""
        self.log("info", f"refused {client.hex()}: {error.message}")
        self._turn_away(client, error)

    def _turn_away(self, client: bytes, error: BanyanError) -> None:
        self._refusals[client] = self._refusals.pop(client, 0) + 1
        if len(self._refusals) > MAX_COUNTED_PEERS:
            self._refusals.popitem(last=False)
        self._send(client, wire.Failed(program=-1, seq=0, code=error.code, message=error.message))
        self._forget(client)

    def _forget_gone(self) -> None:
        """Forget the clients to which sending failed. A client that has left may have sent messages before; they are
        received first, for at most LEAVE_TIMEOUT."""
        is_all_received = not self.listeners.has_messages
        for client, end in list(self._gone.items()):
            if is_all_received or time.monotonic() >= end:
                self._forget(client)
            if self.work.is_late():
                break

    def _forget(self, client: bytes) -> None:
        self._gone.pop(client, None)
        cancels = [data for data in self.work.drop_messages(client) if data.startswith(CANCEL)]
        self._addresses.pop(client, None)
        self._waiting.pop(client, None)
        if (pause := self._throttled.pop(client, None)) is not None:
            pause.cancel()
        if (peer := self._peers.pop(client, None)) is not None:
            self.log("info", f"client {peer.name} is gone")
            self.work.add(client, QueuedWork("forget", self._end_programs(client, cancels)))

    def _end_programs(self, client: bytes, cancels: list[bytes]) -> Iterator[None]:
        """End the programs of a client that is gone. Then drop what is cached for its tenant, if no other client has
        this tenant. A generator; each of its steps ends one program.

        cancels: the client's waiting Cancel messages. They are carried out first, because a cancelled program loses its
        journal file, and other durable programs keep theirs."""
        for data in cancels:
            with contextlib.suppress(msgspec.DecodeError):
                self.programs.cancel(client, msgspec.msgpack.decode(data, type=wire.Cancel))
            yield
        yield from self.programs.forget(client)
        if (namespace := self.tenants.leave(client)) is not None:
            self.tokenizer.forget(namespace)
        self._has_free_memory = True

    def _probe_clients(self) -> None:
        """Find out which connections broke, by sending to each client: sending fails if the client is gone."""
        for client in list(self._peers):
            self._send(client, wire.Pong())

    def _heartbeat(self) -> None:
        is_encoding = self._encoding.is_busy or self._decoding.is_busy
        is_empty = not (self.work or len(self.programs) or is_encoding or self._calls)
        if is_empty and (self._has_free_memory or self.programs.n_started > self._n_collected):
            self._n_collected = self.programs.n_started
            gc.collect()  # the heap is small now; this also empties Python's free lists
            gc.freeze()  # later collections skip the caches that exist now
        if self._has_free_memory and not self.work:  # after everything that the client had was freed
            self._has_free_memory = False
            self._threads.submit(malloc_trim)
        self.changes.go_on()
        self.changes.scale()
        for replica in self.replicas:
            if replica.link.life < 0:
                self.changes.start_again(replica)
            else:
                replica.link.heartbeat()
        if self.observer.wants_counters and self.replicas.ready is not None:
            self.questions.ask(OURSELVES, wire.Ask(id=0, what="stats"))
        self._probe_clients()
        for client, peer in list(self._peers.items()):
            peer.n_silent += 1
            if peer.n_silent > ipc.MAX_SILENT:
                self._forget(client)

    def _info(self, is_operator: bool) -> dict[str, Any]:
        """The answer to Ask("info"). Only operators get paths, processes and options."""
        ready = self.replicas.ready
        known = {
            "model": self.changes.name,
            "adapters": list(self.adapters),
            "special_tokens": self._special_tokens,
            "protocol": wire.VERSION,
            "engine": {"page": ready.page, "max_context": ready.max_context} if ready else None,
            "limits": {name: getattr(self.config, name) for name in LIMITS if name.startswith("max_")},
        }
        if not is_operator:
            return known
        return known | {
            "model_path": str(self.changes.directory),
            "config": self.config,
            "engine": msgspec.structs.asdict(ready) if ready else None,
            "pid": os.getpid(),
            "engine_pid": next(iter(self.replicas)).link.pid,
            "replicas": {
                one.name: {"state": one.state, "pid": one.link.pid, "host": one.link.host} for one in self.replicas
            },
            "address": self.listeners.address,
            "engines_at": self.hosts.address if self.hosts is not None else "",
        }

    def _stats(self) -> dict[str, Any]:
        counters = {
            "clients": len(self._peers),
            "programs": len(self.programs),
            "requests": len(self.requests),
            "engine_starts": self.replicas.n_starts,
            "engine_deaths": self.changes.n_deaths,
            "wrong_tokens": self._throttle.n_wrong,
            **self.requests.routes.pulls.counts,
            **({f"slo_{name}": n for name, n in self.observer.goodput.counts.items()} if self.config.slo else {}),
            "longest": {kind: round(seconds, 6) for kind, seconds in self.times.longest.items()},
            "seconds": round(time.monotonic() - self._started, 3),
        }
        kept = self.tokenizer.kept() | {"constraints": self.constraints.cache.kept}  # memory that outlives programs
        if self._template is not None:
            kept["chat_markers"] = self._template.cache.kept
        if isinstance(self.images, Images):
            kept["pixels"] = self.images.pixel_cache.kept
        replicas = {
            one.name: {"state": one.state, "starts": one.link.n_starts, "host": one.link.host} for one in self.replicas
        }
        return {"server": counters, "kept_by_server": kept, "replicas": replicas}

    # ---- the engines -----------------------------------------------------------------------------------------------

    def _listen_to_hosts(self, hosts: EngineHosts, ready: Mapping[Any, int]) -> None:
        if any(source in ready for source in hosts.sockets):
            start = self.times.clock()
            hosts.receive(self.changes.host_joined)
            if hosts.has_broken():
                self.timers.call(0.05, hosts.probe)  # until libzmq has dropped the peer
            self.times.since("hosts", start)

    @property
    def is_started(self) -> bool:
        return self.ready_fd is None

    def notice(self, text: str) -> None:
        """Log what an engine that starts has to say, and pass it on to the process that waits for this server."""
        self.log("info", text)
        if self.ready_fd is not None:
            launch.report_start(self.ready_fd, launch.StartReport(notice=text))

    def engine_ready(self, ready: wire.Ready) -> None:
        """Welcome the clients that wait for an engine. Once all engines are ready, report the start."""
        n = len(self.replicas)
        if n >= self.config.replicas and all(one.is_ready for one in self.replicas):
            self._report_start((*ready.report, *((f"{n} engines like this",) if n > 1 else ())))
        self._welcome(ready)

    def _report_start(self, lines: tuple[str, ...]) -> None:
        """Tell the process that waits for this server that the server has started. Later calls do nothing."""
        if self.ready_fd is None:
            return
        more = (*self.listeners.report, *(self.hosts.report if self.hosts is not None else ()))
        for line in more:
            self.log("info", line)
        launch.report_start(self.ready_fd, launch.StartReport(lines=(*lines, *more)))
        self.ready_fd = None


def main(argv: list[str], engine: Sequence[str] = launch.ENGINE) -> int:
    """Run the server process. Returns the exit code.

    0: a signal asked for the end, or the parent is gone. 1: the server could not start, or no engine can be started any
    more; the reason goes to the ready pipe or, without one, to stderr."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server")
    parser.add_argument("--config", required=True, help="a Config as JSON; its socket is where to listen")
    parser.add_argument("--ready-fd", type=int, help="file descriptor for one line of JSON: ready, or why not")
    parser.add_argument("--alive-fd", type=int, help="end at EOF of this file descriptor")
    parser.add_argument("--private", action="store_true", help="remove the socket's directory at the end")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH)
    mallopt(MallocOption.ARENA_MAX, 1)  # malloc_trim does not trim the ends of other threads' arenas
    mallopt(MallocOption.MXFAST, 0)  # else one large free() would merge all small chunks that threads have freed
    server: Server | None = None
    try:
        server = Server(_read_config(args.config), args.alive_fd, args.ready_fd, args.private, engine)
        _handle_signals(server, has_parent=args.alive_fd is not None)
        gc.freeze()  # objects that live as long as the process
        # Programs leave no cycles, and a collection of a large heap would hold the loop: see Server.run and _heartbeat.
        gc.disable()
        server.run()
    except BanyanError as e:
        ready_fd = args.ready_fd if server is None else server.ready_fd  # None after the start was reported
        if ready_fd is not None:
            launch.report_start(ready_fd, launch.StartReport(code=e.code, message=e.message))
        else:
            print(f"banyan: {e.message}", file=sys.stderr, flush=True)
        return 1
    return 0


def _read_config(text: str) -> Config:
    try:
        return msgspec.json.decode(text, type=Config)
    except msgspec.DecodeError as e:
        raise ConfigError(f"--config is not a valid Config: {e}") from e


def _handle_signals(server: Server, has_parent: bool) -> None:
    parent = os.getppid()

    def end(*_: Any) -> None:
        server.stop()
        server.wake()

    def parent_died(*_: Any) -> None:
        if os.getppid() != parent:  # else only the thread that started us has ended
            end()

    signal.signal(signal.SIGTERM, end)
    if has_parent:
        signal.signal(signal.SIGHUP, parent_died)
        launch.tie_to_parent(signal.SIGHUP)
