"""Multi-head latent attention in the engine: the pages hold latents, and outputs are those of transformers, whatever is
cached, forked, drafted or moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from engine_oracle import N_OUT, Tiny, text
from tiny_configs import tiny_config
from transformers import AutoConfig

from banyan.kernels.kv_layout import kv_pools, parts, stored
from banyan.radix_cache.host_tier import Move
from banyan.runtime.config import Config
from banyan.runtime.engine.capacity import _formula
from banyan.runtime.engine.kv_pool import KVPool, bytes_per_token
from banyan.runtime.errors import ConfigError
from banyan.runtime.model import hf, latent
from banyan.runtime.model.families import ModelSpec
from banyan.runtime.model.load import load
from forms import in_short

FAMILIES = {
    "axk1": "long",
    "bailing_hybrid": "long",
    "deepseek_v2": "long",
    "deepseek_v3": "",
    "glm4_moe_lite": "long",
    "kimi_linear": "long",
    "minicpm3": "long",
    "sarvam_mla": "long",
    "youtu": "long",
}
"""Family of the table in docs/models.md -> the mark of its test."""
COMMON = {"name": "tiny", "eos_ids": (), "n_parameters": 1}


@pytest.fixture
def path(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def make(family: str) -> Path:
        monkeypatch.setitem(tiny.TINY, family, tiny_config(family))
        made: Path = tiny.make_tiny(tmp_path / family, family)
        return made

    return make


def spec_of(family: str, folder: Path) -> ModelSpec:
    """The spec of a family's default config."""
    AutoConfig.for_model(family, dtype="bfloat16").save_pretrained(folder)
    return hf.read_spec(folder, COMMON | {"family": family})


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.long] if mark else []) for name, mark in FAMILIES.items()]
)
def test_cold_warm_and_forked_are_equal(
    family: str, path: Callable[[str], Path], fake: ModuleType, reference: Callable[[Path], Any]
) -> None:
    own = Tiny(path(family), fake, reference)
    spec = own.model.spec
    assert (spec.latent_dim, spec.n_kv_heads, spec.head_dim) == (16, 1, 24)
    e, root = own.engine(step_tokens=16), text(30)
    for prompts in ([root], [root], [root + own.expected(root) + [5]], [root[:19] + text(5, i) for i in range(3)]):
        own.run(e, prompts)
    assert bytes_per_token(spec, "auto") == spec.n_kv_layers * 24 * 4
    pools = [part for pair in e.model.store.kv for pool in stored(*pair) for part in parts(pool)]
    assert sum(part[0].numel() * part.element_size() for part in pools) == 16 * bytes_per_token(spec, "auto")


def test_drafts_do_not_change_the_output(
    path: Callable[[str], Path], fake: ModuleType, reference: Callable[[Path], Any]
) -> None:
    own = Tiny(path("deepseek_v3"), fake, reference)
    e, root = own.engine(), text(30)
    fake.use_drafts(e, [lambda request, n: own.expected(list(request.ids), n), lambda request, n: [5] * n])
    own.run(e, [root])
    own.run(e, [root[:19] + text(5, i) for i in range(3)])
    assert e.scheduler.counts["steps"] < 2 * N_OUT


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_token_takes_its_latent_in_each_layer(family: str, tmp_path: Path) -> None:
    spec = spec_of(family, tmp_path)
    assert (spec.latent_dim, spec.head_dim) == (512, 576)
    assert bytes_per_token(spec, "auto") == 2 * spec.kv_elements == spec.n_layers * (512 + 64) * 2
    if family == "deepseek_v3":
        assert bytes_per_token(spec, "auto") == 70_272
        assert _formula(spec, Config(), 70_272) == "61 layers x (1152 B of latents) = 70,272 B"


def test_pages_have_no_values_of_their_own(tmp_path: Path) -> None:
    """Page 1 is partly copied, a slot moves, and page 2 goes through the host and to another engine."""
    spec = spec_of("deepseek_v3", tmp_path)
    pool, other = (KVPool(spec, 5, 4, "cpu", n_host=2, kv_dtype="int8") for _ in range(2))
    for k, _ in pool.kv:
        for part in parts(k):
            part.copy_(torch.randint(0, 120, part.shape).to(part.dtype))
    first = [part.clone() for part in parts(pool.kv[0][0])]
    pool.copy([(1, 3, 2)])
    pool.copy_slots([([1], [0])])
    pool.move([Move(True, 2, 1), Move(False, 4, 1)])
    memory = torch.empty(pool.export_bytes(1), dtype=torch.uint8)
    assert len(memory) >= 4 * bytes_per_token(spec, "int8")
    pool.export([2], memory, 0, 1)
    other.load([0], memory, 0, 1)
    k, v = pool.kv[0]
    for part, old, loaded in zip(parts(k), first, parts(other.kv[0][0]), strict=True):
        assert torch.equal(part[3, :2], old[1, :2])
        assert torch.equal(part[0, 0], old[0, 1])
        assert torch.equal(part[4], old[2])
        assert torch.equal(loaded[0], old[2])
    assert torch.equal(parts(v)[0], parts(k)[0][..., :512])
    with pytest.raises(ConfigError, match="part of its keys"):
        KVPool(spec, 1, 4, "cpu", kv_dtype="k8v4")


def test_latents_in_8_bits(path: Callable[[str], Path], fake: ModuleType, reference: Callable[[Path], Any]) -> None:
    """The output is the same cold, warm and in other chunks."""
    own, prompt = Tiny(path("deepseek_v3"), fake, reference), text(40)
    answers = []
    for step_tokens in (7, 512):
        e = own.engine(step_tokens=step_tokens, kv_dtype="int8")
        for _ in range(2):
            answers.append(fake.drive(e, [fake.run(0, prompt)], check=True)[0].ids)
    assert answers == answers[:1] * 4


def test_keys_and_values_of_all_heads_are_padded_where_latents_are_not_found(
    path: Callable[[str], Path], tiny: Any, reference: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example with a release of transformers that computes latents in another way."""
    monkeypatch.setattr(latent, "has_latents", lambda model_class: False)
    directory, ids = path("deepseek_v3"), text(30)
    model = load(directory)
    assert (model.spec.latent_dim, model.spec.n_kv_heads, model.spec.head_dim) == (0, 4, 16)
    want = tiny.reference_logits(reference(directory), ids)
    torch.testing.assert_close(tiny.Paged(model).run(ids, chunk=13), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weight_dtype", in_short(["auto"], ["auto", "int8"]))
def test_weights_take_what_their_size_says(weight_dtype: str, path: Callable[[str], Path]) -> None:
    from banyan.runtime.model.size import measure, weight_size

    directory = path("deepseek_v3")
    model = load(directory, weight_dtype=weight_dtype)
    planned = weight_size(directory, model.spec, "cpu", "float32", model.spec.max_context, False, weight_dtype)
    assert measure(model) == planned


def test_values_are_a_view_of_keys() -> None:
    (k, v), (other, _) = kv_pools(2, (3, 4, 1, 24), (torch.float32, torch.float32), latent_dim=16)
    k.fill_(1.0)  # type: ignore[union-attr]
    other.fill_(2.0)  # type: ignore[union-attr]
    assert v.shape == (3, 4, 1, 16)
    assert bool((v == 1.0).all())  # type: ignore[union-attr]
    assert stored(k, v) == (k,)
