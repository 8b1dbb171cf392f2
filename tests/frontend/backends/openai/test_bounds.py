"""A server of OpenAI's API that is faulty or hostile: bytes, lines, events, text and time have limits."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any

import pytest

import banyan as bn
from banyan.backends.openai.backend import served
from banyan.backends.openai.bounds import MAX_EVENT_LINES, AnswerLimits, BodyCounter, http_client
from banyan.runtime.errors import BanyanError, ConnectFailed, DeadlineExceeded, ProgramError
from forms import in_short

pytest.importorskip("openai")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n"
JSON, EVENTS = (HEAD % kind + b"\r\n" for kind in (b"application/json", b"text/event-stream"))
MIB = 1 << 20


class HostileServer:
    """Answers each request with the bytes that `answer()` yields, until the client closes. n_sent: bytes sent."""

    def __init__(self, answer: Callable[[], Iterator[bytes]]) -> None:
        self._answer = answer
        self.n_sent = self.n_requests = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer = self._socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(1 << 16)
                self.n_requests += 1
                for data in self._answer():
                    peer.sendall(data)
                    self.n_sent += len(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):  # closing before all was read resets the connection
                    pass
            except OSError:
                pass

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def hostile() -> Iterator[Callable[..., tuple[HostileServer, bn.OpenAI]]]:
    """`hostile(answer, **options of OpenAI)`: a server, and a backend that uses it."""
    opened: list[Any] = []

    def start(answer: Callable[[], Iterator[bytes]], **options: Any) -> tuple[HostileServer, bn.OpenAI]:
        server = HostileServer(answer)
        backend = bn.OpenAI("m", base_url=server.url, api_key="key", **{"max_retries": 0} | options)
        opened.extend((server, backend))
        return server, backend

    yield start
    for one in opened:
        one.close()


def run(backend: bn.OpenAI, stream: bool = False, **options: Any) -> str:
    @bn.function
    def chat(s: bn.State) -> None:
        s += bn.user("6*7?") + bn.assistant(bn.gen("a", **{"max_tokens": 8} | options))

    return str(chat.run(opts=bn.Options(backend=backend, stream=stream))["a"])


def event(text: str, field: str = "content", finish: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": {field: text}, "finish_reason": finish}]
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}
    return b"data: %s\n\n" % json.dumps(chunk).encode()


def endless(head: bytes, data: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: chain((head,), repeat(data))


CASES = {
    "body": (endless(JSON + b'{"id": "', b"x" * 65536), False, "more bytes than"),
    "line": (endless(EVENTS + b'data: {"id": "', b"x" * 65536), True, "more bytes in a line"),
    "comments": (endless(EVENTS, b": ping\n\n" * 4096), True, "more bytes than"),
    "events": (endless(EVENTS, event("") * 64), True, "more events"),
    "lines": (endless(EVENTS, b"data:\n" * 4096), True, "more lines in an event"),
    "text": (endless(EVENTS, event("x" * 4096)), True, "more characters of text"),
    "reasoning": (endless(EVENTS, event("x" * 4096, "reasoning_content")), True, "more characters of text"),
    "error": (endless(b"HTTP/1.1 400 no\r\nConnection: close\r\n\r\n", b"x" * 65536), False, "more bytes"),
}


@pytest.mark.parametrize("case", in_short(["body", "line", "lines", "text", "reasoning", "error"], CASES))
def test_endless_answer_is_an_error(hostile: Any, case: str) -> None:
    answer, stream, error = CASES[case]
    server, backend = hostile(answer, max_retries=2)
    with pytest.raises(ProgramError, match=error) as raised:
        run(backend, stream)
    assert server.url in raised.value.message
    assert server.n_requests == 1, "it is not asked again"
    assert server.n_sent < 16 * MIB, "with what lies in the buffers of the sockets"


CALL = b'"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]'
CUT = {
    "text": event("Paris lies") + event(" on"),
    "text that looks like an end": event("[DONE]\ndata: [DONE]"),
    "call": event("").replace(b'"content": ""', CALL),
}


@pytest.mark.parametrize("case", CUT)
def test_stream_that_was_cut_is_an_error(hostile: Any, case: str) -> None:
    _, backend = hostile(lambda: iter((EVENTS, CUT[case])))
    with pytest.raises(ProgramError, match="ended its answer in the middle"):
        run(backend, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_connection_that_the_server_closes_fails_one_request(hostile: Any, stream: bool) -> None:
    head = EVENTS if stream else JSON
    _, backend = hostile(lambda: iter((head.replace(b"\r\n\r\n", b"\r\nContent-Length: 999\r\n\r\n"), event("42"))))
    with pytest.raises(ProgramError, match=r"ended the connection|RemoteProtocolError"):  # old versions of `openai`
        run(backend, stream)


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n", event("", finish="stop")])
def test_stream_ends_with_done_or_a_finish_reason(hostile: Any, end: bytes) -> None:
    _, backend = hostile(lambda: iter((EVENTS, event("42"), end[:8], end[8:])))
    assert run(backend, stream=True) == "42"


@pytest.mark.parametrize("case", in_short(["text", "line"], [case for case in CASES if CASES[case][1]]))
def test_stream_that_was_given_up_leaves_no_generator(hostile: Any, case: str) -> None:
    """Python's garbage collector would end it in any thread, even while the thread of the requests runs it."""
    answer, stream, error = CASES[case]
    _, backend = hostile(answer)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ProgramError, match=error):
            run(backend, stream)
        started = time.monotonic()
        while (n_left := sum(map(is_open, gc.get_objects()))) and time.monotonic() < started + 5:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert n_left == 0


