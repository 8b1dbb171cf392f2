"""Programs: forks, joins, references to values, failures and cancellation. The engine is a table of answers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.runtime.errors import OutOfMemory
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_MARKS
from banyan.runtime.protocol.wire import (
    Append,
    Arg,
    BeginTurn,
    CacheHint,
    Drop,
    EndTurn,
    Fork,
    Gen,
    Join,
    Mark,
    Read,
    Ref,
    Select,
    Use,
)
from banyan.runtime.server.programs import generation
from banyan.runtime.server.programs.running_program import RunningProgram
from banyan.runtime.server.text.prompt import PromptText, pack
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer

Sampler = Callable[..., wire.Sampling]


# ---- the DAG -------------------------------------------------------------------------------------------------------


def test_forks_run_concurrently_and_join_in_order(bench: Any, greedy: Sampler) -> None:
    b = bench({"tips: ": "many", " 1": "one", " 2": "two"})
    b.submit(
        Append(0, ("tips: ",)),
        Fork(0, (1, 2)),
        Append(1, (" 1",)),
        Append(2, (" 2",)),
        Gen(1, 0, greedy()),
        Gen(2, 1, greedy()),
        Join(0, (2, 1)),
        Read(0, 2),
    )
    assert len(b.engine.running) == 2, "both run concurrently"
    b.run()
    assert b.text(2) == "tips:  2two 1one"


def test_token_ids_and_texts_keep_their_order(bench: Any, words: Tokenizer) -> None:
    b = bench()
    ids = wire.TokenIds(pack(words.encode([TextSpan("one two")])))
    b.submit(Append(0, (ids, " three ", ids, ids, " four")), Append(0, (" five",)), Read(0, 0), last=True)
    assert b.text(0) == "one two three one twoone two four five"


def test_nested_fork_excludes_later_text_of_the_parent(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(
        Append(0, ("a",)), Fork(0, (1,)), Append(0, ("P",)), Append(1, ("b",)), Fork(1, (2,)), Append(2, ("c",)),
        Join(1, (2,)), Join(0, (1,)), Read(0, 0), Read(1, 1), Read(2, 2),
    )  # fmt: skip
    assert [b.text(k) for k in range(3)] == ["aPbc", "abc", "abc"]


def test_join_takes_the_text_of_the_child_at_its_position(bench: Any, greedy: Sampler) -> None:
    b = bench({"slow": "x"})
    b.submit(
        Append(0, ("0",)), Fork(0, (1, 2)), Append(1, ("early",)), Append(2, ("slow",)), Gen(2, 0, greedy()),
        Join(0, (1, 2)), Append(1, (" late",)), Read(1, 1), Read(0, 2),
    )  # fmt: skip
    b.run()
    assert b.text(1) == "0early late"
    assert b.text(2) == "0earlyslowx"


def test_joined_output_keeps_its_tokens(bench: Any, words: Tokenizer, greedy: Sampler) -> None:
    b = bench()
    unusual_ids = [*words.encode([TextSpan(" ")]), *words.encode([TextSpan("the")])]
    b.engine.speak = lambda ids: unusual_ids if len(ids) == 1 else []
    b.submit(Append(0, ("a",)), Fork(0, (1,)), Gen(1, 0, greedy()), Join(0, (1,)), Gen(0, 1, greedy()))
    b.run()
    assert b.ids(1) == [*words.encode([TextSpan("a")]), *unusual_ids]


def test_reference_waits_for_its_value(bench: Any, greedy: Sampler) -> None:
    b = bench({"ask": "42", "is 42?": "yes"})
    b.submit(
        Append(0, ("",)), Fork(0, (1, 2)), Append(1, ("is ", Ref(7), "?")), Gen(1, 8, greedy()), Append(2, ("ask",)),
        Gen(2, 7, greedy()),
    )  # fmt: skip
    b.run()
    assert b.text(8) == "yes"


def test_reference_waits_for_a_value_of_a_later_message(bench: Any, greedy: Sampler) -> None:
    b = bench({"ask": "42"})
    b.submit(Fork(0, (1,)), Append(0, ("is ", Ref(7))), Read(0, 8))
    b.submit(Append(1, ("ask",)), Gen(1, 7, greedy()))
    b.run()
    assert b.text(8) == "is 42"


def test_read_starts_at_its_mark(bench: Any, greedy: Sampler, role: SimpleNamespace) -> None:
    b = bench({"assistant\n": "yes"})
    b.submit(
        Append(0, (*role.user("hi"), BeginTurn("assistant"), "Well")), Mark(0, 1), Append(0, (", ",)), Mark(0, 2),
        Append(0, ("ok", EndTurn())), Read(0, 0, 1), Fork(0, (1,)), Append(1, role.user("x")), Read(1, 1, 2),
        Mark(1, 3), Read(1, 2, 3),
    )  # fmt: skip
    assert b.text(0) == ", ok<|im_end|>\n"
    assert b.text(1) == "ok<|im_end|>\n<|im_start|>user\nx<|im_end|>\n"
    assert b.text(2) == ""


def test_read_of_a_very_long_state_fails(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MAX_READ", 10)
    b = bench()
    b.submit(Append(0, ("x" * 10,)), Read(0, 0), Append(0, ("y",)), Read(0, 1))
    assert b.text(0) == "x" * 10
    assert b.failed(1).message == "the state has 11 characters; at most 10 can be read"


def test_program_is_removed_after_its_last_op(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "b"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()), last=True)
    assert len(b.programs) == 1
    b.run()
    assert len(b.programs) == 0
    b.submit(Append(0, ("a",)), program=1)
    assert len(b.programs) == 1
    b.submit(program=1, last=True)
    assert len(b.programs) == 0
    assert len(b.requests) == 0


# ---- templates ------------------------------------------------------------------------------------------------------


def test_template_belongs_to_its_client_until_undefine(bench: Any, greedy: Sampler) -> None:
    b = bench({"tea?": "yes"})
    b.send(wire.Define(3, (Append(0, (Arg(0), "?")), Gen(0, 0, greedy(), name="a"))))
    for program, drink in enumerate(("tea", "tea")):
        b.submit(Use(0, 3, (drink,)), program=program)
    b.run()
    assert [b.text(0, program) for program in range(2)] == ["yes"] * 2
    b.send(wire.Submit(2, 0, (Use(0, 3, ("tea",)),)), b"you")
    assert "names template 3" in b.failed(None, 2).message
    b.programs.undefine(b"me", wire.Undefine(3))
    b.send(wire.Submit(3, 0, (Use(0, 3, ("tea",)),)))
    assert b.failed(None, 3).code == "bad_program"
    b.send(wire.Define(4, ()))
    b.leave()
    assert not b.programs._quota._clients


def test_invalid_template_arguments_fail_the_program(bench: Any) -> None:
    b = bench()
    b.send(wire.Define(0, (Append(0, (Arg(0),)),)))
    b.submit(Use(0, 0, ()), Read(0, 0))
    assert "takes 1 arguments, not 0" in b.failed(None).message
    b.submit(Append(0, (Arg(0),)), Read(0, 0), program=1)
    assert "outside of" in b.failed(0, 1).message


# ---- failures ------------------------------------------------------------------------------------------------------


def test_failed_gen_fails_only_its_dependents(bench: Any, greedy: Sampler) -> None:
    b = bench({"ok": "fine"})
    b.engine.max_context = 20
    b.submit(
        Fork(0, (1, 2, 3)), Append(1, ("x " * 50,)), Gen(1, 0, greedy()), Append(1, ("y",)), Gen(1, 1, greedy()),
        Append(2, ("uses ", Ref(0))), Gen(2, 2, greedy()), Append(3, ("ok",)), Gen(3, 3, greedy()),
        Fork(1, (4,)), Read(4, 4), Join(0, (1,)), Read(0, 5),
    )  # fmt: skip
    b.run()
    assert b.text(3) == "fine"
    for ref in (0, 1, 2, 4, 5):
        assert b.failed(ref).code == "prompt_too_long", ref
        assert "the context 20" in b.failed(ref).message
    assert "an earlier op of the same state failed" in b.failed(1).message
    assert "a value that is inserted here failed" in b.failed(2).message
    assert b.failed(0).prompt_tail == "x " * 40


def test_failed_sample_fails_the_gen_and_aborts_the_other_samples(bench: Any) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, wire.Sampling(n=3)))
    b.requests.fail(1, OutOfMemory("no pages"))
    assert b.failed(0).code == "out_of_memory"
    assert sorted(b.engine.aborted) == [0, 2]
    assert len(b.requests) == 0


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Append(3, ("a",)),), "state 3"),
        ((Fork(0, (1,)), Fork(0, (1,))), "state 1"),
        ((Fork(0, (0,)),), "state 0"),
        ((Read(0, 1), Read(0, 1)), "value 1"),
        ((Join(0, (0,)),), "state 0"),
        ((Join(0, (5,)),), "state 5"),
        ((Fork(0, (1, 2)), Join(0, (1, 2), adopt=True)), "adopts 2 states"),
    ],
)
def test_invalid_program_fails_as_a_whole(bench: Any, ops: tuple[wire.Op, ...], message: str) -> None:
    b = bench()
    b.submit(*ops)
    assert b.failed(None).code == "bad_program"
    assert message in b.failed(None).message
    assert len(b.programs) == 0


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Read(0, 0, mark=9),), "mark 9"),
        (
            (Fork(0, (1,)), Append(1, (EndTurn(),)), Join(0, (1,), adopt=True), Read(0, 0)),
            "a turn ends where none is open",
        ),
    ],
)
def test_invalid_state_fails_its_read(bench: Any, ops: tuple[wire.Op, ...], message: str) -> None:
    b = bench()
    b.submit(*ops)
    assert message in b.failed(0).message


def test_cyclic_references_fail(bench: Any) -> None:
    b = bench()
    b.submit(Fork(0, (1, 2)), Append(1, (Ref(2),)), Read(1, 1), Append(2, (Ref(1),)), Read(2, 2))
    assert b.failed(1).code == b.failed(2).code == "bad_program"
    assert len(b.programs) == 1


def test_missing_value_fails_at_the_last_message(bench: Any) -> None:
    b = bench()
    b.submit(Append(0, (Ref(9),)), Read(0, 0))
    assert not b.sent
    b.submit(last=True)
    assert "value 9" in b.failed(0).message
    assert len(b.programs) == 0


def test_cancel_aborts_all_requests(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Fork(0, (1,)), Gen(0, 0, greedy()), Gen(1, 1, greedy()))
    b.programs.cancel(b"me", wire.Cancel(program=0, seq=1))
    assert b.failed(None).code == "cancelled"
    assert sorted(b.engine.aborted) == [0, 1]
    assert (len(b.programs), len(b.requests)) == (0, 0)
    b.programs.cancel(b"me", wire.Cancel(program=0, seq=2))
    b.run()
    assert not b.messages(wire.Value)


def test_forgotten_client_leaves_no_requests(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()), program=1)
    b.send(wire.Submit(0, 0, (Append(0, ("a",)), Gen(0, 0, greedy(max_tokens=2)))), b"other")
    b.leave()
    assert list(b.programs._programs) == [b"other"]
    assert sorted(b.engine.aborted) == [0, 1]
    b.run()
    assert [(c, m.ref) for c, m in b.sent] == [(b"other", 0)]


def test_dropped_state_is_stopped_at_once(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "b"})
    b.submit(Append(0, ("a",)), Fork(0, (1, 2)), Gen(1, 0, greedy()), Gen(2, 1, greedy()), Gen(2, 2, greedy()))
    b.submit(Drop(2))
    assert b.engine.aborted == [1]
    assert b.failed(1).code == b.failed(2).code == "cancelled"
    b.run()
    assert b.text(0) == "b"
    b.submit(Gen(2, 3, greedy()))
    assert b.failed(3).code == "cancelled"


def test_dropped_state_runs_while_others_depend_on_it(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "b"})
    b.submit(
        Append(0, ("a",)), Fork(0, (1, 2, 3)), Gen(1, 0, greedy()), Gen(2, 1, greedy()), Gen(3, 2, greedy()),
        Join(0, (1,)), Append(0, ("+", Ref(1))), Read(0, 3), Drop(1), Drop(2), Drop(3),
    )  # fmt: skip
    assert b.engine.aborted == [2]
    b.run()
    assert b.text(3) == "ab+b"
    assert b.failed(2).code == "cancelled"


def test_encoding_on_a_thread_delays_only_its_own_state(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "b", "c": "d"})
    b.submit(Append(0, ("a",)), Fork(0, (1,)))
    b.held = []
    b.submit(Gen(0, 0, greedy()))
    (finish_encoding,) = b.held
    b.held = None
    b.submit(Append(1, ("c",)), Gen(1, 1, greedy()))
    b.run()
    assert b.text(1) == "d"
    assert not b.messages(wire.Failed)
    finish_encoding()
    b.run()
    assert b.text(0) == "b"


def test_encoding_that_ends_after_its_program_is_ignored(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.held = []
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    b.programs.cancel(b"me", wire.Cancel(program=0, seq=1))
    b.held[0]()
    assert not b.engine.runs


def test_nothing_is_encoded_for_a_program_that_has_ended(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    b.held = []
    b.submit(Append(0, ("a",)), *[CacheHint(0, pin=1.0)] * 20, Read(0, 0, tokens=True))
    b.send(wire.Submit(1, 0, (Append(0, ("b",)), Read(0, 0))))
    b.programs.cancel(b"me", wire.Cancel(0, 9))
    encoded: list[Any] = []
    monkeypatch.setattr(PromptText, "prompt", lambda *args: encoded.append(args))
    monkeypatch.setattr(PromptText, "read", lambda *_: "text")
    for work in b.held:
        work()
    assert encoded == []
    assert b.text(0, program=1) == "text"


def test_append_is_done_in_steps_of_few_calls(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step, 256 parts with 1,024 calls each would take 150 ms."""
    appended: list[int] = []
    monkeypatch.setattr(RunningProgram, "queue", lambda _, op: appended.append(len(op.parts)))
    calls = tuple(wire.WireToolCall(f"{k:09}", "f") for k in range(100))
    turn = (BeginTurn("assistant"), EndTurn(calls))
    b = bench()
    several = (turn * 3, (*turn * 2, "a"), ("a",) * 300, turn * 200, (EndTurn(calls * 10),))
    b.send(wire.Submit(0, 0, tuple(Append(0, parts) for parts in several)))
    assert appended == [*[1] * 6, 5, 256, 44, *[1] * 400, 1]


