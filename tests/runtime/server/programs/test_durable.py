"""Durable programs: after a server is killed and restarted, they continue with the tokens in the journal."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from fake_link import add_engine

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, ConfigError, Overloaded, RuntimeLost, Unsupported
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.server.engine_link.requests import EngineRequest, EngineRequests
from banyan.runtime.server.programs import journal
from banyan.runtime.server.programs.durables import Durables
from banyan.runtime.server.programs.journal import Diary, Grew, Journal, records
from banyan.runtime.server.programs.scheduling import SchedulingInfo
from banyan.runtime.server.text.prompt import pack
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from forms import in_short
from waits import join, wait_until

Start = Callable[..., launch.ServerProcess]
TWOS, THREES = " two" * 60, " three" * 20
RULE = {"pause": 15, "say": {"one": TWOS, "two": THREES}}
"""Each engine pauses after 15 steps, before its last token, so a server is always killed during generation."""


@pytest.fixture
def restart(
    fake_model: Callable[..., Path], boot: tuple[str, ...], tmp_path: Path
) -> Iterator[Callable[..., launch.ServerProcess]]:
    """`restart(...)`: starts a server at the socket of the previous one."""
    with contextlib.ExitStack() as stack:

        def start(options: dict[str, Any] | None = None, command: Any = boot, **rule: Any) -> launch.ServerProcess:
            model = (options or {}).get("model") or str(fake_model(**(rule or RULE)))
            settings = config.make(**{"model": model, "socket": str(tmp_path / "private" / "s"), **(options or {})})
            server = launch.start(settings, timeout=100, command=command)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def resume_engines(tmp_path: Path) -> Callable[[], None]:
    """A call that makes paused engines go on, and later ones not pause."""
    return (tmp_path / "model" / "go").touch


@pytest.fixture
def connect() -> Iterator[Callable[[launch.ServerProcess], client.Client]]:
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(contextlib.closing(client.connect(server.socket, 60)))


def kill(server: launch.ServerProcess) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait(30)


def submit_durable(c: client.Client, *ops: wire.Op, key: str = "k", last: bool = True) -> client.ProgramHandle:
    program = c.program(key)
    program.limit(wire.ProgramLimits(durable=key))
    program.submit(list(ops), last=last)
    return program


def text(program: client.ProgramHandle, ref: int) -> str:
    return program.future(ref).result(90).samples[0].text


def files(server: launch.ServerProcess) -> list[Path]:
    folder = Path(f"{server.socket}.journal")
    return sorted(folder.iterdir()) if folder.exists() else []


def journal_tokens(server: launch.ServerProcess) -> list[int]:
    """The tokens of all requests in the journal files."""
    found = [record for path in files(server) for _, record in records(path.read_bytes())]
    return [i for grew in found if isinstance(grew, Grew) for i in memoryview(grew.ids).cast("i")]


def wait_for_tokens(server: launch.ServerProcess, n: int) -> None:
    """Waits until the journal has more than `n` tokens."""
    what = f"{n} tokens in the journal"
    wait_until(
        lambda: len(journal_tokens(server)) > n,
        what,
        alive=lambda: server.is_alive,
        seen=lambda: journal_tokens(server),
    )


GREEDY = wire.Sampling(max_tokens=400, temperature=0.0)
ONE = (wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY))
AFTER_A_LOSS = 1 << 32
"""The number of the first program of a client that has lost one server (Client._numbers)."""


@pytest.mark.long
def test_durable_program_continues_after_a_kill_and_others_fail(
    restart: Start, connect: Any, resume_engines: Callable[[], None]
) -> None:
    server = restart()
    c = connect(server)
    ops = (
        wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY), wire.Fork(0, (1, 2)), wire.Append(1, (" two",)),
        wire.Gen(1, 1, GREEDY), wire.Append(2, ("!", wire.Ref(1), "one")), wire.Gen(2, 2, GREEDY),
    )  # fmt: skip
    program = submit_durable(c, *ops)
    other = c.program()
    other.submit(list(ONE))
    wait_for_tokens(server, 10)
    (path,) = files(server)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    kill(server)
    with pytest.raises(RuntimeLost, match="is gone"):
        other.future(0).result(30)
    assert not program.future(0).done()
    n_before = len(journal_tokens(server))
    resume_engines()
    server = restart()
    assert text(program, 0) == TWOS
    assert text(program, 1) == THREES
    assert text(program, 2) == TWOS
    assert n_before > 10
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))


PAUSING = """
import sys, time
from pathlib import Path
from banyan.runtime.engine import loop, process
from banyan.runtime.server.worker import main

