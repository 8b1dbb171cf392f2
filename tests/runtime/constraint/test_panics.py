"""A panic in a Rust library, which is not an Exception, fails the constraint and not the process."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import llguidance
import msgspec
import outlines_core
import pytest
from tokenizers import Tokenizer

from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import ConstraintCrashed
from banyan.runtime.protocol.wire import ConstraintSpec


def vocabulary_without(tiny: ModuleType, bench: Any, letter: str) -> Vocabulary:
    vocabulary = bench.tokenizer.vocabulary()
    changed = msgspec.structs.replace(vocabulary, tokenizer=tiny.without(vocabulary.tokenizer, letter))
    return Vocabulary(changed, bench.vocabulary.n_vocab)


def test_panic_of_the_tokenizer_disables_forced_tokens(tiny: ModuleType, bench: Any) -> None:
    """The masks do not change."""
    spec = canonical(ConstraintSpec("regex", "hq{2}", engine="outlines_core"))
    guide, reference = build(spec, vocabulary_without(tiny, bench, "q")).guide(), build(spec, bench.vocabulary).guide()
    assert reference.forced_tokens(9)
    assert guide.forced_tokens(9) == []
    for token in reference.forced_tokens(9):
        assert token in bench.allowed(guide)
        assert guide.accept([token]) == 1
    assert guide.must_stop


def test_panic_of_the_tokenizer_forbids_the_token_after_a_trigger(tiny: ModuleType, bench: Any) -> None:
    spelling = bench.vocabulary.spelling
    token_of_two = next(i for i, text in enumerate(spelling) if len(text) == 2 and text.isalpha())
    first, second = spelling[token_of_two].decode()
    spec = canonical(ConstraintSpec("regex", f"{second}+", after=(first,)))
    guide, reference = (
        build(spec, vocabulary_without(tiny, bench, second)).guide(),
        build(spec, bench.vocabulary).guide(),
    )
    assert bench.allowed(reference) - bench.allowed(guide) >= {token_of_two}
    assert guide.accept([token_of_two]) == 0
    assert guide.accept(bench.ids(first)) == 1
    assert guide.error == ""


def test_panic_of_the_matcher_raises_constraint_crashed(tiny: ModuleType, bench: Any) -> None:
    spec = canonical(ConstraintSpec("regex", "hq{2}"))
    with pytest.raises(ConstraintCrashed, match=r"the regex could not be compiled: its compiler panicked"):
        build(spec, vocabulary_without(tiny, bench, "q"))


@pytest.mark.parametrize(("engine", "module"), [("", llguidance), ("outlines_core", outlines_core)])
def test_panic_of_the_compiler_raises_constraint_crashed(
    tiny: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch, engine: Any, module: Any
) -> None:
    """No constraint is known that panics here, so the test raises the panic of another library."""

    def panic(*arguments: Any, **options: Any) -> None:
        Tokenizer.from_buffer(tiny.unreadable(bench.tokenizer.vocabulary().tokenizer))

    monkeypatch.setattr(module, "Index" if engine else "LLMatcher", panic)
    with pytest.raises(ConstraintCrashed, match="its compiler panicked"):
        build(canonical(ConstraintSpec("regex", "a+", engine=engine)), bench.vocabulary)
