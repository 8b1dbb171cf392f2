"""The HTTP process: who may come in, what it does with broken requests, and what hang-ups leave."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import psutil
import pytest

from banyan.runtime import config, launch
from banyan.runtime.errors import ConfigError, ConnectFailed, Overloaded
from banyan.runtime.gateway import info
from banyan.runtime.gateway.endpoint import Endpoint, EndpointApp, EventReply, HTTPRequest, Reply
from banyan.runtime.gateway.gateway import Gateway
from banyan.runtime.server_metrics import Family
from raw_http import connect, encode, exchange, post, status
from waits import wait_until

PATH = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Hi, who are you?"}]
EVICTED = 'evicted_pages_total{reason="unused"}'
LONG = {"model": "pocket", "messages": QUESTION, "temperature": 0, "max_tokens": 1500, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 2}


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


# ---- who may come in -------------------------------------------------------------------------------------------------


def test_everything_but_health_needs_a_key(guarded: str) -> None:
    assert post(guarded, "/health", b"", method="GET")[0] == 200
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/tokenize"), ("POST", PATH)):
        for headers in ("", bearer("wrong"), bearer(""), "x-api-key: wrong\r\n"):
            assert post(guarded, path, b"", headers, method)[0] == 401
    found, data = post(guarded, "/v1/messages", {})
    assert (found, json.loads(data)["error"]["type"]) == (401, "authentication_error")
    for headers in (bearer("key-of-ann-0123456789"), "x-api-key: other-key-of-ann-0123\r\n"):
        assert post(guarded, "/v1/models", b"", headers, "GET")[0] == 200


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ann abcdefgh#ijklmnop # of Ann", "abcdefgh#ijklmnop"),
        ("# all\nann ann-0123456789abc\nops ops#0123456789abc operator", "ops#0123456789abc"),
    ],
)
def test_it_takes_the_token_of_an_operator(token_file: Callable[..., str], text: str, found: str) -> None:
    assert config.operator_token(Path(token_file(text))) == found
    assert found in {word for _, words in config.token_lines(text) for word in words}


def test_tenants_and_users_share_no_kv(guarded: str) -> None:
    def n_cached(key: str, user: str, salt: str = "", **more: str) -> int:
        body = SHORT | {"messages": [{"role": "user", "content": "Is KV of tenants apart?"}]}
        body |= {"user": user, "cache_salt": salt} | more
        found, data = post(guarded, PATH, body, bearer(key))
        assert found == 200, data
        return int(json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"])

    ann, bob = "key-of-ann-0123456789", "key-of-bob-0123456789"
    assert n_cached(ann, "1") == 0
    assert n_cached(ann, "1") > 5
    assert n_cached("other-key-of-ann-0123", "1") > 5
    assert n_cached(ann, "2") == n_cached(bob, "1") == 0
    assert [n_cached(ann, *one) for one in (("c", "a/b"), ("b/c", "a"), ("a/b/c", ""), ("", "a/b/c"))] == [0] * 4
    assert n_cached(ann, "b/c", "a") > 5
    for name in ("prompt_cache_key", "safety_identifier"):
        more = {name: "app"}
        assert n_cached(ann, "3", **more) == n_cached(ann, "4", **more) == n_cached(ann, "", **more) == 0
        assert n_cached(ann, "3", **more) > 5

    def n_cached_by_messages(user: str) -> int:
        body = {
            "model": "pocket",
            "messages": [{"role": "user", "content": "Is KV of tenants apart?"}],
            "max_tokens": 1,
        }
        found, data = post(guarded, "/v1/messages", body | {"metadata": {"user_id": user}}, bearer(ann))
        assert found == 200, data
        return int(json.loads(data)["usage"]["cache_read_input_tokens"])

    assert n_cached_by_messages("1") > 5
    assert n_cached_by_messages("5") == 0
    assert n_cached_by_messages("5") > 5


def test_an_identifier_that_isolates_nobody_is_named(url: str, guarded: str) -> None:
    more = {"max_output_tokens": 1, "input": "Hi"}
    for path, body in ((PATH, SHORT), ("/v1/responses", {"model": "pocket", **more})):
        data = json.dumps(body | {"safety_identifier": "id", "prompt_cache_key": "k"}).encode()
        for base, named in ((url, "safety_identifier"), (guarded, None)):
            request = urllib.request.Request(base + path, data, {"authorization": "Bearer key-of-ann-0123456789"})
            with urllib.request.urlopen(request, timeout=30) as response:
                assert response.headers["x-banyan-ignored"] == named


def test_a_response_belongs_to_its_tenant(guarded: str) -> None:
    ann, bob = bearer("key-of-ann-0123456789"), bearer("key-of-bob-0123456789")
    body = {"model": "pocket", "input": "Hi", "max_output_tokens": 2}
    _, data = post(guarded, "/v1/responses", body, ann)
    path = f"/v1/responses/{json.loads(data)['id']}"
    assert post(guarded, path, b"", bob, "GET")[0] == 404
    assert post(guarded, path, b"", ann, "GET")[0] == 200


def test_other_origins_are_refused_unless_named(url: str, guarded: str) -> None:
    ask = b"GET /health HTTP/1.1\r\nhost: localhost\r\norigin: https://a.example\r\nconnection: close\r\n\r\n"
    assert b"access-control-allow-origin" not in exchange(url, ask)
    assert b"access-control-allow-origin: https://a.example" in exchange(guarded, ask)


def test_it_does_not_start_where_it_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(address: str) -> None:
        launch.start_gateway(config.HTTPConfig(socket=str(tmp_path / "none"), address=address)).close()

    with pytest.raises(ConfigError, match="set http_keys"):
        start("0.0.0.0:0")
    with pytest.raises(ConnectFailed):
        start("0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'banyan\[http\]'"):
        start("0")


# ---- broken requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "allowed"),
    [
        (b"nonsense\r\n\r\n", {400}),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n", {400}),
        (
            b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            {400},
        ),
        (b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!", {400}),
        (b"POST /x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n", {400, 404}),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", {400}),
        (b"GET /v1/models/%ff%00 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", {400, 404}),
        (encode(PATH, b"\xff\xfe", "connection: close\r\n"), {400}),
        (encode(PATH, b"[" * 100_000, "connection: close\r\n"), {400}),
        (encode(PATH, b"", "connection: close\r\n"), {400}),
        (encode(PATH, b'{"model":"\\ud800"}', "connection: close\r\n"), {400}),
        (f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n".encode(), {413}),
        (encode(PATH, b"{}", "connection: close\r\n", method="PUT"), {405}),
        (encode("/nowhere", b"{}", "connection: close\r\n"), {404}),
    ],
)
def test_broken_requests_are_refused(url: str, data: bytes, allowed: set[int]) -> None:
    assert status(exchange(url, data)) in allowed


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 63, 1 << 200, 0.5, -1e308, "", "x", "\x00", "🌳" * 50, [], [[]], [None], ["a"], {}),
    *({"type": "function"}, {"": {}}, [{"role": "user", "content": "x"}], [{"type": "text", "text": "x"}], {"a": [1]}),
    *([1, 5], [[7], [1 << 20]], [2, 1 << 40], ["x", [3]]),
)
BODIES: dict[str, Any] = {
    PATH: SHORT | {"n": 1, "stream": False, "stop": "x", "tools": [], "tool_choice": "auto", "response_format": None,
                   "logit_bias": {}, "stream_options": None, "regex": None, "top_k": 1, "choices": None},
    "/v1/completions": {"model": "pocket", "prompt": "x", "max_tokens": 1, "echo": False, "logprobs": 1, "seed": 1},
    "/v1/responses": {"model": "pocket", "input": "x", "max_output_tokens": 1, "text": None, "tools": [],
                      "previous_response_id": None, "background": False, "stream": False, "include": []},
    "/v1/messages": {"model": "pocket", "messages": QUESTION, "max_tokens": 1, "system": "x", "tools": [],
                     "tool_choice": None, "thinking": None, "stop_sequences": [], "stream": False, "metadata": None},
    "/v1/messages/count_tokens": {"model": "pocket", "messages": QUESTION, "system": "x"},
    "/tokenize": {"prompt": "x", "messages": None, "model": "pocket"},
}  # fmt: skip


def fuzzed(rng: Random) -> tuple[bytes, bool]:
    """A request that may be broken in its fields, its JSON, or its bytes; and whether its end may be missing."""
    path = rng.choice(list(BODIES))
    body = dict(BODIES[path])
    for _ in range(rng.randint(0, 2)):
        body[rng.choice([*body, "foo"])] = rng.choice(VALUES)
    body |= {name: 2 for name in ("max_tokens", "max_output_tokens") if name in body and rng.random() < 0.7}
    data = json.dumps(body).encode()
    if rng.random() < 0.3:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(rng.randint(0, 3)) + data[at + rng.randint(0, 3) :]
    if rng.random() < 0.5:
        return encode(path, data, "connection: close\r\n"), False
    headers = rng.choice(
        ("", "expect: 100-continue\r\n", "content-type: \x01\r\n", "a: b\n c\r\n", ": x\r\n", "te: x\r\n")
    )
    request = encode(path, data, f"{headers}connection: close\r\n", rng.choice(("POST", "GET", "P\x00", "")))
    if rng.random() < 0.5:
        return request, False
    at = rng.randrange(len(request))
    return request[:at] + rng.randbytes(rng.randint(1, 4)) + request[at + rng.randint(0, 4) :], True


@pytest.mark.parametrize("n", [60, pytest.param(50_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_no_request_crashes_or_hangs_it(gateway: launch.GatewayProcess, n: int) -> None:
    rng = Random(n)
    statuses: Counter[int] = Counter()
    for _ in range(n):
        data, may_be_cut = fuzzed(rng)
        with connect(gateway.url) as sock:
            try:
                sock.sendall(data)
                if may_be_cut:
                    sock.shutdown(socket.SHUT_WR)  # nothing waits for its rest; to the server it is a hang-up
                answer = b""
                while chunk := sock.recv(1 << 16):
                    answer += chunk
            except ConnectionError:
                answer = b""
        found = status(answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"))
        assert found in (200, 400, 403, 404, 405, 413, 429) or (may_be_cut and found == 0), (data, answer)
        statuses[found] += 1
    assert min(statuses[200], statuses[400]) > n / 20, statuses  # some get past each check
    assert gateway.is_alive
    assert post(gateway.url, PATH, SHORT)[0] == 200


# ---- hang-ups and many streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [12, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_hang_ups_leave_nothing(gateway: launch.GatewayProcess, stats: Callable[[], Any], n: int) -> None:
    process = psutil.Process(gateway.pid)
    post(gateway.url, PATH, SHORT)
    before = stats()["server"]["programs"]  # stored responses of other tests
    n_fds = process.num_fds()
    rng = Random(n)
    for k in range(n):
        with connect(gateway.url) as sock:
            data = encode(PATH, LONG | {"stream": k % 2 == 0, "n": rng.randint(1, 3)})
            sock.sendall(data[: rng.randint(1, len(data))] if k % 5 == 4 else data)
            if k % 3:
                sock.settimeout(rng.random() * 0.02)
                with suppress(TimeoutError):
                    sock.recv(rng.randint(1, 4096))

    def left() -> tuple[int, int, int, int]:
        now = stats()
        programs = now["server"]["programs"] - before
        return programs, now["server"]["requests"], now["cache"]["n_leased"], max(0, process.num_fds() - n_fds)

    wait_until(lambda: left() == (0, 0, 0, 0), "nothing to be left", seen=left)


@pytest.mark.parametrize("n", [16, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_many_streams_lose_nothing_and_a_slow_reader_slows_nobody(url: str, n: int) -> None:
    messages = [{"role": "user", "content": "Hi, who are you?"}]
    body = {"model": "pocket", "messages": messages, "temperature": 0, "max_tokens": 24}
    expected = json.loads(post(url, PATH, body)[1])["choices"][0]["message"]["content"]
    host, port = url.removeprefix("http://").split(":")

    async def read() -> str:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode(PATH, body | {"stream": True}, "connection: close\r\n"))
        text, finishes = "", 0
        async for line in reader:
            if line.startswith(b"data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["delta"].get("content") or ""
                finishes += choice["finish_reason"] is not None
        writer.close()
        assert finishes == 1
        return text

    async def run() -> list[str]:
        return await asyncio.wait_for(asyncio.gather(*(read() for _ in range(n))), 600)

    with connect(url) as slow:  # it asks for much, and reads nothing
        slow.sendall(encode(PATH, LONG | {"stream": True}))
        assert asyncio.run(run()) == [expected] * n


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_runs_when_the_process_ends_gets_an_error(is_stream: bool) -> None:
    sent: list[dict[str, Any]] = []
    gateway: Any = SimpleNamespace(identify=lambda headers: "", client=AsyncMock(), counts=Counter())

    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"first "
        await wait()

    async def handle(request: HTTPRequest) -> EventReply:
        if not is_stream:
            await wait()
        return EventReply(events(), lambda e: e.message.encode())

    async def run() -> None:
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": b"{}"})
        send = AsyncMock(side_effect=sent.append)
        call: Any = EndpointApp(gateway, Endpoint("POST", "/x", handle))
        task = asyncio.create_task(call({"headers": [], "query_string": b""}, inbox.get, send))
        await reached.wait()
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == (200 if is_stream else 503)
    data = b"".join(one.get("body", b"") for one in sent)
    if is_stream:
        assert data == b"first the server is stopping"
    else:
        assert json.loads(data)["error"]["code"] == "runtime_lost"
    assert sent[-1]["more_body"] is False


def test_requests_wait_for_one_reconnect_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, each waited for a connect of its own, of ten seconds."""
    go_on, n_connects = threading.Event(), count()

    def connect(*_: object, **__: object) -> None:
        next(n_connects)
        go_on.wait(30)
        raise ConnectFailed("no answer")

    monkeypatch.setattr("banyan.runtime.gateway.gateway.connect", connect)
    address = SimpleNamespace(path="s", token="", server_key="")
    lost: Any = SimpleNamespace(lost="gone", welcome=SimpleNamespace(model="m"), address=address)
    keys: Any = None

    async def run() -> list[Any]:
        gateway = Gateway(lost, keys, asyncio.get_running_loop())
        gateway.sessions._context.term()
        waiting = [asyncio.create_task(gateway.client()) for _ in range(4)]
        await asyncio.sleep(0)  # all of them wait now
        waiting.pop(0).cancel()  # a client that hangs up takes nothing from the others
        asyncio.get_running_loop().call_soon(go_on.set)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        return [*found, *await asyncio.gather(gateway.client(), return_exceptions=True)]

    assert [type(one) for one in asyncio.run(run())] == [ConnectFailed] * 4
    assert next(n_connects) == 2, "one for all that waited, and one for the later request"


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_keep_all_digits_of_a_counter() -> None:
    text = info._written(Family("x", "counter", "an x", ("kind",), {("a",): 12345678.0, ("b",): 3}))
    assert text.splitlines()[2:] == ['banyan_x_total{kind="a"} 12345678.0', 'banyan_x_total{kind="b"} 3']