def test_cost_of_waiting_states_is_linear(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "b"})
    n = 300
    children = tuple(range(1, n + 1))
    b.submit(
        Append(0, ("a",)), Fork(0, children), *(Gen(k, k, greedy()) for k in children), Join(0, children), Read(0, 0)
    )
    advances = 0
    (program,) = b.programs._programs[b"me"].values()
    advance = program._advance

    def count(*args: Any) -> None:
        nonlocal advances
        advances += 1
        advance(*args)

    program._advance = count
    b.run()
    assert b.text(0) == "a" + "b" * n
    assert advances < 6 * n


@pytest.mark.parametrize(
    "op",
    [
        Gen(0, 0, wire.Sampling(max_tokens=2)),
        Gen(0, 0, wire.Sampling(n=0)),
        Gen(0, 0, wire.Sampling(stop_regex=("(",))),
        Select(0, 0, ("a", "b")),
    ],
)
def test_ended_program_leaves_no_cycles(bench: Any, op: wire.Op) -> None:
    """To collect cycles in the whole heap would hold the loop, so the server does not do it while programs run."""
    b = bench()
    b.submit(Append(0, ("a",)), Fork(0, (1,)), op)
    program = weakref.ref(b.programs._programs[b"me"][0])
    gc.disable()
    try:
        b.submit(last=True)
        b.run()
        assert program() is None
    finally:
        gc.enable()


