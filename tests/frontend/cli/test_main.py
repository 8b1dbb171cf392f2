"""The `banyan` command: flags from the option tree, one-line errors, and a real run of each command."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import typing
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import banyan as bn
import few_bits
from banyan import Mock
from banyan.cli import check as cli_check
from banyan.cli import main as cli
from banyan.cli import models
from banyan.cli.other_servers import HERE, NOT_NEEDED, hint
from banyan.runtime import launch
from banyan.runtime.config import GROUPS, Config, make
from banyan.runtime.errors import BanyanError
from banyan.runtime.model import weights
from forms import in_short, short_form

BANYAN = (sys.executable, "-m", "banyan")
Banyan = Callable[..., subprocess.CompletedProcess[str]]


def parse(*argv: str) -> dict[str, object]:
    return cli.given(cli._parser().parse_args(argv))


def commands() -> dict[str, typing.Any]:
    """Name of a command -> its parser."""
    (found,) = (one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(found.choices)


@pytest.mark.parametrize("name", ["--max-tokens", "--max-new-tokens"])
def test_chat_takes_both_names_of_max_tokens(name: str) -> None:
    assert cli._parser().parse_args(["chat", name, "7"]).max_tokens == 7


def test_engine_needs_one_server_key_for_all_or_one_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    joins = [word for k in range(3) for word in ("--join", f"tcp://127.0.0.1:{k + 1}")]
    words = ["engine", "pocket", *joins, "--key", str(tmp_path), "--server-key", "a", "--server-key", "b"]
    assert cli.main(words) == 2
    assert "3 --join and 2 --server-key; give one key for all servers, or one for each" in capsys.readouterr().err


# ---- flags ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("  # a comment\nabcdefgh#ijklmnop # Ann's\n", "abcdefgh#ijklmnop"),
        ("ann abcdefghijklmnop operator", "abcdefghijklmnop"),
    ],
)
def test_token_file_may_have_comments(text: str, token: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    assert cli._token(str(tmp_path / "token")) == token


def test_serve_help_lists_every_config_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["serve", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    hints = typing.get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        assert flag(field) in help_text
        assert typing.get_args(hints[field.name])[1] in help_text


def test_help_shows_no_default_that_nobody_can_give() -> None:
    assert [name for name, command in commands().items() if "NODEFAULT" in command.format_help()] == []


def test_help_calls_only_numbers_n() -> None:
    named = {one.dest: one for one in commands()["serve"]._actions if one.metavar == "N"}
    assert [name for name, one in named.items() if one.type not in (int, float)] == []
    assert [name for name, one in named.items() if "seconds" in name or "timeout" in name] == []


def test_every_option_is_in_one_group_of_the_help() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(Config.__struct_fields__)


def test_examples_of_the_help_are_command_lines_that_parse() -> None:
    parser = cli._parser()
    for name, command in commands().items():
        lines = re.findall(rf"\bbanyan ({name}\b[^#|)\n]*)", command.epilog)
        assert lines, f"the help of {name} has no example"
        for line in lines:
            assert parser.parse_args(shlex.split(line)).name == name


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"banyan {version('banyan')}\n"


@pytest.mark.parametrize("shell", in_short(["bash"], ["bash", "zsh", "fish"]))
def test_completion_prints_code_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert re.search(r"^ *comp\w+ .*\bbanyan$|complete --command banyan", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "expected"),
    short_form(
        [
            ("banyan serve --kv", {"--kv-memory", "--kv-dtype", "--kv-transfer"}),
            ("banyan serve --device c", {"cpu", "cuda"}),
            ("banyan chat poc", {"pocket"}),
        ],
        lambda line, expected: line.endswith("--kv"),
    ),
)
def test_shell_is_told_what_can_follow(line: str, expected: set[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(out), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run(BANYAN, env=os.environ | asked, check=True, timeout=60)
    assert set(out.read_text().split("\013")) == expected


def test_missing_flags_keep_the_defaults() -> None:
    assert parse("check") == {}
    assert make(**parse("check")) == Config()
    assert make(**parse("serve")) == Config(log="info"), "a shared server logs its clients"


def flag(field: msgspec.structs.FieldInfo) -> str:
    return "--adapter" if field.name == "adapters" else f"--{field.name.replace('_', '-')}"  # it is given for each


def test_adapters_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--adapter", "a=/x", "--adapter", "a=/y"]) == 2
    assert "two adapters have the same name" in capsys.readouterr().err


def test_each_flag_sets_its_option() -> None:
    line = "--model m --device cpu --dtype float16 --context 512 --kv-memory 1GiB --page 8 --max-running 3"
    line += " --eviction lfu --host-memory 2GiB --host-file f"
    line += " --schedule lpm --step-tokens 99 --replicas 3 --threads 2 --engine-timeout 7 --constraint-bytes 999"
    line += " --constraint-seconds 3 --socket s --max-message 70000 --log debug --max-programs 9 --max-width 8"
    line += " --max-program 7777 --max-client 9999 --metrics 9090 --speculate tree,model"
    line += " --constraint-engine outlines_core --token-file t --isolate connection"
    line += " --bind tcp://10.0.0.1:7100 --curve-key k --durable-bytes 1GiB --slo ttft=1s --traces console"
    line += " --weight-dtype int8 --kv-dtype int8 --draft-model d --sampling-defaults openai"
    line += " --state-memory 2GiB --tp 1 --min-replicas 2 --max-replicas 4"
    line += " --prefill-replicas 1 --engines-at tcp://10.0.0.1:7200 --engine-keys e --kv-transfer nixl"
    words = line.split()
    flags = dict(zip(words[::2], words[1::2], strict=True))
    texts = {name.removeprefix("--").replace("-", "_"): text for name, text in flags.items()}
    others = {"adapters": {"a": "/x", "b": "/y=z"}, "deterministic": True}
    argv = ["serve", *words, "--adapter", "a=/x", "--adapter", "b=/y=z", "--deterministic", "--cache"]
    assert make(**parse(*argv)) == msgspec.convert(texts | others, Config, strict=False)
    assert make(**parse("serve", "--ray", "auto")).ray == "auto"
    assert make(**parse("serve", "--tp", "2")).tp == 2
    assert make(**parse("serve", "--window", "64", "--sinks", "2")) == Config(log="info", window=64, sinks=2)
    assert not make(**parse("serve", "--no-cache")).cache
    assert set(map(flag, msgspec.structs.fields(Config))) == {
        *("--ray", "--window", "--sinks", "--adapter", "--deterministic", "--cache"),
        *flags,
    }, "every option needs a flag in this test"


@pytest.mark.parametrize("command", in_short(["serve"], ["serve", "chat"]))
def test_model_may_be_a_positional_argument(command: str) -> None:
    assert parse(command, "some/model", "--page", "32")["model"] == "some/model"
    assert parse(command, "some/model") == parse(command, "--model", "some/model")
    assert parse(command, "a", "--model", "a")["model"] == "a"
    assert "model" not in parse(command)


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    short_form(
        [
            ([], "required: COMMAND"),
            (["serv"], "did you mean serve? (try: banyan --help)"),
            (["--verison"], "there is no --verison; did you mean --version?"),
            (["serve", "--pages=8"], "--pages=8; did you mean --page? (try: banyan serve --help)"),
            (["serve", "--sock=x"], "unrecognized arguments: --sock=x; did you mean --socket?"),
            (["serve", "--no-cahce"], "did you mean --no-cache?"),
            (["tree", "--sokcet", "x"], "required: --socket; there is no --sokcet; did you mean --socket?"),
            (["chat", "--zzz"], "unrecognized arguments: --zzz (try: banyan chat --help)"),
            (["completion", "bahs"], "did you mean bash?"),
            (["serve", "--page", "many"], "invalid int value: 'many'"),
            (["serve", "--adapter", "x"], "argument --adapter: write it like NAME=DIR, not 'x'"),
            (["size", "--concurrent", "0"], "argument --concurrent: must be a whole number of at least 1, not '0'"),
            (["top", "--socket", "s", "--seconds", "x"], "must be a number of seconds from 0.1 to 1e9, not 'x'"),
            (["serve", "--page", "12"], "page is 12; it must be a power of two"),
            (["serve", "--kv-memory", "much"], "cannot read 'much' as a size"),
            (
                ["serve", "--device", "cudda"],
                "invalid choice: 'cudda' (choose from 'auto', 'cpu', 'cuda'); did you mean",
            ),
            (["check", "--socket", "x", "--device", "cpu"], "--device: the server at x already runs"),
            (["serve", "a", "--model", "b"], "two models are named: a and --model b; give one"),
            (["serve", "a", "b"], "unrecognized arguments: b"),
            (["run", "no-such-program.py"], "there is no program file no-such-program.py"),
        ],
        lambda argv, words: len(argv) != 3,
    ),
)
def test_usage_error_is_one_line_with_status_2(argv: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(argv)
    except SystemExit as e:  # raised by argparse
        status = int(e.code or 0)
    out, err = capfd.readouterr()
    assert status == 2
    assert out == ""
    assert err.startswith("banyan: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("serve --port 8000 --host=0.0.0.0", "--host=0.0.0.0; --port is --http here; --host is --http here"),
        ("serve --tp-size 2", "--tp-size is --tp here"),
        ("serve --mem-fraction-static 0.8", "--mem-fraction-static is --kv-memory here"),
        ("chat --disable-radix-cache", "--disable-radix-cache is --no-cache here"),
        ("run --quantization awq p.py", "--quantization is --weight-dtype here"),
        ("serve --max-model-len 4096", "--max-model-len is --context here"),
        ("serve --gpu-memory-utilization 0.9", "--gpu-memory-utilization is --kv-memory here"),
        ("serve --served-model-name a", "--served-model-name is --http-models here"),
        ("serve --trust-remote-code", "leave --trust-remote-code out: it has no effect here"),
        ("serve --pp-size 2", "leave --pp-size out: an engine is on one machine"),
        ("serve --random-seed 1", "leave --random-seed out: each run has its own seed"),
        ("serve --speculative-algorithm EAGLE", "--speculative-algorithm is --speculate here"),
        ("chat --port 8000", "--port; leave --port out: it has no effect here"),
        ("tree --socket x --tp-size 2", "unrecognized arguments: --tp-size 2 (try"),
    ],
)
def test_flag_of_another_server_is_refused_with_the_one_here(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(line.split())
    assert words in capsys.readouterr().err


def test_each_flag_of_another_server_has_its_equivalent() -> None:
    known = {flag for action in commands()["serve"]._actions for flag in action.option_strings}
    for name in HERE | NOT_NEEDED:
        flag = f"--{name.replace('_', '-')}"
        assert flag not in known
        assert hint(flag, known)


@pytest.mark.parametrize(
    ("flag", "value"), [("--http-keys", "k"), ("--http-isolate", "user"), ("--http-cors", "*"), ("--http-models", "a")]
)
def test_options_of_the_http_interface_need_it(
    flag: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "start", lambda config: pytest.fail("a server starts"))
    assert cli.main(["serve", flag, value]) == 2
    assert f"{flag} is for --http, which is not given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--http", "x"], "cannot read 'x' as an address"),
        (["--http", "0.0.0.0:0"], "set http_keys"),
        (["--http", "a..b:80"], "cannot listen at a..b:80"),
        (["--http", "PORT"], "cannot listen"),
        (["--http", "0", "--http-keys", "none"], "http_keys none cannot be read"),
        (["--http", "0", "--http-cors", "x"], "http_cors has 'x'"),
        (["--http", "0", "--http-models", "a,,b"], "http_models has ''"),
        (["--http", "0", "--isolate", "connection"], "--isolate connection does not separate clients over HTTP"),
        (
            ["--http", "0", "--http-models", "a,b", "--adapter", "b=d"],
            "the model and an adapter have the same name b",
        ),
        (["--http", "0", "--adapter", "pocket=d"], "the model and an adapter have the same name pocket"),
    ],
)
def test_options_of_the_http_interface_are_checked_before_a_model_is_loaded(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "start", lambda config: pytest.fail("a server starts"))
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", *(port if one == "PORT" else one for one in options)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["check", "--model", "no/such/model/here"], "there is no model directory"),
        (["check", "--socket", "no-such-socket"], "no-such-socket"),
    ],
)
def test_failed_command_is_one_line_with_status_1(
    argv: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 1
    err = capfd.readouterr().err
    assert err.startswith("banyan: ")
    assert err.count("\n") == 1
    assert words in err


def test_help_imports_no_heavy_modules() -> None:
    code = (
        "import sys, banyan.cli.main; print(*(m for m in ('torch', 'rich', 'zmq', 'transformers') if m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


# ---- models --------------------------------------------------------------------------------------------------------


def test_models_lists_bundled_and_cached_models(
    tmp_path: Path,
    tiny_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshots = tmp_path / "hub" / "models--someone--tiny" / "snapshots"
    snapshots.mkdir(parents=True)
    shutil.copytree(tiny_model("llama"), snapshots / "abc")
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True}
    (snapshots / "abc" / "generation_config.json").write_text(json.dumps(defaults))
    broken = tmp_path / "hub" / "models--someone--broken" / "snapshots" / "abc"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("pocket" in line and "ships with Banyan" in line for line in lines)
    assert any("draft" in line and "ships with Banyan" in line for line in lines)
    assert any(line.startswith("smol ") for line in lines)
    assert any("someone/tiny" in line and "llama" in line and "hub cache" in line for line in lines)
    assert any("someone/tiny" in line and line.endswith("temperature 0.6, top_k 20") for line in lines)
    assert any("someone/broken" in line and "cannot be run" in line for line in lines)
    assert any(line.startswith("Native: llama, mistral") for line in lines)


def test_models_describes_those_that_are_named(
    tmp_path: Path,
    tiny_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    few_bits.write(tiny_model("llama"), tmp_path / "small", "gptq")
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(["models", str(tmp_path / "small"), str(tmp_path / "none")]) == 1
    _, small, none = capsys.readouterr().out.splitlines()
    assert small.rstrip().split(None, 4)[1:] == ["llama", "0.1", "M", "512  GPTQ, 4 bits in groups of 16"]
    assert "cannot be run: there is no model directory" in none
    assert cli.main(["models", str(tmp_path / "small")]) == 0


def test_names_of_models_are_not_read_as_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    names = ["a[red]b", "[/x]", ":smile:"]
    assert models.show(names) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == names
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["check", "--model", "./[/x]"]) == 1
    assert "there is no model directory './[/x]'" in capsys.readouterr().err
    with weights.bar("loading [/x]"):
        pass


def test_quantise_writes_a_model_and_says_what_it_costs(
    tmp_path: Path, tiny_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    command = ["quantise", str(tiny_model("llama")), str(tmp_path / "[q]"), "--text", str(tmp_path / "text")]
    assert cli.main([*command, "--bits", "8", "--group", "16", "--method", "rtn"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{tmp_path}/[q]: " in printed
    assert re.search(r"8 bits in groups of 16, by rtn on \d+ tokens on \d+ other tokens: perplexity", printed)
    assert cli.main(["models", str(tmp_path / "[q]")]) == 0
    assert cli.main([*command, "--group", "16"]) == 2
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "text").write_text("a")
    assert cli.main([*command[:2], str(tmp_path / "other"), *command[3:]]) == 2
    assert "a few thousand" in capsys.readouterr().err


# ---- serve ---------------------------------------------------------------------------------------------------------


def until(lines: Iterable[str], start: str) -> Iterator[str]:
    """Yield the lines up to and including the first that begins with `start`."""
    for line in lines:
        yield line
        if line.startswith(start):
            return


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_serve_prints_how_to_connect_and_exits_cleanly(
    signum: signal.Signals, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    socket = tmp_path / "s"
    command = [*BANYAN, "serve", "--model", str(tiny_model("llama")), "--socket", str(socket), "--threads", "1"]
    command += ["--http", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            assert server.stdout
            output = "".join(until(server.stdout, "  OpenAI("))
            (url,) = re.findall(r'base_url="(http://127\.0\.0\.1:\d+)/v1"', output)
            with urllib.request.urlopen(f"{url}/health") as answer:
                assert answer.status == 200
            checked = subprocess.run(
                [*BANYAN, "check", "--socket", str(socket)], capture_output=True, text=True, timeout=60
            )
            server.send_signal(signum)
            rest, _ = server.communicate(timeout=30)
        finally:
            server.kill()
    assert "banyan: KV: " in output
    assert "pages of 16 slots" in output
    assert f'bn.connect("{socket}")' in output
    assert (checked.returncode, checked.stderr) == (0, "")
    assert server.returncode == 0
    assert "banyan: client pid" in rest
    assert "is gone" in rest
    assert "\nended\n" in rest
    assert not socket.exists()


# ---- run -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, helper
import banyan as bn

@bn.function
def say(s, text):
    s += text + bn.gen("a", max_tokens=3, temperature=0)

if __name__ == "__main__":
    print(sys.argv[1:], helper.WORD)
    if sys.argv[1] == "gen":
        print(len(say.run("Hello")["a"]) > 0)
    if sys.argv[1] == "raise":
        say.run("Hello", no_such_option=1)
    if sys.argv[1] == "long":
        say.run("Hello " * 1000)["a"]
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text("WORD = 'beside it'")
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


@pytest.fixture
def banyan(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Banyan:
    return partial(run_python, "-m", "banyan")


def test_run_passes_arguments_and_starts_a_runtime(
    program: str, tiny_model: Callable[..., Path], banyan: Banyan
) -> None:
    done = banyan("run", "--model", str(tiny_model("llama")), "--threads", "1", program, "gen", "--device", "x")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['gen', '--device', 'x'] beside it\nTrue\n"


def test_run_starts_no_runtime_for_a_program_that_needs_none(program: str, banyan: Banyan) -> None:
    done = banyan("run", "--model", "/no/such/model", program, "nothing")
    assert (done.returncode, done.stdout) == (0, "['nothing'] beside it\n")


def test_run_warns_once_if_the_program_starts_a_server_in_place_of_the_named_one(
    tmp_path: Path, banyan: Banyan
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import banyan as bn\nfor _ in range(2):\n    bn.set_default_backend(object.__new__(bn.Runtime))\n"
    )
    done = banyan("run", "--socket", "/there", str(program))
    assert done.returncode == 0
    assert done.stderr.count("the one at /there is not used") == 1
    assert "program.py:3: UserWarning" in done.stderr
    assert banyan("run", "--threads", "1", str(program)).stderr == ""


def test_run_starts_one_runtime_for_the_threads_of_a_batch() -> None:
    made: list[Mock] = []

    def make() -> Mock:
        time.sleep(0.15)
        made.append(Mock("x"))
        return made[-1]

    @bn.function
    def say(s: bn.State, i: int) -> None:
        s += f"{i}" + bn.gen("a")

    states = say.run_batch([(i,) for i in range(20)], backend=cli._LazyBackend(make))  # type: ignore[arg-type]
    assert [state["a"] for state in states] == ["x"] * 20
    assert len(made) == 1


def test_run_prints_a_traceback_for_bugs_and_one_line_for_failed_programs(
    program: str, tiny_model: Callable[..., Path], banyan: Banyan
) -> None:
    buggy = banyan("run", program, "raise")
    assert buggy.returncode == 1
    assert "Traceback" in buggy.stderr
    assert "no_such_option" in buggy.stderr
    failed = banyan("run", "--model", str(tiny_model("llama")), "--threads", "1", program, "long")
    assert failed.returncode == 1
    assert failed.stderr.startswith("banyan: ")
    assert "program.py:7" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_broken_pipe_of_a_program_is_shown_and_that_of_stdout_is_not(tmp_path: Path, banyan: Banyan) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise BrokenPipeError(32, 'worker is gone')")
    done = banyan("run", str(program))
    assert done.returncode == 1
    assert "worker is gone" in done.stderr
    program.write_text("print('to nobody')")
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as closed:
        command, environment = [*BANYAN, "run", str(program)], os.environ | {"PYTHONUNBUFFERED": "1"}
        unread = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False
        )
    assert (unread.returncode, unread.stderr) == (1, "")


@pytest.mark.parametrize("line", ["tree", "top --once", "cluster status"])
def test_commands_for_a_running_server_use_that_of_the_environment(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_SOCKET", "/there")
    assert cli._parser().parse_args(line.split()).socket == "/there"
    assert cli._parser().parse_args([*line.split(), "--socket", "/here"]).socket == "/here"
    monkeypatch.setenv("BANYAN_SOCKET", "")
    with pytest.raises(SystemExit):
        cli._parser().parse_args(line.split())


def test_server_of_the_environment_is_used_if_no_option_asks_for_a_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_SOCKET", "/there")
    monkeypatch.setattr(bn, "connect", lambda socket, **_: socket)
    monkeypatch.setattr(bn, "Runtime", lambda **_: nullcontext())

    def used(line: str) -> str:
        with cli.backend(cli._parser().parse_args(line.split())) as found:
            return found if isinstance(found, str) else "private"

    assert [used(line) for line in ("run program.py", "chat", "check --server-key k")] == ["/there"] * 3
    assert used("chat --socket /here") == "/here"
    assert [used(line) for line in ("chat pocket", "check --page 8", "check --socket=")] == ["private"] * 3
    monkeypatch.setattr(bn, "connect", lambda socket, **_: SimpleNamespace(client=None))
    monkeypatch.setattr(cli_check, "check", lambda runtime, is_private: is_private)
    assert not cli.main(["check"])


@pytest.mark.parametrize("command", in_short(["tree", "check"], ["tree", "top", "cluster status", "check"]))
def test_command_about_a_server_refuses_that_of_another_api(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bn, "connect", lambda socket, **_: Mock("text"))  # a backend with no client, as bn.OpenAI
    assert cli.main([*command.split(), "--socket", "http://there"]) == 2
    assert capsys.readouterr().err == "banyan: http://there is not a server of Banyan\n"


@pytest.mark.parametrize("command", ["status", "add", "drain 0", "roll there"])
def test_cluster_says_that_only_operators_may(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(what: str, *_: object, **__: object) -> dict[str, object]:
        if what == "info":
            return {"model": "pocket"}  # without the engines, as for any client that is no operator
        raise BanyanError(f"{what!r} concerns all tenants")

    joined = nullcontext(SimpleNamespace(client=SimpleNamespace(ask=ask)))
    monkeypatch.setattr(cli, "_join", lambda options: joined)
    assert cli.main(["cluster", *command.split(), "--socket", "there"]) == 1
    assert "concerns all tenants" in capsys.readouterr().err


@pytest.mark.parametrize(("memory", "row"), [("10", "missing 33.7 MB"), ("1GB", "left 580 MB")])
def test_size_says_if_the_memory_is_too_small(memory: str, row: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["size", "pocket", "--device", "cpu", "--memory", memory]) == 0
    assert row in " ".join(capsys.readouterr().out.split())


# ---- check ---------------------------------------------------------------------------------------------------------


def test_check_runs_a_load_and_reports(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(["check", "--model", str(tiny_model("llama")), "--threads", "1", "--page", "8"]) == 0
    out = capsys.readouterr().out
    assert "pages of 8 slots" in out
    assert "tokens cached" in out
    assert out.splitlines()[-1].startswith("invariants hold")


class InconsistentRuntime(Mock):
    """A runtime whose internal accounting is inconsistent."""

    def ask(self, what: str) -> object:
        if what == "check":
            raise BanyanError("the engine's books do not balance: page 7 is free and leased")
        return {
            "pid": 1,
            "engine_pid": 2,
            "protocol": 1,
            "config": {"cache": False},
            "engine": {"report": ["a mock of ./[/x]"]},
        }


def test_check_fails_on_a_broken_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BanyanError, match="page 7 is free and leased"):
        cli_check.check(InconsistentRuntime("text"), is_private=True)
    assert "engine     a mock of ./[/x]\n" in capsys.readouterr().out


def test_check_names_packages_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_check, "PACKAGES", ("rich", "no-such-package"))
    with pytest.raises(BanyanError, match="page 7"):
        cli_check.check(InconsistentRuntime("text"), is_private=False)
    assert f"rich {version('rich')}, no-such-package is not installed\n" in capsys.readouterr().out


def test_check_fails_if_the_warm_answer_differs() -> None:
    answers = iter(f"answer {i}" for i in range(8))
    with pytest.raises(BanyanError, match="two different texts"):
        cli_check.check(InconsistentRuntime(lambda prompt, name: next(answers)), is_private=True)
