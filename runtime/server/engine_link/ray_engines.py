"""Engines on a Ray cluster, on the server's side. A separate process (ray_launcher.py) talks to Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from banyan.runtime import config as configs
from banyan.runtime import launch
from banyan.runtime.config import Config
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import tcp_auth

LAUNCHER = (sys.executable, "-m", "banyan.runtime.server.engine_link.ray_launcher")


class LauncherOptions(msgspec.Struct, frozen=True):
    """The options of the launcher. ray: the address of the cluster. port: the port of the server's socket for engines.
    key: the file with the secret key with which engines join; the key itself must not be on a command line. own:
    options of config.OWN. n: number of engines to start. command: the command that starts an engine; (): the command
    that `banyan engine` uses."""

    ray: str
    port: int
    server_key: str
    key: str
    own: dict[str, Any]
    n: int
    command: tuple[str, ...] = ()


class RayEngines:
    """The launcher, and the keys with which its engines join.

    config  the server's config, with the address at which EngineHosts listens
    life    a file descriptor that is readable once the launcher has ended
    """

    def __init__(self, config: Config) -> None:
        """ConfigError: Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("ray needs the package ray: pip install 'banyan[ray]'")
        self._theirs = config
        self._folder = Path(tempfile.mkdtemp(prefix="banyan-ray-"))
        self._server_key, server = tcp_auth.make_keys(self._folder)
        public, self._key = tcp_auth.make_keys(self._folder, "ray")
        (self._folder / "engines").write_text(f"ray {tcp_auth.public_key(str(public)).decode()}\n")
        self.config = msgspec.structs.replace(
            config, engines_at="tcp://0.0.0.0:0", engine_keys=str(self._folder / "engines"), curve_key=str(server)
        )
        self._child: launch.ChildProcess | None = None
        self._adds, self.life = -1, -1

    def start(self, address: str, model: str, command: tuple[str, ...] = ()) -> None:
        """Start the launcher process, which starts `Config.replicas` engines. address: tcp://HOST:PORT at which engine
        hosts can reach the server. model: the model that they load. command: the command that starts an engine; (): the
        usual one."""
        own = {name: getattr(self._theirs, name) for name in configs.OWN} | {"model": model}
        options = LauncherOptions(
            self._theirs.ray, configs.tcp(address)[1], tcp_auth.public_key(str(self._server_key)).decode(),
            str(self._key), own, self._theirs.replicas, command,
        )  # fmt: skip
        adds, self._adds = os.pipe()
        try:
            words = [*LAUNCHER, "--options", msgspec.json.encode(options).decode(), "--adds-fd", str(adds)]
            self._child = launch.ChildProcess(words, pass_fds=(adds,))
        finally:
            os.close(adds)
        self.life = os.pidfd_open(self._child.pid)

    def add(self) -> None:
        """Start one more engine."""
        with contextlib.suppress(BrokenPipeError):  # `life` reports the launcher's end
            os.write(self._adds, b"+")

    def close(self) -> None:
        """End the launcher, and with it all engines. Idempotent."""
        if self._child is not None:
            self._child.close()
            os.close(self._adds)
            os.close(self.life)
            self._child = None
        shutil.rmtree(self._folder, ignore_errors=True)
