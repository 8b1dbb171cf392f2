from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from fake_link import add_engine

from banyan.runtime.errors import Overloaded
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Gen, Read, Select
from banyan.runtime.server.engine_link.recovery import MAX_DEATHS, MAX_KILLS, Death, Trials
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.programs.scheduling import SchedulingInfo
from banyan.runtime.server.text.prompt import pack, unpack
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from waits import wait_until

Sampler = Callable[..., wire.Sampling]


def kill_engine(b: Any, is_blameless: bool = False) -> None:
    """The engine dies in a step with all running requests, and another takes over."""
    b.replace_engine(Death("in a test", is_blameless, frozenset(b.engine.running)))


def test_request_is_resumed_after_an_engine_death(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three four"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(max_tokens=40), stream=True), Read(0, 1))
    b.run(n_steps=5)
    kill_engine(b, is_blameless=True)
    first, second = b.engine.runs
    assert second.n_done == 5
    assert second.rid == first.rid
    assert unpack(second.ids)[: len(unpack(first.ids))] == unpack(first.ids)
    assert (second.sampling, second.seed, second.stop_ids) == (first.sampling, first.seed, first.stop_ids)
    b.run()
    assert b.text(1) == "aone two three four"
    assert "".join(d.text for d in b.messages(wire.Delta)) == "one two three four"
    assert b.value(0).usage == wire.TokenUsage(prompt=1, generated=b.value(0).samples[0].n_tokens)


def test_select_is_repeated_after_an_engine_death(bench: Any) -> None:
    b = bench()
    b.submit(Append(0, ("so ",)), Select(0, 0, ("yes", "no")))
    kill_engine(b, is_blameless=True)
    assert b.engine.runs[2:] == b.engine.runs[:2]
    b.run()
    assert b.text(0) in ("yes", "no")


def test_requests_are_sent_to_a_new_engine_as_far_as_there_is_time() -> None:
    calls: list[Callable[[], None]] = []
    sent: list[int] = []

    class Waiting:
        n_deaths = n_blamed = n_blamed_ever = 0
        is_given = False

        def __init__(self, rid: int) -> None:
            self.rid = rid

    requests = [Waiting(rid) for rid in range(5)]
    trials = Trials[Waiting](
        lambda request, _: sent.append(request.rid), lambda request: request.rid != 3, lambda: True, calls.append
    )
    trials.judge(Death(is_blameless=True), requests)
    trials.go_on()
    trials.go_on()
    assert sent == [0]
    trials.submit(Waiting(9))
    while calls:
        calls.pop()()
        assert len(calls) <= 1
    assert sent == [0, 9, 1, 2, 4]


def test_request_that_kills_engines_is_quarantined(bench: Any, greedy: Sampler) -> None:
    b = bench({"ok": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(MAX_DEATHS):
        kill_engine(b)
    assert b.failed(0).code == "quarantined"
    assert "2 engines died of this request" in b.failed(0).message
    assert len(b.requests) == 0
    b.submit(Append(0, ("ok",)), Gen(0, 0, greedy()), program=1)
    b.run()
    assert b.text(0, program=1) == "fine"


def test_request_with_progress_is_not_quarantined(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three four five six"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(2 * MAX_DEATHS):
        b.run(n_steps=1)
        kill_engine(b)
    b.run()
    assert b.text(0) == "one two three four five six"


def test_request_outside_the_step_is_not_suspected(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one", "b": "two"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    (waiting,) = b.engine.running
    for _ in range(3 * MAX_DEATHS):
        b.engine.running.clear()
        b.requests.replay(b.replica, Death(rids=frozenset({99})))
        assert list(b.engine.running) == [waiting]
    b.run()
    assert b.text(0) == "one"


def test_suspects_are_tested_alone_and_others_continue(bench: Any, greedy: Sampler) -> None:
    """Three requests run when one of them kills the engine. Another is submitted during the tests."""
    b = bench({"a": "one two three", "poison": "four five six", "c": "seven eight nine", "d": "ten"})
    for program, text in enumerate(("a", "poison", "c")):
        b.submit(Append(0, (text,)), Gen(0, 0, greedy()), program=program)
    b.run(n_steps=2)
    poison = list(b.engine.running)[1]
    kill_engine(b)
    tested = []
    for k in range(40):
        running = list(b.engine.running)
        if len(running) == 1 and running[0] not in tested:
            tested += running
        if k == 1:
            b.submit(Append(0, ("d",)), Gen(0, 0, greedy()), program=3)
            assert 3 not in b.engine.running, "new requests wait for the end of the tests"
        if poison in running:
            assert running == [poison], "a suspect runs alone"
            kill_engine(b)
        else:
            b.run(n_steps=1)
    assert sorted(set(tested)) == [0, 1, 2]
    assert b.failed(0, program=1).code == "quarantined"
    assert [b.text(0, program=k) for k in (0, 2, 3)] == ["one two three", "seven eight nine", "ten"]


def test_blameless_death_during_a_test_keeps_the_suspects(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three", "c": "seven eight nine"})
    for program, text in enumerate(("a", "c")):
        b.submit(Append(0, (text,)), Gen(0, 0, greedy()), program=program)
    b.run(n_steps=1)
    kill_engine(b)
    assert list(b.engine.running) == [0]
    kill_engine(b, is_blameless=True)
    assert list(b.engine.running) == [0], "the suspect is tested again"
    b.run()
    assert [b.text(0, program=k) for k in (0, 1)] == ["one two three", "seven eight nine"]


def test_cancelled_suspects_do_not_block_others(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two", "c": "three four"})
    for program in range(4):
        b.submit(Append(0, ("a" if program < 3 else "c",)), Gen(0, 0, greedy()), program=program)
    b.run(n_steps=1)
    kill_engine(b)
    for program in (1, 0):  # one waits for its test, one is being tested
        b.programs.cancel(b"me", wire.Cancel(program=program, seq=1))
    b.run()
    assert (b.text(0, program=2), b.text(0, program=3)) == ("one two", "three four")


def test_blameless_deaths_per_request_are_limited(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(MAX_KILLS - 1):
        kill_engine(b, is_blameless=True)
    b.run(n_steps=1)
    for _ in range(MAX_KILLS):
        kill_engine(b, is_blameless=True)
    assert b.failed(0).code == "quarantined"


@pytest.mark.parametrize("n_tokens", [0, 2])
def test_prompt_scores_after_a_replay_exclude_the_output(bench: Any, greedy: Sampler, n_tokens: int) -> None:
    b = bench({"abc": "one two three"})
    b.submit(Append(0, ("abc",)), Gen(0, 0, greedy(logprobs=True, logprob_start=0)))
    b.run(n_steps=n_tokens)
    kill_engine(b, is_blameless=True)
    b.run()
    assert len(b.value(0).prompt) == b.value(0).usage.prompt
    assert len(b.value(0).samples[0].logprobs) == b.value(0).samples[0].n_tokens


def test_stopped_request_ends_without_a_new_engine(bench: Any, words: Tokenizer, greedy: Sampler) -> None:
    b = bench({"a": "xyzxyz"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(stop=("zx",))))
    wait_until(lambda: b.run(n_steps=1) or b.engine.aborted, "the abort")
    kill_engine(b)
    assert b.text(0) == "xy"
    assert b.value(0).usage.prompt == 1


def test_stopped_suspect_does_not_block_others(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "xyzxyz", "b": "one"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(stop=("zx",))))
    b.submit(Append(0, ("b",)), Gen(0, 0, greedy()), program=1)
    wait_until(lambda: b.run(n_steps=1) or b.engine.aborted, "the abort")
    b.engine.finished.clear()
    b.engine.running.clear()
    b.requests.replay(b.replica, Death(rids=frozenset({0, 1})))
    b.run()
    assert b.text(0) == "xy"
    assert b.text(0, program=1) == "one"


def run_of(sampling: wire.Sampling = wire.Sampling()) -> wire.Run:  # noqa: B008 (it is frozen)
    return wire.Run(0, pack([1]), sampling, order=(0, 0))


class Owner:
    """The program of requests in a test."""

    scheduling = SchedulingInfo()

    def record(self, run: wire.Run, visible: Collection[int]) -> None:
        return None

    def spend(self, order: tuple[int, ...], n: int) -> None:
        pass

    def crashed(self, error: Exception) -> None:
        raise error


def test_engine_is_told_the_end_of_a_program_after_the_aborts_of_its_requests(words: Tokenizer) -> None:
    """If there are many requests, some are aborted later. If the end came before that, a Run whose constraint is still
    being compiled would enter the engine's queue after it, and the engine would keep the program for good."""
    calls: list[Callable[[], None]] = []
    commands: list[Any] = []
    requests = EngineRequests(words, None, call_later=calls.append, is_late=lambda: True)
    add_engine(requests, commands.append)
    started = [
        requests.start(wire.Run(0, pack([5]), order=(7, 0, k, 0)), lambda request: None, owner=Owner())
        for k in range(3)
    ]
    commands.clear()
    requests.abort(*started)
    requests.end(0, 7)
    while calls:
        calls.pop(0)()
    kinds = [type(one) for one in commands if isinstance(one, wire.Abort | wire.ProgramEnded)]
    assert kinds == [wire.Abort] * 3 + [wire.ProgramEnded]


@pytest.mark.parametrize("lose", ["replay", "vacate", "remove_engine"])
def test_durable_request_whose_engine_is_lost_before_its_output_is_restored_is_sent_once(
    words: Tokenizer, lose: str
) -> None:
    """It is sent with its output only. If it was sent without it first, the engine would refuse the second Run."""
    calls: list[Callable[[], None]] = []
    commands: list[Any] = []

    class Durable(Owner):
        def record(self, run: wire.Run, visible: Collection[int]) -> Any:
            return SimpleNamespace(is_new=False, seed=7, ids=pack([67, 68]), logprobs=[], finish=None)

    requests = EngineRequests(words, None, call_later=calls.append)
    for name in "01":
        add_engine(requests, commands.append, name)
    request = requests.start(run_of(), lambda r: None, owner=Durable())
    getattr(requests, lose)(request.replica)
    while calls:
        calls.pop(0)()
    (run,) = [command for command in commands if isinstance(command, wire.Run)]
    assert (run.rid, run.n_done, run.seed) == (request.rid, 2, 7)


def test_eos_ids_beyond_the_vocabulary_are_not_sent(words: Tokenizer) -> None:
    commands: list[Any] = []
    requests = EngineRequests(words, 2)
    add_engine(requests, commands.append)
    requests.start(run_of(wire.Sampling(stop_token_ids=(1,))), lambda r: None, owner=Owner())
    assert unpack(commands[0].stop_ids) == [1]


def test_top_logprobs_become_token_alternatives(words: Tokenizer) -> None:
    ended: list[Any] = []
    requests = EngineRequests(words, None)
    add_engine(requests)
    requests.start(run_of(wire.Sampling(logprobs=True, top_logprobs=2)), ended.append, owner=Owner())
    the, fox = words.encode([TextSpan("the")])[0], words.encode([TextSpan("x")])[0]
    top = wire.TopLogprobs(-0.5, pack([the, fox]), array("f", [-0.5, -1.5]).tobytes())
    step = wire.Step(array("q", [0]).tobytes(), pack([1]), pack([the]), {0: (top,)}, (wire.Finish(0, "length"),))
    deque(requests.take(step, requests.routes.all[0]), 0)
    (logprob,) = requests.sample(ended[0]).logprobs
    spell = words.text_of
    assert logprob == wire.TokenLogprob(the, spell([the]), -0.5, ((the, spell([the]), -0.5), (fox, "x", -1.5)))


def test_a_stop_token_has_its_logprob_unless_a_stop_string_ended_the_text(words: Tokenizer) -> None:
    the, fox = words.encode([TextSpan("the")])[0], words.encode([TextSpan("x")])[0]
    for stop, end in (("zz", wire.TokenLogprob(fox, "x", -0.5)), ("th", None)):
        ended: list[Any] = []
        requests = EngineRequests(words, None)
        add_engine(requests)
        sampling = wire.Sampling(logprobs=True, stop=(stop,), stop_token_ids=(fox,))
        requests.start(run_of(sampling), ended.append, owner=Owner())
        finish = wire.Finish(0, "stop", stop_id=fox, end=wire.TopLogprobs(-0.5))
        step = wire.Step(array("q", [0]).tobytes(), pack([1]), pack([the]), {0: (wire.TopLogprobs(-1.0),)}, (finish,))
        deque(requests.take(step, requests.routes.all[0]), 0)
        assert requests.sample(ended[0]).end == end


def test_tokens_with_part_of_a_character_have_their_bytes(words: Tokenizer) -> None:
    (first, second), (x,) = words.encode([TextSpan("ë")]), words.encode([TextSpan("x")])
    entry = wire.TopLogprobs(-0.5, pack([second, x]), array("f", [-0.5, -1.5]).tobytes())
    found = EngineRequests(words, None)._logprob(first, entry)
    assert (found.spelling, found.top_spellings) == (b"\xc3", (b"\xab", b""))


def test_requests_are_stopped_as_far_as_there_is_time(words: Tokenizer) -> None:
    calls: list[Callable[[], None]] = []
    commands: list[Any] = []
    requests = EngineRequests(words, None, call_later=calls.append, is_late=lambda: True)
    add_engine(requests, commands.append)
    started = [requests.start(run_of(), lambda r: None, owner=Owner()) for _ in range(3)]
    requests.abort(*started)
    assert len(requests) == 0
    for n_told in (1, 2, 3):
        assert [command.rid for command in commands if isinstance(command, wire.Abort)] == list(range(n_told))
        while calls:
            calls.pop()()
            break


def test_steps_of_aborted_requests_are_ignored(words: Tokenizer) -> None:
    requests = EngineRequests(words, None)
    add_engine(requests)
    ended: list[Any] = []
    first = requests.start(run_of(), ended.append, owner=Owner())
    requests.start(run_of(), ended.append, owner=Owner())
    requests.abort(first)
    finished = (wire.Finish(0, "abort"), wire.Finish(1, "length"))
    step = wire.Step(array("q", [0, 1]).tobytes(), pack([2, 1]), pack([67, 68, 69]), {}, finished)
    deque(requests.take(step, requests.routes.all[0]), 0)
    assert [r.run.rid for r in ended] == [1]
    assert unpack(bytes(ended[0].ids)) == [69]


@pytest.mark.parametrize(
    "ops",
    [
        (Append(0, ("one two three",)), Gen(0, 0, wire.Sampling(n=4))),
        (Append(0, ("one two three",)), Select(0, 0, ("a", "b", "c", "d"))),
        (
            Append(0, ("one two three",)),
            wire.Fork(0, (1, 2, 3, 4)),
            *(Gen(k, k, wire.Sampling()) for k in (1, 2, 3, 4)),
        ),
    ],
    ids=["samples", "choices", "branches"],
)
def test_prompts_of_a_client_have_a_limit(
    bench: Any, ops: tuple[wire.Op, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({})
    n_bytes = 4 * len(b.words.encode([TextSpan("one two three")]))
    monkeypatch.setattr(b.requests, "_max_bytes", 3 * n_bytes + 8)
    b.submit(*ops, client=b"me")
    b.submit(Append(0, ("one two three",)), Gen(0, 0, wire.Sampling(n=3)), program=1, client=b"other")
    (refused,) = [m for m in b.messages(wire.Failed) if m.code == Overloaded.code]
    assert "run fewer at once, or raise `max_client`" in refused.message
    assert not b.messages(wire.Failed, program=1)
    b.run()
    assert not b.requests._prompt_bytes, "bytes of requests that have ended are counted"
    b.submit(Append(0, ("one two three",)), Gen(0, 0, wire.Sampling(n=3)), program=2)
    b.run()
    assert len(b.value(0, program=2).samples) == 3
