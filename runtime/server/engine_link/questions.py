"""Questions of clients about the server (wire.Ask). The engines answer most of them; the server adds its own data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import msgspec

from banyan.runtime.errors import BanyanError, ConfigError, EngineLost
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.adapters import AdapterNames, EngineAdapters
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess
from banyan.runtime.server.policy.tenants import Tenant, Tenants
from banyan.runtime.server.text.tokenizer import Tokenizer

Client = bytes

MAX_OPEN = 256
"""Maximum number of unanswered questions of one client. The server's own questions have no limit: the server asks a
question for each adapter that an engine loads again, and nobody would receive a refusal."""

OURSELVES = b""
"""Stands for the client in questions that the server itself asks."""


class _OpenQuestion:
    """A question that was forwarded. waiting: names of the engines that will answer."""

    def __init__(self, client: Client, ask: wire.Ask, waiting: Iterable[str]) -> None:
        self.client, self.ask, self.waiting = client, ask, set(waiting)
        self.answers: dict[str, wire.Answer] = {}  # by name


class Questions:
    """Questions that wait for the answers of engines. A question goes to the engines that are ready. It goes to all
    engines if it is about adapters, or if none is ready.

    engines: all engines. send: sends a message to a client. stats: returns what the server adds to the counters of the
    engines. info: returns the server's own data, given whether an operator asks. programs: makes an overview of the
    programs, step by step. check: describes a violated invariant of the server, or returns "". on_counters: gets the
    counters that the server itself asked for. change(ask, then): adds or drains an engine, or changes the weights, and
    calls `then` with "" or an error. offload(client, n, work, then): runs `work` on a thread if `n` is large, and then
    `then` on the loop, with its result or exception. adapters: the adapters that clients have loaded. refuse and log:
    see EngineAdapters.
    """

    def __init__(
        self,
        tenants: Tenants,
        tokenizer: Tokenizer,
        *,
        engines: Iterable[ReplicaProcess],
        send: Callable[[Client, wire.ServerMessage], None],
        stats: Callable[[], dict[str, Any]],
        info: Callable[[bool], dict[str, Any]],
        programs: Callable[[], Generator[None, None, Any]],
        check: Callable[[], str],
        on_counters: Callable[[dict[str, Any]], None],
        change: Callable[[wire.Ask, Callable[[str], None]], None],
        offload: Callable[[Client, int, Callable[[], Any], Callable[[Any], None]], None],
        adapters: AdapterNames,
        refuse: Callable[[ReplicaProcess, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._tenants, self._tokenizer = tenants, tokenizer
        self._engines, self._send, self._change = engines, send, change
        self._stats, self._info, self._check, self._on_counters = stats, info, check, on_counters
        self._programs = programs
        self._offload, self._adapters = offload, adapters
        self._open: dict[int, _OpenQuestion] = {}
        self._n_open: Counter[Client] = Counter()
        self._n_asked = 0
        self.engine_adapters = EngineAdapters(adapters, engines, self._ask_ourselves, self._loads, refuse, log)

    def ask(self, client: Client, ask: wire.Ask) -> Iterable[None]:
        """Handle a client's question: refuse it, answer it, or forward it to engines. Returns steps that the caller
        still has to run, one by one; only "programs" has any."""
        tenant = Tenant() if client == OURSELVES else self._tenants.tenant(client)
        if ask.what == "info":
            self._answer(client, ask, msgspec.json.encode(self._info(tenant.is_operator)))
            return ()
        try:
            if not tenant.is_operator:
                raise ConfigError(
                    f"{ask.what!r} concerns all tenants, and {tenant.name!r} is not an operator; see docs/security.md"
                )
            if client != OURSELVES and self._n_open[client] >= MAX_OPEN:
                raise ConfigError(f"{MAX_OPEN} questions of this client are open, which is the limit; wait for answers")
            if ask.what == "programs":
                return self._tell_programs(client, ask)
            if ask.what in ("drain", "add", "roll"):
                self._change(ask, lambda error: self._answer(client, ask, b"{}", error))
            else:
                self._ask_engines(client, ask)
        except BanyanError as e:
            self._answer(client, ask, b"", e.message)
        return ()

    def _answer(self, client: Client, ask: wire.Ask, body: bytes, error: str = "") -> None:
        self._send(client, wire.Answer(id=ask.id, ok=not error, body=error.encode() or body))

    def _tell_programs(self, client: Client, ask: wire.Ask) -> Iterator[None]:
        overview = yield from self._programs()
        self._answer(client, ask, msgspec.json.encode(overview))

    def _ask_engines(self, client: Client, ask: wire.Ask) -> None:
        """Forward a question to the engines that it concerns. Raises BanyanError if it makes no sense now."""
        engines, to_engine = list(self._engines), ask
        if ask.what == "load_adapter":
            self._adapters.check_new(ask.name)
        elif ask.what == "unload_adapter":
            to_engine = msgspec.structs.replace(ask, name=self.engine_adapters.remove(ask.name).hex())
        else:
            engines = [engine for engine in engines if engine.is_ready] or engines
        if ask.what == "events" and len(engines) > 1:
            engines = [engine for engine in engines if engine.name == ask.name]
        if not engines:
            raise ConfigError("each engine has its own events; name one engine (`banyan cluster status` lists them)")
        self._forward(client, ask, to_engine, engines)

    def _forward(self, client: Client, ask: wire.Ask, to_engine: wire.Ask, engines: Sequence[ReplicaProcess]) -> None:
        if not engines:
            return
        self._n_open[client] += 1
        self._open[self._n_asked] = _OpenQuestion(client, ask, [engine.name for engine in engines])
        to_engine = msgspec.structs.replace(to_engine, id=self._n_asked)
        self._n_asked += 1
        for engine in engines:
            engine.link.send(to_engine)

    def _ask_ourselves(self, ask: wire.Ask, engines: Sequence[ReplicaProcess]) -> None:
        self._forward(OURSELVES, ask, ask, engines)

    def _loads(self) -> list[tuple[str, set[str]]]:
        """(an adapter that is being loaded, the names of the engines that have not loaded it yet), for each question
        that is open."""
        found = (one for one in self._open.values() if one.ask.what == "load_adapter")
        return [(one.ask.name, one.waiting) for one in found]

    def receive(self, answer: wire.Answer, name: str) -> None:
        """Handle the answer of the engine `name` to a forwarded question. Once all engines that were asked have
        answered, answer the client."""
        if (question := self._open.get(answer.id)) is None or name not in question.waiting:
            return
        question.waiting.remove(name)
        question.answers[name] = answer
        if not question.waiting:
            self._conclude(answer.id)

    def _conclude(self, number: int) -> None:
        """Join the answers of all engines to the question `number`, and send the result to the client."""
        question = self._open.pop(number)
        client, ask, answers = question.client, question.ask, question.answers
        self._close(client)
        answer = next((one for one in answers.values() if not one.ok), next(iter(answers.values())))
        ok, body = answer.ok, answer.body
        if ask.what == "load_adapter":
            ok, body = self.engine_adapters.loaded(ask, answers, is_ours=client == OURSELVES)
        if ok and ask.what == "stats":
            counters = self._counters({name: msgspec.json.decode(one.body) for name, one in answers.items()})
            if client == OURSELVES:
                self._on_counters(counters)
                return
            body = msgspec.json.encode(counters)
        if ok and ask.what == "tree":
            bodies = {name: one.body for name, one in answers.items()}
            n_bytes = sum(map(len, bodies.values()))
            self._offload(client, n_bytes, partial(self._with_text, bodies), partial(self._send_tree, client, ask))
            return
        if ok and ask.what == "check" and (violation := self._check()):
            ok, body = False, violation.encode()
        if client != OURSELVES:
            self._send(client, wire.Answer(id=ask.id, ok=ok, body=body))

    def _counters(self, by_name: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The sums of the engines' counters, the counters of each engine under "replicas", and the server's own
        counters."""
        stats = reduce(_added, by_name.values()) | self._stats()
        if len(by_name) > 1:
            rates = [(one["cache"]["program_hit_rate"], one["cache"]["n_programs"]) for one in by_name.values()]
            n_programs = max(1, sum(n for _, n in rates))
            stats["cache"]["program_hit_rate"] = sum(rate * n for rate, n in rates) / n_programs
        for name, row in stats.get("replicas", {}).items():
            row |= {part: by_name.get(name, {}).get(part, {}) for part in ("engine", "cache")}
        return stats

    def _send_tree(self, client: Client, ask: wire.Ask, body: bytes | Exception) -> None:
        found = body if isinstance(body, bytes) else repr(body).encode()
        self._send(client, wire.Answer(id=ask.id, ok=found is body, body=found))

    def fail(self, name: str, why: str) -> None:
        """Stop waiting for the answers of an engine that has died or is replaced. Questions that no other engine
        answers fail with EngineLost(`why`)."""
        for number, question in list(self._open.items()):
            question.answers.pop(name, None)  # not true any more, and another engine may take the name
            if name not in question.waiting:
                continue
            question.waiting.remove(name)
            if question.waiting:
                continue
            if question.answers:
                self._conclude(number)
                continue
            del self._open[number]
            self._close(question.client)
            if question.client != OURSELVES:
                lost = wire.Answer(id=question.ask.id, ok=False, body=why.encode(), code=EngineLost.code)
                self._send(question.client, lost)
        self.engine_adapters.unload_unnamed(dead=name)

    def _close(self, client: Client) -> None:
        self._n_open[client] -= 1
        if not self._n_open[client]:
            del self._n_open[client]

    def _with_text(self, bodies: Mapping[str, bytes]) -> bytes:
        """Join the snapshots of the engines' trees into one, in JSON. bodies: engine -> its snapshot. In each node, the
        text and the number of its tokens (`text`, `n_shown`) replace `ids`, and the name of the tenant replaces the
        namespace. With several engines, only roots have a namespace, and it also names the engine."""
        whole: dict[str, Any] = {}
        nodes: list[dict[str, Any]] = []
        for name, body in bodies.items():
            snapshot = msgspec.json.decode(body)
            n_before = len(nodes)
            for node in snapshot.pop("nodes"):
                ids = node.pop("ids")
                node["text"], node["n_shown"] = self._tokenizer.text_of([i for i in ids if i >= 0]), len(ids)
                node["namespace"] = self._tenants.name(bytes.fromhex(node["namespace"]))
                if len(bodies) > 1:
                    is_root = node["parent"] < 0
                    node["namespace"] = f"{node['namespace']} on engine {name}".strip() if is_root else ""
                    node["parent"] += 0 if is_root else n_before
                nodes.append(node)
            whole = _added(whole, snapshot) | {"page": snapshot["page"]} if whole else snapshot
        return msgspec.json.encode(whole | {"nodes": nodes})


def _added(a: Any, b: Any) -> Any:
    """Add two nested dicts or lists of numbers, item by item. Values that are not numbers are taken from the first."""
    if isinstance(a, dict):
        return {key: _added(a[key], b[key]) if key in a and key in b else a.get(key, b.get(key)) for key in a | b}
    if isinstance(a, list | tuple):
        return [_added(one, other) for one, other in zip(a, b, strict=True)]
    return a + b if isinstance(a, int | float) else a
