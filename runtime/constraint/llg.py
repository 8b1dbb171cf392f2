"""Constraints compiled by llguidance, which computes masks by walking a token trie with an Earley parser over a
derivative-based lexer.

llguidance is one of Outlines' backends, and the only one that accepted no invalid instance of some 3,000 real JSON
Schemas. Its matchers work on bytes, so tokens that split characters are handled; they can roll back; and they know
which canonical tokens are forced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import llguidance

from banyan.runtime.constraint import lark
from banyan.runtime.constraint.guide import Guide, Row, clear_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import (
    ConstraintCrashed,
    ConstraintError,
    ConstraintSyntax,
    ConstraintTooLarge,
    ConstraintUnsatisfiable,
    ConstraintUnsupported,
)
from banyan.runtime.protocol.wire import ConstraintSpec

_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=20_000, max_lexer_states=50_000, max_grammar_size=2_000_000, verbose_errors=False
)
_STYLES: dict[str, dict[str, Any]] = {
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "either": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    "any": {"whitespace_pattern": r"[ \t\n\r]{0,40}"},  # bounded, so that a model cannot emit whitespace forever
}
_SCALARS = ("string", "integer", "number", "boolean", "null")
_WHITESPACE = r"/[ \t\r\n]{0,4}/"
"""The whitespace that is allowed between a trigger and its value."""
_KINDS = {"regex": "regex", "json_schema": "JSON Schema", "grammar": "grammar", "choices": "list of choices"}
_MAX_QUOTE = 200  # maximum number of characters of a compiler's message that an error repeats


class LlgConstraint:
    """A constraint compiled by llguidance: a matcher with filled caches, which each guide copies (0.7 us).

    All copies share a lexer. It adds states for the texts that it sees and never frees any, so after enough outputs it
    reaches a limit, and then fails in every copy. The constraint is spent then.
    """

    n_bytes = 1 << 20  # measured: 0.1 to 0.7 MB at 128k tokens, after few outputs; 16 to 20 MB with a full lexer

    def __init__(self, spec: ConstraintSpec, vocabulary: Vocabulary) -> None:
        """Raises a ConstraintError that says why the spec cannot be compiled. Releases the GIL while it compiles."""
        self.is_spent = False
        self._eos = vocabulary.llg.eos_tokens
        self._matcher = llguidance.LLMatcher(vocabulary.llg, _grammar(spec, vocabulary), log_level=0, limits=_LIMITS)
        if not self._matcher.is_error():
            self._matcher.compute_bitmask()  # fills lexer caches that all copies share
        if self._matcher.is_error():
            raise _explain(self._matcher.get_error(), spec)

    def guide(self) -> LlgGuide:
        return LlgGuide(self, self._matcher.deep_copy(), self._eos)


class LlgGuide(Guide):
    """A guide over its own copy of llguidance's matcher.

    Drafters, the scheduler, masks and commits each accept the same tokens and then roll them back, so both must be
    cheap. A rollback only moves the guide's position. The matcher is moved to this position only when it is needed for
    an answer that is not cached. Tokens that it accepted before are not checked again. Forced tokens, which take 5 to
    20 us to compute, are cached per position.
    """

    def __init__(self, constraint: LlgConstraint, matcher: llguidance.LLMatcher, eos: Sequence[int]) -> None:
        self._constraint, self._matcher, self._ends = constraint, matcher, eos
        self._path: list[int] = []  # accepted tokens, then the tokens of the last rollback
        self._at = 0  # tokens of the path that are accepted now
        self._n_in = 0  # tokens of the path that the matcher has consumed
        self._forced: dict[int, list[int]] = {}  # position -> forced tokens there
        self._given_up = ""

    @property
    def can_stop(self) -> bool:
        return bool(self._synced().is_accepting())

    @property
    def must_stop(self) -> bool:
        return bool(self._synced().is_stopped()) and self.can_stop

    @property
    def error(self) -> str:
        if self._given_up or not self._matcher.is_error():
            return self._given_up
        error = str(self._matcher.get_error())
        self._constraint.is_spent |= error.startswith("lexer error")
        return error.partition("\n")[0][:_MAX_QUOTE]

    def give_up(self, why: str) -> None:
        self._given_up = why

    def fill(self, out: Row) -> None:
        self._synced().unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        clear_bits(out, self._ends)  # type: ignore[arg-type]  # a list here

    def accept(self, tokens: Sequence[int]) -> int:
        path, cached, start = self._path, self._forced, self._at
        for token in tokens:
            at = self._at
            forced = cached.get(at)
            if at < len(path) and path[at] == token:
                self._at += 1
            elif not self._consume(token):
                break
            if forced and len(forced) > 1 and forced[0] == token:
                cached[at + 1] = forced[1:]
        return self._at - start

    def rollback(self, n: int) -> None:
        if n > self._at:
            raise IndexError(f"cannot roll back {n} tokens: only {self._at} were accepted")
        self._at -= n

    def forced_tokens(self, limit: int) -> list[int]:
        forced = self._forced.get(self._at)
        if forced is None:
            forced = self._forced[self._at] = self._synced().compute_ff_tokens()
        return forced[:limit]

    def find_failure(self) -> None:
        self._synced().compute_bitmask()  # a lexer that failed in another copy refuses tokens without an error

    def _synced(self) -> llguidance.LLMatcher:
        """The matcher, moved to this guide's position."""
        n = self._n_in - self._at
        if n > 0:
            self._matcher.rollback(n)
        elif n < 0:
            self._matcher.try_consume_tokens(self._path[self._n_in : self._at])
        self._n_in = self._at
        return self._matcher

    def _consume(self, token: int) -> bool:
        """Accept a token that is not the next token of `_path`. Returns False if it is not allowed."""
        if not self._synced().try_consume_tokens([token]):
            return False
        at = self._at
        if at < len(self._path):
            for position in range(at + 1, len(self._path) + 1):
                self._forced.pop(position, None)
            del self._path[at:]
        self._path.append(token)
        self._at = self._n_in = at + 1
        if not self._matcher.compute_ff_bytes():  # cheap; only forced bytes can make forced tokens
            self._forced[at + 1] = []
        return True


