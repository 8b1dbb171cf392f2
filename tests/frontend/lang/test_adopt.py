"""Adopting, dropping and joining branches, on a Mock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import banyan as bn
from banyan.runtime.protocol import wire
from forms import examples

# ---- adopt, drop ---------------------------------------------------------------------------------------------------


def test_state_continues_as_the_adopted_branch(run: Any) -> None:
    mock = bn.Mock(lambda prompt, name: f"<{name}{len(prompt)}>")

    def body(s: bn.State) -> None:
        s += bn.user("q") + bn.gen("before")
        s["v"] = "old"
        forks = s.fork(2)
        forks += lambda i: bn.assistant(f"#{i}:" + bn.gen("a"))
        forks[1]["v"] = "new"
        text = forks[1].text()
        s.adopt(forks[1])
        s += bn.user("on")
        assert s.text() == text + "<|im_start|>user\non<|im_end|>\n"
        assert (s["a"], s["v"], "before" in s) == (forks[1]["a"], "new", True)
        assert s.messages()[-2]["content"].startswith("#1:")
        with pytest.raises(bn.BadProgram, match="was adopted by its parent"):
            forks[1].user("late")
        forks[0].user("still here")

    run(body, mock)
    assert sum(isinstance(op, wire.Join) for ops in mock.submits for op in ops) == 1


def test_adopt_works_inside_an_open_turn_and_at_any_depth(run: Any) -> None:
    def body(s: bn.State) -> None:
        s += bn.assistant_begin() + "a"
        (child,) = s.fork()
        child += "b" + bn.assistant_end()
        (leaf,) = child.fork()
        leaf += bn.user_begin() + bn.gen("x")
        s.adopt(leaf)
        s += "!" + bn.user_end()
        assert s.messages() == [{"role": "assistant", "content": "ab"}, {"role": "user", "content": "<x>!"}]
        again = s.fork(2)
        again += bn.gen("y")
        s.adopt(again[1])
        assert s.text().endswith("<x>!<|im_end|>\n<y>")

    run(body)


def test_adopting_inside_a_var_scope_leaves_the_scope_open(run: Any) -> None:
    def body(s: bn.State) -> None:
        s += "a"
        forks = s.fork(2)
        with s.var_scope("scope"):
            forks += lambda i: f"{i}"
            with forks[1].var_scope("inner"):
                forks[1] += bn.gen("x")
            s.adopt(forks[1])
            s += "tail"
        s += bn.gen("y")
        assert (s["scope"], s["inner"], s["y"]) == ("1<x>tail", "<x>", "<y>")
        assert s.text() == "a1<x>tail<y>"

    run(body)


def test_invalid_adoptions_are_refused(run: Any) -> None:
    def body(s: bn.State) -> None:
        forks = s.fork(2)
        s += "more"
        with pytest.raises(bn.BadProgram, match="only while nothing was appended here since its fork"):
            s.adopt(forks[0])
        with pytest.raises(bn.BadProgram, match="only a branch of this state"):
            s.adopt(s)
        with pytest.raises(bn.BadProgram, match="only a branch of this state"):
            forks[0].adopt(forks[1])
        forks[1].drop()
        with pytest.raises(bn.BadProgram, match="was dropped"):
            s.adopt(forks[1])

        def other(t: bn.State) -> None:
            with pytest.raises(bn.BadProgram, match="only a branch of this state"):
                t.adopt(forks[0])

        run(other)

    run(body)


def test_stream_continues_through_an_adoption() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("q")
        forks = s.fork(3)
        forks += lambda i: bn.assistant(f"#{i} " + bn.gen("a"))
        s.adopt(forks.best(lambda branch: branch["a"]))
        s += bn.user("on") + bn.assistant(bn.gen("b"))

    state = program.run(backend=bn.Mock(lambda prompt, name: f"{name} {len(prompt)}"), stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert "#0" in state.text()
    assert state["b"].startswith("b ")


def test_drop_cancels_the_subtree_once(run: Any) -> None:
    mock = bn.Mock(lambda prompt, name: name, latency=600.0)

    def body(s: bn.State) -> None:
        forks = s.fork(2)
        forks += bn.gen("a")
        inner = forks[0].fork(2)
        inner += bn.gen("b")
        forks[0].drop()
        forks[0].drop()
        for branch, name in ((forks[0], "a"), (inner[0], "b"), (inner[1], "b")):
            with pytest.raises(bn.Cancelled):
                branch[name]
        inner.drop()

    run(body, mock)
    assert [op for ops in mock.submits for op in ops if op == wire.Drop(1, True)] == [wire.Drop(1, True)]


@pytest.mark.parametrize("way", ["ref", "adopt"])
def test_drop_leaves_what_others_need_of_branches_that_are_not_forked_yet(way: str, run: Any) -> None:
    """The branch from which the needed one is forked is still in its gen, and goes on too."""
    mock = bn.Mock(lambda prompt, name: name.upper(), latency=0.15)

    def body(s: bn.State) -> None:
        s += "start "
        (outer,) = s.fork(1)
        outer += "a" + bn.gen("x")
        (middle,) = outer.fork(1)
        (inner,) = middle.fork(1)
        inner += "b" + bn.gen("y")
        if way == "ref":
            s += inner.ref("y")
        else:
            s.adopt(inner)
        outer.drop()
        s += bn.gen("z")
        assert s.text() == {"ref": "start YZ", "adopt": "start aXbYZ"}[way]

    run(body, mock)


# ---- join ----------------------------------------------------------------------------------------------------------


def test_cancelled_program_is_not_a_failed_branch(run: Any, echo: Any, branches: Any) -> None:
    def body(s: bn.State) -> None:
        branches(s, "0", "1").join(on_error="collect")

    state = run(body, bn.Mock(echo, latency=600.0))
    state.cancel()
    with pytest.raises(bn.Cancelled):
        state["a"]


# ---- random operations ---------------------------------------------------------------------------------------------

STEP = st.tuples(
    st.integers(0, 7), st.sampled_from(["text", "gen", "fork", "adopt", "drop", "concat"]), st.integers(1, 3)
)


class Oracle:
    """A state as a string, with its parent and the length of its prefix."""

    def __init__(self, text: str, parent: Oracle | None = None) -> None:
        self.text, self.parent, self.start = text, parent, len(text)
        self.is_open, self.is_lost = True, parent is not None and parent.is_lost

    def descends_from(self, other: Oracle) -> bool:
        """Whether it was forked, directly or not, from the current text of `other`."""
        node: Oracle = self
        while node.parent is not None and node.parent is not other:
            node = node.parent
        return node.parent is other and other.text == node.text[: node.start]

    def below(self, other: Oracle) -> bool:
        node: Oracle | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is other


@examples(30, 150, given(st.lists(STEP, max_size=30)))
@example([(0, "fork", 1), (1, "fork", 1), (1, "drop", 1), (2, "fork", 1)])
def test_random_branch_operations_match_plain_strings(steps: list[tuple[int, str, int]]) -> None:
    def body(s: bn.State) -> None:
        states, oracles = [s], [Oracle("")]
        for number, (at, what, n) in enumerate(steps):
            i = at % len(states)
            j = (i + n) % len(states)
            state, oracle, other = states[i], oracles[i], oracles[j]
            if not oracle.is_open:
                with pytest.raises(bn.BadProgram):
                    state += "late"
            elif what == "text":
                state += f"t{number}."
                oracle.text += f"t{number}."
            elif what == "gen":
                state += bn.gen("x")
                oracle.text += f"[{len(oracle.text)}]"
            elif what == "fork":
                states += state.fork(n)
                oracles += [Oracle(oracle.text, oracle) for _ in range(n)]
            elif what == "adopt":
                if other.is_open and i != j and other.descends_from(oracle):
                    state.adopt(states[j])
                    oracle.text, other.is_open = other.text, False
                    oracle.is_lost |= other.is_lost
                else:
                    with pytest.raises(bn.BadProgram):
                        state.adopt(states[j])
            elif what == "drop" and i:
                state.drop()
                for node in oracles:
                    node.is_open = node.is_open and node is not oracle
                    node.is_lost = node.is_lost or node.below(oracle)
            elif what == "concat":
                state += "|"
                group = state.fork(2)
                group += lambda k: f"({k}{bn.gen('y')})"
                group.join("concat")
                n_chars = len(oracle.text) + 1
                oracle.text += "|" + "".join(f"({k}[{n_chars + 2}])" for k in range(2))
        for state, oracle in zip(states, oracles, strict=True):
            if oracle.is_lost:
                continue
            assert state.text() == oracle.text

    bn.function(body).run(backend=bn.Mock(lambda prompt, name: f"[{len(prompt)}]"))
