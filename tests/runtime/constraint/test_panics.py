"""A panic in a Rust library is no Python exception. It fails the constraint, not the process."""

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


def without(tiny: ModuleType, bench: Any, letter: str) -> Vocabulary:
    known = bench.tokenizer.vocabulary()
    changed = msgspec.structs.replace(known, tokenizer=tiny.without(known.tokenizer, letter))
    return Vocabulary(changed, bench.vocabulary.n_vocab)


def test_a_run_that_the_tokenizer_panics_on_is_drawn(tiny: ModuleType, bench: Any) -> None:
    """Its forced tokens are unknown; the masks do not change."""
    spec = canonical(ConstraintSpec("regex", "hq{2}", engine="outlines_core"))
    guide, other = build(spec, without(tiny, bench, "q")).guide(), build(spec, bench.vocabulary).guide()
    assert other.forced_tokens(9)
    assert guide.forced_tokens(9) == []
    for token in other.forced_tokens(9):
        assert token in bench.allowed(guide)
        assert guide.accept([token]) == 1
    assert guide.must_stop


def test_what_the_tokenizer_panics_on_follows_no_trigger(tiny: ModuleType, bench: Any) -> None:
    spelling = bench.vocabulary.spelling
    long = next(i for i, text in enumerate(spelling) if len(text) == 2 and text.isalpha())
    first, second = spelling[long].decode()
    spec = canonical(ConstraintSpec("regex", f"{second}+", after=(first,)))
    guide, other = build(spec, without(tiny, bench, second)).guide(), build(spec, bench.vocabulary).guide()
    assert bench.allowed(other) - bench.allowed(guide) >= {long}
    assert guide.accept([long]) == 0
    assert guide.accept(bench.ids(first)) == 1
    assert guide.error == ""


def test_a_matcher_that_panics_is_a_constraint_that_cannot_be_compiled(tiny: ModuleType, bench: Any) -> None:
    spec = canonical(ConstraintSpec("regex", "hq{2}"))
    with pytest.raises(ConstraintCrashed, match=r"the regex could not be compiled: its compiler panicked"):
        build(spec, without(tiny, bench, "q"))


@pytest.mark.parametrize(("engine", "module"), [("", llguidance), ("outlines_core", outlines_core)])
def test_a_compiler_that_panics_is_a_constraint_that_cannot_be_compiled(
    tiny: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch, engine: Any, module: Any
) -> None:
    """No constraint is known that panics here, so the panic of another library is raised."""

    def panics(*arguments: Any, **options: Any) -> None:
        Tokenizer.from_buffer(tiny.unreadable(bench.tokenizer.vocabulary().tokenizer))

    monkeypatch.setattr(module, "Index" if engine else "LLMatcher", panics)
    with pytest.raises(ConstraintCrashed, match="its compiler panicked"):
        build(canonical(ConstraintSpec("regex", "a+", engine=engine)), bench.vocabulary)
