from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import (
    BadModel,
    ConfigError,
    EngineLost,
    ModelNotFound,
    OutOfMemory,
    Quarantined,
    RuntimeLost,
)
from banyan.runtime.protocol import wire
from waits import join, wait_until

Serve = Callable[..., launch.ServerProcess]


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def write_command(tmp_path: Path, body: str) -> list[str]:
    """A command that runs `body` with the file descriptors `ready` and `alive`."""
    file = tmp_path / "child.py"
    file.write_text(
        "import argparse, os, sys, time, signal\np = argparse.ArgumentParser()\n"
        "for name in ('--config', '--ready-fd', '--alive-fd'): p.add_argument(name)\n"
        "p.add_argument('--private', action='store_true')\n"
        f"a = p.parse_args(); ready, alive = int(a.ready_fd), int(a.alive_fd)\n{body}\n"
    )
    return [sys.executable, "-S", str(file)]


def engine_pid(server: launch.ServerProcess) -> int:
    return int(client.connect(server.socket).ask("info")["engine_pid"])


@pytest.mark.usefixtures("new_interpreters")
def test_private_server_removes_its_directory_on_close(serve: Serve) -> None:
    server = serve()
    engine = engine_pid(server)
    assert server.report == ("fake engine",)
    assert server.is_alive
    assert is_running(engine)
    assert server.socket.parent.stat().st_mode & 0o777 == 0o700
    assert len({os.getsid(pid) for pid in (os.getpid(), server.pid, engine)}) == 3, "each in its own session"
    server.close()
    server.close()
    assert not server.is_alive
    assert not is_running(engine)
    assert not server.socket.parent.exists()


