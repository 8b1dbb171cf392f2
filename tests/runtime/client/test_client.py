from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from banyan.runtime import launch
from banyan.runtime.client import client as clients
from banyan.runtime.client.client import Client, connect
from banyan.runtime.errors import (
    BadMessage,
    BadProgram,
    BanyanError,
    Cancelled,
    ConnectFailed,
    PromptTooLong,
    RuntimeLost,
)
from banyan.runtime.future import when_all_done
from banyan.runtime.protocol import decoders, ipc, wire
from forms import in_short
from waits import join as join_thread
from waits import wait_until

Join = Callable[..., Client]
Serve = Callable[..., launch.ServerProcess]

LONG = wire.Sampling(max_tokens=400)


@pytest.fixture
def join(join_shared: Join) -> Join:
    return join_shared


def ask(program: clients.ProgramHandle, text: str, ref: int = 0, state: int = 0, **options: Any) -> None:
    program.submit([wire.Append(state, (text,)), wire.Gen(state, ref, wire.Sampling(max_tokens=50), **options)])


def count_programs(c: Client) -> int:
    return int(c.ask("stats")["server"]["programs"])


# ---- requests and values -------------------------------------------------------------------------------------------


def test_welcome_describes_the_server(join: Join) -> None:
    c = join()
    assert (c.welcome.version, c.welcome.max_context, c.welcome.max_message) == (wire.VERSION, 512, 1 << 20)
    assert c.welcome.chat is not None
    assert c.welcome.chat.roles["user"] == ("<|im_start|>user\n", "<|im_end|>\n")
    assert c.welcome.chat.stop == ("<|im_end|>",)


def test_future_can_be_requested_before_or_after_its_value_arrives(join: Join) -> None:
    c = join(say={"a": "first", "b": "second"})
    program = c.program("p")
    early = program.future(0)
    ask(program, "a")
    assert early.result(10).samples[0].text == "first"
    assert program.future(0) is early
    program.submit([wire.Append(0, ("b",)), wire.Gen(0, 1), wire.Read(0, 2)])
    assert program.future(2).result(10).samples[0].text == "afirstbsecond"
    assert program.future(1).done()
    assert program.future(1).result().samples[0].text == "second"


def test_late_listener_receives_all_deltas(join: Join) -> None:
    c = join(say={"a": "one two three four"}, step_ms=2)
    program = c.program()
    threads: set[str] = set()
    deltas: list[str] = []

    def listen(delta: wire.Delta) -> None:
        threads.add(threading.current_thread().name)
        deltas.append(delta.text)

    ask(program, "a", stream=True)
    time.sleep(0.01)
    program.on_delta(0, listen)
    text = program.future(0).result(10).samples[0].text
    assert "".join(deltas) == text == "one two three four"
    assert threads == {"banyan-io"}


def test_raising_listener_fails_only_its_own_value(join: Join) -> None:
    c = join(say={"a": "one two", "b": "fine"})
    program = c.program()

    def listen(delta: wire.Delta) -> None:
        raise ZeroDivisionError("in the user's code")

    program.on_delta(0, listen)
    ask(program, "a", stream=True)
    with pytest.raises(ZeroDivisionError, match="user's code"):
        program.future(0).result(10)
    ask(program, "b", ref=1)
    assert program.future(1).result(10).samples[0].text == "fine"


def test_one_io_thread_serves_all_programs(join: Join) -> None:
    c = join(say={"a": "b"})
    before = threading.active_count()
    programs = [c.program() for _ in range(50)]
    for program in programs:
        ask(program, "a")
    assert threading.active_count() == before
    assert {p.future(0).result(10).samples[0].text for p in programs} == {"b"}


def test_programs_can_be_submitted_from_any_thread(join: Join) -> None:
    c = join(say={"a": "b"})
    texts: list[str] = []

    def work() -> None:
        for _ in range(10):
            program = c.program()
            ask(program, "a")
            texts.append(program.future(0).result(20).samples[0].text)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts == ["b"] * 80


def test_connections_to_one_socket_share_a_client(serve: Serve) -> None:
    server = serve()
    one = connect(server.socket)
    assert connect(str(server.socket)) is one
    one.close()
    two = connect(server.socket)
    assert two is not one
    assert two.ask("info")["pid"] == server.pid


