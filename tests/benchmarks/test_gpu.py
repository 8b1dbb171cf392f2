"""benchmarks/gpu.py without a GPU: the interpreter computes each row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_row_runs() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--dry"]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    lines = result.stdout.splitlines()
    assert [row for row in ROWS if not any(row in line for line in lines)] == []
    for peer in ("SDPA, contiguous", "flex_attention, contiguous"):
        assert sum(f"| {peer} |" in line for line in lines) >= 7, f"{peer} was left out"
    assert not any("SDPA" in line or "flex" in line for line in lines if "is left out" in line)
