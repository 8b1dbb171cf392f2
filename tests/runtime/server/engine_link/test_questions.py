"""Questions of clients about the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.questions import Questions
from banyan.runtime.server.policy.tenants import Tenant, Tenants
from banyan.runtime.server.text.tokenizer import Tokenizer


def test_texts_of_a_tree_are_written_off_the_loop(words: Tokenizer) -> None:
    offloaded: list[tuple[int, Callable[[], Any], Callable[[Any], None]]] = []
    asked: list[Any] = []
    sent: list[Any] = []
    tenants = Tenants()
    tenants.join(b"me", Tenant())
    questions = Questions(
        tenants,
        words,
        send_to_engine=asked.append,
        send=lambda client, message: sent.append(message),
        stats=dict,
        info=lambda is_operator: {},
        programs=dict,
        check=str,
        on_counters=lambda counters: None,
        offload=lambda client, n, work, then: offloaded.append((n, work, then)),
        adapters=AdapterNames(),
        log=print,
    )
    for number in (7, 8):
        questions.ask(b"me", wire.Ask(number, "tree", limit=5000))
    ids = list(words.encode([]))
    body = json.dumps({"nodes": [{"ids": ids, "namespace": ""}]}).encode()
    questions.receive(wire.Answer(asked[0].id, True, body))
    questions.receive(wire.Answer(asked[1].id, True, b"{"))
    assert not sent
    assert [n for n, _, _ in offloaded] == [len(body), 1]
    _, work, then = offloaded[0]
    then(work())
    offloaded[1][2](ValueError("no JSON"))
    assert [(answer.id, answer.ok) for answer in sent] == [(7, True), (8, False)]
    assert json.loads(sent[0].body)["nodes"][0]["text"] == ""
