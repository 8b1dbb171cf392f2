"""The tokenizer: text to ids, and the spelling of each id. Text is tokenized nowhere else.

Text comes as spans. In a span with `meant`, the text of a control token is encoded as this token. In other spans it is
plain text: `<|im_end|>` is encoded as ten characters. Adjacent spans are joined before they are encoded, so that the
border between them does not change the tokens.

Control tokens are the added tokens of the vocabulary, except plain words and white space (some vocabularies add runs of
spaces). The `special` flag does not matter: `<tool_call>` and `<think>` often do not have it."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tokenizers

from banyan.runtime.errors import BadModel, BadProgram, PromptTooLong, Unsupported, rust_panics_as
from banyan.runtime.model.gguf.model import read_bytes
from banyan.runtime.protocol import wire
from banyan.runtime.server.text.bounded_cache import BoundedCache
from banyan.runtime.server.text.encoder import EncodedText, Encoder, EncoderProcess, LocalEncoder, is_known, patterns
from banyan.runtime.server.text.token_cache import TokenCache

STOP = 1024
"""The cost of finding the tokens that contain a stop string; the unit is the cost of encoding one character."""

STOP_IDS = 4 << 20
"""Maximum number of bytes of all cached `stop_ids`."""


class TextSpan(NamedTuple):
    """Text to encode. meant: whether control tokens in the text are encoded as control tokens."""

    text: str
    meant: bool = False


class _TokenizerJson(msgspec.Struct):
    """The parts of tokenizer.json that say how text is cut and how ids are spelled. The rest (megabytes) is not
    decoded."""

    decoder: Any = None
    normalizer: Any = None
    pre_tokenizer: Any = None


class Files(msgspec.Struct, frozen=True):
    """The text-related files of a model directory, except tokenizer.json. The content of a missing file is {}."""

    config: dict[str, Any]
    generation: dict[str, Any]
    tokenizer: dict[str, Any]
    template: str | None

    @classmethod
    def read(cls, directory: Path) -> Files:
        """Read the files of a model directory. BadModel: a file cannot be read, or the chat template is not text."""
        tokenizer = _json(directory / "tokenizer_config.json")
        tokenizer = _json(directory / "special_tokens_map.json") | tokenizer
        template: Any = tokenizer.get("chat_template")
        if isinstance(template, list):  # several named templates
            defaults = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
            template = defaults[0].get("template") if defaults else None
        if (file := directory / "chat_template.jinja").is_file():
            try:
                template = file.read_text(encoding="utf-8")
            except UnicodeDecodeError as e:
                raise BadModel(f"{file} is not UTF-8: {e}") from e
        if template is None:  # transformers' processors used to keep it there
            template = _json(directory / "chat_template.json").get("chat_template")
        if not isinstance(template, str | None):
            raise BadModel(f"the chat template in {directory} is {template!r:.80}, which is not text")
        config = _json(directory / "config.json")
        return cls(config, _json(directory / "generation_config.json"), tokenizer, template)

    @property
    def special_tokens(self) -> dict[str, str]:
        """Name of a special token (bos_token, eos_token ...) -> its text, for chat templates."""
        found = {}
        for name, value in self.tokenizer.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
        return found


def _json(file: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(read_bytes(file))
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, RecursionError) as e:
        raise BadModel(f"{file} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise BadModel(f"{file} must contain a JSON object")
    return value


def same_tokenizer(a: Path, b: Path) -> bool:
    """Whether two model directories have the same tokenizer.json."""
    try:
        one, other = (read_bytes(directory / "tokenizer.json") for directory in (a, b))
    except FileNotFoundError:
        return False
    return one == other


class Tokenizer:
    """The tokenizer of one model. Thread-safe.

    spelling    bytes of each id; a special token is spelled as its name, an unused id is empty
    special     ids that generated text does not show
    eos_ids     ids that end an output
    blank       the ids that stand for an empty prompt: the begin-of-text id or, if there is none, an eos id
    longest     length in bytes of the longest spelling
    is_local    whether texts are encoded in this process; if not, in one that can be killed"""

    def __init__(self, directory: Path, files: Files) -> None:
        self._tokenizer, description = _load(directory)
        self._encoder: Encoder = LocalEncoder(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.added = {token.content: i for i, token in added.items()}
        self._control = frozenset(i for i, t in added.items() if t.special or is_control(t.content))
        content = {i: token.content for i, token in added.items()}
        self.spelling = _spellings(self._tokenizer, content, self._control, description.decoder)
        self.longest = max(map(len, self.spelling), default=0)
        self._marks = Marks({added[i].content: i for i in self._control})
        self.eos_ids = self._find_eos(files)
        try:
            self._start, self._anchor = self._prefix(), self._find_anchor()
        except BadProgram as e:
            raise BadModel(f"the tokenizer in {directory} cannot be used: {e.message}") from e
        self.is_local = all(map(is_known, patterns([description.normalizer, description.pre_tokenizer])))
        if not self.is_local:
            self._encoder = EncoderProcess(self._tokenizer.to_str().encode())
        bos = self._tokenizer.token_to_id(files.special_tokens.get("bos_token", ""))
        self.blank = self._start or ([bos] if bos is not None else list(self.eos_ids[:1]))
        reaching = [i for i in self._control if _depends_on_neighbours(added[i])]
        # None if the encoding of a text may depend on control tokens beside it.
        self._cache = None if self._anchor or reaching else TokenCache(self._raw)
        self._stop_ids: BoundedCache[frozenset[int]] = BoundedCache(STOP_IDS)
        self._vocabulary: tuple[bytes, list[int]] | None = None

    def encode(self, spans: Iterable[TextSpan], at_start: bool = False, owner: bytes = b"") -> list[int]:
        """Returns the ids of the joined text of the spans.

        at_start: the text starts a prompt. The ids that the tokenizer puts before every text (such as a begin-of-text
        id) then come first, unless the spans already begin with these control tokens. owner: the tenant's namespace;
        owners do not share cached texts."""
        parts = [span for span in spans if span.text]
        text, spans = "".join(span.text for span in parts), merge(parts)
        spelled = spans and spans[0].meant and text.startswith(self.text_of(self._start))
        ids = list(self._start if at_start and not spelled else ())
        if not text:
            return ids
        meant, are_all = self._meant(text, spans)
        if are_all and self._cache is None:
            return ids + self._encode(text, at_start)
        borders = list(accumulate(len(part.text) for part in parts))
        done = n_passed = 0
        for start, end, token in (*meant, (len(text), len(text), None)):
            piece = text[done:start]
            first, n_passed = n_passed, bisect_left(borders, start, n_passed)
            if self._cache is not None and (are_all or not any(self.controls(piece))):
                inside = [border - done for border in borders[first:n_passed] if border > done]
                ids += self._cache.ids(piece, inside, owner, grows=not meant)
            elif piece:
                ids += self._encode_data(piece, at_start and not done)
            ids += [] if token is None else [token]
            done = end
        return ids

    def text_of(self, ids: Iterable[int]) -> str:
        """The text of ids, including special tokens."""
        return b"".join(self.spelling[i] for i in ids).decode(errors="replace")

    def text_of_packed(self, ids: bytes) -> str:
        """Returns the text of int32 token ids that a client sent, including special tokens. Raises BadProgram if one of
        them is not an id of the vocabulary."""
        if len(ids) % 4:
            raise BadProgram(f"token ids have four bytes each, but {len(ids)} bytes are not a multiple of four")
        numbers = memoryview(ids).cast("i").tolist()
        unknown = [i for i in (min(numbers, default=0), max(numbers, default=0)) if not 0 <= i < len(self.spelling)]
        spelled = [] if unknown else list(map(self.spelling.__getitem__, numbers))
        if b"" in spelled:
            unknown = [numbers[spelled.index(b"")]]
        if unknown:
            raise BadProgram(f"{unknown[0]} is not an id of the model's vocabulary, which has {len(self.spelling)} ids")
        return b"".join(spelled).decode(errors="replace")

    def controls(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each control token in `text`, in order."""
        return self._marks.find(text)

    def vocabulary(self) -> wire.SetVocabulary:
        """The message that tells an engine the vocabulary, for guides."""
        return wire.SetVocabulary(
            text=b"".join(self.spelling),
            ends=array("i", accumulate(map(len, self.spelling))).tobytes(),
            special=array("i", sorted(self.special)).tobytes(),
            control=array("i", sorted(self._control)).tobytes(),
            eos=array("i", self.eos_ids).tobytes(),
            tokenizer=self._tokenizer.to_str().encode(),
        )

    def stop_ids(self, stop: str) -> frozenset[int]:
        """All ids whose spelling contains the whole of `stop`. Cached; the first call for a string scans the
        vocabulary."""
        if (known := self._stop_ids.get(stop)) is None:
            if self._vocabulary is None:
                # 0xFF does not occur in UTF-8, so no match spans two tokens.
                ends = list(accumulate(len(s) + 1 for s in self.spelling))
                self._vocabulary = b"\xff".join(self.spelling), ends
            blob, ends = self._vocabulary
            wanted, found, at = stop.encode(), set(), -1
            while (at := blob.find(wanted, at + 1)) >= 0:
                found.add(i := bisect_right(ends, at))
                at = ends[i] - 1
            known = frozenset(found - self.special)
            self._stop_ids.put(stop, known, 4 * len(stop) + 128 * (1 + len(known)))
        return known

    def stop_work(self, stop: str) -> int:
        """The cost of `stop_ids(stop)`, in units of encoding one character; 0: its result is cached."""
        if stop in self._stop_ids:
            return 0
        return STOP + (len(self.spelling) if self._vocabulary is None else 0)

    def kept(self) -> dict[str, tuple[int, int]]:
        """For each cache: (its approximate bytes, the maximum)."""
        token_ids = {} if self._cache is None else {"token_ids": self._cache.cache.kept}
        return token_ids | {"stop_ids": self._stop_ids.kept}

    def forget(self, owner: bytes) -> None:
        """Drop the cached texts of a tenant that is gone."""
        if self._cache is not None:
            self._cache.forget(owner)

    def set_context(self, n_tokens: int) -> None:
        """Set the model's context length. Encoding a text with more tokens then raises PromptTooLong."""
        self._encoder.max_ids = n_tokens

    def close(self) -> None:
        """End the encoder process, if there is one. Idempotent."""
        self._encoder.close()

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _raw(self, text: str, special: bool = False, offsets: bool = False) -> EncodedText:
        """Encode a text with the tokenizers library. special, offsets: as in Encoder.encode. Raises PromptTooLong, and
        BadProgram if the encoding fails or takes too long."""
        try:
            return self._encoder.encode(text, special, offsets)
        except PromptTooLong:
            raise
        except Exception as e:  # the Rust library raises bare Exceptions
            raise BadProgram(f"the model's tokenizer cannot encode a text of {len(text)} characters: {e}") from e

    def _encode(self, text: str, at_start: bool) -> list[int]:
        # SentencePiece puts a space before every text. In a prompt only the first text may get it.
        if self._anchor is None or at_start:
            return self._raw(text).ids
        anchor, ids = self._anchor
        return self._raw(anchor + text).ids[len(ids) :]

    def _encode_data(self, text: str, at_start: bool) -> list[int]:
        """Encode text as data: each control token in it is split after its first character, so that the library does
        not recognise the token."""
        cuts: Sequence[int] = [start + 1 for start, *_ in self.controls(text)]
        if not cuts:
            ids = self._encode(text, at_start)
            if self._control.isdisjoint(ids) or len(text) < 2:
                return ids
            cuts = range(1, len(text))  # the tokenizer's normalizer produces a control token
        pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
        return [i for k, piece in enumerate(pieces) for i in self._encode_data(piece, at_start and not k)]

    def _meant(self, text: str, spans: Sequence[TextSpan]) -> tuple[list[tuple[int, int, int]], bool]:
        """Find the control tokens in spans with `meant`. Returns (start, end, id) of each in the joined text, and
        whether the text contains no other control tokens."""
        ends = list(accumulate(len(span.text) for span in spans))
        found = list(self.controls(text))
        kinds = [(bisect_right(ends, start), end) for start, end, _ in found]
        meant = [one for one, (k, end) in zip(found, kinds, strict=True) if spans[k].meant and end <= ends[k]]
        return meant, len(meant) == len(found)

    def _prefix(self) -> list[int]:
        """The ids that the tokenizer puts before every text."""
        plain = self._raw("a").ids
        full = self._raw("a", special=True).ids
        for k in range(len(full) - len(plain) + 1):
            if full[k : k + len(plain)] == plain:
                return full[:k]
        return []

    def _find_anchor(self) -> tuple[str, list[int]] | None:
        """Needed for tokenizers that add a space before every text (SentencePiece); for others returns None.

        Returns a string to encode before a text that stands inside a prompt, and the ids of the string, which the
        caller then removes. Raises Unsupported if no such string works."""
        if self.text_of(self._raw("a").ids) == "a":
            return None
        for anchor in ("\n", "\0", "."):
            ids = self._raw(anchor).ids
            both = self._raw(anchor + "a").ids
            if both[: len(ids)] == ids and self.text_of(both[len(ids) :]) == "a":
                return anchor, ids
        raise Unsupported("this tokenizer changes the start of a text in a way that cannot be undone inside a prompt")

    def _find_eos(self, files: Files) -> tuple[int, ...]:
        found: list[int] = []
        text_config = files.config.get("text_config") or {}
        for place in (files.generation, files.config, text_config):
            value = place.get("eos_token_id")
            values = value if isinstance(value, list) else [value]
            found += [i for i in values if type(i) is int and 0 <= i < 1 << 31]
        eos = files.special_tokens.get("eos_token")
        if eos is not None and (i := self._tokenizer.token_to_id(eos)) is not None:
            found.append(i)
        return tuple(dict.fromkeys(found))


