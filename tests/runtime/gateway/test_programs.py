"""Programs over HTTP: the same results as over the socket, from a real server with the pocket model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client.client import Client, connect
from banyan.runtime.client.program_futures import ProgramHandle
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.programs import endpoints, sessions
from banyan.runtime.gateway.programs.json_program import END, JSONProgram, ProgramRequest, decode_request
from banyan.runtime.protocol import http_frames, ipc, wire
from banyan.runtime.protocol.limits import MAX_OPS
from raw_http import connect as connect_raw
from raw_http import encode, status
from raw_http import post as post_raw
from waits import wait_until, wait_until_async
from wire_fuzz import SURROGATE, ClientModel, Values
from wire_fuzz import encode as pack_message


@bn.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


@bn.function
def branches(s: bn.State) -> None:
    s += bn.user("Hi, who are you?") + bn.assistant_begin()
    forks = s.fork(3)
    forks += lambda i: f"{i}: " + bn.gen("part", max_tokens=4, temperature=0)
    forks.join("concate_and_append")
    s += bn.gen("rest", max_tokens=4, temperature=0) + bn.assistant_end()


@bn.function
def constrained(s: bn.State) -> None:
    s += "Pick: " + bn.select("choice", ["red", "green", "blue"])
    s += " and " + bn.gen("number", regex=r"[0-9]{3}", temperature=0)
    s += bn.gen("data", json_schema={"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
                                     "required": ["n"], "additionalProperties": False}, temperature=0)  # fmt: skip


@bn.function
def sampled(s: bn.State) -> None:
    s += "The tree " + bn.gen("x", max_tokens=12, temperature=0.9, seed=7, n=2, return_logprob=True)


@bn.function
def with_tools(s: bn.State) -> None:
    s += bn.user("What is 17 + 25?") + bn.assistant(bn.gen("x", tools=[add], max_tokens=60, temperature=0))


@bn.function
def retried(s: bn.State) -> None:
    s += "Say: " + bn.gen("x", max_tokens=3, temperature=0, regex="[a-z]{3}", retries=1)


@bn.compile
@bn.function
def compiled(s: bn.State, thing: str) -> None:
    s += f"A {thing} is " + bn.gen("x", max_tokens=5, temperature=0)


NAMES = ("part", "rest", "choice", "number", "data", "x")


def results(state: bn.State) -> dict[str, Any]:
    gens = [(name, state[name]) for name in NAMES if name in state]
    return {"text": state.text(), "gens": gens}


@pytest.mark.parametrize(
    "run",
    [
        lambda backend: results(branches.run(backend=backend)),
        lambda backend: results(constrained.run(backend=backend)),
        lambda backend: results(sampled.run(backend=backend)),
        lambda backend: results(with_tools.run(backend=backend)),
        lambda backend: results(retried.run(backend=backend)),
        lambda backend: [compiled.run(word, backend=backend)["x"] for word in ("tree", "leaf" * 300)],
        lambda backend: [
            one["x"] for one in compiled.run_batch([{"thing": f"tree {i}"} for i in range(20)], backend=backend)
        ],
        lambda backend: "".join(sampled_stream(backend)),
    ],
    ids=["forks", "constraints", "samples", "tools", "retries", "template", "batch", "stream"],
)
def test_results_are_those_of_the_socket(
    run: Callable[[Any], Any], over_socket: bn.RuntimeEndpoint, over_http: bn.RuntimeEndpoint
) -> None:
    assert run(over_http) == run(over_socket)


@bn.function
def streamed(s: bn.State) -> None:
    s += "The tree " + bn.gen("x", max_tokens=20, temperature=0)


def sampled_stream(backend: Any) -> Iterator[str]:
    return iter(streamed.run(backend=backend, stream=True).text_iter("x"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (lambda s: s.__iadd__("x" + bn.gen("a", regex="(unclosed")), bn.ConstraintSyntax),
        (lambda s: s.__iadd__("long " * 5000 + bn.gen("a")), bn.PromptTooLong),
        (lambda s: s.__iadd__("x" + bn.gen("a", timeout=1e-6, max_tokens=500, ignore_eos=True)), bn.DeadlineExceeded),
    ],
)
def test_errors_are_those_of_the_socket(
    body: Callable[[bn.State], Any], error: type[Exception], over_http: bn.RuntimeEndpoint
) -> None:
    state = bn.function(body).run(backend=over_http)
    with pytest.raises(error) as caught:
        state["a"]
    assert "test_programs.py" in str(caught.value), "it names the line"


def running(backend: bn.RuntimeEndpoint) -> list[str]:
    """The names of the server's programs."""
    return [program["name"] for program in backend.client.ask("programs")["running"]]


