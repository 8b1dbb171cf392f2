"""`banyan kernels` prints the table of operations for this machine."""

import pytest

from banyan.cli import main as cli
from banyan.kernels import dispatch_report
from banyan.kernels.native import build
from banyan.kernels.ops import TABLE


def test_command_lists_every_op_with_its_implementation(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels"]) == 0
    output = capsys.readouterr().out
    for choice in dispatch_report.choices():
        assert f"{choice.op.folder}/{choice.file}.py" in output
        assert choice.why in output
        assert choice.op.shapes in output
    norm = next(line for line in output.splitlines() if line.startswith("rms_norm "))
    assert norm.split()[1:6] == ["2.1", "MB", "1.31", "MFLOP", "0.6"]  # 64 x 4096 values: 4 x 2 bytes and 5 FLOPs each


def test_every_op_has_a_cost() -> None:
    for choice in dispatch_report.choices("cpu"):
        assert choice.n_bytes > 0
        assert (choice.n_flops > 0) == (choice.op.name not in ("write_kv", "copy_pages", "copy_slots", "mask_logits"))


def test_reference_kernels_are_chosen_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)
    choices = {choice.op.name: choice for choice in dispatch_report.choices("cpu")}
    assert list(choices) == list(TABLE)
    assert choices["attention"].file == "cpu"
    assert choices["rms_norm"].file == choices["draw"].file == "reference"
    assert choices["edit_logits"].file == "cpu", "numpy needs no compiler"
    assert "could not be built" in choices["linear"].why
