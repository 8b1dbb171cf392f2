"""Heads as EAGLE's and as Medusa's: read by their makers' names, fed with what they are to read, and lossless."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
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

HIDDEN, VOCAB, N_HEADS = 64, 320, 3
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, max_tokens=24),
    "sampled": Sampling(temperature=1.0, max_tokens=24),
    "penalties": Sampling(temperature=0.7, frequency_penalty=0.9, repetition_penalty=1.3, max_tokens=24),
}


def medusa(path: Path, large: Path) -> Path:
    """Heads that say what the model itself says next: right where it repeats itself, and that is enough."""
    path.mkdir()
    head = load_file(large / "model.safetensors")
    last = head.get("lm_head.weight", head["model.embed_tokens.weight"])
    tensors = {}
    for i in range(N_HEADS):
        tensors[f"{i}.0.linear.weight"] = torch.zeros(HIDDEN, HIDDEN)
        tensors[f"{i}.0.linear.bias"] = torch.zeros(HIDDEN)
        tensors[f"{i}.1.weight"] = last.clone()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"medusa_num_heads": N_HEADS, "medusa_num_layers": 1}))
    return path


def eagle(path: Path, large: Path) -> Path:
    """A layer of the large model's shape with weights of its own."""
    path.mkdir()
    config = json.loads((large / "config.json").read_text())
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


MAKERS = {"medusa": medusa, "eagle": eagle}


@pytest.fixture(scope="module")
def folders(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("heads")
    return {name: make(base / name, tiny_model("llama")) for name, make in MAKERS.items()}


def engine(large: Path, head: Path | None, **options: Any) -> EngineLoop:
    options |= {"draft_model": str(head), "speculate": "model"} if head else {"speculate": "off"}
    return build(configs.make(model=str(large), device="cpu", threads=1, kv_memory="4MB", **options))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("page", [4, 16])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_outputs(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path], kind: str, page: int,
    sampling: Sampling,
) -> None:  # fmt: skip
    large, jobs = tiny_model("llama"), fake.forked(6, sampling)
    plain = fake.drive(engine(large, None, page=page), jobs)
    e = engine(large, folders[kind], page=page)
    assert fake.asked(e).name == kind
    for _ in range(2):
        drafted = fake.drive(e, jobs, check=True)
        assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    assert e.drafting.stats()[f"drafted_{kind}"] > 100
    finish = [o.finish for o in drafted.values()]
    assert any(kind in f.drafts for f in finish)


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("kind", MAKERS)
def test_short_texts(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path], kind: str, page: int
) -> None:
    large, jobs = tiny_model("llama"), fake.short()
    plain = {rid: output.ids for rid, output in fake.drive(engine(large, None, page=page), jobs).items()}
    e = engine(large, folders[kind], page=page)
    drafter, slots = fake.asked(e), []
    prepare = drafter.prepare

    def watched(asks: Any) -> None:
        slots.extend(request.n_total - 2 for request, _ in asks)
        prepare(asks)

    drafter.prepare = watched
    for some in (jobs, jobs, *([job] for job in jobs)):
        drafted = fake.drive(e, some, check=True)
        assert {rid: output.ids for rid, output in drafted.items()} == {job.rid: plain[job.rid] for job in some}
    assert slots
    assert min(slots) >= 0, "a feature of a token that is there"


def test_medusa_reads_the_last_feature(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path]
) -> None:
    """These heads say what the model said before the last token: the last token."""
    e = engine(tiny_model("llama"), folders["medusa"])
    drafter, said = fake.asked(e), []
    propose = drafter.propose

    def watched(request: Any, n: int) -> Any:
        chains = propose(request, n)
        said.append((request.ids[-1], [list(chain.tokens) for chain in chains]))
        return chains

    drafter.propose = watched
    fake.drive(e, fake.forked(1, SAMPLINGS["greedy"]))
    assert len(said) > 10
    for last, chains in said:
        assert chains[0] == [last] * len(chains[0]), "of each head the best"
        assert len(chains) == 1 + min(2, len(chains[0])), "and beside the first ones the second best"
        assert all(chain[:-1] == [last] * (len(chain) - 1) != chain for chain in chains[1:])


def test_eagle_says_the_same_however_it_came_there(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path]
) -> None:
    """Along an output, drafts accepted or not, or at once over it as a prompt: what it reads is the same."""

    def proposals(jobs: list[Run]) -> dict[int, list[list[int]]]:
        e = engine(tiny_model("llama"), folders["eagle"], page=4)
        drafter, out = fake.asked(e), {}
        propose = drafter.propose

        def watched(request: Any, n: int) -> Any:
            chains = propose(request, n)
            out[request.n_total] = [list(chain.tokens[:2]) for chain in chains[:1]]
            return chains

        drafter.propose = watched
        for job in jobs:
            fake.drive(e, [job])
        return out

    (job,) = fake.forked(1, SAMPLINGS["greedy"])
    said = fake.drive(engine(tiny_model("llama"), None), [job])[0].ids
    along = proposals([job])
    text = [*array("i", job.ids), *said]
    short = Sampling(temperature=0.0, max_tokens=4)
    for n in list(along)[1:12:3]:
        assert proposals([Run(0, array("i", text[: n - 1]).tobytes(), short)])[n] == along[n]


def test_features_are_those_of_the_model(
    fake: ModuleType, tiny_model: Callable[..., Path], folders: dict[str, Path]
) -> None:
    """The hidden state beside a slot, through the model's own head, says the token that came next."""
    e = engine(tiny_model("llama"), folders["eagle"], page=4)
    job = fake.forked(1, SAMPLINGS["greedy"])[0]
    said = fake.drive(e, [job])[0].ids
    text = [*array("i", job.ids), *said]
    e.take(Run(9, array("i", text).tobytes(), SAMPLINGS["greedy"]))
    e.step()
    (request,) = e.scheduler.running
    large: Any = e.model.model
    at = [request.slot(i) for i in range(37, len(text) - 1)]
    assert large.head(large.features[at]).argmax(-1).tolist() == text[38:]


def test_what_is_refused(tiny_model: Callable[..., Path], folders: dict[str, Path], tmp_path: Path) -> None:
    large = tiny_model("llama")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "medusa_lm_head.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(BadModel, match=r"never opened; convert one that you trust: safetensors\.torch\.save_file"):
        kind_of(pickled)
    newer = tmp_path / "newer"
    newer.mkdir()
    save_file({"midlayer.self_attn.q_proj.weight": torch.zeros(2, 2)}, newer / "model.safetensors")
    with pytest.raises(Unsupported, match="EAGLE-3"):
        kind_of(newer)
    for kind, other in (("medusa", {"0.1.weight": torch.zeros(VOCAB, 8)}), ("eagle", None)):
        wrong = tmp_path / kind
        wrong.mkdir()
        tensors = load_file(folders[kind] / "model.safetensors")
        config = json.loads((folders[kind] / "config.json").read_text())
        save_file(tensors | (other or {}), wrong / "model.safetensors")
        (wrong / "config.json").write_text(json.dumps(config if other else config | {"vocab_size": 999}))
        with pytest.raises(Unsupported, match="was made for another model"):
            engine(large, wrong)
    with pytest.raises(Unsupported, match="does not show them; name a smaller model"):
        engine(tiny_model("gemma2"), folders["medusa"])


def test_kinds(tiny_model: Callable[..., Path], folders: dict[str, Path]) -> None:
    assert {name: kind_of(path) for name, path in folders.items()} == {name: name for name in folders}
    assert kind_of(tiny_model("qwen3")) == "model"
