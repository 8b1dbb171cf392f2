"""Finds stop strings in a text that grows, in one pass for all of them (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from banyan.runtime.errors import BadProgram

MAX_STOPS, MAX_CHARS = 64, 4096
"""Maximum number of stop strings of one gen, and of characters in all of them: building the automaton
then takes at most 2 ms and 1 MiB."""


def check_stops(stops: tuple[str, ...]) -> None:
    """Check the stop strings of a gen. Raises BadProgram if there are too many, if they have too many characters in
    all, or if one is empty."""
    n_chars = sum(map(len, stops))
    if len(stops) > MAX_STOPS or n_chars > MAX_CHARS:
        raise BadProgram(
            f"a gen has {len(stops)} stop strings of {n_chars} characters; the limits are {MAX_STOPS} and {MAX_CHARS}"
        )
    if not all(stops):
        raise BadProgram("a stop string is empty; every output would end at once")


class StopStrings:
    """The automaton of some stop strings. Its states are numbers, starting at START.

    A state stands for the longest suffix of the text that is a prefix of a stop.
    """

    START = 0

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._matched: list[str | None] = [None]  # state -> the longest stop that is complete in it
        for stop in stops:
            state = self.START
            for character in stop:
                state = self._next[state].setdefault(character, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._matched.append(None)
            self._matched[state] = stop
        self._fallback, self._n_begun = [0] * len(self._next), [0] * len(self._next)
        depths = [0] * len(self._next)
        queue = deque([self.START])
        while queue:
            state = queue.popleft()
            fallback = self._fallback[state]
            self._matched[state] = self._matched[state] or self._matched[fallback]
            self._n_begun[state] = depths[state] if self._next[state] else self._n_begun[fallback]
            for character, following in self._next[state].items():
                depths[following] = depths[state] + 1
                self._fallback[following] = self.step(fallback, character) if state else self.START
                queue.append(following)

    def step(self, state: int, character: str) -> int:
        """The state that follows `state` after one more character."""
        while (following := self._next[state].get(character)) is None:
            if state == self.START:
                return state
            state = self._fallback[state]
        return following

    def walk(self, state: int, text: str, search: bool) -> tuple[int, int, str | None]:
        """Feed a text to the automaton, starting at `state`. search: whether to stop at the end of the first stop
        string.

        Returns the last state, the number of characters read, and the longest stop string that ends there; None:
        `search` is False, or no stop string was found."""
        if state == self.START and self._next[state].keys().isdisjoint(text):  # usual, and ten times as fast
            return state, len(text), None
        for n, character in enumerate(text, 1):
            state = self.step(state, character)
            if search and (stop := self._matched[state]) is not None:
                return state, n, stop
        return state, len(text), None

    def n_begun(self, state: int) -> int:
        """Returns how many characters at the end of the text may be the start of a stop string that is not complete
        yet. state: the automaton's state after the text."""
        return self._n_begun[state]


@lru_cache(maxsize=16)
def stop_strings(stops: tuple[str, ...]) -> StopStrings:
    """The automaton of these stops, cached: the samples of a gen, and gens with the same stops, share it."""
    return StopStrings(stops)