class Marks:
    """Finds control tokens in text, in one pass for any number of them. ids: text of a control token -> its id.

    If several control tokens begin at one position, the longest is found.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._lengths: dict[str, list[int]] = {}  # first character -> lengths of tokens, in descending order
        for first in {token[0] for token in ids}:
            self._lengths[first] = sorted({len(token) for token in ids if token[0] == first}, reverse=True)
        self._firsts = re.compile("|".join(map(re.escape, self._lengths))) if ids else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each control token, in order and without overlaps."""
        at = 0
        # Not finditer: each call leaves a string in CPython's attribute cache, which keeps freed memory around it in
        # use.
        while self._firsts is not None and (match := self._firsts.search(text, at)) is not None:
            start, at = match.span()
            for length in self._lengths[match[0]]:
                token = text[start : start + length]
                if (i := self._ids.get(token)) is not None:
                    at = start + len(token)
                    yield start, at, i
                    break


def is_control(token: str) -> bool:
    """Whether an added token is a control token: it contains a character other than letters, digits and spaces."""
    return len(token) > 1 and re.search(r"[^\w\s\u2581]", token) is not None


def _depends_on_neighbours(token: Any) -> bool:
    """Whether an added token absorbs white space beside it, or is matched in normalised text."""
    return bool(token.lstrip or token.rstrip or token.single_word or token.normalized)


