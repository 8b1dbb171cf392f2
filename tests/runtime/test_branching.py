"""Branches on a real server and engine with a tiny model: losing branches stop, adopted ones keep their KV."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from waits import wait_until

LONG = 3000
"""Tokens of a branch that a busy machine does not finish before the test stops it."""
CHOICES = ["a", "bb", "the other"]


@pytest.fixture(scope="module")
def runtime(tiny_model: Callable[..., Path]) -> Iterator[bn.Runtime]:
    with bn.Runtime(tiny_model(max_position_embeddings=4096), threads=1) as backend:
        yield backend


def wait_until_idle(backend: bn.Runtime) -> dict[str, Any]:
    """Waits until no request runs; returns the stats."""

    def stats_if_idle() -> dict[str, Any]:
        stats: dict[str, Any] = backend.ask("stats")
        return {} if stats["engine"]["running"] or stats["server"]["requests"] else stats

    return wait_until(stats_if_idle, "the end of all requests", seen=lambda: backend.ask("stats"))


def long_and_short(s: bn.State) -> Any:
    """Four branches of LONG tokens, except the third with 3, and two branches of the first."""
    s += bn.user("hello there")
    forks = s.fork(4)
    forks += lambda i: bn.assistant(bn.gen("a", max_tokens=3 if i == 2 else LONG, ignore_eos=True))
    inner = forks[0].fork(2)
    inner += bn.user("x") + bn.assistant(bn.gen("b", max_tokens=LONG, ignore_eos=True))
    return forks, inner


def test_losing_branches_stop_and_free_their_pages(runtime: bn.Runtime) -> None:
    def body(s: bn.State) -> None:
        forks, inner = long_and_short(s)
        assert forks.first() is forks[2]
        stats = wait_until_idle(runtime)
        assert stats["engine"]["generated_tokens"] - before["engine"]["generated_tokens"] < 3 * LONG
        assert stats["server"]["programs"] == 1, "the program is still open"
        assert (stats["cache"]["n_leases"], stats["cache"]["n_leased"]) == (0, 0)
        for branch, name in ((forks[0], "a"), (forks[3], "a"), (inner[1], "b")):
            with pytest.raises(bn.Cancelled):
                branch[name]
        s.adopt(forks[2])
        s += bn.user("more") + bn.assistant(bn.gen("c", max_tokens=2))
        assert s["c"] is not None

    before = wait_until_idle(runtime)
    bn.function(body).run(backend=runtime, temperature=0)
    runtime.ask("check")


def test_adopted_branch_keeps_its_cached_tokens(runtime: bn.Runtime) -> None:
    def body(s: bn.State) -> tuple[Any, Any]:
        s += bn.user("the quick brown fox")
        forks = s.fork(3)
        forks += lambda i: bn.assistant(f"{i}: " + bn.gen("a", max_tokens=20, ignore_eos=True))
        best = forks.best(lambda branch: branch["a"])
        n_before = best.get_meta_info("a")["prompt_tokens"] + best.get_meta_info("a")["completion_tokens"]
        s.adopt(best)
        s += bn.user("on") + bn.assistant(bn.gen("b", max_tokens=5))
        return n_before, s.get_meta_info("b")

    state = bn.function(body).run(backend=runtime, seed=1)
    n_before, meta = state.ret_value
    assert meta["cached_tokens"] >= n_before - 1, "all but the last token, whose KV was not computed"


def test_beam_returns_branches_with_finite_scores(runtime: bn.Runtime) -> None:
    def body(s: bn.State) -> None:
        s += "the answer is"
        beams = s.beam(3, bn.gen("x", max_tokens=2, temperature=1.0, ignore_eos=True), depth=2, width=4)
        scores = [sum(p for p, *_ in branch.get_meta_info("x")["output_token_logprobs"]) for branch in beams]
        assert len(beams) == 3
        assert all(math.isfinite(value) for value in scores)
        s.adopt(beams[0])
        assert s.text().startswith("the answer is")
        assert s["x"] == beams[0]["x"]

    bn.function(body).run(backend=runtime, seed=3)
    wait_until_idle(runtime)
    runtime.ask("check")


def test_select_distribution_matches_transformers(
    runtime: bn.Runtime, tiny_model: Callable[..., Path], reference: Callable[[Path], Any]
) -> None:
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_model() / "tokenizer.json"))
    prompt = "the lazy dog says:"
    n = len(tokenizer.encode(prompt).ids)
    logprobs = []
    for choice in CHOICES:
        ids = tokenizer.encode(prompt + choice).ids
        assert ids[:n] == tokenizer.encode(prompt).ids
        with torch.no_grad():
            rows = torch.log_softmax(reference(tiny_model())(torch.tensor([ids])).logits[0].double(), -1)
        logprobs.append(sum(rows[k - 1, ids[k]].item() for k in range(n, len(ids))))
    weights = [math.exp(logprob) for logprob in logprobs]
    expected = {choice: weight / sum(weights) for choice, weight in zip(CHOICES, weights, strict=True)}

    def body(s: bn.State) -> None:
        s += prompt + bn.select("k", CHOICES)

    assert bn.function(body).run(backend=runtime).dist("k") == pytest.approx(expected, rel=1e-3)


def test_select_with_temperature_samples_by_score(runtime: bn.Runtime) -> None:
    n = 60

    def body(s: bn.State) -> None:
        s += "there is"
        forks = s.fork(n)
        forks += bn.select("k", CHOICES, temperature=0.7)
        forks.join()

    state = bn.function(body).run(backend=runtime, seed=5)
    weights = state.get_meta_info("k")[0]["weights"]
    scores = state.get_meta_info("k")[0]["normalized_prompt_logprobs"]
    weighted = [math.exp(score / 0.7) for score in scores]
    assert weights == pytest.approx([one / sum(weighted) for one in weighted])
    chi2 = sum(
        (state["k"].count(choice) - n * weight) ** 2 / (n * weight)
        for choice, weight in zip(CHOICES, weights, strict=True)
    )
    assert chi2 < 13.8, "p < 0.001 for two degrees of freedom"
    repeated = bn.function(body).run(backend=runtime, seed=5)
    assert repeated["k"] == state["k"]
    assert len(set(state["k"])) > 1


def test_join_collects_the_error_of_a_failed_branch(runtime: bn.Runtime) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(3)
        forks += lambda i: ("x " * 4096 if i == 1 else "short") + bn.gen("a", max_tokens=2)
        forks.join(on_error="collect")

    first, error, last = bn.function(body).run(backend=runtime)["a"]
    assert isinstance(first, str)
    assert isinstance(last, str)
    assert isinstance(error, bn.ForkError)
    assert error.index == 1
    assert isinstance(error.__cause__, bn.PromptTooLong)


def test_branches_in_an_async_program(runtime: bn.Runtime) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> int:
        forks, _ = long_and_short(s)  # type: ignore[arg-type]
        winner = await forks.first()
        s.adopt(winner)
        votes = s.fork(3)
        votes += lambda i: bn.user(f"{i}") + bn.assistant(bn.gen("v", max_tokens=2))
        await votes.vote("v")
        return list(forks).index(winner)

    assert asyncio.run(program.run_async(backend=runtime, temperature=0)).ret_value == 2
    wait_until_idle(runtime)
    runtime.ask("check")
