"""What durable programs have come to, in files beside the socket, so that they go on where a server was killed.

A durable program says by a key which one it is, and has a file. In it stands of each of its requests: the seed, the
tokens as they came, and the end. A server that is started again knows nothing of programs; the client that comes back
sends what it had sent before, and each request that begins is found by what it is: its place in the program, its
prompt, how it is drawn. What has an end has it at once; what has not goes on behind its tokens.

A file is a list of records, each with its length and a checksum; what stands behind the first that is not whole was
never written. Written through the kernel, not to the disk: what is killed loses nothing, and a machine that fails loses
the last seconds. A file goes when the client has all of the program's answers, when the program fails or is cancelled,
or after a day in which nobody asked for it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import msgspec

from banyan.runtime.errors import BadProgram, BanyanError, Overloaded, RuntimeLost, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.ipc import private_directory
from banyan.runtime.server.programs.running_program import Client, RunningProgram

KEPT = 24 * 3600.0
"""Seconds that a file is kept whose program nobody runs."""
MOST_KEY = 256
"""Characters of a key."""
_HEAD = struct.Struct("<II")  # length and crc of what follows
_MOST_RECORD = 1 << 30


class Opened(msgspec.Struct, frozen=True, tag="o"):
    """The program began; see Program.started."""

    started: str


class Begun(msgspec.Struct, frozen=True, tag="b"):
    """The next request of the file (they count from 0)."""

    request: bytes
    seed: int


class Grew(msgspec.Struct, frozen=True, tag="g"):
    n: int
    ids: bytes
    logprobs: tuple[wire.TopLogprobs, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag="e"):
    n: int
    finish: wire.Finish


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Opened | Begun | Grew | Ended).decode


class JournalEntry:
    """One request of a durable program: what stands of it in the file, and how more gets there."""

    def __init__(self, diary: Diary, n: int, seed: int) -> None:
        self._diary, self._n = diary, n
        self.seed = seed
        self.ids = bytearray()
        self.logprobs: list[wire.TopLogprobs] = []
        self.finish: wire.Finish | None = None

    @property
    def is_new(self) -> bool:
        return not self.ids and self.finish is None

    def grew(self, ids: bytes, logprobs: Sequence[wire.TopLogprobs]) -> None:
        """It got these tokens. BanyanError: they cannot be kept."""
        self._diary.write(Grew(self._n, ids, tuple(logprobs)))

    def ended(self, finish: wire.Finish) -> None:
        if self.finish is None:
            self.finish = finish
            self._diary.write(Ended(self._n, finish))


class Diary:
    """The file of one program."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self._journal, self.path = journal, path
        self._entries: dict[bytes, JournalEntry] = {}
        self._n = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.started = datetime.now()
        size = self._read()
        os.ftruncate(self._fd, size)
        journal.n_bytes += size - journal.sizes.pop(path.name, 0)
        self.n_bytes = size
        os.utime(self._fd)
        if not size:
            self.write(Opened(self.started.isoformat()))

    def _read(self) -> int:
        """Take in what is there. Bytes of it that are whole."""
        good, by_number = 0, list[JournalEntry]()
        for end, record in records(self.path.read_bytes()):
            match record:
                case Opened(started=started):
                    self.started = datetime.fromisoformat(started)
                case Begun(request=request, seed=seed):
                    by_number.append(JournalEntry(self, len(by_number), seed))
                    self._entries[request] = by_number[-1]
                case Grew(n=n, ids=ids, logprobs=logprobs):
                    by_number[n].ids += ids
                    by_number[n].logprobs += logprobs
                case Ended(n=n, finish=finish):
                    by_number[n].finish = finish
            good = end
        self._n = len(by_number)
        return good

    def begin(self, run: wire.Run) -> JournalEntry:
        """A request begins: as what stands in the file, or anew."""
        digest = _identity(run)
        entry = self._entries.pop(digest, None)
        if entry is None:
            entry = JournalEntry(self, self._n, run.seed)
            self.write(Begun(digest, run.seed))
            self._n += 1
        return entry

    def write(self, record: Opened | Begun | Grew | Ended) -> None:
        """BanyanError: there is no room."""
        if self._fd < 0:
            return
        data = _encode(record)
        data = _HEAD.pack(len(data), crc32(data)) + data
        self._journal.make_room(len(data))
        try:
            if os.write(self._fd, data) != len(data):
                raise OSError("the disk is full")
        except OSError as e:
            raise BanyanError(f"the journal of durable programs cannot be written: {e.strerror or e}") from e
        self.n_bytes += len(data)
        self._journal.n_bytes += len(data)

    def close(self) -> None:
        """Keep the file for who comes back. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._journal.sizes[self.path.name] = self.n_bytes

    def remove(self) -> None:
        """Nobody needs it any more. Idempotent."""
        self.close()
        self._journal.drop(self.path.name)


def records(data: bytes) -> Iterator[tuple[int, Opened | Begun | Grew | Ended]]:
    """The records of a file, each with where it ends, up to the first that is not whole."""
    at = 0
    while at + _HEAD.size <= len(data):
        n, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + n]
        if n > _MOST_RECORD or len(body) < n or crc32(body) != crc:
            return
        try:
            record = _decode(body)
        except wire.UNREADABLE:
            return
        at += _HEAD.size + n
        yield at, record


def _identity(run: wire.Run) -> bytes:
    """What makes a request the same one: its place among its program's, its prompt, and how it is drawn."""
    state = blake2b(digest_size=16, person=b"banyan journal")
    for part in (run.namespace, repr(run.order[1:]).encode(), wire.encode(run.sampling), run.ids):
        state.update(len(part).to_bytes(8, "little") + part)
    state.update(repr((run.sample, run.score_from)).encode())
    return state.digest()


