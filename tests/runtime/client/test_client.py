from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
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
from banyan.runtime.protocol import ipc, wire
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


def programs(c: Client) -> int:
    return int(c.ask("stats")["server"]["programs"])


# ---- the way there and back ----------------------------------------------------------------------------------------


def test_what_the_server_is(join: Join) -> None:
    c = join()
    assert (c.welcome.version, c.welcome.max_context, c.welcome.max_message) == (wire.VERSION, 512, 64 << 20)
    assert c.welcome.chat is not None
    assert c.welcome.chat.roles["user"] == ("<|im_start|>user\n", "<|im_end|>\n")
    assert c.welcome.chat.stop == ("<|im_end|>",)


def test_a_value_may_be_asked_for_before_or_after_it_came(join: Join) -> None:
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


def test_deltas_reach_a_listener_whenever_it_came(join: Join) -> None:
    c = join(say={"a": "one two three four"}, step_ms=2)
    program = c.program()
    threads: set[str] = set()
    heard: list[str] = []

    def listen(delta: wire.Delta) -> None:
        threads.add(threading.current_thread().name)
        heard.append(delta.text)

    ask(program, "a", stream=True)
    time.sleep(0.01)
    program.on_delta(0, listen)
    text = program.future(0).result(10).samples[0].text
    assert "".join(heard) == text == "one two three four"
    assert threads == {"banyan-io"}


def test_a_listener_that_raises_fails_its_value_and_nothing_else(join: Join) -> None:
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


def test_one_thread_serves_all(join: Join) -> None:
    c = join(say={"a": "b"})
    before = threading.active_count()
    some = [c.program() for _ in range(50)]
    for program in some:
        ask(program, "a")
    assert threading.active_count() == before
    assert {p.future(0).result(10).samples[0].text for p in some} == {"b"}


def test_any_thread_may_submit(join: Join) -> None:
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


def test_asyncio_awaits_the_same_futures(join: Join) -> None:
    c = join(say={"a": "b"})

    async def one() -> str:
        program = c.program()
        ask(program, "a")
        return (await asyncio.to_thread(program.future(0).result)).samples[0].text

    async def many() -> list[str]:
        return await asyncio.wait_for(asyncio.gather(*(one() for _ in range(20))), 20)

    assert asyncio.run(many()) == ["b"] * 20


def test_one_client_per_process_and_socket(serve: Serve) -> None:
    server = serve()
    one = connect(server.socket)
    assert connect(str(server.socket)) is one
    one.close()
    two = connect(server.socket)
    assert two is not one
    assert two.ask("info")["pid"] == server.pid


def test_questions(join: Join) -> None:
    c = join()
    assert c.ask("stats")["server"]["clients"] == 1
    assert c.ask("info")["engine"]["page"] == 16
    assert c.ask("check") is not None
    assert c.ask("flush") is not None


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_an_error_names_its_program_gen_and_line(join: Join) -> None:
    c = join()
    program = c.program("story")
    ask(program, "x " * 600, name="hero", line="story.py:7")
    program.submit([wire.Read(0, 1)])
    with pytest.raises(PromptTooLong) as e:
        program.future(0).result(10)
    assert (e.value.program, e.value.gen, e.value.line) == ("story", "hero", "story.py:7")
    assert e.value.prompt_tail.endswith("x x ")
    with pytest.raises(PromptTooLong, match="before it"):
        program.future(1).result(10)


def test_errors_are_fresh_for_each_future(join: Join) -> None:
    program = join(step_ms=5).program()
    program.submit([wire.Gen(0, 0, LONG), wire.Gen(0, 1, LONG)])
    program.cancel()
    errors = [program.future(k).exception(10) for k in (0, 1, 2)]
    assert [type(e) for e in errors] == [Cancelled] * 3
    assert len(set(map(id, errors))) == 3


def test_cancel_stops_the_work(join: Join) -> None:
    c = join(step_ms=5)
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)])
    assert programs(c) == 1
    program.cancel()
    with pytest.raises(Cancelled):
        program.future(0).result(10)
    program.cancel()
    assert programs(c) == 0
    assert c.ask("stats")["server"]["requests"] == 0


def test_a_message_on_its_way_does_not_hide_that_a_program_was_cancelled(join: Join) -> None:
    c = join(step_ms=5)
    program = c.program()
    asked = program.future(7)  # of what was never submitted
    with clients._busy:  # the I/O thread is between two messages
        program.cancel()
        c.forget_if_over(program.number)  # what it does with the next one
    with pytest.raises(Cancelled):
        asked.result(10)


