"""Regexes and choices as automata over bytes, made by outlines_core: the second engine, for who asks for it.

outlines_core knows one kind of index: a regex over a vocabulary. Over a vocabulary of the 256 bytes it is a plain
automaton, and small. Two things have to be put right on the way (version 0.2.14). It looks for the first match of an
unanchored search, which loses the longer of two alternatives: so the pattern ends in `\\z`. And it drops what lies
behind a state that matches, and builds the unanchored automaton too, which explodes: so the pattern begins with a
character that nothing in it can match, and the automaton begins behind that one.
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
_END = 256
_MARK, _NO_MARK = r"\x{10FFFF}", r"[^\x{10FFFF}]"
_DIGITS = {r"\d": "[0-9]", r"\D": f"[[^0-9]&&{_NO_MARK}]"}
"""As the other engine has them: ASCII's."""
_GROUP = re.compile(r"\((?:\?(?::|P?<\w+>|i:))?(?!\?)")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|[xuU](?:\{[0-9A-Fa-f]+\}|[0-9A-Fa-f]+)|[^0-9A-Za-z]|[dDwWsSntrfav])")


class Automaton:
    """next: int32 [n_states, 256], the state behind each byte, -1 for none. final: bool [n_states]. It begins in 0."""

    def __init__(self, spec: ConstraintSpec) -> None:
        """Raises ConstraintUnsupported for a pattern that only the other engine can take, ConstraintTooLarge."""
        pattern = _choices(spec.text) if spec.kind == "choices" else _marked(spec.text)
        alphabet = outlines_core.Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})
        try:
            index = outlines_core.Index(f"{_MARK}(?:{pattern})\\z", alphabet)
        except ValueError as e:
            raise ConstraintUnsupported(f"outlines_core does not take the {spec.kind}: {str(e)[:200]}") from None
        start = index.get_initial_state()
        for byte in "\U0010ffff".encode():
            start = index.get_next_state(start, byte)
        dead = -1  # where no byte leads anywhere
        self.next, self.final = _table(
            dead if start is None else start, index.get_transitions(), index.get_final_states()
        )


def _table(
    start: int, steps: dict[int, dict[int, int]], finals: set[int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """What is reachable from `start` and can come to an end."""
    live, todo = set(finals), list(finals)
    before: dict[int, list[int]] = {}
    for state, row in steps.items():
        for token, after in row.items():
            if token != _END:
                before.setdefault(after, []).append(state)
    while todo:
        new = [state for state in before.get(todo.pop(), ()) if state not in live]
        live.update(new)
        todo += new
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
    return "|".join(re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", one) for one in json.loads(text))


def _marked(pattern: str) -> str:
    """The pattern, where nothing matches the mark. ConstraintUnsupported: it is not sure to mean the same."""
    begins, ends = pattern[:1] == "^", re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
    if (begins or ends) and "|" in pattern:
        raise ConstraintUnsupported("an anchor beside alternatives")
    at, end, out = int(begins), len(pattern) - int(ends), list[str]()
    if pattern.startswith("(?i)", at):
        out.append("(?i)")
        at += 4
    while at < end:
        one = pattern[at]
        if one == "[":
            found = pattern[at : _class_end(pattern, at)]
            out.append(f"[{_ascii_digits(found)}&&{_NO_MARK}]")
        elif one == "\\":
            found = _match(_ESCAPE, pattern, at)
            out.append(f"[{found}&&{_NO_MARK}]" if found[1] in "WSpP" else _DIGITS.get(found, found))
        elif one == "(":
            found = _match(_GROUP, pattern, at)
            out.append(found)
        elif one == ".":
            found = one
            out.append(r"[^\n\x{10FFFF}]")
        elif one in "^$":
            raise ConstraintUnsupported(f"an anchor in the middle of {pattern[:100]!r}")
        else:
            found = one
            out.append(one)
        at += len(found)
    if "10ffff" in pattern.lower() or "\U0010ffff" in pattern:
        raise ConstraintUnsupported("the last code point there is")
    return "".join(out)


def _ascii_digits(text: str) -> str:
    return re.sub(r"\\.", lambda escape: _DIGITS.get(escape[0], escape[0]), text, flags=re.DOTALL)


def _match(kind: re.Pattern[str], pattern: str, at: int) -> str:
    if (found := kind.match(pattern, at)) is None:
        raise ConstraintUnsupported(f"{pattern[at : at + 10]!r} in a pattern of outlines_core")
    return found[0]


def _class_end(pattern: str, at: int) -> int:
    """Behind the class that begins at `at`."""
    if re.compile(r"\[\^?\]").match(pattern, at):
        raise ConstraintUnsupported("a class that begins with ]")
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        else:
            depth += {"[": 1, "]": -1}.get(pattern[at], 0)
        at += 1
        if depth == 0:
            return at
    raise ConstraintUnsupported("a class that does not end")