def test_requests_that_end_while_their_program_is_cancelled_are_no_failures(
    bench: Any, greedy: Sampler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program with many requests is stopped in several time slices, and between them requests end."""
    b = bench({"short": "x"}, is_late=lambda: True)
    b.submit(
        Fork(0, children := tuple(range(1, 9))),
        *(Append(k, ("short" if k < 8 else "long",)) for k in reversed(children)),
        *(Gen(k, k, greedy(max_tokens=500)) for k in reversed(children)),
    )
    b.run(1)  # the next step ends the short ones
    n_left: list[int] = []
    monkeypatch.setattr(b.programs._overview, "ended", lambda program, error: n_left.append(len(b.requests)))
    b.programs.cancel(b"me", wire.Cancel(program=0, seq=1))
    assert len(b.requests) > 1
    b.run()
    assert n_left == [0]
    assert b.failed(None).code == "cancelled"
    assert capfd.readouterr().err == ""


def test_marks_of_a_state_are_limited(bench: Any) -> None:
    b = bench()
    b.submit(*(Mark(0, k % MAX_MARKS) for k in range(MAX_MARKS + 10)), Read(0, 0), Mark(0, MAX_MARKS), Read(0, 1))
    b.run()
    assert f"more than {MAX_MARKS} marks" in b.failed(1).message


def test_marks_of_an_adopted_state_and_its_parent_are_limited_together(bench: Any) -> None:
    b, n = bench(), MAX_MARKS // 2
    b.submit(
        *(Fork(0, (1, 2)), *(Mark(0, k) for k in range(n)), *(Mark(1, n + k) for k in range(n))),
        *(Join(0, (1,), adopt=True), Read(0, 0, mark=0), Read(0, 1, mark=2 * n - 1)),
        *(Mark(2, 2 * n), Join(0, (2,), adopt=True), Read(0, 2)),
    )
    b.run()
    assert (b.text(0), b.text(1)) == ("", "")
    assert f"more than {MAX_MARKS} marks" in b.failed(2).message


def test_adopting_drops_marks_after_the_end_of_the_adopted_state(bench: Any) -> None:
    b = bench()
    b.submit(
        *(Fork(0, (1,)), Mark(0, 0), Append(0, ("gone",)), Mark(0, 1), Join(0, (1,), adopt=True)),
        *(Append(0, ("x",)), Read(0, 0, mark=0), Read(0, 1, mark=1)),
    )
    b.run()
    assert b.text(0) == "x"
    assert "Read names mark 1" in b.failed(1).message


def test_check_names_violated_invariants(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    (program,) = b.programs._programs[b"me"].values()
    b.requests._living[77] = b.requests._living[0]
    assert "77" in b.programs.check()
    del b.requests._living[77]
    program.running.clear()
    assert "generations have []" in b.programs.check()
    program.running.add(program.states[0])
    program._ready.append(program.states[0])
    assert "could continue" in b.programs.check()
    program._ready.clear()
    assert b.programs.check() == ""


# ---- adopt ---------------------------------------------------------------------------------------------------------


def test_adopt_keeps_the_tokens_of_the_branch(bench: Any, greedy: Sampler, role: SimpleNamespace) -> None:
    b = bench({"start": "made", "go": "gone", "on": "done"})
    b.submit(
        *(Append(0, ("start",)), Gen(0, 0, greedy()), Mark(0, 5), Fork(0, (1, 2))),
        *(Append(1, (*role.user("x"), BeginTurn("assistant"), "go")), Gen(1, 1, greedy())),
        *(Fork(1, (3,)), Append(3, ("on",)), Gen(3, 2, greedy()), Append(0, ("forgotten",))),
        *(Join(0, (3,), adopt=True), Append(0, ("!", EndTurn())), Read(0, 3), Read(0, 4, mark=5)),
    )
    b.run()
    text = "startmade<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ngogoneondone!<|im_end|>\n"
    assert (b.text(3), b.text(4)) == (text, text.removeprefix("startmade"))
    n = len(b.engine.runs)
    b.submit(Append(0, ("start",)), Gen(0, 5, greedy()))
    b.run()
    ids = b.ids(n)
    adopted_ids = b.words.encode([TextSpan("gone")])
    assert any(ids[k : k + len(adopted_ids)] == adopted_ids for k in range(len(ids)))


def test_drop_tree_drops_the_subtree(bench: Any, greedy: Sampler) -> None:
    b = bench({"z": "kept"})
    b.submit(
        *(Fork(0, (1, 2)), Fork(1, (3,)), Fork(3, (4,)), Append(4, ("x",)), Gen(4, 0, greedy(max_tokens=500))),
        *(Append(1, ("y",)), Gen(1, 1, greedy(max_tokens=500)), Append(2, ("z",)), Gen(2, 2, greedy())),
    )
    b.run(2)
    assert len(b.requests.living) == 3
    b.submit(Drop(1, tree=True))
    assert {b.failed(k).code for k in (0, 1)} == {"cancelled"}
    assert len(b.requests.living) == 1
    b.submit(Read(3, 3), Read(0, 4))
    assert b.failed(3).code == "cancelled"
    b.run()
    assert b.text(2) == "kept"
    assert b.text(4) == ""


@pytest.mark.parametrize("adopt", [False, True])
def test_join_takes_the_branch_as_it_was_at_the_join(adopt: bool, bench: Any, greedy: Sampler) -> None:
    b = bench({"slow": "made"})
    b.submit(
        *(Fork(0, (1, 2)), Append(1, ("one",)), Append(2, ("two and more",)), Append(0, ("slow",))),
        *(Gen(0, 0, greedy()), Join(0, (1,), adopt=adopt), Join(1, (2,), adopt=True), Append(1, ("!",))),
        *(Read(0, 1), Read(1, 2)),
    )
    b.run()
    assert (b.text(1), b.text(2)) == ("one" if adopt else "slowmadeone", "two and more!")
