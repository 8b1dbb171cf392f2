"""Engines that are asked questions, and what they and the clients get."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.questions import Questions
from banyan.runtime.server.policy.tenants import Tenant, Tenants
from banyan.runtime.server.text.tokenizer import Tokenizer


class AskedEngine:
    """An engine that is asked. asked: what it was sent. host: its machine, if that is another one."""

    def __init__(self, name: str, asked: list[Any], host: str = "") -> None:
        self.name, self.link = name, SimpleNamespace(send=asked.append, ready=None, host=host)
        self.is_open, self.weights = True, b""

    @property
    def is_ready(self) -> bool:
        return self.link.ready is not None


class Asked:
    """Questions, and what they send to the engine and to clients."""

    def __init__(self, words: Tokenizer, n_engines: int = 1) -> None:
        tenants = Tenants({})
        tenants.join(b"me", Tenant())
        tenants.join(b"guest", Tenant("guest", is_operator=False))
        self.to_engine: list[Any] = []
        self.engines = [AskedEngine(str(k), self.to_engine) for k in range(n_engines)]
        self.sent: list[Any] = []
        self.log: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.adapters = AdapterNames()
        self.questions = Questions(
            tenants,
            words,
            engines=self.engines,
            send=lambda client, message: self.sent.append(message),
            stats=dict,
            info=lambda is_operator: {},
            programs=dict,
            check=str,
            on_counters=lambda counters: None,
            change=lambda ask, then: None,
            offload=lambda client, n, work, then: None,
            adapters=self.adapters,
            refuse=lambda engine, why: self.refused.append((engine.name, why)),
            log=self.log.append,
        )

    def ask(self, what: Any, name: str, client: bytes = b"me") -> None:
        self.questions.ask(client, wire.Ask(7, what, name=name, path=f"/{name}"))

    def answer(self, digest: bytes = b"", error: str = "", at: int = -1, name: str = "0") -> None:
        body = error.encode() if error else json.dumps(digest.hex()).encode()
        self.questions.receive(wire.Answer(self.to_engine[at].id, not error, body), name)


class AskedPair(Asked):
    """Two engines, both ready."""

    def __init__(self, words: Tokenizer) -> None:
        super().__init__(words, 2)
        for engine in self.engines:
            engine.link.ready = "yes"
        self.questions._stats = lambda: {"replicas": {"0": {}, "1": {}}}

    def answers(self, what: Any, *bodies: Any, name: str = "") -> Any:
        """The answer to a question that the engines answer with these bodies."""
        n = len(self.to_engine)
        self.ask(what, name)
        for engine, body in zip("01", bodies, strict=True):
            self.questions.receive(wire.Answer(self.to_engine[n].id, True, json.dumps(body).encode()), engine)
        return json.loads(self.sent[-1].body)
