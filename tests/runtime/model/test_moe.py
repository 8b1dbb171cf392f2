"""Experts of transformers' models in our op: families, weights in few bits, and what stays in transformers' code."""

from __future__ import annotations

import math
import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from transformers import logging

from banyan.kernels.linear.packed import GroupedRows, Packed
from banyan.kernels.moe.experts import Gate
from banyan.runtime.model import moe
from banyan.runtime.model.load import load
from banyan.runtime.model.quantised.fp4 import regroup
from forms import in_short

MOE = {"hidden_size": 64, "intermediate_size": 112, "moe_intermediate_size": 32, "num_hidden_layers": 2,
       "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512,
       "num_experts_per_tok": 2}  # fmt: skip
LATENT = MOE | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "kv_lora_rank": 16,
                "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}  # fmt: skip
FAMILIES = {  # family -> its fields, and its layers with experts; tests/tiny.py has the fields of the others
    "mixtral": ({}, 2),
    "qwen2_moe": ({}, 2),
    "gpt_oss": ({}, 2),
    "qwen3_moe": (MOE | {"num_experts": 4, "head_dim": 16}, 2),
    "deepseek_v2": (LATENT, 1),
    "deepseek_v3": (LATENT, 1),
}
IDS = random.Random(0).choices(range(3, 320), k=40)


def packed_experts(model):
    return [module.packed for module in model._model.modules() if isinstance(module, moe.PackedExperts)]


@pytest.fixture(autouse=True)
def families(tiny, monkeypatch):
    logging.set_verbosity_error()
    for family, (fields, _) in FAMILIES.items():
        if fields:
            monkeypatch.setitem(tiny.TINY, family, fields)


@pytest.mark.parametrize("family", in_short(["mixtral", "gpt_oss"], FAMILIES))
def test_families_compute_experts_in_our_op(family, tiny, tiny_model, reference, device):
    path = tiny_model(family)
    model, expected_model = load(path, device=device), reference(path)
    assert len(packed_experts(model)) == FAMILIES[family][1]
    got = tiny.Paged(model, device=device).run(IDS, chunk=16)
    torch.testing.assert_close(got, tiny.reference_logits(expected_model, IDS), atol=1e-4, rtol=1e-4)
    actual = tiny.Paged(model, device=device).greedy(IDS, 12, chunk=13)
    assert actual == tiny.reference_greedy(expected_model, IDS, 12, actual)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize(("n_bits", "most"), [(8, 0.1), (4, 0.8)])
def test_experts_in_few_bits(family, n_bits, most, tiny, tiny_model, reference, device):
    path = tiny_model(family)
    model = load(path, device=device, weight_dtype=f"int{n_bits}")
    weights = [weight for own in packed_experts(model) for weight in own[:2]]
    layout = Packed if device == "cpu" else GroupedRows
    assert all(isinstance(weight, layout) and weight.n_bits == n_bits for weight in weights)
    got, want = tiny.Paged(model, device=device).run(IDS, chunk=16), tiny.reference_logits(reference(path), IDS)
    off = (got - want).norm(dim=-1) / want.norm(dim=-1)  # of a token; rounding can route it to other experts
    assert 1e-4 < off.median() < most


def experts(apply_gate, **fields):
    shape: dict[str, object] = dict.fromkeys(moe._FIELDS, True) | {"is_transposed": False, "has_bias": False} | fields
    return SimpleNamespace(_apply_gate=apply_gate, **shape)


def clamped(gate_up, limit=5.0):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def test_gates_are_recognised_by_what_they_compute():
    curve = pytest.approx(1.59577), pytest.approx(0.044715)
    for act, want in {
        lambda x: F.silu(x[..., ::2]) * x[..., 1::2]: None,  # interleaved, which `is_concatenated` denies
        lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]: (1.0, 0.0, math.inf, 0.0),
        lambda x: F.gelu(x.chunk(2, -1)[0], approximate="tanh") * x.chunk(2, -1)[1]: (*curve, math.inf, 0.0),
        lambda x: F.relu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]: None,
    }.items():
        assert moe.gate_of(experts(act)) == want
    assert moe.gate_of(experts(clamped, swiglu_limit=5.0)) == Gate(limit=5.0)
    assert moe.gate_of(experts(clamped)) is None
    assert moe.gate_of(experts(clamped, swiglu_limit=5.0, has_post_expert_norm=True)) is None
    assert moe.gate_of(experts(clamped, swiglu_limit=5.0, has_gate=False)) is None
    assert moe.gate_of(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize("limit", [7.0, 15.0, 25.0, 1000.0])
def test_clamps_are_recognised_whatever_their_limit(limit):
    assert moe.gate_of(experts(partial(clamped, limit=limit), swiglu_limit=limit)) == Gate(limit=limit)
    assert moe.gate_of(experts(partial(clamped, limit=math.inf), swiglu_limit=limit)) == Gate()

    def clamps_gate_only(gate_up):
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate.clamp(max=limit)) * up

    assert moe.gate_of(experts(clamps_gate_only, swiglu_limit=limit)) is None


def test_numbers_of_mxfp4_are_found_without_a_loss():
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    weight = values[torch.randint(0, 8, (6, 96))] * torch.randint(-1, 2, (6, 96))
    weight = (weight.view(6, 3, 32) * 2.0 ** torch.randint(-9, 3, (6, 3, 1))).flatten(1)
    weight[0, :32], weight[1, 0] = 0.0, -0.0
    small = regroup(weight.bfloat16())
    assert torch.equal(small.dequantise(), weight)
    assert regroup(weight + 1e-3) is not None
    assert isinstance(regroup(weight + 1e-3), torch.Tensor)
    assert isinstance(regroup(weight[:, :40]), torch.Tensor)
