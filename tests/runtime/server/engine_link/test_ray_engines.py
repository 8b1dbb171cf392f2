"""The start of the process that runs engines on Ray; Ray itself is not needed."""

from __future__ import annotations

import importlib.util
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from banyan.runtime import config, launch
from banyan.runtime.protocol import tcp_auth
from banyan.runtime.server.engine_link.ray_engines import LauncherOptions, RayEngines


class Child:
    """Stands in for a ChildProcess. words: the command of the last one."""

    words: list[str]

    def __init__(self, words: list[str], **_: Any) -> None:
        Child.words, self.pid = words, os.getpid()

    def close(self) -> None:
        pass


def test_secret_key_is_not_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine can read the arguments of a process."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(launch, "ChildProcess", Child)
    with closing(RayEngines(config.make())) as engines:
        engines.start("tcp://127.0.0.1:7200", "pocket")
        options = msgspec.json.decode(Child.words[Child.words.index("--options") + 1], type=LauncherOptions)
        secrets = [tcp_auth.read_keys(path)[1].decode() for path in engines._folder.glob("*_secret")]
        assert len(secrets) == 2
        assert not any(secret in word for secret in secrets for word in Child.words)
        assert tcp_auth.read_keys(Path(options.key))[1].decode() in secrets, "the launcher can read it"