def test_a_closed_program_finishes_what_it_was_given(join: Join) -> None:
    c = join(say={"a": "b"}, step_ms=2)
    program = c.program()
    ask(program, "a")
    program.close()
    program.close()
    assert program.future(0).result(10).samples[0].text == "b"
    wait_until(lambda: programs(c) == 0, "the end of the programs")
    with pytest.raises(BadProgram, match="closed"):
        ask(program, "a")
    with pytest.raises(BadProgram, match="without being asked"):
        program.future(7).result(10)
    wait_until(lambda: not c._programs, "no programs", seen=lambda: c._programs)


def test_a_program_without_ops_never_reaches_the_server(join: Join) -> None:
    c = join()
    program = c.program()
    program.close()
    with pytest.raises(BadProgram):
        program.future(0).result(10)
    assert programs(c) == 0


def test_a_collected_program_closes_itself_and_its_futures_live_on(join: Join) -> None:
    c = join(say={"a": "b"}, step_ms=2)
    program = c.program()
    ask(program, "a")
    future = program.future(0)
    del program
    gc.collect()
    assert future.result(10).samples[0].text == "b"
    wait_until(lambda: programs(c) == 0, "the end of the programs")
    wait_until(lambda: not c._programs, "no programs", seen=lambda: c._programs)


def test_a_closed_client_fails_what_was_pending_and_the_server_frees_it(serve: Serve) -> None:
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
    wait_until(lambda: programs(other) == 0, "the end of the programs")
    assert other.ask("stats")["server"]["requests"] == 0


def test_a_dead_server_is_known_at_once(serve: Serve) -> None:
    server = serve(step_ms=5)
    c = connect(server.socket)
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, LONG)])
    programs(c)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(RuntimeLost, match="is gone"):  # heartbeats would say "stopped answering"
        program.future(0).result(10)
    with pytest.raises(RuntimeLost, match="is gone"):
        c.ask("stats")
    with pytest.raises(RuntimeLost, match="is gone"):
        c.program()
    with pytest.raises(ConnectFailed):
        connect(server.socket)


def test_a_server_that_hangs_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_message_too_large_is_refused_where_it_is_made(serve: Serve) -> None:
    c = connect(serve(options={"max_message": 1 << 16}, say={"a": "b"}).socket)
    program = c.program("big")
    with pytest.raises(BadMessage, match=r"max_message"):
        program.submit([wire.Append(0, ("x" * (1 << 17),))])
    ask(program, "a")
    assert program.future(0).result(10).samples[0].text == "b"


# From Python 3.12 on, a fork beside threads is warned of: this test is about just that.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_must_connect_itself(serve: Serve) -> None:
    server = serve(say={"a": "b"}, step_ms=2)
    c = connect(server.socket)
    program = c.program()
    pending = program.future(5)
    ask(program, "a")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        said: list[str] = []
        for use in (c.program, lambda: ask(program, "a"), lambda: c.ask("info"), lambda: pending.result(5)):
            try:
                use()
            except RuntimeLost as e:
                said.append(str(e))
        mine = connect(server.socket).program()
        ask(mine, "a")
        said.append(mine.future(0).result(10).samples[0].text)
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as f:
        said = json.load(f)
    assert len(said) == 5
    assert all("connect in" in words for words in said[:4])
    assert said[4] == "b"
    assert program.future(0).result(10).samples[0].text == "b", "the parent is unharmed"


SCRIPT = """
import sys
from banyan.runtime.client import client
from banyan.runtime.protocol import wire
program = client.connect(sys.argv[1]).program()
program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=400))])
print(client.connect(sys.argv[1]).ask("stats")["server"]["requests"], flush=True)
"""


