"""Choosing among branches: best, first, vote and beam, on a Mock."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import banyan as bn
from banyan.runtime.protocol import wire
from forms import examples


class OrderedMock:
    """A Mock whose answers arrive in the given order of branch numbers; other branches never finish."""

    def __init__(self, answer: Any, *order: int) -> None:
        self.mock = bn.Mock(answer, latency=self._latency)
        self._order = order

    def _latency(self, call: Any) -> float:
        i = int(call.prompt.rsplit("#", 1)[-1].strip("!"))
        return 0.1 * (1 + self._order.index(i)) if i in self._order else 600.0


def dropped(mock: bn.Mock) -> set[int]:
    return {op.state for ops in mock.submits for op in ops if isinstance(op, wire.Drop) and op.tree}


# ---- best ----------------------------------------------------------------------------------------------------------


def test_best_keeps_one_branch_and_drops_the_others(run: Any, echo: Any, branches: Any) -> None:
    mock = bn.Mock(echo)

    def body(s: bn.State) -> None:
        forks = branches(s, "3", "9", "4")
        best = forks.best(lambda branch: int(branch["a"]))
        assert best is forks[1]
        assert dropped(mock) == {1, 3}
        assert forks[0]["a"] == "3", "finished values stay readable"
        with pytest.raises(bn.BadProgram, match="was dropped; it takes no more text"):
            forks[0].user("late")
        best += bn.gen("more")
        assert best["more"] == "99"

    run(body, mock)


@pytest.mark.parametrize(
    ("texts", "best"), [(("9", "10"), None), (("-1", "-2"), None), (("1", "9", "9.0"), 2), (("9", "10", "x"), 2)]
)
def test_scores_that_are_numbers_in_text_are_never_ranked_by_characters(
    run: Any, echo: Any, branches: Any, texts: tuple[str, ...], best: int | None
) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, *texts)
        if best is None:
            with pytest.raises(bn.BadProgram, match=r"texts of numbers, .* use float\(\)"):
                forks.best(lambda branch: branch["a"])
        else:
            assert forks.best(lambda branch: branch["a"]) is forks[best]

    run(body, bn.Mock(echo))


def test_best_takes_the_first_of_equal_branches(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, "3", "9", "9")
        assert forks.best(lambda branch: branch["a"]) is forks[1]

    run(body, bn.Mock(echo))


@pytest.mark.parametrize(
    ("scores", "match"),
    [
        ((3, None, 4), "the key returned None for branch 1; it must return a score"),
        ((None, None), "the key returned None for branch 0"),
        ((math.nan, math.nan), "the key returned nan for all branches"),
        ((3, "x"), "the scores that the key returned have no order: '<' not supported"),
    ],
)
def test_scores_of_which_none_is_the_greatest_are_refused(
    run: Any, echo: Any, branches: Any, scores: tuple[Any, ...], match: str
) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, *map(str, range(len(scores))))
        with pytest.raises(bn.BadProgram, match=match):
            forks.best(lambda branch: scores[int(branch["a"])])

    run(body, bn.Mock(echo))


def test_best_key_may_generate(run: Any, echo: Any, branches: Any) -> None:
    def judge(branch: bn.State) -> float:
        branch += bn.user("Rate it.") + bn.assistant(bn.gen("score"))
        return float(branch["score"])

    def body(s: bn.State) -> None:
        forks = branches(s, "a", "b")
        assert forks.best(judge)["a"] == "b"

    run(body, bn.Mock(lambda prompt, name: echo(prompt, name) if name == "a" else "9" if "#b" in prompt else "1"))


def test_best_raises_or_skips_a_failed_branch(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, "3", "9!", "4")
        with pytest.raises(bn.ForkError, match="branch 1 failed: the script of the Mock raised ValueError") as e:
            forks.best(lambda branch: branch["a"])
        assert e.value.index == 1
        assert isinstance(e.value.__cause__, bn.ProgramError)
        assert e.value.gen == "a"
        assert e.value.line.startswith("conftest.py:"), "the line of the append"
        assert forks.best(lambda branch: branch["a"], on_error="collect") is forks[2]

    run(body, bn.Mock(echo))


def test_best_raises_if_all_branches_failed(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.ForkError, match="2 of 2 branches failed; branch 0 failed"):
            branches(s, "1!", "2!").best(lambda branch: branch["a"], on_error="collect")

    run(body, bn.Mock(echo))


@pytest.mark.parametrize("is_joined", [False, True])
def test_branch_whose_key_reads_an_invalid_value_has_failed(is_joined: bool, run: Any) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(3)
        for branch in forks:
            if is_joined:
                inner = branch.fork(1)
                inner += bn.gen("score", type=int)
                inner.join()
            else:
                branch += bn.gen("score", type=int)

        def key(branch: bn.State) -> int:
            value = branch.value("score")
            return value[0] if is_joined else value

        with pytest.raises(bn.ForkError, match="branch 0 failed") as e:
            forks.best(key)
        assert isinstance(e.value.__cause__, bn.ForkError if is_joined else bn.BadOutput)
        assert forks.best(key, on_error="collect") is forks[2]

    run(body, bn.Mock(["n/a", "2", "3"]))


def test_best_raises_if_the_key_reads_only_invalid_values(run: Any) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(2)
        forks += bn.gen("score", type=int)
        with pytest.raises(bn.ForkError, match="2 of 2 branches failed; branch 0 failed"):
            forks.best(lambda branch: branch.value("score"), on_error="collect")

    run(body, bn.Mock("n/a"))


def test_async_key_that_reads_an_invalid_value_fails_its_branch() -> None:
    async def score(branch: bn.AsyncState) -> int:
        return await branch.value("score", int)

    def known_score(branch: bn.AsyncState) -> int:
        if branch["score"] == "n/a":
            raise bn.BadOutput("no number")
        return int(branch["score"])

    async def body(s: bn.AsyncState) -> None:
        for key in (score, known_score):
            forks = s.fork(3)
            forks += bn.gen("score", type=int)
            with pytest.raises(bn.ForkError, match="branch 0 failed"):
                await forks.best(key)
            assert await forks.best(key, on_error="collect") is forks[2]

    run_async(body, bn.Mock(["n/a", "2", "3"] * 2))


def test_best_raises_errors_of_the_key_unchanged(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(ZeroDivisionError):
            branches(s, "1", "2").best(lambda branch: 1 / 0)
        with pytest.raises(bn.UnknownVariable):
            branches(s, "1", "2").best(lambda branch: branch["nothing"])

    run(body, bn.Mock(echo))


def test_branch_with_a_score_of_nan_is_last(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, "nan", "1", "nan", "2")
        assert forks.best(lambda branch: float(branch["a"])) is forks[3]

    run(body, bn.Mock(echo))


# ---- first, as_completed -------------------------------------------------------------------------------------------


def test_first_returns_the_first_finished_branch(run: Any, echo: Any, branches: Any) -> None:
    ordered = OrderedMock(echo, 2, 0)

    def body(s: bn.State) -> None:
        forks = branches(s, "0", "1", "2", "3")
        assert forks.first() is forks[2]
        assert dropped(ordered.mock) == {1, 2, 4}
        with pytest.raises(bn.Cancelled, match="dropped"):
            forks[1]["a"]

    run(body, ordered.mock)


def test_first_k_skips_failed_branches(run: Any, echo: Any, branches: Any) -> None:
    ordered = OrderedMock(echo, 1, 3, 0)

    def body(s: bn.State) -> None:
        forks = branches(s, "0", "1!", "2", "3")
        assert forks.first(2) == [forks[3], forks[0]]

    run(body, ordered.mock)


@pytest.mark.parametrize("k", [1, 2])
def test_first_skips_branches_with_invalid_outputs(k: int, run: Any) -> None:
    def body(s: bn.State) -> None:
        s += bn.gen("text", type=int)
        forks = s.fork(3)
        forks += s.ref("text") + bn.gen("n", type=int)
        if k == 1:
            assert forks.first() is forks[1]
            return
        with pytest.raises(bn.ForkError, match="2 of 3 branches failed; branch 0 failed: not a valid int: 'five'"):
            forks.first(k)

    run(body, bn.Mock({"text": "none", "n": ["five", "6", "seven"]}))


def test_first_takes_a_branch_whose_body_dealt_with_an_invalid_output(run: Any) -> None:
    def body(s: bn.State) -> None:
        (branch,) = forks = s.fork(1)
        branch += bn.gen("n", type=int)
        with pytest.raises(bn.BadOutput):
            branch.value("n")
        branch += " I mean " + bn.gen("again", type=int)
        assert forks.first() is branch

    run(body, bn.Mock({"n": "five", "again": "5"}))


def test_first_takes_a_branch_that_replaced_an_invalid_output(run: Any) -> None:
    def body(s: bn.State) -> None:
        (branch,) = forks = s.fork(1)
        branch += bn.gen("n", type=int)
        branch += " I mean " + bn.gen("n", type=int)
        assert forks.first() is branch

    run(body, bn.Mock({"n": ["five", "5"]}))


def test_first_k_raises_if_too_few_succeed(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.ForkError, match="2 of 3 branches failed") as e:
            branches(s, "0!", "1!", "2").first(2)
        assert e.value.index == 0
        for k in (0, 4):
            with pytest.raises(bn.BadProgram, match="of 3 branches"):
                branches(s, "0", "1", "2").first(k)

    run(body, bn.Mock(echo))


def test_as_completed_yields_all_branches_in_finish_order(run: Any, echo: Any, branches: Any) -> None:
    ordered = OrderedMock(echo, 2, 1, 0)

    def body(s: bn.State) -> None:
        forks = branches(s, "0", "1!", "2")
        completed = list(forks.as_completed())
        assert completed == [forks[2], forks[1], forks[0]]
        assert [branch.error() is None for branch in completed] == [True, False, True]
        assert dropped(ordered.mock) == set()

    run(body, ordered.mock)


def test_branches_that_have_finished_come_in_finish_order(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, "0", "1", "2")
        for fork in forks:
            fork["a"]
        assert list(forks.as_completed()) == [forks[2], forks[1], forks[0]]

    run(body, OrderedMock(echo, 2, 1, 0).mock)


def test_branch_is_finished_after_its_own_branches(run: Any, echo: Any, branches: Any) -> None:
    ordered = OrderedMock(echo, 0, 2, 1)

    def body(s: bn.State) -> None:
        forks = s.fork(2)
        forks += "start"
        inner = branches(forks[0], "1")
        forks[1].__iadd__("#2" + bn.gen("a"))
        assert list(forks.as_completed()) == [forks[1], forks[0]]
        assert inner[0]["a"] == "1"
        empty = s.fork(2)
        assert empty.first() is empty[0], "there is nothing to wait for"

    run(body, ordered.mock)


CHOICES: list[Callable[[Any], Any]] = [
    lambda forks: forks.first(),
    lambda forks: forks.vote("v"),
    lambda forks: forks.best(lambda branch: branch["v"]),
]


@pytest.mark.parametrize("is_adopted", [False, True])
@pytest.mark.parametrize("choose", CHOICES)
def test_branch_that_raced_its_own_branches_has_not_failed(
    choose: Callable[[Any], Any], is_adopted: bool, run: Any, echo: Any, branches: Any
) -> None:
    """The losers of the inner races are dropped while they run, or have failed."""

    def body(s: bn.State) -> None:
        forks = s.fork(2)
        for branch in forks:
            winner = branches(branch, "0!", "1", "2", name="v").first()
            assert winner["v"] == "1"
            if is_adopted:
                branch.adopt(winner)
            else:
                branch["v"] = winner["v"]
        assert [branch.error() for branch in forks] == [None, None]
        assert choose(forks)["v"] == "1"

    run(body, OrderedMock(echo, 0, 1).mock)


@pytest.mark.parametrize("choose", CHOICES)
def test_branch_that_collects_the_errors_of_its_own_branches_has_not_failed(
    choose: Callable[[Any], Any], run: Any, echo: Any, branches: Any
) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(2)
        for branch, on_error in zip(forks, ("raise", "collect"), strict=True):
            branches(branch, "1", "2!").join(on_error=on_error)
            branch["v"] = 1
        assert [branch.error() is None for branch in forks] == [False, True]
        if choose is CHOICES[0]:
            assert choose(forks) is forks[1]
        else:
            with pytest.raises(bn.ForkError, match=r"branch 0 failed: branch 1 failed: .*no luck"):
                choose(forks)

    run(body, bn.Mock(echo))


def test_variables_that_failed_before_the_fork_do_not_count(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        branches(s, "1", "2!").join()
        forks = s.fork(2)
        assert forks.first() is forks[0]

    run(body, bn.Mock(echo))


def test_branch_has_finished_after_the_scopes_that_it_joined(run: Any) -> None:
    mock = bn.Mock(lambda prompt, name: name, latency=lambda call: 0.2 if call.name == "slow" else 0.0)

    def body(s: bn.State) -> None:
        (slow,) = s.fork()
        slow += bn.gen("slow")
        forks = s.fork(2)
        group = forks[0].fork()
        with group[0].var_scope("scope"):
            group[0].__iadd__(slow.ref("slow"))
        group.join()
        forks[1] += bn.gen("quick")
        assert list(forks.as_completed()) == [forks[1], forks[0]]
        assert forks[0]["scope"] == ["slow"]

    run(body, mock)


def test_dropped_branch_does_not_win(run: Any, branches: Any) -> None:
    mock = bn.Mock(lambda prompt, name: name, latency=0.1)

    def body(s: bn.State) -> None:
        forks = s.fork(2)
        inner = [branches(branch, "0") for branch in forks]  # they are dropped with the last reference
        forks[0].drop()
        assert forks.first() is forks[1]
        assert inner[1][0]["a"] == "a"

    run(body, mock)


# ---- vote ----------------------------------------------------------------------------------------------------------


def test_vote_takes_the_most_frequent_value(run: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, "x", "y ", " y", "x", "y")
        winner = forks.vote("a")
        assert winner is forks[1]
        assert winner["a"].strip() == "y"

    run(body, bn.Mock(lambda prompt, name: prompt.rsplit("#", 1)[-1]))


def test_vote_counts_by_key(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        assert branches(s, "1", "3", "2", "5").vote("a", key=lambda value: int(value) % 2)["a"] == "1"

    run(body, bn.Mock(echo))


def test_vote_compares_typed_values(run: Any) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(3)
        forks += lambda i: f"#{i}" + bn.gen("a", type=list[int])
        assert forks.vote("a").value("a") == [1, 2]

    run(
        body,
        bn.Mock(lambda prompt, name: "[3]" if prompt.endswith("0") else "[1,2]" if prompt.endswith("1") else "[1, 2]"),
    )


def test_decided_vote_drops_the_other_branches(run: Any, echo: Any) -> None:
    ordered = OrderedMock(echo, 4, 3, 1)

    def body(s: bn.State) -> None:
        forks = s.fork(5)
        forks += lambda i: f"same#{i}" + bn.gen("a")
        assert forks.vote("a", key=lambda value: 0) is forks[1]
        assert dropped(ordered.mock) == {1, 3, 4, 5}

    run(body, ordered.mock)


def test_vote_tie_goes_to_the_first_branch(run: Any, echo: Any, branches: Any) -> None:
    ordered = OrderedMock(echo, 3, 2, 1, 0)

    def body(s: bn.State) -> None:
        forks = branches(s, "0", "1", "2", "3")
        assert forks.vote("a", key=lambda value: int(value) // 2) is forks[0]

    run(body, ordered.mock)


def test_failed_branches_have_no_vote(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, "1!", "2!", "3")
        with pytest.raises(bn.ForkError):
            forks.vote("a")
        assert forks.vote("a", on_error="collect") is forks[2]
        with pytest.raises(bn.BadProgram, match="on_error is 'skip'"):
            forks.vote("a", on_error="skip")  # type: ignore[arg-type]

    run(body, bn.Mock(echo))


@pytest.mark.parametrize("is_joined", [False, True])
def test_invalid_values_have_no_vote(is_joined: bool, run: Any, echo: Any) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(3)
        for branch, text in zip(forks, ("zz", "4", "4"), strict=True):
            inner = branch.fork(1) if is_joined else branch
            inner += f"#{text}" + bn.gen("x", type=int)
            if is_joined:
                inner.join()
        with pytest.raises(bn.ForkError, match=r"branch 0 failed: .*'zz'") as e:
            forks.vote("x")
        assert e.value.index == 0
        assert forks.vote("x", on_error="collect") is forks[1]

    run(body, bn.Mock(echo))


def test_invalid_values_have_no_vote_in_async_programs(run_loop: Any, echo: Any) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> int:
        forks = s.fork(3)
        forks += ["#zz" + bn.gen("x", type=int), *["#4" + bn.gen("x", type=int)] * 2]
        return await (await forks.vote("x", on_error="collect")).value("x")

    assert run_loop(program.run_async(backend=bn.Mock(echo))).ret_value == 4


@examples(10, 50, given(values=st.lists(st.sampled_from("abc"), min_size=1, max_size=8), random=st.randoms()))
def test_ballot_equals_counting_for_any_finish_order(
    values: list[str], random: Random, run: Any, echo: Any, branches: Any
) -> None:
    from banyan.lang.branch_choice import Ballot

    def body(s: bn.State) -> None:
        forks = branches(s, *values)
        s.sync()
        order = list(range(len(values)))
        random.shuffle(order)
        ballot = Ballot(list(forks), "a", None, "raise")
        any(ballot.add(i) for i in order)
        counts = {value: values.count(value) for value in values}
        leading = [value for value in counts if counts[value] == max(counts.values())]
        winner = ballot.winner()["a"]
        assert winner in leading
        if len(leading) > 1:
            assert winner == min(leading, key=values.index)

    run(body, bn.Mock(echo))


# ---- beam ----------------------------------------------------------------------------------------------------------


def test_beam_keeps_the_best_of_each_step(run: Any) -> None:
    letters = iter("bcadefzyxw" * 10)
    mock = bn.Mock(lambda prompt, name: next(letters))

    def body(s: bn.State) -> None:
        s += "start:"
        beams = s.beam(2, bn.gen("x"), depth=3, width=2, key=lambda branch: branch.text())
        assert len(beams) == 2
        texts = [branch.text() for branch in beams]
        assert texts == sorted(texts, reverse=True)
        s.adopt(beams[0])
        assert s.text() == texts[0]
        assert s["x"] == texts[0][-1]

    run(body, mock)
    assert len(mock.calls) == 2 + 4 + 4


def test_beam_step_may_read_its_branch(run: Any) -> None:
    def body(s: bn.State) -> None:
        s["n"] = 0
        beams = s.beam(1, lambda branch: f"[{len(branch.text())}]", depth=2, width=3, key=lambda branch: 0)
        assert beams[0].text() == "[0][3]"

    run(body)


def test_beam_ranks_by_logprob_without_a_key(run: Any) -> None:
    logprob_of = {"a": -1.0, "b": -0.1, "c": -3.0, "d": -0.2}
    answers = iter("acbdcdab")

    def script(prompt: str, name: str) -> wire.Sample:
        letter = next(answers)
        logprobs = tuple(wire.TokenLogprob(0, letter, logprob_of[letter]) for _ in range(1))
        return wire.Sample(letter, "stop", n_tokens=1, logprobs=logprobs)

    mock = bn.Mock(script)

    def body(s: bn.State) -> None:
        beams = s.beam(2, f"-{bn.gen('x')}", depth=2)
        assert [branch.text() for branch in beams] == ["-a-b", "-a-d"]

    run(body, mock)
    assert all(call.op.sampling.logprobs for call in mock.calls)


def test_beam_ranks_by_the_logprobs_of_choices_without_a_key(run: Any) -> None:
    scores = iter([{"a": -2.0, "b": -3.0}, {"a": -4.0, "b": -1.5}, {"a": -9.0, "b": -1.0}])

    def body(s: bn.State) -> None:
        beams = s.beam(3, bn.select("x", ["a", "b"]))
        assert [branch["x"] for branch in beams] == ["b", "b", "a"]
        assert [branch.get_meta_info("x")["input_token_logprobs"][1][0][0] for branch in beams[:2]] == [-1.0, -1.5]

    run(body, bn.Mock(lambda prompt, name: next(scores)))


def test_beam_counts_no_spliced_choice(run: Any) -> None:
    scores = iter([{"a": -3.0, "b": -4.0}, {"a": -2.0, "b": -3.0}, {"a": -5.0, "b": -6.0}])

    def body(s: bn.State) -> None:
        other = s.fork(1)[0]
        other += bn.select("y", ["a", "b"])
        splices = iter([True, False])

        def step(branch: bn.State) -> Any:
            branch += bn.select("x", ["a", "b"])
            return branch.ref("x") + other.ref("y") if next(splices) else ""

        assert [branch.text() for branch in s.beam(2, step, depth=1)] == ["aaa", "a"]

    run(body, bn.Mock(lambda prompt, name: next(scores)))


def test_beam_ranks_a_branch_without_output(run: Any) -> None:
    answers = iter(["plan", "", "a"])

    def script(prompt: str, name: str) -> wire.Sample:
        logprobs = (wire.TokenLogprob(0, "a", -1.0),)
        return wire.Sample(text := next(answers), "stop", n_tokens=len(text), logprobs=logprobs if text == "a" else ())

    def body(s: bn.State) -> None:
        s += bn.gen("plan")
        assert [branch["x"] for branch in s.beam(2, bn.gen("x"))] == ["", "a"]

    run(body, bn.Mock(script))


def test_invalid_beams_are_refused(run: Any) -> None:
    def body(s: bn.State) -> None:
        for invalid in ({"k": 0}, {"depth": 0}, {"width": 0}):
            with pytest.raises(bn.BadProgram, match="it must be at least 1"):
                s.beam(**{"k": 1, "step": "x"} | invalid)
        with pytest.raises(bn.Unsupported, match="to rank by; pass key="):
            s.beam(2, bn.gen("x"))

    run(body)


def test_beam_skips_failed_branches(run: Any, echo: Any) -> None:
    def body(s: bn.State) -> None:
        order = iter(["0!", "1", "2!", "3"])
        beams = s.beam(2, lambda branch: f"#{next(order)}" + bn.gen("a"), width=4, key=lambda branch: branch["a"])
        assert [branch["a"] for branch in beams] == ["3", "1"]

    run(body, bn.Mock(echo))


# ---- dist ----------------------------------------------------------------------------------------------------------

LOGPROBS = {"calc": math.log(0.6), "search": math.log(0.3), "ask": math.log(0.1)}


def test_dist_returns_the_probabilities_of_a_select(run: Any) -> None:
    def body(s: bn.State) -> None:
        s += bn.select("tool", list(LOGPROBS))
        s += bn.gen("x")

    state = run(body, bn.Mock({"tool": LOGPROBS, "x": "x"}))
    assert state["tool"] == "calc"
    assert state.dist("tool") == pytest.approx({"calc": 0.6, "search": 0.3, "ask": 0.1})
    with pytest.raises(bn.BadProgram, match="needs a variable whose value comes from a select"):
        state.dist("x")
    with pytest.raises(bn.UnknownVariable):
        state.dist("y")


def test_temperature_samples_and_dist_is_unchanged() -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(300)
        forks += bn.select("tool", list(LOGPROBS), temperature=1.0)
        forks.join()

    state = bn.function(body).run(backend=bn.Mock({"tool": LOGPROBS}), seed=1)
    counts = {choice: state["tool"].count(choice) for choice in LOGPROBS}
    chi2 = sum((counts[choice] - 300 * math.exp(p)) ** 2 / (300 * math.exp(p)) for choice, p in LOGPROBS.items())
    assert chi2 < 13.8, "p < 0.001 for two degrees of freedom"
    assert state.dist("tool")[7] == pytest.approx({"calc": 0.6, "search": 0.3, "ask": 0.1})


def test_dist_without_backend_logprobs_is_unsupported(run: Any) -> None:
    def body(s: bn.State) -> None:
        s += bn.select("tool", ["a", "b"])
        with pytest.raises(bn.Unsupported, match="does not report"):
            s.dist("tool")

    run(body, bn.Mock("a"))


# ---- async programs ------------------------------------------------------------------------------------------------


def run_async(body: Callable[[bn.AsyncState], Any], backend: Any) -> Any:
    return asyncio.run(bn.function(body).run_async(backend=backend)).ret_value


def test_choosing_methods_are_async_in_async_programs(echo: Any, branches: Any) -> None:
    ordered = OrderedMock(echo, 3, 1, 0, 2)

    async def body(s: bn.AsyncState) -> None:
        forks = branches(s, "0", "1", "2", "3")
        assert [branch async for branch in forks.as_completed()] == [forks[i] for i in (3, 1, 0, 2)]
        assert await branches(s, "0", "1", "2").best(lambda branch: branch["a"]) is not None
        forks = branches(s, "0", "1", "3!")
        assert await forks.first() is forks[1]
        forks = branches(s, "0", "1", "2")
        assert await forks.first(2) == [forks[1], forks[0]]
        forks = branches(s, "0", "1", "2")
        assert await forks.vote("a", key=lambda value: int(value) > 0) is forks[1]
        s.adopt(forks[1])
        assert await s.text() == "#11"

    run_async(body, ordered.mock)


def test_async_branch_that_raced_its_own_branches_has_not_failed(echo: Any, branches: Any) -> None:
    async def body(s: bn.AsyncState) -> None:
        forks = s.fork(2)
        for branch in forks:
            branch.adopt(await branches(branch, "0!", "1", "2").first())
        assert [await branch.error() for branch in forks] == [None, None]
        assert (await forks.best(lambda branch: branch["a"]))["a"] == "1"

    run_async(body, OrderedMock(echo, 0, 1).mock)


def test_async_keys_run_concurrently(echo: Any, branches: Any) -> None:
    n_running, max_running = 0, 0

    async def key(branch: bn.AsyncState) -> int:
        nonlocal n_running, max_running
        n_running += 1
        max_running = max(max_running, n_running)
        await asyncio.sleep(0.05)
        n_running -= 1
        return int(await branch.value("a"))

    async def body(s: bn.AsyncState) -> None:
        forks = branches(s, "1", "3", "2")
        assert await forks.best(key) is forks[1]
        with pytest.raises(bn.ForkError):
            await branches(s, "1", "2!").best(key)
        assert (await s.beam(1, bn.gen("a"), key=lambda branch: 1))[0]["a"] == ""

    run_async(body, bn.Mock(echo))
    assert max_running == 3


def test_async_dist_of_gathered_branches() -> None:
    async def body(s: bn.AsyncState) -> None:
        forks = s.fork(2)
        forks += bn.select("tool", list(LOGPROBS))
        forks.join(on_error="collect")
        assert (await s.dist("tool"))[1]["calc"] == pytest.approx(0.6)

    run_async(body, bn.Mock({"tool": LOGPROBS}))


def test_waiting_for_branches_does_not_block_the_loop(echo: Any, branches: Any) -> None:
    async def body(s: bn.AsyncState) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticker = asyncio.ensure_future(tick())
        await branches(s, "0", "1").vote("a")
        ticker.cancel()
        assert ticks >= 3

    run_async(body, OrderedMock(echo, 1, 0).mock)


def test_several_threads_may_wait_for_the_same_branches(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        forks = branches(s, *map(str, range(20)))
        counts: list[Any] = []
        threads = [threading.Thread(target=lambda: counts.append(len(list(forks.as_completed())))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert counts == [20] * 4

    run(body, bn.Mock(echo, latency=0.01))
