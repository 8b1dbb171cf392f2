"""What type checkers find in programs, and that the options they know are those of `Options`."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import banyan as bn
from banyan.lang.run_types import BatchOptions, ItemOptions, RunCall

CALLS = Path(__file__).with_name("typed_calls.py")
ROOT = CALLS.parents[3]
WRONG = {i for i, line in enumerate(CALLS.read_text().splitlines(), 1) if line.endswith("# wrong")}


def test_checkers_know_every_option() -> None:
    options = {*bn.Options.__struct_fields__, "opts"}
    assert sorted(re.findall(r"\*args: Any, (\w+): ", inspect.getsource(RunCall))) == sorted(options)
    batch = inspect.signature(bn.Program.run_batch).parameters
    own = {name for name, one in batch.items() if one.kind is one.KEYWORD_ONLY}
    assert ItemOptions.__optional_keys__ == options - own - {"stream"}
    assert BatchOptions.__optional_keys__ == (options | own) - {"stream", "generator_style", "ordered", "checkpoint"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mypy_reports_exactly_the_wrong_calls(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"  # a user's: nothing in it says where the package is
    config.write_text("[mypy]\nstrict = True\n")
    options = ["--config-file", str(config), "--no-error-summary", "-O", "json"]
    command = [sys.executable, "-m", "mypy", *options, str(CALLS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["line"] for one in found if one["severity"] == "error"} == WRONG, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_pyright_reports_exactly_the_wrong_calls(tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "standard", "include": [str(CALLS)]}))
    command = [sys.executable, "-m", "basedpyright", "-p", str(config), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert wrong == WRONG, done.stdout + done.stderr
