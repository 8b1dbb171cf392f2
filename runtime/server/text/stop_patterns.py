"""The patterns of `stop_regex`, which end an output. They have RE2's syntax.

RE2 takes time linear in the text for every pattern (Cox, "Regular Expression Matching in the Wild", 2010), so no
pattern can block the server's loop. Limits on the size of patterns and on the time of one output bound the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import re2

from banyan.runtime.errors import BadProgram

REACH = 4096
"""Maximum length of a match in characters."""

MAX_PATTERNS, MAX_LENGTH, MAX_STEPS = 16, 1000, 1000
ALLOWANCE, PER_SEARCH = 0.25, 1e-4
"""Seconds of CPU time for the patterns of one output: ALLOWANCE, plus PER_SEARCH for each search. RE2 searches 4,096
characters in 6 us, and in 10 ms at worst for a pattern with MAX_STEPS (one core of an AMD EPYC)."""

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = 4 << 20
_LOOKS_AHEAD = ("$", r"\b", r"\B", r"\z")


@lru_cache(maxsize=32)
def compiled(pattern: str) -> Any:
    """Compile a pattern. BadProgram: the pattern is invalid or too large."""
    if len(pattern) > MAX_LENGTH:
        raise BadProgram(f"a stop_regex has {len(pattern)} characters; the limit is {MAX_LENGTH}")
    try:
        found = re2.compile(pattern, options=_OPTIONS)
    except re2.error as e:
        why = e.args[0].decode(errors="replace") if isinstance(e.args[0], bytes) else str(e)
        raise BadProgram(
            f"stop_regex {pattern[:200]!r} cannot be used: {why}; it must be in RE2's syntax, without look-around and "
            "back-references"
        ) from e
    if found.programsize > MAX_STEPS:
        raise BadProgram(
            f"stop_regex {pattern[:200]!r} has {found.programsize} steps; the limit is {MAX_STEPS}: "
            "use smaller or unbounded repetitions"
        )
    if found.search("") is not None:
        raise BadProgram(f"stop_regex {pattern[:200]!r} matches the empty text, so every output would end at once")
    return found


class Patterns:
    """The patterns of one output. BadProgram: there are too many patterns, or `compiled` refuses a pattern."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if len(patterns) > MAX_PATTERNS:
            raise BadProgram(f"stop_regex has {len(patterns)} patterns; the limit is {MAX_PATTERNS}")
        self._patterns = [(p, compiled(p), any(mark in p for mark in _LOOKS_AHEAD)) for p in dict.fromkeys(patterns)]
        self._seconds_left = ALLOWANCE

    def first_end(self, text: str, n_old: int, is_whole: bool) -> tuple[int, str] | None:
        """Return (end, pattern) of the match that ends first, among those that end after the first `n_old` characters;
        None if there is none. Raises BadProgram if the patterns take too long.

        Each beginning of the text is searched in turn, so the result does not depend on how the text was split into
        pieces. is_whole: whether `text` starts where the output does. If not, its first character cannot be part of a
        match, and only serves as context."""
        started = time.thread_time()
        best: tuple[int, str] | None = None
        for pattern, regex, looks_ahead in self._patterns:
            if not looks_ahead and regex.search(text, not is_whole) is None:
                continue
            for end in range(n_old + 1, (len(text) if best is None else best[0] - 1) + 1):
                if regex.search(text[:end], not is_whole) is not None:
                    best = end, pattern
                    break
        self._seconds_left += PER_SEARCH - (time.thread_time() - started)
        if self._seconds_left < 0:
            raise BadProgram("the patterns of stop_regex take too long to search for; write simpler ones")
        return best