def test_cancel_reaches_the_server(over_http: bn.RuntimeEndpoint, over_socket: bn.RuntimeEndpoint) -> None:
    program = held(over_http.client, last=True)
    wait_until(lambda: "held" in running(over_socket), "the program")
    program.cancel()
    with pytest.raises(bn.Cancelled):
        program.future(0).result()
    wait_until(lambda: "held" not in running(over_socket), "its end")


def test_closed_client_and_lost_connection_end_the_session(url: str, over_socket: bn.RuntimeEndpoint) -> None:
    client = connect(url.replace("127.0.0.1", "localhost") + "/")
    program = held(client, last=True)
    wait_until(lambda: "held" in running(over_socket), "the program")
    client.close()
    with pytest.raises(bn.RuntimeLost):
        program.future(0).result()
    wait_until(lambda: "held" not in running(over_socket), "its end")


def test_forked_child_leaves_the_session_to_its_parent(over_http: bn.RuntimeEndpoint) -> None:
    streamed.run(backend=over_http)["x"]
    child = os.fork()
    if not child:
        os._exit(0 if streamed.run(backend=over_http)["x"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert streamed.run(backend=over_http)["x"]


def test_end_of_the_http_process_is_a_lost_runtime(pocket: launch.ServerProcess) -> None:
    gateway = launch.start_gateway(config.HTTPConfig(socket=str(pocket.socket), address="0"))
    client = connect(gateway.url)
    future = held(client).future(0)
    gateway.close()
    with pytest.raises(bn.RuntimeLost, match="is gone"):
        future.result()
    with pytest.raises(bn.ConnectFailed, match="banyan serve"):
        bn.connect(gateway.url)


def held(client: Client, *, last: bool = False) -> ProgramHandle:
    """A program whose value 0 does not come soon."""
    program = client.program("held")
    program.submit((wire.Append(0, ("x",)), wire.Gen(0, 0, wire.Sampling(max_tokens=4000, ignore_eos=True))), last=last)
    return program


def test_session_needs_the_key_that_opened_it(two_tenants: str) -> None:
    for wrong in ("", "wrong" * 5):
        with pytest.raises(bn.ConnectFailed, match="API key"):
            bn.connect(two_tenants, token=wrong)
    with bn.RuntimeEndpoint(two_tenants, api_key="1" * 20) as one:
        assert streamed.run(backend=one)["x"]
        assert one.ask("info").get("pid") is None, "a tenant, and no operator"
    with post(two_tenants, begin(last=False), key="1" * 20) as response:
        session = first_event(response)["id"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(two_tenants, begin(), f"/{session}", key="2" * 20)


# ---- JSON ----------------------------------------------------------------------------------------------------------


def post(url: str, body: Any, more: str = "", key: str = "") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/programs{more}", data, {"authorization": f"Bearer {key}"})
    return urllib.request.urlopen(request, timeout=30)


def begin(**options: Any) -> dict[str, Any]:
    ops = [
        {"t": "append", "state": 0, "parts": ["The tree "]},
        {"t": "gen", "state": 0, "ref": 0, "stream": True, "sampling": {"max_tokens": 4, "temperature": 0}},
    ]
    return {"ops": ops, **options}


def events(response: Any) -> Iterator[tuple[str, Any]]:
    for line in response:
        if line.startswith(b"event: "):
            yield line[7:].strip().decode(), json.loads(next(response)[6:])


def first_event(response: Any) -> Any:
    return next(events(response))[1]


def test_json_program_streams_its_values(url: str, over_socket: bn.RuntimeEndpoint) -> None:
    with post(url, begin()) as response:
        found = list(events(response))
    names = [name for name, _ in found]
    assert (names[0], names[-2:], set(names[1:-2])) == ("program", ["value", "end"], {"delta"})
    text = "".join(data["text"] for name, data in found if name == "delta")
    assert text == found[-2][1]["samples"][0]["text"] == streamed.run(backend=over_socket)["x"][: len(text)]


@pytest.mark.parametrize("is_open", [True, False])
def test_json_program_goes_on_and_takes_results_of_tools(url: str, is_open: bool) -> None:
    spec = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
    ask = [
        {"t": "append", "state": 0, "parts": [{"t": "begin", "role": "user"}, "What is 17 + 25?", {"t": "end"}]},
        {"t": "append", "state": 0, "parts": [{"t": "begin", "role": "assistant"}]},
        {"t": "gen", "state": 0, "ref": 0, "sampling": {"max_tokens": 60, "temperature": 0},
         "tools": {"specs": [json.dumps({"type": "function", "function": spec})]}},
    ]  # fmt: skip
    read: Any = {"ops": [{"t": "read", "state": 0, "ref": 1}]}
    with post(url, {"ops": ask} | ({"last": False} if is_open else {})) as response:
        stream = events(response)
        session = next(stream)[1]["id"]
        name, data = next(stream)
        assert name == "called"
        for more in () if is_open else (read, {"ops": []}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(url, more, f"/{session}")
        while name == "called":
            texts = ["42"] * len(data["calls"])
            results = {"t": "results", "state": 0, "ref": 0, "round": data.get("round", 0), "texts": texts}
            post(url, {"ops": [results], "last": False}, f"/{session}").close()
            name, data = next(stream)
        assert (name, data["ref"]) == ("value", 0)
        if is_open:
            post(url, read, f"/{session}").close()
        assert [name for name, _ in stream] == (["value", "end"] if is_open else ["end"])
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(url, begin(), f"/{session}")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "not valid JSON"),
        (b'{"ops": [{"t": "gen"}]}', 400, "state"),
        (b'{"ops": [{"t": "nothing"}]}', 400, "nothing"),
        (b'{"ops": [], "ot": 1}', 400, "ot"),
        ({"ops": [{"t": "gen", "state": 0, "ref": 0, "n": 2}]}, 400, "ops[0].n"),
        ({"ops": [{"t": "gen", "state": 0, "ref": 0, "sampling": {"regex": "[0-9]"}}]}, 400, "ops[0].sampling.regex"),
        ({"ops": [{"t": "append", "state": 0, "parts": ["", {"t": "raw", "text": "", "n": 2}]}]}, 400, ".parts[1].n"),
        ({"ops": [], "limits": {"timeout": 1, "budgets": [{"tokens": 1, "off": "run"}]}}, 400, "limits.budgets[0].off"),
        ({"ops": [{"t": "use", "state": 0, "template": 0}]}, 400, "template"),
        ({"ops": [{"t": "append", "state": 0, "parts": ["x" * (2 << 20)]}]}, 413, "several requests"),
    ],
)
def test_invalid_json_is_a_4xx_that_names_the_field(url: str, body: Any, status: int, text: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url, body)
    assert caught.value.code == status
    assert text in json.loads(caught.value.read())["error"]["message"] + str(caught.value)


@pytest.mark.parametrize(("limits", "left"), [({"timeout": 9.5}, 9.5), ({"timeout": 9.5, "left": 2.5}, 2.5)])
def test_timeout_of_a_json_program_is_left_as_a_whole(limits: dict[str, float], left: float) -> None:
    body = decode_request(json.dumps(begin(limits=limits)).encode())
    sent = msgspec.msgpack.decode(JSONProgram(1 << 20).message(body), type=wire.Submit)
    assert sent.limits == wire.ProgramLimits(timeout=9.5, left=left)
    assert sent.ops[1] == wire.Gen(0, 0, wire.Sampling(max_tokens=4, temperature=0), stream=True)


def test_program_without_values_left_ends_when_no_more_ops_come(url: str) -> None:
    with post(url, begin(last=False)) as response:
        stream = events(response)
        session = next(stream)[1]["id"]
        assert "value" in (name for name, _ in stream)
        post(url, {"ops": []}, f"/{session}").close()
        assert [name for name, _ in stream] == ["end"]


def test_program_without_values_left_ends_without_another_message(tmp_path: Path) -> None:
    """The server of this session sends nothing, not even an answer to a heartbeat."""

    async def run() -> None:
        with zmq.Context() as context:
            server, lock = ipc.listen(context, tmp_path / "private" / "socket", 1 << 20)
            session = sessions.Session(context, tmp_path / "private" / "socket", "")
            session.program = program = JSONProgram(1 << 20)
            program.message(ProgramRequest((), last=False))
            own = SimpleNamespace(find=lambda *_: session)
            request: Any = SimpleNamespace(
                gateway=SimpleNamespace(sessions=own), path={"session": session.id}, tenant="", headers={},
                body=b'{"ops": []}',
            )  # fmt: skip
            response = endpoints._values(session, program)
            assert b"event: program" in await anext(response)
            end = asyncio.ensure_future(anext(response))
            await asyncio.sleep(0)
            assert not end.done()
            await endpoints.go_on(request)
            assert b"event: end" in await asyncio.wait_for(end, 20)
            await response.aclose()
            server.close()
            lock.release()

    asyncio.run(run())


def test_failed_program_ends_the_stream(url: str) -> None:
    with post(url, {"ops": [{"t": "gen", "state": 5, "ref": 0}]}) as response:
        name, data = list(events(response))[-2]
    assert (name, data["code"]) == ("failed", "bad_program")


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        ([{"t": "fork", "state": 0, "children": [1]}, {"t": "drop", "state": 0}], "program"),
        ([{"t": "cachehint", "state": 0, "pin": 1}], "program"),
        ([{"t": "fork", "state": 0, "children": [0]}], "failed"),
        ([{"t": "append", "state": 0, "parts": [{"t": "end"}]}], "failed"),
    ],
    ids=["drop", "pin", "fork", "append"],
)
def test_a_program_without_values_tells_how_it_ended(url: str, ops: list[dict[str, Any]], name: str) -> None:
    with post(url, {"ops": [{"t": "append", "state": 0, "parts": ["A"]}, *ops]}) as response:
        found = list(events(response))
    assert [one for one, _ in found] == list(dict.fromkeys(("program", name, "end")))
    assert name == "program" or found[1][1]["code"] == "bad_program"


