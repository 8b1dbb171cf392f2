"""Checkpoints are read one tensor at a time. Each kind of damage raises a clear error."""

import io
import json
import struct
import sys

import pytest
import torch
from safetensors.torch import save_file

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model import weights
from banyan.runtime.model.weights import Checkpoint


def write(file, **tensors):
    save_file(tensors, file)
    return file.parent


def shards(path, *parts):
    """Writes `parts` (dicts of tensors) as the shards of one checkpoint, with an index."""
    names = {}
    for i, tensors in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        save_file(tensors, path / file)
        names |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return path


def test_take_reads_all_shards_and_reports_bytes(tmp_path):
    a, b, c = torch.randn(3, 4), torch.randn(5).bfloat16(), torch.arange(6.0)
    progress = []
    with Checkpoint(shards(tmp_path, {"a": a}, {"b": b, "c": c}), lambda *p: progress.append(p)) as checkpoint:
        assert checkpoint.n_parameters == 12 + 5 + 6
        assert "b" in checkpoint
        assert torch.equal(checkpoint.take("c", 6), c)
        assert torch.equal(checkpoint.take("a", 3, 4), a)
        assert torch.equal(checkpoint.take("a"), a)  # read twice, counted once
        assert torch.equal(checkpoint.take("b", 5), b)
        checkpoint.finish(ignore=lambda name: False)
    assert progress == [(24, 82), (72, 82), (82, 82), (82, 82)]


def test_index_selects_the_files(tmp_path):
    shards(tmp_path, {"a": torch.ones(1)})
    write(tmp_path / "model-extra.safetensors", b=torch.ones(1))
    assert set(Checkpoint(tmp_path).tensors) == {"a"}


def test_shards_without_an_index_form_one_checkpoint(tmp_path):
    write(tmp_path / "model-1.safetensors", a=torch.ones(1))
    write(tmp_path / "model-2.safetensors", b=torch.ones(1))
    write(tmp_path / "adapter.safetensors", c=torch.ones(1))
    assert set(Checkpoint(tmp_path).tensors) == {"a", "b"}
    write(tmp_path / "model-3.safetensors", a=torch.ones(1))
    with pytest.raises(BadModel, match=r"a is both in model-1.safetensors and in model-3.safetensors"):
        Checkpoint(tmp_path)


def test_missing_tensor_and_wrong_shape_are_named(tmp_path):
    with Checkpoint(write(tmp_path / "model.safetensors", a=torch.ones(2, 3))) as checkpoint:
        with pytest.raises(BadModel, match=r"no tensor model.norm.weight"):
            checkpoint.take("model.norm.weight", 4)
        with pytest.raises(BadModel, match=r"a has shape \[2, 3\], but the configuration requires \[3, 2\]"):
            checkpoint.take("a", 3, 2)


def test_unused_tensor_raises_unless_it_is_ignored(tmp_path):
    tensors = {f"layers.{i}.q_proj.bias": torch.ones(1) for i in range(6)}
    with Checkpoint(write(tmp_path / "model.safetensors", **tensors)) as checkpoint:
        with pytest.raises(Unsupported, match=r"layers.0.q_proj.bias, .* and 2 more"):
            checkpoint.finish(ignore=lambda name: False)
        checkpoint.finish(ignore=lambda name: name.endswith("bias"))


def test_pickled_weights_are_refused_with_the_solution(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadModel, match=r"pickled weights only \(pytorch_model.bin\).*save_pretrained"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(BadModel, match="has no safetensors"):
        Checkpoint(tmp_path)


def test_missing_shard_is_named(tmp_path):
    shards(tmp_path, {"a": torch.ones(1)}, {"b": torch.ones(1)})
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BadModel, match=r"lacks 1 of 2 shards: model-00002-of-00002.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        *("{", "[]", "{}", "[" * 100_000),
        *('{"weight_map": 3}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../elsewhere"}}'),
        f'{{"weight_map": {{"a": "{"a" * 300}"}}}}',
    ],
    ids=lambda index: index[:40],
)
def test_broken_index_raises_bad_model(tmp_path, index):
    write(tmp_path / "model.safetensors", a=torch.ones(1))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BadModel, match=r"index.json is broken|lacks 1 of 1 shards"):
        Checkpoint(tmp_path)


def header(entries) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


VALID_FILE = header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + bytes(8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a whole safetensors file"),
        (b"\x01\x02", "not a whole safetensors file"),
        (struct.pack("<Q", 1 << 40) + b"{}", "not a whole safetensors file"),
        (struct.pack("<Q", 2) + b"{x", "not a safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "not a safetensors file"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "not a safetensors file"),
        (header({"a": {"shape": [2]}}), "not a safetensors file"),
        (header({"a": {"dtype": [], "shape": [2], "data_offsets": [0, 8]}}) + bytes(8), "not a safetensors file"),
        (header({"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}) + bytes(8), "not a safetensors file"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}) + bytes(8), "a ends before it starts"),
        (VALID_FILE[:-1], "is truncated or was changed"),
        (VALID_FILE + b"x", "is truncated or was changed"),
        (header({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}) + bytes(8), "cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a whole safetensors file"),
    ],
)
def test_broken_file_raises_bad_model(tmp_path, data, message):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(BadModel, match=message), Checkpoint(tmp_path) as checkpoint:
        checkpoint.take("a")


def test_unknown_and_unexpected_dtypes_are_refused_by_name(tmp_path):
    write(tmp_path / "model.safetensors", a=torch.ones(2).to(torch.float8_e5m2))
    with pytest.raises(Unsupported, match="a is stored as F8_E5M2; supported: BF16"):
        Checkpoint(tmp_path)
    write(tmp_path / "model.safetensors", a=torch.ones(2, dtype=torch.int32))
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(Unsupported, match="a is stored as I32"):
        checkpoint.take("a")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_is_shown_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", no_terminal := io.StringIO())
    with weights.bar("tiny") as progress:
        assert progress is None
    assert no_terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with weights.bar("tiny") as progress:
        progress(1000, 2000)
    assert "tiny" in terminal.getvalue()
