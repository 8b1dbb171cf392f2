"""The file of a recording, which `Record` writes and `Replay` reads.

It is JSON lines: a header, then one entry for each gen and select that was answered. An entry is found again by
what was asked (the prompt, and the options of the gen), not by when, so programs may run at the same time and in any
order. Prompts are stored once: each entry says which it continues, and what was appended since.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from banyan.backends.job import CallTurn, Output, Piece, ToolResults
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire

VERSION = 1

Text: TypeAlias = "str | wire.Raw | wire.Image | wire.Begin | wire.End"
Asked: TypeAlias = "wire.Gen | wire.Select"


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording."""

    banyan: str = ""
    """ "recording": says what this file is."""
    version: int = 0
    model: str = ""
    max_context: int = 0
    chat: wire.ChatMarkers | None = None


class Failure(msgspec.Struct, frozen=True):
    """An error as an answer."""

    code: str
    message: str


class TapeEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gen or select, and what came of it. key: a digest of what was asked. after: the key of the gen that it
    continues in its state; "" where it is the first. parts: what was appended in between."""

    program: str
    name: str
    state: int
    key: str
    after: str = ""
    parts: tuple[Text, ...] = ()
    asked: wire.Gen | wire.Select
    answers: tuple[str, ...] = ()
    """Of a gen with tools, which has an entry for each round: what the calls of the round before gave."""
    calls: tuple[wire.WireToolCall, ...] = ()
    """What it called in this round."""
    refused: tuple[tuple[str, str], ...] = ()
    """Of a gen with retries: what it answered before, and what it was told."""
    samples: tuple[wire.Sample, ...] = ()
    usage: wire.TokenUsage = wire.TokenUsage()
    scores: wire.Scores | None = None
    pieces: tuple[str, ...] = ()
    """The first sample's text as it came, where it streamed."""
    thoughts: tuple[str, ...] = ()
    """The same of what it thought, which came before that."""
    error: Failure | None = None


class Digest:
    """A prompt as a hash that grows with it. Text side by side is one text."""

    def __init__(self, hashed: Any = None) -> None:
        self._hash = hashlib.blake2b(digest_size=12) if hashed is None else hashed

    def put(self, part: Piece) -> None:
        match part:
            case str():
                told = part.replace("\0", "\0\0")
            case Output(text=text):
                told = text.replace("\0", "\0\0")
            case wire.Raw(text=text):
                told = f"\0raw {len(text)} {text}"
            case wire.Begin(role=role):
                told = f"\0begin {len(role)} {role}"
            case wire.End():
                told = "\0end"
            case wire.Image(data=data, kind=kind):
                told = f"\0image {kind} {hashlib.blake2b(data).hexdigest()}"
            case CallTurn(text=text, calls=calls):
                told = f"\0called {[(call.name, call.arguments) for call in calls]!r} {text}"
            case ToolResults(texts=texts):
                told = f"\0answers {[text for _, text in texts]!r}"
        self._hash.update(told.encode(errors="surrogatepass"))

    def copy(self) -> Digest:
        return Digest(self._hash.copy())

    def key(self, asked: Asked) -> str:
        hashed = self._hash.copy()
        hashed.update(
            b"\0asked " + msgspec.json.encode(msgspec.to_builtins(asked, str_keys=True), order="deterministic")
        )
        return str(hashed.hexdigest())


def asked_of(op: wire.Gen | wire.Select) -> Asked:
    """What the answer depends on besides the prompt."""
    if isinstance(op, wire.Gen):
        op = replace(op, stream=False, budget=0, priority=None, deadline=0.0)
    return replace(op, state=0, ref=0, name="", line="", timeout=0.0)


def read(path: Path) -> tuple[Header, list[TapeEntry]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as e:
        raise ConfigError(f"the recording {path} cannot be read: {e}") from e
    try:
        header = msgspec.json.decode(lines[0] if lines else b"", type=Header)
    except msgspec.DecodeError:
        header = Header()
    if header.banyan != "recording":
        raise ConfigError(f"{path} is no recording: its first line is not that of one; make one with bn.Record")
    if header.version != VERSION:
        raise ConfigError(f"{path} is a recording of version {header.version}, this reads {VERSION}; record it again")
    entries = []
    for number, line in enumerate(lines[1:], 2):
        try:
            entries.append(msgspec.json.decode(line, type=TapeEntry))
        except msgspec.DecodeError as e:
            raise ConfigError(f"line {number} of the recording {path} cannot be read: {e}") from e
    return header, entries