def test_counters_of_the_server_never_fall() -> None:
    """Prometheus takes a counter that falls for one that began again at 0."""

    def answer(seconds: float, **steps: int) -> dict[str, Any]:
        rows = {
            name: {"starts": 1, "engine": {"steps": n}, "cache": {"evicted": {"unused": n}}}
            for name, n in steps.items()
        }
        n = sum(steps.values())
        cache = {"evicted": {"unused": n}}
        return {"engine": {"steps": n}, "cache": cache, "server": {"seconds": seconds}, "replicas": rows}

    answers = iter([answer(1, a=100, b=10), answer(2, b=10), answer(3, b=20, c=1), answer(1, a=2)])
    welcome = SimpleNamespace(model="m")
    client: Any = SimpleNamespace(ask=lambda what: next(answers), lost=None, welcome=welcome)
    keys: Any = None

    async def scrape() -> list[tuple[float, float]]:
        gateway = Gateway(client, keys, asyncio.get_running_loop())
        gateway.sessions._context.term()
        found = []
        for _ in range(4):
            request: Any = SimpleNamespace(tenant="", gateway=gateway)
            text = (await info.metrics(request)).body.decode()
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
            steps, evicted = (lines[f"banyan_{name}"] for name in ("steps_total", EVICTED))
            found.append((float(steps), float(evicted)))
        return found

    assert asyncio.run(scrape()) == [(110, 110), (110, 110), (121, 121), (2, 2)], "the last is of another server"


