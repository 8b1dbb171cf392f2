"""A draft model: outputs are unchanged, and its KV pages are shared between requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation import drafters
from banyan.runtime.engine.speculation.draft import PagesLost
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import Abort, Run, Sampling
from forms import in_short, short_form

GREEDY = Sampling(temperature=0.0, max_tokens=20)
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(temperature=1.0, max_tokens=20),
    "filtered": Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, max_tokens=20),
    "penalties": Sampling(temperature=0.7, frequency_penalty=0.9, repetition_penalty=1.3, max_tokens=20),
    "logprobs": Sampling(temperature=1.0, logprobs=True, top_logprobs=2, max_tokens=20),
}


@pytest.fixture(scope="module")
def large(tiny_model: Callable[..., Path]) -> Model:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def other(tiny_model: Callable[..., Path]) -> Model:
    return load(tiny_model("qwen3"))


def engine(large: Model, small: Model | None, n_pages: int = 0, **options: Any) -> EngineLoop:
    options |= {"speculate": "model", "draft_model": "it"} if small else {"speculate": "off"}
    config = configs.make(**options)
    resolved = Resolved(
        device="cpu", dtype="float32", context=256, n_pages=n_pages or 2048 // config.page, threads=1, decisions=()
    )
    return EngineLoop(config, large, resolved, stopwatch=lambda: 0.0, draft_model=small)


@pytest.mark.parametrize(
    ("draft", "page", "name"),
    short_form(
        product(["itself", "another"], [1, 16], SAMPLINGS),
        lambda draft, page, name: (draft == "itself") == (name != "logprobs") and (page == 1) == (name == "sampled"),
    ),
)
def test_outputs_with_a_draft_model_match_outputs_without(
    fake: ModuleType, large: Model, other: Model, name: str, page: int, draft: str
) -> None:
    runs, is_itself = fake.forked_runs(6, SAMPLINGS[name]), draft == "itself"
    plain = fake.drive(engine(large, None, page=page), runs)
    e = engine(large, large if is_itself else other, page=page)
    fake.always_draft(e)
    for _ in range(2):
        drafted = fake.drive(e, runs, check=True)
        for rid, output in plain.items():
            assert drafted[rid].ids == output.ids
            assert [t.logprob for t in drafted[rid].logprobs] == pytest.approx(
                [t.logprob for t in output.logprobs], abs=1e-4
            )
    stats = e.drafting.stats()
    assert stats["drafted_model"] > 0
    if is_itself:  # it uses the same random numbers, so sampled drafts are correct too
        assert stats["accepted_model"] > 0.7 * stats["drafted_model"] > 50
        assert e.scheduler.counts["steps"] < 20
    assert not e.drafting.drafters[0]._texts  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", in_short([1], [1, 4]))
def test_draft_model_supports_short_texts(fake: ModuleType, large: Model, page: int) -> None:
    runs = fake.short_runs()
    plain = {rid: output.ids for rid, output in fake.drive(engine(large, None, page=page), runs).items()}
    e = engine(large, large, page=page)
    fake.always_draft(e)
    for batch in (runs, runs, *([run] for run in runs)):
        drafted = fake.drive(e, batch, check=True)
        assert {rid: output.ids for rid, output in drafted.items()} == {run.rid: plain[run.rid] for run in batch}
    assert not e.drafting.drafters[0]._texts  # type: ignore[attr-defined]


def test_draft_model_reuses_pages_of_a_shared_prefix(fake: ModuleType, large: Model) -> None:
    e = engine(large, large, page=4)
    fake.always_draft(e)
    drafter: Any = e.drafting.drafters[0]
    fake.drive(e, fake.forked_runs(1, GREEDY))
    e.take(fake.forked_runs(3, GREEDY)[2])
    e.step()
    (request,) = e.scheduler.running
    assert isinstance(request, Request)
    assert request.n_cached >= 36
    assert drafter.n_behind(request) <= request.n_total - 36, "the shared prefix is not recomputed"
    e.take(Abort(2))
    e.step()
    assert not drafter._texts


@pytest.mark.parametrize(("page", "n_pages"), short_form([(4, 28), (16, 8)], lambda page, _: page == 16))
def test_reassigned_pages_are_recomputed_by_the_draft_model(
    fake: ModuleType, large: Model, monkeypatch: pytest.MonkeyPatch, page: int, n_pages: int
) -> None:
    """There are so few pages that requests are retracted; drafts from stale pages would be rejected."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    sampling = Sampling(temperature=0.0, max_tokens=40)
    plain = fake.drive(engine(large, None), fake.forked_runs(6, sampling))
    e = engine(large, large, n_pages, page=page)
    fake.always_draft(e)
    drafted = fake.drive(e, fake.forked_runs(6, sampling), check=True)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    assert e.scheduler.counts["retractions"] > 0
    stats = e.drafting.stats()
    assert stats["accepted_model"] > 0.7 * stats["drafted_model"] > 0


