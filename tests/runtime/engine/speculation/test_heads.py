"""EAGLE, EAGLE-3 and Medusa heads: loading, inputs, and unchanged outputs."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from banyan.runtime import config as configs
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.heads import kind_of
from banyan.runtime.protocol.wire import Run, Sampling
from forms import in_short, short_form

HIDDEN, VOCAB, N_HEADS = 64, 320, 3
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, max_tokens=24),
    "sampled": Sampling(temperature=1.0, max_tokens=24),
    "penalties": Sampling(temperature=0.7, frequency_penalty=0.9, repetition_penalty=1.3, max_tokens=24),
}


def medusa(path: Path, model_path: Path) -> Path:
    """Heads that predict the model's own next token, which is correct where the output repeats itself."""
    path.mkdir()
    head = load_file(model_path / "model.safetensors")
    last = head.get("lm_head.weight", head["model.embed_tokens.weight"])
    tensors = {}
    for i in range(N_HEADS):
        tensors[f"{i}.0.linear.weight"] = torch.zeros(HIDDEN, HIDDEN)
        tensors[f"{i}.0.linear.bias"] = torch.zeros(HIDDEN)
        tensors[f"{i}.1.weight"] = last.clone()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"medusa_num_heads": N_HEADS, "medusa_num_layers": 1}))
    return path


def eagle(path: Path, model_path: Path) -> Path:
    """A layer of the large model's shape with its own random weights."""
    path.mkdir()
    config = json.loads((model_path / "config.json").read_text())
    torch.manual_seed(1)
    n_q, n_kv, ffn = HIDDEN, HIDDEN // 2, config["intermediate_size"]
    shapes = {
        "self_attn.q_proj": (n_q, HIDDEN), "self_attn.k_proj": (n_kv, HIDDEN), "self_attn.v_proj": (n_kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, n_q), "mlp.gate_proj": (ffn, HIDDEN), "mlp.up_proj": (ffn, HIDDEN),
        "mlp.down_proj": (HIDDEN, ffn),
    }  # fmt: skip
    tensors = {f"layers.0.{name}.weight": 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    tensors["fc.weight"] = torch.cat([0.1 * torch.randn(HIDDEN, HIDDEN), torch.eye(HIDDEN)], 1)
    tensors["fc.bias"] = torch.zeros(HIDDEN)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return path


def eagle3(path: Path, model_path: Path) -> Path:
    """A layer of the large model's shape with its own random weights. It proposes only every third token, from 2 on."""
    path.mkdir()
    config = json.loads((model_path / "config.json").read_text())
    torch.manual_seed(2)
    n_kv, ffn, ids = HIDDEN // 2, config["intermediate_size"], torch.arange(2, VOCAB, 3)
    shapes = {
        "fc": (HIDDEN, 3 * HIDDEN), "lm_head": (len(ids), HIDDEN), "midlayer.self_attn.q_proj": (HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj": (n_kv, 2 * HIDDEN), "midlayer.self_attn.v_proj": (n_kv, 2 * HIDDEN),
        "midlayer.self_attn.o_proj": (HIDDEN, HIDDEN), "midlayer.mlp.gate_proj": (ffn, HIDDEN),
        "midlayer.mlp.up_proj": (ffn, HIDDEN), "midlayer.mlp.down_proj": (HIDDEN, ffn),
    }  # fmt: skip
    tensors = {f"{name}.weight": 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    for name in ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = 1 + 0.1 * torch.randn(HIDDEN)
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "draft_vocab_size": len(ids)}))
    return path


KINDS = {"medusa": medusa, "eagle": eagle, "eagle3": eagle3}


@pytest.fixture(scope="module")
def models(tiny_model: Callable[..., Path]) -> dict[str, Path]:
    """The model of each kind of head. EAGLE-3 reads three different layers."""
    return {
        kind: tiny_model("llama", num_hidden_layers=7) if kind == "eagle3" else tiny_model("llama") for kind in KINDS
    }


