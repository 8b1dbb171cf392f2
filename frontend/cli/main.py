"""The `banyan` command. Each field of Config is a flag of the commands that can start a runtime.

Each command imports what it needs itself, so that `banyan --help` starts fast.
"""

from __future__ import annotations

import argparse
import os
import runpy
import select
import signal
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from banyan.cli.completion import SHELLS, TO_INSTALL, answer, show
from banyan.cli.parser import Parser, ShowVersion
from banyan.runtime import config as configs
from banyan.runtime.config import OWN, SERVER_KEY, TOKEN, Config, HTTPConfig
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.protocol.limits import MESSAGE_LIMITS
from banyan.runtime.waiting import NAP

if TYPE_CHECKING:
    from banyan.backends.runtime import ServerBackend

Command = Callable[[argparse.Namespace], int]
SERVE_EXAMPLES = """  banyan serve --socket ~/.banyan/s                                    # the pocket model
  banyan serve Qwen/Qwen3-0.6B --socket ~/.banyan/s --kv-memory 4GiB --context 8192
  banyan serve ~/models/Qwen3-0.6B --socket ~/.banyan/s --metrics 9090 --slo ttft=500ms
  banyan serve --http 8000                     # for clients of OpenAI's and Anthropic's APIs
  banyan serve --socket ~/.banyan/s --replicas 4      # four engines; see `banyan cluster --help`
  banyan serve --bind tcp://0.0.0.0:7100 --curve-key ~/.banyan/keys/server.key_secret --token-file tokens
  banyan serve --engines-at tcp://0.0.0.0:7200 --engine-keys engines --curve-key ~/.banyan/keys/server.key_secret"""
RUN_EXAMPLES = """  banyan run program.py                        # on a private runtime with the pocket model
  banyan run --model Qwen/Qwen3-0.6B program.py its arguments
  banyan run --socket ~/.banyan/s program.py   # on the server there"""
BATCH_EXAMPLES = """  banyan batch classify.py --in tickets.csv --out labels.jsonl
  banyan batch classify.py:label --in tickets.parquet --out labels.csv --socket ~/.banyan/s"""
FORMATS = (".jsonl", ".csv", ".parquet")
CHAT_EXAMPLES = """  banyan chat
  banyan chat Qwen/Qwen3-0.6B --system "Answer in one sentence." --temperature 0.7
  banyan chat --socket ~/.banyan/s
  echo "What is 6 * 7?" | banyan chat          # prints the reply and nothing else"""
QUANTISE_EXAMPLES = """  banyan quantise ~/models/Qwen3-0.6B ~/models/Qwen3-0.6B-4bit --text notes.txt
  banyan quantise smol smol-8bit --text notes.txt --bits 8 --method rtn"""
ENGINE_EXAMPLES = """  banyan keys ~/.banyan/keys --name gpu1     # prints the line for the server's file of engine keys
  banyan engine Qwen/Qwen3-0.6B --join tcp://10.0.0.1:7200 --server-key KEY --key ~/.banyan/keys/gpu1.key_secret"""
CLUSTER_EXAMPLES = """  banyan cluster status --socket ~/.banyan/s
  banyan cluster drain 1 --socket ~/.banyan/s
  banyan cluster add --socket ~/.banyan/s
  banyan cluster roll ~/models/Qwen3-0.6B-tuned --socket ~/.banyan/s"""
SIZE_EXAMPLES = """  banyan size smol --memory 2GB --context 8k --concurrent 16
  banyan size Qwen/Qwen3-0.6B --device cuda --memory 24GB --context 32k --kv int8 --weight-dtype int4"""
