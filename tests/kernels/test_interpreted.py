"""Triton decides at import whether kernels are compiled or interpreted: the interpreter gets processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_in_the_interpreter(file: str, pytestconfig: pytest.Config) -> None:
    interpret(file, "not long", pytestconfig.rootpath)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_cases_in_the_interpreter(pytestconfig: pytest.Config) -> None:
    interpret("test_attention.py", "long", pytestconfig.rootpath)


def interpret(file: str, marked: str, root: Path) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-P", "-m", "pytest", str(FOLDER / file), "-q", "-m", marked]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
