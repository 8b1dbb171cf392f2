"""Triton decides at import whether kernels are compiled or interpreted: the interpreter gets processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
FILES = {path.name for path in FOLDER.glob("test_*.py")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("files", [{"test_attention.py"}, FILES - {"test_attention.py"}], ids=["attention", "others"])
def test_in_the_interpreter(files: set[str], pytestconfig: pytest.Config) -> None:
    interpret(files, "not long", pytestconfig.rootpath)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_long_form_in_the_interpreter(pytestconfig: pytest.Config) -> None:
    interpret(FILES, "long", pytestconfig.rootpath)


def interpret(files: set[str], marked: str, root: Path) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        *(str(FOLDER / name) for name in sorted(files)),
        "-q",
        "-m",
        marked,
    ]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