@pytest.mark.parametrize("end", ["", "import time; time.sleep(60)"])
def test_a_client_process_that_ends_frees_what_it_had(serve: Serve, end: str) -> None:
    server = serve(step_ms=20)
    mine = connect(server.socket)
    arguments = [sys.executable, "-W", "error", "-c", SCRIPT + end, str(server.socket)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stderr is not None
        assert user.stdout.readline() == "1\n"
        if end:
            user.kill()
        assert user.wait(10) == (-9 if end else 0)
        assert user.stderr.read() == ""
    wait_until(lambda: mine.ask("stats")["server"]["requests"] == 0, "the end of the requests")
    assert mine.ask("stats")["server"]["clients"] == 1


# ---- servers that are none -----------------------------------------------------------------------------------------


class Stub:
    """A ROUTER that answers what it is told to. `script`: one list of answers per message that comes."""

    def __init__(self, path: Path, script: list[list[bytes]]) -> None:
        self.path, self.context = path, zmq.Context()
        self.heard: list[wire.ClientMessage] = []
        self.socket, self._lock = ipc.listen(self.context, path, 1 << 20)
        self._script, self._stop = script, threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.socket.poll(10):
                name, data = self.socket.recv_multipart()
                self.heard.append(wire.decode_client(data))
                if isinstance(self.heard[-1], wire.Ping) or not self._script:
                    continue
                for answer in self._script.pop(0):
                    self.socket.send_multipart((name, answer))

    def close(self) -> None:
        self._stop.set()
        join_thread(self.thread)
        self.context.destroy(linger=0)
        self._lock.release()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Callable[..., Stub]]:
    made: list[Stub] = []

    def make(*script: list[Any]) -> Stub:
        encoded = [[m if isinstance(m, bytes) else wire.encode(m) for m in answers] for answers in script]
        made.append(Stub(tmp_path / "s", encoded))
        return made[-1]

    yield make
    for one in made:
        one.close()
    for c in list(clients._ClientLoop.of_this_process().clients.values()):
        c.close()


WELCOME = wire.Welcome(version=wire.VERSION, model="stub", max_context=9)


def value(seq: int, ref: int, text: str) -> wire.Value:
    return wire.Value(0, seq, ref, (wire.Sample(text, "stop"),))


def test_nobody_answers(stub: Callable[..., Stub]) -> None:
    with pytest.raises(ConnectFailed, match=r"did not answer within 0\.2 s"):
        connect(stub().path, timeout=0.2)


def test_no_socket(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="there is no socket"):
        connect(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (wire.Welcome(version=99, model="m", max_context=1), "another version"),
        (wire.Failed(-1, 0, "connect_failed", "the server speaks version 3"), "speaks version 3"),
        (b"nonsense", "not a Banyan server"),
        (wire.Pong(), "another version"),
    ],
)
def test_somebody_else_answers(stub: Callable[..., Stub], answer: Any, what: str) -> None:
    with pytest.raises(ConnectFailed, match=what):
        connect(stub([answer]).path, timeout=5)


def test_a_message_that_comes_twice_is_an_error(stub: Callable[..., Stub]) -> None:
    c = connect(stub([WELCOME], [value(0, 0, "one"), value(0, 0, "other"), value(1, 1, "two")]).path)
    program = c.program("p")
    ask(program, "a")
    assert program.future(0).result(5).samples[0].text == "one"
    with pytest.raises(RuntimeLost, match="program 'p' got message 0 instead of 1"):
        program.future(1).result(5)


def test_a_gap_is_an_error_and_stops_the_program(stub: Callable[..., Stub]) -> None:
    server = stub([WELCOME], [value(0, 0, "one"), value(3, 1, "two")])
    program = connect(server.path).program("p")
    ask(program, "a")
    assert program.future(0).result(5).samples[0].text == "one"
    with pytest.raises(RuntimeLost, match="program 'p' got message 3 instead of 1"):
        program.future(1).result(5)
    program.submit([wire.Gen(0, 9)])
    with pytest.raises(RuntimeLost, match="got message 3"):
        program.future(9).result(5)
    wait_until(lambda: wire.Cancel(0, 1) in server.heard, "the Cancel")


def test_a_server_that_throws_the_client_out(stub: Callable[..., Stub]) -> None:
    c = connect(stub([WELCOME], [wire.Failed(-1, 0, "bad_message", "what is this?")]).path)
    program = c.program()
    ask(program, "a")
    with pytest.raises(RuntimeLost, match=r"refused this client: what is this\?"):
        program.future(0).result(5)


def test_a_question_that_is_answered_no_or_not_at_all(stub: Callable[..., Stub]) -> None:
    c = connect(stub([WELCOME], [wire.Answer(0, False, b"3 pages leak")], []).path)
    with pytest.raises(BanyanError, match="3 pages leak"):
        c.ask("check")
    with pytest.raises(RuntimeLost, match=r"'stats' within 0\.1 s"):
        c.ask("stats", timeout=0.1)
