"""A smaller model that drafts: outputs are those without it, and what it computed of a page serves all who share it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation import drafters
from banyan.runtime.errors import ConfigError
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import Abort, Run, Sampling

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


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("is_itself", [True, False], ids=["itself", "another"])
def test_the_same_outputs(
    fake: ModuleType, large: Model, other: Model, sampling: Sampling, page: int, is_itself: bool
) -> None:
    jobs = fake.forked(6, sampling)
    plain = fake.drive(engine(large, None, page=page), jobs)
    e = engine(large, large if is_itself else other, page=page)
    fake.asked(e)
    for _ in range(2):
        drafted = fake.drive(e, jobs, check=True)
        for rid, output in plain.items():
            assert drafted[rid].ids == output.ids
            assert [t.logprob for t in drafted[rid].logprobs] == pytest.approx(
                [t.logprob for t in output.logprobs], abs=1e-4
            )
    stats = e.drafting.stats()
    assert stats["drafted_model"] > 0
    if is_itself:  # it draws with the same numbers, so that it is right also where chance decides
        assert stats["accepted_model"] > 0.7 * stats["drafted_model"] > 50
        assert e.scheduler.counts["steps"] < 20
    assert not e.drafting.drafters[0]._texts  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", [1, 4])
def test_short_texts(fake: ModuleType, large: Model, page: int) -> None:
    jobs = fake.short()
    plain = {rid: output.ids for rid, output in fake.drive(engine(large, None, page=page), jobs).items()}
    e = engine(large, large, page=page)
    fake.asked(e)
    for some in (jobs, jobs, *([job] for job in jobs)):
        drafted = fake.drive(e, some, check=True)
        assert {rid: output.ids for rid, output in drafted.items()} == {job.rid: plain[job.rid] for job in some}
    assert not e.drafting.drafters[0]._texts  # type: ignore[attr-defined]


def test_what_one_computed_the_next_one_finds(fake: ModuleType, large: Model) -> None:
    e = engine(large, large, page=4)
    fake.asked(e)
    drafter: Any = e.drafting.drafters[0]
    fake.drive(e, fake.forked(1, GREEDY))
    e.take(fake.forked(3, GREEDY)[2])
    e.step()
    (request,) = e.scheduler.running
    assert isinstance(request, Request)
    assert request.n_cached >= 36
    assert drafter.n_behind(request) <= request.n_total - 36, "of the prompt's common part nothing is to be computed"
    e.take(Abort(2))
    e.step()
    assert not drafter._texts


def test_pages_that_became_anothers_are_computed_again(
    fake: ModuleType, large: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few pages that requests are retracted and pages change hands: garbage would show as refused drafts."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    sampling = Sampling(temperature=0.0, max_tokens=40)
    plain = fake.drive(engine(large, None), fake.forked(6, sampling))
    for page, n_pages in ((4, 28), (16, 8)):
        e = engine(large, large, n_pages, page=page)
        fake.asked(e)
        drafted = fake.drive(e, fake.forked(6, sampling), check=True)
        assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
        assert e.scheduler.counts["retractions"] > 0
        stats = e.drafting.stats()
        assert stats["accepted_model"] > 0.7 * stats["drafted_model"] > 0


def test_one_that_is_far_behind_comes_nearer(fake: ModuleType, large: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("banyan.runtime.engine.speculation.model.MAX_CATCH_UP", 25)
    jobs = fake.forked(2, Sampling(temperature=0.0, max_tokens=120))
    plain = fake.drive(engine(large, None), jobs)
    e = engine(large, large)
    fake.asked(e)
    drafted = fake.drive(e, jobs, check=True)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}
    assert e.drafting.stats()["accepted_model"] > 0


def test_a_shorter_context_than_the_large_models(
    fake: ModuleType, large: Model, tiny_model: Callable[..., Path]
) -> None:
    small = load(tiny_model("qwen3"), max_context=60)
    small.spec = small.spec.__class__(**{**_fields(small.spec), "max_context": 50})
    plain = fake.drive(engine(large, None), fake.forked(4, GREEDY))
    e = engine(large, small)
    fake.asked(e)
    drafted = fake.drive(e, fake.forked(4, GREEDY), check=True)
    assert {rid: o.ids for rid, o in drafted.items()} == {rid: o.ids for rid, o in plain.items()}


def _fields(spec: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_its_tokenizer_must_be_the_same(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"has another tokenizer than .*: token .* name a model of the same family"):
        drafters.find(configs.make(model=str(large), draft_model=str(tmp_path / "copy")), large)


def test_an_engine_by_options(fake: ModuleType, tiny_model: Callable[..., Path]) -> None:
    e = build(configs.make(model=str(tiny_model("llama")), draft_model=str(tiny_model("qwen3")), device="cpu",
                           threads=1, kv_memory="4MB"))  # fmt: skip
    assert [d.name for d in e.drafting.drafters] == ["tree", "ngram", "model"]
    alone = build(configs.make(model=str(tiny_model("llama")), device="cpu", threads=1, kv_memory="4MB"))
    assert e.resolved.n_pages < alone.resolved.n_pages, "both models' keys and values lie in that memory"
    jobs: Sequence[Run] = fake.forked(3, GREEDY)
    ours, theirs = fake.drive(e, jobs), fake.drive(alone, jobs)
    assert {rid: o.ids for rid, o in ours.items()} == {rid: o.ids for rid, o in theirs.items()}
