"""Constraints in the engine: the compilation of guides, the ends of constrained outputs, and failures."""

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
class Output:
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
    """A tiny model with its tokenizer, and a driver of engines."""

    def __init__(self, directory: Path, model: Model) -> None:
        self.model, self.tokenizer = model, Tokenizer(directory, Files.read(directory))

    def engine(self, has_vocabulary: bool = True) -> EngineLoop:
        resolved = Resolved(device="cpu", dtype="float32", context=400, n_pages=200, threads=1, decisions=())
        e = EngineLoop(configs.make(), self.model, resolved)
        if has_vocabulary:
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

    def drive(self, e: EngineLoop, *runs: Run) -> dict[int, Output]:
        """Step until all runs have ended."""
        outputs: dict[int, Output] = {}
        for run in runs:
            outputs[run.rid] = Output()
            e.take(run)
        self.step_until(e, outputs, lambda: all(output.finish or output.error for output in outputs.values()))
        e.scheduler.check()
        return outputs

    def step_until(self, e: EngineLoop, outputs: dict[int, Output], is_over: Callable[[], object]) -> None:
        wait_until(lambda: is_over() or self.step(e, outputs), "the end of the runs", seen=lambda: outputs)

    def step(self, e: EngineLoop, outputs: dict[int, Output]) -> None:
        report = e.step()
        ids = iter(array("i", report.ids))
        for rid, n in zip(array("q", report.rids), array("i", report.counts), strict=True):
            outputs[rid].text += self.tokenizer.text_of([next(ids) for _ in range(n)])
            outputs[rid].n_tokens += n
        for rid, entries in report.logprobs.items():
            outputs[rid].logprobs += entries
        for finish in report.finished:
            outputs[finish.rid].finish = finish
        for failed in e.failed:
            outputs[failed.program].error = failed.code, failed.message
        e.failed.clear()

    def generate(self, constraint: ConstraintSpec | None, e: EngineLoop | None = None, **options: Any) -> Output:
        return self.drive(e or self.engine(), self.run(1, constraint, **options))[1]


