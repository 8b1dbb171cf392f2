"""Questions of clients about the server (wire.Ask). The engine answers most of them; the server adds its own data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.policy.tenants import Tenant, Tenants
from banyan.runtime.server.text.tokenizer import Tokenizer

Client = bytes

MAX_OPEN = 256
"""The most unanswered questions of one client."""

OURSELVES = b""
"""The name of the asking client when the server itself asks the engine for counters."""


class Questions:
    """Questions that wait for the engine's answer.

    send_to_engine, send: functions that send a command to the engine, and a message to a client. stats: returns
    what the server adds to the engine's counters. info: returns the server's own data, given whether an operator asks.
    programs: makes an overview of the programs, in steps. check: describes a violated invariant of the server, or
    returns "".
    on_counters: gets the counters that OURSELVES asked for.
    offload(client, n, work, then): runs `work` on a thread if `n` is large, and then `then` on the loop, with its
    result or exception. adapters: those that clients load. log: prints a line.
    """

    def __init__(
        self,
        tenants: Tenants,
        tokenizer: Tokenizer,
        *,
        send_to_engine: Callable[[wire.EngineCommand], None],
        send: Callable[[Client, wire.ServerMessage], None],
        stats: Callable[[], dict[str, Any]],
        info: Callable[[bool], dict[str, Any]],
        programs: Callable[[], Generator[None, None, Any]],
        check: Callable[[], str],
        on_counters: Callable[[dict[str, Any]], None],
        offload: Callable[[Client, int, Callable[[], Any], Callable[[Any], None]], None],
        adapters: AdapterNames,
        log: Callable[[str], None],
    ) -> None:
        self._tenants, self._tokenizer = tenants, tokenizer
        self._send_to_engine, self._send = send_to_engine, send
        self._stats, self._info, self._check, self._on_counters = stats, info, check, on_counters
        self._programs = programs
        self._offload, self._adapters, self._log = offload, adapters, log
        self._open: dict[int, tuple[Client, wire.Ask]] = {}
        self._n_open: Counter[Client] = Counter()
        self._n_asked = 0

    def ask(self, client: Client, ask: wire.Ask) -> Iterable[None]:
        """Handle a client's question. Returns the steps that are left to do."""
        tenant = Tenant() if client == OURSELVES else self._tenants.tenant(client)
        if ask.what == "info":
            body = msgspec.json.encode(self._info(tenant.is_operator))
            self._send(client, wire.Answer(id=ask.id, ok=True, body=body))
            return ()
        refusal, to_engine = "", ask
        if not tenant.is_operator:
            refusal = f"{ask.what!r} tells of all tenants, and {tenant.name!r} is no operator; see docs/security.md"
        elif self._n_open[client] >= MAX_OPEN:
            refusal = f"{MAX_OPEN} questions of this client are open, which is the limit; wait for answers"
        if refusal:
            self._send(client, wire.Answer(id=ask.id, ok=False, body=refusal.encode()))
            return ()
        if ask.what == "programs":
            return self._tell_programs(client, ask)
        try:
            if ask.what == "load_adapter":
                self._adapters.check_new(ask.name)
            elif ask.what == "unload_adapter":
                to_engine = msgspec.structs.replace(ask, name=self._adapters.remove(ask.name).hex())
        except BanyanError as e:
            self._send(client, wire.Answer(id=ask.id, ok=False, body=e.message.encode()))
            return ()
        self._forward(client, ask, to_engine)
        return ()

    def _tell_programs(self, client: Client, ask: wire.Ask) -> Iterator[None]:
        overview = yield from self._programs()
        self._send(client, wire.Answer(id=ask.id, ok=True, body=msgspec.json.encode(overview)))

    def reload_adapters(self) -> None:
        """Have a new engine load the adapters. Called before requests are sent to it."""
        for name in self._adapters:
            ask = wire.Ask(0, "load_adapter", name=name, path=self._adapters.directory(name))
            self._forward(OURSELVES, ask, ask)

    def _forward(self, client: Client, ask: wire.Ask, to_engine: wire.Ask) -> None:
        self._n_open[client] += 1
        self._open[self._n_asked] = client, ask
        self._send_to_engine(msgspec.structs.replace(to_engine, id=self._n_asked))
        self._n_asked += 1

    def receive(self, answer: wire.Answer) -> None:
        """Handle the engine's answer to a question."""
        if (question := self._open.pop(answer.id, None)) is None:
            return
        client, ask = question
        self._close(client)
        ok, body = answer.ok, answer.body
        if ask.what == "load_adapter":
            ok, body = self._loaded(client, ask, answer)
        if ok and ask.what == "stats":
            counters = msgspec.json.decode(body) | self._stats()
            if client == OURSELVES:
                self._on_counters(counters)
                return
            body = msgspec.json.encode(counters)
        if ok and ask.what == "tree":
            self._offload(client, len(body), partial(self._with_text, body), partial(self._send_tree, client, ask))
            return
        if ok and ask.what == "check" and (violation := self._check()):
            ok, body = False, violation.encode()
        if client != OURSELVES:
            self._send(client, wire.Answer(id=ask.id, ok=ok, body=body))

    def _loaded(self, client: Client, ask: wire.Ask, answer: wire.Answer) -> tuple[bool, bytes]:
        """Give the name to an adapter that the engine has loaded. Returns what to answer."""
        if client == OURSELVES:
            if not answer.ok:  # its files are gone
                self._adapters.remove(ask.name)
                self._log(answer.body.decode())
                return answer.ok, answer.body
        else:
            try:
                self._adapters.check_new(ask.name)  # another client may have taken it
            except BanyanError as e:
                return False, e.message.encode()
        if answer.ok:
            self._adapters.add(ask.name, ask.path, bytes.fromhex(msgspec.json.decode(answer.body)))
        return answer.ok, answer.body

    def _send_tree(self, client: Client, ask: wire.Ask, body: bytes | Exception) -> None:
        found = body if isinstance(body, bytes) else repr(body).encode()
        self._send(client, wire.Answer(id=ask.id, ok=found is body, body=found))

    def fail(self, why: str) -> None:
        """Answer all open questions with the error `why`, because the engine has died."""
        while self._open:
            client, ask = self._open.popitem()[1]
            self._close(client)
            if client != OURSELVES:
                self._send(client, wire.Answer(id=ask.id, ok=False, body=why.encode()))

    def _close(self, client: Client) -> None:
        self._n_open[client] -= 1
        if not self._n_open[client]:
            del self._n_open[client]

    def _with_text(self, body: bytes) -> bytes:
        """A snapshot of the tree with `text` in place of `ids`, and tenant names in place of namespaces."""
        snapshot = msgspec.json.decode(body)
        for node in snapshot["nodes"]:
            node["text"] = self._tokenizer.text_of(node.pop("ids"))
            node["namespace"] = self._tenants.name(bytes.fromhex(node["namespace"]))
        return msgspec.json.encode(snapshot)