class Journal:
    """All files, in a directory of mode 0700. n_bytes: of all of them. sizes: of those that nobody has open."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self.n_bytes = 0
        self.sizes: dict[str, int] = {}  # oldest first
        if folder.exists():
            private_directory(folder)
            found = sorted((path.stat().st_mtime, path) for path in folder.iterdir())
            for written, path in found:
                self.sizes[path.name] = size = path.stat().st_size
                self.n_bytes += size
                if written < time.time() - KEPT:
                    self.drop(path.name)

    def open(self, key: bytes) -> Diary:
        """The file of a program. BanyanError: it cannot be made."""
        try:
            private_directory(self._folder)
            return Diary(self, self._folder / blake2b(key, digest_size=16).hexdigest())
        except OSError as e:
            raise BanyanError(f"the journal of durable programs cannot be opened: {e.strerror or e}") from e

    def make_room(self, n_bytes: int) -> None:
        """Overloaded: there is none, even without the files that nobody has open."""
        while self.n_bytes + n_bytes > self._most and self.sizes:
            self.drop(next(iter(self.sizes)))
        if self.n_bytes + n_bytes > self._most:
            raise Overloaded(
                f"the journal of durable programs has {self.n_bytes} bytes, and {self._most} are the most; "
                "wait for some of them, or raise `durable_bytes`"
            )

    def drop(self, name: str) -> None:
        self.n_bytes -= self.sizes.pop(name, 0)
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave nothing where there is nothing."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Durables:
    """Which programs are durable. journal: None where none can be (`why`)."""

    def __init__(self, journal: Journal | None = None, why: str = "") -> None:
        self.journal, self.why = journal, why
        self._diaries: dict[int, tuple[bytes, RunningProgram, Diary]] = {}  # by serial
        self._serials: dict[bytes, int] = {}  # by key
        self._ended: dict[tuple[Client, int], Diary] = {}  # whose answers may still be on their way

    def begin(self, program: RunningProgram, root: bytes, name: str) -> RunningProgram | None:
        """It is durable, as `name`. The program that was so until now, if there is one: this takes its place."""
        if self.journal is None:
            raise Unsupported(f"durable: {self.why}")
        if len(name) > MOST_KEY:
            raise BadProgram(f"durable is a name of {len(name)} characters; {MOST_KEY} are the most")
        key = root + name.encode()
        before = None
        if (serial := self._serials.get(key)) is not None:
            _, before, diary = self._diaries.pop(serial)
            diary.close()
        for where in [where for where, diary in self._ended.items() if diary.path == self._path(key)]:
            self._ended.pop(where).close()
        diary = self.journal.open(key)
        program.started = diary.started
        self._diaries[program.serial], self._serials[key] = (key, program, diary), program.serial
        return before

    def _path(self, key: bytes) -> Path:
        assert self.journal is not None
        return self.journal._folder / blake2b(key, digest_size=16).hexdigest()

    def has(self, program: RunningProgram) -> bool:
        return program.serial in self._diaries

    def diary(self, serial: int) -> Diary | None:
        """Of a program, if it is durable."""
        found = self._diaries.get(serial)
        return None if found is None else found[2]

    def over(self, program: RunningProgram, error: BanyanError | None, is_client_gone: bool) -> None:
        """The program is over."""
        if (found := self._diaries.pop(program.serial, None)) is None:
            return
        key, _, diary = found
        self._serials.pop(key, None)
        if is_client_gone:
            diary.close()
        elif error is not None:
            diary.remove()
        else:
            self._ended[program.client, program.number] = diary

    def confirmed(self, program: tuple[Client, int]) -> None:
        """Its client has all of its answers."""
        if (diary := self._ended.pop(program, None)) is not None:
            diary.remove()

    def forget(self, client: Client) -> None:
        """The client is gone. What it has may not have come."""
        for key in [key for key in self._ended if key[0] == client]:
            self._ended.pop(key).close()


GONE = RuntimeLost("its client is gone")
TAKEN = RuntimeLost("another client took this durable program over")
