"""JSON schemas and decoders of types that pydantic describes. Only this file imports pydantic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import annotated_types
import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from banyan.runtime.protocol import text_forms

_ENFORCED = (
    *(annotated_types.Gt, annotated_types.Ge, annotated_types.Lt, annotated_types.Le, annotated_types.MultipleOf),
    *(annotated_types.MinLen, annotated_types.MaxLen, annotated_types.Predicate),
)


def check_metadata(metadata: Iterable[Any]) -> None:
    """Check the metadata of a type. TypeError: it contains metadata of annotated_types that pydantic ignores, such as a
    Timezone."""
    for one in _expanded(metadata):
        if isinstance(one, annotated_types.BaseMetadata) and type(one) not in _ENFORCED:
            is_pydantics = type(one).__module__.startswith("pydantic")
            if not is_pydantics and not hasattr(one, "__get_pydantic_core_schema__"):
                raise TypeError(f"pydantic ignores {one!r}; write a validator for it (pydantic.AfterValidator)")


def _expanded(metadata: Iterable[Any]) -> Iterator[Any]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from _expanded(one.metadata)
        elif isinstance(one, annotated_types.GroupedMetadata):
            yield from _expanded(one)
        else:
            yield one


def schema_and_decoder(kind: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    """The JSON schema of a type, and its decoder. TypeError: pydantic cannot describe the type."""
    try:
        adapter: Any = pydantic.TypeAdapter(kind)
        return adapter.json_schema(schema_generator=PatternSchema), adapter.validate_json
    except Exception as e:  # pydantic's errors have no common base
        first_line = str(e).partition("\n")[0]
        raise TypeError(first_line.partition(". Set `arbitrary_types_allowed")[0]) from e  # which gives no JSON schema


def arguments(name: str, fields: dict[str, Any]) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    """Describe the keyword arguments of a function for a model. Returns (the JSON schema of an object with the
    arguments; a function that parses such an object from JSON text).

    The function returns the arguments that are in the text, and raises pydantic's ValidationError if they are invalid.
    name: the function's name. fields: name -> (type, default), or (type, ...) for a required argument. TypeError:
    pydantic cannot describe a type.
    """
    try:
        model: Any = pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=PatternSchema)
    except Exception as e:  # pydantic's errors have no common base
        raise TypeError(str(e)) from e

    def parse(text: str) -> dict[str, Any]:
        values: pydantic.BaseModel = model.model_validate_json(text)
        return {key: getattr(values, key) for key in values.model_fields_set}

    return schema, parse


def describe(description: str) -> Any:
    """Metadata for `Annotated` that only describes the value."""
    return pydantic.Field(description=description)


_SCHEMA_FUNCTIONS = ("pydantic_js_functions", "pydantic_js_annotation_functions")


class PatternSchema(GenerateJsonSchema):
    """Writes stricter schemas than pydantic's own. Types written as strings, such as dates, get a pattern where
    pydantic writes a format or no restriction. The tag of a discriminated union is required even if it has a default,
    because pydantic needs the tag to read a value."""

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        written: dict[str, Any] = super().generate(schema, mode)
        _require_tags(written, written.get("$defs", {}))
        return written

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        """Anchors the pattern of a term of outlines: the term accepts only texts that match as a whole, but writes its
        pattern without ^ and $."""
        written: dict[str, Any] = super().generate_inner(schema)
        metadata = schema.get("metadata") or {}
        # the term is the type itself in the first list, and stands in Annotated[str, term] in the second
        authors = [one for key in _SCHEMA_FUNCTIONS for one in metadata.get(key, ())]
        if "pattern" in written and any(str(getattr(one, "__module__", "")).startswith("outlines.") for one in authors):
            written["pattern"] = f"^(?:{written['pattern']})$"
        return written

    def _get_alias_name(self, field: Any, name: str) -> str:
        """The name of a field in JSON. TypeError: the field has no name of its own in JSON, because pydantic reads its
        value from inside another field (AliasPath)."""
        if isinstance(aliases := field.get("validation_alias"), list):
            paths = aliases if isinstance(aliases[0], list) else [aliases]
            if min(map(len, paths)) > 1 and not self._config.validate_by_name:
                raise TypeError(
                    f"the field {name!r} is read from AliasPath{tuple(paths[0])}; write a model for that path"
                )
            field = field | {"validation_alias": paths}
        found: str = super()._get_alias_name(field, name)
        return found

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        written: dict[str, Any] = super().bytes_schema(schema)
        if "max_length" in schema:  # counts bytes; only in ASCII is a byte a character
            written["allOf"] = [{"pattern": f"^{_ASCII}*$"}]
        return written

    def complex_schema(self, schema: Any) -> dict[str, Any]:
        return _string(text_forms.COMPLEX)

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        return _string(text_forms.date_time(_has_zone(schema)))

    def time_schema(self, schema: Any) -> dict[str, Any]:
        return _string(text_forms.time(_has_zone(schema)))

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Writes the schema of a decimal: a string, because pydantic would read a number through a float and lose
        digits.

        The pattern limits the number of digits. If no value may be negative, it also excludes the sign. All other
        bounds are checked when the text is parsed.
        """
        pattern = text_forms.decimal(schema.get("max_digits"), schema.get("decimal_places"))
        is_signed = max(schema.get("ge", -1), schema.get("gt", -1)) < 0
        return _string(pattern if is_signed else pattern.removeprefix("-?"))

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """Adds a schema of the keys. TypeError: pydantic cannot read keys of this type from strings."""
        written: dict[str, Any] = super().dict_schema(schema)
        keys: dict[str, Any] = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        options = [
            (self.get_schema_from_definitions(one["$ref"]) or {}) if "$ref" in one else one
            for one in keys.get("anyOf", [keys])
        ]
        if not any(map(_is_name, options)):
            raise TypeError("the keys of a dict must be str; if the keys are known, write a TypedDict")
        names = [_names(one) for one in options if _is_name(one)]
        if len(names) > 1 and all(names):
            written["propertyNames"] = {"pattern": f"^(?:{'|'.join(_name_pattern(one) for one in names if one)})$"}
        elif len(names) == 1 and names[0]:
            written["propertyNames"] = names[0]
        return written

    def str_schema(self, schema: Any) -> dict[str, Any]:
        written: dict[str, Any] = super().str_schema(schema)
        if isinstance(pattern := schema.get("pattern"), re.Pattern):  # pydantic would leave out its flags
            written["pattern"] = text_forms.with_flags(pattern)
        return written

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        """Writes "anyOf" for a union whose tag is computed by a function. A value may match several types of the union,
        which "oneOf" forbids. The function chooses the type when the text is parsed."""
        written: dict[str, Any] = super().tagged_union_schema(schema)
        if callable(schema["discriminator"]):
            written["anyOf"] = written.pop("oneOf")
        return written

    def url_schema(self, schema: Any) -> dict[str, Any]:
        written: dict[str, Any] = super().url_schema(schema)
        if schemes := _WEB.intersection(schema.get("allowed_schemes") or ()):
            del written["format"]
            host = f"(?:{'|'.join(sorted(schemes))})://{text_forms.WEB_HOST}{text_forms.URL_TAIL}"
            written |= _string(host)
        return written