go, step, n_steps = Path(__file__).with_name("go"), loop.EngineLoop.step, iter(range(60))

def pausing(engine):
    while next(n_steps, None) is None and not go.exists():
        time.sleep(0.01)
    return step(engine)

if "--flight-fd" in sys.argv:
    loop.EngineLoop.step = pausing
    sys.exit(process.main(sys.argv[1:]))
sys.exit(main(sys.argv[1:], engine=[sys.executable, __file__]))
"""
"""A server with a real engine, which pauses after 60 steps until a file `go` exists beside this one."""


@pytest.mark.long
def test_sampled_tokens_and_logprobs_survive_a_kill(
    restart: Start, connect: Any, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "boot.py").write_text(PAUSING)
    command = [sys.executable, str(tmp_path / "boot.py")]
    options = {"model": str(tiny_model("llama")), "threads": 1, "kv_memory": "16MB", "device": "cpu"}
    server = restart(options, command)
    drawn = wire.Sampling(max_tokens=400, temperature=1.5, ignore_eos=True, logprobs=True)
    program = submit_durable(connect(server), wire.Append(0, ("the quick brown",)), wire.Gen(0, 0, drawn))
    wait_for_tokens(server, 29)
    kill(server)
    before = journal_tokens(server)
    assert 30 <= len(before) < 400
    (tmp_path / "go").touch()
    server = restart(options, command)
    (sample,) = program.future(0).result(90).samples
    assert [logprob.id for logprob in sample.logprobs[: len(before)]] == before, "kept without a seed"
    assert len(sample.logprobs) == sample.n_tokens == 400
    assert len({one.logprob for one in sample.logprobs[: len(before)]}) > 20


def test_durable_program_survives_kills_of_server_and_engine(
    restart: Start, connect: Any, resume_engines: Callable[[], None]
) -> None:
    server = restart()
    program = submit_durable(connect(server), *ONE)
    for k in (5, 20, 35):  # each engine generates 15 tokens
        wait_for_tokens(server, k)
        kill(server)
        server = restart()
    os.kill(connect(server).ask("info")["engine_pid"], signal.SIGKILL)
    resume_engines()
    assert text(program, 0) == TWOS


def test_reconnected_client_finds_its_tokens(restart: Start, connect: Any, resume_engines: Callable[[], None]) -> None:
    server = restart()
    first = connect(server)
    submit_durable(first, *ONE, key="job")
    wait_for_tokens(server, 10)
    first.close()
    second = connect(server)
    wait_until(lambda: second.ask("stats")["server"]["programs"] == 0, "the end of the first client's program")
    n_before = len(journal_tokens(server))
    assert len(files(server)) == 1, "the journal is kept for a new client"
    resume_engines()
    assert text(submit_durable(second, *ONE, key="job"), 0) == TWOS
    assert n_before > 10
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))


def test_later_program_with_the_same_key_takes_over(restart: Start, resume_engines: Callable[[], None]) -> None:
    server = restart()
    with contextlib.closing(client.connect(server.socket, 60)) as c:
        first = submit_durable(c, *ONE, key="same")
        wait_for_tokens(server, 5)
        second = submit_durable(c, *ONE, key="same")
        with pytest.raises(RuntimeLost, match="took this durable program over"):
            first.future(0).result(30)
        resume_engines()
        assert text(second, 0) == TWOS
        c.ask("check")


@pytest.mark.parametrize("is_answered", in_short([True], [False, True]))
def test_client_is_asked_once_per_attempt(
    restart: Start, connect: Any, resume_engines: Callable[[], None], is_answered: bool
) -> None:
    """A gen with retries: the client's answer counts, whether it comes before or after the server is killed."""
    server = restart(pause=15, say={"two": " three"})
    program = connect(server).program("k")
    program.limit(wire.ProgramLimits(durable="k"))
    calls: list[wire.Called] = []
    program.on_call(0, calls.append)
    gen = wire.Gen(0, 0, GREEDY, retries=2)
    program.submit([wire.Append(0, ("x two",)), gen])
    wait_until(lambda: calls, "the first question", alive=lambda: server.is_alive)
    rejection = wire.Results(0, 0, 0, ("no, one",))
    if is_answered:
        n = len(journal_tokens(server))  # before the second attempt starts: it pauses at a fixed number of tokens
        program.submit([rejection])
        wait_for_tokens(server, n + 5)
    kill(server)
    resume_engines()
    server = restart()
    if not is_answered:
        other = connect(server)
        wait_until(lambda: other.ask("stats")["server"]["programs"], "the program", alive=lambda: server.is_alive)
        program.submit([rejection])
    wait_until(lambda: len(calls) > 1, "the second question", alive=lambda: server.is_alive)
    program.submit([wire.Results(0, 0, 1, ())], last=True)
    assert program.future(0).result(90).samples[0].n_tokens > 50
    assert [called.round for called in calls] == [0, 1]


