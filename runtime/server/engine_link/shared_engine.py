"""Lets several servers share one engine. The host of the engine (engine_host.py) uses it to change the messages between
them.

Each server numbers its requests, programs, holds of KV, questions and pulls without regard to other servers. On the way
to the engine, the host adds the number of the server to these numbers. Each report goes back to the server whose number
it has. So neither the engine nor a server knows about other servers. But the host tells each server how much work the
others have in the engine, because servers place their programs by the engines' work.

When a server is gone, all that it had in the engine ends. When the engine dies, each server learns which of its own
requests the engine was working on. These suspects run again one at a time, over all servers. If the engine dies while
one of them runs alone, only this request is blamed."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b

import msgspec

from banyan.runtime.protocol import decoders, wire
from banyan.runtime.protocol.limits import MAX_NUMBER
from banyan.runtime.server.engine_link.recovery import Death

SHIFT = 40
"""A number in the engine is (number of the server << SHIFT) + the number that the server uses."""
NOBODY = MAX_NUMBER
"""The id of the host's own questions. No server has such a large number, so the answers are dropped."""
MEMORY = 64
"""The expected cached share of a prompt is the mean over roughly this many of the latest requests."""

Sent = Iterator[tuple[int, wire.EngineReport]]
"""(number of a server, a report for it)."""


class NotShared(Exception):
    """A server cannot use the engine together with the others. The message says why."""


class _Living:
    """A request in the engine.

    n_prompt: the number of its prompt tokens that probably still have to be computed; 0 after the first output token.
    images: digests of the images in its prompt."""

    __slots__ = ("images", "n_prompt", "server")

    def __init__(self, server: int, n_prompt: int, images: frozenset[bytes]) -> None:
        self.server, self.n_prompt, self.images = server, n_prompt, images


