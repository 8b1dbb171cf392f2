"""Durable programs: a server is killed and started again, and they go on with the tokens that they had."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BadProgram, BanyanError, ConfigError, RuntimeLost, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.server.programs import journal
from banyan.runtime.server.programs.journal import Grew, Journal, records
from waits import join as join_threads
from waits import wait_until

Start = Callable[..., launch.ServerProcess]
TWOS, THREES = " two" * 60, " three" * 20
RULE = {"pause": 15, "say": {"one": TWOS, "two": THREES}}
"""Each engine pauses before it is done, so a server that is killed is killed at work."""


@pytest.fixture
def again(
    fake_model: Callable[..., Path], boot: tuple[str, ...], tmp_path: Path
) -> Iterator[Callable[..., launch.ServerProcess]]:
    """`again(...)`: a server at one and the same socket, when the one before is no more."""
    with contextlib.ExitStack() as stack:

        def start(options: dict[str, Any] | None = None, command: Any = boot, **rule: Any) -> launch.ServerProcess:
            model = (options or {}).get("model") or str(fake_model(**(rule or RULE)))
            made = config.make(**{"model": model, "socket": str(tmp_path / "private" / "s"), **(options or {})})
            server = launch.start(made, timeout=100, command=command)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def go(tmp_path: Path) -> Callable[[], None]:
    """No engine pauses from now on."""
    return (tmp_path / "model" / "go").touch


@pytest.fixture
def join() -> Iterator[Callable[[launch.ServerProcess], client.Client]]:
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(contextlib.closing(client.connect(server.socket, 60)))


def kill(server: launch.ServerProcess) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait(30)


def durable(c: client.Client, *ops: wire.Op, key: str = "k", last: bool = True) -> client.ProgramHandle:
    program = c.program(key)
    program.limit(wire.ProgramLimits(durable=key))
    program.submit(list(ops), last=last)
    return program


def text(program: client.ProgramHandle, ref: int) -> str:
    return program.future(ref).result(90).samples[0].text


def files(server: launch.ServerProcess) -> list[Path]:
    folder = Path(f"{server.socket}.journal")
    return sorted(folder.iterdir()) if folder.exists() else []


def written(server: launch.ServerProcess) -> list[int]:
    """The tokens that stand in the one journal, all requests together."""
    found = [record for path in files(server) for _, record in records(path.read_bytes())]
    return [i for grew in found if isinstance(grew, Grew) for i in memoryview(grew.ids).cast("i")]


def wait_for_tokens(server: launch.ServerProcess, n: int) -> None:
    """Wait until the journal has more than `n` tokens."""
    what = f"{n} tokens in the journal"
    wait_until(lambda: len(written(server)) > n, what, alive=lambda: server.is_alive, seen=lambda: written(server))


GREEDY = wire.Sampling(max_tokens=400, temperature=0.0)


def test_it_goes_on_where_the_server_was_killed_and_others_have_the_error_they_had(
    again: Start, join: Any, go: Callable[[], None]
) -> None:
    server = again()
    c = join(server)
    ops = (
        wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY), wire.Fork(0, (1, 2)), wire.Append(1, (" two",)),
        wire.Gen(1, 1, GREEDY), wire.Append(2, ("!", wire.Ref(1), "one")), wire.Gen(2, 2, GREEDY),
    )  # fmt: skip
    program = durable(c, *ops)
    other = c.program()
    other.submit([wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY)])
    wait_for_tokens(server, 10)
    (path,) = files(server)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    kill(server)
    with pytest.raises(RuntimeLost, match="is gone"):
        other.future(0).result(30)
    assert not program.future(0).done()
    had = len(written(server))
    go()
    server = again()
    assert text(program, 0) == TWOS
    assert text(program, 1) == THREES
    assert text(program, 2) == TWOS
    assert had > 10
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
"""A server whose engine is real, and pauses after 60 steps until there is a file `go` beside this one."""


def test_what_was_drawn_stays_drawn_with_its_logprobs(
    again: Start, join: Any, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "boot.py").write_text(PAUSING)
    command = [sys.executable, str(tmp_path / "boot.py")]
    options = {"model": str(tiny_model("llama")), "threads": 1, "kv_memory": "16MB", "device": "cpu"}
    server = again(options, command)
    drawn = wire.Sampling(max_tokens=400, temperature=1.5, ignore_eos=True, logprobs=True)
    program = durable(join(server), wire.Append(0, ("the quick brown",)), wire.Gen(0, 0, drawn))
    wait_for_tokens(server, 29)
    kill(server)
    had = written(server)
    assert 30 <= len(had) < 400
    (tmp_path / "go").touch()
    server = again(options, command)
    (sample,) = program.future(0).result(90).samples
    assert [one.id for one in sample.logprobs[: len(had)]] == had, "no seed was given, and yet"
    assert len(sample.logprobs) == sample.n_tokens == 400
    assert len({one.logprob for one in sample.logprobs[: len(had)]}) > 20


def test_it_outlives_several_deaths_and_the_death_of_its_engine(
    again: Start, join: Any, go: Callable[[], None]
) -> None:
    server = again()
    program = durable(join(server), wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY))
    for k in (5, 20, 35):  # each engine gives 15 tokens
        wait_for_tokens(server, k)
        kill(server)
        server = again()
    os.kill(join(server).ask("info")["engine_pid"], signal.SIGKILL)
    go()
    assert text(program, 0) == TWOS


def test_a_client_that_comes_back_as_another_process_would_finds_its_tokens(
    again: Start, join: Any, go: Callable[[], None]
) -> None:
    server = again()
    ops = (wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY))
    first = join(server)
    durable(first, *ops, key="job")
    wait_for_tokens(server, 10)
    first.close()
    second = join(server)
    wait_until(lambda: second.ask("stats")["server"]["programs"] == 0, "the end of the first client's program")
    had = len(written(server))
    assert len(files(server)) == 1, "it is kept for who comes back"
    go()
    assert text(durable(second, *ops, key="job"), 0) == TWOS
    assert had > 10
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))


def test_the_later_one_of_a_name_takes_over(again: Start, go: Callable[[], None]) -> None:
    server = again()
    ops = (wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY))
    with contextlib.closing(client.connect(server.socket, 60)) as c:
        one = durable(c, *ops, key="same")
        wait_for_tokens(server, 5)
        two = durable(c, *ops, key="same")
        with pytest.raises(RuntimeLost, match="took this durable program over"):
            one.future(0).result(30)
        go()
        assert text(two, 0) == TWOS
        c.ask("check")


@pytest.mark.parametrize("is_answered", [False, True])
def test_who_is_asked_is_asked_once(again: Start, join: Any, go: Callable[[], None], is_answered: bool) -> None:
    """A gen that shows its outputs: the answer counts, whether it comes before the server is killed or after."""
    server = again(pause=15, say={"two": " three"})
    program = join(server).program("k")
    program.limit(wire.ProgramLimits(durable="k"))
    asked: list[wire.Called] = []
    program.on_call(0, asked.append)
    gen = wire.Gen(0, 0, GREEDY, retries=2)
    program.submit([wire.Append(0, ("x two",)), gen])
    wait_until(lambda: asked, "the first question", alive=lambda: server.is_alive)
    no = wire.Results(0, 0, 0, ("no, one",))
    if is_answered:
        program.submit([no])
        n = len(written(server))
        wait_for_tokens(server, n + 5)
    kill(server)
    go()
    server = again()
    if not is_answered:
        other = join(server)
        wait_until(lambda: other.ask("stats")["server"]["programs"], "the program", alive=lambda: server.is_alive)
        program.submit([no])
    wait_until(lambda: len(asked) > 1, "the second question", alive=lambda: server.is_alive)
    program.submit([wire.Results(0, 0, 1, ())], last=True)
    assert program.future(0).result(90).samples[0].n_tokens > 50
    assert [called.round for called in asked] == [0, 1]


def test_templates_and_limits_go_with_it(again: Start, join: Any, go: Callable[[], None]) -> None:
    from banyan.runtime.protocol.op_template import ProgramTemplate

    server = again()
    c = join(server)
    number = c.define(ProgramTemplate((wire.Append(0, (wire.Arg(0),)), wire.Gen(0, 0, GREEDY))))
    program = c.program("k")
    program.limit(wire.ProgramLimits(durable="k", timeout=80.0, left=80.0, budget=1000))
    program.submit([wire.Use(0, number, ("one",))], last=True)
    wait_for_tokens(server, 5)
    kill(server)
    go()
    again()
    assert text(program, 0) == TWOS


def test_cancelled_is_cancelled_while_nobody_is_there(again: Start, join: Any) -> None:
    server = again()
    program = durable(join(server), wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY))
    wait_for_tokens(server, 5)
    kill(server)
    wait_until(lambda: program._futures._connection.lost is not None, "the news of the server's death")
    program.cancel()
    with pytest.raises(BanyanError, match="cancelled"):
        program.future(0).result(10)


def test_a_server_that_does_not_come_back_is_an_error_in_the_end(
    again: Start, join: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("banyan.runtime.client.client.RECONNECT_TIMEOUT", 1.0)
    server = again()
    program = durable(join(server), wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY))
    wait_for_tokens(server, 5)
    kill(server)
    with pytest.raises(RuntimeLost, match="did not come back within 1 s"):
        program.future(0).result(30)


@bn.function
def chain(s: bn.State) -> str:
    s += "one" + bn.gen("a", max_tokens=400, temperature=0.0)
    forks = s.fork(2)
    for fork in forks:
        fork += " two" + bn.gen("b", max_tokens=400, temperature=0.0)
    return str(s["a"]) + str(forks[1]["b"])


@pytest.mark.parametrize("name", [True, "nightly"])
def test_in_the_language_it_is_an_option_of_the_run(again: Start, go: Callable[[], None], name: bool | str) -> None:
    server = again()
    done: list[str] = []
    with bn.connect(server.socket, 60) as endpoint:
        thread = threading.Thread(target=lambda: done.append(chain.run(backend=endpoint, durable=name).ret_value))
        thread.start()
        wait_for_tokens(server, 10)
        kill(server)
        go()
        server = again()
        join_threads(thread)
    assert done == [TWOS + THREES]
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))


def test_options_that_do_not_go_together() -> None:
    api = bn.OpenAI("m", base_url="http://localhost:9/v1", api_key="none")
    with pytest.raises(Unsupported, match="durable"):
        chain.run(backend=api, durable=True)
    with pytest.raises(Unsupported, match="leave out stream"):
        chain.run(backend=bn.Mock("x"), durable=True, stream=True)
    with pytest.raises(BadProgram, match="a name of its own"):
        chain.run_batch([{}], backend=bn.Mock("x"), opts=bn.Options(durable="name"))


# ---- what cannot be ------------------------------------------------------------------------------------------------


def test_where_nobody_can_come_back_it_is_refused(
    serve: Callable[..., launch.ServerProcess], again: Start, join: Any
) -> None:
    private = serve(say={})
    with contextlib.closing(client.connect(private.socket, 60)) as c, pytest.raises(Unsupported, match="banyan serve"):
        durable(c, wire.Append(0, ("a",)), wire.Gen(0, 0)).future(0).result(30)
    server = again({"isolate": "connection"})
    with pytest.raises(Unsupported, match="isolates connections"):
        durable(join(server), wire.Append(0, ("a",)), wire.Gen(0, 0)).future(0).result(30)
    assert not files(server)


def test_what_a_durable_program_cannot_do(again: Start, join: Any) -> None:
    server = again()
    c = join(server)
    with pytest.raises(Unsupported, match="cannot stream"):
        durable(c, wire.Gen(0, 0, stream=True)).future(0).result(30)
    with pytest.raises(BadProgram, match="a name of 300 characters; 256"):
        durable(c, wire.Gen(0, 0), key="k" * 300).future(0).result(30)
    wait_until(lambda: not files(server), "the end of the journal", seen=lambda: files(server))
    with pytest.raises(ConfigError, match="as a size in memory"):
        config.make(durable_bytes="some")


def test_journals_are_bounded_with_numbers(again: Start, join: Any) -> None:
    server = again({"durable_bytes": "500B"})
    with pytest.raises(BanyanError, match=r"the journal of durable programs has \d+ bytes, and 500 are the most"):
        durable(join(server), wire.Append(0, ("one",)), wire.Gen(0, 0, GREEDY)).future(0).result(60)


# ---- the files -----------------------------------------------------------------------------------------------------


def run(k: int, seed: int = 7) -> wire.Run:
    return wire.Run(k, b"\1\0\0\0", order=(99 + k, 0, k, 0), seed=seed)


def test_a_file_that_breaks_off_or_is_spoiled_holds_what_stands_before(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j", 1 << 20)
    diary = first.open(b"key")
    entries = [diary.begin(run(k, seed=k)) for k in range(3)]
    for k in range(30):
        entries[k % 3].grew(bytes([k, 0, 0, 0]), ())
    entries[0].ended(wire.Finish(0, "length"))
    diary.close()
    whole = diary.path.read_bytes()
    ends = [end for end, _ in records(whole)]
    assert ends[-1] == len(whole) == first.n_bytes
    for n in (0, 3, ends[0] - 1, ends[5], ends[5] + 9, len(whole) - 1):
        diary.path.write_bytes(whole[:n])
        assert [end for end, _ in records(diary.path.read_bytes())] == [end for end in ends if end <= n]
    for at in range(0, len(whole), 7):
        spoiled = bytearray(whole)
        spoiled[at] ^= 0x41
        assert len(list(records(bytes(spoiled)))) == sum(end <= at for end in ends), "none that is spoiled is taken"
    diary.path.write_bytes(whole[: ends[-3]] + b"garbage")
    later = Journal(tmp_path / "j", 1 << 20)
    diary = later.open(b"key")
    back = [diary.begin(run(k, seed=100)) for k in range(4)]
    assert [entry.seed for entry in back] == [0, 1, 2, 100]
    assert [len(entry.ids) // 4 for entry in back] == [10, 10, 9, 0]
    assert back[0].finish is None
    back[3].grew(b"\5\0\0\0", ())
    diary.close()
    assert [end for end, _ in records(diary.path.read_bytes())][-1] == diary.path.stat().st_size, "garbage is gone"
    assert later.n_bytes == diary.path.stat().st_size


def test_another_prompt_or_place_is_another_request(tmp_path: Path) -> None:
    diary = Journal(tmp_path / "j", 1 << 20).open(b"key")
    diary.begin(run(0)).grew(b"\5\0\0\0", ())
    diary.close()
    changes: list[dict[str, Any]] = [
        {"ids": b"\2\0\0\0"}, {"order": (99, 1, 0, 0)}, {"namespace": b"x"}, {"score_from": 1}, {"sample": 1},
        {"sampling": wire.Sampling(temperature=0.5)}, {},
    ]  # fmt: skip
    for change in changes:
        diary = Journal(tmp_path / "j", 1 << 20).open(b"key")
        entry = diary.begin(wire.Run(**{"rid": 5, "ids": b"\1\0\0\0", "order": (7, 0, 0, 0), "seed": 7} | change))
        assert entry.is_new == bool(change), change
        diary.close()


def test_files_that_nobody_wants_make_room_and_go_after_a_day(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j", 1000)
    for k in range(3):
        diary = first.open(bytes([k]))
        diary.begin(run(k)).grew(bytes(200), ())
        diary.close()
    assert 600 < first.n_bytes < 1000
    held = first.open(b"held")
    held.begin(run(9)).grew(bytes(300), ())
    assert len(list((tmp_path / "j").iterdir())) < 4, "the oldest gave way"
    assert first.n_bytes <= 1000
    held.close()
    for path in (tmp_path / "j").iterdir():
        os.utime(path, (0, 0))
    assert Journal(tmp_path / "j", 1000).n_bytes == 0
    assert not list((tmp_path / "j").iterdir())
    assert journal.MAX_AGE == 86400
