"""Compiles regexes and choices with outlines_core into automata over bytes.

outlines_core builds one kind of index: of a regex over a vocabulary. With the 256 bytes as the vocabulary, the index is
a plain, small DFA. Version 0.2.14 needs two workarounds. First, it takes the first match that it finds, and so loses
the longer of two alternatives. If the pattern ends in `\\z`, only a match of the whole text counts. Second, it drops
everything after a matching state, and it also builds an automaton for matches at any position, which can be huge. So
the pattern begins with a marker character that nothing else in the pattern can match, and our automaton starts after
the marker.
"""

from __future__ import annotations

import json
import re

import numpy as np
import numpy.typing as npt
import outlines_core

from banyan.runtime.errors import ConstraintTooLarge, ConstraintUnsupported
from banyan.runtime.protocol.wire import ConstraintSpec

STATES = 4096
"""Limit of an automaton's states."""
_END = 256
_MARKER, _NO_MARKER = r"\x{10FFFF}", r"[^\x{10FFFF}]"
_DIGITS = {r"\d": "[0-9]", r"\D": f"[[^0-9]&&{_NO_MARKER}]"}
"""ASCII digits only, as in llguidance."""
_GROUP = re.compile(r"\((?:\?(?::|P?<\w+>|i:))?(?!\?)")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|[xuU](?:\{[0-9A-Fa-f]+\}|[0-9A-Fa-f]+)|[^0-9A-Za-z]|[dDwWsSntrfav])")

Transitions = npt.NDArray[np.int32]
"""[n_states, 256]: the state after each byte, -1 if the byte is not allowed. State 0 is the start."""
Finals = npt.NDArray[np.bool_]
"""[n_states]: whether the bytes that lead to the state are a complete match."""


def build_automaton(spec: ConstraintSpec) -> tuple[Transitions, Finals]:
    """Compile a regex or choices. Raises ConstraintUnsupported for a pattern that needs llguidance, and
    ConstraintTooLarge for an automaton of more than STATES states."""
    pattern = _choices(spec.text) if spec.kind == "choices" else _without_marker(spec.text)
    alphabet = outlines_core.Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})
    try:
        index = outlines_core.Index(f"{_MARKER}(?:{pattern})\\z", alphabet)
    except ValueError as e:
        raise ConstraintUnsupported(f"outlines_core does not take the {spec.kind}: {str(e)[:200]}") from None
    start = index.get_initial_state()
    for byte in "\U0010ffff".encode():
        start = index.get_next_state(start, byte)
    return _tables(-1 if start is None else start, index.get_transitions(), set(index.get_final_states()))


def _tables(start: int, steps: dict[int, dict[int, int]], finals: set[int]) -> tuple[Transitions, Finals]:
    """The tables of an automaton. Contains only states that `start` can reach and from which a final state can be
    reached. Raises ConstraintTooLarge if these are more than STATES. steps: state -> byte -> next state."""
    before: dict[int, list[int]] = {}
    for state, row in steps.items():
        for token, after in row.items():
            if token != _END:
                before.setdefault(after, []).append(state)
    live, queue = set(finals), list(finals)
    while queue:
        new = [state for state in before.get(queue.pop(), ()) if state not in live]
        live.update(new)
        queue += new
    number, order = {start: 0}, [start]
    for state in order:
        for token, after in steps.get(state, {}).items():
            if token != _END and after in live and after not in number:
                number[after] = len(order)
                order.append(after)
    if len(order) > STATES:
        raise ConstraintTooLarge(f"the automaton has {len(order)} states; the limit is {STATES}")
    table = np.full((len(order), 256), -1, np.int32)
    for state in order:
        for token, after in steps.get(state, {}).items():
            if token != _END and after in number:
                table[number[state], token] = number[after]
    return table, np.array([state in finals for state in order])


def _choices(text: str) -> str:
    return "|".join(re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", choice) for choice in json.loads(text))


def _without_marker(pattern: str) -> str:
    """Rewrites a regex so that no part of it can match _MARKER (U+10FFFF), and removes an outer ^ and $. Raises
    ConstraintUnsupported for regex syntax to which outlines_core might give another meaning."""
    begins, ends = pattern[:1] == "^", re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
    if (begins or ends) and "|" in pattern:
        raise ConstraintUnsupported("outlines_core: an anchor next to alternatives is not supported")
    at, end, out = int(begins), len(pattern) - int(ends), list[str]()
    if pattern.startswith("(?i)", at):
        out.append("(?i)")
        at += 4
    while at < end:
        found = pattern[at]
        if found == "[":
            found = pattern[at : _class_end(pattern, at)]
            out.append(f"[{_ascii_digits(found)}&&{_NO_MARKER}]")
        elif found == "\\":
            found = _match(_ESCAPE, pattern, at)
            out.append(f"[{found}&&{_NO_MARKER}]" if found[1] in "WSpP" else _DIGITS.get(found, found))
        elif found == "(":
            found = _match(_GROUP, pattern, at)
            out.append(found)
        elif found in "^$":
            raise ConstraintUnsupported(f"outlines_core: an anchor in the middle of {pattern[:100]!r} is not supported")
        else:
            out.append(r"[^\n\x{10FFFF}]" if found == "." else found)
        at += len(found)
    if "10ffff" in pattern.lower() or "\U0010ffff" in pattern:
        raise ConstraintUnsupported("outlines_core: U+10FFFF in a pattern is not supported")
    return "".join(out)


def _ascii_digits(text: str) -> str:
    return re.sub(r"\\.", lambda escape: _DIGITS.get(escape[0], escape[0]), text, flags=re.DOTALL)


def _match(kind: re.Pattern[str], pattern: str, at: int) -> str:
    if (found := kind.match(pattern, at)) is None:
        raise ConstraintUnsupported(f"outlines_core: {pattern[at : at + 10]!r} in a pattern is not supported")
    return found[0]


def _class_end(pattern: str, at: int) -> int:
    """The index after the character class that begins at `at`."""
    if re.compile(r"\[\^?\]").match(pattern, at):
        raise ConstraintUnsupported("outlines_core: a character class that begins with ] is not supported")
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        else:
            depth += {"[": 1, "]": -1}.get(pattern[at], 0)
        at += 1
        if depth == 0:
            return at
    raise ConstraintUnsupported("outlines_core: a character class is not closed")
