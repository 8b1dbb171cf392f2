"""What crosses the wire to a real server: how many messages a program is, how many bytes, and what is not in them."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

import banyan as bn
from banyan.execution import program_record
from banyan.runtime import config, launch
from banyan.runtime.protocol import wire
from banyan.templates.compiled import compile
from waits import wait_until

PARENT = "the quick brown fox jumps over the lazy dog. " * 8


@pytest.fixture(scope="module")
def endpoint(
    boot: tuple[str, ...], tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[bn.RuntimeEndpoint]:
    path = tmp_path_factory.mktemp("traffic")
    tiny.make_tokenizer(path)
    (path / "fake.json").write_text(
        json.dumps({"say": {"hurry": "slow " * 40, "A:": " yes", "B:": " no", "go": " on"}})
    )
    with contextlib.ExitStack() as stack:
        server = launch.start(config.make(model=str(path)), timeout=60.0, command=boot)
        stack.callback(server.close)
        yield stack.enter_context(bn.connect(server.socket))


class Traffic:
    """What this process sent to the server of programs."""

    def __init__(self) -> None:
        self.sent: list[tuple[wire.ClientMessage, int]] = []

    def of(self, *kinds: type) -> list[Any]:
        return [message for message, _ in self.sent if isinstance(message, kinds)]

    def n_bytes(self, *kinds: type) -> list[int]:
        return [n for message, n in self.sent if isinstance(message, kinds)]


@pytest.fixture
def traffic(endpoint: bn.RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    monkeypatch.setattr(program_record, "FLUSH_AFTER", 5.0)  # so that counts do not depend on the load
    seen, send = Traffic(), endpoint.client.send

    def watched(data: bytes) -> None:
        message = wire.decode_client(data)
        if isinstance(message, wire.Submit | wire.Define | wire.Undefine) and getattr(message, "ops", True):
            seen.sent.append((message, len(data)))
        send(data)

    monkeypatch.setattr(endpoint.client, "send", watched)
    return seen


@bn.function
def straight(s: bn.State, question: str, k: int) -> None:
    for i in range(k):
        s += f"{question} {i} A:" + bn.gen(f"a{i}", max_tokens=4)


@pytest.mark.parametrize("k", [1, 20])
def test_a_straight_line_is_one_message_however_many_gens_it_holds(
    endpoint: bn.RuntimeEndpoint, traffic: Traffic, k: int
) -> None:
    state = straight.run("well?", k, backend=endpoint)
    assert [state[f"a{i}"] for i in range(k)] == [" yes"] * k
    assert len(traffic.sent) == 1


def test_a_program_that_looks_at_each_turn_sends_each_text_once(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    @bn.function
    def chat(s: bn.State) -> None:
        for i in range(20):
            s += f"turn {i:02}: A:" + bn.gen("a", max_tokens=4)
            assert s["a"] == " yes"

    chat.run(backend=endpoint)
    sizes = traffic.n_bytes(wire.Submit)
    assert len(sizes) == 20, "one for each value that was looked at"
    assert max(sizes) - min(sizes) < 16, f"each is as small as the first: {sizes}"
    assert " yes" not in repr(traffic.of(wire.Submit)), "and what was generated is not sent back"


def test_a_fork_sends_nothing_of_its_parent(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    @bn.function
    def tree(s: bn.State) -> None:
        s += PARENT + "A:" + bn.gen("a", max_tokens=4)
        assert s["a"] == " yes"
        branches = s.fork(8)
        branches += lambda i: f" {i} B:"
        branches += bn.gen("b", max_tokens=4)
        branches.join()

    assert tree.run(backend=endpoint)["b"] == [" no"] * 8
    _, second = traffic.n_bytes(wire.Submit)
    assert second < 8 * len(PARENT) / 2
    assert "fox" not in repr(traffic.of(wire.Submit)[1])


def test_a_value_that_is_not_known_yet_travels_as_a_reference(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    @bn.function
    def splices(s: bn.State) -> None:
        first, second = s.fork(2)
        first += "first A:" + bn.gen("x", max_tokens=4)
        second += "because" + first.ref("x") + " B:" + bn.gen("y", max_tokens=4)
        s += f"so {second.ref('y')} go" + bn.gen("z", max_tokens=4)

    state = splices.run(backend=endpoint)
    assert state.text() == "so  no go on"
    (submit, *_) = traffic.of(wire.Submit)
    assert len([op for op in submit.ops if isinstance(op, wire.Gen)]) == 3
    spliced = [
        part for op in submit.ops if isinstance(op, wire.Append) for part in op.parts if isinstance(part, wire.Ref)
    ]
    assert spliced == [wire.Ref(0), wire.Ref(1)]


def test_a_call_with_a_state_of_its_own_holds_nobody_up(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    """A program that calls three others, and goes on with its own gens, has them all on their way before it waits."""

    @bn.function
    def child(s: bn.State, i: int) -> None:
        s += f"child {i}, hurry" + bn.gen("a", max_tokens=40)

    @bn.function
    def parent(s: bn.State) -> list[str]:
        children = [child(i) for i in range(3)]
        s += "parent, hurry" + bn.gen("own", max_tokens=40)
        assert len(traffic.of(wire.Submit)) == 3
        assert not any(one._record.trace.spans for one in (s, *children)), "nobody waited for a value yet"
        assert s["own"].startswith("slow ")
        assert len(traffic.of(wire.Submit)) == 4
        return [one["a"] for one in children]

    assert len(parent.run(backend=endpoint).ret_value) == 3


# ---- templates -----------------------------------------------------------------------------------------------------


@bn.function
def review(s: bn.State, product: str, words: str) -> None:
    s += bn.system("You read what people say. " + PARENT)
    s += bn.user(f"About {product} they say:\n{words}\nIs that good?")
    s += bn.assistant("A:" + bn.gen("good", max_tokens=4))
    branches = s.fork(2)
    branches += [bn.user("Why?") + bn.assistant("B:"), bn.user("Go?") + bn.assistant("go")]
    branches += bn.gen("more", max_tokens=4)
    branches.join()


ITEMS = [(f"thing {i}", f"words number {i} are  {'many' * (i % 7)}\n") for i in range(40)]


def test_a_batch_sends_its_template_once_and_then_the_arguments(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    states = review.run_batch(ITEMS, backend=endpoint, temperature=0)
    plainly = traffic.n_bytes(wire.Submit)
    expected = [(s.text(), s["good"], s["more"], s.usage.prompt) for s in states]
    traffic.sent.clear()
    compiled = compile(review)
    states = compiled.run_batch(ITEMS, backend=endpoint, temperature=0)
    assert len(traffic.of(wire.Define)) == 1
    items = traffic.n_bytes(wire.Submit)
    assert len(items) == len(plainly) == len(ITEMS)
    assert max(items) < 150 < min(plainly) / 4
    texts = sum(len(text) for item in ITEMS for text in item)
    submits = traffic.of(wire.Submit)  # their numbers are longer where this process has lost a server before
    numbers = sum(len(msgspec.msgpack.encode(n)) for m in submits for n in (m.program, m.ops[0].template))
    assert (sum(items) - texts - numbers) / len(ITEMS) < 78, "and little else"
    assert [(s.text(), s["good"], s["more"], s.usage.prompt) for s in states] == expected


def test_what_goes_wrong_in_a_template_says_where(endpoint: bn.RuntimeEndpoint) -> None:
    @bn.function
    def much(s: bn.State, text: str) -> None:
        s += text + bn.gen("a", max_tokens=4)

    compiled = compile(much)
    with pytest.raises(bn.PromptTooLong, match=r"gen 'a', test_traffic\.py:\d+"):
        compiled.run("x y z " * 400, backend=endpoint).sync()


def test_a_template_that_nobody_holds_is_taken_back(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    compiled: Any = compile(review)
    compiled.run(*ITEMS[0], backend=endpoint).sync()
    del compiled
    gc.collect()
    (define,) = traffic.of(wire.Define)
    wait_until(lambda: wire.Undefine(define.template) in traffic.of(wire.Undefine), "Undefine")


def test_a_template_that_is_too_large_says_so(
    endpoint: bn.RuntimeEndpoint, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = msgspec.structs.replace(endpoint.welcome, max_message=300)
    monkeypatch.setattr(endpoint.client, "welcome", small)
    with pytest.raises(bn.BadMessage, match=r"this template takes \d+ bytes"):
        compile(review).run(*ITEMS[0], backend=endpoint)