def test_ops_without_values_may_fail_before_the_last_request(url: str) -> None:
    with post(url, {"ops": [{"t": "append", "state": 0, "parts": [{"t": "end"}]}], "last": False}) as response:
        stream = events(response)
        session = next(stream)[1]["id"]
        post(url, {"ops": []}, f"/{session}").close()
        assert [name for name, _ in stream] == ["failed", "end"]


@pytest.mark.parametrize("is_last", [True, False])
def test_an_op_without_a_value_may_fail_after_a_gen(url: str, is_last: bool) -> None:
    gen, bad = begin(last=False)["ops"], [{"t": "append", "state": 0, "parts": [{"t": "end"}]}]
    with post(url, {"ops": gen + bad, "last": is_last}) as response:
        stream = events(response)
        session = next(stream)[1]["id"]
        if not is_last:
            post(url, {"ops": []}, f"/{session}").close()
        assert [name for name, _ in stream if name != "delta"] == ["value", "failed", "end"]


def test_an_op_without_a_value_may_fail_in_a_branch(url: str) -> None:
    ops = [
        {"t": "fork", "state": 0, "children": [1, 2]},
        {"t": "append", "state": 1, "parts": [{"t": "end"}]},
        {"t": "drop", "state": 2},
    ]
    with post(url, {"ops": ops}) as response:
        assert [name for name, _ in events(response)] == ["program", "failed", "end"]


