"""A server in one process, which is programs and a fake engine, driven step by step; and parts of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tokenizers
import zmq
from fake_link import add_engine

from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import decoders, wire
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.recovery import Death
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.programs.generation import EngineGenerator
from banyan.runtime.server.programs.programs import Programs
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.prompt import unpack
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer
from banyan.runtime.server.timers import Timers
from raw_peer import Peer


@pytest.fixture(scope="session")
def fake_engine(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).with_name("fake_engine.py"))


@pytest.fixture(scope="session")
def words_dir(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a tokenizer and no model."""
    path = tmp_path_factory.mktemp("words")
    tiny.make_tokenizer(path)
    return path


@pytest.fixture(scope="session")
def words(words_dir: Path) -> Tokenizer:
    return Tokenizer(words_dir, Files.read(words_dir))


@pytest.fixture(scope="session")
def marked(words_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer whose control tokens are not flagged as special, and with added tokens of plain text: four spaces and
    a word."""
    path = tmp_path_factory.mktemp("marked")
    tokenizer = tokenizers.Tokenizer.from_file(str(words_dir / "tokenizer.json"))
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>", "[INST]", "    ", "banyan"])
    tokenizer.save(str(path / "tokenizer.json"))
    return Tokenizer(path, Files.read(path))


@pytest.fixture(scope="session")
def chatml(words_dir: Path) -> ChatTemplate:
    files = Files.read(words_dir)
    assert files.template is not None
    return ChatTemplate(files.template, files.special_tokens)


@pytest.fixture
def peer_of() -> Iterator[Callable[..., Peer]]:
    """`peer_of(server)`: a new client of a server."""
    context: Any = zmq.Context()
    peers: list[Peer] = []

    def make(server: Any, **options: Any) -> Peer:
        peers.append(Peer(context, server.socket, **options))
        return peers[-1]

    yield make
    context.destroy(linger=0)


class Bench:
    """Programs of client b"me" and a FakeEngine. `say`: end of a prompt -> the model's output.

    `submit` does not run the engine; `run` does, until it is idle or after `n_steps`.
    """

    def __init__(
        self, fake: ModuleType, words: Tokenizer, template: ChatTemplate | None, say: dict[str, str], **options: Any
    ) -> None:
        self.words, self.say = words, dict(say)
        self.engine = fake.FakeEngine(self._speak)
        self.sent: list[tuple[bytes, wire.ServerMessage]] = []
        self.held: list[Callable[[], None]] | None = None
        """If set to a list, it collects work that encodes, as a thread's queue would."""
        self.checks: list[Any] | None = None
        """If set to a list, it collects constraint checks as the queue of another process would."""
        self._calls: list[Callable[[], None]] = []
        self.requests = EngineRequests(words, None, call_later=self._calls.append)
        self.replica = add_engine(self.requests, self.engine.take)
        self.adapters = AdapterNames()
        generator = EngineGenerator(
            words, template, self.requests, self._offload, Random(0), self._check, self.adapters
        )
        self.now = 0.0
        self.timers = Timers(lambda: self.now)
        self._work: deque[Iterator[None]] = deque()
        """What programs that paused have left to do."""
        self.programs = Programs(
            generator,
            lambda client, message: self.sent.append((client, message)),
            self.timers,
            later=lambda client, steps: self._work.append(steps),
            **options,
        )
        self._seq: dict[int, int] = {}

    def _speak(self, ids: list[int]) -> Iterable[int]:
        text = self.words.text_of(ids)
        for key in sorted(self.say, key=len, reverse=True):
            if text.endswith(key):
                return self.words.encode([TextSpan(self.say[key], meant=True)])
        return [68] * 1000

    def _check(
        self, spec: wire.ConstraintSpec, owner: int, then: Callable[[wire.ConstraintSpec | BanyanError], None]
    ) -> None:
        if self.checks is None:
            then(spec)
        else:
            self.checks.append((spec, owner, then))

    def _offload(
        self, client: int, n_chars: int, work: Callable[[], Any], then: Callable[[Any], None], has_images: bool = False
    ) -> None:
        def run_work() -> None:
            n_sent = len(self.sent)
            try:
                result = work()
            except Exception as e:
                result = e
            assert len(self.sent) == n_sent, "work on a thread may not use the socket"
            then(result)

        if self.held is None:
            run_work()
        else:
            self.held.append(run_work)

    def submit(self, *ops: wire.Op, program: int = 0, last: bool = False, client: bytes = b"me") -> None:
        seq = self._seq.get(program, 0)
        self._seq[program] = seq + 1
        self.send(wire.Submit(program=program, seq=seq, ops=ops, last=last, name="test"), client)
        assert self.programs.check() == ""

    def send(self, message: wire.Submit | wire.Define, client: bytes = b"me") -> None:
        match decoders.decode_sliced(wire.encode(message)):
            case wire.SlicedSubmit() as submit:
                self._do(self.programs.submit(client, submit))
            case wire.SlicedDefine() as define:
                self._do(self.programs.define(client, define))

    def leave(self, client: bytes = b"me") -> None:
        self._do(self.programs.forget(client))

    def _do(self, *work: Iterator[None]) -> None:
        """Do this work and what paused programs have left to do, in turn."""
        self._work += work
        while self._work:
            for _ in (steps := self._work.popleft()):
                self._work.append(steps)
                break

    def run(self, n_steps: int = 10_000) -> None:
        for _ in range(n_steps):
            while self._calls:
                self._calls.pop(0)()
            reports = self.engine.step()
            if not reports:
                return
            for report in reports:
                if isinstance(report, wire.Step):
                    deque(self.requests.take(report, self.replica), 0)
                elif isinstance(report, wire.Failed):
                    self.requests.refused(report, self.replica)
            self._do()
            assert self.programs.check() == ""

    def replace_engine(self, death: Death) -> None:
        """The engine dies with everything it runs, and another takes over."""
        self.engine.running.clear()
        self.engine.reports.clear()
        self.engine.finished.clear()
        self.requests.replay(self.replica, death)

    def messages(self, kind: type, program: int = 0) -> list[Any]:
        return [m for _, m in self.sent if isinstance(m, kind) and m.program == program]

    def value(self, ref: int, program: int = 0) -> wire.Value:
        (value,) = [m for m in self.messages(wire.Value, program) if m.ref == ref]
        return value

    def text(self, ref: int, program: int = 0) -> str:
        return self.value(ref, program).samples[0].text

    def failed(self, ref: int | None, program: int = 0) -> wire.Failed:
        (failed,) = [m for m in self.messages(wire.Failed, program) if m.ref == ref]
        return failed

    def prompts(self) -> list[str]:
        """The text of each prompt that the engine received."""
        return [self.words.text_of(unpack(run.ids)) for run in self.engine.runs]

    def ids(self, k: int = -1) -> list[int]:
        """The ids of the k-th prompt that the engine received."""
        return unpack(self.engine.runs[k].ids)


@pytest.fixture
def bench(fake_engine: ModuleType, words: Tokenizer, chatml: ChatTemplate) -> Callable[..., Bench]:
    """`bench({"end of a prompt": "output"}, template=..., tokenizer=..., **options of Programs) -> Bench`"""

    def make(
        say: dict[str, str] | None = None,
        template: ChatTemplate | None = chatml,
        tokenizer: Tokenizer = words,
        **options: Any,
    ) -> Bench:
        return Bench(fake_engine, tokenizer, template, say or {}, **options)

    return make


@pytest.fixture
def greedy() -> Callable[..., wire.Sampling]:
    return lambda **options: wire.Sampling(**{"temperature": 0.0, "max_tokens": 64} | options)


@pytest.fixture
def role() -> SimpleNamespace:
    """`role.user("hi")`: the parts of a turn."""

    def turn(name: str) -> Callable[..., tuple[wire.Part, ...]]:
        return lambda *parts: (wire.BeginTurn(name), *parts, wire.EndTurn())

    return SimpleNamespace(**{name: turn(name) for name in ("system", "user", "assistant", "tool")})
