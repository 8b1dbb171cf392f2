"""Usage of states: sums, the list of gens, and no wait for values that never arrive."""

from __future__ import annotations

from typing import Any

import pytest

import banyan as bn
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.views.usage import GenUsage, Usage


class CostlyMock(bn.Mock):
    """The n-th gen costs n times the base usage; gens named "bad" fail."""

    def start(self, job: Any) -> None:
        self.calls.append(None)  # type: ignore[arg-type]
        n = len(self.calls)
        if job.op.name == "bad":
            raise ValueError("no")
        job.finish(GenOutcome((wire.Sample("x", "stop"),), wire.TokenUsage(10 * n, 4 * n, n, 3 * n, 2 * n)))


@bn.function
def program(s: bn.State) -> None:
    s += bn.gen("a")
    forks = s.fork(2)
    forks += bn.gen("b")
    s["forks"] = forks
    s.text()  # reads without a gen are not counted
    s += bn.gen()


def test_usage_sums_all_gens() -> None:
    state = program.run(backend=CostlyMock())
    usage = state.usage
    assert usage == Usage.of(usage.gens)
    assert (usage.prompt, usage.cached, usage.computed) == (100, 40, 60)
    assert (usage.generated, usage.drafted, usage.accepted) == (10, 30, 20)
    assert usage.hit_rate == 0.4
    assert [(g.name, g.state, g.prompt, g.computed) for g in usage.gens] == [
        ("a", 0, 10, 6),
        ("", 0, 40, 24),
        ("b", 1, 20, 12),
        ("b", 2, 30, 18),
    ]
    assert usage.gens[0].line.startswith("test_usage.py:")
    assert [fork.usage.prompt for fork in state["forks"]] == [20, 30], "a branch counts only its own gens"


def test_usages_can_be_summed() -> None:
    states = [program.run(backend=CostlyMock()) for _ in range(3)]
    total = sum(state.usage for state in states)
    assert isinstance(total, Usage)
    assert (total.prompt, len(total.gens)) == (300, 12)
    with pytest.raises(TypeError):
        total + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        1 + total  # type: ignore[operator]


def test_repr_omits_zero_drafts() -> None:
    assert repr(Usage(10, 4, 1)) == "Usage(prompt=10, cached=4, computed=6, generated=1)"
    assert repr(Usage(10, 4, 1, 3, 2)) == "Usage(prompt=10, cached=4, computed=6, generated=1, drafted=3, accepted=2)"
    assert Usage().hit_rate == 0.0


def test_html_table_is_escaped() -> None:
    usage = Usage.of([GenUsage(10, 4, 1, name="<b>&", line="a.py:1")])
    html = usage._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "<td>10</td><td>4</td><td>6</td><td>1</td>" in html


def test_failed_gens_are_not_counted() -> None:
    @bn.function
    def fails(s: bn.State) -> None:
        s += bn.gen("a") + bn.gen("bad") + bn.gen("after")

    usage = fails.run(backend=CostlyMock()).usage
    assert [gen.name for gen in usage.gens] == ["a"]
    assert usage.prompt == 10


def test_usage_is_available_after_the_body_raised() -> None:
    @bn.function
    def raises(s: bn.State) -> None:
        s += bn.gen("a")
        s["a"]
        raise RuntimeError("no")

    state = raises.run(backend=CostlyMock(), stream=True)
    with pytest.raises(RuntimeError):
        state.sync()
    assert state.usage.prompt == 10


def test_usage_without_gens_is_empty() -> None:
    assert bn.function(lambda s: s.__iadd__("x")).run(backend=bn.Mock()).usage == Usage()


def test_deeply_nested_forks_can_be_viewed() -> None:
    n = 1_100  # more than Python's limit of nested calls

    @bn.function
    def deep(s: bn.State) -> None:
        (t,) = s.fork(1)
        for i in range(n):
            t += f"{i} "
            (t,) = t.fork(1)
        t += bn.gen("a")
        assert t["a"] == "x"
        assert (t.usage.prompt, s.usage.prompt) == (10, 10)
        assert t.text().startswith("0 1 2 ")
        assert s.timeline()["traceEvents"]
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program") as raised:
        deep.run(backend=CostlyMock())
    assert [gen.name for gen in raised.value.state.usage.gens] == ["a"]  # type: ignore[attr-defined]
