"""Forks and joins: what branches inherit, what they send, and how their values are gathered."""

from __future__ import annotations

import asyncio
import re
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import banyan as bn
from banyan.runtime.protocol import wire
from forms import examples
from waits import wait_until


def run(body: Any, backend: Any = None) -> bn.State:
    return bn.function(body).run(backend=backend)


def test_repr_of_branches_says_how_many_they_are(mock: bn.Mock) -> None:
    assert run(lambda s: repr(s.fork(2))).ret_value == "<2 branches of program <lambda>>"


def test_branches_inherit_their_parents_content(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.user("U") + bn.assistant_begin() + bn.gen("a")
        s["v"] = 1
        forks = s.fork(2)
        for fork in forks:
            assert "a" in fork
            fork += "-" + bn.gen("b") + bn.assistant_end()
        assert [fork["a"] for fork in forks] == ["<a>", "<a>"]
        assert [fork["v"] for fork in forks] == [1, 1]
        assert [fork.text() for fork in forks] == [
            "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<a>-<b><|im_end|>\n"
        ] * 2
        assert forks[0].messages()[1] == {"role": "assistant", "content": "<a>-<b>"}
        assert "b" not in s

    run(body)


def test_error_of_a_variable_that_only_branches_have_names_join(mock: bn.Mock) -> None:
    def body(s: bn.State, is_sent: bool) -> None:
        forks = s.fork(2)
        inner = forks[0].fork(1)
        inner += bn.gen("deep")
        forks += bn.gen("b")
        if is_sent:
            assert forks[0]["b"] == "<b>"
        for name in ("b", "deep"):
            with pytest.raises(bn.UnknownVariable, match=rf"none; branches .* join\(\) .* branches\[i\]\['{name}'\]"):
                s[name]
        for state, name in [(s, "c"), (forks[1], "deep"), (inner[0], "c")]:
            with pytest.raises(bn.UnknownVariable) as raised:
                state[name]
            assert "join" not in str(raised.value)

    for is_sent in (False, True):
        bn.function(body).run(is_sent)


def test_fork_sends_no_text_twice(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += "a long text" + bn.gen("a")
        forks = s.fork(3)
        forks += lambda i: str(i)
        forks += bn.gen("b")
        forks.join()
        s += "end"

    run(body)
    (ops,) = mock.submits
    texts = [part for op in ops if isinstance(op, wire.Append) for part in op.parts]
    assert texts == ["a long text", "0", "1", "2", "end"]
    assert wire.Fork(0, (1, 2, 3)) in ops


def test_group_appends_to_every_branch(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(2)
        forks += "all "
        forks += ["one ", bn.user("two")]
        forks += lambda i: f"#{i} "
        forks += bn.raw("!")
        assert forks[0].text() == "all one #0 !"
        assert forks[1].text() == "all <|im_start|>user\ntwo<|im_end|>\n#1 !"
        assert len(forks) == 2
        assert forks[:1] == [forks[0]]
        with pytest.raises(bn.BadProgram, match="list of length 1 was appended to 2"):
            forks += ["one"]
        with pytest.raises(bn.BadProgram, match="int"):
            forks += 5

    run(body)


def test_gather_makes_a_list_of_each_new_variable(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.gen("old")
        forks = s.fork(3)
        forks += bn.gen("b") + bn.gen("c", n=2)
        forks[2]["own"] = 7
        forks[1]["old"] = "changed"
        for _ in range(2):
            with pytest.warns(UserWarning, match="the parent does not get the branches' values of 'old',"):
                forks.join()
        assert [name for name in ("b", "c", "own") if name in s] == ["b", "c", "own"]

    state = run(body)
    assert state["b"] == ["<b>"] * 3
    assert state["c"] == [["<c>", "<c>"]] * 3
    assert state["own"] == [None, None, 7]
    assert state["old"] == "<old>"
    assert [m["completion_tokens"] for m in state.get_meta_info("b")] == [1, 1, 1]
    assert len(mock.submits) == 1, "join does not wait"


def test_fork_of_one_gathers_lists_of_one(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork()
        forks += bn.gen("x")
        forks.join()
        for _ in range(2):  # without a warning that the second value is not added
            with s.copy() as t:
                t += "t" + bn.gen("y")
                assert t["y"] == "<y>"
        assert s.text() == ""

    state = run(body)
    assert (state["x"], state["y"]) == (["<x>"], ["<y>"])


def test_nested_forks_gather_nested_lists(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        outer = s.fork(2)
        for branch in outer:
            inner = branch.fork(3)
            inner += bn.gen("x")
            inner.join()
        outer.join()

    assert run(body)["x"] == [["<x>"] * 3] * 2


@pytest.mark.parametrize("mode", ["concat", "concate_and_append"])
def test_concat_appends_the_branch_texts(mock: bn.Mock, mode: Any) -> None:
    def body(s: bn.State) -> None:
        s += bn.assistant_begin() + "list:"
        forks = s.fork(2)
        forks += lambda i: f" {i}." + bn.gen("x")
        forks.join(mode)
        s += " end" + bn.assistant_end()
        assert "x" not in s
        with pytest.raises(bn.BadProgram, match="takes no more text"):
            forks[0].assistant("late")

    state = run(body)
    assert state.text() == "<|im_start|>assistant\nlist: 0.<x> 1.<x> end<|im_end|>\n"
    assert state.messages() == [{"role": "assistant", "content": "list: 0.<x> 1.<x> end"}]
    assert wire.Join(0, (1, 2)) in mock.submits[0]


def test_concat_with_different_open_turns_is_refused(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.assistant_begin()
        forks = s.fork(2)
        forks[1].__iadd__(bn.assistant_end())
        with pytest.raises(bn.BadProgram, match="open turn is None in a branch and 'assistant' in its parent"):
            forks.join("concate_and_append")

    run(body)


@pytest.mark.parametrize(
    ("at_fork", "in_branch", "in_parent"),
    [
        (bn.system(""), bn.user_begin() + "a", bn.user_begin() + "p"),
        (bn.assistant_begin(), "a" + bn.assistant_end(), "p" + bn.assistant_end()),
        (bn.user_begin(), bn.user_end() + bn.assistant_begin(), bn.user_end() + bn.assistant_begin()),
    ],
    ids=["both begin", "both end", "both begin another"],
)
def test_concat_of_turns_that_would_nest_is_refused(
    mock: bn.Mock, at_fork: Any, in_branch: Any, in_parent: Any
) -> None:
    def body(s: bn.State) -> None:
        s += at_fork
        forks = s.fork(2)
        forks += in_branch
        s += in_parent
        with pytest.raises(bn.BadProgram, match=r"open turn was .* at the fork and .* in its parent now"):
            forks.join("concat")

    run(body)


def test_concat_in_a_turn_that_was_begun_again(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.user_begin() + "a"
        forks = s.fork(2)
        forks += " b" + bn.user_end() + bn.assistant("c") + bn.user_begin() + "d"
        s += bn.user_end() + bn.assistant("e") + bn.user_begin() + "f"
        forks.join("concat")
        s += bn.user_end()

    texts = [message["content"] for message in run(body).messages()]
    assert texts == ["a", "e", "f b", "c", "d b", "c", "d"]


def test_invalid_forks_and_joins_are_refused(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match="'gather_variable' or 'concat'"):
            s.fork(1).join("sum")  # type: ignore[arg-type]
        with pytest.raises(bn.BadProgram, match="a failed branch has no text"):
            s.fork(1).join("concat", on_error="collect")
        with pytest.raises(bn.BadProgram, match="adopt one of them"):
            s.beam(1, "x", depth=2).join("concat")
        with pytest.raises(bn.BadProgram, match="a fork of -1 branches"):
            s.fork(-1)
        with pytest.raises(bn.BadProgram, match=r"fork\(\['a', 'b'\]\): fork takes the number of branches; `branches"):
            s.fork(["a", "b"])  # type: ignore[arg-type]
        with pytest.raises(bn.BadProgram, match=r"fork\(2.0\): fork takes the number of branches$"):
            s.fork(2.0)  # type: ignore[arg-type]
        with pytest.raises(bn.BadProgram, match=r"Branches cannot be appended.*join\('concat'\)"):
            s += s.fork(2)
        with pytest.raises(bn.BadProgram, match=r"no text for an f-string.*join\('concat'\)"):
            s += f"Compare {s.fork(2)}"

    run(body)


def test_fork_without_branches_joins_to_nothing(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += "a"
        for mode in ("gather_variable", "concat"):
            forks = s.fork(0)
            forks += lambda i: f"{i}" + bn.gen("b")
            forks += []
            forks.join(mode)  # type: ignore[arg-type]
            assert (len(forks), list(forks), list(forks.as_completed())) == (0, [], [])
        for choose in (forks.first, partial(forks.vote, "b"), partial(forks.best, bn.State.text)):
            with pytest.raises(bn.BadProgram, match="no branch to choose"):
                choose()
        s += bn.gen("c")

    state = run(body)
    assert state.text() == "a<c>"
    assert "b" not in state


def test_async_fork_without_branches_has_nothing_to_choose(mock: bn.Mock) -> None:
    async def body(s: bn.AsyncState) -> None:
        forks = s.fork(0)
        assert [one async for one in forks.as_completed()] == []
        with pytest.raises(bn.BadProgram, match="no branch to choose"):
            await forks.best(bn.AsyncState.text)

    asyncio.run(bn.function(body).run_async())


def test_fork_without_branches_leaves_the_seeds_as_a_template_counts_them() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s.fork(0).join()
        s += bn.gen("c")

    calls = []
    for one in (program, bn.compile(program)):
        backend = bn.Mock("x")
        one.run(backend=backend, seed=5).sync()
        calls += backend.calls
    assert calls[0] == calls[1]


def test_program_can_append_to_a_joined_list(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(2)
        forks += bn.gen("a")
        forks.join()
        s["a"].append("more")
        s += "; ".join(s["a"])

    state = run(body)
    assert state["a"] == ["<a>", "<a>", "more"]
    assert len(state.get_meta_info("a")) == 2


def test_position_ids_offset_is_ignored_with_a_warning_as_in_sglang(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        with pytest.warns(UserWarning, match="position_ids_offset is ignored") as caught:
            forks = s.fork(2, position_ids_offset=[1, 2])
        assert len(forks) == 2
        assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="position_ids_offset is ignored") as caught, s.copy([1]) as branch:
            branch += "x"
        assert caught[0].filename == __file__

    run(body)


def test_unreferenced_branch_is_dropped(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(3)
        forks += bn.gen("x")
        best, second = forks[1], forks[2].ref("x")
        del forks
        s += best.ref("x")
        s.sync()
        assert wire.Drop(1) in mock.submits[0]
        assert {op for op in mock.submits[0] if isinstance(op, wire.Drop)} == {wire.Drop(1)}, (
            "branches 2 and 3 are still referenced"
        )
        s += second
        del second
        assert best.text() == "<x>"
        assert wire.Drop(3) not in mock.submits[-1], "the appended value is still pending"
        assert s.text() == "<x><x>"
        s["a"] = best["x"]

    run(body)


def test_parent_lives_as_long_as_its_branches(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        (middle,) = s.fork(1)
        (leaf,) = middle.fork(1)
        del middle
        assert leaf.text() == ""
        assert not any(isinstance(op, wire.Drop) for ops in mock.submits for op in ops)
        del leaf
        s.sync()
        assert s.text() == ""
        assert {wire.Drop(1), wire.Drop(2)} <= {op for ops in mock.submits for op in ops if isinstance(op, wire.Drop)}

    run(body)


# Random operations on a tree of states give the same texts and errors as on plain strings.
STEP = st.tuples(st.integers(0, 5), st.sampled_from(["text", "gen", "fork", "join", "ref", "read"]), st.integers(1, 3))


class Oracle:
    """A state as a string, or None after a failed gen; a gen fails if the prompt's length is a multiple of m."""

    def __init__(self, text: str | None = "") -> None:
        self.text = text

    def append(self, more: str | None) -> None:
        self.text = None if self.text is None or more is None else self.text + more

    def generate(self, m: int) -> None:
        self.append(None if self.text is None or len(self.text) % m == 0 else f"[{len(self.text)}]")

    def agrees(self, state: bn.State) -> bool:
        if self.text is not None:
            return state.text() == self.text and state.error() is None
        with pytest.raises(bn.ProgramError, match="no luck"):
            state.text()
        return isinstance(state.error(), bn.ProgramError)


@examples(15, 80, given(st.lists(STEP, max_size=25), st.sampled_from([1, 2, 5, 10**9])))
def test_random_state_operations_match_plain_strings(steps: list[tuple[int, str, int]], m: int) -> None:
    def script(prompt: str, name: str) -> str:
        if (prompt and len(prompt) % m == 0) or m == 1:
            raise OSError("no luck")
        return f"[{len(prompt)}]"

    @bn.function
    def program(s: bn.State) -> None:
        s += "start:"
        states, oracles, forks = [s], [Oracle("start:")], []
        for k, (at, what, n) in enumerate(steps):
            i = at % len(states)
            state, oracle = states[i], oracles[i]
            match what:
                case "text":
                    state += f"t{k}."
                    oracle.append(f"t{k}.")
                case "gen":
                    state += bn.gen("x")
                    oracle.generate(m)
                case "fork":
                    forks.append((oracle, len(oracle.text or ""), len(states), group := state.fork(n)))
                    states += group
                    oracles += [Oracle(oracle.text) for _ in group]
                case "join" if forks:
                    # the newest group: none of its branches is a parent of another group
                    parent, n_shared, first, group = forks.pop()
                    for branch in oracles[first:]:
                        parent.append(None if branch.text is None else branch.text[n_shared:])
                    group.join("concate_and_append")
                    del states[first:], oracles[first:]
                case "ref" if "x" in state and oracle.text is not None:
                    oracle.append(state["x"])
                    state += state.ref("x")
                case "read":
                    assert oracle.agrees(state)
        assert all(oracle.agrees(state) for state, oracle in zip(states, oracles, strict=True))

    program.run(backend=bn.Mock(script))


def test_branch_can_be_appended_to_by_index(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[0] += "x" + bn.gen("a")
        forks[1] += "y"
        s["texts"] = [fork.text() for fork in forks]
        with pytest.raises(bn.BadProgram, match="branch 0 cannot be replaced"):
            forks[0] = forks[1]

    assert program.run()["texts"] == ["x<a>", "y"]


@bn.function
def two_branches(s: bn.State, on_error: Any = "raise", drops: bool = False) -> None:
    forks = s.fork(2)
    forks += lambda i: f"{i}" + bn.gen("g")
    if drops:
        forks[1].drop()
    forks.join(on_error=on_error)


def failing_second_branch() -> bn.Mock:
    return bn.Mock({re.compile("0$"): "fine", re.compile("1$"): ValueError("no")})


def test_failed_joined_branch_raises_where_the_parent_is_collected() -> None:
    state = two_branches.run(backend=failing_second_branch())
    with pytest.raises(bn.ForkError, match="branch 1 failed: the script of the Mock raised ValueError: no") as raised:
        state.sync()
    assert raised.value.index == 1
    for read in (state.__getitem__, state.value, state.get_meta_info):
        with pytest.raises(bn.ForkError, match="branch 1 failed"):
            read("g")
    assert isinstance(state.error(), bn.ForkError)
    with pytest.raises(bn.ForkError):
        two_branches.run(backend=failing_second_branch(), use_thread=False)
    with pytest.raises(bn.ForkError):
        asyncio.run(two_branches.run_async(backend=failing_second_branch()))
    (returned,) = two_branches.run_batch([()], backend=failing_second_branch(), on_error="return")
    assert isinstance(returned.error(), bn.ForkError)
    with pytest.raises(bn.BatchError):
        two_branches.run_batch([()], backend=failing_second_branch())


def test_collected_error_and_dropped_branch_do_not_fail_the_parent() -> None:
    collected = two_branches.run("collect", backend=failing_second_branch())
    collected.sync()
    first, error = collected["g"]
    assert first == "fine"
    assert isinstance(error, bn.ForkError)
    assert error.index == 1
    assert isinstance(error.__cause__, bn.ProgramError)
    two_branches.run(drops=True, backend=bn.Mock("slow", latency=0.2)).sync()


def test_collected_values_of_a_dropped_branch_are_an_error() -> None:
    @bn.function
    def program(s: bn.State, on_error: Any) -> Any:
        forks = s.fork(2)
        forks += lambda i: f"{i}" + bn.gen("g")
        forks[1].drop()
        forks.join(on_error=on_error)
        return s["g"]

    backend = bn.Mock("fine", latency=lambda call: 30.0 if call.prompt.endswith("1") else 0.0)
    first, error = program.run("collect", backend=backend).ret_value
    assert first == "fine"
    assert isinstance(error, bn.ForkError)
    assert isinstance(error.__cause__, bn.Cancelled)
    with pytest.raises(bn.Cancelled, match="its state was dropped"):
        program.run("raise", backend=backend)


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_cancelled_run_is_not_an_error_of_a_branch(on_error: str) -> None:
    state = two_branches.run(on_error, backend=bn.Mock("slow", latency=30.0))
    state.cancel()
    with pytest.raises(bn.Cancelled, match="the program was cancelled"):
        state["g"]


def test_cancel_of_a_finished_run_changes_no_collected_value() -> None:
    backend = bn.Mock("fine", latency=lambda call: 30.0 if call.prompt.endswith("1") else 0.0)
    state = two_branches.run("collect", drops=True, backend=backend)
    wait_until(lambda: state._record.is_settled, "the end of the run")
    state.cancel()
    first, error = state["g"]
    assert first == "fine"
    assert isinstance(error, bn.ForkError)
    assert "its state was dropped" in str(error)


@pytest.mark.parametrize(("timeout", "budget"), [(0.05, None), (None, 5)])
def test_branch_that_exceeds_its_own_limit_is_a_failed_branch(timeout: float | None, budget: int | None) -> None:
    @bn.function
    def program(s: bn.State, on_error: Any) -> None:
        inner = s.fork(1)
        forks = inner[0].fork(2)
        forks += lambda i: f"{i}" + bn.gen("g", timeout=timeout if i else None, budget=budget if i else None)
        forks.join(on_error=on_error)
        inner.join(on_error=on_error)

    def answer(prompt: str, name: str) -> wire.Sample:
        return wire.Sample("fine", "stop", n_tokens=9)

    backend = bn.Mock(answer, latency=lambda call: 30.0 if timeout and call.prompt.endswith("1") else 0.0)
    ((first, second),) = program.run("collect", backend=backend)["g"]
    assert first == "fine"
    assert isinstance(second, bn.ForkError)
    assert isinstance(second.__cause__, bn.DeadlineExceeded if timeout else bn.BudgetExceeded)
    with pytest.raises(
        bn.ForkError, match=r"branch 1 failed: the gen's (timeout of 0\.05 s|budget of 5 tokens) ran out"
    ):
        program.run("raise", backend=backend)["g"]


@pytest.mark.parametrize("options", [{"timeout": 0.05}, {"budget": 5}])
@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_limit_of_the_run_is_not_an_error_of_a_branch(options: dict[str, Any], on_error: str) -> None:
    def latency(call: Any) -> float:
        return 30.0 if call.prompt.endswith("1") else 0.0

    backend = bn.Mock(wire.Sample("fine", "stop", n_tokens=9), latency=latency)
    with pytest.raises(bn.DeadlineExceeded if "timeout" in options else bn.BudgetExceeded, match=r"^the run's"):
        two_branches.run(on_error, backend=backend, **options)["g"]


def test_parent_is_done_after_its_joined_branches() -> None:
    state = two_branches.run(backend=bn.Mock("late", latency=0.3))
    state.sync()
    assert state._values["g"].values[1].is_done


def test_branches_may_nest_deeper_than_calls(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        pair = s.fork(2)
        for branch in pair:
            for _ in range(sys.getrecursionlimit() + 100):
                (branch,) = branch.fork(1)
            branch += bn.gen("x")
        assert pair.first() is pair[0]

    state = bn.function(body).run()
    assert state.usage.generated == 2 * state._record.futures[0].result().usage.generated