# ---- headers and statuses for clients and proxies --------------------------------------------------------------------


def test_a_compressed_body_is_refused_as_such(url: str) -> None:
    for encoding, expected in (("gzip", 415), ("identity", 200)):
        found, data = post(url, PATH, json.dumps(SHORT).encode(), f"content-encoding: {encoding}\r\n")
        assert found == expected
        assert expected == 200 or b"gzip" in data


def test_embeddings_are_not_supported(url: str) -> None:
    found, data = post(url, "/v1/embeddings", {"model": "pocket", "input": "x"})
    assert (found, json.loads(data)["error"]["message"]) == (404, "embeddings are not supported")


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions", "/v1/v1/messages", "/models"])
def test_a_wrong_base_url_is_named(url: str, path: str) -> None:
    found, data = post(url, path, {"model": "pocket"})
    assert found == 404
    meant = f"/v1{path.removeprefix('/v1/v1')}"
    assert f"here, but {meant}: the base URL" in json.loads(data)["error"]["message"]


def test_a_request_that_matches_no_route_has_an_id(url: str) -> None:
    for path, expected in (("/no/such", 404), ("/health", 405)):
        answer = exchange(url, encode(path, b"", "x-request-id: trace-1\r\nconnection: close\r\n", method="PUT"))
        assert status(answer) == expected
        assert b"\r\nx-request-id: trace-1\r\nrequest-id: trace-1\r\n" in answer


