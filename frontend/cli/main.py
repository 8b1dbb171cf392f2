"""The `banyan` command: serve, run, chat, models, check, tree.

Every option of a runtime is a flag here, made from the tree in runtime/config.py: there is no second list. What a
command needs beyond argparse is imported by that command, so that `banyan --help` is instant.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from banyan.runtime import config as configs
from banyan.runtime.config import SERVER_KEY, TOKEN, Config
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.waiting import NAP

if TYPE_CHECKING:
    from banyan.backends.runtime import ServerBackend

EPILOG = "Errors are one line on stderr; the exit status is 2 for a wrong call and 1 for one that failed."
_JOIN = "join the server that listens there, instead of a private one"
_ELSE = {name: f"default: that of {name}" for name in (TOKEN, SERVER_KEY)}
_METAVARS = {
    "bind": "ADDRESS",
    "curve_key": "PATH",
    "token_file": "PATH",
    "model": "MODEL",
    "kv_memory": "SIZE",
    "host_memory": "SIZE",
    "host_file": "PATH",
    "socket": "PATH",
    "max_message": "BYTES",
    "max_program": "BYTES",
    "metrics": "ADDRESS",
    "max_client": "BYTES",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A BanyanError is one line on stderr, never a traceback."""
    try:
        options = _parser().parse_args(argv)
        return int(options.command(options))
    except BanyanError as e:
        print(f"banyan: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `banyan models | head`; nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors as one line and no guesses at what a shortened flag meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"banyan: {message} (try: {self.prog} --help)\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="banyan", description="Programs of many model calls, beside one tree of KV pages.", epilog=EPILOG
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str, rest: str = "") -> _Parser:
        usage = f"banyan {name} [options]{rest}"
        about = f"{text.capitalize()}."
        added: _Parser = commands.add_parser(name, help=text, description=about, usage=usage, epilog=EPILOG)
        added.set_defaults(command=command)
        return added

    serve = add("serve", _serve, "run a shared server, until it is interrupted", " [MODEL]")
    _add_model(serve)
    _add_config(serve, log="info")

    run = add("run", _run, "run a program file, with a runtime at hand if it needs one", " PROGRAM [arguments]")
    run.add_argument("program", metavar="PROGRAM", help="a Python file; it runs here unless it names another backend")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the program, as sys.argv[1:]")
    _add_config(run, socket_help=_JOIN)

    chat = add("chat", _chat, "talk to a model in this terminal", " [MODEL]")
    _add_model(chat)
    chat.add_argument("--system", default="", metavar="TEXT", help="the system turn (default: none)")
    chat.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    chat.add_argument("--max-tokens", type=int, default=512, metavar="N", help="longest reply (default: 512)")
    _add_config(chat, socket_help=_JOIN)

    keys = add("keys", _keys, "make the keys of a server that listens on tcp", " DIR")
    keys.add_argument("folder", metavar="DIR", type=Path, help="where they go; made with mode 0700")

    add("models", _models, "list what can be run on this machine")
    add("kernels", _kernels, "list the ops, and what computes them on this machine")

    check = add("check", _check, "walk every invariant of a runtime, and say what it runs on")
    _add_config(check, socket_help="check the server that listens there, instead of a private one under a small load")

    tree = add("tree", _tree, "draw what stands in the tree of a running server")
    _add_join(tree)
    tree.add_argument("--html", type=Path, metavar="FILE", help="write a page instead, with a drawing")
    tree.add_argument("--most", type=_positive, metavar="N", help="nodes that are drawn, those with most below them; "
                      "the others are counted (default: 100, and 1000 on a page)")  # fmt: skip

    top = add("top", _top, "show a running server as it goes: programs, batch, tokens a second, pages")
    _add_join(top)
    top.add_argument("--seconds", type=_seconds, default=1.0, metavar="S", help="between two looks (default: 1)")
    top.add_argument("--once", action="store_true", help="print one look, and end")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    """A model that is named without its flag, as other servers have it."""
    parser.add_argument("by_place", nargs="?", default="", metavar="MODEL", help="the same as --model MODEL")


def _add_join(parser: argparse.ArgumentParser) -> None:
    """Of a command that only looks at a running server."""
    parser.add_argument("--socket", required=True, metavar="PATH", help="where the server listens; or tcp://HOST:PORT")
    parser.add_argument("--token-file", default="", metavar="PATH", help=f"the token to come in with ({_ELSE[TOKEN]})")
    _add_server_key(parser)


def _add_server_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server-key", default="", metavar="KEY", help=f"by tcp://, its public key or file ({_ELSE[SERVER_KEY]})"
    )


# ---- options of a runtime, as flags --------------------------------------------------------------------------------


