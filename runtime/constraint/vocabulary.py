"""The vocabulary as constraint engines need it: what each token spells, and which are no text."""

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

from banyan.runtime.errors import ConstraintCrashed, Unsupported, rust_panics_as
from banyan.runtime.protocol import wire

_BORDER = b"\xff"  # in no UTF-8 text


class Vocabulary:
    """All that a server tells of its tokenizer, opened when it is first needed.

    message    as it came
    spelling   what each id spells; ids behind it (a model's padding) spell nothing and are never allowed
    special    ids that no text has
    control    ids that mark more than they spell; of those, a stop id ends an output where its value may end
    n_vocab    rows of the model's logits; a mask has ceil(n_vocab / 32) words
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
        """Ids whose spelling holds `text`."""
        return self._find(text)

    def starting(self, text: bytes) -> list[int]:
        """Ids whose spelling begins with `text`."""
        return [token for token in self._find(_BORDER + text) if self.spelling[token].startswith(text)]

    def _find(self, wanted: bytes) -> list[int]:
        blob, starts = self._blob
        found, at = [], blob.find(wanted)
        while at >= 0:
            token = bisect_right(starts, at) - 1
            found.append(token)
            at = blob.find(wanted, starts[token + 1])
        return found

    @cached_property
    def _blob(self) -> tuple[bytes, list[int]]:
        """All spellings, each behind a border, and where the borders stand; also where one more would."""
        spelling = self.spelling[: self.n_vocab]
        starts = [0, *accumulate(len(_BORDER) + len(spelled) for spelled in spelling)]
        return b"".join(_BORDER + spelled for spelled in spelling), starts

    @cached_property
    def llg(self) -> llguidance.LLTokenizer:
        """llguidance's own view of the tokenizer; 0.1 s at 32k tokens, 0.6 s at 128k (one core of an AMD EPYC).

        It wants a token to end with. Any will do that is no text: guides take its bit away again. And it takes what
        spells a control token for that token, also in the middle of a value, where an end-of-text would then be forced:
        so control tokens get names here that no text holds.
        """
        ends = [*self.eos, *sorted(self.special)][:1]
        if not ends:
            raise Unsupported("constraints on a model without special tokens: its outputs have nothing to end with")
        tokenizer = _rename(msgspec.json.decode(self.message.tokenizer), self.control)
        return llguidance.LLTokenizer(msgspec.json.encode(tokenizer).decode(), n_vocab=self.n_vocab, eos_token=ends)

    def tokenize(self, text: bytes) -> list[int] | None:
        """The canonical tokens of a text; None where the tokenizer panics on it."""
        try:
            with rust_panics_as(ConstraintCrashed, "the tokenizer panicked"):
                return list(self.llg.tokenize_bytes(text))
        except ConstraintCrashed:
            return None

    def split(self, text: str) -> list[str | int]:
        """Text that may name control tokens, as text and ids."""
        ids = {self.spelling[i].decode(errors="replace"): i for i in self.control}
        parts = re.split(f"({'|'.join(map(re.escape, sorted(ids, key=len, reverse=True)))})", text) if ids else [text]
        return [ids.get(part, part) for part in parts if part]


def _rename(tokenizer: Any, control: frozenset[int]) -> Any:
    """tokenizer.json with other names for the control tokens."""
    secret, vocabulary = secrets.token_hex(8), tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if token["id"] not in control:
            continue
        name, old = f"<{secret}:{token['id']}>", token["content"]
        token |= {"content": name, "special": True}
        if isinstance(vocabulary, dict):
            if old in vocabulary:
                vocabulary[name] = vocabulary.pop(old)
        elif token["id"] < len(vocabulary):  # pairs of a piece and its score
            vocabulary[token["id"]][0] = name
    return tokenizer
