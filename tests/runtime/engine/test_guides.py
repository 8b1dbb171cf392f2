"""Constraints in the engine: when a Run waits for its guide, what may end an output, and what is told of it."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.constraint.llg import LlgGuide
from banyan.runtime.engine import guides as guides
from banyan.runtime.engine import sampler
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import Abort, ConstraintSpec, Finish, Run, Sampling, TopLogprobs
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer
from waits import wait_until

PROMPT = "the quick brown fox"
REGEX = ConstraintSpec("regex", "[0-9]+")


@dataclass
class Said:
    text: str = ""
    n_tokens: int = 0
    finish: Finish | None = None
    error: tuple[str, str] | None = None
    logprobs: list[TopLogprobs] = field(default_factory=list)

    @property
    def reason(self) -> str:
        assert self.error is None, self.error
        assert self.finish is not None
        return self.finish.reason


class Bench:
    """A tiny model with its tokenizer, and engines on it."""

    def __init__(self, directory: Path, model: Model) -> None:
        self.model, self.tokenizer = model, Tokenizer(directory, Files.read(directory))

    def engine(self, told: bool = True) -> EngineLoop:
        resolved = Resolved(device="cpu", dtype="float32", context=400, n_pages=200, threads=1, decisions=())
        e = EngineLoop(configs.make(), self.model, resolved)
        if told:
            e.take(self.tokenizer.vocabulary())
        return e

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode([TextSpan(text, meant=True)])

    def run(self, rid: int, constraint: ConstraintSpec | None, done: str = "", **options: Any) -> Run:
        fields = {name: options.pop(name) for name in ("seed", "sample") if name in options}
        stops = sorted({*self.tokenizer.eos_ids, *options.get("stop_token_ids", ())})
        sampling = Sampling(constraint=constraint, **({"temperature": 0.0, "max_tokens": 40} | options))
        ids = self.ids(PROMPT) + self.ids(done)
        return Run(rid, packed(ids), sampling, packed(stops), n_done=len(self.ids(done)), **fields)

    def drive(
        self, e: EngineLoop, *runs: Run, until: Callable[[dict[int, Said]], bool] | None = None
    ) -> dict[int, Said]:
        """Step until all runs have ended, or `until` is true."""
        said: dict[int, Said] = {}
        for run in runs:
            said[run.rid] = Said()
            e.take(run)
        self.step_until(
            e,
            said,
            lambda: all(one.finish or one.error for one in said.values()) or (until is not None and until(said)),
        )
        e.scheduler.check()
        return said

    def step_until(self, e: EngineLoop, said: dict[int, Said], is_over: Callable[[], object]) -> None:
        wait_until(lambda: is_over() or self.step(e, said), "the end of the runs", seen=lambda: said)

    def step(self, e: EngineLoop, said: dict[int, Said]) -> None:
        report = e.step()
        ids = iter(array("i", report.ids))
        for rid, n in zip(array("q", report.rids), array("i", report.counts), strict=True):
            said[rid].text += self.tokenizer.text_of([next(ids) for _ in range(n)])
            said[rid].n_tokens += n
        for rid, entries in report.logprobs.items():
            said[rid].logprobs += entries
        for finish in report.finished:
            said[finish.rid].finish = finish
        for failed in e.failed:
            said[failed.program].error = failed.code, failed.message
        e.failed.clear()

    def one(self, constraint: ConstraintSpec | None, e: EngineLoop | None = None, **options: Any) -> Said:
        return self.drive(e or self.engine(), self.run(1, constraint, **options))[1]


def packed(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


@pytest.fixture(scope="module")
def bench(tiny_model: Callable[..., Path]) -> Bench:
    directory = tiny_model("llama")
    return Bench(directory, load(directory))


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_a_whole_value_stops_and_a_cut_one_is_too_long(bench: Bench) -> None:
    said = bench.one(ConstraintSpec("json_schema", '{"type": "array", "items": {"enum": [1, 2]}, "minItems": 3}'))
    assert said.reason == "stop" or said.n_tokens == 40
    said = bench.one(ConstraintSpec("regex", "[ab]{5}"))
    assert (len(said.text), said.reason, said.finish.stop_id) == (5, "stop", -1)
    assert bench.one(ConstraintSpec("regex", "[ab]{5}"), max_tokens=5).reason == "stop", "whole, at the last token"
    said = bench.one(ConstraintSpec("regex", "[ab]{5}"), max_tokens=4)
    assert (len(said.text), said.reason) == (4, "length")
    assert bench.one(ConstraintSpec("regex", "[ab]{5}"), max_tokens=0).reason == "length"


def test_eos_comes_exactly_where_a_value_may_end(bench: Bench) -> None:
    """A bias that would end any other output at once."""
    (eos,) = bench.tokenizer.eos_ids
    said = bench.one(REGEX, logit_bias={eos: 100.0})
    assert (said.n_tokens, said.reason, said.finish.stop_id) == (1, "stop", eos)
    said = bench.one(ConstraintSpec("regex", "[0-9]{3,}"), logit_bias={eos: 100.0})
    assert len(said.text) in (3, 4)  # a token may hold two digits
    assert bench.one(REGEX, logit_bias={eos: -100.0}, max_tokens=7).reason == "length"
    assert bench.one(ConstraintSpec("regex", "[0-9]*"), logit_bias={eos: 100.0}).text == ""


def test_min_tokens_yields_to_a_full_value(bench: Bench) -> None:
    (eos,) = bench.tokenizer.eos_ids
    assert bench.one(REGEX, logit_bias={eos: 100.0}, min_tokens=5).n_tokens == 5
    said = bench.one(ConstraintSpec("regex", "[ab]{3}"), min_tokens=10)
    assert (said.n_tokens, said.reason) == (3, "stop")
    said = bench.one(ConstraintSpec("regex", "[ab]?"), min_tokens=10)
    assert (said.n_tokens, said.reason) == (1, "stop")


def test_stop_tokens_that_are_text_stop_where_the_constraint_lets_them_come(bench: Bench) -> None:
    (three,) = bench.ids("3")
    said = bench.one(REGEX, stop_token_ids=(three,), logit_bias={three: 100.0})
    assert (said.text, said.reason, said.finish.stop_id) == ("", "stop", three)
    said = bench.one(ConstraintSpec("regex", "ab345"), stop_token_ids=(three,))
    assert (said.text, said.finish.stop_id) == ("ab", three), "not even a forced run goes past it"
    said = bench.one(ConstraintSpec("regex", "[12]{4}"), stop_token_ids=(three,), logit_bias={three: 100.0})
    assert (len(said.text), said.reason) == (4, "stop")


@pytest.mark.parametrize("text", ["", "a", "the other answer"])
def test_what_is_forced_needs_no_model(bench: Bench, text: str) -> None:
    e = bench.engine()
    said = bench.one(ConstraintSpec("choices", json.dumps([text])), e)
    assert (said.text, said.reason) == (text, "stop")
    assert e.scheduler.counts["steps"] == (text == "")  # of an empty output it shows at its first mask


def test_a_forced_run_is_one_chunk(bench: Bench) -> None:
    e = bench.engine()
    said = bench.one(ConstraintSpec("regex", "the other[ab] the answer is 42, and[ab] the"), e)
    assert said.reason == "stop"
    assert e.scheduler.counts["steps"] == 2
    assert e.scheduler.counts["forced_tokens"] == said.n_tokens - 2
    assert e.scheduler.counts["generated_tokens"] == said.n_tokens


def test_a_forced_run_ends_at_max_tokens(bench: Bench) -> None:
    for n in range(1, 6):
        said = bench.one(ConstraintSpec("choices", '["the quick brown fox jumps over"]'), max_tokens=n)
        assert (said.n_tokens, said.reason) == (n, "length")
        assert "the quick brown fox jumps over".startswith(said.text)


# ---- logprobs, options, chance -------------------------------------------------------------------------------------


def test_logprobs_stay_the_models_own(bench: Bench) -> None:
    """Also of tokens that are forced: who asks for logprobs has each token drawn."""
    spec = ConstraintSpec("choices", '["the answer is 42"]')
    said = bench.one(spec, logprobs=True, top_logprobs=2)
    assert said.text == bench.one(spec).text == "the answer is 42"
    assert len(said.logprobs) == said.n_tokens
    scored = bench.drive(
        bench.engine(), Run(1, packed(bench.ids(PROMPT) + bench.ids(said.text)), Sampling(max_tokens=0), score_from=1)
    )[1]
    own = np.frombuffer(scored.finish.scores, np.float32)[-said.n_tokens :]
    assert np.allclose([one.logprob for one in said.logprobs], own, atol=1e-4)


def test_no_option_leads_out_of_the_constraint(bench: Bench) -> None:
    ((x,), (seven,)) = bench.ids("x"), bench.ids("7")
    options: dict[str, Any] = {
        "temperature": 2.0,
        "top_p": 0.5,
        "top_k": 3,
        "repetition_penalty": 0.5,
        "frequency_penalty": -2.0,
    }
    for seed in range(5):
        options |= {"seed": seed, "logit_bias": {x: 100.0, seven: -100.0}}
        said = bench.one(ConstraintSpec("regex", "[ab7]{6}"), **options)
        assert set(said.text) <= set("ab7")
        assert len(said.text) == 6


def test_samples_and_forks_have_a_guide_each(bench: Bench) -> None:
    spec = ConstraintSpec("regex", "[a-z]{8}")
    e = bench.engine()
    runs = [bench.run(rid, spec, temperature=1.5, seed=3, sample=rid) for rid in range(6)]
    said = bench.drive(e, *runs)
    assert all(len(one.text) == 8 and one.text.islower() for one in said.values())
    assert len({one.text for one in said.values()}) > 1
    assert len(e.guides._cache) == 1


def test_the_law_under_a_mask(fake: ModuleType) -> None:
    """Draws are from the softmax of what is allowed."""
    logits = np.array([2.0, 1.0, 0.5, 0.5, 0.0, -1.0, -1.5, -3.0], np.float32)
    allowed, n = [1, 2, 5], 6000
    mask = torch.tensor([[sum(1 << token for token in allowed)]], dtype=torch.int32)
    requests = [Request(fake.run(0, [0], Sampling(temperature=1.0), seed=seed), 9) for seed in range(n)]
    ids, _ = sampler.choose(
        torch.from_numpy(np.tile(logits, (n, 1))), requests, guides.Masks(mask, torch.zeros(n, dtype=torch.int32))
    )
    p = np.exp(logits[allowed]) / np.exp(logits[allowed]).sum()
    counts = np.bincount(ids, minlength=8)
    assert counts.sum() == counts[allowed].sum() == n
    assert (((counts[allowed] - n * p) ** 2) / (n * p)).sum() < 18.4  # chi-square, 2 degrees, 0.9999


# ---- waiting for a guide -------------------------------------------------------------------------------------------


@pytest.fixture
def slow_build(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing compiles before this is set."""
    go, build = threading.Event(), guides.build
    monkeypatch.setattr(guides, "build", lambda *args: go.wait(60) and build(*args))
    return go


