"""Banyan's own runtime as a backend: one that this process starts, or one that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from banyan.backends.base import OpenProgram, Question
from banyan.runtime import config as configs
from banyan.runtime import wire
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.template import ProgramTemplate

if TYPE_CHECKING:
    from banyan.runtime.client import Client


class RuntimeEndpoint:
    """A running server, by the path of its socket (also as ipc://path)."""

    def __init__(
        self,
        base_url: str | Path,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
        *,
        timeout: float = 10.0,
    ) -> None:
        """ConnectFailed: nobody answers there within `timeout` seconds."""
        for name, value in (("api_key", api_key), ("verify", verify), ("chat_template_name", chat_template_name)):
            if value is not None:
                raise Unsupported(f"{name}: a socket needs none, and the chat template is the model's own")
        path = str(base_url)
        if path.startswith(("http://", "https://")):
            raise Unsupported(f"{path}: only sockets on this machine, by path or as ipc://path, not HTTP")
        self.client = _connect(Path(path.removeprefix("ipc://")), timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.welcome.model} at {self.client.path}>"

    @property
    def welcome(self) -> wire.Welcome:
        return self.client.welcome

    def close(self) -> None:
        """Leave the server. What programs of this process still wait for there raises RuntimeLost. Idempotent."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def program(self, name: str = "") -> OpenProgram:
        return self.client.program(name)

    def define(self, template: ProgramTemplate) -> int:
        """Make a template known there, for programs to use by the number that this gives."""
        return self.client.define(template)

    def undefine(self, number: int) -> None:
        self.client.undefine(number)

    def ask(self, what: Question) -> Any:
        return self.client.ask(what)


def connect(socket: str | Path, timeout: float = 10.0) -> RuntimeEndpoint:
    """Join the server that listens at `socket`. ConnectFailed: nobody answers there within `timeout` seconds."""
    return RuntimeEndpoint(socket, timeout=timeout)


class Runtime(RuntimeEndpoint):
    """A server of one's own: it starts here, and ends with `close`, with a `with` block, or with this process.

    model: a directory or hub id in Hugging Face format; None: the pocket model that comes with Banyan. The other
    options are those of `banyan serve` (runtime/config.py). Raises what keeps it from starting: ConfigError,
    ModelNotFound, OutOfMemory and so on.
    """

    def __init__(self, model: str | Path | None = None, *, launch_timeout: float = 600.0, **options: Any) -> None:
        from banyan.runtime import launch  # here: `import banyan` is light

        if model is not None:
            options["model"] = str(model)
        self._server = launch.start(configs.make(**options), launch_timeout)
        try:
            self.client = _connect(self._server.socket, 10.0)
        except BaseException:
            self._server.close()
            raise

    @property
    def report(self) -> tuple[str, ...]:
        """What the server decided as it started, one line each."""
        return self._server.report

    @property
    def socket(self) -> Path:
        """Where it listens: other processes of this user may `connect` there."""
        return self._server.socket

    def close(self) -> None:
        """End the server. What its programs still wait for raises RuntimeLost. Idempotent."""
        super().close()
        self._server.close()

    shutdown = close


def _connect(path: Path, timeout: float) -> Client:
    if path == Path("."):
        raise ConfigError("the path of the socket is empty")
    from banyan.runtime.client import connect  # here: it loads zmq

    return connect(path, timeout)
