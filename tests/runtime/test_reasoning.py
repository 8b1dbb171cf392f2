"""Thinking and speaking, told apart however the text comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.runtime.protocol.wire import Reasoning
from banyan.runtime.reasoning import ReasoningParser


def whole(text: str, marks: Reasoning, is_open: bool) -> tuple[str, str]:
    """(thought, said), from the whole text at once."""
    lead = text.lstrip()
    if lead.startswith(marks.start):
        lead = lead[len(marks.start) :]
    elif not (marks.is_forced or is_open):
        return "", text
    thought, found, said = lead.partition(marks.end)
    return (thought.lstrip(), said.strip()) if found else (thought.strip(), "")


@pytest.mark.parametrize(
    ("text", "is_forced", "thought", "said"),
    [
        ("<think>\nhm\n</think>\n\nyes\n", False, "hm\n", "yes"),
        ("hm</think>yes", True, "hm", "yes"),
        ("<think>hm</think>yes", True, "hm", "yes"),
        ("<think>hm", False, "hm", ""),
        ("hm ", True, "hm", ""),
        (" yes </think> ", False, "", " yes </think> "),
        ("<think></think>", False, "", ""),
        ("", True, "", ""),
        ("", False, "", ""),
    ],
)
def test_what_is_thought_and_what_is_said(text: str, is_forced: bool, thought: str, said: str) -> None:
    thoughts = ReasoningParser(Reasoning(is_forced=is_forced))
    assert (thoughts.feed(text) + thoughts.finish(), thoughts.reasoning) == (said, thought)


@settings(max_examples=500, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["<t>", "</t>", "<", "t", "/", ">", " ", "\n", "a", "b "]), max_size=12),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    is_forced=st.booleans(),
    is_open=st.booleans(),
)
def test_it_is_all_one_how_the_text_comes(parts: list[str], sizes: list[int], is_forced: bool, is_open: bool) -> None:
    text, marks = "".join(parts), Reasoning("<t>", "</t>", is_forced)
    thoughts, shown, told, at, k = ReasoningParser(marks, is_open), "", "", 0, 0
    while at < len(text):
        n = sizes[k % len(sizes)]
        shown += thoughts.feed(text[at : at + n])
        told += thoughts.new_reasoning()
        at, k = at + n, k + 1
    shown += thoughts.finish()
    assert (thoughts.reasoning, shown) == whole(text, marks, is_open)
    assert told + thoughts.new_reasoning() == thoughts.reasoning
    assert text[thoughts.content_start :][: thoughts.n_content] == shown