def test_who_waits_holds_nothing_and_stops_nobody(bench: Bench, slow_build: threading.Event) -> None:
    e = bench.engine()
    said = {rid: Said() for rid in range(3)}
    for rid in (0, 1):
        e.take(bench.run(rid, REGEX, max_tokens=3))
    e.take(bench.run(2, None, max_tokens=5))
    bench.step_until(e, said, lambda: said[2].finish)
    assert len(e.scheduler.requests) == 0
    assert e.scheduler.is_idle
    assert said[0] == said[1] == Said()
    slow_build.set()
    bench.step_until(e, said, lambda: said[0].finish and said[1].finish)
    assert said[0].text == said[1].text != ""


def test_one_compilation_for_all_who_ask(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, build = [], guides.build
    monkeypatch.setattr(guides, "build", lambda spec, vocabulary: asked.append(spec) or build(spec, vocabulary))
    e = bench.engine()
    bench.drive(e, *(bench.run(rid, REGEX, max_tokens=2) for rid in range(4)))
    bench.drive(e, bench.run(9, REGEX, max_tokens=2))
    assert asked == [REGEX]


def test_an_abort_finds_who_waits(bench: Bench, slow_build: threading.Event) -> None:
    e = bench.engine()
    said = {1: Said(), 2: Said()}
    e.take(bench.run(1, REGEX))
    e.take(bench.run(2, REGEX, max_tokens=2))
    e.take(Abort(1))
    bench.step(e, said)
    assert said[1].reason == "abort"
    slow_build.set()
    bench.step_until(e, said, lambda: said[2].finish)
    e.take(bench.run(3, REGEX))  # its guide is there: ready, and not yet handed over
    e.take(Abort(3))
    said[3] = Said()
    bench.step(e, said)
    assert said[3].reason == "abort"
    assert e.scheduler.is_idle
    e.take(Abort(77))


def test_the_loop_wakes_up_for_a_guide(bench: Bench, slow_build: threading.Event) -> None:
    e = bench.engine()
    e.take(bench.run(1, REGEX, max_tokens=2))
    assert e.guides.ready() == []
    slow_build.set()
    ready = wait_until(e.guides.ready, "the guide")
    assert ready[0].guide is not None
    more: list[Any] = []
    wait_until(lambda: more.extend(e.guides.ready()) or not e.guides._n_compiling, "the event behind it")
    assert more == []
    with pytest.raises(BlockingIOError):  # each event was read once: an idle loop may sleep
        os.eventfd_read(e.guides.wake)


def test_an_engine_that_is_gone_leaves_no_file_open(bench: Bench) -> None:
    def n_open() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    e = bench.engine()
    bench.drive(e, bench.run(1, REGEX, max_tokens=2))
    before = n_open()
    del e
    assert n_open() == before - 1


def test_what_does_not_compile_fails_alone(bench: Bench) -> None:
    e = bench.engine()
    said = bench.drive(e, bench.run(1, ConstraintSpec("regex", "a(")), bench.run(2, REGEX, max_tokens=2))
    assert said[1].error is not None
    assert said[1].error[0] == "constraint_syntax"
    assert said[2].reason == "length"
    said = bench.drive(bench.engine(told=False), bench.run(1, REGEX), bench.run(2, None, max_tokens=2))
    assert said[1].error is not None
    assert said[1].error[0] == "unsupported"
    assert said[2].reason == "length"


@pytest.mark.parametrize(("engine", "code"), [("", "constraint_crashed"), ("outlines_core", "")])
def test_a_constraint_at_which_the_tokenizer_panics_fails_alone(
    tiny: ModuleType, bench: Bench, engine: Any, code: str
) -> None:
    """outlines_core does without the tokenizer, but for what is forced."""
    e, known = bench.engine(told=False), bench.tokenizer.vocabulary()
    e.take(msgspec.structs.replace(known, tokenizer=tiny.without(known.tokenizer, "q")))
    for _ in range(2):
        bad = bench.run(1, ConstraintSpec("regex", "hq{2}", engine=engine))
        said = bench.drive(e, bad, bench.run(2, None, max_tokens=2), bench.run(3, REGEX, max_tokens=2))
        assert (said[1].error[0] if said[1].error else "") == code
        assert said[1].text == ("" if code else "hqq")
        assert [said[rid].reason for rid in (2, 3)] == ["length", "length"]


def test_a_tokenizer_at_which_llguidance_panics_fails_constraints_alone(tiny: ModuleType, bench: Bench) -> None:
    e, known = bench.engine(told=False), bench.tokenizer.vocabulary()
    e.take(msgspec.structs.replace(known, tokenizer=tiny.unreadable(known.tokenizer)))
    said = bench.drive(e, bench.run(1, REGEX), bench.run(2, None, max_tokens=2))
    assert said[1].error is not None
    assert said[1].error[0] == "unsupported"
    assert "llguidance panicked" in said[1].error[1]
    assert said[2].reason == "length"


def test_kept_constraints_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "CACHE_BYTES", 3 << 20)
    e = bench.engine()
    for n in range(6):
        bench.one(ConstraintSpec("regex", f"[ab]{{{n + 1}}}"), e)
    assert [spec.text for spec in e.guides._cache] == ["[ab]{4}", "[ab]{5}", "[ab]{6}"]


