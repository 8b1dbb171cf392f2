"""Constraints through llguidance: a lexer of derivatives under an Earley parser, masks by walking the token trie.

It is outlines' own third backend, and of the three the only one that never accepted an invalid instance of some 3,000
real JSON Schemas. Its matchers work on bytes, so tokens that split characters are right; they give back what they took;
they know which canonical tokens are forced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llguidance

from banyan.runtime.constraint import lark
from banyan.runtime.constraint.guide import Row, Rows, clear_bits, fill_chain, fill_tree, take
from banyan.runtime.constraint.refusal import explain
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.protocol.wire import ConstraintSpec

_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000, max_lexer_states=50_000, verbose_errors=False)
_STYLES: dict[str, dict[str, Any]] = {
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "flexible": {"whitespace_pattern": r"[ \t\n\r]{0,40}"},  # bounded: endless space is a way to never finish
}
_LEAD = r"/[ \t\r\n]{0,4}/"
"""What may stand between a trigger and its value."""


class Matcher:
    """A compiled constraint: a warm matcher, of which every output gets a copy (0.7 us)."""

    n_bytes = 1 << 20  # measured: 0.1 to 0.7 MB at 128k tokens

    def __init__(self, spec: ConstraintSpec, vocabulary: Vocabulary) -> None:
        """Raises a ConstraintError that says why not. Lets other threads run meanwhile."""
        self._eos = vocabulary.llg.eos_tokens
        self._matcher = llguidance.LLMatcher(vocabulary.llg, grammar(spec, vocabulary), log_level=0, limits=_LIMITS)
        if not self._matcher.is_error():
            self._matcher.compute_bitmask()  # what its lexer learns here, no copy has to learn again
        if self._matcher.is_error():
            raise explain(self._matcher.get_error(), spec)

    def guide(self) -> LlgGuide:
        return LlgGuide(self._matcher.deep_copy(), self._eos)


class LlgGuide:
    """See `guide.Guide`.

    Tokens of one place are walked by who drafts, who fits the draft, who masks and who commits, and taken back three
    times. So the matcher stays behind the last token that it took, and goes back or on when it is asked something that
    is not known: what it took once is not taken again, and what is forced (5 to 20 us) is kept of each place.
    """

    def __init__(self, matcher: llguidance.LLMatcher, eos: Sequence[int]) -> None:
        self._matcher, self._eos = matcher, eos
        self._path: list[int] = []  # tokens that were accepted, and of those taken back the last that were
        self._at = self._n_in = 0  # of them, how many are before the place where it stands; and are in the matcher
        self._forced: dict[int, list[int]] = {}  # by the number of tokens before it
        self._given_up = ""

    @property
    def can_stop(self) -> bool:
        return bool(self._here().is_accepting())

    @property
    def must_stop(self) -> bool:
        matcher = self._here()
        return bool(matcher.is_stopped() and matcher.is_accepting())

    @property
    def error(self) -> str:
        if self._given_up or not self._matcher.is_error():
            return self._given_up
        return str(self._matcher.get_error()).partition("\n")[0][:200]

    def give_up(self, why: str) -> None:
        self._given_up = why

    def fill(self, out: Row) -> None:
        self._here().unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        clear_bits(out, self._eos)

    def take(self, tokens: Sequence[int]) -> int:
        return take(self, tokens, self._eos)

    def fill_chain(self, draft: Sequence[int], out: Rows) -> int:
        return fill_chain(self, draft, out)

    def fill_tree(self, parent: Sequence[int], draft: Sequence[int], out: Rows) -> list[bool]:
        return fill_tree(self, parent, draft, out)

    def accept(self, tokens: Sequence[int]) -> int:
        path, known, start = self._path, self._forced, self._at
        for token in tokens:
            at = self._at
            forced = known.get(at)
            if at < len(path) and path[at] == token:
                self._at += 1
            elif not self._go_on(token):
                break
            if forced and len(forced) > 1 and forced[0] == token:
                known[at + 1] = forced[1:]
        return self._at - start

    def rollback(self, n: int) -> None:
        if n > self._at:
            raise IndexError(f"{n} tokens to take back, of {self._at}")
        self._at -= n

    def forced_tokens(self, limit: int) -> list[int]:
        forced = self._forced.get(self._at)
        if forced is None:
            forced = self._forced[self._at] = self._here().compute_ff_tokens()
        return forced[:limit]

    def _here(self) -> llguidance.LLMatcher:
        """The matcher, where the guide stands."""
        n = self._n_in - self._at
        if n > 0:
            self._matcher.rollback(n)
        elif n < 0:
            self._matcher.try_consume_tokens(self._path[self._n_in : self._at])
        self._n_in = self._at
        return self._matcher

    def _go_on(self, token: int) -> bool:
        """By a token that is not the next on the path."""
        if not self._here().try_consume_tokens([token]):
            return False
        at = self._at
        if at < len(self._path):
            for place in range(at + 1, len(self._path) + 1):
                self._forced.pop(place, None)
            del self._path[at:]
        self._path.append(token)
        self._at = self._n_in = at + 1
        if not self._matcher.compute_ff_bytes():  # which takes no time; with some there may be tokens, or none yet
            self._forced[at + 1] = []
        return True


def grammar(spec: ConstraintSpec, vocabulary: Vocabulary) -> str:
    """What llguidance compiles for a spec whose text is canonical."""
    value = _value(spec)
    if not spec.after and not spec.end:
        return json.dumps({"grammars": [value]})
    end = [json.dumps(part) if isinstance(part, str) else f"<[{part}]>" for part in vocabulary.split(spec.end)]
    start = f"start: {_LEAD if spec.after else ''} @value {' '.join(end)}"
    return json.dumps({"grammars": [{"lark_grammar": start}, {"name": "value"} | value]})


def _value(spec: ConstraintSpec) -> dict[str, Any]:
    match spec.kind:
        case "json_schema":
            return {"json_schema": _styled(json.loads(spec.text), spec)}
        case "regex":
            return {"lark_grammar": f"start: /{llguidance.regex_to_lark(spec.text, 'd')}/"}
        case "choices":
            return {"lark_grammar": "start: " + " | ".join(map(json.dumps, json.loads(spec.text)))}
        case "grammar":
            parts = [part if isinstance(part, str) else _styled(part, spec) for part in lark.split(spec.text)]
            return {"lark_grammar": lark.join(parts)}


def _styled(schema: dict[str, Any], spec: ConstraintSpec) -> dict[str, Any]:
    return schema | {"x-guidance": _STYLES[spec.style]}