@pytest.mark.long
def test_templates_and_limits_survive_a_kill(restart: Start, connect: Any, resume_engines: Callable[[], None]) -> None:
    from banyan.runtime.protocol.op_template import ProgramTemplate

    server = restart()
    c = connect(server)
    number = c.define(ProgramTemplate((wire.Append(0, (wire.Arg(0),)), wire.Gen(0, 0, GREEDY))))
    program = c.program("k")
    program.limit(wire.ProgramLimits(durable="k", timeout=80.0, left=80.0, budgets=(wire.TokenLimit(1000),)))
    program.submit([wire.Use(0, number, ("one",))], last=True)
    wait_for_tokens(server, 5)
    kill(server)
    resume_engines()
    restart()
    assert text(program, 0) == TWOS


def test_program_that_a_restarted_server_cannot_take_fails_alone(
    restart: Start, connect: Any, resume_engines: Callable[[], None]
) -> None:
    server = restart()
    c = connect(server)
    large = submit_durable(c, *ONE, key="large", last=False)
    large.submit([wire.Select(0, 1, ("a" * 100_000, "b"))], last=True)
    small = submit_durable(c, *ONE, key="small")
    wait_for_tokens(server, 5)
    kill(server)
    resume_engines()
    server = restart({"max_message": 1 << 16})
    with pytest.raises(BadMessage, match="has 100038 bytes; the server accepts at most"):
        large.future(0).result(60)
    assert text(small, 0) == TWOS
    wait_until(lambda: not files(server), "the end of both programs", seen=lambda: files(server))


def test_cancel_works_without_a_server(restart: Start, connect: Any) -> None:
    server = restart()
    program = submit_durable(connect(server), *ONE)
    wait_for_tokens(server, 5)
    kill(server)
    wait_until(lambda: program._futures._connection.lost is not None, "the news of the server's death")
    program.cancel()
    with pytest.raises(BanyanError, match="cancelled"):
        program.future(0).result(10)


def test_lost_server_raises_after_the_reconnect_timeout(
    restart: Start, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("banyan.runtime.client.client.RECONNECT_TIMEOUT", 1.0)
    server = restart()
    program = submit_durable(connect(server), *ONE)
    wait_for_tokens(server, 5)
    kill(server)
    with pytest.raises(RuntimeLost, match="did not come back within 1 s"):
        program.future(0).result(30)


@pytest.mark.parametrize("comes_back", in_short([False], [False, True]))
def test_unexpected_error_of_a_reconnect_is_one_attempt_that_failed(
    restart: Start,
    connect: Any,
    resume_engines: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    comes_back: bool,
) -> None:
    """The thread that reconnects goes on, so the program does not wait without end."""
    server = restart()
    program = submit_durable(connect(server), *ONE)
    wait_for_tokens(server, 5)
    make, n_failed = client.Client, 0

    def fail(*arguments: Any) -> client.Client:
        nonlocal n_failed
        n_failed += 1
        if comes_back and n_failed > 2:
            return make(*arguments)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(client, "Client", fail)
    if comes_back:
        resume_engines()
        kill(server)
        restart()
        assert text(program, 0) == TWOS
        return
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT", 1.0)
    kill(server)
    with pytest.raises(RuntimeLost, match=r"did not come back within 1 s \(OSError.*too many open files"):
        program.future(0).result(30)


@bn.function
def chain(s: bn.State) -> str:
    s += "one" + bn.gen("a", max_tokens=400, temperature=0.0)
    forks = s.fork(2)
    for fork in forks:
        fork += " two" + bn.gen("b", max_tokens=400, temperature=0.0)
    return str(s["a"]) + str(forks[1]["b"])


@pytest.mark.parametrize("name", in_short([True], [True, "nightly"]))
def test_durable_is_an_option_of_run(restart: Start, resume_engines: Callable[[], None], name: bool | str) -> None:
    server = restart()
    done: list[str] = []
    with bn.connect(server.socket, 60) as endpoint:
        thread = threading.Thread(target=lambda: done.append(chain.run(backend=endpoint, durable=name).ret_value))
        thread.start()
        wait_for_tokens(server, 10)
        kill(server)
        resume_engines()
        server = restart()
        join(thread)
    assert done == [TWOS + THREES]
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))