def is_open(value: object) -> bool:
    return isinstance(value, AsyncGeneratorType) and value.ag_frame is not None


def test_endless_headers_are_an_error(hostile: Any) -> None:
    server, backend = hostile(endless(HEAD % b"application/json", b"X-A: %s\r\n" % (b"x" * 999)))
    with pytest.raises(ProgramError, match="ended the connection"):
        run(backend)
    assert server.n_sent < 16 * MIB


def test_compressed_answer_is_refused(hostile: Any) -> None:
    bomb = zlib.compress(b" " * (8 * MIB), wbits=31)
    server, backend = hostile(lambda: iter([HEAD % b"application/json" + b"Content-Encoding: gzip\r\n\r\n" + bomb]))
    with pytest.raises(ProgramError, match=r"compressed its answer \('gzip'\)"):
        run(backend)
    assert server.n_requests == 1


@pytest.mark.parametrize("stream", [False, True])
def test_answer_that_never_ends_times_out(hostile: Any, stream: bool) -> None:
    def drip() -> Iterator[bytes]:
        yield EVENTS if stream else JSON
        while True:
            yield b":\n\n" if stream else b" "
            time.sleep(0.01)

    _, backend = hostile(drip, timeout=0.1)
    with pytest.raises(DeadlineExceeded, match="did not end its answer in time"):
        run(backend, stream)


def test_list_of_models_is_bounded(hostile: Any) -> None:
    server, _ = hostile(endless(JSON, b"x" * 65536))
    with pytest.raises(ConnectFailed, match="more bytes"):
        served(server.url, "key")
    assert server.n_sent < 64 * MIB


@pytest.mark.parametrize("count", ['"many"', "-1", "1e400", "[1]", "null", "9" * 30])
def test_counts_that_are_no_counts_are_zero(hostile: Any, count: str) -> None:
    body = '{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}], '
    body += f'"usage": {{"prompt_tokens": {count}, "completion_tokens": {count}, "total_tokens": 1}}}}'
    _, backend = hostile(lambda: iter([JSON + body.encode()]))
    assert run(backend) == "42"
    assert repr(backend.token_usage) == "TokenUsage(prompt_tokens=0, completion_tokens=0)"


@pytest.mark.parametrize("body", ['{"choices": 7}', '{"choices": [{"index": {}}]}', "[" * 100_000, "7", "", "\\ud800"])
def test_answer_of_another_shape_is_an_error(hostile: Any, body: str) -> None:
    _, backend = hostile(lambda: iter([JSON + body.encode()]))
    with pytest.raises(BanyanError):
        run(backend)


def test_limits_follow_the_request() -> None:
    small = AnswerLimits.of({"max_tokens": 16})
    large = AnswerLimits.of({"max_completion_tokens": 1 << 20, "n": 4})
    assert small.n_bytes < 2 * MIB
    assert large.n_chars > 1 << 29
    assert all(a < b for a, b in zip(small, large, strict=True))
    with_logprobs = AnswerLimits.of({"max_tokens": 1000, "logprobs": True, "top_logprobs": 20})
    assert with_logprobs.n_bytes > 5_000_000
    echoed = AnswerLimits.of({"max_tokens": 0, "echo": True, "logprobs": 1, "prompt": ["x" * 10_000] * 10})
    assert echoed.n_bytes > 50_000_000


def test_lines_and_events_may_arrive_in_any_pieces() -> None:
    data = (b"data: 1\r\n\r\n" + b"data: 2\n\n" + b"data: 3\r\r") * MAX_EVENT_LINES
    data += b"data: 4\r\n" * MAX_EVENT_LINES
    for n in (1, 3, 1 << 16):
        counter = BodyCounter(AnswerLimits(n_line=16))
        for i in range(0, len(data), n):
            counter.count(data[i : i + n])


def test_clients_share_the_certificates_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    reads: list[Any] = []
    load = ssl.SSLContext.load_verify_locations

    def load_noted(context: ssl.SSLContext, *args: Any, **named: Any) -> None:
        reads.append(named or args)
        load(context, *args, **named)

    http_client()
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load_noted)
    http_client()
    assert not reads
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(FileNotFoundError):
        http_client()