def test_streams_ask_proxies_not_to_buffer_them(url: str) -> None:
    answer = exchange(url, encode(PATH, SHORT | {"stream": True}, "connection: close\r\n"))
    assert b"x-accel-buffering: no\r\n" in answer
    answer = exchange(url, encode(PATH, SHORT, "connection: close\r\n"))
    assert b"x-accel-buffering" not in answer


def start_of_response(failing: Exception, **headers: str) -> dict[str, Any]:
    """The status and the headers of the response to a request whose handler raises `failing`."""

    async def handle(request: HTTPRequest) -> Reply:
        raise failing

    async def receive() -> dict[str, Any]:
        return bodies.pop() if bodies else await asyncio.Future()

    bodies: list[dict[str, Any]] = [{"type": "http.request"}]
    send = AsyncMock()
    gateway: Any = SimpleNamespace(counts=Counter(), client=AsyncMock())
    endpoint = EndpointApp(gateway, Endpoint("POST", "/x", handle, is_open=True))
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(endpoint({"headers": raw, "query_string": b""}, receive, send))
    found: dict[str, Any] = send.await_args_list[0].args[0]
    return {"status": found["status"]} | {name.decode(): value.decode() for name, value in found["headers"]}


def test_a_client_over_a_limit_is_told_when_to_try_again() -> None:
    found = start_of_response(Overloaded("too much"))
    assert (found["status"], found["retry-after"]) == (429, "1")


def test_a_response_has_the_id_of_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    for given, is_taken in (("trace-1", True), ("", False), ("a b", False), ("x" * 201, False)):
        found = start_of_response(ZeroDivisionError(), x_request_id=given)
        assert found["x-request-id"] == found["request-id"]
        assert (found["x-request-id"] == given) == is_taken
        assert is_taken or re.fullmatch("req_[0-9a-f]{32}", found["x-request-id"])
        assert f"the request {found['x-request-id']} failed" in capsys.readouterr().err
