"""What a model thinks and what it says: an output with both, told apart as it comes."""

from __future__ import annotations

from typing import Literal

from banyan.runtime.protocol.wire import Reasoning


class Thoughts:
    """One output, fed piece by piece. `is_open`: it begins inside the thinking, without a mark that says so.

    The thinking is what stands between the marks, if the output begins with the first of them; all the rest is what the
    model says. White space around the two is neither's. Without the second mark all that was begun is thinking.

    reasoning   what it thought
    start       the character of the output at which it begins to speak
    n_said      characters that it says from there on
    """

    def __init__(self, marks: Reasoning, is_open: bool = False) -> None:
        self._marks, self._is_inside = marks, marks.is_forced or is_open
        self._place: Literal["lead", "thought", "gap", "speech", "all"] = "lead"
        self._held = ""  # may be the beginning of a mark, or white space behind the last word
        self._n_fed = self._n_told = 0
        self.reasoning = ""
        self.start = self.n_said = 0

    def thought(self) -> str:
        """What it thinks for certain, since this was asked last."""
        certain = self.reasoning.strip() if self._place in ("lead", "thought") else self.reasoning
        new, self._n_told = certain[self._n_told :], len(certain)
        return new

    def feed(self, text: str) -> str:
        """Take text; what of it the model says for certain."""
        self._n_fed += len(text)
        text, self._held = self._held + text, ""
        if self._place == "lead":
            text = self._lead(text)
        if self._place == "thought":
            text = self._think(text)
        if self._place == "gap" and (text := text.lstrip()):
            self._place, self.start = "speech", self._n_fed - len(text)
        if self._place == "speech":
            said = text.rstrip()
            said, self._held = (said, text[len(said) :]) if said else ("", text)
        else:
            said = text if self._place == "all" else ""
        self.n_said += len(said)
        return said

    def finish(self) -> str:
        """The output ends; the rest of what the model says."""
        rest, self._held = self._held, ""
        if self._place == "lead" and not self._is_inside:
            self._place, self.n_said = "all", len(rest)
            return rest
        if self._place in ("lead", "thought"):
            self.reasoning = (self.reasoning + rest).strip()
        if self._place != "speech" and self._place != "all":
            self.start = self._n_fed
        return ""

    def _lead(self, text: str) -> str:
        """Whether it begins with thinking; what is left of the text then."""
        stripped, start = text.lstrip(), self._marks.start
        if stripped.startswith(start):
            self._place = "thought"
            return stripped[len(start) :]
        if start.startswith(stripped):
            self._held = text
            return ""
        self._place = "thought" if self._is_inside else "all"
        return text

    def _think(self, text: str) -> str:
        thought, found, rest = text.partition(self._marks.end)
        if found:
            self._place, self.reasoning = "gap", (self.reasoning + thought).lstrip()
            return rest
        n = len(text) - overlap(text, self._marks.end)
        self.reasoning, self._held = self.reasoning + text[:n], text[n:]
        return ""


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that begins `mark`, and is not all of it."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