@pytest.mark.parametrize("state", [0, 1])
def test_a_failure_is_told_once(url: str, state: int) -> None:
    """Of the gen that failed, and not again of the ops after it, which fail with it."""
    ops: list[dict[str, Any]] = [
        {"t": "append", "state": 0, "parts": ["The tree "]},
        {"t": "fork", "state": 0, "children": [1]},
        {"t": "gen", "state": state, "ref": 0, "budget": 1, "sampling": {"min_tokens": 2}},
        {"t": "join", "state": 0, "children": [1]},
        {"t": "append", "state": 0, "parts": ["."]},
    ]
    with post(url, {"ops": ops}) as response:
        found = [(name, data.get("ref")) for name, data in events(response)]
    assert found == [("program", None), ("failed", 0), ("end", None)]


def test_results_tell_nothing_of_the_ops_before_them() -> None:
    program = JSONProgram(1 << 20)
    program.message(ProgramRequest((wire.Gen(0, 0), wire.Append(0, (wire.EndTurn(),))), last=False))
    program.note(wire.Called(0, 0, 0, 0, ()))
    data = program.message(ProgramRequest((wire.Results(0, 0, 0, ("42",)),)))
    assert msgspec.msgpack.decode(data, type=wire.Submit).ops[1:] == (wire.Read(0, END),)


