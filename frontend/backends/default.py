"""The default backend of programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from banyan.backends.base import Backend, is_recorder
from banyan.execution.source_line import warn
from banyan.runtime.errors import BadProgram, ConfigError

CURRENT: ContextVar[Backend | None] = ContextVar("banyan_backend", default=None)
"""The backend of the `using` block, or of the program whose body runs here and calls other programs."""

_default: Backend | None = None
_server: str | None = None
"""The running server that `banyan run` uses; "": it uses none; None: `banyan run` does not run this process."""

_OWN_THREAD = (
    "This thread has the backend of a calling program or `using` block only if it runs in their context: start it with "
    "`contextvars.copy_context().run`"
)


def set_default_backend(backend: Backend | None) -> None:
    """Run programs on `backend` from now on, in the whole process; None: no default. BadProgram: `backend` is not a
    backend."""
    global _default
    _default = None if backend is None else _checked(backend)
    if server := os.environ.get("BANYAN_SOCKET") if _server is None else _server:
        from banyan.backends.runtime import Runtime  # here: what it imports is not needed otherwise

        if isinstance(backend, Runtime):
            warn(
                f"the program starts its own server, so the one at {server} is not used; leave this "
                "set_default_backend out"
            )


def set_default_of_command(backend: Backend, server: str) -> None:
    """Set the default backend of `banyan run`. server: the running server that `backend` connects to; "": none."""
    global _server
    _server = server
    set_default_backend(backend)


@contextmanager
def using(backend: Backend) -> Iterator[Backend]:
    """`with bn.using(backend): ...` runs the block's programs on `backend`, in this thread or task only.

    BadProgram: `backend` is not a backend."""
    token = CURRENT.set(_named(backend))
    try:
        yield backend
    finally:
        CURRENT.reset(token)


def find(backend: Backend | None = None) -> Backend:
    """Return the first of these: the recorder, while a body is recorded; `backend`; the backend of the enclosing
    program or `using` block; the default; the server at BANYAN_SOCKET.

    ConfigError: there is none of these. BadProgram: `backend` is not a backend.
    """
    if backend is not None:
        return _named(backend)
    for found in (CURRENT.get(), _default):
        if found is not None:
            return found
    if not (path := os.environ.get("BANYAN_SOCKET")):
        is_main = threading.current_thread() is threading.main_thread()
        raise ConfigError(
            "there is nothing to run this program on: start a runtime and make it the default, with "
            "`bn.set_default_backend(bn.Runtime())`; or pass `backend=`; or name a running server in BANYAN_SOCKET"
            + ("" if is_main else f". {_OWN_THREAD}")
        )
    from banyan.backends.runtime import connect  # here: it needs zmq, and programs on a Mock do not

    return connect(path)


def flush_cache(backend: Backend | None = None) -> bool:
    """Evict from the backend's radix tree all KV that no program uses. Returns whether there is a backend."""
    if (found := _found(backend)) is None:
        return False
    found.ask("flush")
    return True


def get_server_info(backend: Backend | None = None) -> dict[str, object] | None:
    """The model and the options of the backend; None if there is no backend."""
    if (found := _found(backend)) is None:
        return None
    info = found.ask("info")
    return info if isinstance(info, dict) else {}


def _named(backend: Backend) -> Backend:
    """Returns `backend`, which the caller gave to a run or a `using` block. While `bn.compile` records a body, returns
    the recorder of `bn.compile` instead, so that no model runs. BadProgram: `backend` is not a backend."""
    current = CURRENT.get()
    if current is not None and is_recorder(current) and not is_recorder(backend):
        return current
    return _checked(backend)


def _checked(backend: Backend) -> Backend:
    if isinstance(backend, type) or not hasattr(backend, "program"):
        raise BadProgram(
            f"{backend!r:.80} is not a backend; a backend is an object such as bn.Runtime(), bn.connect(path) or "
            "bn.OpenAI(model)"
        )
    return backend


def _found(backend: Backend | None) -> Backend | None:
    try:
        return find(backend)
    except ConfigError:
        return None
