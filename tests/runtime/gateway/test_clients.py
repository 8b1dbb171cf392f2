"""The recipes of examples/clients print what docs/http.md shows."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/http.md").read_text()
SHOWN = dict(re.findall(r"<!-- output of: python examples/clients/(\w+)\.py -->\n```text\n(.*?)```\n", PAGE, re.DOTALL))
COUNTS = re.compile(r"\(\d+ tokens cached, \d+ computed\)")
"""What the tree has depends on the tests before."""
NEEDS = {"pydantic_ai_agent": "pydantic_ai", "instructor_extract": "instructor", "langchain_labels": "langchain_openai"}
"""The packages that `make test` lacks; `make test-long` installs them."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.long] * (path.stem in (*NEEDS, "anthropic_chat")))
        for path in sorted((ROOT / "examples/clients").glob("*.py"))
    ],
)
def test_recipe_prints_what_the_page_shows(name: str, url: str) -> None:
    package = NEEDS.get(name, "openai")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make test-long` installs it")
    script = ROOT / "examples/clients" / f"{name}.py"
    result = subprocess.run([sys.executable, str(script), url], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert COUNTS.sub("", result.stdout) == COUNTS.sub("", SHOWN[name]), "`make readme` updates the page"
    assert f"python examples/clients/{name}.py [URL]" in script.read_text()