_SIZE_FLAGS = {
    "--kv": "kv_dtype", "--weight-dtype": "weight_dtype", "--dtype": "dtype", "--device": "device", "--page": "page",
    "--kv-memory": "kv_memory", "--draft-model": "draft_model", "--window": "window", "--sinks": "sinks",
}  # fmt: skip
"""flag of `banyan size` -> option of a runtime"""
_SOCKET = "BANYAN_SOCKET"
"""Environment variable with the socket of a server, as in backends/default.py."""
_JOIN = "connect to the server that listens there, instead of starting a private one"
_METAVARS = {
    **dict.fromkeys(("kv_memory", "state_memory", "host_memory", "durable_bytes"), "SIZE"),
    **dict.fromkeys(("curve_key", "engine_keys", "token_file", "host_file", "socket"), "PATH"),
    **dict.fromkeys(("bind", "engines_at", "metrics", "ray"), "ADDRESS"),
    **dict.fromkeys(("max_message", "max_program", "max_client"), "BYTES"),
    **dict.fromkeys(("engine_timeout", "constraint_seconds"), "SECONDS"),
    **dict.fromkeys(("model", "draft_model"), "MODEL"),
    "speculate": "DRAFTERS",
    "slo": "LEVELS",
    "traces": "TARGET",
}
_HTTP_FLAGS = (
    ("--http", "address", "[HOST:]PORT"),
    ("--http-keys", "keys_file", "FILE"),
    ("--http-isolate", "isolate", None),
    ("--http-cors", "cors", "ORIGINS"),
    ("--http-models", "models", "NAMES"),
)
"""flag -> field of HTTPConfig, and the name of its value."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Prints a BanyanError as one line on stderr, without a traceback."""
    try:
        parser = _parser()
        if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
            answer(parser)
        options, unknown = parser.parse_known_args(argv)
        if unknown:
            options.parser.refuse(unknown)
        return int(options.command(options))
    except BanyanError as e:
        print(f"banyan: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        if not _is_unread(sys.stdout):  # the program that runs raised it
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _is_unread(stream: IO[str]) -> bool:
    """Whether `stream` is a pipe that its reader has closed, as `head` does in `banyan models | head`. Asks the
    operating system, and writes nothing."""
    poll = select.poll()
    poll.register(stream, 0)  # 0: errors only
    return bool(poll.poll(0))


def _parser() -> Parser:
    text = "Run programs of many model calls on one KV cache."
    parser = Parser(
        prog="banyan", description=text, examples="  banyan chat\n  banyan run program.py\n  banyan serve --help"
    )
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)

    def add(name: str, command: Command, text: str, examples: str, arguments: str = "") -> Parser:
        usage, description = f"banyan {name} [options]{arguments}", f"{text[0].upper()}{text[1:]}."
        added = commands.add_parser(name, help=text, description=description, usage=usage, examples=examples)
        added.set_defaults(command=command, name=name, parser=added)
        return added

    serve = add("serve", _serve, "run a shared server until it is interrupted", SERVE_EXAMPLES, " [MODEL]")
    _add_model(serve)
    _add_http(serve)
    _add_config(serve, log="info")

    text = "run a program file; a runtime starts if the program needs one"
    run = add("run", _run, text, RUN_EXAMPLES, " PROGRAM [arguments]")
    text = "a Python file; the options below configure its default backend"
    run.add_argument("program", metavar="PROGRAM", help=text)
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the program as sys.argv[1:]")
    _add_config(run, socket_help=_JOIN)

    text = "run a program on each row of a file; an interrupted batch continues where it stopped"
    batch = add("batch", _batch, text, BATCH_EXAMPLES, " PROGRAM[:NAME] --in ROWS --out RESULTS")
    text = "a Python file; NAME is the program in it, if there are several"
    batch.add_argument("program", metavar="PROGRAM[:NAME]", help=text)
    formats = ", ".join(FORMATS)
    text = f"the rows ({formats}); a program takes the columns that its parameters name"
    batch.add_argument("--in", dest="rows", required=True, type=Path, metavar="ROWS", help=text)
    text = f"the results ({formats}); .jsonl is written as rows finish, the others at the end, from RESULTS.jsonl"
    batch.add_argument("--out", required=True, type=Path, metavar="RESULTS", help=text)
    text = "maximum number of rows that run at once (default: 256)"
    batch.add_argument("--concurrency", type=_positive, metavar="N", help=text)
    _add_config(batch, socket_help=_JOIN)

    chat = add("chat", _chat, "talk to a model in this terminal", CHAT_EXAMPLES, " [MODEL]")
    _add_model(chat)
    chat.add_argument("--system", default="", metavar="TEXT", help="the system prompt (default: none)")
    chat.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    chat.add_argument(
        "--max-tokens", "--max-new-tokens", type=int, default=512, metavar="N", help="longest reply (default: 512)"
    )
    _add_config(chat, socket_help=_JOIN)

    text = "create the keys of a server that listens on TCP, or of an engine that joins it"
    keys = add("keys", _keys, text, "  banyan keys ~/.banyan/keys", " DIR")
    keys.add_argument("folder", metavar="DIR", type=Path, help="the directory for the keys; created with mode 0700")
    text = "whose keys: server, or the name of an engine's machine (default: server)"
    keys.add_argument("--name", dest="key_name", default="server", metavar="NAME", help=text)

    text = "run an engine on this machine for a server on another one"
    engine = add("engine", _engine, text, ENGINE_EXAMPLES, " [MODEL] --join ADDRESS --server-key KEY --key PATH")
    _add_model(engine)
    text = "the server's --engines-at address, as tcp://HOST:PORT; give one for each server that shares the engine"
    engine.add_argument("--join", required=True, action="append", metavar="ADDRESS", help=text)
    engine.add_argument("--key", required=True, type=Path, metavar="PATH",
                        help="this machine's secret key; `banyan keys DIR --name NAME` creates one")  # fmt: skip
    text = (
        f"the server's public key, or a file with it (default: the value of {SERVER_KEY}); one for all servers, or one "
        "each"
    )
    engine.add_argument("--server-key", action="append", metavar="KEY", help=text)
    _add_config(engine, only=OWN)

    text = "list the models that this machine can run"
    models = add("models", _show, text, "  banyan models\n  banyan models ~/models/Qwen3-0.6B-GPTQ", " [MODEL ...]")
    models.add_argument("places", nargs="*", metavar="MODEL", help="only these: names, directories or .gguf files")
    text = "say what fits into memory: weights, KV pages, requests"
    sizes = add("size", _size, text, SIZE_EXAMPLES, " [MODEL]")
    sizes.add_argument("place", nargs="?", default="pocket", metavar="MODEL", help="a name, directory, hub id or .gguf "
                       "file; its headers are read, and no weights (default: pocket)")  # fmt: skip
    sizes.add_argument("--memory", metavar="SIZE", help="of each device, such as 24GB (default: what is free now)")
    text = "of a request, prompt and output together, such as 32k (default: the model's maximum)"
    sizes.add_argument("--context", metavar="TOKENS", help=text)
    text = "requests that run at once (default: 1)"
    sizes.add_argument("--concurrent", type=_positive, default=1, metavar="N", help=text)
    sizes.add_argument("--tp", type=_positive, default=1, metavar="N", help="devices that share the model (default: 1)")
    for flag, name in _SIZE_FLAGS.items():
        kind, text = typing.get_args(typing.get_type_hints(Config, include_extras=True)[name])
        sizes.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=text, **_values(name, kind))
    sizes.add_argument("--json", action="store_true", help="print one line of JSON, in bytes and tokens")
    text = "write a model in 4 or 8 bits, and say what that costs in perplexity"
    quantise = add("quantise", _quantise, text, QUANTISE_EXAMPLES, " MODEL OUT --text FILE")
    quantise.add_argument("model", metavar="MODEL", help="a model of a native family, in floats or as GGUF")
    quantise.add_argument(
        "out", metavar="OUT", type=Path, help="the new directory, in the format of compressed-tensors"
    )
    quantise.add_argument("--text", metavar="FILE", type=Path, required=True,
                          help="a text like those that the model will see; a fifth is used to compare")  # fmt: skip
    quantise.add_argument("--bits", type=int, choices=(4, 8), default=4, help="bits of a weight (default: 4)")
    quantise.add_argument("--method", choices=("rtn", "gptq", "awq", "smoothquant"), default="gptq",
                          help="rtn: round to nearest; gptq, awq: keep the outputs on the text close to the original's"
                          "; smoothquant: for inputs in 8 bits (default: gptq)")  # fmt: skip
    quantise.add_argument("--group", type=_positive, default=32, metavar="N", help="inputs per scale (default: 32)")
    text = "tokens of the text to quantise with (default: 8192)"
    quantise.add_argument("--tokens", type=_positive, default=8192, metavar="N", help=text)
    add("kernels", _show, "list the ops and their implementations on this machine", "  banyan kernels")

    text = "check every invariant of a runtime and print what it runs on"
    check = add("check", _check, text, "  banyan check\n  banyan check --socket ~/.banyan/s")
    _add_config(check, socket_help="check the server that listens there, instead of a private one under a small load")

    text = "  banyan tree --socket ~/.banyan/s\n  banyan tree --socket ~/.banyan/s --html tree.html"
    tree = add("tree", _tree, "show the radix tree of a running server", text)
    _add_join(tree)
    tree.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page with a drawing instead")
    tree.add_argument("--most", type=_positive, metavar="N", help="nodes to show, those with the largest subtrees; the "
                      "others are counted (default: 100, or 1000 on a page)")  # fmt: skip

    text = "monitor a running server: programs, batch, tokens per second, pages"
    top = add("top", _top, text, "  banyan top --socket ~/.banyan/s")
    _add_join(top)
    top.add_argument("--seconds", type=_seconds, default=1.0, metavar="S", help="update interval (default: 1)")
    top.add_argument("--once", action="store_true", help="print one update and exit")

    text = "show the engines of a running server, drain one, add one, or change their weights"
    cluster = add("cluster", _cluster, text, CLUSTER_EXAMPLES, " status|drain NAME|add|roll MODEL --socket PATH")
    text = ("status: show them in a table; drain: end the engine NAME, whose programs continue elsewhere; add: start "
            "one more; roll: replace the engines one at a time by engines with the weights of MODEL")  # fmt: skip
    cluster.add_argument("what", choices=("status", "drain", "add", "roll"), help=text)
    text = "the engine to drain, or the model: a directory that the server's and the engines' machines have"
    cluster.add_argument("engine", nargs="?", default="", metavar="NAME|MODEL", help=text)
    _add_join(cluster)
    text = "for status: seconds over which steps are counted (default: 1)"
    cluster.add_argument("--seconds", type=_seconds, default=1.0, metavar="S", help=text)

    text = "print code with which a shell completes commands, options and models"
    completion = add("completion", lambda options: show(options.shell), text, TO_INSTALL, " SHELL")
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    return parser


