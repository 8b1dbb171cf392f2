from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from banyan.runtime import wire
from banyan.runtime.server.requests import MAX_DEATHS, Requests
from banyan.runtime.server.state import pack, unpack
from banyan.runtime.server.tokenizer import Span, Tokenizer
from banyan.runtime.wire import Append, Gen, Read, Select

Sampler = Callable[..., wire.Sampling]


def dies(b: Any) -> None:
    """The engine of a bench dies, and another takes over."""
    b.engine.running.clear()
    b.engine.reports.clear()
    b.engine.finished.clear()
    b.requests.replay()


def test_a_program_goes_on_where_it_was_when_the_engine_dies(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three four"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(max_tokens=40), stream=True), Read(0, 1))
    b.run(n_steps=5)
    dies(b)
    first, second = b.engine.runs
    assert second.n_done == 5
    assert second.rid == first.rid
    assert unpack(second.ids)[: len(unpack(first.ids))] == unpack(first.ids)
    assert (second.sampling, second.seed, second.stop_ids) == (first.sampling, first.seed, first.stop_ids)
    b.run()
    assert b.text(1) == "aone two three four"
    assert "".join(d.text for d in b.messages(wire.Delta)) == "one two three four"
    assert b.value(0).usage == wire.Usage(prompt=1, generated=b.value(0).samples[0].n_tokens)


def test_a_select_is_asked_again_whole(bench: Any) -> None:
    b = bench()
    b.submit(Append(0, ("so ",)), Select(0, 0, ("yes", "no")))
    dies(b)
    assert b.engine.runs[2:] == b.engine.runs[:2]
    b.run()
    assert b.text(0) in ("yes", "no")


def test_a_request_under_which_engines_die_again_and_again_is_given_up(bench: Any, greedy: Sampler) -> None:
    b = bench({"ok": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(MAX_DEATHS):
        dies(b)
    assert b.failed(0).code == "engine_lost"
    assert len(b.requests) == 0
    b.submit(Append(0, ("ok",)), Gen(0, 0, greedy()), program=1)
    b.run()
    assert b.text(0, program=1) == "fine"


def test_a_token_in_between_shows_that_it_was_not_the_request(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three four five six"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(2 * MAX_DEATHS):
        b.run(n_steps=1)
        dies(b)
    b.run()
    assert b.text(0) == "one two three four five six"


def test_a_request_that_had_stopped_ends_without_the_engine(bench: Any, words: Tokenizer, greedy: Sampler) -> None:
    b = bench({"a": "xyzxyz"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(stop=("zx",))))
    while not b.engine.aborted:
        b.run(n_steps=1)
    dies(b)
    assert b.text(0) == "xy"
    assert b.value(0).usage.prompt == 1


def test_eos_ids_beyond_the_models_vocabulary_are_left_out(words: Tokenizer) -> None:
    orders: list[Any] = []
    Requests(words, 2, orders.append).start(pack([1]), wire.Sampling(stop_token_ids=(1,)), lambda r: None)
    assert unpack(orders[0].stop_ids) == [1]


def test_alternatives_of_each_token(words: Tokenizer) -> None:
    ended: list[Any] = []
    requests = Requests(words, None, lambda order: None)
    requests.start(pack([1]), wire.Sampling(logprobs=True, top_logprobs=2), ended.append)
    the, fox = words.encode([Span("the")])[0], words.encode([Span("x")])[0]
    top = wire.TopLogprobs(-0.5, pack([the, fox]), array("f", [-0.5, -1.5]).tobytes())
    requests.take(
        wire.Step(array("q", [0]).tobytes(), pack([1]), pack([the]), {0: (top,)}, (wire.Finish(0, "length"),))
    )
    (logprob,) = requests.sample(ended[0]).logprobs
    spell = words.text_of
    assert logprob == wire.TokenLogprob(the, spell([the]), -0.5, ((the, spell([the]), -0.5), (fox, "x", -1.5)))


def test_steps_of_requests_that_are_gone_are_ignored(words: Tokenizer) -> None:
    requests = Requests(words, None, lambda order: None)
    ended: list[Any] = []
    first = requests.start(pack([1]), wire.Sampling(), ended.append)
    requests.start(pack([1]), wire.Sampling(), ended.append)
    requests.abort(first)
    finished = (wire.Finish(0, "abort"), wire.Finish(1, "length"))
    requests.take(wire.Step(array("q", [0, 1]).tobytes(), pack([2, 1]), pack([67, 68, 69]), {}, finished))
    assert [r.run.rid for r in ended] == [1]
    assert unpack(bytes(ended[0].ids)) == [69]
