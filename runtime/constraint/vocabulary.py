"""The tokenizer's vocabulary for constraint compilers: the bytes of each token, and which tokens are not text."""

from __future__ import annotations

import re
import secrets
from array import array
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import llguidance
import msgspec
import numpy as np

from banyan.runtime.errors import ConstraintCrashed, Unsupported, rust_panics_as
from banyan.runtime.protocol import wire

_SEPARATOR = b"\xff"  # never occurs in UTF-8


class TokenBytes:
    """The bytes of all tokens as arrays, with which an automaton walks them in parallel.

    text       the bytes of all tokens, one after another
    starts     where the bytes of each id begin in `text`
    lengths    how many bytes each id has
    is_text    whether an id stands for text; of `n_vocab` ids
    by_first   first byte -> the ids of text that begin with it
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        n_vocab = vocabulary.n_vocab
        ends = np.frombuffer(vocabulary.message.ends, np.int32)[:n_vocab].astype(np.int64)
        self.text = np.frombuffer(vocabulary.message.text, np.uint8)
        self.starts = np.concatenate([[0], ends[:-1]])
        self.lengths = ends - self.starts
        self.is_text = np.zeros(n_vocab, bool)
        self.is_text[: len(ends)] = self.lengths > 0
        not_text = vocabulary.special | vocabulary.control | set(vocabulary.eos)
        self.is_text[[i for i in not_text if i < len(ends)]] = False
        ids = np.flatnonzero(self.is_text)
        first = self.text[self.starts[ids]]
        by_byte = np.argsort(first, kind="stable")
        self.by_first = np.split(ids[by_byte], np.searchsorted(first[by_byte], np.arange(1, 256)))


class Vocabulary:
    """A view of the server's SetVocabulary message. Costly parts are computed on first use.

    message    the message as received
    spelling   the bytes of each id; larger ids (a model's padding) have none and are never allowed
    special    ids that never stand for text
    control    ids with a meaning besides their text, such as the end of a turn or a tool call. If such an id is also a
               stop id of a request, it may end the output where the constrained value may end
    n_vocab    columns of the model's logits; a mask has ceil(n_vocab / 32) words
    """

    def __init__(self, message: wire.SetVocabulary, n_vocab: int) -> None:
        self.message, self.n_vocab = message, n_vocab
        self.n_words = -(-n_vocab // 32)
        self.special, self.control = frozenset(array("i", message.special)), frozenset(array("i", message.control))
        self.eos = tuple(i for i in array("i", message.eos) if i < n_vocab)

    @cached_property
    def spelling(self) -> list[bytes]:
        text = self.message.text
        return [text[a:b] for a, b in pairwise([0, *array("i", self.message.ends)])]

    def containing(self, text: bytes) -> list[int]:
        """Ids whose bytes contain `text`."""
        blob, starts = self._blob
        found, at = [], blob.find(text)
        while at >= 0:
            token = bisect_right(starts, at) - 1
            found.append(token)
            at = blob.find(text, starts[token + 1])
        return found

    def starting(self, text: bytes) -> list[int]:
        """Ids whose bytes begin with `text`."""
        return [token for token in self.containing(_SEPARATOR + text) if self.spelling[token].startswith(text)]

    @cached_property
    def _blob(self) -> tuple[bytes, list[int]]:
        """All spellings, each preceded by a separator, and the offset of each separator and of the end."""
        spelling = self.spelling[: self.n_vocab]
        starts = [0, *accumulate(len(_SEPARATOR) + len(spelled) for spelled in spelling)]
        return b"".join(_SEPARATOR + spelled for spelled in spelling), starts

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self)

    @cached_property
    def llg(self) -> llguidance.LLTokenizer:
        """llguidance's tokenizer for this vocabulary. Its creation takes 0.1 s at 32k tokens, 0.6 s at 128k (one core
        of an AMD EPYC).

        llguidance must be given an eos token. If the model has none, it gets any token that is not text (Unsupported:
        there is none). This does no harm, because guides forbid that token in every mask. Control tokens get random
        names here. With their own names, llguidance would take such a name in a text for the token, even inside a
        value, and would then force an end of text there.
        """
        ends = [*self.eos, *sorted(self.special)][:1]
        if not ends:
            raise Unsupported(
                "constraints need a model with an eos token or another special token; this model has none"
            )
        tokenizer = _rename(msgspec.json.decode(self.message.tokenizer), self.control)
        return llguidance.LLTokenizer(msgspec.json.encode(tokenizer).decode(), n_vocab=self.n_vocab, eos_token=ends)

    def tokenize(self, text: bytes) -> list[int] | None:
        """The canonical tokens of a text; None if the tokenizer panics on the text."""
        try:
            with rust_panics_as(ConstraintCrashed, "the tokenizer panicked"):
                return list(self.llg.tokenize_bytes(text))
        except ConstraintCrashed:
            return None

    def split(self, text: str) -> list[str | int]:
        """Splits text at the names of control tokens: pieces of text, and ids in place of the names."""
        ids = {self.spelling[i].decode(errors="replace"): i for i in self.control}
        parts = re.split(f"({'|'.join(map(re.escape, sorted(ids, key=len, reverse=True)))})", text) if ids else [text]
        return [ids.get(part, part) for part in parts if part]


def _rename(tokenizer: Any, control: frozenset[int]) -> Any:
    """Give the control tokens random names in the parsed content of a tokenizer.json, so that no text contains these
    names. Changes `tokenizer` in place and returns it. control: their ids."""
    secret, vocabulary = secrets.token_hex(8), tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if token["id"] not in control:
            continue
        name, old = f"<{secret}:{token['id']}>", token["content"]
        token |= {"content": name, "special": True}
        if isinstance(vocabulary, dict):
            if old in vocabulary:
                vocabulary[name] = vocabulary.pop(old)
        elif token["id"] < len(vocabulary):  # a list of (piece, score)
            vocabulary[token["id"]][0] = name
    return tokenizer