# ---- what goes wrong in the middle ---------------------------------------------------------------------------------


def test_a_guide_that_gives_up_fails_its_request_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlgGuide, "error", property(lambda self: "a limit" if self._at == 3 else ""))
    runs = bench.run(1, ConstraintSpec("regex", "[ab]{9}")), bench.run(2, None, max_tokens=9)
    said = bench.drive(bench.engine(), *runs)
    assert said[1].error is not None
    assert said[1].error[0] == "constraint_broke"
    assert "after 3 tokens: a limit" in said[1].error[1]
    assert said[2].reason == "length"


def test_masks_that_take_long_fail_their_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "SLOW", -1.0)
    said = bench.one(ConstraintSpec("regex", "[ab]{9}"))
    assert said.error is not None
    assert "masks in a row took more than" in said.error[1]
    assert said.n_tokens == guides.PATIENCE - 1


def test_the_watch_counts_work_and_not_waiting() -> None:
    watch = guides.LapTimer()
    time.sleep(0.05)
    assert watch.lap() < guides.SLOW
    end = time.thread_time() + 1.5 * guides.SLOW
    while time.thread_time() < end:
        pass
    assert watch.lap() > guides.SLOW


def test_an_output_that_no_longer_matches_is_not_gone_on_with(bench: Bench) -> None:
    said = bench.drive(bench.engine(), bench.run(1, REGEX, done="12x"))[1]
    assert said.error is not None
    assert said.error[0] == "constraint_broke"
    said = bench.drive(bench.engine(), bench.run(1, ConstraintSpec("regex", "[ab]{3}"), done="ab"))[1]
    assert (len(said.text), said.reason) == (1, "stop")


