"""Which backend a program runs on when nobody says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from banyan.backends.base import Backend
from banyan.runtime.errors import ConfigError

CURRENT: ContextVar[Backend | None] = ContextVar("banyan_backend", default=None)
"""That of the `using` block or of the program whose body runs here: programs that it calls go where it went."""

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Run programs on `backend` from now on, in the whole process; None: on none."""
    global _default
    _default = backend


def get_default_backend() -> Backend | None:
    """What `set_default_backend` was given."""
    return _default


@contextmanager
def using(backend: Backend) -> Iterator[Backend]:
    """`with bn.using(backend): ...` runs the block's programs on `backend`: in this thread or task, not in others."""
    token = CURRENT.set(backend)
    try:
        yield backend
    finally:
        CURRENT.reset(token)


def find(backend: Backend | None = None) -> Backend:
    """`backend`; else that of the program or block around us; else the default; else the server of BANYAN_SOCKET.

    ConfigError, with what to do, where there is none of them.
    """
    for found in (backend, CURRENT.get(), _default):
        if found is not None:
            return found
    if not (path := os.environ.get("BANYAN_SOCKET")):
        raise ConfigError(
            "there is nothing to run this program on: start a runtime and make it the default, with "
            "`bn.set_default_backend(bn.Runtime())`; or pass `backend=`; or name a running server in BANYAN_SOCKET"
        )
    from banyan.backends.runtime import connect  # here: that needs zmq, and programs on a Mock do not

    return connect(path)


def flush_cache(backend: Backend | None = None) -> bool:
    """Empty the backend's tree of all that no program uses. False: there is no backend."""
    if (found := _found(backend)) is None:
        return False
    found.ask("flush")
    return True


def get_server_info(backend: Backend | None = None) -> dict[str, object] | None:
    """The model and the options of the backend. None: there is none."""
    if (found := _found(backend)) is None:
        return None
    info = found.ask("info")
    return info if isinstance(info, dict) else {}


def _found(backend: Backend | None) -> Backend | None:
    try:
        return find(backend)
    except ConfigError:
        return None
