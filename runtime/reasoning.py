"""Separates the output of a reasoning model into its reasoning and its content."""

from __future__ import annotations

from typing import Literal

from banyan.runtime.protocol.wire import Reasoning


class ReasoningParser:
    """Parses one output piece by piece.

    A reasoning model writes its reasoning between a start mark and an end mark, such as <think> and </think>. If the
    output begins with the start mark, or inside the reasoning (is_open, Reasoning.is_forced), the text up to the end
    mark is reasoning, and the rest is content. If there is no end mark, all of the rest is reasoning. Otherwise all of
    the output is content. White space at the ends of both parts is dropped.

    Some models write an answer mark before the content, also in an output without reasoning, and a close mark after it.
    These marks, and all that follows the close mark, are dropped.

    reasoning       the reasoning so far
    marks_end       the index in the output after the last mark before the content
    content_start   the index in the output of the first character of content
    n_content       number of characters of content
    """

    def __init__(self, marks: Reasoning, is_open: bool = False) -> None:
        """is_open: the prompt ends with the start mark, so the output begins with reasoning."""
        self._marks, self._is_inside = marks, marks.is_forced or is_open
        self._place: Literal["lead", "reasoning", "gap", "content", "closed", "all"] = "lead"
        self._answer = marks.answer  # the answer mark; "": it was found
        self._held = ""  # text that may be the beginning of a mark, or white space at the end of a part
        self._n_fed = self._n_taken = 0
        self.reasoning = ""
        self.marks_end = self.content_start = self.n_content = 0

    def new_reasoning(self) -> str:
        """The reasoning that this method has not returned before, without text that may be the beginning of a mark."""
        certain = self.reasoning.strip() if self._place in ("lead", "reasoning") else self.reasoning
        new, self._n_taken = certain[self._n_taken :], len(certain)
        return new

    def feed(self, text: str) -> str:
        """Take more of the output. Returns new content, without text that may be the beginning of a mark."""
        self._n_fed += len(text)
        text, self._held = self._held + text, ""
        if self._place == "lead":
            text = self._lead(text)
        if self._place == "reasoning":
            text = self._reason(text)
        if self._place == "gap":
            text = self._skip(text)
        content = text if self._place == "all" else self._answered(text) if self._place == "content" else ""
        self.n_content += len(content)
        return content

    def finish(self) -> str:
        """Parse the end of the output. Returns the rest of the content."""
        rest, self._held = self._held, ""
        if self._place == "lead" and not self._is_inside:
            self._place, self.n_content = "all", len(rest)
            return rest
        if self._place == "gap" and rest:  # the held text began like the answer mark
            self._place, self.content_start = "content", self._n_fed - len(rest)
        if self._place == "content":
            rest = rest.rstrip()
            self.n_content += len(rest)
            return rest
        if self._place in ("lead", "reasoning"):
            self.reasoning = (self.reasoning + rest).strip()
        if self._place not in ("closed", "all"):
            self.content_start = self._n_fed
        return ""

    def _lead(self, text: str) -> str:
        """Look for the start mark at the beginning of the output. Returns the text that is still to be parsed."""
        stripped, start = text.lstrip(), self._marks.start
        if stripped.startswith(start):
            self._place = "reasoning"
            return stripped[len(start) :]
        if self._answer and stripped.startswith(self._answer):
            self._place = "gap"
            return stripped
        if start.startswith(stripped) or self._answer.startswith(stripped):
            self._held = text
            return ""
        self._place = "reasoning" if self._is_inside else "all"
        return text

    def _reason(self, text: str) -> str:
        """Look for the end mark. Returns the text after the mark; "" if the mark has not come yet."""
        reasoning, found, rest = text.partition(self._marks.end)
        if found:
            self._place, self.reasoning = "gap", (self.reasoning + reasoning).lstrip()
            self.marks_end = self._n_fed - len(rest)
            return rest
        n = len(text) - overlap(text, self._marks.end)
        self.reasoning, self._held = self.reasoning + text[:n], text[n:]
        return ""

    def _skip(self, text: str) -> str:
        """Skip white space after the reasoning, and the answer mark, which some models write before the content.
        Returns the text after them."""
        text = text.lstrip()
        if self._answer and text.startswith(self._answer):
            text, self._answer = text[len(self._answer) :], ""
            self.marks_end = self._n_fed - len(text)
            text = text.lstrip()
        if text and self._answer.startswith(text):
            self._held = text
            return ""
        if text:
            self._place, self.content_start = "content", self._n_fed - len(text)
        return text

    def _answered(self, text: str) -> str:
        """The part of the text that is certain to be content, without white space at its end."""
        content, found, _ = text.partition(self._marks.close) if self._marks.close else (text, "", "")
        if found:
            self._place = "closed"
            return content.rstrip()
        content = text[: len(text) - overlap(text, self._marks.close)].rstrip()
        self._held = text[len(content) :]
        return content


def overlap(text: str, mark: str) -> int:
    """The length of the longest suffix of `text` that is a prefix of `mark`, but not all of `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
