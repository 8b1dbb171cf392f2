"""Converts outlines' types to constraints. Only this file imports outlines, which takes seconds to import, so it is
imported when a gen has such a type."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from outlines.types import dsl

from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge, ConstraintUnsupported
from banyan.runtime.protocol.wire import ConstraintSpec


def to_spec(kind: Any) -> ConstraintSpec:
    """The constraint that a term of outlines or a genson builder describes.

    ConstraintError: outlines has no term for `kind`, or the term cannot be used as a constraint.
    """
    term = _term(kind)
    match term:
        case dsl.JsonSchema():
            _check_spacing(term)
            return ConstraintSpec("json_schema", term.schema)
        case dsl.CFG():
            return ConstraintSpec("grammar", term.definition)
        case dsl.Choice() | dsl.Alternatives() | dsl.String() if (choices := _strings(term)) is not None:
            return ConstraintSpec("choices", json.dumps(choices, ensure_ascii=False))
    types = {type(one) for one in _with_subterms(term)}
    if dsl.CFG in types:
        raise ConstraintUnsupported(f"output type {_name(kind)} is not supported: a grammar inside another term")
    if dsl.JsonSchema in types:
        return ConstraintSpec("grammar", f"start: {_lark(term)}")
    return ConstraintSpec("regex", dsl.to_regex(term))


def _term(kind: Any) -> Any:
    try:
        return dsl.python_types_to_terms(kind)
    except jsonschema.SchemaError as e:
        raise ConstraintSyntax(f"invalid JSON Schema: {e.message} at {e.json_path}") from e
    except RecursionError as e:
        raise ConstraintTooLarge(f"the type {_name(kind)} is nested too deeply") from e
    except (TypeError, ValueError) as e:
        raise ConstraintUnsupported(f"output type {_name(kind)} is not supported: outlines has no term for it") from e


def _with_subterms(term: Any) -> list[Any]:
    found = [term]
    for one in found:  # grows while it is iterated
        found += _subterms(one)
    return found


def _subterms(term: Any) -> list[Any]:
    if isinstance(term, dsl.Choice):
        return [_term(item) for item in term.items]
    return [*getattr(term, "terms", ()), *([term.term] if hasattr(term, "term") else [])]


def _strings(term: Any) -> list[str] | None:
    """The strings that a term chooses from; None if the term is not a choice of plain strings."""
    if isinstance(term, dsl.String):
        return [term.value]
    if not isinstance(term, dsl.Choice | dsl.Alternatives):
        return None
    parts = [_strings(one) for one in _subterms(term)]
    return None if None in parts else [value for values in parts if values for value in values]


def _lark(term: Any) -> str:
    """The right side of a Lark rule for a term, which may contain JSON schemas."""
    match term:
        case dsl.String():
            return json.dumps(term.value) if term.value else '""'
        case dsl.JsonSchema():
            _check_spacing(term)
            return f"%json {json.dumps(json.loads(term.schema))}"
        case dsl.Alternatives() | dsl.Choice():
            return f"({' | '.join(map(_lark, _subterms(term)))})"
        case dsl.Sequence():
            return f"({' '.join(map(_lark, term.terms))})"
    if (quantifier := _QUANTIFIERS.get(type(term).__name__)) is not None:
        return f"({_lark(term.term)}){quantifier.format(term)}"
    pattern = dsl.to_regex(term).replace("\n", r"\n").replace(r"\/", "/").replace("/", r"\/")
    return f"/{pattern}/"


_QUANTIFIERS = {
    "Optional": "?",
    "KleeneStar": "*",
    "KleenePlus": "+",
    "QuantifyExact": "{{{0.count}}}",
    "QuantifyMinimum": "{{{0.min_count},}}",
    "QuantifyMaximum": "{{0,{0.max_count}}}",
    "QuantifyBetween": "{{{0.min_count},{0.max_count}}}",
}
"""Class of outlines' dsl -> Lark's quantifier, as a format string that takes the term."""


def _check_spacing(term: Any) -> None:
    if term.whitespace_pattern is not None:
        raise ConstraintUnsupported("JsonSchema(whitespace_pattern=...) is not supported; use gen(whitespace=...)")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)[:80]
