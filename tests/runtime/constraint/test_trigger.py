"""Constraints with triggers: where they start, and what free text must not contain."""

from __future__ import annotations

from typing import Any

import pytest

from banyan.runtime.errors import ConstraintSyntax

CALL = {"after": ("<tool_call>",), "end": "\n</tool_call>"}
INT = {"type": "integer"}


def accepts(bench: Any, guide: Any, text: str) -> bool:
    """Whether the guide accepts the whole text."""
    ids = bench.ids(text)
    return bool(guide.accept(ids) == len(ids))


@pytest.mark.parametrize("scope", ["must", "may", "repeat"])
def test_text_before_the_trigger_is_unconstrained(bench: Any, scope: str) -> None:
    guide = bench.guide("json_schema", INT, scope=scope, **CALL)
    assert accepts(bench, guide, 'the "answer" is {42}\n')
    allowed = bench.allowed(guide)
    assert not allowed & set(bench.vocabulary.eos)
    assert allowed | set(bench.vocabulary.eos) == set(range(32 * bench.n_words))
    assert guide.forced_tokens(9) == []
    assert guide.can_stop == (scope != "must")
    assert not guide.must_stop


@pytest.mark.parametrize("lead", ["", "\n", " \n\t "])
@pytest.mark.parametrize("scope", ["must", "may", "repeat"])
def test_value_after_the_trigger_is_constrained(bench: Any, scope: str, lead: str) -> None:
    guide = bench.guide("json_schema", INT, scope=scope, **CALL)
    assert accepts(bench, guide, f"hello <tool_call>{lead}42")
    assert not guide.can_stop
    assert guide.accept(bench.ids("there")) == 0
    assert accepts(bench, guide, "\n</tool_call>")
    assert guide.can_stop
    assert guide.must_stop == (scope != "repeat")
    if scope == "repeat":
        assert accepts(bench, guide, " and <tool_call>7\n</tool_call> and")
        assert guide.accept(bench.ids("<tool_call>x")) == 1


def test_trigger_is_found_in_every_tokenization(bench: Any) -> None:
    """As single characters, over several tokens, or in one token with the first bytes of the value."""
    single = {spelled: token for token, spelled in enumerate(bench.vocabulary.spelling) if len(spelled) == 1}
    for text in ("the other", "otothe other"):
        guide = bench.guide("choices", ["her", "he other"], after=("other ot", "the ot"))
        for byte in text.encode():
            assert guide.accept([single[bytes([byte])]]) == 1
        assert guide.must_stop
    guide = bench.guide("choices", ["her"], after=("the ot",))
    assert accepts(bench, guide, "the other")
    assert guide.must_stop


def test_token_with_an_invalid_continuation_of_the_trigger_is_forbidden(bench: Any) -> None:
    """` the` completes the trigger ` th`, but no value begins with `e`."""
    the = [bench.vocabulary.spelling.index(b" the")]
    guide = bench.guide("regex", "[0-9]", after=(" th",))
    assert not bench.allowed(guide) & set(the)
    assert guide.accept(the) == 0
    guide = bench.guide("regex", "[0-9e]", after=(" th",))
    assert guide.accept(the) == 1
    assert guide.must_stop
    guide.rollback(1)
    assert accepts(bench, guide, "x")


def test_control_token_can_be_a_trigger(bench: Any) -> None:
    guide = bench.guide("choices", ["b", "a"], after=("<|im_start|>",))
    assert accepts(bench, guide, "the<|im_start|>a")
    assert guide.must_stop


def test_first_trigger_starts_the_constraint(bench: Any) -> None:
    guide = bench.guide("choices", ["cd", "d"], after=("abc", "b"))
    assert accepts(bench, guide, "xabcd")
    assert guide.must_stop


def test_triggers_before_since_are_ignored(bench: Any) -> None:
    guide = bench.guide("json_schema", INT, since="</think>", scope="repeat", **CALL)
    assert accepts(bench, guide, "a <tool_call>x</tool_call> </thin")
    assert accepts(bench, guide, "k>")
    n = guide.accept(bench.ids("<tool_call>x"))
    assert n == len(bench.ids("<tool_call>x")) - 1
    assert accepts(bench, guide, "7\n</tool_call> <tool_call>8\n</tool_call>")
    guide.rollback(1)
    assert not guide.can_stop
    with pytest.raises(ConstraintSyntax, match="needs a trigger"):
        bench.guide("json_schema", INT, since="</think>")


def test_one_token_can_contain_since_trigger_and_value(bench: Any) -> None:
    single = {spelled: token for token, spelled in enumerate(bench.vocabulary.spelling) if len(spelled) == 1}
    guide = bench.guide("choices", ["her"], since="o", after=("t",))
    (other,) = (token for token, spelled in enumerate(bench.vocabulary.spelling) if spelled == b"other")
    assert other in bench.allowed(guide)
    assert guide.accept([other]) == 1
    assert guide.must_stop
    guide = bench.guide("choices", ["x"], since="o", after=("t",))
    assert other not in bench.allowed(guide)
    assert guide.accept([other]) == 0
    assert guide.accept([single[b"t"]]) == 1