class SharedEngine:
    """Translates between one engine and the servers that share it, and keeps what each server has in the engine.

    A server that comes back gets another number, because the engine may still report on requests with the old number.

    ready     the Ready message of the engine; None until it has come
    has_news  whether the work of servers has changed since the last call of `news`"""

    def __init__(self) -> None:
        self._cached = 0.5  # expected share of a prompt that is cached
        self.start()

    def start(self) -> None:
        """Reset everything for an engine that starts: the first engine, or one that replaces it."""
        self.ready: wire.Ready | None = None
        self._vocabulary = b""  # digest of the vocabulary that all servers have
        self._living: dict[int, _Living] = {}
        # pull that has not ended -> the images in its prefix, if the engine computes that
        self._pulls: dict[int, frozenset[bytes]] = {}
        # image that the engine waits for -> the servers that were asked for it
        self._asked: dict[bytes, set[int]] = {}
        # (server, its number of a program) -> (the engine's number, the engine's number of the client)
        self._programs: dict[tuple[int, int], tuple[int, int]] = {}
        self._n_programs = 0
        self._holds: set[int] = set()
        self._adapters: defaultdict[str, set[int]] = defaultdict(set)  # digest -> the servers that have loaded it
        self._loads: set[int] = set()  # questions of the kind load_adapter
        self._unused: set[str] = set()  # adapters to unload once no load is open, unless a load was of them
        self._pings: deque[int] = deque()  # servers that wait for an EnginePong
        self._listeners: set[int] = set()
        self._waiting: deque[tuple[int, wire.Run]] = deque()  # trials, with their servers
        self._on_trial = -1
        self._told: dict[int, wire.OtherWork] = {}
        self.has_news = False

    # ---- commands --------------------------------------------------------------------------------------------------

    def take(self, server: int, data: bytes) -> Iterable[bytes]:
        """Handle one encoded command of a server. Returns the encoded commands to send to the engine.

        Raises NotShared if the command does not fit those of the other servers (its tokenizer is another one), and a
        decoding error if `data` is invalid."""
        return map(wire.encode, self._commands(server, decoders.decode_command(data)))

    def _commands(self, server: int, command: wire.EngineCommand) -> Iterable[wire.EngineCommand]:
        match command:
            case wire.Run():
                return self._run(server, self._numbered(server, command))
            case wire.Abort(rid=rid):
                rid = _number(server, rid)
                waiting = next((entry for entry in self._waiting if entry[1].rid == rid), None)
                if waiting is not None:
                    self._waiting.remove(waiting)
                    return ()
                return (wire.Abort(rid),)
            case wire.ProgramEnded(client=client, program=program):
                number, _ = self._programs.pop((server, program), (-1, 0))
                return (wire.ProgramEnded(_number(server, client), number),) if number >= 0 else ()
            case wire.Hold(hold=hold):
                hold = _number(server, hold)
                if not command.seconds:  # holds with a time limit expire, and need no Release
                    self._holds.add(hold)
                return (msgspec.structs.replace(command, hold=hold),)
            case wire.Release(hold=hold):
                self._holds.discard(hold := _number(server, hold))
                return (wire.Release(hold),)
            case wire.Ask(id=number):
                number = _number(server, number)
                if command.what == "load_adapter":
                    self._loads.add(number)
                elif command.what == "unload_adapter":
                    command = msgspec.structs.replace(command, name=self._unload(server, command.name))
                return (msgspec.structs.replace(command, id=number),)
            case wire.SetVocabulary():
                digest = blake2b(wire.encode(command), digest_size=16).digest()
                if self._vocabulary not in (digest, b""):
                    raise NotShared("its model uses a different tokenizer from that of the other servers")
                is_new, self._vocabulary = not self._vocabulary, digest
                return (command,) if is_new else ()
            case wire.Listen():
                self._listeners.add(server)
            case wire.Ping():
                self._pings.append(server)
            case wire.Export(pull=pull, run=run):
                run, pull = msgspec.structs.replace(run, rid=_number(server, run.rid), order=()), _number(server, pull)
                self._pulls[pull] = _images_of(run) if command.compute else frozenset()
                return (msgspec.structs.replace(command, pull=pull, run=run),)
            case wire.Pull(pull=pull):
                self._pulls[pull := _number(server, pull)] = frozenset()
                return (msgspec.structs.replace(command, pull=pull),)
            case wire.EndPull(pull=pull):
                self._pulls.pop(pull := _number(server, pull), None)
                return (wire.EndPull(pull),)
            case wire.ImagePixels(image=image, error=error):
                (asked := self._asked.pop(image, set())).discard(server)
                if error and asked:  # the others may have it
                    self._asked[image] = asked
                    return ()
        return (command,)

    def _unload(self, server: int, digest: str) -> str:
        """Record that a server no longer uses an adapter. Returns the digest of the adapter if the engine must unload
        it now. Returns "" if other servers use it, or while any adapter is being loaded."""
        self._adapters[digest].discard(server)
        if self._loads:
            self._unused.add(digest)
            return ""
        return self._freed(digest)

    def _freed(self, digest: str) -> str:
        """Forget an adapter that no server uses. Returns its digest; "" if a server uses it."""
        if self._adapters[digest]:
            return ""
        if self.ready is not None:
            left = {name: one for name, one in self.ready.adapters.items() if one.hex() != digest}
            self.ready = msgspec.structs.replace(self.ready, adapters=left)
        return digest

    def _unloads(self) -> Iterable[wire.Ask]:
        """The commands that unload the adapters that no server uses any more; none while an adapter is being loaded."""
        if self._loads:
            return ()
        digests, self._unused = self._unused, set()
        return [wire.Ask(NOBODY, "unload_adapter", name=digest) for digest in digests if self._freed(digest)]

    def _numbered(self, server: int, run: wire.Run) -> wire.Run:
        """Returns the request with the numbers that the engine uses for its id, client and program. Programs get
        ascending numbers in the order in which they arrive, over all servers, because the engine may run older programs
        first."""
        client, order = _number(server, run.client), run.order
        if order:
            number, _ = self._programs.setdefault((server, order[0]), (self._n_programs, client))
            self._n_programs += number == self._n_programs
            order = (number, *order[1:])
        return msgspec.structs.replace(run, rid=_number(server, run.rid), client=client, order=order)

    def _run(self, server: int, run: wire.Run) -> Iterable[wire.Run]:
        if run.is_trial and self._on_trial >= 0:
            self._waiting.append((server, run))
            return ()
        if run.is_trial:
            self._on_trial = run.rid
        self.has_news = True
        n_prompt = round(len(run.ids) // 4 * (1 - self._cached))
        self._living[run.rid] = _Living(server, n_prompt, _images_of(run))
        return (run,)

    # ---- reports ---------------------------------------------------------------------------------------------------

    def report(self, data: bytes, servers: Iterable[int]) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Handle an encoded report of the engine. servers: those that use the engine now. Returns the encoded reports
        for them, and the encoded commands for the engine that follow from the report."""
        there = set(servers)
        sent = [(to, wire.encode(one)) for to, one in self._reports(decoders.decode_report(data), there) if to in there]
        return sent, [wire.encode(command) for command in self._following()]

    def _following(self) -> Iterable[wire.EngineCommand]:
        yield from self._without_server()
        yield from self._unloads()
        yield from self._next_trial()

    def _reports(self, report: wire.EngineReport, servers: set[int]) -> Sent:
        match report:
            case wire.Step():
                yield from self._split(report)
            case wire.Failed(program=program) if program >= 0:
                server, rid = _split_number(program)
                self._forget(program)
                yield server, msgspec.structs.replace(report, program=rid)
            case wire.Answer(id=number, ok=ok, body=body):
                server, number = _split_number(number)
                if report.id in self._loads:
                    self._loads.remove(report.id)
                    if ok and server in servers:
                        self._adapters[msgspec.json.decode(body)].add(server)
                yield server, msgspec.structs.replace(report, id=number)
            case wire.Exported(pull=pull) | wire.Pulled(pull=pull):
                if pull in self._pulls:
                    self._pulls[pull] = frozenset()  # it needs no image any more
                server, pull = _split_number(pull)
                yield server, msgspec.structs.replace(report, pull=pull)
            case wire.EnginePong():
                if self._pings:
                    yield self._pings.popleft(), report
            case wire.TreeEvents():
                for server in self._listeners:
                    yield server, report
            case wire.WantImages(images=images):
                yield from self._want(images, servers)
            case wire.Ready():
                self.ready = report  # the host passes it on; see `ready_for`
            case _:
                for server in servers:
                    yield server, report

    def _want(self, images: Collection[bytes], servers: Iterable[int]) -> Sent:
        """Ask servers for the pixels of images that the engine needs. A server is asked if its requests or exports of
        KV contain the image. Yields (server, WantImages)."""
        self._asked |= {image: set[int]() for image in images}
        for server in servers:
            of_server = {i for one in self._living.values() if one.server == server for i in one.images}
            of_server.update(i for pull, own in self._pulls.items() if _split_number(pull)[0] == server for i in own)
            if wanted := tuple(image for image in images if image in of_server):
                for image in wanted:
                    self._asked[image].add(server)
                yield server, wire.WantImages(wanted)

    def _without_server(self) -> Iterable[wire.ImagePixels]:
        """Returns an error as the answer for each image that the engine waits for and no server has. The engine asks
        only once, so without an answer it would wait forever."""
        lost = [image for image, servers in self._asked.items() if not servers]
        for image in lost:
            del self._asked[image]
        return [wire.ImagePixels(image, error="the server that had the image is gone") for image in lost]

    def _split(self, step: wire.Step) -> Sent:
        """Yields (server, its part of the step) for each server that has requests in the step."""
        parts: defaultdict[int, _Part] = defaultdict(_Part)
        at, ids = 0, memoryview(step.ids)
        rids, counts = memoryview(step.rids).cast("q"), memoryview(step.counts).cast("i")
        for tagged, n in zip(rids, counts, strict=True):
            server, rid = _split_number(tagged)
            parts[server].add(rid, n, ids[at : (at := at + 4 * n)])
            if (living := self._living.get(tagged)) is not None and living.n_prompt:
                living.n_prompt, self.has_news = 0, True
        for tagged, logprobs in step.logprobs.items():
            server, rid = _split_number(tagged)
            parts[server].logprobs[rid] = logprobs
        for tagged, n in step.cached.items():
            server, rid = _split_number(tagged)
            parts[server].cached[rid] = n
        for finish in step.finished:
            server, rid = _split_number(finish.rid)
            parts[server].finished.append(msgspec.structs.replace(finish, rid=rid))
            self._forget(finish.rid)
            self._cached += (finish.n_cached / max(1, finish.n_prompt) - self._cached) / MEMORY
        for server, part in parts.items():
            yield server, part.step()

    def _forget(self, rid: int) -> None:
        self.has_news = True
        self._living.pop(rid, None)
        if rid == self._on_trial:
            self._on_trial = -1

    def _next_trial(self) -> Iterable[wire.Run]:
        return self._run(*self._waiting.popleft()) if self._waiting and self._on_trial < 0 else ()

    # ---- servers that come and go, and the engine's end ------------------------------------------------------------

    def ready_for(self, server: int, adapters: Collection[str]) -> bytes:
        """Returns the encoded Ready message for one server. adapters: the names of the adapters in the server's
        configuration. Raises NotShared if the engine does not have all of them."""
        assert self.ready is not None
        own = {name: digest for name, digest in self.ready.adapters.items() if name in adapters}
        if missing := set(adapters) - set(own):
            raise NotShared(f"the engine runs without the adapter {min(missing)!r}; load it later, by load_adapter")
        for digest in own.values():
            self._adapters[digest.hex()].add(server)
        return wire.encode(msgspec.structs.replace(self.ready, adapters=own))

    def leave(self, server: int, servers: Iterable[int]) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Remove a server that is gone. servers: the numbers of the remaining servers.

        Returns encoded reports for these servers, as (server, report), and encoded commands for the engine. The reports
        ask for the images that the engine needs and only the removed server was asked for. The commands end the removed
        server's requests, holds, pulls and programs, and answer with an error for each image that no other server
        has."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != server)
        self._listeners.discard(server)
        self._told.pop(server, None)
        commands: list[wire.EngineCommand] = [
            wire.Abort(rid) for rid, living in self._living.items() if living.server == server
        ]
        for hold in [hold for hold in self._holds if _split_number(hold)[0] == server]:
            self._holds.remove(hold)
            commands.append(wire.Release(hold))
        for pull in [pull for pull in self._pulls if _split_number(pull)[0] == server]:
            del self._pulls[pull]
            commands.append(wire.EndPull(pull))
        for program in [program for program in self._programs if program[0] == server]:
            number, client = self._programs.pop(program)
            commands.append(wire.ProgramEnded(client, number))
        for users in self._adapters.values():  # the adapters stay: the server may come back
            users.discard(server)
        for asked in self._asked.values():
            asked.discard(server)
        lost = [image for image, asked in self._asked.items() if not asked]
        sent = [(to, wire.encode(one)) for to, one in self._want(lost, servers)]
        return sent, [wire.encode(command) for command in (*commands, *self._without_server())]

    def death_of(self, death: Death, server: int) -> Death:
        """Returns the death of the engine as one server sees it: with the requests of this server only. It is blameless
        if only requests of other servers may have caused it."""
        blamed = {self._on_trial} if self._on_trial in death.rids else death.rids
        own = frozenset(rid for of, rid in map(_split_number, blamed) if of == server)
        return death._replace(rids=own, is_blameless=death.is_blameless or bool(blamed and not own))

    def news(self, servers: Iterable[int]) -> list[tuple[int, bytes]]:
        """Returns (server, encoded OtherWork) for each server that must be told that the work of the other servers has
        changed."""
        self.has_news = False
        n_prompt, n_running = defaultdict[int, int](int), defaultdict[int, int](int)
        for living in self._living.values():
            n_prompt[living.server] += living.n_prompt
            n_running[living.server] += 1
        sent = []
        for server in servers:
            work = wire.OtherWork(
                sum(n_prompt.values()) - n_prompt[server], sum(n_running.values()) - n_running[server]
            )
            if self._told.get(server, wire.OtherWork()) != work:
                self._told[server] = work
                sent.append((server, wire.encode(work)))
        return sent


class _Part:
    """The part of a Step that belongs to one server."""

    def __init__(self) -> None:
        self._rids, self._counts, self._ids = array("q"), array("i"), bytearray()
        self.logprobs: dict[int, tuple[wire.TopLogprobs, ...]] = {}
        self.cached: dict[int, int] = {}
        self.finished: list[wire.Finish] = []

    def add(self, rid: int, n: int, ids: memoryview) -> None:
        self._rids.append(rid)
        self._counts.append(n)
        self._ids += ids

    def step(self) -> wire.Step:
        return wire.Step(
            self._rids.tobytes(), self._counts.tobytes(), bytes(self._ids), self.logprobs, tuple(self.finished),
            self.cached,
        )  # fmt: skip


def _images_of(run: wire.Run) -> frozenset[bytes]:
    return frozenset(rows.image for rows in run.images)


def _number(server: int, number: int) -> int:
    """Returns the engine's number for `number`, which a server uses for one of its requests, clients, holds or pulls.
    The result contains both arguments, so different servers never have the same one. ValueError: `number` is not from 0
    to 2 ** SHIFT - 1."""
    if number >> SHIFT:
        raise ValueError(f"{number} is not from 0 to 2 ** {SHIFT} - 1")
    return server << SHIFT | number


def _split_number(number: int) -> tuple[int, int]:
    return number >> SHIFT, number & ((1 << SHIFT) - 1)
