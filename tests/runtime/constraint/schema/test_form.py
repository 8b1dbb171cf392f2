"""A metaschema in one document gives the same results as the metaschema of several vocabularies."""

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
    """(container, key) of everything in a schema."""
    keys = list(schema) if isinstance(schema, dict) else range(len(schema)) if isinstance(schema, list) else ()
    return [(schema, key) for key in keys] + [place for key in keys for place in places(schema[key])]


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.__name__)
def test_metaschema_agrees_on_valid_and_invalid_schemas(draft: Any) -> None:
    rng = random.Random(draft.__name__)
    reference, results = draft(draft.META_SCHEMA), []
    for i, schema in enumerate([draft.META_SCHEMA, *SCHEMAS[::4]]):
        schema = copy.deepcopy(schema)
        if i % 3 and (all_places := places(schema)):
            container, key = rng.choice(all_places)
            container[key] = rng.choice(JUNK)
        results.append(form._metaschema(draft).is_valid(schema))
        assert results[-1] == reference.is_valid(schema), schema
    assert 5 < sum(results) < len(results) - 5, "both valid and invalid schemas"


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.__name__)
def test_error_is_found_at_any_depth(draft: Any) -> None:
    dialect = {"$schema": draft.META_SCHEMA.get("$id", draft.META_SCHEMA.get("id"))}
    valid = {"properties": {"$ref": {"not": {"anyOf": [{"type": "string"}]}}}}
    form.check_form(dialect | valid)
    with pytest.raises(ConstraintSyntax, match=r"at /properties/\$ref/not/anyOf/0/minimum"):
        form.check_form(dialect | {"properties": {"$ref": {"not": {"anyOf": [{"minimum": "1"}]}}}})
