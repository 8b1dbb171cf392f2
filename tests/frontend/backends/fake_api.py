"""A scripted server of OpenAI's HTTP API on the loopback interface."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


class Refusal(Exception):
    """An HTTP error as an answer."""

    def __init__(self, status: int, message: str = "no", code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class FakeApi:
    """answer(path, body) -> the JSON of the response, or a list of chunks if body["stream"]. It may raise Refusal.

    n_active, n_most: the number of active requests, and its maximum.
    """

    def __init__(self, answer: Callable[[str, Body], Any]) -> None:
        self.answer = answer
        self.bodies: list[Body] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.n_active = self.n_most = 0
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, api: FakeApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.api.paths.append(self.path)
        self.server.api.headers.append({key.lower(): value for key, value in self.headers.items()})
        self._answer({})

    def do_POST(self) -> None:
        if self.path == "/v1/programs":  # only Banyan's own server has it
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(404, b"{}")
            return
        api, body = self.server.api, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api.bodies.append(body)
        api.paths.append(self.path)
        api.headers.append({key.lower(): value for key, value in self.headers.items()})
        api.n_active += 1
        api.n_most = max(api.n_most, api.n_active)
        try:
            self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client left
        finally:
            api.n_active -= 1

    def _answer(self, body: Body) -> None:
        try:
            response = self.server.api.answer(self.path, body)
        except Refusal as e:
            error = {"error": {"message": str(e), "code": e.code, "type": "x", "param": None}}
            self._send(e.status, json.dumps(error).encode(), **e.headers)
            return
        if body.get("stream"):
            self._stream(response)
        else:
            self._send(200, json.dumps(response).encode())

    def _stream(self, chunks: Iterable[Body | float]) -> None:
        """Floats among the chunks are pauses in seconds."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for chunk in chunks:
            if isinstance(chunk, float):
                time.sleep(chunk)
                continue
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def chat(*texts: str, finish: str = "stop", usage: Body | None = None, **message: Any) -> Body:
    """A chat completion."""
    messages = [{"role": "assistant", "content": text, **message} for text in texts]
    choices = [{"finish_reason": finish, "message": one} for one in messages]
    return _response("chat.completion", choices, usage or {"prompt_tokens": 9, "completion_tokens": 2})


def completion(*texts: str, logprobs: list[Any] | None = None) -> Body:
    """A completion."""
    pairs = zip(texts, logprobs or [None] * len(texts), strict=True)
    choices = [{"finish_reason": "length", "text": text, "logprobs": one} for text, one in pairs]
    return _response("text_completion", choices, {"prompt_tokens": 5, "completion_tokens": 3})


def _response(kind: str, choices: list[Body], usage: Body) -> Body:
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    return {
        "id": "1",
        "object": kind,
        "created": 0,
        "model": "m",
        "choices": [{"index": i, **choice} for i, choice in enumerate(choices)],
        "usage": {"total_tokens": total, **usage},
    }


def scored(prompt: str, logprob_of: Callable[[str], float]) -> Body:
    """Log-probabilities of the words of a prompt, as `echo` returns them."""
    tokens, offsets, offset = [], [], 0
    for word in re.findall(r" ?[^ ]+", prompt):
        tokens.append(word)
        offsets.append(offset)
        offset += len(word)
    return {
        "tokens": tokens,
        "token_logprobs": [None, *(logprob_of(token) for token in tokens[1:])],
        "top_logprobs": None,
        "text_offset": offsets,
    }