def _add_model(parser: Parser) -> None:
    parser.add_argument("positional_model", nargs="?", default="", metavar="MODEL", help="the same as --model MODEL")


def _add_http(parser: Parser) -> None:
    """Add the flags that configure the HTTP process, such as --http."""
    options = parser.add_argument_group("options of the HTTP interface")
    hints = typing.get_type_hints(HTTPConfig, include_extras=True)
    for flag, name, metavar in _HTTP_FLAGS:
        kind, text = typing.get_args(hints[name])
        choices = typing.get_args(kind) or None
        default = "" if choices is None else choices[0]
        text += f" (default: {default or 'none'})"
        options.add_argument(flag, default=default, metavar=metavar, choices=choices, help=text)


def _add_join(parser: Parser) -> None:
    """Add the flags of a command that connects to a running server: --socket, --token-file and --server-key."""
    socket = os.environ.get(_SOCKET)
    text = f"where the server listens: a path or a URL (default: the value of {_SOCKET})"
    parser.add_argument("--socket", required=not socket, default=socket, metavar="PATH", help=text)
    text = f"a file with the client's token (default: the token in {TOKEN})"
    parser.add_argument("--token-file", default="", metavar="PATH", help=text)
    _add_server_key(parser)


def _add_server_key(parser: Parser) -> None:
    text = f"for tcp://: the server's public key, or a file with it (default: the value of {SERVER_KEY})"
    parser.add_argument("--server-key", default="", metavar="KEY", help=text)


