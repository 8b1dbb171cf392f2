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
SHOWN = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL)


def test_there_is_something_to_run() -> None:
    assert len(SHOWN) >= 1


@pytest.mark.parametrize(("code", "output"), SHOWN)
def test_python_gives_the_output_that_stands_below_it(code: str, output: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_the_demo_shown_is_the_demo_run() -> None:
    """Questions and answers as they stand in the example; the counts are of a real run, and add up."""
    shown = re.search(r"```\n(What is .*?right)\n```", README, re.DOTALL)
    assert shown
    example = (ROOT / "examples/agents/react_tools.py").read_text()
    questions = re.findall(r"^(\w.*[?.])$", shown[1], re.MULTILINE)
    assert questions
    assert all(f'"{question}"' in example for question in questions)
    counts = re.search(r"prompt (\d+) tokens = (\d+) cached \+ (\d+) computed", shown[1])
    assert counts
    assert int(counts[1]) == int(counts[2]) + int(counts[3])


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert not [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()]


def test_make_knows_each_target_that_is_named() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
