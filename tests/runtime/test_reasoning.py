"""Thoughts and answers are separated for any chunking of the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.runtime.protocol.wire import Reasoning
from banyan.runtime.reasoning import ReasoningParser
from forms import examples


def split_whole(text: str, markers: Reasoning, is_open: bool) -> tuple[str, str]:
    """(thought, answer) of the complete text."""

    def unframed(answer: str) -> str:
        answer = answer.lstrip().removeprefix(markers.answer).lstrip()
        return (answer.partition(markers.close)[0] if markers.close else answer).rstrip()

    lead = text.lstrip()
    if lead.startswith(markers.start):
        lead = lead[len(markers.start) :]
    elif markers.answer and lead.startswith(markers.answer):
        return "", unframed(lead)
    elif not (markers.is_forced or is_open):
        return "", text
    thought, found, answer = lead.partition(markers.end)
    return (thought.lstrip(), unframed(answer)) if found else (thought.strip(), "")


@pytest.mark.parametrize(
    ("text", "is_forced", "thought", "answer"),
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
def test_thought_and_answer_are_separated(text: str, is_forced: bool, thought: str, answer: str) -> None:
    thoughts = ReasoningParser(Reasoning(is_forced=is_forced))
    assert (thoughts.feed(text) + thoughts.finish(), thoughts.reasoning) == (answer, thought)


@examples(
    80,
    500,
    given(
        parts=st.lists(st.sampled_from(["<t>", "</t>", "<a>", "</a>", *"<t/> \na", "b "]), max_size=12),
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
        is_forced=st.booleans(),
        is_open=st.booleans(),
        frame=st.sampled_from([("", ""), ("<a>", ""), ("<a>", "</a>"), ("<a>", "</t>")]),
    ),
)
def test_result_does_not_depend_on_chunking(
    parts: list[str], sizes: list[int], is_forced: bool, is_open: bool, frame: tuple[str, str]
) -> None:
    text, markers = "".join(parts), Reasoning("<t>", "</t>", is_forced, *frame)
    thoughts, shown, thought, at, k = ReasoningParser(markers, is_open), "", "", 0, 0
    while at < len(text):
        n = sizes[k % len(sizes)]
        shown += thoughts.feed(text[at : at + n])
        thought += thoughts.new_reasoning()
        at, k = at + n, k + 1
    shown += thoughts.finish()
    assert (thoughts.reasoning, shown) == split_whole(text, markers, is_open)
    assert thought + thoughts.new_reasoning() == thoughts.reasoning
    assert text[thoughts.content_start :][: thoughts.n_content] == shown
