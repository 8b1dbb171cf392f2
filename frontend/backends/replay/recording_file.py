"""The file of a recording, which `Record` writes and `Replay` reads.

The file consists of JSON lines: a header, then one entry for each gen and select that was answered. Replay finds an
entry by the question, which is the prompt and the options of the gen, so programs may run in any order. Each text of a
prompt is stored once: an entry names the entry whose prompt and output it continues, and holds what was appended since.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from banyan.backends.job import CallTurn, LocalPrompt, Output, Piece, ToolResults
from banyan.runtime.errors import ConfigError
from banyan.runtime.executor.piece_list import PieceList
from banyan.runtime.protocol import wire

VERSION = 1

Text: TypeAlias = "str | wire.Raw | wire.Image | wire.BeginTurn | wire.EndTurn"
Asked: TypeAlias = "wire.Gen | wire.Select"


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording."""

    banyan: str = ""
    """The word "recording", which marks the file as a recording."""
    version: int = 0
    model: str = ""
    max_context: int = 0
    chat: wire.ChatMarkers | None = None
    sampling: wire.Sampling = wire.Sampling()
    images: bool = False
    no_images: str = ""
    enforces_schemas: bool = True


OF_MODEL = ("model", "max_context", "chat", "sampling", "images", "no_images")
"""The fields of a Header that a Welcome has too."""


class Failure(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    code: str
    message: str


class TapeEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gen or select, and its answer.

    key: a digest of the question. after: the key of the gen that comes before this one in the prompt; "" if there is
    none. parts: what was appended after that gen and before this one.
    """

    program: str
    name: str
    state: int
    key: str
    after: str = ""
    parts: tuple[Text, ...] = ()
    asked: wire.Gen | wire.Select
    answers: tuple[str, ...] = ()
    """For a gen with tools, which has an entry for each round: the results of the previous round's calls."""
    calls: tuple[wire.WireToolCall, ...] = ()
    """The calls of this round."""
    refused: tuple[tuple[str, str], ...] = ()
    """For a gen with retries: the outputs that were refused, each with its correction."""
    samples: tuple[wire.Sample, ...] = ()
    usage: wire.TokenUsage = wire.TokenUsage()
    scores: wire.Scores | None = None
    prompt: tuple[wire.TokenLogprob, ...] = ()
    pieces: tuple[str, ...] = ()
    """The pieces in which the first sample's text was streamed."""
    thoughts: tuple[str, ...] = ()
    """The pieces in which the first sample's reasoning was streamed, before the text."""
    error: Failure | None = None


class Digest:
    """A hash of a prompt, to which pieces can be added. Adjacent texts have the hash of the joined text."""

    def __init__(self, hashed: Any = None) -> None:
        self._hash = hashlib.blake2b(digest_size=12) if hashed is None else hashed

    def put(self, part: Piece) -> None:
        """Append a piece."""
        match part:
            case str() | Output():
                data = (part if isinstance(part, str) else part.text).replace("\0", "\0\0")
            case wire.Raw(text=text):
                data = f"\0raw {len(text)} {text}"
            case wire.BeginTurn(role=role):
                data = f"\0begin {len(role)} {role}"
            case wire.EndTurn():
                data = "\0end"
            case wire.Image(data=image, kind=kind):
                data = f"\0image {kind} {hashlib.blake2b(image).hexdigest()}"
            case CallTurn(text=text, calls=calls):
                data = f"\0called {[(call.name, call.arguments) for call in calls]!r} {text}"
            case ToolResults(texts=texts):
                data = f"\0answers {[text for _, text in texts]!r}"
        self._hash.update(data.encode(errors="surrogatepass"))

    def copy(self) -> Digest:
        return Digest(self._hash.copy())

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())

    def after(self, text: str) -> str:
        """The hexdigest of this prompt followed by `text`."""
        digest = self.copy()
        digest.put(text)
        return digest.hexdigest()

    def key(self, asked: Asked) -> str:
        """The digest of a question, as hex digits. The question is this prompt and the options of a gen or select."""
        hashed = self._hash.copy()
        hashed.update(
            b"\0asked " + msgspec.json.encode(msgspec.to_builtins(asked, str_keys=True), order="deterministic")
        )
        return str(hashed.hexdigest())


class DigestedPrompt(LocalPrompt):
    """A prompt that keeps its digest, so that a gen adds only the pieces that are new since the last one. outputs: the
    number of pieces up to each Output, and the digest there, of the pieces that `digest` has seen."""

    def __init__(self, chat: wire.ChatMarkers | None, program: str) -> None:
        super().__init__(chat, program)
        self.outputs: PieceList[tuple[int, str]] = PieceList()
        self._digest, self._n_digested = Digest(), 0

    def copy(self) -> Self:
        copied = super().copy()
        copied.outputs = self.outputs.copy()
        copied._digest, copied._n_digested = self._digest.copy(), self._n_digested
        return copied

    def digest(self) -> Digest:
        """The digest of all pieces."""
        for piece in self.pieces[self._n_digested :]:
            self._digest.put(piece)
            self._n_digested += 1
            if isinstance(piece, Output):
                self.outputs.append((self._n_digested, self._digest.hexdigest()))
        return self._digest.copy()


def asked_of(op: wire.Gen | wire.Select) -> Asked:
    """`op` without the fields that do not affect the answer, such as its name and its limits."""
    if isinstance(op, wire.Gen):
        op = replace(op, stream=False, budget=0, priority=None, deadline=0.0)
    return replace(op, state=0, ref=0, name="", line="", timeout=0.0)


def encode(line: Header | TapeEntry) -> bytes:
    """A line of a recording."""
    return msgspec.json.encode(_spelled(msgspec.to_builtins(line))) + b"\n"


def _spelled(value: Any) -> Any:
    """`value` with a word in place of each nan and infinity, for which JSON has no number."""
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {name: _spelled(one) for name, one in value.items()}
        case list() | tuple():
            return [_spelled(one) for one in value]
    return value


def read(path: Path) -> tuple[Header, list[TapeEntry]]:
    """The header and the entries of a recording. An incomplete last line is left out. ConfigError: the file cannot be
    read."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as e:
        raise ConfigError(f"the recording {path} cannot be read: {e}") from e
    try:
        header = msgspec.json.decode(lines[0] if lines else b"", type=Header)
    except msgspec.DecodeError:
        header = Header()
    if header.banyan != "recording":
        raise ConfigError(f"{path} is not a recording: its first line is not a header; make one with bn.Record")
    if header.version != VERSION:
        raise ConfigError(
            f"{path} is a recording of version {header.version}, but this release reads version {VERSION}; record it "
            "again"
        )
    entries = []
    for number, line in enumerate(lines[1:], 2):
        try:
            entries.append(msgspec.json.decode(line, type=TapeEntry, strict=False))
        except msgspec.DecodeError as e:
            if not line.endswith(b"\n"):
                break
            raise ConfigError(f"line {number} of the recording {path} cannot be read: {e}") from e
    return header, entries