@pytest.mark.parametrize(
    "wrong",
    [wire.Results(2, 1, 0, ("42",)), wire.Results(0, 0, 0, ("42",)), wire.Results(2, 0, 1, ("42",)),
     wire.Results(0, 9, 0, ("42",))],
    ids=["ref", "state", "round", "all"],
)  # fmt: skip
def test_results_for_which_nothing_waits_are_refused(wrong: wire.Results) -> None:
    program, right = JSONProgram(1 << 20), ProgramRequest((wire.Results(2, 0, 0, ("42",)),))
    program.message(ProgramRequest((wire.Append(2, ("6*7?",)), wire.Gen(2, 0), wire.Gen(2, 1))))
    with pytest.raises(HTTPError, match="nothing waits for ref 0, round 0 in state 2"):
        program.message(right)
    program.note(wire.Called(0, 0, 0, 0, ()))
    with pytest.raises(HTTPError, match=f"nothing waits for ref {wrong.ref}, round {wrong.round} in state"):
        program.message(ProgramRequest((wrong,)))
    for ops in ((wrong, *right.ops), (*right.ops, wrong), right.ops * 2):
        with pytest.raises(HTTPError, match="nothing waits"):
            program.message(ProgramRequest(ops))
    program.message(right)
    with pytest.raises(HTTPError, match="nothing waits"):
        program.message(right)
    program.note(wire.Called(0, 0, 0, 1, ()))
    program.note(wire.Failed(0, 0, "timeout", "late", 0))
    with pytest.raises(HTTPError, match="nothing waits"):
        program.message(ProgramRequest((wire.Results(2, 0, 1, ("42",)),)))


def test_most_ops_of_a_request_leave_room_for_another() -> None:
    def body(n: int) -> bytes:
        return json.dumps({"ops": [{"t": "drop", "state": 0}] * n}).encode()

    data = JSONProgram(1 << 30).message(decode_request(body(MAX_OPS - 1)))
    assert len(msgspec.msgpack.decode(data, type=wire.Submit).ops) == MAX_OPS
    with pytest.raises(HTTPError, match="32767"):
        decode_request(body(MAX_OPS))


def test_a_ref_of_the_http_process_is_refused() -> None:
    with pytest.raises(HTTPError, match="reserved"):
        JSONProgram(1 << 20).message(ProgramRequest((wire.Read(0, 2**63 - 1),)))


def test_hung_up_reader_frees_its_program(url: str, over_socket: bn.RuntimeEndpoint) -> None:
    body = begin(name="long", last=False)  # so it does not end by itself
    body["ops"][1]["sampling"] |= {"max_tokens": 4000, "ignore_eos": True}
    response = post(url, body)
    first_event(response)
    wait_until(lambda: "long" in running(over_socket), "the program")
    response.fp.raw._sock.shutdown(socket.SHUT_RDWR)
    response.close()
    wait_until(lambda: "long" not in running(over_socket), "its end")


