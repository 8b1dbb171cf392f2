"""benchmarks/gpu.py without a GPU: the interpreter computes each row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
ROWS = (
    "ceiling: copy",
    "ceiling: matrix product",
    "decode 2 x 40 ",
    "fp8 KV",
    "int8 KV",
    "chunk of 20 over 17",
    "3 branches over 64",
    "3 branches over 96",
    "tree of thought, 4 x 4 x 4",
    "2 suffixes of 3",
    "3 decodes that share 0",
    "rms_norm",
    "silu_mul",
    "mask_logits",
    "copy_pages",
    "copy_slots",
    "draw, top-p 0.9",
    "decode step 0.6B",
    "decode step 8B",
    "step 0.6B, 3 branches over 4k",
    "step 0.6B, 3 branches over 16k",
    "step 0.6B, tree of thought, 4 x 4 x 4",
    "step 0.6B, 2 few-shot suffixes",
    "step 0.6B, 3 that share nothing",
    "engine step 0.6B, 2 decodes, one step ahead",
    "warm-up 0.6B, wall",
    "warm-up 8B, outputs that are transformers's, of 12",
    "tests that fail",
)
FAKE = """
import json, os, sys
notes = open(sys.argv[sys.argv.index("--to") + 1], "a")
for name in sys.argv[sys.argv.index("--to") + 2 :]:
    print(json.dumps({"shape": "fake"}), file=notes, flush=True)
    print(json.dumps({"row": {"name": name}}), file=notes, flush=True)
    if name == "steps":
        os._exit(3)
    print(json.dumps({"ends": name}), file=notes, flush=True)
"""


@pytest.fixture
def gpu(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(ROOT / "benchmarks" / "gpu.py")


def test_phase_that_fails_costs_no_other_phase(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu_measure.py").write_text(FAKE)
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    report = gpu.Report("gpu", "")
    failed = gpu.measure_all(report, ["attention", "steps", "tests"], [], 100.0)
    assert failed == {"steps": "the process ended with status 3"}
    assert [row["name"] for row in report.rows] == ["attention", "steps", "tests"]
    assert report.shape == "fake"


def test_phases_end_when_the_time_is_over_or_nothing_can_begin(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    names = ["attention", "steps"]
    script = tmp_path / "gpu_measure.py"
    script.write_text("import time; time.sleep(100)")
    assert gpu.measure_all(gpu.Report("gpu", ""), names, [], 0.0) == dict.fromkeys(names, "no time was left")
    script.unlink()
    assert gpu.measure_all(gpu.Report("gpu", ""), names, [], 100.0) == dict.fromkeys(
        names, "the process ended with status 2"
    )


def test_interrupt_ends_the_process_of_the_phases(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    (tmp_path / "gpu_measure.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    report = gpu.Report("gpu", "")
    monkeypatch.setattr(gpu.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu.measure_all(report, ["attention"], [], 100.0)
    assert [child.returncode for child in started] == [-signal.SIGKILL]


def test_options_in_short_are_forwarded(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forwarded: list[list[str]] = []
    monkeypatch.setattr(gpu, "measure_all", lambda report, names, options, seconds: forwarded.append(options) or {})
    monkeypatch.setattr(gpu, "missing", list)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dr", "--qu", "--phases", "steps"])
    gpu.main()
    assert forwarded == [["--dry", "--quick"]]


def test_missing_packages_are_named_with_their_wheels(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "NEEDED", {"json": "json", "no_such_module": "no-such-package>=2"})
    lacking = gpu.missing()
    assert lacking == ["no-such-package>=2"]
    with pytest.raises(SystemExit, match=r"missing: no-such-package>=2.*\n.*pip install .* 'no-such-package>=2'"):
        gpu.refuse(lacking)


def test_peer_that_does_not_read_all_keys_is_left_out(
    module_at: Callable[[Path], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests have 4,096 shared keys and 64 of their own, in bfloat16. If a peer does not read the 64, its output
    differs by an eighth of the output's standard deviation."""
    work = module_at(ROOT / "benchmarks" / "gpu_work.py")
    torch.manual_seed(0)
    texts = work.branches(2, 4096, 64)
    case = work.Attend(work.assign_pages(texts), (4, 2), 64, torch.bfloat16, torch.device("cpu"))

    def partial_sdpa(case: Any) -> Callable[[], Any]:
        q, k, v = case.contiguous()
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k[:, :, :-64], v[:, :, :-64], enable_gqa=True).transpose(1, 2)

    monkeypatch.setattr(work, "_flex", partial_sdpa)
    assert list(case.peers()) == ["SDPA, contiguous"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_row_runs() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--dry", "--minutes", "9.8"]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    lines = result.stdout.splitlines()
    assert [row for row in ROWS if not any(row in line for line in lines)] == []
    for peer in ("SDPA, contiguous", "flex_attention, contiguous"):
        assert sum(f"| {peer} |" in line for line in lines) >= 7, f"{peer} was left out"
    assert not any("SDPA" in line or "flex" in line for line in lines if "is left out" in line)
