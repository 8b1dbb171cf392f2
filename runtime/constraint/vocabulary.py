"""The vocabulary as constraint engines need it: what each token spells, and which are no text."""

from __future__ import annotations

from array import array
from functools import cached_property
from itertools import pairwise

import llguidance

from banyan.runtime import wire
from banyan.runtime.errors import Unsupported


class Vocabulary:
    """All that a server tells of its tokenizer, opened when it is first needed.

    spelling   what each id spells; ids behind it (a model's padding) spell nothing and are never allowed
    special    ids that no text has
    control    ids that mark more than they spell; of those, a stop id ends an output where its value may end
    n_vocab    rows of the model's logits; a mask has ceil(n_vocab / 32) words
    """

    def __init__(self, message: wire.Vocabulary, n_vocab: int) -> None:
        self._message, self.n_vocab = message, n_vocab
        self.n_words = -(-n_vocab // 32)
        self.special, self.control = frozenset(array("i", message.special)), frozenset(array("i", message.control))
        self.eos = tuple(i for i in array("i", message.eos) if i < n_vocab)

    @cached_property
    def spelling(self) -> list[bytes]:
        text = self._message.text
        return [text[a:b] for a, b in pairwise([0, *array("i", self._message.ends)])]

    @cached_property
    def llg(self) -> llguidance.LLTokenizer:
        """llguidance's own view of the tokenizer; 0.1 s at 32k tokens, 0.6 s at 128k (one core of an AMD EPYC).

        It wants a token to end with. Any will do that is no text: guides take its bit away again.
        """
        ends = [*self.eos, *sorted(self.special)][:1]
        if not ends:
            raise Unsupported("constraints on a model without special tokens: its outputs have nothing to end with")
        return llguidance.LLTokenizer(self._message.tokenizer.decode(), n_vocab=self.n_vocab, eos_token=ends)
