"""A vocabulary of 320 tokens for constraints, with two control tokens that have text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tokenizers

from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.guide import CompiledConstraint, Guide
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.protocol.wire import ConstraintSpec
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer

N_VOCAB = 330
"""The number of logits, more than the tokenizer has tokens."""


class Bench:
    """A vocabulary, and helpers to compile constraints and query guides."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer(directory, Files.read(directory))
        self.vocabulary = Vocabulary(self.tokenizer.vocabulary(), N_VOCAB)
        self.n_words = self.vocabulary.n_words

    def compile(self, kind: Any, text: Any, **options: Any) -> CompiledConstraint:
        text = text if isinstance(text, str) else json.dumps(text)
        return build(canonical(ConstraintSpec(kind, text, **options)), self.vocabulary)

    def guide(self, kind: Any, text: Any, **options: Any) -> Guide:
        return self.compile(kind, text, **options).guide()

    def ids(self, text: str | bytes) -> list[int]:
        """The canonical tokens of a text. The name of a control token gives that token."""
        if isinstance(text, bytes):
            return list(self.vocabulary.llg.tokenize_bytes(text))
        return self.tokenizer.encode([TextSpan(text, meant=True)])

    def spell(self, ids: list[int]) -> bytes:
        return b"".join(self.vocabulary.spelling[i] for i in ids)

    def row(self) -> Any:
        """A row with arbitrary content."""
        return np.full(self.n_words, 0x5A5A5A5A, np.int32)

    def allowed(self, guide: Guide) -> set[int]:
        row = self.row()
        guide.fill(row)
        return set(bits(row))

    def accepts(self, guide: Guide, text: str | bytes) -> bool:
        """Whether the guide accepts the whole text and can stop after it. Does not change the guide."""
        ids = self.ids(text)
        n = guide.accept(ids)
        ok = n == len(ids) and guide.can_stop
        guide.rollback(n)
        return ok


def bits(row: Any) -> list[int]:
    """The tokens that a row allows."""
    return [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]


@pytest.fixture(scope="session")
def bench(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    path = tmp_path_factory.mktemp("vocabulary")
    tiny.make_tokenizer(path)
    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.save(str(path / "tokenizer.json"))
    return Bench(path)


@pytest.fixture(scope="session")
def allowed_by() -> Callable[[Any], list[int]]:
    return bits
