"""End-to-end programs with and without speculation: the same texts, and counts per drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import banyan as bn


@bn.function
def agent(s: bn.State, topic: str) -> None:
    s += bn.user(f"Tell me of {topic}, of {topic}, of {topic}")
    s += bn.assistant(bn.gen("plain", max_tokens=40, temperature=0, ignore_eos=True))
    plain = s["plain"]
    s += bn.user("And again")
    s += bn.assistant(bn.gen("cut", max_tokens=40, temperature=0, stop=[plain[7:10], "then and"], ignore_eos=True))
    branches = s.fork(3)
    for k, branch in enumerate(branches):
        branch += bn.gen("drawn", max_tokens=24, temperature=0.8, top_p=0.95, seed=k % 2, ignore_eos=True)
    s += bn.gen("held", regex=r"(the quick |a slow )?(brown|red) fox [0-9]{3}", temperature=0)
    s["branches"] = [branch["drawn"] for branch in branches]


@pytest.fixture(scope="module")
def runtimes(tiny_model: Callable[..., Path]) -> Iterator[dict[str, Any]]:
    model = str(tiny_model("llama"))
    created = {
        name: bn.Runtime(model, device="cpu", threads=1, kv_memory="16MB", speculate=name) for name in ("off", "auto")
    }
    yield created
    for runtime in created.values():
        runtime.shutdown()


@pytest.mark.long
def test_draft_model_does_not_change_texts(runtimes: dict[str, Any], tiny_model: Callable[..., Path]) -> None:
    """The draft model is the model itself, whose drafts are nearly always accepted."""
    model = str(tiny_model("llama"))
    runtime = bn.Runtime(model, device="cpu", threads=1, kv_memory="32MB", draft_model=model, speculate="model")
    try:
        off, drafted = (agent.run(topic="foxes", backend=r) for r in (runtimes["off"], runtime))
        assert texts(off) == texts(drafted)
        assert drafted.usage.accepted <= drafted.usage.drafted
        assert set(drafted.get_meta_info("plain")["drafts"]) <= {"model"}
    finally:
        runtime.shutdown()


def texts(state: Any) -> list[Any]:
    return [state["plain"], state["cut"], state["held"], state["branches"]]


@pytest.mark.long
def test_speculation_does_not_change_texts_and_reports_its_drafters(runtimes: dict[str, Any]) -> None:
    accepted = 0
    for _ in range(3):
        off, auto = (agent.run_batch([{"topic": "foxes"}, {"topic": "dogs"}], backend=r) for r in runtimes.values())
        assert list(map(texts, off)) == list(map(texts, auto))
        for state in off:
            assert state.usage.drafted == 0
            assert state.get_meta_info("plain")["drafts"] == {}
        for state in auto:
            usage = state.usage
            assert 0 <= usage.accepted <= usage.drafted
            accepted += usage.accepted
    meta = auto[0].get_meta_info("plain")
    assert set(meta["drafts"]) <= {"tree", "ngram", "grammar"}
    assert meta["drafts"]["tree"]["accepted"] > 20, "two earlier runs generated this text"
    assert meta["spec_verify_ct"] < 20
    assert auto[0].get_meta_info("held")["drafts"]["grammar"]["accepted"] > 0
    assert "of drafts accepted: " in auto[0].show().html