@pytest.fixture(scope="module")
def folders(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("heads")
    return {kind: make(base / kind, models[kind]) for kind, make in KINDS.items()}


def engine(model_path: Path, head: Path | None, **options: Any) -> EngineLoop:
    options |= {"draft_model": str(head), "speculate": "model"} if head else {"speculate": "off"}
    return build(configs.make(model=str(model_path), device="cpu", threads=1, kv_memory="4MB", **options))


@pytest.mark.parametrize(
    ("kind", "page", "sampling"),
    short_form(
        product(KINDS, [4, 16], SAMPLINGS),
        lambda *case: case in (("medusa", 4, "greedy"), ("eagle3", 4, "sampled")),
    ),
)
def test_outputs_with_heads_match_outputs_without(
    fake: ModuleType, models: dict[str, Path], folders: dict[str, Path], kind: str, page: int, sampling: str,
) -> None:  # fmt: skip
    model_path, runs = models[kind], fake.forked_runs(6, SAMPLINGS[sampling])
    plain = fake.drive(engine(model_path, None, page=page), runs)
    e = engine(model_path, folders[kind], page=page)
    name = kind.removesuffix("3")
    assert fake.always_draft(e).name == name
    for _ in range(2):
        drafted = fake.drive(e, runs, check=True)
        assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    assert e.drafting.stats()[f"drafted_{name}"] > 100
    finish = [o.finish for o in drafted.values()]
    assert any(name in f.drafts for f in finish)


@pytest.mark.parametrize(
    ("kind", "page"),
    short_form(product(KINDS, [1, 4]), lambda kind, page: (kind, page) in (("medusa", 4), ("eagle", 1))),
)
def test_heads_support_short_texts(
    fake: ModuleType, models: dict[str, Path], folders: dict[str, Path], kind: str, page: int
) -> None:
    model_path, runs = models[kind], fake.short_runs()
    plain = {rid: output.ids for rid, output in fake.drive(engine(model_path, None, page=page), runs).items()}
    e = engine(model_path, folders[kind], page=page)
    drafter, slots = fake.always_draft(e), []
    prepare = drafter.prepare

    def recorded(queries: Any) -> None:
        slots.extend(request.n_total - 2 for request, _ in queries)
        prepare(queries)

    drafter.prepare = recorded
    for batch in (runs, runs, *([run] for run in runs)):
        drafted = fake.drive(e, batch, check=True)
        assert {rid: output.ids for rid, output in drafted.items()} == {run.rid: plain[run.rid] for run in batch}
    assert slots
    assert min(slots) >= 0, "the features of a computed token"


def test_medusa_reads_the_last_feature(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path]
) -> None:
    """Each of these heads predicts the token that the model drew from that feature: the last one of the text."""
    e = engine(tiny_model("llama"), folders["medusa"])
    drafter, output = fake.always_draft(e), []
    propose = drafter.propose

    def recorded(request: Any, n: int) -> Any:
        chains = propose(request, n)
        output.append((request.ids[-1], [list(chain.tokens) for chain in chains]))
        return chains

    drafter.propose = recorded
    fake.drive(e, fake.forked_runs(1, SAMPLINGS["greedy"]))
    assert len(output) > 10
    for last, chains in output:
        assert chains[0] == [last] * len(chains[0]), "the best token of each head"
        assert len(chains) == 1 + min(2, len(chains[0])), "plus the second best of the first heads"
        assert all(chain[:-1] == [last] * (len(chain) - 1) != chain for chain in chains[1:])


@pytest.mark.parametrize("kind", in_short(["eagle"], ["eagle", "eagle3"]))
def test_eagle_proposals_do_not_depend_on_the_prefill(
    fake: ModuleType, models: dict[str, Path], folders: dict[str, Path], kind: str
) -> None:
    """The inputs of EAGLE are the same whether the text was generated step by step or given as a prompt."""

    def proposals(runs: list[Run]) -> dict[int, list[list[int]]]:
        e = engine(models[kind], folders[kind], page=4)
        drafter, out = fake.always_draft(e), {}
        propose = drafter.propose

        def recorded(request: Any, n: int) -> Any:
            chains = propose(request, n)
            out[request.n_total] = [list(chain.tokens[:2]) for chain in chains[:1]]
            return chains

        drafter.propose = recorded
        for run in runs:
            fake.drive(e, [run])
        return out

    (run,) = fake.forked_runs(1, SAMPLINGS["greedy"])
    output = fake.drive(engine(models[kind], None), [run])[0].ids
    stepwise = proposals([run])
    text = [*array("i", run.ids), *output]
    short = Sampling(temperature=0.0, max_tokens=4)
    for n in list(stepwise)[1:12:3]:
        assert proposals([Run(0, array("i", text[: n - 1]).tobytes(), short)])[n] == stepwise[n]


def test_stored_features_are_those_of_the_model(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path]
) -> None:
    """The model's head, applied to the feature stored with a slot, predicts the token that came next."""
    e = engine(tiny_model("llama"), folders["eagle"], page=4)
    run = fake.forked_runs(1, SAMPLINGS["greedy"])[0]
    output = fake.drive(e, [run])[0].ids
    text = [*array("i", run.ids), *output]
    e.take(Run(9, array("i", text).tobytes(), SAMPLINGS["greedy"]))
    e.step()
    (request,) = e.scheduler.running
    model: Any = e.model.model
    at = [request.slot(i) for i in range(37, len(text) - 1)]
    assert model.head(model.features.slots[at]).argmax(-1).tolist() == text[38:]


