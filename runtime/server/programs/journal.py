"""Files in which the server records the requests of durable programs, so that they continue after it was killed.

A durable program has a name and a file. For each of its requests the file holds the seed, the generated tokens and how
it finished. A restarted server knows no programs; the client submits the whole program again. Each request that starts
is looked up by its place in the program, its prompt and its sampling parameters. A finished one is answered from the
file, and an unfinished one continues after its recorded tokens.

A file is a sequence of records with length and checksum. Reading stops at the first incomplete record. Records are
written to the kernel without fsync, so a killed process loses nothing, and a machine that fails loses the last seconds.
A file is deleted when the client has all values, or when the program fails or is cancelled. If no program has it open,
it is deleted after a day. If the journal is full, the oldest files whose programs do not run are deleted.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from banyan.runtime.errors import BanyanError, Overloaded
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.ipc import private_directory

MAX_AGE = 24 * 3600.0
"""The server deletes files that were not used for this many seconds."""
_HEADER = struct.Struct("<II")  # length and CRC-32 of the record that follows
_MAX_RECORD = 1 << 30


class Opened(msgspec.Struct, frozen=True, tag="o"):
    """The first record of a file. started: when the program started (RunningProgram.started), in ISO format."""

    started: str


class Begun(msgspec.Struct, frozen=True, tag="b"):
    """The record that a request started. Requests of a file are numbered from 0 in the order of these records. request:
    a digest of the request, by which it is found after a restart."""

    request: bytes
    seed: int


class Grew(msgspec.Struct, frozen=True, tag="g"):
    """Request `n` got these tokens (int32)."""

    n: int
    ids: bytes
    logprobs: tuple[wire.TopLogprobs, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag="e"):
    """Request `n` finished."""

    n: int
    finish: wire.Finish


Record = Opened | Begun | Grew | Ended
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class JournalEntry:
    """One request in a file: its recorded state, and methods that record more."""

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
        """Record new tokens. BanyanError: they cannot be written."""
        self._diary.write(Grew(self._n, ids, tuple(logprobs)))

    def ended(self, finish: wire.Finish) -> None:
        """Record how the request finished."""
        if self.finish is None:
            self.finish = finish
            self._diary.write(Ended(self._n, finish))


class Diary:
    """The journal file of one program."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self._journal, self.path = journal, path
        self._entries: dict[bytes, JournalEntry] = {}
        self._n = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # With its offset from UTC: without it, a time in the hour that clocks repeat would be read back an hour off.
        self.started = datetime.now().astimezone()
        try:
            self.n_bytes = self._read()
            os.ftruncate(self._fd, self.n_bytes)
            os.utime(self._fd)
            journal.n_bytes += self.n_bytes - journal.closed_files.pop(path.name, _NO_FILE).n_bytes
            if not self.n_bytes:
                self.write(Opened(self.started.isoformat()))
        except BaseException:
            os.close(self._fd)
            if not path.stat().st_size:
                journal.delete(path.name)
            raise

    def _read(self) -> int:
        """Read the existing records. Returns the length of the intact part of the file."""
        n_bytes, by_number = 0, list[JournalEntry]()
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
            n_bytes = end
        self._n = len(by_number)
        return n_bytes

    def begin(self, run: wire.Run, visible: Collection[int] = ()) -> JournalEntry:
        """Returns the journal entry of a request that starts: the recorded one if the file has this request, else a new
        one. visible: ids of special tokens that the output text contains; they are part of a request's identity."""
        identity = _identity(run, visible)
        entry = self._entries.pop(identity, None)
        if entry is None:
            entry = JournalEntry(self, self._n, run.seed)
            self.write(Begun(identity, run.seed))
            self._n += 1
        return entry

    def write(self, record: Record) -> None:
        """Append a record; do nothing if the file is closed. Raises Overloaded if the journal is full, and BanyanError
        if the disk is full or fails."""
        if self._fd < 0:
            return
        data = _encode(record)
        data = _HEADER.pack(len(data), crc32(data)) + data
        self._journal.make_room(len(data))
        try:
            if os.write(self._fd, data) != len(data):
                os.ftruncate(self._fd, self.n_bytes)  # later records can be read only after whole ones
                raise OSError("the disk is full")
        except OSError as e:
            raise BanyanError(f"the journal of durable programs cannot be written: {e.strerror or e}") from e
        self.n_bytes += len(data)
        self._journal.n_bytes += len(data)

    def close(self) -> None:
        """Close the file and keep it for a client that comes back. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._journal.closed_files[self.path.name] = ClosedFile(self.n_bytes, time.time())

    def remove(self) -> None:
        """Delete the file. Idempotent."""
        self.close()
        self._journal.delete(self.path.name)


def records(data: bytes) -> Iterator[tuple[int, Record]]:
    """(end offset, record) for each record of a file, up to the first one that is not intact."""
    at = 0
    while at + _HEADER.size <= len(data):
        n, crc = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + _HEADER.size + n]
        if n > _MAX_RECORD or len(body) < n or crc32(body) != crc:
            return
        try:
            record = _decode(body)
        except wire.UNREADABLE:
            return
        at += _HEADER.size + n
        yield at, record


def _identity(run: wire.Run, visible: Collection[int]) -> bytes:
    """Digest of what identifies a request: its place in the program, its prompt, its sampling parameters with all
    stops, the ids that end its output, and the special tokens that its text contains (`visible`).

    If a version of Banyan digests something else, requests in older files are not found, and are generated anew.
    """
    state = blake2b(digest_size=16, person=b"banyan journal")
    for part in (run.namespace, repr(run.order[1:]).encode(), wire.encode(run.sampling), run.ids, run.stop_ids):
        state.update(len(part).to_bytes(8, "little") + part)
    state.update(repr((run.sample, run.score_from, *sorted(visible))).encode())
    return state.digest()


class ClosedFile(NamedTuple):
    """A file that no program has open. used: when it was last written or closed (time.time())."""

    n_bytes: int
    used: float


_NO_FILE = ClosedFile(0, 0.0)


class Journal:
    """The journal files of all durable programs, one file for each program, in a directory of mode 0700.

    n_bytes: bytes of all files together. closed_files: name -> a file that no program has open, the
    oldest first.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self.n_bytes = 0
        self.closed_files: dict[str, ClosedFile] = {}
        if folder.exists():
            private_directory(folder)
            for written, path in sorted((path.stat().st_mtime, path) for path in folder.iterdir()):
                self.closed_files[path.name] = one = ClosedFile(path.stat().st_size, written)
                self.n_bytes += one.n_bytes

    def path(self, key: bytes) -> Path:
        """The path of a program's file."""
        return self._folder / blake2b(key, digest_size=16).hexdigest()

    def open(self, key: bytes) -> Diary:
        """Open or create the file of a program. BanyanError: the file cannot be opened."""
        try:
            private_directory(self._folder)
            return Diary(self, self.path(key))
        except OSError as e:
            raise BanyanError(f"the journal of durable programs cannot be opened: {e.strerror or e}") from e

    def make_room(self, n_bytes: int) -> None:
        """Delete the oldest closed files until `n_bytes` more fit. Overloaded: they do not fit even then."""
        if self.n_bytes + n_bytes <= self._max_bytes:
            return
        for name in list(self.closed_files):
            self.delete(name)
            if self.n_bytes + n_bytes <= self._max_bytes:
                return
        raise Overloaded(
            f"the journal of durable programs has {self.n_bytes} bytes, and may have {self._max_bytes}; "
            "wait for some of them, or raise `durable_bytes`"
        )

    def delete_old(self) -> None:
        """Delete the closed files that were not used for MAX_AGE. The server calls this once a minute."""
        oldest = time.time() - MAX_AGE
        for name in [name for name, one in self.closed_files.items() if one.used < oldest]:
            self.delete(name)

    def delete(self, name: str) -> None:
        """Delete a closed file. If the deletion fails, for example on a disk that has become read-only, the file stays
        and counts until a later deletion succeeds."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)
            self.n_bytes -= self.closed_files.pop(name, _NO_FILE).n_bytes

    def close(self) -> None:
        """Remove the directory if it is empty."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()