# ---- options of a runtime, as flags --------------------------------------------------------------------------------


def _add_config(parser: Parser, socket_help: str = "", only: Sequence[str] = (), **own: str) -> None:
    """Add a flag to `parser` for each field of Config. A flag that the user does not give leaves its field unset,
    unless `own` gives the field a default. only: the fields that get a flag; (): all.

    socket_help: for a command that can also connect to a running server: the help of its flag --socket. Such a command
    gets the flag --server-key too. "": the command always starts a server.
    """
    if socket_help:
        _add_server_key(parser)
    hints = typing.get_type_hints(Config, include_extras=True)
    defaults = msgspec.structs.asdict(Config()) | own
    for title, group_names in configs.GROUPS.items():
        if not (names := [name for name in group_names if not only or name in only]):
            continue
        group = parser.add_argument_group(title)
        for name in names:
            kind, text = typing.get_args(hints[name])
            default = defaults[name]
            if name == "socket" and socket_help:
                text = f"{socket_help} (default: the value of {_SOCKET}, unless options of a private one are given)"
            elif "default: " not in text and default not in ("", {}):
                text += f" (default: {'yes' if default is True else 'no' if default is False else default})"
            flag = "--adapter" if name == "adapters" else f"--{name.replace('_', '-')}"
            unset = own.get(name, argparse.SUPPRESS)
            group.add_argument(flag, dest=name, help=text, default=unset, **_values(name, kind))
    if not only:
        parser.add_argument_group(
            "limits of one message, the same for all servers", "\n".join(map(str, MESSAGE_LIMITS))
        )