def merge(spans: Iterable[TextSpan]) -> list[TextSpan]:
    """Join adjacent spans of the same kind, and drop empty ones."""
    kinds = groupby((span for span in spans if span.text), key=attrgetter("meant"))
    return [TextSpan("".join(span.text for span in same), meant) for meant, same in kinds]


def _load(directory: Path) -> tuple[tokenizers.Tokenizer, _TokenizerJson]:
    """Load the tokenizer of a model directory. Returns the library's tokenizer, and the parts of tokenizer.json that
    the server needs itself. Raises BadModel if the file cannot be read."""
    file = directory / "tokenizer.json"
    try:
        data = read_bytes(file)
    except FileNotFoundError:
        return _convert(directory)
    try:
        with rust_panics_as(BadModel, "the library panicked"):
            loaded = tokenizers.Tokenizer.from_buffer(data)
        loaded.no_truncation()
        loaded.no_padding()
        return loaded, msgspec.json.decode(data, type=_TokenizerJson)
    except Exception as e:  # the Rust library raises bare Exceptions
        raise BadModel(f"{file} cannot be read as a tokenizer: {e}") from e


def _convert(directory: Path) -> tuple[tokenizers.Tokenizer, _TokenizerJson]:
    """Load a tokenizer whose format is not tokenizer.json. This takes transformers, which is slow to import."""
    from transformers import AutoTokenizer

    try:
        with rust_panics_as(BadModel, "the library panicked"):
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True).backend_tokenizer
    except Exception as e:  # transformers raises many kinds
        raise BadModel(f"{directory} has no tokenizer.json, and transformers cannot make one: {e}") from e
    return tokenizer, msgspec.json.decode(tokenizer.to_str(), type=_TokenizerJson)


