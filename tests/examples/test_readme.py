"""What the README shows is what happens: its Python runs, its output is compared, its commands and links exist."""

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
"""How much two branches at once share depends on who comes first; what is drafted, on what a step costs here."""
PROGRAM = README.partition("```python\n")[2].partition("```")[0]


def test_the_program_shown_gives_the_output_shown() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert COUNTS.sub("", done.stdout) == COUNTS.sub("", OUTPUTS["the above"])
    for text in (done.stdout, OUTPUTS["the above"]):
        prompt, cached, computed = map(int, re.findall(r"prompt=(\d+), cached=(\d+), computed=(\d+)", text)[0])
        assert prompt == cached + computed
        assert cached > 90


def test_the_demo_shown_is_of_this_demo() -> None:
    """Its questions and answers are the example's, and its counts add up; tests/examples/test_agents.py runs it."""
    shown = OUTPUTS["python examples/agents/react_tools.py"]
    example = (ROOT / "examples/agents/react_tools.py").read_text()
    questions = re.findall(r"^(\S.*)\n  model: ", shown, re.MULTILINE)
    assert len(questions) == 5
    assert all(f'"{question}"' in example for question in questions)
    assert shown.count("\n  right\n") == 5
    prompt, cached, computed = map(int, re.findall(r"prompt (\d+) tokens = (\d+) cached \+ (\d+) computed", shown)[0])
    assert prompt == cached + computed


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert not [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()]


def test_make_knows_each_target_that_is_named() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