def test_server_answers_queries(join: Join) -> None:
    c = join()
    assert c.ask("stats")["server"]["clients"] == 1
    assert c.ask("info")["engine"]["page"] == 16
    assert c.ask("check") is not None
    assert c.ask("flush") is not None


# ---- errors, cancellation and close --------------------------------------------------------------------------------


def test_error_names_program_gen_and_line(join: Join) -> None:
    c = join()
    program = c.program("story")
    ask(program, "x " * 600, name="hero", line="story.py:7")
    program.submit([wire.Read(0, 1)])
    with pytest.raises(PromptTooLong) as e:
        program.future(0).result(10)
    assert (e.value.program, e.value.gen, e.value.line) == ("story", "hero", "story.py:7")
    assert e.value.prompt_tail.endswith("x x ")
    with pytest.raises(PromptTooLong, match="an earlier op"):
        program.future(1).result(10)


def test_each_future_gets_its_own_error_object(join: Join) -> None:
    program = join(step_ms=5).program()
    program.submit([wire.Gen(0, 0, LONG), wire.Gen(0, 1, LONG)])
    program.cancel()
    errors = [program.future(k).exception(10) for k in (0, 1, 2)]
    assert [type(e) for e in errors] == [Cancelled] * 3
    assert len(set(map(id, errors))) == 3


def test_cancel_stops_the_program_on_the_server(join: Join) -> None:
    c = join(step_ms=5)
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)])
    assert count_programs(c) == 1
    program.cancel()
    with pytest.raises(Cancelled):
        program.future(0).result(10)
    program.cancel()
    assert count_programs(c) == 0
    assert c.ask("stats")["server"]["requests"] == 0


def test_cancel_during_message_handling_fails_pending_futures(join: Join) -> None:
    c = join(step_ms=5)
    program = c.program()
    future = program.future(7)  # never submitted
    with clients._busy:  # the I/O thread is between two messages
        program.cancel()
        c.forget_if_over(program.number)  # as on the next message
    with pytest.raises(Cancelled):
        future.result(10)


def test_closed_program_finishes_submitted_ops(join: Join) -> None:
    c = join(say={"a": "b"}, step_ms=2)
    program = c.program()
    ask(program, "a")
    program.close()
    program.close()
    assert program.future(0).result(10).samples[0].text == "b"
    wait_until(lambda: count_programs(c) == 0, "the end of the programs")
    with pytest.raises(BadProgram, match="closed"):
        ask(program, "a")
    with pytest.raises(BadProgram, match="no op of it makes this value"):
        program.future(7).result(10)
    wait_until(lambda: not c._programs, "no programs", seen=lambda: c._programs)


def test_program_without_ops_is_not_sent_to_the_server(join: Join) -> None:
    c = join()
    program = c.program()
    program.close()
    with pytest.raises(BadProgram):
        program.future(0).result(10)
    assert count_programs(c) == 0


def test_garbage_collected_program_is_closed_and_its_futures_resolve(join: Join) -> None:
    c = join(say={"a": "b"}, step_ms=2)
    program = c.program()
    ask(program, "a")
    future = program.future(0)
    del program
    gc.collect()
    assert future.result(10).samples[0].text == "b"
    wait_until(lambda: count_programs(c) == 0, "the end of the programs")
    wait_until(lambda: not c._programs, "no programs", seen=lambda: c._programs)


@pytest.mark.parametrize("is_cancelled", in_short([True], [False, True]))
def test_programs_that_have_ended_need_no_garbage_collection(is_cancelled: bool, join: Join) -> None:
    """Otherwise a batch's memory grows until the next collection, and many objects delay that."""
    c = join()
    gc.collect()
    gc.disable()
    try:
        for i in range(20):
            program, done = c.program(), threading.Event()
            ask(program, f"{i}")
            when_all_done([program.future(0)], done.set)
            if is_cancelled:
                program.cancel()
            assert done.wait(10)
            del program, done
        wait_until(lambda: not c._programs, "no programs", seen=lambda: c._programs)
        assert gc.collect() < 20, "fewer objects than programs"
    finally:
        gc.enable()