@pytest.mark.parametrize(
    "message", [wire.Cancel(AFTER_A_LOSS, 1), wire.Acknowledge(AFTER_A_LOSS)], ids=["cancel", "acknowledge"]
)
def test_last_message_of_a_client_that_left_counts(
    restart: Start, write_boot: Callable[[str], tuple[str, ...]], message: wire.Cancel | wire.Acknowledge
) -> None:
    server = restart(
        command=write_boot("from banyan.runtime.server import listeners\nlisteners._BATCH = 10"), say={"one": "two"}
    )
    is_last = isinstance(message, wire.Acknowledge)
    limits = wire.ProgramLimits(durable="k")
    with zmq.Context() as context:
        socket, monitor = ipc.connect(context, server.socket)
        for sent in (wire.Hello(wire.VERSION), wire.Submit(message.program, 0, ONE, last=is_last, limits=limits)):
            socket.send(wire.encode(sent))
        while not isinstance(wire.decode_server(socket.recv()), wire.Value):
            pass
        assert files(server)
        os.kill(server.pid, signal.SIGSTOP)
        for k in range(50):  # more than the server receives at once; it cannot answer the first of them
            socket.send(wire.encode(wire.Ask(k, "info")))
        socket.send(wire.encode(message))
        monitor.close(0)
        socket.close(10_000)
    os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))


def test_durable_refuses_incompatible_options() -> None:
    api = bn.OpenAI("m", base_url="http://localhost:9/v1", api_key="none")
    with pytest.raises(Unsupported, match="durable"):
        chain.run(backend=api, durable=True)
    with pytest.raises(Unsupported, match="leave out stream"):
        chain.run(backend=bn.Mock("x"), durable=True, stream=True)
    with pytest.raises(BadProgram, match="needs its own name"):
        chain.run_batch([{}], backend=bn.Mock("x"), opts=bn.Options(durable="name"))


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_durable_needs_a_server_that_clients_can_reconnect_to(
    serve: Callable[..., launch.ServerProcess], restart: Start, connect: Any
) -> None:
    private = serve(say={})
    with contextlib.closing(client.connect(private.socket, 60)) as c, pytest.raises(Unsupported, match="banyan serve"):
        submit_durable(c, wire.Append(0, ("a",)), wire.Gen(0, 0)).future(0).result(30)
    server = restart({"isolate": "connection"})
    with pytest.raises(Unsupported, match="isolates connections"):
        submit_durable(connect(server), wire.Append(0, ("a",)), wire.Gen(0, 0)).future(0).result(30)
    assert not files(server)


def test_invalid_durable_programs_are_refused(restart: Start, connect: Any) -> None:
    server = restart()
    c = connect(server)
    with pytest.raises(Unsupported, match="cannot stream"):
        submit_durable(c, wire.Gen(0, 0, stream=True)).future(0).result(30)
    with pytest.raises(BadProgram, match="a name of 300 characters; at most 256"):
        submit_durable(c, wire.Gen(0, 0), key="k" * 300).future(0).result(30)
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))
    with pytest.raises(ConfigError, match="as a size in memory"):
        config.make(durable_bytes="some")


def test_full_journal_fails_with_its_limit(restart: Start, connect: Any) -> None:
    server = restart({"durable_bytes": "500B"})
    with pytest.raises(BanyanError, match=r"the journal of durable programs has \d+ bytes, and may have 500"):
        submit_durable(connect(server), *ONE).future(0).result(60)


