"""The language over a real socket to a server with a Mock: no model, no torch, but the whole path between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from msgspec.structs import replace

import banyan as bn
from banyan.runtime.protocol import decoders, ipc, wire
from waits import wait_until


class MockServer:
    """Answers the messages of a client like a server, with the answers of a Mock."""

    def __init__(self, path: Path, mock: bn.Mock) -> None:
        self.path, self.mock = path, mock
        self.programs: dict[int, Any] = {}
        self.n_out: dict[int, int] = {}
        self.cancelled: list[int] = []
        self.is_silent_to_programs = False
        self._stop = threading.Event()
        self._bound = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._bound.wait(10)

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(ipc.address(self.path))
            self._bound.set()
            while not self._stop.is_set():
                if socket.poll(5):
                    identity, data = socket.recv_multipart()
                    for answer in self._answers(decoders.decode_client(data)):
                        socket.send_multipart([identity, wire.encode(answer)])

    def _answers(self, message: Any) -> Iterator[Any]:
        match message:
            case wire.Hello():
                yield msgspec.structs.replace(self.mock.welcome, model="behind a socket")
            case wire.Ping():
                yield wire.Pong()
            case wire.Ask(id=number, what=what):
                yield wire.Answer(number, True, msgspec.json.encode(self.mock.ask(what)))
            case wire.Cancel(program=number):
                self.cancelled.append(number)
            case wire.Submit(program=number) if not self.is_silent_to_programs:
                yield from self._run_ops(number, message)

    def _run_ops(self, number: int, message: wire.Submit) -> Iterator[Any]:
        program = self.programs.setdefault(number, self.mock.program(message.name))
        deltas: dict[int, list[wire.Delta]] = {}
        for op in message.ops:
            if isinstance(op, wire.Gen) and op.stream:
                program.on_delta(op.ref, deltas.setdefault(op.ref, []).append)
        program.submit(message.ops, message.last)
        for op in message.ops:
            if isinstance(op, wire.Gen | wire.Select | wire.Read):
                for delta in deltas.get(op.ref, ()):
                    yield replace(delta, program=number, seq=self._next(number))
                future = program.future(op.ref)
                if (error := future.exception()) is None:
                    yield msgspec.structs.replace(future.result(), program=number, seq=self._next(number))
                else:
                    tail = getattr(error, "prompt_tail", "")
                    yield wire.Failed(number, self._next(number), error.code, error.message, op.ref, tail)

    def _next(self, number: int) -> int:
        self.n_out[number] = self.n_out.get(number, -1) + 1
        return self.n_out[number]

    def close(self) -> None:
        self._stop.set()
        self.thread.join(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MockServer]:
    def script(prompt: str, name: str) -> str:
        if name == "bad":
            raise OSError("failure of the backend")
        return f"<{name}> and more"

    mock_server = MockServer(tmp_path / "s", bn.Mock(script))
    yield mock_server
    mock_server.close()


@bn.function
def program(s: bn.State) -> None:
    s += bn.user("hi") + bn.assistant(bn.gen("a"))
    forks = s.fork(2)
    forks += lambda i: f"{i}"
    forks += bn.gen("b")
    forks.join("concate_and_append")
    forks.join()
    s += [s.ref("a"), bn.select("c", ["<c> and more", "x"])]


def test_program_over_a_socket_gives_the_same_state_as_directly(server: MockServer) -> None:
    with bn.connect(server.path) as endpoint:
        assert repr(endpoint) == f"<RuntimeEndpoint behind a socket at {server.path}>"
        direct = program.run(backend=bn.Mock(server.mock._script))
        for state in (
            program.run(backend=endpoint),
            program.run(backend=bn.RuntimeEndpoint(f"ipc://{server.path}")),
            program.run(backend=endpoint, stream=True),
            *program.run_batch([()] * 20, backend=endpoint),
        ):
            assert state.text() == direct.text()
            assert state["b"] == direct["b"]
            assert state.messages() == direct.messages()
            assert "".join(state.text_iter()) == direct.text()
        assert list(program.run(backend=endpoint, stream=True).text_iter("a")) == ["<a> ", "and ", "more"]
        assert bn.get_server_info(endpoint)["model"] == "mock"
        assert bn.flush_cache(endpoint)


def test_endpoint_refuses_what_its_model_lacks(server: MockServer) -> None:
    with bn.connect(server.path) as endpoint:
        assert endpoint.refuses == {"image"}
        chat = endpoint.welcome.chat
        assert chat is not None
        for welcome, refused in (
            (replace(endpoint.welcome, images=True), set()),
            (replace(endpoint.welcome, chat=replace(chat, no_calls="no tools")), {"image", "tools"}),
            (replace(endpoint.welcome, chat=None), {"image", "tools", "roles"}),
        ):
            endpoint.welcome = welcome
            assert endpoint.refuses == refused


def test_chat_template_can_be_read_but_not_assigned(server: MockServer) -> None:
    with bn.connect(server.path) as endpoint:
        assert endpoint.chat_template == endpoint.get_chat_template()
        assert endpoint.chat_template.name == endpoint.get_model_name()
        with pytest.raises(bn.Unsupported, match="chat_template cannot be assigned"):
            endpoint.chat_template = "chatml"


def test_endpoints_of_a_socket_share_one_connection(server: MockServer) -> None:
    for _ in range(20):
        with bn.connect(server.path) as first, bn.connect(server.path) as second:
            assert first.client is second.client


def test_closed_endpoint_leaves_the_other_endpoints_open(server: MockServer) -> None:
    open_endpoint = bn.connect(server.path)
    with bn.connect(server.path) as closed_endpoint:
        pass
    assert program.run(backend=open_endpoint)["a"] == "<a> and more"
    closed_endpoint.close()
    with pytest.raises(bn.RuntimeLost, match=r"RuntimeEndpoint .* was closed"):
        program.run(backend=closed_endpoint)
    del closed_endpoint
    open_endpoint.close()
    with pytest.raises(bn.RuntimeLost):
        open_endpoint.ask("info")
    with bn.connect(server.path) as new_endpoint:
        assert new_endpoint.ask("info")["model"] == "mock"


def test_failure_names_program_gen_line_and_prompt_over_a_socket(server: MockServer) -> None:
    @bn.function
    def fails(s: bn.State) -> None:
        s += "prompt" + bn.gen("bad") + bn.gen("after")

    with bn.connect(server.path) as endpoint:
        for stream in (False, True):
            state = fails.run(backend=endpoint, stream=stream)
            with pytest.raises(bn.ProgramError, match="failure of the backend") as raised:
                state["after"]
            error = raised.value
            line = f"test_runtime.py:{fails.func.__code__.co_firstlineno + 2}"
            assert (error.program, error.gen, error.line, error.prompt_tail) == ("fails", "bad", line, "prompt")


def test_unreferenced_state_is_cancelled_on_the_server(server: MockServer) -> None:
    with bn.connect(server.path) as endpoint:
        state = program.run(backend=endpoint)
        state.sync()
        del state
        wait_until(lambda: server.cancelled, "the cancellation")


READS: dict[str, Callable[[bn.State], Any]] = {
    "a value": lambda s: s["a"],
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "text_iter": lambda s: list(s.text_iter()),
    "joined value": lambda s: s["b"],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("stream", [False, True])
def test_lost_server_raises_runtime_lost(server: MockServer, read: str, stream: bool) -> None:
    server.is_silent_to_programs = True
    with bn.connect(server.path) as endpoint:
        state = program.run(backend=endpoint, stream=stream)
        threading.Timer(0.03, server.close).start()
        with pytest.raises(bn.RuntimeLost, match="gone"):
            READS[read](state)
        assert isinstance(state.error(), bn.RuntimeLost)
        assert [type(s.error()) for s in program.run_batch([()] * 3, backend=endpoint, on_error="return")] == [
            bn.RuntimeLost
        ] * 3


def test_lost_server_fails_every_item_of_a_batch(server: MockServer) -> None:
    server.is_silent_to_programs = True
    with bn.connect(server.path) as endpoint:
        threading.Timer(0.03, server.close).start()
        with pytest.raises(bn.BatchError, match="300 of 300 items failed") as raised:
            program.run_batch([()] * 300, backend=endpoint)
        assert isinstance(raised.value.__cause__, bn.RuntimeLost)


def test_runtime_starts_and_closes_its_server(server: MockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from banyan.runtime import launch

    class Process:
        socket, report, n_closed = server.path, ("on a CPU",), 0

        def close(self) -> None:
            self.n_closed += 1

    process, starts = Process(), []

    def start(config: Any, timeout: float) -> Process:
        starts.append((config, timeout))
        return process

    monkeypatch.setattr(launch, "start", start)
    with bn.Runtime("a/model", device="cpu", launch_timeout=5.0) as runtime:
        assert program.run(backend=runtime)["a"] == "<a> and more"
        assert (runtime.report, runtime.socket) == (("on a CPU",), server.path)
        assert repr(runtime) == f"<Runtime behind a socket at {server.path}>"
    assert process.n_closed == 1
    ((config, timeout),) = starts
    assert (config.model, config.device, timeout) == ("a/model", "cpu", 5.0)
    with pytest.raises(bn.RuntimeLost, match="closed"):
        program.run(backend=runtime)["a"]
    bn.Runtime().shutdown()
    assert starts[1][0].model == "pocket"
    assert process.n_closed == 2


@pytest.mark.parametrize(
    ("construct", "error", "message"),
    [
        (lambda path: bn.Runtime(kv_memry="1GB"), bn.ConfigError, "did you mean 'kv_memory'"),
        (lambda path: bn.connect(path / "none"), bn.ConnectFailed, "none"),
        (lambda path: bn.connect(""), bn.ConfigError, "empty"),
        (lambda path: bn.RuntimeEndpoint("http://127.0.0.1:9", timeout=3), bn.ConnectFailed, "banyan serve.*Runtime"),
        (lambda path: bn.RuntimeEndpoint("https://x", verify="x"), bn.Unsupported, "SSL_CERT_FILE"),
        (lambda path: bn.RuntimeEndpoint("https://x", chat_template_name="x"), bn.Unsupported, "chat_template_name"),
        (lambda path: bn.Runtime("m", model_path="m"), bn.ConfigError, "the same"),
        (lambda path: bn.Runtime(log_level="loud"), bn.ConfigError, "log_level is 'loud'"),
        (lambda path: bn.RuntimeEndpoint(path, api_key="x"), bn.Unsupported, "api_key"),
        (lambda path: bn.RuntimeEndpoint(path, verify="x"), bn.Unsupported, "verify"),
        (lambda path: bn.RuntimeEndpoint(path, chat_template_name="x"), bn.Unsupported, "chat_template_name"),
    ],
)
def test_invalid_endpoint_raises(tmp_path: Path, construct: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        construct(tmp_path)
