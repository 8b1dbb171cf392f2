"""`banyan kernels`: the table of ops, as this machine serves it."""

import pytest

from banyan.cli import main as cli
from banyan.kernels import dispatch_report
from banyan.kernels.native import build
from banyan.kernels.ops import TABLE


def test_every_op_is_listed_with_what_computes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels"]) == 0
    told = capsys.readouterr().out
    for choice in dispatch_report.choices():
        assert f"{choice.op.name}/{choice.file}.py" in told
        assert choice.why in told
        assert choice.op.shapes in told
    norm = next(line for line in told.splitlines() if line.startswith("rms_norm "))
    assert norm.split()[1:6] == ["2.1", "MB", "1.31", "MFLOP", "0.6"]  # 4 x 2 bytes, 5 flops, of 64 x 4096


def test_every_cost_can_be_counted() -> None:
    for choice in dispatch_report.choices("cpu"):
        assert choice.n_bytes > 0
        assert (choice.n_flops > 0) == (choice.op.name not in ("write_kv", "copy_pages", "copy_slots", "mask_logits"))


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)
    by = {choice.op.name: choice for choice in dispatch_report.choices("cpu")}
    assert list(by) == list(TABLE)
    assert by["attention"].file == "torch_cpu"
    assert by["rms_norm"].file == by["draw"].file == "reference"
    assert by["edit_logits"].file == "cpu", "numpy needs no compiler"
    assert "could not be built" in by["linear"].why