def test_draft_model_far_behind_catches_up(fake: ModuleType, large: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("banyan.runtime.engine.speculation.model.MAX_CATCH_UP", 25)
    runs = fake.forked_runs(2, Sampling(temperature=0.0, max_tokens=120))
    plain = fake.drive(engine(large, None), runs)
    e = engine(large, large)
    fake.always_draft(e)
    drafted = fake.drive(e, runs, check=True)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    assert e.drafting.stats()["accepted_model"] > 0


def test_draft_model_with_a_shorter_context_changes_no_output(
    fake: ModuleType, large: Model, tiny_model: Callable[..., Path]
) -> None:
    small = load(tiny_model("qwen3"), max_context=60)
    small.spec = msgspec.structs.replace(small.spec, max_context=50)
    plain = fake.drive(engine(large, None), fake.forked_runs(4, GREEDY))
    e = engine(large, small)
    fake.always_draft(e)
    drafted = fake.drive(e, fake.forked_runs(4, GREEDY), check=True)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(max_tokens=20, logit_bias={300: -100.0, 317: 5.0}),
                                      SAMPLINGS["penalties"]], ids=["greedy", "bias", "penalties"])  # fmt: skip
def test_draft_model_with_a_smaller_vocabulary_changes_no_output(
    fake: ModuleType, large: Model, tiny_model: Callable[..., Path], sampling: Sampling
) -> None:
    """The padding of the embeddings may differ between models of one family."""
    small = load(tiny_model("qwen3", vocab=280))
    prompts = [[1, 300 + rid, 3, *range(30), 319] for rid in range(3)]
    runs = [fake.run(rid, ids, sampling, seed=rid) for rid, ids in enumerate(prompts)]
    plain = fake.drive(engine(large, None), runs)
    e = engine(large, small)
    fake.always_draft(e)
    drafted = fake.drive(e, runs, check=True)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    assert all(output.finish.reason == "length" for output in drafted.values())
    assert e.drafting.stats()["drafted_model"] > 0


def test_draft_model_with_another_tokenizer_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    large = tiny_model("llama")
    config = configs.make(model=str(large), draft_model=str(tiny_model("qwen3")))
    found = drafters.find(config, large)
    assert found is not None
    assert (found.path, found.kind) == (tiny_model("qwen3"), "model")
    shutil.copytree(large, tmp_path / "copy")
    file = tmp_path / "copy" / "tokenizer.json"
    known = json.loads(file.read_text())
    vocab = known["model"]["vocab"]
    a, b = list(vocab)[5:7]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    file.write_text(json.dumps(known))
    with pytest.raises(ConfigError, match=r"uses a different tokenizer from .*: token .* name a model of the same"):
        drafters.find(configs.make(model=str(large), draft_model=str(tmp_path / "copy")), large)


def test_draft_model_option_builds_a_drafting_engine(fake: ModuleType, tiny_model: Callable[..., Path]) -> None:
    e = build(configs.make(model=str(tiny_model("llama")), draft_model=str(tiny_model("qwen3")), device="cpu",
                           threads=1, kv_memory="4MB"))  # fmt: skip
    assert [d.name for d in e.drafting.drafters] == ["tree", "ngram", "model"]
    alone = build(configs.make(model=str(tiny_model("llama")), device="cpu", threads=1, kv_memory="4MB"))
    assert e.resolved.n_pages < alone.resolved.n_pages, "both models share the KV memory"
    runs: Sequence[Run] = fake.forked_runs(3, GREEDY)
    drafted, plain = fake.drive(e, runs), fake.drive(alone, runs)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}