def _grammar(spec: ConstraintSpec, vocabulary: Vocabulary) -> str:
    """llguidance's grammar for a canonical spec, as JSON."""
    value, *parts = _values(spec)
    if spec.after or spec.end:
        end = [json.dumps(part) if isinstance(part, str) else f"<[{part}]>" for part in vocabulary.split(spec.end)]
        start = f"start: {_WHITESPACE if spec.after else ''} @value {' '.join(end)}"
        parts = [{"name": "value"} | value, *parts]
        value = {"lark_grammar": start}
    return json.dumps({"grammars": [value, *parts]})


def _values(spec: ConstraintSpec) -> list[dict[str, Any]]:
    """The grammar of the value, and the named grammars that it refers to."""

    def styled(schema: dict[str, Any], style: str = spec.style) -> dict[str, Any]:
        escapes = {"json_allow_general_unicode_escapes": True} | schema.get("x-guidance", {})
        return schema | {"x-guidance": _STYLES[style] | escapes}

    match spec.kind:
        case "json_schema":
            schema = json.loads(spec.text)
            if spec.style != "either" or schema.get("type") in _SCALARS:
                return [{"json_schema": styled(schema)}]
            # Two grammars, one per style: the first separator decides which one applies, so all later ones are forced.
            parts = [{"name": name, "json_schema": styled(schema, name)} for name in ("spaced", "compact")]
            return [{"lark_grammar": "start: @spaced | @compact"}, *parts]
        case "regex":
            return [{"lark_grammar": f"start: /{llguidance.regex_to_lark(spec.text, 'd')}/"}]
        case "choices":
            return [{"lark_grammar": "start: " + " | ".join(map(json.dumps, json.loads(spec.text)))}]
        case "grammar":
            pieces = [part if isinstance(part, str) else styled(part) for part in lark.split(spec.text)]
            return [{"lark_grammar": lark.join(pieces)}]


def _explain(message: str, spec: ConstraintSpec) -> ConstraintError:
    """Translates llguidance's error message into an error for the user who wrote the spec."""
    name, first = _KINDS[spec.kind], message.partition("\n")[0].strip()
    if first.startswith("panic: "):  # llguidance catches panics of its matchers itself
        return ConstraintCrashed(f"the {name} could not be compiled: its compiler panicked: {first[7:][:_MAX_QUOTE]}")
    if re.search(r"look-?(around|ahead|behind)|backreference", message):
        return ConstraintUnsupported(
            r"regex look-around, back-references, \b, and ^ or $ in the middle of a pattern are not supported"
            + _position(message)
        )
    if "regex parse error" in message:
        reason = re.search(r"^error: (.*)", message, re.MULTILINE)
        return ConstraintSyntax(f"invalid regex: {reason[1] if reason else first}{_position(message)}")
    if first.startswith("Unsatisfiable"):
        why = first.partition(": ")[2]
        if why.startswith("Regex is empty"):
            why = "a string's pattern, format, length and values exclude each other"
        elif why == "anyOf is empty":
            why = "an enum or a list of alternatives is empty"
        elif why == "incompatible types":
            why = "the types and values that its parts allow exclude each other"
        return ConstraintUnsatisfiable(f"no value can satisfy the constraint: {why[:_MAX_QUOTE]}")
    if first == "NoExtensionBias" and spec.kind == "regex":
        return ConstraintUnsatisfiable("no text can match the regex: a part of it that must match allows no character")
    if first == "NoExtensionBias":
        return ConstraintSyntax(f"invalid {name}: a rule leads to nothing but itself")
    if found := re.match(r"patternProperty regexes (.*) are not disjoint", first):
        why = f"patterns of patternProperties that may match the same name ({found[1][:_MAX_QUOTE]})"
        return ConstraintUnsupported(f"{why} are not supported")
    if found := re.match(r"(?:Unimplemented keys?|Unknown format): (.*)", first):
        return ConstraintUnsupported(f"{found[1][:_MAX_QUOTE]} is not supported in a JSON Schema")
    if re.search(r"only supported|not supported|unsupported|Failed to generate", first):
        return ConstraintUnsupported(f"the {name} cannot be enforced: {first[:_MAX_QUOTE]}")
    if re.search(r"too (many|large|complex|big)|limit|fuel|exceed", first):
        return ConstraintTooLarge(f"the {name} is too complex: {first[:_MAX_QUOTE]}")
    return ConstraintSyntax(f"invalid {name}: {first[:_MAX_QUOTE]}")


def _position(message: str) -> str:
    """The offending pattern and the offset in it, if the compiler's message shows them."""
    if found := re.search(r"regex parse error:\n( +)(\S.*)\n( +)\^", message):
        return f" at offset {len(found[3]) - len(found[1])} of {found[2][:_MAX_QUOTE]!r}"
    if found := re.search(r"in regex /(.*)/", message):
        return f" ({found[1][:_MAX_QUOTE]!r})"
    return ""