def packed(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


@pytest.fixture(scope="module")
def bench(tiny_model: Callable[..., Path]) -> Bench:
    directory = tiny_model("llama")
    return Bench(directory, load(directory))


# ---- finish reasons ------------------------------------------------------------------------------------------------


def test_complete_value_finishes_with_stop_and_cut_one_with_length(bench: Bench) -> None:
    output = bench.generate(
        ConstraintSpec("json_schema", '{"type": "array", "items": {"enum": [1, 2]}, "minItems": 3}')
    )
    assert output.reason == "stop" or output.n_tokens == 40
    output = bench.generate(ConstraintSpec("regex", "[ab]{5}"))
    assert (len(output.text), output.reason, output.finish.stop_id) == (5, "stop", -1)
    assert bench.generate(ConstraintSpec("regex", "[ab]{5}"), max_tokens=5).reason == "stop", (
        "complete at the last token"
    )
    output = bench.generate(ConstraintSpec("regex", "[ab]{5}"), max_tokens=4)
    assert (len(output.text), output.reason) == (4, "length")
    assert bench.generate(ConstraintSpec("regex", "[ab]{5}"), max_tokens=0).reason == "length"


def test_eos_is_allowed_only_where_a_value_may_end(bench: Bench) -> None:
    """Without the constraint, the bias would end the output at once."""
    (eos,) = bench.tokenizer.eos_ids
    output = bench.generate(REGEX, logit_bias={eos: 100.0})
    assert (output.n_tokens, output.reason, output.finish.stop_id) == (1, "stop", eos)
    output = bench.generate(ConstraintSpec("regex", "[0-9]{3,}"), logit_bias={eos: 100.0})
    assert len(output.text) in (3, 4)  # a token may hold two digits
    assert bench.generate(REGEX, logit_bias={eos: -100.0}, max_tokens=7).reason == "length"
    assert bench.generate(ConstraintSpec("regex", "[0-9]*"), logit_bias={eos: 100.0}).text == ""


def test_complete_value_overrides_min_tokens(bench: Bench) -> None:
    (eos,) = bench.tokenizer.eos_ids
    assert bench.generate(REGEX, logit_bias={eos: 100.0}, min_tokens=5).n_tokens == 5
    output = bench.generate(ConstraintSpec("regex", "[ab]{3}"), min_tokens=10)
    assert (output.n_tokens, output.reason) == (3, "stop")
    output = bench.generate(ConstraintSpec("regex", "[ab]?"), min_tokens=10)
    assert (output.n_tokens, output.reason) == (1, "stop")


def test_text_stop_tokens_stop_where_the_constraint_allows_them(bench: Bench) -> None:
    (three,) = bench.ids("3")
    output = bench.generate(REGEX, stop_token_ids=(three,), logit_bias={three: 100.0})
    assert (output.text, output.reason, output.finish.stop_id) == ("", "stop", three)
    output = bench.generate(ConstraintSpec("regex", "ab345"), stop_token_ids=(three,))
    assert (output.text, output.finish.stop_id) == ("ab", three), "a forced run stops there too"
    output = bench.generate(ConstraintSpec("regex", "[12]{4}"), stop_token_ids=(three,), logit_bias={three: 100.0})
    assert (len(output.text), output.reason) == (4, "stop")


def test_min_tokens_forbids_text_stop_tokens_unless_one_must_follow(bench: Bench) -> None:
    (three,) = bench.ids("3")
    options: dict[str, Any] = {"stop_token_ids": (three,), "logit_bias": {three: 100.0}}
    output = bench.generate(REGEX, min_tokens=4, **options)
    assert (output.n_tokens, output.reason, output.finish.stop_id) == (4, "stop", three)
    output = bench.generate(ConstraintSpec("regex", "[12]3[0-9]{9}"), min_tokens=4, **options)
    assert (output.n_tokens, output.finish.stop_id) == (1, three)


@pytest.mark.parametrize("text", ["", "a", "the other answer"])
def test_fully_forced_output_runs_no_model_step(bench: Bench, text: str) -> None:
    e = bench.engine()
    output = bench.generate(ConstraintSpec("choices", json.dumps([text])), e)
    assert (output.text, output.reason) == (text, "stop")
    assert e.scheduler.counts["steps"] == (text == "")  # an empty output is detected at its first mask


def test_forced_run_is_one_chunk(bench: Bench) -> None:
    e = bench.engine()
    output = bench.generate(ConstraintSpec("regex", "the other[ab] the answer is 42, and[ab] the"), e)
    assert output.reason == "stop"
    assert e.scheduler.counts["steps"] == 2
    assert e.scheduler.counts["forced_tokens"] == output.n_tokens - 2
    assert e.scheduler.counts["generated_tokens"] == output.n_tokens


def test_forced_run_ends_at_max_tokens(bench: Bench) -> None:
    for n in range(1, 6):
        output = bench.generate(ConstraintSpec("choices", '["the quick brown fox jumps over"]'), max_tokens=n)
        assert (output.n_tokens, output.reason) == (n, "length")
        assert "the quick brown fox jumps over".startswith(output.text)


# ---- logprobs, options, sampling -----------------------------------------------------------------------------------


def test_constrained_logprobs_are_unmasked(bench: Bench) -> None:
    """Those of forced tokens too: with logprobs, every token is drawn."""
    spec = ConstraintSpec("choices", '["the answer is 42"]')
    output = bench.generate(spec, logprobs=True, top_logprobs=2)
    assert output.text == bench.generate(spec).text == "the answer is 42"
    assert len(output.logprobs) == output.n_tokens
    scored = bench.drive(
        bench.engine(), Run(1, packed(bench.ids(PROMPT) + bench.ids(output.text)), Sampling(max_tokens=0), score_from=1)
    )[1]
    own = np.frombuffer(scored.finish.scores, np.float32)[-output.n_tokens :]
    assert np.allclose([entry.logprob for entry in output.logprobs], own, atol=1e-4)


def test_sampling_options_cannot_violate_the_constraint(bench: Bench) -> None:
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
        output = bench.generate(ConstraintSpec("regex", "[ab7]{6}"), **options)
        assert set(output.text) <= set("ab7")
        assert len(output.text) == 6


def test_samples_share_a_compiled_constraint_but_not_a_guide(bench: Bench) -> None:
    spec = ConstraintSpec("regex", "[a-z]{8}")
    e = bench.engine()
    runs = [bench.run(rid, spec, temperature=1.5, seed=3, sample=rid) for rid in range(6)]
    outputs = bench.drive(e, *runs)
    assert all(len(output.text) == 8 and output.text.islower() for output in outputs.values())
    assert len({output.text for output in outputs.values()}) > 1
    assert len(e.guides._cache) == 1


def test_masked_draws_follow_the_renormalised_distribution(fake: ModuleType) -> None:
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


# ---- compilation ---------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_build(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event; nothing is compiled until it is set."""
    released, build = threading.Event(), guides.build
    monkeypatch.setattr(guides, "build", lambda *args: released.wait(60) and build(*args))
    return released


def test_request_waiting_for_its_guide_blocks_nothing(bench: Bench, slow_build: threading.Event) -> None:
    e = bench.engine()
    outputs = {rid: Output() for rid in range(3)}
    for rid in (0, 1):
        e.take(bench.run(rid, REGEX, max_tokens=3))
    e.take(bench.run(2, None, max_tokens=5))
    bench.step_until(e, outputs, lambda: outputs[2].finish)
    assert len(e.scheduler.requests) == 0
    assert e.scheduler.is_idle
    assert outputs[0] == outputs[1] == Output()
    slow_build.set()
    bench.step_until(e, outputs, lambda: outputs[0].finish and outputs[1].finish)
    assert outputs[0].text == outputs[1].text != ""


def test_all_runs_whose_constraints_compile_are_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of them may crash the process; see flight_record.py."""
    noted: list[list[int]] = []
    build = guides.build
    released = {text: threading.Event() for text in ("[0-9]+", "[ab]+")}
    monkeypatch.setattr(
        guides, "build", lambda spec, vocabulary: released[spec.text].wait(60) and build(spec, vocabulary)
    )
    one = guides.Guides(bench.model.spec.vocab_size, torch.device("cpu"), noted.append)
    one.set_vocabulary(bench.tokenizer.vocabulary())
    for rid, text in enumerate(released, 1):
        one.submit(bench.run(rid, ConstraintSpec("regex", text)))
        wait_until(lambda n=rid: len(noted) == n, "the note of the run", seen=lambda: noted)
    released["[ab]+"].set()
    wait_until(one.ready, "the guide")
    released["[0-9]+"].set()
    wait_until(one.ready, "the other guide")
    assert noted == [[1], [1, 2], [1], []]


def test_equal_constraints_compile_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, build = [], guides.build
    monkeypatch.setattr(guides, "build", lambda spec, vocabulary: compiled.append(spec) or build(spec, vocabulary))
    e = bench.engine()
    bench.drive(e, *(bench.run(rid, REGEX, max_tokens=2) for rid in range(4)))
    bench.drive(e, bench.run(9, REGEX, max_tokens=2))
    assert compiled == [REGEX]


def test_spent_constraint_is_compiled_anew(bench: Bench) -> None:
    e = bench.engine()
    bench.generate(REGEX, e)
    spent = e.guides._cache[REGEX]
    spent.is_spent = True  # type: ignore[misc]  # by outputs that have filled its lexer
    assert bench.generate(REGEX, e).error is None
    assert e.guides._cache[REGEX] is not spent
    assert len(e.guides._cache) == 1


def test_request_waiting_for_its_guide_can_be_aborted(bench: Bench, slow_build: threading.Event) -> None:
    e = bench.engine()
    outputs = {1: Output(), 2: Output()}
    e.take(bench.run(1, REGEX))
    e.take(bench.run(2, REGEX, max_tokens=2))
    e.take(Abort(1))
    bench.step(e, outputs)
    assert outputs[1].reason == "abort"
    slow_build.set()
    bench.step_until(e, outputs, lambda: outputs[2].finish)
    e.take(bench.run(3, REGEX))  # its guide is ready but not yet handed over
    e.take(Abort(3))
    outputs[3] = Output()
    bench.step(e, outputs)
    assert outputs[3].reason == "abort"
    assert e.scheduler.is_idle
    e.take(Abort(77))


def test_ready_guide_wakes_the_loop(bench: Bench, slow_build: threading.Event) -> None:
    e = bench.engine()
    e.take(bench.run(1, REGEX, max_tokens=2))
    assert e.guides.ready() == []
    slow_build.set()
    ready = wait_until(e.guides.ready, "the guide")
    assert ready[0].guide is not None
    later: list[Any] = []
    wait_until(lambda: later.extend(e.guides.ready()) or not e.guides._n_compiling, "the following event")
    assert later == []
    with pytest.raises(BlockingIOError):  # each event was read once, so an idle loop can sleep
        os.eventfd_read(e.guides.wake)


def test_loop_does_not_sleep_while_a_guide_is_ready(bench: Bench, late: ModuleType) -> None:
    """The request arrives during the last step of another. Its constraint is already compiled, so no event comes."""
    e = bench.engine()
    bench.drive(e, bench.run(100, REGEX, max_tokens=2))
    box = late.play(e, {0: [bench.run(0, None, max_tokens=1)], 1: [bench.run(1, REGEX, max_tokens=2)]})
    assert {rid: finish.reason for rid, finish in box.finished.items()} == {0: "length", 1: "length"}


def test_collected_engine_closes_its_eventfd(bench: Bench) -> None:
    def n_open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    e = bench.engine()
    bench.drive(e, bench.run(1, REGEX, max_tokens=2))
    before = n_open_files()
    del e
    assert n_open_files() == before - 1


def test_constraint_that_does_not_compile_fails_alone(bench: Bench) -> None:
    e = bench.engine()
    outputs = bench.drive(e, bench.run(1, ConstraintSpec("regex", "a(")), bench.run(2, REGEX, max_tokens=2))
    assert outputs[1].error is not None
    assert outputs[1].error[0] == "constraint_syntax"
    assert outputs[2].reason == "length"
    outputs = bench.drive(bench.engine(has_vocabulary=False), bench.run(1, REGEX), bench.run(2, None, max_tokens=2))
    assert outputs[1].error is not None
    assert outputs[1].error[0] == "unsupported"
    assert outputs[2].reason == "length"


@pytest.mark.parametrize(("engine", "code"), [("", "constraint_crashed"), ("outlines_core", "")])
def test_constraint_that_panics_the_tokenizer_fails_alone(
    tiny: ModuleType, bench: Bench, engine: Any, code: str
) -> None:
    """outlines_core needs the tokenizer only for forced tokens."""
    e, vocabulary = bench.engine(has_vocabulary=False), bench.tokenizer.vocabulary()
    e.take(msgspec.structs.replace(vocabulary, tokenizer=tiny.without(vocabulary.tokenizer, "q")))
    for _ in range(2):
        bad = bench.run(1, ConstraintSpec("regex", "hq{2}", engine=engine))
        outputs = bench.drive(e, bad, bench.run(2, None, max_tokens=2), bench.run(3, REGEX, max_tokens=2))
        assert (outputs[1].error[0] if outputs[1].error else "") == code
        assert outputs[1].text == ("" if code else "hqq")
        assert [outputs[rid].reason for rid in (2, 3)] == ["length", "length"]


def test_tokenizer_that_panics_llguidance_fails_only_constraints(tiny: ModuleType, bench: Bench) -> None:
    e, vocabulary = bench.engine(has_vocabulary=False), bench.tokenizer.vocabulary()
    e.take(msgspec.structs.replace(vocabulary, tokenizer=tiny.unreadable(vocabulary.tokenizer)))
    outputs = bench.drive(e, bench.run(1, REGEX), bench.run(2, None, max_tokens=2))
    assert outputs[1].error is not None
    assert outputs[1].error[0] == "unsupported"
    assert "llguidance panicked" in outputs[1].error[1]
    assert outputs[2].reason == "length"


def test_constraint_cache_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "CACHE_BYTES", 3 << 20)
    e = bench.engine()
    for n in range(6):
        bench.generate(ConstraintSpec("regex", f"[ab]{{{n + 1}}}"), e)
    assert [spec.text for spec in e.guides._cache] == ["[ab]{4}", "[ab]{5}", "[ab]{6}"]


# ---- failures during generation ------------------------------------------------------------------------------------


def test_guide_error_fails_only_its_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlgGuide, "error", property(lambda self: "a limit" if self._at == 3 else ""))
    runs = bench.run(1, ConstraintSpec("regex", "[ab]{9}")), bench.run(2, None, max_tokens=9)
    outputs = bench.drive(bench.engine(), *runs)
    assert outputs[1].error is not None
    assert outputs[1].error[0] == "constraint_broke"
    assert "after 3 tokens: a limit" in outputs[1].error[1]
    assert outputs[2].reason == "length"


def test_repeated_slow_masks_fail_their_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "SLOW", -1.0)
    output = bench.generate(ConstraintSpec("regex", "[ab]{9}"))
    assert output.error is not None
    assert f"in {guides.PATIENCE} steps in a row, its masks took more than" in output.error[1]
    assert output.n_tokens == guides.PATIENCE - 1


def test_lap_timer_measures_cpu_time() -> None:
    watch = guides.LapTimer()
    time.sleep(0.05)
    assert watch.lap() < guides.SLOW
    end = time.thread_time() + 1.5 * guides.SLOW
    while time.thread_time() < end:
        pass
    assert watch.lap() > guides.SLOW


def test_replay_of_a_non_matching_output_fails(bench: Bench) -> None:
    output = bench.drive(bench.engine(), bench.run(1, REGEX, done="12x"))[1]
    assert output.error is not None
    assert output.error[0] == "constraint_broke"
    output = bench.drive(bench.engine(), bench.run(1, ConstraintSpec("regex", "[ab]{3}"), done="ab"))[1]
    assert (len(output.text), output.reason) == (1, "stop")


def test_lookahead_masks_match_the_synchronous_loop(
    bench: Bench, late: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without forced tokens, a mask is filled as soon as the previous token is known. No mask is filled for the surplus
    row of a finished request."""
    patterns = ("[0-9]+", "[a-z]{3,9}", "(one|two|three)[!?]", "[0-9a-f]{30}")
    kinds = [ConstraintSpec("regex", pattern) for pattern in patterns]
    runs = [bench.run(rid, kinds[rid % 4], max_tokens=20, temperature=rid % 3 / 2, seed=rid) for rid in range(8)]

    def engine() -> EngineLoop:
        e = bench.engine()
        e.drafting.drafters, e.drafting.jumps = (), False
        bench.drive(e, *(bench.run(100 + rid, kind) for rid, kind in enumerate(kinds)))  # compile all guides
        return e

    fill = LlgGuide.fill

    def checked_fill(self: LlgGuide, out: Any) -> None:
        assert not self.must_stop
        fill(self, out)

    monkeypatch.setattr(LlgGuide, "fill", checked_fill)
    expected = bench.drive(engine(), *runs)
    e = engine()
    n_steps = e.scheduler.counts["steps"]
    box = late.play(e, {rid: [run] for rid, run in enumerate(runs)})
    assert {rid: bench.tokenizer.text_of(ids) for rid, ids in box.outputs.items()} == {
        rid: output.text for rid, output in expected.items() if output.text
    }
    assert {rid: box.finished[rid].reason for rid in expected} == {
        rid: output.reason for rid, output in expected.items()
    }
    assert not box.failed
    assert e.scheduler.counts["steps_ahead"] >= e.scheduler.counts["steps"] - n_steps - 1