def _spellings(
    tokenizer: tokenizers.Tokenizer, added: dict[int, str], control: Collection[int], decoder: Any
) -> list[bytes]:
    """The bytes of each id. added: id -> content of each added token. control: the ids of control tokens.

    Unsupported: the decoder is neither byte-level BPE nor SentencePiece.
    """
    kinds = set(_kinds(decoder))
    literal: Collection[int] = control  # the added tokens that are spelled as they are written
    if "ByteLevel" in kinds:
        table = _byte_level()
        literal = added  # also words and spaces, which are not written in the table's characters

        def spell(token: str) -> bytes:
            return token.translate(table).encode("latin-1")
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        byte = re.compile(r"<0x([0-9A-F]{2})>")

        def spell(token: str) -> bytes:
            match = byte.fullmatch(token)
            return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode()
    else:
        raise Unsupported(
            f"a tokenizer whose decoder is {' + '.join(sorted(kinds)) or 'missing'}; supported: byte-level BPE and "
            "SentencePiece"
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    spelling = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, i in vocabulary.items():
        spelling[i] = added[i].encode() if i in literal else spell(token)
    return spelling


def _kinds(decoder: Any) -> Iterable[str]:
    if isinstance(decoder, dict):
        yield decoder.get("type", "")
        for part in decoder.get("decoders", ()):
            yield from _kinds(part)


def _byte_level() -> dict[int, int]:
    """Character -> the byte that it stands for in byte-level BPE (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {b: b for b in plain} | {0x100 + k: b for k, b in enumerate(others)}