def test_request_that_does_not_fit_the_journal_leaves_nothing_behind(restart: Start, connect: Any) -> None:
    server = restart({"durable_bytes": "80B"})  # the record that opens a file takes 50 bytes, that of a request 60
    c = connect(server)
    with pytest.raises(BanyanError, match=r"the journal of durable programs has \d+ bytes, and may have 80"):
        submit_durable(c, *ONE).future(0).result(60)
    c.ask("check")


# ---- the files -----------------------------------------------------------------------------------------------------


def run(k: int, seed: int = 7) -> wire.Run:
    return wire.Run(k, b"\1\0\0\0", order=(99 + k, 0, k, 0), seed=seed)


def test_truncated_or_corrupted_journal_keeps_the_records_before(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j", 1 << 20)
    program_journal = first.open(b"key")
    entries = [program_journal.begin(run(k, seed=k)) for k in range(3)]
    for k in range(30):
        entries[k % 3].grew(bytes([k, 0, 0, 0]), ())
    entries[0].ended(wire.Finish(0, "length"))
    program_journal.close()
    data = program_journal.path.read_bytes()
    ends = [end for end, _ in records(data)]
    assert ends[-1] == len(data) == first.n_bytes
    for n in (0, 3, ends[0] - 1, ends[5], ends[5] + 9, len(data) - 1):
        program_journal.path.write_bytes(data[:n])
        assert [end for end, _ in records(program_journal.path.read_bytes())] == [end for end in ends if end <= n]
    for offset in range(0, len(data), 7):
        corrupted = bytearray(data)
        corrupted[offset] ^= 0x41
        assert len(list(records(bytes(corrupted)))) == sum(end <= offset for end in ends), "no corrupted record is read"
    program_journal.path.write_bytes(data[: ends[-3]] + b"garbage")
    later = Journal(tmp_path / "j", 1 << 20)
    program_journal = later.open(b"key")
    restored = [program_journal.begin(run(k, seed=100)) for k in range(4)]
    assert [entry.seed for entry in restored] == [0, 1, 2, 100]
    assert [len(entry.ids) // 4 for entry in restored] == [10, 10, 9, 0]
    assert restored[0].finish is None
    restored[3].grew(b"\5\0\0\0", ())
    program_journal.close()
    assert [end for end, _ in records(program_journal.path.read_bytes())][-1] == program_journal.path.stat().st_size, (
        "the garbage is removed"
    )
    assert later.n_bytes == program_journal.path.stat().st_size


class Owner:
    """The durable program to which requests in a test belong."""

    scheduling = SchedulingInfo()

    def __init__(self, diary: Diary) -> None:
        self.record = diary.begin

    def spend(self, order: tuple[int, ...], n: int) -> None:
        pass

    def crashed(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    "changed",
    [
        wire.Sampling(),
        wire.Sampling(stop=("three",)),
        wire.Sampling(stop=("two",), stop_regex=("t.o",)),
        wire.Sampling(stop_regex=("two",)),
    ],
    ids=["no stop", "another", "one more", "a pattern"],
)
def test_request_whose_stops_have_changed_is_generated_anew(
    words: Tokenizer, tmp_path: Path, changed: wire.Sampling
) -> None:
    ids = words.encode([TextSpan("one two three")])

    def start(sampling: wire.Sampling, **options: Any) -> tuple[EngineRequest, list[Any]]:
        """A request of the program after a restart, and what the engine gets."""
        diary = Journal(tmp_path / "j", 1 << 20).open(b"key")
        stack.callback(diary.close)
        commands: list[Any] = []
        requests = EngineRequests(words, None)
        add_engine(requests, commands.append)
        started = wire.Run(0, pack(ids), sampling, order=(0, 0))
        request = requests.start(started, lambda r: None, owner=Owner(diary), **options)
        return request, commands

    with contextlib.ExitStack() as stack:
        stopped = wire.Sampling(stop=("two",))
        request, (sent,) = start(stopped)
        assert not sent.sampling.stop
        assert request.record is not None
        request.record.grew(pack(ids), ())
        request.record.ended(wire.Finish(0, "abort"))
        request, commands = start(stopped)
        assert (request.text.text, commands) == ("one ", [])
        assert [type(one) for one in start(changed)[1]] == [wire.Run]
        assert [type(one) for one in start(stopped, turn_ends=(5,))[1]] == [wire.Run], "other ids end it"
        assert [type(one) for one in start(stopped, visible=(0,))[1]] == [wire.Run], "its text has other tokens"


def test_file_that_cannot_begin_is_closed_and_removed(tmp_path: Path) -> None:
    full = Journal(tmp_path / "j", 40)
    n_open = len(os.listdir("/proc/self/fd"))
    for k in range(3):
        with pytest.raises(Overloaded):
            full.open(bytes([k]))
    assert len(os.listdir("/proc/self/fd")) == n_open
    assert not list((tmp_path / "j").iterdir())
    assert full.n_bytes == 0
    assert not full.closed_files


def test_partly_written_record_does_not_hide_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program_journal = Journal(tmp_path / "j", 1 << 20).open(b"key")
    entry = program_journal.begin(run(0))
    write, ours = os.write, program_journal._fd
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", lambda fd, data: write(fd, data[:20] if fd == ours else data))
        with pytest.raises(BanyanError, match="the disk is full"):
            entry.grew(bytes(40), ())
    entry.grew(b"\5\0\0\0", ())
    program_journal.close()
    restored = Journal(tmp_path / "j", 1 << 20).open(b"key").begin(run(0))
    assert restored.ids == b"\5\0\0\0"


def test_start_in_the_hour_that_clocks_repeat_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = 1729990810  # ten seconds after daylight saving time ended
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        fixed = SimpleNamespace(now=lambda: datetime.fromtimestamp(began), fromisoformat=datetime.fromisoformat)
        monkeypatch.setattr(journal, "datetime", fixed)
        for zone in ("Europe/Berlin", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            diary = Journal(tmp_path / "j", 1 << 20).open(b"key")
            assert diary.started.timestamp() == began
            assert f"{diary.started:%d %b %Y %H:%M:%S}" == "27 Oct 2024 02:00:10", "prompts show the same time"
            diary.close()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_changed_request_does_not_match_the_journal(tmp_path: Path) -> None:
    program_journal = Journal(tmp_path / "j", 1 << 20).open(b"key")
    program_journal.begin(run(0)).grew(b"\5\0\0\0", ())
    program_journal.close()
    changes: list[dict[str, Any]] = [
        {"ids": b"\2\0\0\0"}, {"order": (99, 1, 0, 0)}, {"namespace": b"x"}, {"score_from": 1}, {"sample": 1},
        {"sampling": wire.Sampling(temperature=0.5)}, {},
    ]  # fmt: skip
    for change in changes:
        program_journal = Journal(tmp_path / "j", 1 << 20).open(b"key")
        entry = program_journal.begin(
            wire.Run(**{"rid": 5, "ids": b"\1\0\0\0", "order": (7, 0, 0, 0), "seed": 7} | change)
        )
        assert entry.is_new == bool(change), change
        program_journal.close()


def test_old_journals_are_removed_for_room_and_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal(tmp_path / "j", 1000)
    for k in range(3):
        program_journal = first.open(bytes([k]))
        program_journal.begin(run(k)).grew(bytes(200), ())
        program_journal.close()
    assert 600 < first.n_bytes < 1000
    open_journal = first.open(b"open")
    open_journal.begin(run(9)).grew(bytes(300), ())
    assert len(list((tmp_path / "j").iterdir())) < 4, "the oldest journal is removed"
    assert first.n_bytes <= 1000
    open_journal.close()
    kept, *others = (tmp_path / "j").iterdir()
    for path in others:
        os.utime(path, (0, 0))
    second = Journal(tmp_path / "j", 1000)
    second.delete_old()
    assert [*(tmp_path / "j").iterdir()] == [kept]
    assert second.n_bytes == kept.stat().st_size
    assert journal.MAX_AGE == 86400
    running = second.open(b"running")
    a_day_later = time.time() + journal.MAX_AGE + 1
    monkeypatch.setattr(time, "time", lambda: a_day_later)
    second.delete_old()
    assert [*(tmp_path / "j").iterdir()] == [running.path]
    running.close()
    second.delete_old()
    assert running.path.exists(), "its day begins when the program ends"


def test_file_that_cannot_be_deleted_counts_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Journal(tmp_path / "j", 1000)
    few.open(b"key").close()
    n_bytes = few.n_bytes

    def fail(*_: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(Overloaded, match=f"has {n_bytes} bytes, and may have 1000"):
            few.make_room(1000)
    few.make_room(1000)
    assert few.n_bytes == 0
    assert not few.path(b"key").exists()


def test_drawn_choice_survives_a_restart(bench: Callable[..., Any], tmp_path: Path) -> None:
    """Without a seed too: the state must go on with the choice that the client already has."""
    choices = tuple("abcdefgh")

    def choose(n_before: int, *texts: str) -> str:
        b = bench(durables=Durables(Journal(tmp_path / "journal", 1 << 20)))
        for number in range(1, n_before + 1):  # each takes a seed of its own
            b.send(wire.Submit(number, 0, (wire.Append(0, ("q",)), wire.Select(0, 0, choices, temperature=9.0))))
        b.run()
        ops = *(wire.Append(0, (text,)) for text in texts), wire.Select(0, 0, choices, temperature=9.0)
        b.send(wire.Submit(0, 0, ops, limits=wire.ProgramLimits(durable="a")))
        b.run()
        chosen = b.text(0)
        b.leave()
        return str(chosen)

    assert len({choose(n, "one two") for n in range(8)}) == 1
    assert choose(8, "one", " two") == choose(9, "one two"), "the same text, sent in other ops"


def test_journal_that_cannot_be_removed_does_not_harm_the_server(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has become read-only, and a durable program ends whose client is gone; the server goes on."""
    durables = Durables(Journal(tmp_path / "journal", 1 << 20))
    b = bench(durables=durables)
    for number in (0, 1):
        b.send(wire.Submit(number, 0, (wire.Mark(0, 0),), limits=wire.ProgramLimits(durable=str(number))))
    b.programs.acknowledge(b"me", wire.Acknowledge(0))

    def fail(*_: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(Path, "unlink", fail)
    b.leave()
    assert len(b.programs) == len(b.programs._ending) == len(durables._running) == 0


def test_acknowledgements_are_forgotten_with_their_programs(bench: Callable[..., Any], tmp_path: Path) -> None:
    durables = Durables(Journal(tmp_path / "journal", 1 << 20))
    b = bench(durables=durables)
    for number, name in enumerate(("", "a", "a")):  # not durable; durable; one that takes the name over
        b.send(wire.Submit(number, 0, (), limits=wire.ProgramLimits(durable=name)))
        b.programs.acknowledge(b"me", wire.Acknowledge(number))
    assert durables._places[b"me", 2].is_acknowledged
    deque(b.programs.forget(b"me"), 0)
    assert not durables._places
    assert not durables._running


def test_results_are_kept_only_until_they_are_asked_for(bench: Callable[..., Any], tmp_path: Path) -> None:
    b = bench(durables=Durables(Journal(tmp_path / "journal", 1 << 20)))
    choose = (wire.Select(0, ref, ("a", "b"), client_decides=True) for ref in (0, 1))
    limits = wire.ProgramLimits(durable="a")
    b.send(wire.Submit(0, 0, (wire.Append(0, ("q",)), *choose, wire.Results(0, 0, 0, ("a",))), limits=limits))
    program = b.programs._programs[b"me"][0]
    assert [*program.early_results] == [(0, 0)]
    b.run()
    b.timers.run()
    b.run()
    assert [one.ref for one in b.messages(wire.Called)] == [1]
    assert not program.early_results
    b.send(wire.Submit(0, 1, (wire.Results(0, 1, 0, ("b",)),)))
    assert not program.early_results
    b.run()
    assert [b.text(ref) for ref in (0, 1)] == ["a", "b"]


def test_name_is_free_again_after_its_journal_could_not_be_opened(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench(durables=Durables(Journal(tmp_path / "journal", 1 << 20)))

    def begin(number: int) -> None:
        b.send(wire.Submit(number, 0, (), limits=wire.ProgramLimits(durable="a")))

    begin(0)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "private_directory", lambda folder: os.stat(folder / "missing"))
        begin(1)
    begin(2)
    failed = {one.program: one.message for _, one in b.sent if isinstance(one, wire.Failed)}
    assert list(failed) == [0, 1]
    assert "took this durable program over" in failed[0], "it has no journal any more"
    assert "cannot be opened: No such file" in failed[1]