def test_shared_server_removes_its_socket_but_not_the_directory(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    server = serve({"socket": str(tmp_path / "run" / "s")})
    assert server.socket == tmp_path / "run" / "s"
    with pytest.raises(ConfigError, match="already listens"):
        serve({"socket": str(server.socket)})
    server.close()
    assert [f.name for f in (tmp_path / "run").iterdir()] == ["s.lock"]
    serve({"socket": str(server.socket)}).close()


def test_server_and_engine_ignore_sigint_and_end_at_sigterm(serve: Serve) -> None:
    server = serve()
    engine = engine_pid(server)
    os.kill(server.pid, signal.SIGINT)
    os.kill(engine, signal.SIGINT)
    assert "server" in client.connect(server.socket).ask("stats")
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait(10) == 0
    assert not is_running(engine)


USER_SCRIPT = """
import os, sys, time
from banyan.runtime import config, launch
from banyan.runtime.client import client
server = launch.start(config.make(model=sys.argv[1]), timeout=30, command=sys.argv[2:])
engine = client.connect(server.socket).ask("info")["engine_pid"]
print(server.pid, engine, server.socket, flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "signum", "exit_code"),
    [
        ("time.sleep(60)", signal.SIGKILL, -9),
        pytest.param("time.sleep(60)", signal.SIGINT, -2, marks=pytest.mark.long),
        pytest.param("raise SystemExit(7)", None, 7, marks=pytest.mark.long),
        pytest.param("os._exit(3)", None, 3, marks=pytest.mark.long),
        pytest.param("os.abort()", None, -6, marks=pytest.mark.long),
    ],
)
def test_server_and_engine_end_with_the_users_process(
    fake_model: Callable[..., Path], boot: tuple[str, ...], ending: str, signum: signal.Signals | None, exit_code: int
) -> None:
    arguments = [sys.executable, "-c", USER_SCRIPT + ending, str(fake_model()), *boot]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as user:
        assert user.stdout is not None
        server, engine, socket = user.stdout.readline().split()
        if signum is not None:
            os.kill(user.pid, signum)
        assert user.wait(20) == exit_code
    wait_until(lambda: not is_running(int(server)) and not is_running(int(engine)), "the end of server and engine")
    wait_until(lambda: not Path(socket).parent.exists(), "the end of the directory")


@pytest.mark.usefixtures("new_interpreters")
def test_server_outlives_the_thread_that_started_it(serve: Serve) -> None:
    started: list[launch.ServerProcess] = []
    thread = threading.Thread(target=lambda: started.append(serve()))
    thread.start()
    join(thread)
    time.sleep(0.1)
    assert started[0].is_alive
    assert client.connect(started[0].socket).ask("info")["pid"] == started[0].pid


# ---- starts that fail ----------------------------------------------------------------------------------------------


def test_engine_error_is_raised_by_launch(serve: Serve) -> None:
    with pytest.raises(OutOfMemory, match="needs 3 pages, there are 2"):
        serve(fail=["out_of_memory", "needs 3 pages, there are 2"])


def test_missing_model_is_raised_by_launch(boot: tuple[str, ...]) -> None:
    with pytest.raises(ModelNotFound, match="/no/such/model"):
        launch.start(config.make(model="/no/such/model"), timeout=30, command=boot)


def test_engine_that_exits_at_start_raises_with_its_output(fake_model: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "boot.py"
    file.write_text(
        "import sys\nfrom banyan.runtime.server.worker import main\n"
        "sys.exit(main(sys.argv[1:], engine=[sys.executable, '-c', 'import nothing_of_that_name']))"
    )
    with pytest.raises(EngineLost, match=r"(?s)exit code 1.*nothing_of_that_name"):
        launch.start(config.make(model=str(fake_model())), timeout=30, command=[sys.executable, str(file)])


def test_server_that_exits_at_start_raises_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeLost, match=r"(?s)exit code 5.*oh no"):
        launch.start(config.make(), command=write_command(tmp_path, "print('oh no', file=sys.stderr); sys.exit(5)"))


def test_server_with_log_info_writes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printing = write_command(tmp_path, "print('hello'); print('oh no', file=sys.stderr); sys.exit(5)")
    with pytest.raises(RuntimeLost, match="output is above"):
        launch.start(config.make(log="info"), command=printing)
    out, err = capfd.readouterr()
    assert out == "", "stdout belongs to the user's program"
    assert "hello" in err
    assert "oh no" in err


def test_notices_of_a_quiet_server_are_printed_as_they_come(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reports = [launch.StartReport(notice="compiling"), launch.StartReport(notice="more"), launch.StartReport()]
    written = b"".join(msgspec.json.encode(report) + b"\n" for report in reports)
    command = write_command(tmp_path, f"os.write(ready, {written!r}); os.read(alive, 1)")
    for traces in ("", "console"):
        launch.start(config.make(traces=traces), timeout=30, command=command).close()
        assert capfd.readouterr().err == "banyan: compiling\nbanyan: more\n"
    launch.start(config.make(log="info"), timeout=30, command=command).close()
    assert capfd.readouterr().err == "", "the server has logged them"


def test_error_at_start_is_printed_by_the_parent_only(
    boot: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q4.gguf").write_text("GGUF")
    with pytest.raises(BadModel, match="not a whole GGUF file"):
        launch.start(config.make(model=str(tmp_path), log="info"), timeout=30, command=boot)
    assert capfd.readouterr().err == ""


def test_server_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    stuck = write_command(tmp_path, f"open({str(pids)!r}, 'w').write(str(os.getpid())); os.read(alive, 1)")
    with pytest.raises(RuntimeLost, match="not ready in time"):
        launch.start(config.make(), timeout=0.5, command=stuck)
    assert not is_running(int(pids.read_text()))


def test_http_process_that_does_not_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "listen", None)  # the process itself looks at its options
    for body, timeout, message in (
        ("sys.exit(3)", 30, r"the HTTP process died as it started \(exit code 3\)"),
        ("os.read(alive, 1)", 0.5, "the HTTP process was not ready in time"),
    ):
        monkeypatch.setattr(launch, "GATEWAY", write_command(tmp_path, body))
        with pytest.raises(RuntimeLost, match=message):
            launch.start_gateway(config.HTTPConfig(socket="none", address="0"), timeout=timeout)


def test_launch_works_with_more_than_1024_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("the limit of open files is below 2048")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(RuntimeLost, match="exit code 3"):
            launch.start(config.make(), command=write_command(tmp_path, "sys.exit(3)"))


def test_child_that_does_not_exit_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_GRACE", 0.2)
    child = launch.ChildProcess([*write_command(tmp_path, "time.sleep(60)"), "--config", "x", "--ready-fd", "0"])
    assert child.wait(0.1) is None
    child.close()
    assert child.wait(0) == -9


def test_failed_start_leaves_no_files_or_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Path] = []

    def private_socket() -> Path:
        created.append(tmp_path / "private" / "s")
        created[0].parent.mkdir(mode=0o700)
        return created[0]

    monkeypatch.setattr(config, "private_socket", private_socket)
    n_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeLost):
        launch.start(config.make(), command=write_command(tmp_path, "sys.exit(1)"))
    assert not created[0].parent.exists()
    assert len(os.listdir("/proc/self/fd")) == n_open


# ---- engines that die ----------------------------------------------------------------------------------------------


def test_engine_killed_during_generation_loses_no_text(join: Callable[..., client.Client]) -> None:
    c = join(say={"count": " ".join(map(str, range(30)))}, step_ms=5)
    program = c.program()
    program.submit([wire.Append(0, ("count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=200), stream=True)])
    seen: list[str] = []
    program.on_delta(0, lambda delta: seen.append(delta.text))
    wait_until(lambda: len(seen) > 5, "more than five deltas")
    os.kill(c.ask("info")["engine_pid"], signal.SIGKILL)
    text = program.future(0).result(20).samples[0].text
    assert text == "".join(seen) == " ".join(map(str, range(30)))
    assert c.ask("stats")["server"]["engine_starts"] == 2


def test_prompt_that_kills_every_engine_fails_and_others_continue(join: Callable[..., client.Client]) -> None:
    c = join(die_on="kill")

    def value(text: str) -> wire.Value:
        program = c.program()
        program.submit([wire.Append(0, (text,)), wire.Gen(0, 0, wire.Sampling(max_tokens=2))])
        return program.future(0).result(20)

    with pytest.raises(Quarantined, match="2 engines died"):
        value("kill me")
    assert value("live").samples[0].n_tokens == 2
