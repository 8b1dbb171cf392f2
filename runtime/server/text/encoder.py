"""Runs the tokenizers library in this process or, if the model has an unknown regex, in a process that can be killed.

    python -m banyan.runtime.server.text.encoder --fd N --alive-fd M

A tokenizer.json comes from whoever made the model, and splits text by a backtracking regex. `(x+x+)+y` takes 60 ms for
22 characters, and the library has no time limit. So texts are encoded in the server only if each of the model's regexes
is in KNOWN or KNOWN_DIGESTS.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec
import tokenizers

from banyan.runtime.errors import BadProgram, PromptTooLong, rust_panics_as
from banyan.runtime.model.gguf.tokenizer import ENDS, WORDS, gpt_4, o200k
from banyan.runtime.server.text.helper_process import HelperProcess, serve

COMMAND = (sys.executable, "-m", "banyan.runtime.server.text.encoder")

SECONDS, PER_CHARACTER = 2.0, 1e-5
"""The time limit for one text in the process is SECONDS + PER_CHARACTER * characters. Usual texts take 1 us per
character."""

_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

KNOWN = frozenset({
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(  # Llama 3, and Qwen 2 and 3 with single digits
        gpt_4(digits, words)
        for words in (WORDS, r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ),
    # Qwen 3.5
    rf"{WORDS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{ENDS}",
    # GPT-4's as in tiktoken
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    # o200k (GPT-4o, Llama 4), and Mistral's Tekken without `words` and with single digits
    *(o200k(digits, words) for words in (f"{WORDS}?", "") for digits in (r"\p{N}{1,3}", r"\p{N}")),
    # DeepSeek V3
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{ENDS}",
    *(r"\p{N}{1,3}", r"\p{N}", r"\d", "[0-9]", "[0-9][0-9][0-9]", "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"\s+", " +"),
})  # fmt: skip
"""Regexes that take time linear in the length of the text: at each place, one of their branches consumes the characters
that the other branches have looked at."""

KNOWN_DIGESTS = frozenset({"b850697ec547c753"})
"""The digests of more such regexes: the pocket model's."""


def digest(pattern: str) -> str:
    return blake2b(pattern.encode(), digest_size=8).hexdigest()


def patterns(part: Any) -> Iterator[str]:
    """The regexes in a part of a tokenizer.json."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if key == "Regex" and isinstance(value, str):
            yield value
        else:
            yield from patterns(value)


def is_known(pattern: str) -> bool:
    return pattern in KNOWN or digest(pattern) in KNOWN_DIGESTS


class EncodedText(NamedTuple):
    """The ids of a text.

    offsets, word_ids: for each id, the range of its characters in the text, and the number of its word. Both are empty
    unless `offsets` was requested."""

    ids: list[int]
    offsets: Sequence[tuple[int, int]] = ()
    word_ids: Sequence[int | None] = ()


class Encoder(Protocol):
    """Encodes texts. max_ids: how many ids a text may have; 0: any number."""

    max_ids: int

    def encode(self, text: str, special: bool = False, offsets: bool = False) -> EncodedText:
        """Encode a text. special: whether to add the ids that the tokenizer puts around every text. Raises
        PromptTooLong; BadProgram if the library panics (for instance because a regex backtracks too much) or takes too
        long; an Exception of any kind if the library fails."""

    def close(self) -> None:
        """End the process, if there is one. Idempotent."""


class LocalEncoder:
    """Encodes texts in this process. Other threads run during an encoding."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # `encode` of the library holds the GIL, and `encode_batch` releases it; threads of its own would not help.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._tokenizer, self.max_ids = tokenizer, 0

    def encode(self, text: str, special: bool = False, offsets: bool = False) -> EncodedText:
        with rust_panics_as(BadProgram, "it panicked"):
            encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
            found = encode([text], add_special_tokens=special)[0]
        if len(found) > self.max_ids > 0:  # checked before a list is made of the ids
            raise PromptTooLong.of(f"a text of {len(text)} characters has", len(found), self.max_ids)
        return EncodedText(found.ids, found.offsets, found.word_ids) if offsets else EncodedText(found.ids)

    def close(self) -> None:
        pass


class _Request(msgspec.Struct, array_like=True):
    text: str
    special: bool
    offsets: bool
    max_ids: int


class _Reply(msgspec.Struct, array_like=True):
    found: EncodedText | None
    error: str = ""
    is_too_long: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class EncoderProcess:
    """Encodes one text at a time in a child process. Thread-safe."""

    def __init__(self, tokenizer: bytes) -> None:
        """tokenizer: the content of tokenizer.json."""
        self._helper, self.max_ids = HelperProcess(COMMAND, tokenizer, "the tokenizer"), 0

    def encode(self, text: str, special: bool = False, offsets: bool = False) -> EncodedText:
        request = _encode(_Request(text, special, offsets, self.max_ids))
        seconds = SECONDS + PER_CHARACTER * len(text)
        try:
            reply = _decode_reply(self._helper.ask(request, seconds))
        except TimeoutError:
            raise BadProgram(f"it takes more than {seconds:.1f} s: its regex backtracks too much") from None
        except (EOFError, OSError) as e:
            raise BadProgram("its process died while encoding it") from e
        if reply.found is None:
            raise (PromptTooLong if reply.is_too_long else BadProgram)(reply.error)
        return reply.found

    def close(self) -> None:
        self._helper.close()


def _answer(encoder: LocalEncoder, data: bytes) -> bytes:
    request = _decode_request(data)
    encoder.max_ids = request.max_ids
    try:
        reply = _Reply(encoder.encode(request.text, request.special, request.offsets))
    except Exception as e:  # the Rust library raises bare Exceptions
        reply = _Reply(None, str(e), isinstance(e, PromptTooLong))
    return _encode(reply)


if __name__ == "__main__":
    serve(lambda tokenizer: partial(_answer, LocalEncoder(tokenizers.Tokenizer.from_buffer(tokenizer))))
