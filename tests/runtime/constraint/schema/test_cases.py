"""Schemas with values that they allow and values that they do not: our own, and the standard's test suite.

`cases.jsonl`: one keyword or one meeting of keywords each. `public.jsonl`: schemas as they stand in configuration
files, public APIs and the tools of models. All by hand; each line holds a schema, and `valid` and `invalid` values, or
the refusal. `ecma`: its pattern is one for ECMA-262, and none for Python.
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

HERE = Path(__file__).parent
CHECKED = jsonschema.FormatChecker(["date", "email", "idn-email", "ipv4", "ipv6", "regex"])
"""Formats that the validator looks at without further packages, and in the same way as we do."""


def lines(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


CASES = {name: lines(f"{name}.jsonl") for name in ("cases", "public")}
ALL = [(name, i) for name, cases in CASES.items() for i in range(len(cases))]


def accepts(bench: Any, compiled: Any, value: Any) -> bool:
    """Whether a guide takes the value, written as `spaced` has it."""
    text = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    return bool(bench.takes(compiled.guide(), text))


@pytest.mark.parametrize(("name", "i"), ALL, ids=lambda value: str(value))
def test_a_case(bench: Any, name: str, i: int) -> None:
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


@pytest.mark.parametrize(("name", "i"), ALL, ids=lambda value: str(value))
def test_the_case_itself_is_right(name: str, i: int) -> None:
    case = CASES[name][i]
    if "refused" in case or "ecma" in case:
        return
    kind = jsonschema.validators.validator_for(case["schema"], default=jsonschema.Draft202012Validator)
    validator = kind(case["schema"], format_checker=CHECKED)
    assert all(map(validator.is_valid, case["valid"]))
    wrong = [value for value in case["invalid"] if validator.is_valid(value)]
    assert not wrong or "format" in json.dumps(case["schema"])


def test_there_are_enough() -> None:
    assert len(CASES["cases"]) >= 200
    public = CASES["public"]
    assert len(public) >= 100
    assert len({case["name"] for case in public}) == len(public)
    assert all(case["valid"] and case["invalid"] for case in public)


def test_public_schemas_are_supported() -> None:
    """Nine of ten, entirely right: `test_a_case` sees to all that are not refused."""
    public = CASES["public"]
    assert sum("refused" not in case for case in public) >= 0.9 * len(public)


# ---- the standard's suite ------------------------------------------------------------------------------------------


def groups(folder: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted((folder / "tests" / "draft2020-12").glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield f"{file.stem}: {group['description']}", group


def judge(bench: Any, group: Any) -> str:
    """right: all values judged as the suite has it. else what was refused, or accepted or rejected wrongly."""
    try:
        compiled = bench.compile("json_schema", group["schema"])
    except ConstraintUnsatisfiable:
        return "valid rejected" if any(test["valid"] for test in group["tests"]) else "right"
    except BanyanError as e:
        return f"refused: {e.code}"
    said = {(accepts(bench, compiled, test["data"]), test["valid"]) for test in group["tests"]}
    if (True, False) in said:
        return "INVALID ACCEPTED"
    return "valid rejected" if (False, True) in said else "right"


@pytest.mark.timeout(600)
def test_the_suite_of_the_standard(bench: Any, request: pytest.FixtureRequest) -> None:
    """The checked-in list says of each group what comes of it; `--json-schema-suite-write` writes it anew."""
    folder = Path(request.config.getoption("--json-schema-suite"))
    if not (folder / "tests").is_dir():
        pytest.skip(f"there is no JSON-Schema-Test-Suite at {folder}; name its folder with --json-schema-suite")
    found = {name: judge(bench, group) for name, group in groups(folder)}
    file = HERE / "suite.json"
    if request.config.getoption("--json-schema-suite-write"):
        file.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))


def test_the_expected_results() -> None:
    expected = json.loads((HERE / "suite.json").read_text(encoding="utf-8"))
    counts = Counter(expected.values())
    assert sum(counts.values()) == 383
    assert counts["right"] >= 280
    assert "INVALID ACCEPTED" not in counts
