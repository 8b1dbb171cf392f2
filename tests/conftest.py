"""Fixtures for all tests. Heavy imports happen inside fixtures, so that tests without torch do not load it."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

SUITE = Path(__file__).parents[2] / "shared" / "data" / "json-schema-test-suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--json-schema-suite", default=str(SUITE), help="folder with a checkout of JSON-Schema-Test-Suite")
    parser.addoption("--device", default="cpu", help="device of the kernel tests: cpu, cuda")
    parser.addoption("--json-schema-suite-write", action="store_true", help="rewrite the expected results")


def pytest_configure() -> None:
    """Restore SIGINT for child processes: a background shell ignores it, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection while pytest imports modules and creates tests, then freeze these objects: with them,
    each of the many `gc.collect` would take 0.4 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_left_out() -> None:
    """Freeze the objects that earlier test modules created: with those of torch, each collection takes 0.4 s."""
    gc.collect()
    gc.freeze()


EXIT_SECONDS = 60
"""Seconds that the test process may take to exit after its last test."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Kill leftover child processes and fail the session for them. Dump tracebacks if a thread blocks the exit.

    A leftover process would keep the reader of our output waiting. A hanging test is reported by its own time limit.
    """
    if not hasattr(session.config, "workerinput"):  # pytest-xdist ends its own workers
        faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True)  # the traceback names the thread
    if session.config.getoption("numprocesses", None):
        return  # the children are workers of pytest-xdist
    leftover = [
        child for child in psutil.Process().children(recursive=True) if "resource_tracker" not in _command(child)
    ]
    _, leftover = psutil.wait_procs(leftover, timeout=10)
    for child in leftover:
        sys.stderr.write(f"left running by a test, killed: {_command(child)}\n")
        with suppress(psutil.NoSuchProcess):
            child.kill()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@pytest.fixture(scope="session", autouse=True)
def start_python() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """`subprocess.Popen`, or in a worker of pytest-xdist a replacement, which `launch` uses too: it forks processes of
    banyan from a template process that has imported banyan's modules."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield subprocess.Popen
        return
    import forked_children

    template = forked_children.Template()
    yield forked_children.install(template)
    template.close()


@pytest.fixture
def new_interpreters(start_python: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `launch` start its children as users do: by `python -m ...`, without the template process."""
    from banyan.runtime import launch

    monkeypatch.setattr(launch, "subprocess", subprocess)


@pytest.fixture(scope="session")
def run_python(start_python: Callable[..., subprocess.Popen[Any]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_python("-m", "banyan", ...)`: run this interpreter with these arguments, and capture its output."""

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *argv]
        with start_python(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate()
            finally:
                process.kill()  # if the time limit of the test ended the wait
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture
def no_flusher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the background thread from flushing programs, so that only the test does, even on a slow machine."""
    from banyan.execution import clock

    monkeypatch.setattr(clock.Flusher, "add", lambda *_: None)


@pytest.fixture(scope="session")
def module_at() -> Callable[[Path], ModuleType]:
    """`module_at(path)`: load a file as a module, once; `--import-mode=importlib` adds no test folder to sys.path."""
    loaded: dict[Path, ModuleType] = {}

    def load(path: Path) -> ModuleType:
        if path not in loaded:
            name = f"banyan_tests_{path.parent.name}_{path.stem}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = loaded[path] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[path])
        return loaded[path]

    return load


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device of the kernel tests: --device."""
    return str(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def native() -> None:
    """Builds the compiled library for tests that need it. Skips them without a C++ compiler."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    from banyan.kernels.native import build

    assert build.library() is not None


@pytest.fixture(scope="session")
def tiny(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The module tests/tiny.py: `make_tiny`, `make_tokenizer`, `reference`, `VOCAB`, ids of the special tokens."""
    return module_at(Path(__file__).with_name("tiny.py"))


@pytest.fixture(scope="session")
def tiny_model(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(family="llama", **overrides) -> Path`: a tiny random model directory, created once per session.

    The directory is shared: do not write to it.
    """
    paths: dict[str, Path] = {}

    def make(family: str = "llama", **overrides: Any) -> Path:
        key = repr((family, sorted(overrides.items())))
        if key not in paths:
            paths[key] = tiny.make_tiny(tmp_path_factory.mktemp(family) / "model", family, **overrides)
        return paths[key]

    return make


@pytest.fixture(scope="session")
def reference(tiny: ModuleType) -> Iterator[Callable[[Path], Any]]:
    """`reference(path)`: the model in `path` in transformers (float32, eager), opened once per session."""
    opened: dict[Path, Any] = {}

    def get(path: Path) -> Any:
        if path not in opened:
            opened[path] = tiny.reference(path)
        return opened[path]

    yield get
    opened.clear()
