"""Schemas with valid and invalid values: our own, and the test suite of the standard.

`cases.jsonl`: one keyword or one combination of keywords each. `public.jsonl`: schemas like those of configuration
files, public APIs and tools of models. All are written by hand. Each line has a schema, and `valid` and `invalid`
values or the refusal. `ecma`: the pattern is valid in ECMA-262, but not in Python.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from banyan.runtime.errors import BanyanError, ConstraintUnsatisfiable
from forms import short_form

HERE = Path(__file__).parent
CHECKED = jsonschema.FormatChecker(["date", "email", "idn-email", "ipv4", "ipv6", "regex"])
"""Formats that the validator checks without further packages, and by the same rules as we do."""


def read_lines(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


CASES = {name: read_lines(f"{name}.jsonl") for name in ("cases", "public")}
CASE_IDS = [(name, i) for name, cases in CASES.items() for i in range(len(cases))]


def accepts(bench: Any, compiled: Any, value: Any) -> bool:
    """Whether a guide accepts the value in the style `spaced`."""
    text = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    return bool(bench.accepts(compiled.guide(), text))


@pytest.mark.parametrize(("name", "i"), short_form(CASE_IDS, lambda name, i: name == "cases" or not i % 5))
def test_schema_accepts_valid_and_rejects_invalid_values(bench: Any, name: str, i: int) -> None:
    case = CASES[name][i]
    if "refused" in case:
        code, _, words = case["refused"].partition(": ")
        with pytest.raises(BanyanError) as caught:
            bench.compile("json_schema", case["schema"])
        assert caught.value.code == code
        assert words in caught.value.message
        return
    compiled = bench.compile("json_schema", case["schema"])
    assert [v for v in case["valid"] if not accepts(bench, compiled, v)] == [], "valid, but not accepted"
    assert [v for v in case["invalid"] if accepts(bench, compiled, v)] == [], "accepted, but not valid"


@pytest.mark.long
@pytest.mark.parametrize(("name", "i"), CASE_IDS, ids=lambda value: str(value))
def test_cases_agree_with_jsonschema(name: str, i: int) -> None:
    case = CASES[name][i]
    if "refused" in case or "ecma" in case:
        return
    kind = jsonschema.validators.validator_for(case["schema"], default=jsonschema.Draft202012Validator)
    validator = kind(case["schema"], format_checker=CHECKED)
    assert all(map(validator.is_valid, case["valid"]))
    accepted_invalid = [value for value in case["invalid"] if validator.is_valid(value)]
    assert not accepted_invalid or "format" in json.dumps(case["schema"])


def test_number_of_cases() -> None:
    assert len(CASES["cases"]) >= 200
    public = CASES["public"]
    assert len(public) >= 100
    assert len({case["name"] for case in public}) == len(public)
    assert all(case["valid"] and case["invalid"] for case in public)


def test_most_public_schemas_are_supported() -> None:
    public = CASES["public"]
    assert sum("refused" not in case for case in public) >= 0.9 * len(public)


# ---- the suite of the standard -------------------------------------------------------------------------------------


def groups(folder: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted((folder / "tests" / "draft2020-12").glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield f"{file.stem}: {group['description']}", group


def judge(bench: Any, group: Any) -> str:
    """right: the results for all values agree with the suite. Otherwise the refusal, or the kind of error."""
    try:
        compiled = bench.compile("json_schema", group["schema"])
    except ConstraintUnsatisfiable:
        return "valid rejected" if any(test["valid"] for test in group["tests"]) else "right"
    except BanyanError as e:
        return f"refused: {e.code}"
    results = {(accepts(bench, compiled, test["data"]), test["valid"]) for test in group["tests"]}
    if (True, False) in results:
        return "INVALID ACCEPTED"
    return "valid rejected" if (False, True) in results else "right"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_results_of_the_standard_suite(bench: Any, request: pytest.FixtureRequest) -> None:
    """The file `suite.json` has the expected result of each group; `--json-schema-suite-write` rewrites it."""
    folder = Path(request.config.getoption("--json-schema-suite"))
    if not (folder / "tests").is_dir():
        pytest.skip(f"there is no JSON-Schema-Test-Suite at {folder}; name its folder with --json-schema-suite")
    actual = {name: judge(bench, group) for name, group in groups(folder)}
    file = HERE / "suite.json"
    if request.config.getoption("--json-schema-suite-write"):
        file.write_text(json.dumps(actual, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    assert actual == json.loads(file.read_text(encoding="utf-8"))


def test_expected_results_of_the_standard_suite() -> None:
    expected = json.loads((HERE / "suite.json").read_text(encoding="utf-8"))
    counts = Counter(expected.values())
    assert sum(counts.values()) == 383
    assert counts["right"] >= 280
    assert "INVALID ACCEPTED" not in counts