def test_closing_a_client_fails_pending_futures_and_frees_its_programs(serve: Serve) -> None:
    server = serve(step_ms=5)
    c = connect(server.socket)
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)])
    future = program.future(0)
    c.close()
    with pytest.raises(RuntimeLost, match="this client was closed"):
        future.result(10)
    with pytest.raises(RuntimeLost, match="this client was closed"):
        ask(program, "a")
    with pytest.raises(RuntimeLost):
        program.future(9).result(10)
    c.close()
    other = connect(server.socket)
    wait_until(lambda: count_programs(other) == 0, "the end of the programs")
    assert other.ask("stats")["server"]["requests"] == 0


def test_dead_server_is_detected_by_the_connection(serve: Serve) -> None:
    server = serve(step_ms=5)
    c = connect(server.socket)
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)])
    count_programs(c)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(RuntimeLost, match="is gone"):  # heartbeats would say "stopped answering"
        program.future(0).result(10)
    with pytest.raises(RuntimeLost, match="is gone"):
        c.ask("stats")
    with pytest.raises(RuntimeLost, match="is gone"):
        c.program()
    with pytest.raises(ConnectFailed):
        connect(server.socket)


def test_hanging_server_is_detected_by_missed_heartbeats(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "HEARTBEAT", 0.05)
    server = serve()
    c = connect(server.socket)
    program = c.program()
    future = program.future(0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeLost, match="stopped answering"):
            future.result(10)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_oversized_op_is_refused_at_submit(serve: Serve) -> None:
    c = connect(serve(options={"max_message": 1 << 16}, say={"a": "b"}).socket)
    program = c.program("big")
    with pytest.raises(BadMessage, match=r"the select 'x' at file.py:3 has \d+ bytes.*fewer .* max_message"):
        program.submit([wire.Select(0, 0, ("x" * (1 << 17), "y"), name="x", line="file.py:3")])
    ask(program, "a")
    assert program.future(0).result(10).samples[0].text == "b"


# Python 3.12 and later warn about a fork in a process with threads, which this test needs.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_needs_its_own_connection(serve: Serve) -> None:
    server = serve(say={"a": "b"}, step_ms=2)
    c = connect(server.socket)
    program = c.program()
    pending = program.future(5)
    ask(program, "a")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        results: list[str] = []
        for call in (c.program, lambda: ask(program, "a"), lambda: c.ask("info"), lambda: pending.result(5)):
            try:
                call()
            except RuntimeLost as e:
                results.append(str(e))
        own = connect(server.socket).program()
        ask(own, "a")
        results.append(own.future(0).result(10).samples[0].text)
        os.write(write, json.dumps(results).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as f:
        results = json.load(f)
    assert len(results) == 5
    assert all("is its fork" in message for message in results[:4])
    assert results[4] == "b"
    assert program.future(0).result(10).samples[0].text == "b", "the parent still works"


def test_cancel_in_a_finalizer_does_not_wait_for_a_lock_of_its_own_thread(serve: Serve) -> None:
    """The garbage collector may run the finalizer of a program's record wherever memory is allocated."""
    program = connect(serve(say={"a": "b"}, step_ms=50).socket).program()
    ask(program, "a")
    futures = program._futures

    def cancel() -> None:
        with futures._lock, futures._connection._lock:  # type: ignore[attr-defined]
            program.cancel()

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    join_thread(thread, seconds=10)
    with pytest.raises(Cancelled):
        program.future(0).result(10)


SCRIPT = """
import sys
from banyan.runtime.client import client
from banyan.runtime.protocol import wire
program = client.connect(sys.argv[1]).program()
program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=400))])
print(client.connect(sys.argv[1]).ask("stats")["server"]["requests"], flush=True)
"""


def test_exited_client_process_frees_its_requests(serve: Serve) -> None:
    server = serve(step_ms=20)
    observer = connect(server.socket)
    arguments = [sys.executable, "-W", "error", "-c", SCRIPT, str(server.socket)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stderr is not None
        assert user.stdout.readline() == "1\n"
        assert user.wait(10) == 0
        assert user.stderr.read() == ""
    wait_until(lambda: observer.ask("stats")["server"]["requests"] == 0, "the end of the requests")
    assert observer.ask("stats")["server"]["clients"] == 1


# ---- stub servers --------------------------------------------------------------------------------------------------


class Stub:
    """A ROUTER with scripted answers. `script`: one list of answers per received message."""

    def __init__(self, path: Path, script: list[list[bytes]]) -> None:
        self.path, self.context = path, zmq.Context()
        self.received: list[wire.ClientMessage] = []
        self.socket, self._lock = ipc.listen(self.context, path, 1 << 20)
        self._script, self._stop = script, threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.socket.poll(10):
                name, data = self.socket.recv_multipart()
                self.received.append(decoders.decode_client(data))
                if isinstance(self.received[-1], wire.Ping) or not self._script:
                    continue
                for answer in self._script.pop(0):
                    self.socket.send_multipart((name, answer))

    def close(self) -> None:
        self._stop.set()
        join_thread(self.thread)
        self.context.destroy(linger=0)
        self._lock.release()


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stub]]:
    # Programs are numbered from 0 in a process that never lost a server; other tests of this process lose some.
    monkeypatch.setattr(clients._ClientLoop.of_this_process(), "n_lost", 0)
    stubs: list[Stub] = []

    def make(*script: list[Any]) -> Stub:
        encoded = [[m if isinstance(m, bytes) else wire.encode(m) for m in answers] for answers in script]
        stubs.append(Stub(tmp_path / "s", encoded))
        return stubs[-1]

    yield make
    for server in stubs:
        server.close()
    for c in list(clients._ClientLoop.of_this_process().clients.values()):
        c.close()


