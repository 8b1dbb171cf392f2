"""Fixtures that every room may use. Heavy imports happen inside them: a torch-free test stays torch-free."""

from __future__ import annotations

import faulthandler
import importlib.util
import shutil
import signal
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
    parser.addoption(
        "--json-schema-suite", default=str(SUITE), help="the folder of a checkout of JSON-Schema-Test-Suite"
    )
    parser.addoption("--device", default="cpu", help="where the kernels' own tests run: cpu, cuda")
    parser.addoption("--json-schema-suite-write", action="store_true", help="write the expected results anew")


def pytest_configure() -> None:
    """Servers and chats that tests start can be interrupted, also where the tests run in the background of a shell,
    which lets its children ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


LAST_SECONDS = 60
"""How long a process of tests may take to end when its tests are done."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing is left behind: a process that was keeps what waits for our output waiting for ever, and a thread that
    was keeps us. (What hangs in a test is named by its time limit.)"""
    if not hasattr(session.config, "workerinput"):  # a worker of pytest-xdist waits for the others, and is ended by it
        faulthandler.dump_traceback_later(LAST_SECONDS, exit=True)  # it names the thread
    if session.config.getoption("numprocesses", None):
        return  # ours are the workers of pytest-xdist, which look after themselves
    left = [child for child in psutil.Process().children(recursive=True) if "resource_tracker" not in _command(child)]
    _, left = psutil.wait_procs(left, timeout=10)
    for child in left:
        sys.stderr.write(f"left behind by a test, and killed: {_command(child)}\n")
        with suppress(psutil.NoSuchProcess):
            child.kill()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@pytest.fixture(scope="session")
def module_at() -> Callable[[Path], ModuleType]:
    """`module_at(path)`: a file as a module, loaded once; `--import-mode=importlib` puts no test folder on sys.path."""
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
    """Where the tests of kernels run that run anywhere: --device."""
    return str(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def native() -> None:
    """Tests that need the compiled library: skipped without a compiler, and only then."""
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
    """`tiny_model(family="llama", **overrides) -> Path`: a tiny random model directory, made once a session.

    Callers must not write to the directory: it is shared.
    """
    made: dict[str, Path] = {}

    def make(family: str = "llama", **overrides: Any) -> Path:
        key = repr((family, sorted(overrides.items())))
        if key not in made:
            made[key] = tiny.make_tiny(tmp_path_factory.mktemp(family) / "model", family, **overrides)
        return made[key]

    return make


@pytest.fixture(scope="session")
def reference(tiny: ModuleType) -> Iterator[Callable[[Path], Any]]:
    """`reference(path)`: the model in `path` as transformers runs it (float32, eager), opened once a session."""
    opened: dict[Path, Any] = {}

    def get(path: Path) -> Any:
        if path not in opened:
            opened[path] = tiny.reference(path)
        return opened[path]

    yield get
    opened.clear()