@pytest.fixture(scope="module")
def decided_early(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose last three of four layers add nothing, so that its first layer knows each token."""
    path = tmp_path_factory.mktemp("early") / "model"
    shutil.copytree(tiny_model("llama", num_hidden_layers=4), path)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")) and ".layers.0." not in name:
            tensor.zero_()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize(
    ("is_decided", "options", "name"),
    short_form(
        product([True, False], [{"page": 1}, {"page": 16}, {"kv_dtype": "int8"}], ["greedy", "penalties"]),
        lambda *case: case in ((True, {"page": 1}, "greedy"), (False, {"kv_dtype": "int8"}, "penalties")),
    ),
    ids=str,
)
def test_first_layers_draft_without_a_change_of_the_output(
    fake: ModuleType, decided_early: Path, tiny_model: Callable[..., Path], is_decided: bool, options: Any,
    name: str,
) -> None:  # fmt: skip
    path = decided_early if is_decided else tiny_model("llama", num_hidden_layers=4)
    runs = fake.forked_runs(6, SAMPLINGS[name])

    def make(**more: Any) -> EngineLoop:
        return build(configs.make(model=str(path), device="cpu", threads=1, kv_memory="4MB", **options, **more))

    plain = fake.drive(make(speculate="off"), runs)
    e = make(speculate="model", draft_model="layers:1")
    assert fake.always_draft(e).name == "early_exit"
    for _ in range(2):
        drafted = fake.drive(e, runs, check=True)
        assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    stats = e.drafting.stats()
    assert stats["drafted_early_exit"] > 50
    if is_decided:
        assert stats["accepted_early_exit"] > 0.7 * stats["drafted_early_exit"]


def test_first_layers_draft_into_pages_after_they_have_moved_out(fake: ModuleType, large: Any) -> None:
    """A draft claims pages that hold an earlier prompt, whose KV is the same when it comes back from the host."""
    config = configs.make(page=4, speculate="model", draft_model="layers:1", host_memory="1MB")
    sizes = {"context": 64, "n_pages": 20, "n_host": 40}
    resolved = Resolved(device="cpu", dtype="float32", threads=1, decisions=(), **sizes)
    e = EngineLoop(config, large, resolved, stopwatch=lambda: 0.0, draft_model=large.first_layers(1))
    fake.always_draft(e)
    prompts = [[(7 * i + i * i + k) % 300 + 3 for i in range(40)] for k in range(2)]

    def stored() -> list[Any]:
        with closing(e.cache.open(fake.int32(prompts[0]))) as lease:
            assert lease.n_cached == 40
            e.model.move(e.cache.take_moves())
            return [pool[list(lease.pages)].clone() for pair in e.model.store.kv for pool in pair]

    fake.drive(e, [fake.run(0, prompts[0], Sampling(max_tokens=0))])
    before = stored()
    fake.drive(e, [fake.run(1, prompts[1], GREEDY)], check=True)
    assert e.drafting.stats()["drafted_early_exit"]
    assert e.cache.stats().n_moved_out
    assert all(map(torch.equal, before, stored()))


def test_pages_that_cannot_move_for_a_draft_end_the_engine(fake: ModuleType, large: Any) -> None:
    e = engine(large, large.first_layers(1))

    def lost() -> None:
        raise RuntimeError("the copy failed")

    fake.always_draft(e)._move_pages = lost
    with pytest.raises(PagesLost):
        fake.drive(e, [fake.run(0, range(3, 20), GREEDY)])


def test_first_layers_that_cannot_draft_are_refused(tiny_model: Callable[..., Path]) -> None:
    for n in ("0", "2", "-1", "x", ""):
        with pytest.raises(ConfigError, match=r"must be layers:N, to run the first N layers of .*; N is from 1 to 1"):
            build(configs.make(model=str(tiny_model("llama")), device="cpu", draft_model=f"layers:{n}"))
    with pytest.raises(Unsupported, match=r"layers:1 runs single layers; gemma2 runs in transformers' own code"):
        build(configs.make(model=str(tiny_model("gemma2")), device="cpu", kv_memory="4MB", draft_model="layers:1"))