def test_beside_a_device_masks_are_made_while_the_next_step_is_on_it(
    bench: Bench, late: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is forced, what a constraint allows is asked for when the token before it is known, as ever. Who
    ends has a row too many, and no mask for it."""
    patterns = ("[0-9]+", "[a-z]{3,9}", "(one|two|three)[!?]", "[0-9a-f]{30}")
    kinds = [ConstraintSpec("regex", pattern) for pattern in patterns]
    runs = [bench.run(rid, kinds[rid % 4], max_tokens=20, temperature=rid % 3 / 2, seed=rid) for rid in range(8)]

    def engine() -> EngineLoop:
        e = bench.engine()
        e.drafting.drafters, e.drafting.jumps = (), False
        bench.drive(e, *(bench.run(100 + rid, kind) for rid, kind in enumerate(kinds)))  # all guides are there
        return e

    fill = LlgGuide.fill

    def filled(self: LlgGuide, out: Any) -> None:
        assert not self.must_stop
        fill(self, out)

    monkeypatch.setattr(LlgGuide, "fill", filled)
    calm = bench.drive(engine(), *runs)
    e = engine()
    n_steps = e.scheduler.counts["steps"]
    box = late.play(e, {rid: [run] for rid, run in enumerate(runs)})
    assert {rid: bench.tokenizer.text_of(said) for rid, said in box.said.items()} == {
        rid: said.text for rid, said in calm.items() if said.text
    }
    assert {rid: box.finished[rid].reason for rid in calm} == {rid: said.reason for rid, said in calm.items()}
    assert not box.failed
    assert e.scheduler.counts["steps_ahead"] >= e.scheduler.counts["steps"] - n_steps - 1