def _is_name(keys: dict[str, Any]) -> bool:
    """Whether pydantic can read the keys of a dict from strings, since JSON has no other keys. keys: the JSON schema of
    the keys."""
    values = keys.get("enum", [keys["const"]] if "const" in keys else None)
    if values is not None:
        return any(isinstance(value, str) for value in values)
    return keys.get("type", "string") in ("string", "integer", "number", "boolean")


def _names(keys: dict[str, Any]) -> dict[str, Any] | None:
    """A schema for the keys of a dict, {"enum": [...]} or {"pattern": ...}. None: any key is allowed, or pydantic's own
    schema of the keys is sufficient. keys: that schema."""
    if "enum" in keys or "const" in keys:
        return {"enum": [value for value in keys.get("enum", [keys.get("const")]) if isinstance(value, str)]}
    form = keys.get("format", "")
    match keys.get("type"):
        case "integer":
            is_signed = max(keys.get("minimum", -1), keys.get("exclusiveMinimum", -1)) < 0
            return {"pattern": f"^{'-?' if is_signed else ''}(?:0|[1-9][0-9]*)$"}
        case "number":
            return {"pattern": f"^{text_forms.decimal()}$"}
        case "boolean":
            return {"pattern": "^(?:true|false)$"}
        case "string" if pattern := text_forms.FORMATS.get(form) or text_forms.ENFORCED_FORMATS.get(form):
            return {"pattern": f"^(?:{pattern})$"}
        case "string" if "allOf" in keys:  # bytes with a maximum length
            return {"pattern": f"^{_ASCII}{{{keys.get('minLength', 0)},{keys['maxLength']}}}$"}
    return None


def _name_pattern(names: dict[str, Any]) -> str:
    """The regex that matches the keys which `names` allows, without ^ and $, so that it can be joined with others by |.
    names: a result of `_names`: {"enum": [...]} or {"pattern": "^...$"}."""
    return "|".join(map(re.escape, names["enum"])) if "enum" in names else names["pattern"][1:-1]


_ASCII = r"[\x01-\x7f]"
_WEB = frozenset(("http", "https", "ws", "wss"))
"""URL schemes that require a host."""


def _require_tags(part: Any, defs: dict[str, Any]) -> None:
    """Make the tag required in all branches of the discriminated unions in a schema, in place."""
    if isinstance(part, dict) and isinstance(union := part.get("oneOf"), list) and "discriminator" in part:
        for branch in union:
            _require(branch, part["discriminator"]["propertyName"], defs)
    if isinstance(part, dict | list):
        for below in part.values() if isinstance(part, dict) else part:
            _require_tags(below, defs)


def _require(branch: dict[str, Any], name: str, defs: dict[str, Any]) -> None:
    if "$ref" in branch:
        branch = defs[branch["$ref"].rpartition("/")[2]]
    if name in branch.get("properties", {}) and name not in branch.get("required", ()):
        branch["required"] = [name, *branch.get("required", ())]
    for below in branch.get("oneOf", ()):  # a union of unions
        _require(below, name, defs)


def _has_zone(schema: Any) -> bool | None:
    constraint = schema.get("tz_constraint")
    return None if constraint is None else constraint != "naive"


def _string(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}
