"""Separates an output of a reasoning model into its reasoning and its content."""

from __future__ import annotations

from typing import Literal

from banyan.runtime.protocol.wire import Reasoning


class ReasoningParser:
    """Parses one output piece by piece.

    The reasoning stands between the two marks, if the output begins with the first. All other text is content. White
    space around the two belongs to neither. Without the second mark, all behind the first is reasoning.

    reasoning       the reasoning so far
    content_start   the character of the output at which the content begins
    n_content       characters of content from there on
    """

    def __init__(self, marks: Reasoning, is_open: bool = False) -> None:
        """is_open: the prompt has the first mark already."""
        self._marks, self._is_inside = marks, marks.is_forced or is_open
        self._place: Literal["lead", "reasoning", "gap", "content", "all"] = "lead"
        self._held = ""  # may be the beginning of a mark, or white space behind the last word
        self._n_fed = self._n_taken = 0
        self.reasoning = ""
        self.content_start = self.n_content = 0

    def new_reasoning(self) -> str:
        """The reasoning that is certain, and was not returned before."""
        certain = self.reasoning.strip() if self._place in ("lead", "reasoning") else self.reasoning
        new, self._n_taken = certain[self._n_taken :], len(certain)
        return new

    def feed(self, text: str) -> str:
        """Take text; returns the content that is certain now."""
        self._n_fed += len(text)
        text, self._held = self._held + text, ""
        if self._place == "lead":
            text = self._lead(text)
        if self._place == "reasoning":
            text = self._reason(text)
        if self._place == "gap" and (text := text.lstrip()):
            self._place, self.content_start = "content", self._n_fed - len(text)
        if self._place == "content":
            content = text.rstrip()
            content, self._held = (content, text[len(content) :]) if content else ("", text)
        else:
            content = text if self._place == "all" else ""
        self.n_content += len(content)
        return content

    def finish(self) -> str:
        """The output ends; returns the rest of the content."""
        rest, self._held = self._held, ""
        if self._place == "lead" and not self._is_inside:
            self._place, self.n_content = "all", len(rest)
            return rest
        if self._place in ("lead", "reasoning"):
            self.reasoning = (self.reasoning + rest).strip()
        if self._place not in ("content", "all"):
            self.content_start = self._n_fed
        return ""

    def _lead(self, text: str) -> str:
        """Look for the first mark; returns the text behind it."""
        stripped, start = text.lstrip(), self._marks.start
        if stripped.startswith(start):
            self._place = "reasoning"
            return stripped[len(start) :]
        if start.startswith(stripped):
            self._held = text
            return ""
        self._place = "reasoning" if self._is_inside else "all"
        return text

    def _reason(self, text: str) -> str:
        """Look for the second mark; returns the text behind it."""
        reasoning, found, rest = text.partition(self._marks.end)
        if found:
            self._place, self.reasoning = "gap", (self.reasoning + reasoning).lstrip()
            return rest
        n = len(text) - overlap(text, self._marks.end)
        self.reasoning, self._held = self.reasoning + text[:n], text[n:]
        return ""


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that is a proper beginning of `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
