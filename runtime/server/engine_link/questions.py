"""What is asked outside of programs (wire.Ask): most of it the engine answers, and the server adds what it knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from banyan.runtime.protocol import wire
from banyan.runtime.server.policy.tenants import Tenants
from banyan.runtime.server.text.tokenizer import Tokenizer

Client = bytes

MOST_OPEN = 256
"""Questions of one client that wait for the engine."""

OURSELVES = b""
"""Who asks the engine for counters, in the place of a client."""


class Questions:
    """Questions on their way to the engine and back.

    order, say: give to the engine; to a client. stats, info: what the server has to tell of itself. check: what does
    not hold in its own books, or "". noted: called with the counters that OURSELVES asked for.
    """

    def __init__(
        self,
        tenants: Tenants,
        tokenizer: Tokenizer,
        *,
        order: Callable[[wire.EngineOrder], None],
        say: Callable[[Client, wire.ServerMessage], None],
        stats: Callable[[], dict[str, float]],
        info: Callable[[], dict[str, Any]],
        check: Callable[[], str],
        noted: Callable[[dict[str, Any]], None] = lambda counters: None,
    ) -> None:
        self._tenants, self._tokenizer = tenants, tokenizer
        self._order, self._say, self._stats, self._info, self._check = order, say, stats, info, check
        self._noted = noted
        self._open: dict[int, tuple[Client, wire.Ask]] = {}
        self._n_open: Counter[Client] = Counter()
        self._n_asked = 0

    def ask(self, client: Client, ask: wire.Ask) -> None:
        if ask.what == "info":
            self._say(client, wire.Answer(id=ask.id, ok=True, body=msgspec.json.encode(self._info())))
            return
        if client != OURSELVES and not (tenant := self._tenants.tenant(client)).is_operator:
            no = f"{ask.what!r} tells of all tenants, and {tenant.name!r} is no operator; see docs/security.md"
            self._say(client, wire.Answer(id=ask.id, ok=False, body=no.encode()))
            return
        if self._n_open[client] >= MOST_OPEN:
            many = f"{MOST_OPEN} questions of this client are open, which is all that it may have; wait for answers"
            self._say(client, wire.Answer(id=ask.id, ok=False, body=many.encode()))
            return
        self._n_open[client] += 1
        self._open[self._n_asked] = client, ask
        self._order(msgspec.structs.replace(ask, id=self._n_asked))
        self._n_asked += 1

    def take(self, answer: wire.Answer) -> None:
        """The engine's."""
        if (asked := self._open.pop(answer.id, None)) is None:
            return
        client, ask = asked
        self._close(client)
        ok, body = answer.ok, answer.body
        if ok and ask.what == "stats":
            counters = msgspec.json.decode(body) | {"server": self._stats()}
            if client == OURSELVES:
                self._noted(counters)
                return
            body = msgspec.json.encode(counters)
        if ok and ask.what == "tree":
            body = self._with_text(body)
        if ok and ask.what == "check" and (wrong := self._check()):
            ok, body = False, wrong.encode()
        if client != OURSELVES:
            self._say(client, wire.Answer(id=ask.id, ok=ok, body=body))

    def fail(self, why: str) -> None:
        """The engine that was asked is no more."""
        while self._open:
            client, ask = self._open.popitem()[1]
            self._close(client)
            if client != OURSELVES:
                self._say(client, wire.Answer(id=ask.id, ok=False, body=why.encode()))

    def _close(self, client: Client) -> None:
        self._n_open[client] -= 1
        if not self._n_open[client]:
            del self._n_open[client]

    def _with_text(self, body: bytes) -> bytes:
        """A sketch of the tree, in which each node has `text` in place of `ids`, and roots have their tenant's name."""
        sketch = msgspec.json.decode(body)
        for node in sketch["nodes"]:
            node["text"] = self._tokenizer.text_of(node.pop("ids"))
            node["namespace"] = self._tenants.name(bytes.fromhex(node["namespace"]))
        return msgspec.json.encode(sketch)
