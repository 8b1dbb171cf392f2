"""`banyan kernels`: the table of ops, as this machine serves it."""

import pytest

from banyan import cli
from banyan.kernels import chosen
from banyan.kernels.native import build
from banyan.kernels.ops import TABLE


def test_every_op_is_listed_with_what_computes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels"]) == 0
    told = capsys.readouterr().out
    for choice in chosen.choices():
        assert f"{choice.op.name}/{choice.file}.py" in told
        assert choice.why in told
        assert choice.op.shapes in told


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)
    by = {choice.op.name: choice for choice in chosen.choices("cpu")}
    assert list(by) == list(TABLE)
    assert by["attention"].file == "plain"
    assert by["rms_norm"].file == "reference"
    assert "could not be built" in by["linear"].why
