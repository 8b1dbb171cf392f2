"""Adapters: rows of one step with different ones give the logits of merged weights; files of others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from banyan.kernels.kv_layout import kv_pools
from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.ops import ragged
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model import lora
from banyan.runtime.model.decoder import Decoder
from banyan.runtime.model.load import load

QV = ("self_attn.q_proj", "self_attn.v_proj")
KINDS: Sequence[dict[str, Any]] = (
    {},
    {"targets": QV, "r": 8, "alpha": 16},
    {
        "r": 5,
        "rslora": True,
        "ranks": {"model.layers.1.mlp.up_proj": 2},
        "alphas": {"model.layers.0.self_attn.k_proj": 11.0},
    },
)
N, PER_TEXT = 40, 3  # tokens and pages of a text


@pytest.fixture(scope="session")
def files(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parents[2] / "helpers" / "lora_files.py")


def read(path: Path, model: Any, device: str = "cpu") -> lora.Adapter:
    return lora.read(path, model.spec, torch.device(device), getattr(torch, model.spec.dtype))


def text(k: int) -> list[int]:
    return [(7919 * i + 31 * k) % 300 + 3 for i in range(N)]


class Texts:
    """Texts side by side in one model, each with an adapter or with none."""

    def __init__(self, model: Decoder, adapters: Sequence[lora.Adapter | None], device: str = "cpu") -> None:
        spec = model.spec
        shape = (PER_TEXT * len(adapters), 16, spec.n_kv_heads, spec.head_dim)
        dtype = getattr(torch, spec.dtype)
        self.kv = kv_pools(spec.n_layers, shape, (dtype, dtype), device)
        for pool in (pool for pools in self.kv for pool in pools):
            pool.fill_(torch.nan)
        self.model, self.adapters, self.device = model, adapters, torch.device(device)

    def step(self, start: int, end: int, only_last: bool = False) -> Tensor:
        """Logits [texts, end - start, vocab] of tokens start .. end of all texts; with only_last [texts, 1, vocab]."""
        n, n_new = len(self.adapters), end - start
        ids = torch.tensor([token for k in range(n) for token in text(k)[start:end]])
        pages = [list(range(k * PER_TEXT, (k + 1) * PER_TEXT)) for k in range(n)]
        batch = ragged([n_new] * n, [end] * n, pages, 16, self.device, wanted=[1] * n if only_last else None)
        kept = [(k + 1) * n_new - 1 for k in range(n)] if only_last else list(range(n * n_new))
        own = {k: a for k, a in enumerate(self.adapters) if a is not None}
        rows = [list(range(k * n_new, (k + 1) * n_new)) for k in own]
        adapted = AdaptedRows([a.weights for a in own.values()], rows, kept) if own else None
        at = torch.cat([torch.arange(start, end)] * n)
        ids, at, rows_of = (each.to(self.device) for each in (ids, at, torch.tensor(kept)))
        logits = self.model.forward(ids, at, batch, self.kv, rows_of, adapted).cpu()
        return logits.view(n, -1, self.model.spec.vocab_size)


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_equal_those_of_merged_weights(
    family: str, is_fused: bool, tiny: Any, tiny_model: Any, tmp_path: Path, files: Any, device: str
) -> None:
    path = tiny_model(family, head_dim=16)
    model = load(path, device=device)
    assert isinstance(model, Decoder)
    if not is_fused:
        model.fused = None
    adapters, wanted = [None], [tiny.reference_logits(tiny.reference(path), text(0))]
    for k, kind in enumerate(KINDS, 1):
        added = files.write(tmp_path / str(k), path, seed=k, **kind)
        adapters.append(read(tmp_path / str(k), model, device))
        wanted.append(tiny.reference_logits(files.merge(tiny.reference(path), added), text(k)))
    texts = Texts(model, adapters, device)
    got = torch.cat([texts.step(0, 33), texts.step(33, 34), texts.step(34, N)], 1)
    torch.testing.assert_close(got, torch.stack(wanted), atol=1e-4, rtol=1e-4)
    texts.step(0, 1)
    last = texts.step(1, N, only_last=True)  # the last layer computes few rows, numbered anew
    torch.testing.assert_close(last[:, 0], torch.stack(wanted)[:, -1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_a_row_do_not_depend_on_other_rows(
    dtype: str, native: None, tiny_model: Any, tmp_path: Path, files: Any
) -> None:
    path = tiny_model("llama")
    model = load(path, dtype=dtype, deterministic=True)
    assert isinstance(model, Decoder)
    for k in (1, 2):
        files.write(tmp_path / str(k), path, seed=k)
    one, two = (read(tmp_path / str(k), model) for k in (1, 2))
    together = Texts(model, [one, two, None, one])
    got = torch.cat([together.step(0, 20), together.step(20, 21), together.step(21, N)], 1)
    alone = Texts(model, [one])
    assert torch.equal(torch.cat([alone.step(i, i + 5) for i in range(0, N, 5)], 1)[0], got[0])
    plain = Texts(model, [None, None, None])
    assert torch.equal(plain.step(0, N)[2], got[2]), "a row without an adapter has the bits of a step without any"
    if dtype == "bfloat16":
        exact = load(path)
        assert isinstance(exact, Decoder)
        want = Texts(exact, [read(tmp_path / "1", exact)]).step(0, N)[0]
        assert (got[0] - want).norm() / want.norm() < 0.05


def test_digest_is_of_what_the_adapter_computes(tiny_model: Any, tmp_path: Path, files: Any) -> None:
    path = tiny_model("llama")
    model = load(path)
    for name, options in {"a": {}, "b": {"base_model_name_or_path": "x"}, "c": {"alpha": 7}, "d": {"seed": 1}}.items():
        files.write(tmp_path / name, path, **options)
    a, b, c, d = (read(tmp_path / name, model).digest for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


def edit(path: Path, **fields: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def tensors(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    file = path / "adapter_model.safetensors"
    found = load_file(file)
    change(found)
    save_file(found, file)


LAST = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no files": (lambda p: (p / "adapter_config.json").unlink(), "has no adapter_config.json"),
    "no weights": (lambda p: (p / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "pickles": (
        lambda p: (p / "adapter_model.safetensors").rename(p / "adapter_model.bin"),
        "Pickles can run any code and are never opened",
    ),
    "no JSON": (lambda p: (p / "adapter_config.json").write_text("{"), "adapter_config.json"),
    "deep JSON": (lambda p: (p / "adapter_config.json").write_text("[" * 10**5), "adapter_config.json"),
    "large config": (lambda p: (p / "adapter_config.json").write_bytes(b" " * (1 << 21)), "more than 1048576 bytes"),
    "types": (lambda p: edit(p, r="8"), "Expected `int`"),
    "another kind": (lambda p: edit(p, peft_type="IA3"), "peft_type IA3"),
    "DoRA": (lambda p: edit(p, use_dora=True), r"use_dora \(DoRA\)"),
    "modules": (lambda p: edit(p, modules_to_save=["lm_head"]), "modules_to_save"),
    "bias": (lambda p: edit(p, bias="all"), "bias 'all'"),
    "PiSSA": (lambda p: edit(p, init_lora_weights="pissa_niter_4"), "changes the weights of the model too"),
    "pattern": (lambda p: edit(p, rank_pattern={"(x+x+)+y": 3}), r"'\(x\+x\+\)\+y' in rank_pattern"),
    "rank 0": (lambda p: edit(p, r=0), "has rank 0"),
    "large rank": (lambda p: edit(p, r=1 << 40), "has rank 1099511627776"),
    "negative rank": (lambda p: edit(p, r=-(10**400)), "adapter_config.json"),
    "huge rank of a module": (lambda p: edit(p, rank_pattern={"q_proj": 10**400}), "adapter_config.json"),
    "huge scale of a module": (lambda p: edit(p, alpha_pattern={"q_proj": 10**400}), "adapter_config.json"),
    "scale": (lambda p: edit(p, lora_alpha=1e308 * 10), "adapter_config.json"),
    "another rank": (lambda p: edit(p, r=4), r"has shape \[3, 64\], but .* \[4, 64\]"),
    "unknown": (lambda p: tensors(p, lambda t: t.update({"lm_head.lora_A.weight": torch.ones(3, 64)})), "has lm_head"),
    "layer": (lambda p: tensors(p, lambda t: t.update({LAST.replace("1", "7"): t[LAST] + 1})), "model.layers.7.self"),
    "half": (lambda p: tensors(p, lambda t: t.pop(LAST)), "no lora_B of model.layers.1.self_attn.v_proj"),
    "nothing": (lambda p: tensors(p, dict.clear), "no tensors"),
    "NaN": (lambda p: tensors(p, lambda t: t[LAST].fill_(torch.nan)), "not finite"),
    "integers": (lambda p: tensors(p, lambda t: t.update({LAST: t[LAST].to(torch.int32)})), "I32"),
    "truncated": (lambda p: (p / "adapter_model.safetensors").write_bytes(b"\x00" * 100), "safetensors"),
    "large header": (
        lambda p: (p / "adapter_model.safetensors").write_bytes((1 << 40).to_bytes(8, "little")),
        "a header of more than 16 MiB",
    ),
    "directory": (
        lambda p: ((p / "adapter_model.safetensors").unlink(), (p / "adapter_model.safetensors").mkdir()),
        "has no adapter_model.safetensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_adapter_is_refused_with_the_reason(case: str, tiny_model: Any, tmp_path: Path, files: Any) -> None:
    model = load(tiny_model("llama"))
    files.write(tmp_path, tiny_model("llama"), QV)
    spoil, message = BAD[case]
    spoil(tmp_path)
    with pytest.raises((BadModel, Unsupported), match=message):
        read(tmp_path, model)


def test_adapter_that_overflows_in_float16_is_refused(tiny_model: Any, tmp_path: Path, files: Any) -> None:
    model = load(tiny_model("llama"))
    files.write(tmp_path, tiny_model("llama"), QV)
    tensors(tmp_path, lambda t: t[LAST].fill_(1e5))
    assert read(tmp_path, model).weights.layers
    with pytest.raises(BadModel, match=r"self_attn.v_proj that are not finite in torch.float16"):
        lora.read(tmp_path, model.spec, torch.device("cpu"), torch.float16)


def test_adapter_of_another_model_is_refused(tiny_model: Any, tmp_path: Path, files: Any) -> None:
    files.write(tmp_path, tiny_model("llama"))
    with pytest.raises(BadModel, match=r"has shape .*, but"):
        read(tmp_path, load(tiny_model("llama", hidden_size=32)))
    with pytest.raises(Unsupported, match="transformers' own code"):
        read(tmp_path, load(tiny_model("olmo2")))
