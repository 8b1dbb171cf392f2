"""From what outlines can express to the one form that crosses the wire.

outlines is loaded here and nowhere else, and only when a type needs it: it takes longer than all of `import banyan`.
"""

from __future__ import annotations

import json
from typing import Any, is_typeddict

import msgspec

from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge, ConstraintUnsupported
from banyan.runtime.protocol.wire import ConstraintSpec


def to_spec(kind: Any) -> ConstraintSpec:
    """The constraint that a type, a schema or one of outlines' terms stands for.

    str: a regex. dict: a JSON Schema. msgspec.Struct, dataclass, TypedDict, pydantic model, callable (its arguments),
    genson builder: JSON. Literal, Enum, Choice: one of some strings. Regex, CFG and what outlines' regex language puts
    together (either, optional, between ...), also around JSON schemas: as they say. int, float, bool, dates, list,
    tuple, dict, Union of these: written as Python writes them, which is what outlines does with them.

    Raises a ConstraintError for what cannot be a constraint.
    """
    if isinstance(kind, ConstraintSpec):
        return kind
    if isinstance(kind, str):
        return ConstraintSpec("regex", kind)
    if isinstance(kind, dict):
        return _json(kind)
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return _json(msgspec.json.schema(kind))  # pydantic, which outlines asks, knows neither on every Python
    return _of_term(_term(kind), kind)


def _json(schema: Any) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps(schema, ensure_ascii=False))


def _term(kind: Any) -> Any:
    import jsonschema
    from outlines.types import dsl

    try:
        return dsl.python_types_to_terms(kind)
    except jsonschema.SchemaError as e:
        raise ConstraintSyntax(f"invalid JSON Schema: {e.message} at {e.json_path}") from e
    except RecursionError as e:
        raise ConstraintTooLarge(f"the type {_name(kind)} is nested too deeply") from e
    except (TypeError, ValueError) as e:
        raise ConstraintUnsupported(f"output type {_name(kind)} is not supported: outlines has no term for it") from e


def _of_term(term: Any, kind: Any) -> ConstraintSpec:
    from outlines.types import dsl

    match term:
        case dsl.JsonSchema():
            _check_spacing(term)
            return ConstraintSpec("json_schema", term.schema)
        case dsl.CFG():
            return ConstraintSpec("grammar", term.definition)
        case dsl.Choice() | dsl.Alternatives() | dsl.String() if (choices := _strings(term)) is not None:
            return ConstraintSpec("choices", json.dumps(choices, ensure_ascii=False))
    held = {type(one) for one in _walk(term)}
    if dsl.CFG in held:
        raise ConstraintUnsupported(f"output type {_name(kind)} is not supported: a grammar inside another term")
    if dsl.JsonSchema in held:
        return ConstraintSpec("grammar", f"start: {_lark(term)}")
    return ConstraintSpec("regex", dsl.to_regex(term))


def _walk(term: Any) -> list[Any]:
    """The term and all terms below it."""
    found = [term]
    for one in found:
        found += _below(one)
    return found


def _below(term: Any) -> list[Any]:
    from outlines.types import dsl

    if isinstance(term, dsl.Choice):
        return [_term(item) for item in term.items]
    return [*getattr(term, "terms", ()), *([term.term] if hasattr(term, "term") else [])]


def _strings(term: Any) -> list[str] | None:
    """What a term of plain strings chooses from; None for any other."""
    from outlines.types import dsl

    if isinstance(term, dsl.String):
        return [term.value]
    if not isinstance(term, dsl.Choice | dsl.Alternatives):
        return None
    below = [_strings(one) for one in _below(term)]
    return None if None in below else [value for values in below if values for value in values]


def _lark(term: Any) -> str:
    """A term that holds JSON schemas, as the right side of a rule."""
    from outlines.types import dsl

    match term:
        case dsl.String():
            return json.dumps(term.value) if term.value else '""'
        case dsl.JsonSchema():
            _check_spacing(term)
            return f"%json {json.dumps(json.loads(term.schema))}"
        case dsl.Alternatives() | dsl.Choice():
            return f"({' | '.join(map(_lark, _below(term)))})"
        case dsl.Sequence():
            return f"({' '.join(map(_lark, term.terms))})"
        case dsl.Optional():
            return f"({_lark(term.term)})?"
        case dsl.KleeneStar():
            return f"({_lark(term.term)})*"
        case dsl.KleenePlus():
            return f"({_lark(term.term)})+"
        case dsl.QuantifyExact():
            return f"({_lark(term.term)}){{{term.count}}}"
        case dsl.QuantifyMinimum():
            return f"({_lark(term.term)}){{{term.min_count},}}"
        case dsl.QuantifyMaximum():
            return f"({_lark(term.term)}){{0,{term.max_count}}}"
        case dsl.QuantifyBetween():
            return f"({_lark(term.term)}){{{term.min_count},{term.max_count}}}"
    pattern = dsl.to_regex(term).replace("\n", r"\n").replace(r"\/", "/").replace("/", r"\/")
    return f"/{pattern}/"


def _check_spacing(term: Any) -> None:
    if term.whitespace_pattern is not None:
        raise ConstraintUnsupported(
            "JsonSchema(whitespace_pattern=...) is not supported; JSON is spaced as its style says"
        )


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)[:80]