@pytest.mark.parametrize("is_fused", in_short([True], [True, False]), ids=["fused", "op by op"])
def test_eagle3_logits_are_those_of_its_definition(
    fake: ModuleType, models: dict[str, Path], folders: dict[str, Path], reference: Callable[[Path], Any],
    monkeypatch: pytest.MonkeyPatch, is_fused: bool,
) -> None:  # fmt: skip
    """The first proposed token is the best one of the head written in plain torch, on transformers' hidden states."""
    if not is_fused:
        monkeypatch.setattr("banyan.runtime.model.decoder.fused", lambda *_: None)
    run = fake.forked_runs(1, SAMPLINGS["greedy"])[0]
    e = engine(models["eagle3"], folders["eagle3"], page=4)
    drafter, seen = fake.always_draft(e), {}
    propose = drafter.propose

    def recorded(request: Any, n: int) -> Any:
        chains = propose(request, n)
        seen[request.n_total] = chains[0].tokens[0]
        return chains

    drafter.propose = recorded
    output = fake.drive(e, [run])[run.rid].ids
    text = torch.tensor([*array("i", run.ids), *output])
    assert len(seen) > 5

    w = load_file(folders["eagle3"] / "model.safetensors")
    embed = load_file(models["eagle3"] / "model.safetensors")["model.embed_tokens.weight"]
    model = reference(models["eagle3"])
    with torch.no_grad():
        states = model(text[None], output_hidden_states=True).hidden_states
    features = torch.cat([states[i][0] for i in (2, 3, 4)], -1) @ w["fc.weight"].T

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], model.config.rms_norm_eps)

    before = torch.cat([torch.zeros(1, HIDDEN), features[:-1]])
    x = torch.cat([norm(embed[text], "midlayer.input_layernorm"), norm(before, "midlayer.hidden_norm")], -1)
    q, k, v = (
        (x @ w[f"midlayer.self_attn.{name}_proj.weight"].T).view(len(text), -1, HIDDEN // 4).transpose(0, 1)
        for name in "qkv"
    )
    angles = torch.outer(
        torch.arange(len(text)).float(), model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, 16, 2) / 16)
    )

    def turn(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    out = torch.nn.functional.scaled_dot_product_attention(
        turn(q)[None], turn(k)[None], v[None], is_causal=True, enable_gqa=True
    )[0]
    x = before + out.transpose(0, 1).reshape(len(text), HIDDEN) @ w["midlayer.self_attn.o_proj.weight"].T
    h = norm(x, "midlayer.post_attention_layernorm")
    gate, up, down = (w[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    x = x + (torch.nn.functional.silu(h @ gate.T) * (h @ up.T)) @ down.T
    best = (norm(x, "norm") @ w["lm_head.weight"].T).argmax(-1)
    ids = torch.arange(2, VOCAB, 3)
    assert seen == {n: int(ids[best[n - 1]]) for n in seen}


def test_unsupported_heads_are_refused(
    tiny_model: Callable[..., Path], models: dict[str, Path], folders: dict[str, Path], tmp_path: Path
) -> None:
    model_path = tiny_model("llama")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "medusa_lm_head.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(BadModel, match=r"never opened; convert one that you trust: safetensors\.torch\.save_file"):
        kind_of(pickled)
    with pytest.raises(Unsupported, match="reads three layers of its model, so it needs a model of at least 7 layers"):
        engine(model_path, folders["eagle3"])
    other_layers = tmp_path / "other layers"
    shutil.copytree(folders["eagle3"], other_layers)
    config = json.loads((other_layers / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}
    (other_layers / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"reads the outputs of layers \[0, 2, 3\]; .* here \[1, 2, 3\]$"):
        engine(models["eagle3"], other_layers)
    for kind, other in (("medusa", {"0.1.weight": torch.zeros(VOCAB, 8)}), ("eagle", None)):
        wrong = tmp_path / kind
        wrong.mkdir()
        tensors = load_file(folders[kind] / "model.safetensors")
        config = json.loads((folders[kind] / "config.json").read_text())
        save_file(tensors | (other or {}), wrong / "model.safetensors")
        (wrong / "config.json").write_text(json.dumps(config if other else config | {"vocab_size": 999}))
        with pytest.raises(Unsupported, match="was made for a different model"):
            engine(model_path, wrong)
    with pytest.raises(Unsupported, match="does not show them; name a smaller model"):
        engine(tiny_model("gemma2"), folders["medusa"])


def test_tensor_that_belongs_to_no_head_is_named(
    tiny_model: Callable[..., Path], folders: dict[str, Path], tmp_path: Path
) -> None:
    other = {name: torch.zeros(1) for name in ("", "0x.weight")}
    (tmp_path / "config.json").write_text((folders["medusa"] / "config.json").read_text())
    save_file(other, tmp_path / "model.safetensors")
    with pytest.raises(BadModel, match="has no heads"):
        engine(tiny_model("llama"), tmp_path)
    save_file(load_file(folders["medusa"] / "model.safetensors") | other, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"does not use: , 0x\.weight"):
        engine(tiny_model("llama"), tmp_path)


def test_kind_of_recognises_heads_and_models(tiny_model: Callable[..., Path], folders: dict[str, Path]) -> None:
    assert {name: kind_of(path) for name, path in folders.items()} == {name: name for name in folders}
    assert kind_of(tiny_model("qwen3")) == "model"