WELCOME = wire.Welcome(version=wire.VERSION, model="stub", max_context=9)


def value(seq: int, ref: int, text: str) -> wire.Value:
    return wire.Value(0, seq, ref, (wire.Sample(text, "stop"),))


def test_connect_times_out_without_an_answer(stub: Callable[..., Stub]) -> None:
    with pytest.raises(ConnectFailed, match=r"did not answer within 0\.2 s"):
        connect(stub().path, timeout=0.2)


def test_connect_does_not_wait_for_another_server_that_does_not_answer(
    stub: Callable[..., Stub], tmp_path: Path
) -> None:
    def connect_to_silent() -> None:
        with pytest.raises(ConnectFailed, match="ended, or closed the connection"):
            connect(tmp_path / "silent", timeout=20)

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        waiting = threading.Thread(target=connect_to_silent)
        waiting.start()
        silent.accept()[0].close()  # the connection that tries whether somebody listens
        c = connect(stub([WELCOME]).path)
        assert waiting.is_alive()
    join_thread(waiting)
    assert c.welcome == WELCOME


@pytest.mark.parametrize("path", ["/tmp/\0a", f"tcp://{'a' * 64}:7100"])
def test_connect_to_what_cannot_be_an_address_fails(path: str) -> None:
    with pytest.raises(ConnectFailed, match=r"null byte|idna"):
        connect(path, timeout=5, server_key="k" * 40 if path.startswith("tcp") else "")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (wire.Welcome(version=99, model="m", max_context=1), "a different protocol version"),
        (wire.Failed(-1, 0, "connect_failed", "the server speaks version 3"), "speaks version 3"),
        (b"nonsense", "not a Banyan server"),
        (wire.Pong(), "a different protocol version"),
    ],
)
def test_connect_refuses_a_foreign_server(stub: Callable[..., Stub], answer: Any, error: str) -> None:
    with pytest.raises(ConnectFailed, match=error):
        connect(stub([answer]).path, timeout=5)


def test_repeated_message_fails_the_program(stub: Callable[..., Stub]) -> None:
    c = connect(stub([WELCOME], [value(0, 0, "one"), value(0, 0, "other"), value(1, 1, "two")]).path)
    program = c.program("p")
    ask(program, "a")
    assert program.future(0).result(5).samples[0].text == "one"
    with pytest.raises(RuntimeLost, match="program 'p' got message 0 instead of 1"):
        program.future(1).result(5)


def test_missing_message_fails_and_cancels_the_program(stub: Callable[..., Stub]) -> None:
    server = stub([WELCOME], [value(0, 0, "one"), value(3, 1, "two")])
    program = connect(server.path).program("p")
    ask(program, "a")
    assert program.future(0).result(5).samples[0].text == "one"
    with pytest.raises(RuntimeLost, match="program 'p' got message 3 instead of 1"):
        program.future(1).result(5)
    program.submit([wire.Gen(0, 9)])
    with pytest.raises(RuntimeLost, match="got message 3"):
        program.future(9).result(5)
    wait_until(lambda: wire.Cancel(0, 1) in server.received, "the Cancel")


