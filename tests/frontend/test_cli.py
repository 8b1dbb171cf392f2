"""The `banyan` command: flags from the tree of options, errors in one line, and each command once for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from banyan import cli
from banyan.runtime.config import Config, make

BANYAN = (sys.executable, "-m", "banyan.cli")


def parse(*argv: str) -> dict[str, object]:
    return cli.given(cli._parser().parse_args(argv))


# ---- flags ---------------------------------------------------------------------------------------------------------


def test_every_option_of_a_runtime_is_a_flag_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    hints = typing.get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        assert f"--{field.name.replace('_', '-')}" in shown
        assert typing.get_args(hints[field.name])[1].description in shown


def test_what_is_not_given_is_left_to_the_tree() -> None:
    assert parse("serve") == {}
    assert make(**parse("serve")) == Config()


def test_each_flag_reaches_the_tree() -> None:
    argv = "--model m --device cpu --dtype float16 --context 512 --kv-memory 1GiB --page 8 --no-cache --max-running 3"
    argv += " --step-tokens 99 --threads 2 --socket s --max-message 70000 --log debug"
    assert make(**parse("serve", *argv.split())) == Config(
        model="m",
        device="cpu",
        dtype="float16",
        context=512,
        kv_memory="1GiB",
        page=8,
        cache=False,
        max_running=3,
        step_tokens=99,
        threads=2,
        socket="s",
        max_message=70000,
        log="debug",
    )
    assert {f"--{f.name.replace('_', '-')}" for f in msgspec.structs.fields(Config)} == {
        word.replace("--no-cache", "--cache") for word in argv.split() if word.startswith("--")
    }, "a new option is to be tried here"


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: COMMAND"),
        (["serv"], "invalid choice: 'serv'"),
        (["serve", "--pages", "8"], "unrecognized arguments: --pages"),
        (["serve", "--sock", "x"], "unrecognized arguments: --sock"),
        (["serve", "--page", "many"], "invalid int value: 'many'"),
        (["serve", "--page", "12"], "page is 12; it must be a power of two"),
        (["serve", "--kv-memory", "much"], "cannot read 'much' as a size"),
        (["serve", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["check", "--socket", "x", "--device", "cpu"], "--device: decided by the server at x"),
        (["run", "no-such-program.py"], "there is no program file no-such-program.py"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(argv: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(argv)
    except SystemExit as e:  # argparse's own
        status = int(e.code or 0)
    out, err = capfd.readouterr()
    assert status == 2
    assert out == ""
    assert err.startswith("banyan: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["check", "--model", "no/such/model/here"], "there is no model directory"),
        (["check", "--socket", "no-such-socket"], "no-such-socket"),
    ],
)
def test_a_failed_call_is_one_line_and_status_1(argv: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 1
    err = capfd.readouterr().err
    assert err.startswith("banyan: ")
    assert err.count("\n") == 1
    assert words in err


def test_help_is_instant() -> None:
    """No command's own imports before the command is known."""
    code = "import sys, banyan.cli; print(*(m for m in ('torch', 'rich', 'zmq', 'transformers') if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


# ---- models --------------------------------------------------------------------------------------------------------


def test_models_lists_what_ships_and_what_lies_in_the_cache(
    tmp_path: Path,
    tiny_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshots = tmp_path / "hub" / "models--someone--tiny" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "abc").symlink_to(tiny_model("llama"))
    broken = tmp_path / "hub" / "models--someone--broken" / "snapshots" / "abc"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("pocket" in line and "ships with Banyan" in line for line in lines)
    assert any("draft" in line and "ships with Banyan" in line for line in lines)
    assert any("someone/tiny" in line and "llama" in line and "hub cache" in line for line in lines)
    assert any("someone/broken" in line and "cannot be run" in line for line in lines)
    assert any(line.startswith("Native: llama, mistral") for line in lines)


# ---- serve ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_how_to_connect_and_ends_cleanly(
    signum: signal.Signals, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    socket = tmp_path / "s"
    command = [*BANYAN, "serve", "--model", str(tiny_model("llama")), "--socket", str(socket), "--threads", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout
        said = []
        for line in server.stdout:
            said.append(line)
            if line.startswith("  banyan chat"):
                break
        assert f'bn.connect("{socket}")' in "".join(said)
        assert "pages of 16 slots" in "".join(said)
        checked = subprocess.run(
            [*BANYAN, "check", "--socket", str(socket)], capture_output=True, text=True, timeout=60
        )
        assert checked.returncode == 0, checked.stderr
        server.send_signal(signum)
        rest, errors = server.communicate(timeout=30)
        assert (server.returncode, rest.strip(), errors) == (0, "ended", "")
    assert not socket.exists()