def _values(name: str, kind: Any) -> dict[str, Any]:
    """The arguments of `add_argument` that say which values a field of Config takes. `int | None` is parsed as int."""
    if name == "adapters":
        return {"action": "append", "type": _adapter, "metavar": "NAME=DIR"}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is typing.Literal:
        return {"choices": typing.get_args(kind)}
    known = next((k for k in typing.get_args(kind) if k is not types.NoneType), kind)
    return {"type": known, "metavar": _METAVARS.get(name, "N")}


def _adapter(text: str) -> tuple[str, str]:
    """The name and the directory of NAME=DIR."""
    name, equals, directory = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"write it like NAME=DIR, not {text!r}")
    return name, str(Path(directory).expanduser().absolute()) if directory else ""


def _positive(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or not (number := int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 1e9:  # `time.sleep` takes not much more
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1 to 1e9, not {text!r}")
    return seconds


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the runtime that the user gave on the command line. ConfigError: one of them is not valid."""
    found = {f.name: getattr(options, f.name) for f in msgspec.structs.fields(Config) if hasattr(options, f.name)}
    if adapters := found.get("adapters"):
        found["adapters"] = dict(adapters)
        if len(found["adapters"]) < len(adapters):
            raise ConfigError("two adapters have the same name")
    model = getattr(options, "positional_model", "")
    if model and found.setdefault("model", model) != model:
        raise ConfigError(f"two models are named: {model} and --model {found['model']}; give one")
    configs.make(**found)
    return found


def _socket(config: dict[str, Any]) -> str:
    """The address of the running server that a command uses; "": it starts a private one. config: the given options."""
    is_private = bool(config.keys() - {"token_file"})
    return str(config.get("socket", "" if is_private else os.environ.get(_SOCKET, "")))


@contextmanager
def backend(options: argparse.Namespace) -> Iterator[ServerBackend]:
    """The server at --socket or BANYAN_SOCKET, or a private runtime that ends with the block."""
    import banyan

    config = given(options)
    socket = _socket(config)
    config.pop("socket", None)
    if socket:
        token = _token(config.pop("token_file", ""))
        if config:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in config)
            raise ConfigError(
                f"{flags}: the server at {socket} already runs, so this cannot be set; leave it out, or leave --socket "
                "out"
            )
        yield banyan.connect(socket, token=token, server_key=options.server_key)
    elif options.server_key:
        raise ConfigError("--server-key is for a running server; name it with --socket tcp://HOST:PORT")
    else:
        status: Any = nullcontext()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.markup import escape

            status = Console(stderr=True).status(f"starting {escape(configs.make(**config).model)} ...")
        with status:
            runtime = banyan.Runtime(**config)
        with runtime:
            yield runtime


def _token(path: str) -> str:
    """Returns the first token in the file `path`, or "" if `path` is "". Each line of the file is "TOKEN" or
    "TENANT TOKEN". ConfigError: the file cannot be read or contains no token."""
    if not path:
        return ""
    if not (lines := configs.token_lines(configs.read_text(Path(path), "--token-file"))):
        raise ConfigError(f"--token-file {path} contains no token")
    _, words = lines[0]
    return words[1] if len(words) > 1 else words[0]


def _join(options: argparse.Namespace) -> ServerBackend:
    import banyan

    runtime = banyan.connect(options.socket, token=_token(options.token_file), server_key=options.server_key)
    _check_is_banyan(runtime, options.socket)
    return runtime


def _check_is_banyan(runtime: ServerBackend, where: str) -> None:
    """ConfigError: a server other than Banyan's answered at the URL `where`, and `connect` returned an OpenAI
    backend."""
    if not hasattr(runtime, "client"):
        raise ConfigError(f"{where} is not a server of Banyan")


# ---- commands ------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    from banyan.runtime import launch

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as at Ctrl-C
    config = configs.make(**given(options))
    given_http: dict[str, Any] = {}
    for flag, name, _ in _HTTP_FLAGS:
        dest = flag[2:].replace("-", "_")
        given_http[name] = getattr(options, dest)
        if not options.http and given_http[name] != options.parser.get_default(dest):
            raise ConfigError(f"{flag} is for --http, which is not given")
    http = HTTPConfig(socket="", token_file=config.token_file, **given_http)  # the server's socket comes later
    if options.http and config.isolate == "connection":
        raise ConfigError(
            "--isolate connection does not separate clients over HTTP, whose requests come over one connection of the "
            "HTTP process; leave it out, or leave --http out. --http-keys and --http-isolate separate them"
        )
    if options.http:
        names = configs.model_names(http.models) or (config.model,)  # the server finds the name of a directory
        if both := config.adapters.keys() & names:
            raise ConfigError(f"the model and an adapter have the same name {min(both)}; give the adapter another one")
        launch.check_gateway(http)  # raises before the server loads a model
    server = launch.start(config)
    gateway: launch.GatewayProcess | None = None
    try:
        if config.log == "quiet":  # otherwise the server has logged it already
            print(*server.report, sep="\n")
        print(f"listening on {server.socket}; Ctrl-C stops the server. To use it:")
        print(f'  import banyan as bn; bn.set_default_backend(bn.connect("{server.socket}"))')
        print(f"  banyan chat --socket {server.socket}", flush=True)
        if options.http:
            gateway = launch.start_gateway(msgspec.structs.replace(http, socket=str(server.socket)))
            print(f'  OpenAI(base_url="{gateway.url}/v1", api_key="...")')
            print(f"  {gateway.url}/ shows the server in a browser", flush=True)
        children = {"server": server} | ({"HTTP process": gateway} if gateway is not None else {})
        while True:
            for name, child in children.items():
                if (status := child.wait(NAP)) is not None:  # short waits, so that no signal is missed
                    print(f"banyan: the {name} exited unexpectedly (exit status {status})", file=sys.stderr)
                    return 1
    except KeyboardInterrupt:
        print("\nended", flush=True)
        return 0
    finally:
        if gateway is not None:
            gateway.close()
        server.close()


class _LazyBackend:
    """A backend that is created at its first use: no server starts for a program that names its own backend."""

    def __init__(self, make: Callable[[], ServerBackend]) -> None:
        self._cached, self._lock = cache(make), threading.Lock()

    def _make(self) -> ServerBackend:
        with self._lock:  # with `cache` alone, each thread of a batch could make one
            return self._cached()

    def program(self, *arguments: Any, **options: Any) -> Any:
        """Open a program on the backend. Creates the backend if there is none yet.

        A separate method, because `hasattr(x, "program")` decides whether x is a backend. With `__getattr__` alone,
        this question would already create the backend.
        """
        return self._make().program(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def _run(options: argparse.Namespace) -> int:
    """`banyan run`: run the user's file as `python` would. The default backend of its programs is the server or the
    private runtime that `options` describes. Returns the exit status."""
    from banyan.backends.default import set_default_of_command
    from banyan.cli.batch import check_program_file

    server = _socket(given(options))  # raises now, not at the first gen
    check_program_file(options.program)
    with ExitStack() as stack:
        made: Any = _LazyBackend(lambda: stack.enter_context(backend(options)))
        set_default_of_command(made, server)
        sys.argv = [options.program, *options.arguments]
        sys.path.insert(0, str(Path(options.program).absolute().parent))
        runpy.run_path(options.program, run_name="__main__")
    return 0


def _batch(options: argparse.Namespace) -> int:
    from banyan.cli import batch
    from banyan.runtime.malloc import MallocOption, mallopt

    mallopt(MallocOption.ARENA_MAX, 1)  # else the malloc arenas of many threads grow, by 12 % in 100,000 items
    # else glibc raises this threshold, and keeps the memory that was used to load a checkpoint
    mallopt(MallocOption.MMAP_THRESHOLD, 128 << 10)
    run = batch.prepare(options.program, options.rows, options.out)
    with backend(options) as runtime:
        return run(runtime, options.concurrency)


def _chat(options: argparse.Namespace) -> int:
    from banyan.cli import chat

    with backend(options) as runtime:
        limits = {"temperature": options.temperature, "max_tokens": options.max_tokens}
        return chat.talk(runtime, system=options.system, **limits)


def _keys(options: argparse.Namespace) -> int:
    from banyan.runtime.protocol.tcp_auth import make_keys, public_key

    public, secret = make_keys(options.folder, options.key_name)
    if options.key_name != "server":
        print(f"{secret}: the secret key of {options.key_name}, for `banyan engine --key {secret}`")
        print("a line for the server's file of --engine-keys:")
        print(f"{options.key_name} {public_key(str(public)).decode()}")
        return 0
    print(f"{secret}: the server's secret key, for `banyan serve --bind tcp://HOST:PORT --curve-key {secret}`")
    print(f"{public}: the server's public key, which clients pass as server_key")
    return 0


def _engine(options: argparse.Namespace) -> int:
    from banyan.runtime.server.engine_link.engine_host import EngineHost

    def log(line: str) -> None:
        print(f"banyan: {line}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as at Ctrl-C
    keys = options.server_key or [os.environ.get(SERVER_KEY, "")]
    if len(keys) not in (1, len(options.join)):
        raise ConfigError(
            f"there are {len(options.join)} --join and {len(keys)} --server-key; give one key for all servers, or one "
            "for each, in their order"
        )
    keys *= len(options.join) // len(keys)
    host = EngineHost(list(zip(options.join, keys, strict=True)), options.key, given(options), log)
    try:
        host.run()
    finally:
        host.close()
    return 0


def _show(options: argparse.Namespace) -> int:
    """Run `banyan models` or `banyan kernels`, whichever `options.name` says. Returns the exit status."""
    named = [options.places] if "places" in options else []
    return int(import_module(f"banyan.cli.{options.name}").show(*named))


def _size(options: argparse.Namespace) -> int:
    import banyan
    from banyan.cli import size

    o = options
    config = {name: getattr(o, name) for name in _SIZE_FLAGS.values() if hasattr(o, name)}
    return size.show(banyan.size(o.place, o.memory, o.context, o.concurrent, tp=o.tp, **config), o.json)


def _quantise(options: argparse.Namespace) -> int:
    from banyan.cli import quantise

    o = options
    return quantise.run(o.model, o.out, o.text, o.method, o.bits, o.group, o.tokens)


def _check(options: argparse.Namespace) -> int:
    from banyan.cli import check

    socket = _socket(given(options))
    with backend(options) as runtime:
        _check_is_banyan(runtime, socket)
        return check.check(runtime, is_private=not socket)


def _tree(options: argparse.Namespace) -> int:
    from banyan.cli import tree

    with _join(options) as runtime:
        return tree.show(runtime, options.most, options.html)


def _top(options: argparse.Namespace) -> int:
    from banyan.cli import top

    with _join(options) as runtime:
        return top.show(runtime, options.socket, options.seconds, options.once)


def _cluster(options: argparse.Namespace) -> int:
    from banyan.cli import cluster

    if (options.what in ("drain", "roll")) != bool(options.engine):
        raise ConfigError(
            "write banyan cluster drain NAME, with a name from `banyan cluster status`, or banyan cluster roll MODEL"
        )
    with _join(options) as runtime:
        if options.what == "status":
            return cluster.status(runtime, options.seconds)
        if options.what == "roll":
            return cluster.roll(runtime, options.engine)
        return cluster.drain(runtime, options.engine) if options.engine else cluster.add(runtime)
