"""The Python of the README runs with the shown output, and its commands and links exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
OUTPUTS = dict(re.findall(r"<!-- output of: (.*?) -->\n```text\n(.*?)```\n", README, re.DOTALL))
COUNTS = re.compile(r"cached=\d+, computed=\d+|, drafted=\d+|, accepted=\d+")
"""These counts vary: sharing by concurrent branches depends on their order, drafts on the cost of a step."""
PROGRAM = README.partition("```python\n")[2].partition("```")[0]


def test_program_of_the_readme_prints_the_shown_output() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert COUNTS.sub("", result.stdout) == COUNTS.sub("", OUTPUTS["the above"])
    for text in (result.stdout, OUTPUTS["the above"]):
        prompt, cached, computed = map(int, re.findall(r"prompt=(\d+), cached=(\d+), computed=(\d+)", text)[0])
        assert prompt == cached + computed
        assert cached > 90


def test_shown_demo_output_agrees_with_the_example() -> None:
    """The questions agree with the example, and the counts add up. tests/examples/test_agents.py runs the example."""
    output = OUTPUTS["python examples/agents/react_tools.py"]
    example = (ROOT / "examples/agents/react_tools.py").read_text()
    questions = re.findall(r"^(\S.*)\n  model: ", output, re.MULTILINE)
    assert len(questions) == 5
    assert all(f'"{question}"' in example for question in questions)
    assert output.count("\n  right\n") == 5
    prompt, cached, computed = map(int, re.findall(r"prompt (\d+) tokens = (\d+) cached \+ (\d+) computed", output)[0])
    assert prompt == cached + computed


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md"])
def test_links_of_a_page_exist(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert not [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()]


def test_named_make_targets_exist() -> None:
    targets_named = set(
        re.findall(r"(?:^|`)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    )
    assert {"demo", "test"} <= targets_named
    assert targets_named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