def _add_config(parser: argparse.ArgumentParser, socket_help: str = "", **defaults: str) -> None:
    """One flag per field of Config. What is not given is absent from the result, so that Config's default holds.

    defaults: what this command has in place of Config's own.
    """
    if socket_help:
        _add_server_key(parser)
    group = parser.add_argument_group("options of the runtime")
    hints = typing.get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        kind, meta = typing.get_args(hints[field.name])
        text, default = meta.description, defaults.get(field.name, field.default)
        if field.name == "socket" and socket_help:
            text = socket_help
        elif "default: " not in text:
            text += f" (default: {'yes' if default is True else default})"
        arguments: dict[str, Any] = {"dest": field.name, "help": text}
        arguments["default"] = defaults.get(field.name, argparse.SUPPRESS)
        if kind is bool:
            arguments["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is typing.Literal:
            arguments["choices"] = typing.get_args(kind)
        else:
            arguments["type"] = _plain(kind)
            arguments["metavar"] = _METAVARS.get(field.name, "N")
        group.add_argument(f"--{field.name.replace('_', '-')}", **arguments)


def _positive(text: str) -> int:
    """A number of one or more."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    """A tenth of a second or more."""
    seconds = float(text)
    if not seconds >= 0.1:
        raise ValueError(text)
    return seconds


def _plain(kind: Any) -> Any:
    """`int` of `int | None`."""
    return next(k for k in typing.get_args(kind) if k is not types.NoneType) if typing.get_args(kind) else kind


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the runtime that stand on the command line, and no others. ConfigError: one that cannot be."""
    found = {f.name: getattr(options, f.name) for f in msgspec.structs.fields(Config) if hasattr(options, f.name)}
    by_place = getattr(options, "by_place", "")
    if by_place and found.setdefault("model", by_place) != by_place:
        raise ConfigError(f"two models are named: {by_place} and --model {found['model']}; give one")
    configs.make(**found)
    return found


@contextmanager
def backend(options: argparse.Namespace) -> Iterator[ServerBackend]:
    """The runtime that the command line asks for: the server at --socket, or a private one that ends with the block."""
    import banyan

    config = given(options)
    if socket := config.pop("socket", ""):
        token = _token(config.pop("token_file", ""))
        if config:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in config)
            raise ConfigError(f"{flags}: the server at {socket} decided that when it started; leave it or --socket out")
        yield banyan.connect(socket, token=token, server_key=options.server_key)
    elif options.server_key:
        raise ConfigError("--server-key is for a server that is joined; name it with --socket tcp://HOST:PORT")
    else:
        with _waiting(f"starting {configs.make(**config).model} ..."):
            runtime = banyan.Runtime(**config)
        with runtime:
            yield runtime


def _token(path: str) -> str:
    """The token of a file: of its first line that has one, with or without the tenant before it. "" without a file."""
    if not path:
        return ""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--token-file {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    words = next((words for words in lines if words and not words[0].startswith("#")), None)
    if words is None:
        raise ConfigError(f"--token-file {path} holds no token")
    return words[1] if len(words) > 1 else words[0]


def _join(options: argparse.Namespace) -> ServerBackend:
    import banyan

    return banyan.connect(options.socket, token=_token(options.token_file), server_key=options.server_key)


def _waiting(text: str) -> AbstractContextManager[object]:
    """Show `text` on stderr while the block runs, if somebody looks."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


# ---- commands ------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    from banyan.runtime import launch

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    config = configs.make(**given(options))
    server = launch.start(config)
    try:
        if config.log == "quiet":  # a talking server has said it already
            print(*server.report, sep="\n")
        print(f"listening on {server.socket}; Ctrl-C ends it. To use it:")
        print(f'  import banyan as bn; bn.set_default_backend(bn.connect("{server.socket}"))')
        print(f"  banyan chat --socket {server.socket}", flush=True)
        while (status := server.wait(NAP)) is None:  # in naps: no signal is missed
            pass
        print(f"banyan: the server ended by itself (exit status {status})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nended", flush=True)
        return 0
    finally:
        server.close()


def _run(options: argparse.Namespace) -> int:
    from banyan.cli import run

    given(options)  # what is wrong is said now, not at the first gen
    with ExitStack() as stack:
        return run.run(options.program, options.arguments, lambda: stack.enter_context(backend(options)))


def _chat(options: argparse.Namespace) -> int:
    from banyan.cli import chat

    with backend(options) as runtime:
        wishes = {"temperature": options.temperature, "max_tokens": options.max_tokens}
        return chat.talk(runtime, system=options.system, **wishes)


def _keys(options: argparse.Namespace) -> int:
    from banyan.runtime.protocol.tcp_auth import make_keys

    public, secret = make_keys(options.folder)
    print(f"{secret}: the server's, for `banyan serve --bind tcp://HOST:PORT --curve-key {secret}`; nobody else's")
    print(f"{public}: for those who join it, as server_key")
    return 0


def _models(options: argparse.Namespace) -> int:
    from banyan.cli import models

    return models.show()


def _kernels(options: argparse.Namespace) -> int:
    from banyan.cli import kernels

    return kernels.show()


def _check(options: argparse.Namespace) -> int:
    from banyan.cli import check

    with backend(options) as runtime:
        return check.check(runtime, is_private=not hasattr(options, "socket"))


def _tree(options: argparse.Namespace) -> int:
    from banyan.cli import tree

    with _join(options) as runtime:
        return tree.show(runtime, options.most, options.html)


def _top(options: argparse.Namespace) -> int:
    from banyan.cli import top

    with _join(options) as runtime:
        return top.show(runtime, options.socket, options.seconds, options.once)


if __name__ == "__main__":
    sys.exit(main())
