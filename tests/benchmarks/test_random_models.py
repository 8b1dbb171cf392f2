"""Files of models with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.mark.long
def test_gguf_file_that_was_not_written_to_its_end_is_not_used(
    module_at: Callable[[Path], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    models = module_at(Path(__file__).parents[2] / "benchmarks" / "random_models.py")
    shape = {"vocab_size": 6144, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    models.make(tmp_path, "M", shape | {"num_attention_heads": 1, "num_key_value_heads": 1})
    model = tmp_path / "M-float32"

    def interrupted(writer: Any) -> None:
        writer.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gguf.GGUFWriter, "write_tensors_to_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            models.gguf_of(model)
    file = models.gguf_of(model)
    assert file == tmp_path / "M-float32.gguf"
    assert len(gguf.GGUFReader(file).tensors) == 12
    assert not list(tmp_path.glob("*.part"))