def test_a_client_that_does_not_read_loses_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_WAITING", 1000)

    async def run() -> None:
        with zmq.Context() as context:
            server, lock = ipc.listen(context, tmp_path / "private" / "socket", 1 << 20)
            session = sessions.Session(context, tmp_path / "private" / "socket", "")
            session.send(b"hello")
            await wait_until_async(lambda: server.poll(0), "the client")
            client, _ = server.recv_multipart()

            def is_lost() -> bool:
                try:
                    server.send_multipart([client, b"x" * 600])
                except zmq.ZMQError as e:
                    return e.errno == zmq.EHOSTUNREACH
                return False

            await wait_until_async(is_lost, "the end of its connection")
            assert session.is_over
            assert await session.messages() == []
            session.send(b"more")
            session.keep_alive()
            session.close()
            server.close()
            lock.release()

    asyncio.run(run())


# ---- fuzzed requests -------------------------------------------------------------------------------------------------


class FuzzedClient:
    """Makes the bodies of one client, in JSON or binary: valid ones, borders of a field, and garbage."""

    def __init__(self, values: Values) -> None:
        self._values, self._model = values, ClientModel(values)
        self.is_binary = values.rng.random() < 0.3
        self.headers = f"content-type: {http_frames.KIND}\r\n" if self.is_binary else ""

    def begin(self) -> bytes:
        if not self.is_binary:
            return self.body()
        return self._broken(http_frames.pack([wire.encode(wire.Hello(wire.VERSION))]), 0.1)

    def body(self) -> bytes:
        message = self._model.message()
        while not (self.is_binary or isinstance(message, wire.Submit)):
            message = self._model.message()
        if self._values.rng.random() < 0.3:
            message = self._values.with_border(message)
        try:
            if self.is_binary:
                return self._broken(http_frames.pack([pack_message(message)]), 0.2)
            fields = {name: getattr(message, name) for name in ("ops", "last", "name", "limits")}
            return self._broken(msgspec.json.encode(fields).replace(SURROGATE.encode(), b"\xed\xa0\x80"), 0.2)
        except OverflowError:  # a number that neither format can write
            return b""

    def _broken(self, data: bytes, share: float) -> bytes:
        return self._values.garbage(data) if self._values.rng.random() < share else data


@pytest.mark.parametrize("n", [40, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_no_fuzzed_program_crashes_or_hangs_it(
    gateway: launch.GatewayProcess, over_http: bn.RuntimeEndpoint, stats: Callable[[], Any], n: int
) -> None:
    before = stats()["server"]["programs"]
    values, n_begun = Values(Random(n)), 0
    for _ in range(n):
        client = FuzzedClient(values)
        with connect_raw(gateway.url) as sock:
            sock.sendall(encode(http_frames.PATH, client.begin(), client.headers))
            answer, session = b"", None
            while session is None and (chunk := sock.recv(1 << 16)):
                answer += chunk
                session = re.search(rb'(?:x-banyan-session: |"id":")([0-9a-f]{32})', answer)
                if status(answer) >= 400:
                    break
            assert status(answer) in (200, 400, 413, 429, 503), answer  # 503: a busy machine took 10 s to connect
            assert (session is None) == (status(answer) != 200), answer
            n_begun += session is not None
            for _ in range(values.rng.randrange(4) if session is not None else 0):
                body, path = client.body(), f"{http_frames.PATH}/{session[1].decode()}"  # type: ignore[index]
                found, data = post_raw(gateway.url, path, body, client.headers)
                assert found in (200, 400, 404, 413), (body, data)
    assert n_begun > n / 4
    assert gateway.is_alive
    assert streamed.run(backend=over_http)["x"]
    wait_until(lambda: stats()["server"]["programs"] <= before, "the end of all programs", seen=stats)
