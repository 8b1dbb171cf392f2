"""`deterministic`: the logits after a text are bit for bit the same, however the engine computed them.

The configurations of tests/test_same_answer.py on the pocket model in both CPU dtypes: cold, warm, batched, chunked,
forked after a prefix longer than attention's chunk, retracted, drafted, moved to the host and back, and restarted.
Every row of logits that a token is drawn from is recorded by the text before it.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from banyan.kernels.native.layers import Layers
from banyan.kernels.ops import Ragged
from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.determinism import check_determinism
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.process import build
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model import linear
from banyan.runtime.model.linear import TILE, Linear, tiled
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import Run, Sampling
from forms import in_short, short_form

N_OUT = 10
DTYPES = ("float32", "bfloat16")
LONGEST = 330

Text = tuple[int, ...]
Outputs = dict[Text, tuple[list[int], list[bytes]]]
"""Prompt -> output and its packed logprobs."""


def prompts(vocab: int) -> list[Text]:
    """Two separate prompts, and five that share at least 290 tokens."""
    rng = random.Random(5)

    def tokens(n: int) -> Text:
        return tuple(rng.randrange(3, vocab) for _ in range(n))

    root = tokens(290)
    left = root + tokens(9)
    return [tokens(6), tokens(75), root, left, left + tokens(1), left + tokens(17), root + tokens(30)]


@cache
def model(dtype: str) -> Model:
    return load("pocket", dtype=dtype, deterministic=True)


class Rows:
    """The logits after each text, from all engines. n_again: how often logits were computed again."""

    def __init__(self) -> None:
        self.known: dict[bytes, bytes] = {}
        self.n_again = 0
        self.differ: list[int] = []  # the lengths of texts whose logits differed

    def watch(self, e: EngineLoop) -> EngineLoop:
        e.model = RecordingRunner(e, self)
        return e

    def note(self, text: bytes, bits: bytes) -> None:
        if (known := self.known.setdefault(text, bits)) is not bits:
            self.n_again += 1
            if known != bits:
                self.differ.append(len(text) // 4)


class RecordingRunner(ModelRunner):
    def __init__(self, e: EngineLoop, seen: Rows) -> None:
        super().__init__(e.model.model, e.model.store)
        self.requests, self.seen = e.scheduler.requests, seen

    def __call__(self, batch: Batch, copies: Any) -> Tensor:
        logits = super().__call__(batch, copies)
        n_scored = len(batch.targets)
        first: dict[int, int] = {}
        for who, row, own in zip(batch.sampled_for, batch.rows[n_scored:].tolist(), logits[n_scored:], strict=True):
            begin = first.setdefault(who.rid, row)  # the rows of the request's draft follow
            text = self.requests[who.rid].ids.tobytes() + batch.ids[begin + 1 : row + 1].int().numpy().tobytes()
            self.seen.note(text, own.numpy().tobytes())
        return logits


def engine(dtype: str, rows: Rows, n_pages: int = 0, n_host: int = 0, deterministic: bool = True,
           **options: Any) -> EngineLoop:  # fmt: skip
    config = configs.make(deterministic=deterministic, dtype=dtype, **({"speculate": "off"} | options))
    resolved = Resolved(
        device="cpu", dtype=dtype, context=512, n_pages=n_pages or 4096 // config.page, n_host=n_host,
        threads=1, decisions=(),
    )  # fmt: skip
    e = EngineLoop(config, model(dtype), resolved, stopwatch=lambda: 0.0)
    e.model.store.kv = [(k.zero_(), v.zero_()) for k, v in e.model.store.kv]
    return rows.watch(e)


def generate(e: EngineLoop, inputs: list[Text], known: Outputs | None = None, n_done: int = 0) -> Outputs:
    """Run all prompts at once: those of odd length are sampled, the others are greedy. The first n_done tokens of the
    `known` outputs are replayed."""
    outputs: Outputs = {text: ([], []) for text in inputs}
    by_rid = dict(enumerate(inputs))
    for rid, text in by_rid.items():
        hot = len(text) % 2
        sampling = Sampling(max_tokens=N_OUT, temperature=0.8 * hot, top_p=0.9, logprobs=bool(hot), ignore_eos=True)
        done = known[text][0][:n_done] if known else []
        outputs[text][0].extend(done)
        ids = array("i", [*text, *done]).tobytes()
        e.take(Run(rid, ids, sampling, n_done=len(done), order=(0, rid), seed=len(text)))
    while not e.scheduler.is_idle:
        step = e.step()
        ids_ = iter(array("i", step.ids))
        for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
            outputs[by_rid[rid]][0].extend(next(ids_) for _ in range(n))
        for rid, entries in step.logprobs.items():
            outputs[by_rid[rid]][1].extend(array("f", [entry.logprob]).tobytes() for entry in entries)
    assert not e.failed
    e.scheduler.check()
    return outputs


@pytest.fixture(scope="module", params=in_short(["bfloat16"], DTYPES))
def cold(request: pytest.FixtureRequest, native: None) -> Iterator[tuple[str, Rows, Outputs]]:
    """The dtype, the rows, and the output of each prompt that runs alone in a new engine."""
    dtype, rows = request.param, Rows()
    outputs: Outputs = {}
    for text in prompts(model(dtype).spec.vocab_size):
        outputs |= generate(engine(dtype, rows, cache=False), [text])
    assert len(rows.known) == len(outputs) * N_OUT
    yield dtype, rows, outputs
    assert not rows.differ, f"texts of {sorted(set(rows.differ))} tokens had different logits"


def check_same(cold: tuple[str, Rows, Outputs], e: EngineLoop, n_times: int = 1) -> None:
    _, rows, outputs = cold
    for _ in range(n_times):
        n_again = rows.n_again
        assert generate(e, list(outputs)) == outputs
        assert not rows.differ
        assert rows.n_again >= n_again + len(outputs) * N_OUT, "every row was compared"


@pytest.mark.parametrize(
    ("page", "step_tokens"),
    short_form(product([1, 16], [7, 64, 512]), lambda *case: case == (16, 7)),
)
def test_logits_do_not_depend_on_chunks_batches_or_the_cache(
    cold: tuple[str, Rows, Outputs], page: int, step_tokens: int
) -> None:
    dtype, rows, _ = cold
    e = engine(dtype, rows, page=page, step_tokens=step_tokens, max_running=7)
    check_same(cold, e, 2)  # first cold and forked from each other, then all cached
    assert e.scheduler.counts["cached_tokens"] > 4 * 290


@pytest.mark.parametrize("n", in_short([3], [1, 3, 7]))
def test_logits_do_not_depend_on_the_batch_without_a_cache(cold: tuple[str, Rows, Outputs], n: int) -> None:
    check_same(cold, engine(cold[0], cold[1], cache=False, max_running=n))


def test_logits_do_not_depend_on_the_number_of_threads(cold: tuple[str, Rows, Outputs]) -> None:
    torch.set_num_threads(3)
    try:
        e = engine(cold[0], cold[1])
        torch.set_num_threads(3)  # an engine sets its own
        check_same(cold, e)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("n_host", in_short([60], [0, 60]))
def test_logits_survive_retraction(
    cold: tuple[str, Rows, Outputs], n_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    e = engine(cold[0], cold[1], n_pages=-(-LONGEST // 16) + 2, n_host=n_host)
    check_same(cold, e, 2)
    assert e.scheduler.counts["retractions"] > 0
    assert n_host == 0 or e.cache.stats().n_moved_in > 0


@pytest.mark.parametrize("n_done", in_short([4], [1, 4, N_OUT - 1]))
def test_replay_in_a_new_engine_gives_the_same_logits(cold: tuple[str, Rows, Outputs], n_done: int) -> None:
    dtype, rows, outputs = cold
    later = generate(engine(dtype, rows), list(outputs), outputs, n_done)
    assert {text: ids for text, (ids, _) in later.items()} == {text: ids for text, (ids, _) in outputs.items()}
    for text, (_, logprobs) in later.items():
        assert logprobs == outputs[text][1][n_done:]


def test_logits_do_not_depend_on_drafts(cold: tuple[str, Rows, Outputs], fake: ModuleType) -> None:
    dtype, rows, outputs = cold
    rng = random.Random(2)

    def noisy_script(request: Any, n: int) -> list[int]:
        known = outputs[tuple(request.ids[: request.n_prompt])][0][request.n_out :][:n]
        return [token if rng.randrange(4) else 3 for token in known]

    e = engine(dtype, rows)
    fake.use_drafts(e, noisy_script)
    check_same(cold, e, 2)
    stats = e.drafting.stats()
    assert 0 < stats["accepted_first"] < stats["drafted_first"]
    own = engine(dtype, rows, speculate="auto")
    check_same(cold, own, 3)
    assert own.drafting.stats()["accepted_tree"] > 0


def test_deterministic_drafts_do_not_branch(cold: tuple[str, Rows, Outputs], fake: ModuleType) -> None:
    dtype, rows, outputs = cold

    def wrong_after(n_right: int) -> Callable[[Any, int], list[int]]:
        def script(request: Any, n: int) -> list[int]:
            known = outputs[tuple(request.ids[: request.n_prompt])][0][request.n_out :][:n]
            return [token if k < n_right else 3 + n_right for k, token in enumerate(known)]

        return script

    for deterministic in (True, False):
        e = engine(dtype, rows if deterministic else Rows(), deterministic=deterministic)
        fake.use_drafts(e, [wrong_after(1), wrong_after(3)])
        plan, has_branched = e.scheduler.plan, []

        def record_branches(now: float, plan: Any = plan, has_branched: list[bool] = has_branched) -> Any:
            planned = plan(now)
            has_branched.extend(bool(work.parents) for work in planned.works)
            return planned

        e.scheduler.plan = record_branches  # type: ignore[method-assign]
        if deterministic:
            check_same(cold, e, 2)
            assert e.drafting.stats()["accepted_second"] + e.drafting.stats()["accepted_first"] > 0
        else:
            generate(e, list(outputs))
        assert any(has_branched) is not deterministic


@pytest.mark.long
def test_logits_depend_on_the_batch_without_the_option(native: None) -> None:
    """If they did not, the tests above would prove nothing."""
    rows = Rows()
    inputs = prompts(model("float32").spec.vocab_size)
    for text in inputs:
        generate(engine("float32", rows, cache=False, deterministic=False), [text])
    e = engine("float32", rows, deterministic=False)
    generate(e, inputs)
    generate(e, inputs)
    assert rows.differ


# ---- kernels, the check at start, and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_in", "n_out"), [(256, 1000), (2050, 77), (64, 64)])
def test_linear_layer_computes_each_row_independently(native: None, dtype: str, n_in: int, n_out: int) -> None:
    x = torch.randn(110, n_in).to(getattr(torch, dtype))
    layer = Linear(torch.randn(n_out, n_in).to(x.dtype), torch.randn(n_out).to(x.dtype), deterministic=True)
    whole = layer(x)
    for n in (*range(1, 14), 95, 97):
        for at in (0, 1, 5, 110 - n):
            assert torch.equal(layer(x[at : at + n]), whole[at : at + n]), (n, at)


def test_tiles_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = linear.ops.linear
    monkeypatch.setattr(linear.ops, "linear", lambda x, *rest: seen.append(len(x)) or plain(x, *rest))
    weight, bias = torch.randn(5, 8), torch.randn(5)
    for n in (1, TILE - 1, TILE, TILE + 1, 3 * TILE):
        x = torch.randn(n, 8)
        torch.testing.assert_close(tiled(x, weight, bias), plain(x, weight, bias))
    assert set(seen) == {TILE}
    assert len(seen) == 1 + 1 + 1 + 2 + 3


@pytest.fixture(scope="module")
def built(native: None) -> EngineLoop:
    return build(configs.make(deterministic=True, device="cpu", kv_memory="64MB", threads=1))


@pytest.mark.parametrize(
    ("is_off", "what"),
    short_form(
        [
            (lambda n_rows, last: n_rows == 7, "a chunk of 6 tokens beside another text"),
            (lambda n_rows, last: last is not None, "a last layer that computes only the rows that are needed"),
        ],
        lambda is_off, what: what.startswith("a chunk"),
    ),
)
def test_startup_check_detects_batch_dependent_logits(
    built: EngineLoop, monkeypatch: pytest.MonkeyPatch, is_off: Callable[..., bool], what: str
) -> None:
    assert any("deterministic" in line and "drafts do not branch" in line for line in built.resolved.decisions)
    plain = Layers.logits

    def slightly_off(self: Layers, x: Tensor, cos_sin: Any, ragged: Ragged, wanted: Tensor,
                     last: Tensor | None = None, *rest: Any) -> Tensor:  # fmt: skip
        n_rows = len(x)
        return plain(self, x, cos_sin, ragged, wanted, last, *rest) * (1 + is_off(n_rows, last) * 1e-6)

    monkeypatch.setattr(Layers, "logits", slightly_off)
    with pytest.raises(ConfigError, match=f"{what} changed logits by up to"):
        check_determinism(built.model, 300)


@pytest.mark.parametrize("n", in_short([17], [1, 17, 47, 300]))
def test_startup_check_supports_short_contexts(built: EngineLoop, n: int) -> None:
    check_determinism(built.model, n)


def test_unsupported_deterministic_configurations_are_refused(tiny_model: Callable[..., Any], native: None) -> None:
    with pytest.raises(Unsupported, match="gemma2 runs in transformers' own code"):
        load(tiny_model("gemma2"), deterministic=True)
    with pytest.raises(ConfigError, match="deterministic is not possible here: on a CPU float16"):
        load("pocket", dtype="float16", deterministic=True)
    with pytest.raises(ConfigError, match="no kernel for 7 inputs"):
        Linear(torch.zeros(4, 7).bfloat16(), deterministic=True)
