"""A metaschema that is one document says what the one put together of vocabularies says."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from banyan.runtime.constraint.schema import form
from banyan.runtime.errors import ConstraintSyntax

DRAFTS = [jsonschema.Draft4Validator, jsonschema.Draft6Validator, jsonschema.Draft7Validator,
          jsonschema.Draft201909Validator, jsonschema.Draft202012Validator]  # fmt: skip
SCHEMAS = [json.loads(line)["schema"] for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]
JUNK = [None, 0, -1, 1.5, "", "string", "#/a", [], [1], ["a", "a"], {}, {"type": "strin"}, {"items": 3}, True, [{}]]


def places(schema: Any) -> list[tuple[Any, Any]]:
    """(what holds it, under which key) of all that is in a schema."""
    keys = list(schema) if isinstance(schema, dict) else range(len(schema)) if isinstance(schema, list) else ()
    return [(schema, key) for key in keys] + [place for key in keys for place in places(schema[key])]


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.__name__)
def test_it_says_the_same_of_schemas_right_and_wrong(draft: Any) -> None:
    rng = random.Random(draft.__name__)
    whole, said = draft(draft.META_SCHEMA), []
    for i, schema in enumerate([draft.META_SCHEMA, *SCHEMAS[::4]]):
        schema = copy.deepcopy(schema)
        if i % 3 and (found := places(schema)):
            holder, key = rng.choice(found)
            holder[key] = rng.choice(JUNK)
        said.append(form._metaschema(draft).is_valid(schema))
        assert said[-1] == whole.is_valid(schema), schema
    assert 5 < sum(said) < len(said) - 5, "right ones and wrong ones"


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.__name__)
def test_what_is_wrong_is_found_at_any_depth(draft: Any) -> None:
    dialect = {"$schema": draft.META_SCHEMA.get("$id", draft.META_SCHEMA.get("id"))}
    good = {"properties": {"$ref": {"not": {"anyOf": [{"type": "string"}]}}}}
    form.check_form(dialect | good)
    with pytest.raises(ConstraintSyntax, match=r"at /properties/\$ref/not/anyOf/0/minimum"):
        form.check_form(dialect | {"properties": {"$ref": {"not": {"anyOf": [{"minimum": "1"}]}}}})
