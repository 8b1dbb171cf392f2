"""benchmarks/quantised.py with a script in place of llama.cpp."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import pytest

PEER = """#!/bin/sh
echo '{"file": "peer.gguf"}'
while read line; do echo 1.5; done
"""


@pytest.mark.long
def test_temporary_files_and_the_peer_are_gone_after_the_run(
    module_at: Callable[[Path], ModuleType],
    tiny_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantised = module_at(Path(__file__).parents[2] / "benchmarks" / "quantised.py")
    (scratch := tmp_path / "scratch").mkdir()
    (peer := tmp_path / "peer").write_text(PEER)
    peer.chmod(0o700)

    def gguf_of(model: Path) -> Path:
        (file := model.with_name(f"{model.name}.gguf")).touch()
        return file

    monkeypatch.setattr(quantised, "correct", lambda *tests: None)
    monkeypatch.setattr(quantised, "gguf_of", gguf_of)
    monkeypatch.setattr(
        quantised, "write_model", lambda to, n: shutil.copytree(tiny_model("llama"), to, dirs_exist_ok=True)
    )
    monkeypatch.setattr(sys.modules["report"], "RESULTS", tmp_path / "results")
    monkeypatch.setattr(quantised.tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(
        sys, "argv", ["quantised.py", "--quick", "--llamacpp", str(peer), "--json", str(tmp_path / "r")]
    )
    before = psutil.Process().children()
    with pytest.raises(SystemExit):
        quantised.main()
    assert "llama.cpp, peer.gguf" in (tmp_path / "r").read_text()
    assert [one for one in scratch.iterdir() if not one.name.startswith("torchinductor")] == []
    assert psutil.Process().children() == before
