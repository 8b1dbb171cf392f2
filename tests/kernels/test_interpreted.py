"""Runs the tests of `interpreted/` in their own processes: Triton selects its interpreter at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.timeout(600)
def test_interpreted_kernels(pytestconfig: pytest.Config) -> None:
    interpret("not long", pytestconfig.rootpath)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_interpreted_kernels_in_the_long_form(pytestconfig: pytest.Config) -> None:
    interpret("long", pytestconfig.rootpath)


def interpret(marks: str, root: Path) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-P", "-m", "pytest", str(FOLDER), "-q", "-m", marks]
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
