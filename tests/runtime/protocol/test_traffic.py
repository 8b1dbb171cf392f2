"""The number, size and content of the messages that programs send to a real server."""

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
from banyan.runtime import config, launch
from banyan.runtime.protocol import decoders, wire
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
    """Submit, Define and Undefine messages that this process sent to the server."""

    def __init__(self) -> None:
        self.sent: list[tuple[wire.ClientMessage, int]] = []

    def of(self, *kinds: type) -> list[Any]:
        return [message for message, _ in self.sent if isinstance(message, kinds)]

    def n_bytes(self, *kinds: type) -> list[int]:
        return [n for message, n in self.sent if isinstance(message, kinds)]


@pytest.fixture
def traffic(endpoint: bn.RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch, no_flusher: None) -> Traffic:
    recorded, send = Traffic(), endpoint.client.send

    def record_and_send(data: bytes) -> None:
        message = decoders.decode_client(data)
        if isinstance(message, wire.Submit | wire.Define | wire.Undefine) and getattr(message, "ops", True):
            recorded.sent.append((message, len(data)))
        send(data)

    monkeypatch.setattr(endpoint.client, "send", record_and_send)
    return recorded


@bn.function
def straight(s: bn.State, question: str, k: int) -> None:
    for i in range(k):
        s += f"{question} {i} A:" + bn.gen(f"a{i}", max_tokens=4)


@pytest.mark.parametrize("k", [1, 20])
def test_straight_program_is_one_message_for_any_number_of_gens(
    endpoint: bn.RuntimeEndpoint, traffic: Traffic, k: int
) -> None:
    state = straight.run("well?", k, backend=endpoint)
    assert [state[f"a{i}"] for i in range(k)] == [" yes"] * k
    assert len(traffic.sent) == 1


def test_program_reading_each_value_sends_each_text_once(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    @bn.function
    def chat(s: bn.State) -> None:
        for i in range(20):
            s += f"turn {i:02}: A:" + bn.gen("a", max_tokens=4)
            assert s["a"] == " yes"

    chat.run(backend=endpoint)
    sizes = traffic.n_bytes(wire.Submit)
    assert len(sizes) == 20, "one message per value read"
    assert max(sizes) - min(sizes) < 16, f"sizes do not grow: {sizes}"
    assert " yes" not in repr(traffic.of(wire.Submit)), "generated text is not sent back"


def test_fork_does_not_resend_the_parents_text(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
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


def test_pending_value_is_sent_as_a_reference(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
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


def test_called_programs_are_submitted_before_the_caller_waits(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    """A program that calls three others and then generates has submitted all of them before it waits for a value."""

    @bn.function
    def child(s: bn.State, i: int) -> None:
        s += f"child {i}, hurry" + bn.gen("a", max_tokens=40)

    @bn.function
    def parent(s: bn.State) -> list[str]:
        children = [child(i) for i in range(3)]
        s += "parent, hurry" + bn.gen("own", max_tokens=40)
        assert len(traffic.of(wire.Submit)) == 3
        assert not any(one._record.trace.spans for one in (s, *children)), "no value was awaited yet"
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


def test_batch_sends_its_template_once_and_then_only_arguments(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    states = review.run_batch(ITEMS, backend=endpoint, temperature=0)
    plain_sizes = traffic.n_bytes(wire.Submit)
    expected = [(s.text(), s["good"], s["more"], s.usage.prompt) for s in states]
    traffic.sent.clear()
    compiled = compile(review)
    states = compiled.run_batch(ITEMS, backend=endpoint, temperature=0)
    assert len(traffic.of(wire.Define)) == 1
    item_sizes = traffic.n_bytes(wire.Submit)
    assert len(item_sizes) == len(plain_sizes) == len(ITEMS)
    assert max(item_sizes) < 150 < min(plain_sizes) / 4
    texts = sum(len(text) for item in ITEMS for text in item)
    submits = traffic.of(wire.Submit)  # program and template numbers are longer after a lost server
    numbers = sum(len(msgspec.msgpack.encode(n)) for m in submits for n in (m.program, m.ops[0].template))
    assert (sum(item_sizes) - texts - numbers) / len(ITEMS) < 78, "bytes per item besides texts and numbers"
    assert [(s.text(), s["good"], s["more"], s.usage.prompt) for s in states] == expected


def test_error_in_a_template_names_its_gen_and_line(endpoint: bn.RuntimeEndpoint) -> None:
    @bn.function
    def much(s: bn.State, text: str) -> None:
        s += text + bn.gen("a", max_tokens=4)

    compiled = compile(much)
    with pytest.raises(bn.PromptTooLong, match=r"gen 'a', test_traffic\.py:\d+"):
        compiled.run("x y z " * 400, backend=endpoint).sync()


def test_collected_template_is_undefined_on_the_server(endpoint: bn.RuntimeEndpoint, traffic: Traffic) -> None:
    compiled: Any = compile(review)
    compiled.run(*ITEMS[0], backend=endpoint).sync()
    del compiled
    gc.collect()
    (define,) = traffic.of(wire.Define)
    wait_until(lambda: wire.Undefine(define.template) in traffic.of(wire.Undefine), "Undefine")


def test_oversized_template_raises_with_its_size(
    endpoint: bn.RuntimeEndpoint, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = msgspec.structs.replace(endpoint.welcome, max_message=300)
    monkeypatch.setattr(endpoint.client, "welcome", small)
    with pytest.raises(bn.BadMessage, match=r"this template has \d+ bytes"):
        compile(review).run(*ITEMS[0], backend=endpoint)