def test_refused_client_fails_its_futures(stub: Callable[..., Stub]) -> None:
    c = connect(stub([WELCOME], [wire.Failed(-1, 0, "bad_message", "what is this?")]).path)
    program = c.program()
    ask(program, "a")
    with pytest.raises(RuntimeLost, match=r"refused this client: what is this\?"):
        program.future(0).result(5)


def test_failed_or_unanswered_query_raises(stub: Callable[..., Stub]) -> None:
    c = connect(stub([WELCOME], [wire.Answer(0, False, b"3 pages leak")], []).path)
    with pytest.raises(BanyanError, match="3 pages leak"):
        c.ask("check")
    with pytest.raises(RuntimeLost, match=r"'stats' within 0\.1 s"):
        c.ask("stats", timeout=0.1)


@pytest.mark.parametrize("when", ["as it is made", "as its last program ends"])
def test_reconnect_of_a_durable_program_is_not_closed_under_a_user(stub: Callable[..., Stub], when: str) -> None:
    """The I/O thread stands still while the user connects."""
    server = stub([WELCOME], [], [WELCOME], [value(0, 0, "b")], [], [wire.Answer(0, True, b"3")])
    first, loop = connect(server.path), clients._ClientLoop.of_this_process()
    is_still, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        is_still.set()
        go_on.wait(20)

    def lose_server() -> None:
        loop.drop(first, "the server is gone", may_come_back=True)
        if when == "as it is made":
            stand_still()

    program = first.program()
    program.limit(wire.ProgramLimits(durable="k"))
    if when == "as its last program ends":
        program.future(0).add_done_callback(lambda _: loop.call(stand_still))
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)], last=True)
    wait_until(lambda: any(isinstance(message, wire.Submit) for message in server.received), "the program")
    loop.call(lose_server)
    wait_until(lambda: is_still.is_set() and first.address in loop.clients, "the reconnect")
    own = connect(server.path)
    go_on.set()
    assert own is not first
    assert program.future(0).result(5).samples[0].text == "b"
    assert own.ask("stats") == 3


def test_close_ends_durable_programs_that_another_connection_resumed(stub: Callable[..., Stub]) -> None:
    server = stub([WELCOME], [], [WELCOME], [], [])
    first, loop = connect(server.path), clients._ClientLoop.of_this_process()
    program = first.program()
    program.limit(wire.ProgramLimits(durable="k"))
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)], last=True)
    wait_until(lambda: any(isinstance(message, wire.Submit) for message in server.received), "the program")
    loop.call(lambda: loop.drop(first, "the server is gone", may_come_back=True))
    wait_until(lambda: sum(isinstance(message, wire.Submit) for message in server.received) == 2, "the reconnect")
    first.close()
    with pytest.raises(RuntimeLost, match="this client was closed"):
        program.future(0).result(10)
    wait_until(lambda: any(isinstance(message, wire.Cancel) for message in server.received), "the program's end")


def test_connect_keeps_its_timeout_while_another_thread_connects(stub: Callable[..., Stub]) -> None:
    path, loop = stub([WELCOME]).path, clients._ClientLoop.of_this_process()
    handshake = loop._handshakes.setdefault(clients.ServerAddress(path.absolute()), threading.Lock())
    with handshake, pytest.raises(ConnectFailed, match=r"did not answer within 0.05 s; another thread waits"):
        connect(path, timeout=0.05)
    assert connect(path).welcome == WELCOME


def test_close_ends_durable_programs_that_wait_for_their_server(stub: Callable[..., Stub]) -> None:
    """The server comes back too late: the program is not sent again, and the new connection is closed."""
    server = stub([WELCOME], [], [WELCOME])
    first, loop = connect(server.path), clients._ClientLoop.of_this_process()
    program = first.program()
    program.limit(wire.ProgramLimits(durable="k"))
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)], last=True)
    with loop._handshakes[first.address]:  # the reconnect waits
        loop.call(lambda: loop.drop(first, "the server is gone", may_come_back=True))
        first.close()
        with pytest.raises(RuntimeLost, match="this client was closed"):
            program.future(0).result(10)
    wait_until(lambda: all(thread.name != "banyan-reconnect" for thread in threading.enumerate()), "the reconnect")
    wait_until(lambda: first.address not in loop.clients and not loop._calls, "the end of the new connection")
    assert sum(isinstance(message, wire.Submit) for message in server.received) == 1
