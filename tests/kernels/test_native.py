"""The CPU library is built once and checked, with torch as the fallback."""

import ctypes
import functools
import logging
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from threading import Barrier

import pytest
import torch

from banyan.kernels import dispatch_report, ops
from banyan.kernels.attention import native
from banyan.kernels.native import build, threads
from kernel_support.cases import attention_case
from kernel_support.small_ops import CHECKS

RunPython = Callable[..., subprocess.CompletedProcess[str]]
COMPILER = [shutil.which("c++") or ""]


@pytest.fixture
def clear_library_cache():
    """Clears the cache of `build.library` before and after the test."""
    build.library.cache_clear()
    yield
    build.library.cache_clear()


@pytest.mark.usefixtures("clear_library_cache")
def test_missing_compiler_falls_back_to_torch_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    case = attention_case(1, [1, 9], [30, 20])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            case.check(ops.attention(*case))
        for check in CHECKS:
            check(1, torch.float32, "cpu")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler (no-such-compiler)" in caplog.text


@pytest.mark.usefixtures("native", "clear_library_cache")
@pytest.mark.parametrize("named", ["", "env c++"])
def test_compiler_may_be_named_with_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str) -> None:
    (tmp_path / "ops.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCES", (tmp_path / "ops.cpp",))
    monkeypatch.setattr(build, "_declare", lambda library: library)
    monkeypatch.setattr(build, "load", functools.partial(build.load, check=accept))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", named)
    assert build.library() is not None


@pytest.mark.usefixtures("native", "clear_library_cache")
def test_failed_build_is_logged_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "ops.cpp"
    source.write_text("this is not C++")
    monkeypatch.setattr(build, "SOURCES", (source,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert build.library() is None
    assert "compiling the CPU kernels for this machine with" in caplog.text
    assert "could not be built" in caplog.text
    assert "error" in caplog.text


@pytest.mark.usefixtures("clear_library_cache")
def test_user_without_a_home_gets_the_fallback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("CXX", "true")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert build.library() is None
    assert ["home directory" in record.message for record in caplog.records] == [True]


@pytest.mark.usefixtures("clear_library_cache")
def test_compiler_that_cannot_be_read_gives_the_fallback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "'c++")
    assert build.library() is None
    assert ["CXX='c++: No closing" in record.message for record in caplog.records] == [True]


@pytest.mark.usefixtures("native", "clear_library_cache")
def test_gcc_that_is_too_old_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "c++ -U__clang__ -U__GNUC__ -D__GNUC__=11 -Wfatal-errors")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.library() is None
    assert "need GCC 12 or newer, or Clang" in caplog.text


@pytest.fixture
def builds(native: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the compiler by a copy of this machine's library. Returns the files that it has linked."""
    (built,) = build.cache_folder().glob(f"ops-{build._key(COMPILER)}.so")
    linked: list[str] = []
    run = subprocess.run

    def compiler(command: list[str], **options: object) -> object:
        if "--version" in command:
            return run(command, **options)
        if "-c" not in command:
            time.sleep(0.1)  # so that processes meet
            linked.append(command[-1])
            shutil.copy(built, command[-1])
        return None

    monkeypatch.setattr(subprocess, "run", compiler)
    return linked


def accept(library: object) -> None:
    pass


def refuse(library: object) -> None:
    raise AssertionError("wrong on this machine")


def test_build_is_checked_before_it_is_stored(tmp_path: Path, builds: list[str]) -> None:
    with pytest.raises(AssertionError, match="wrong on this machine"):
        build.load(COMPILER, tmp_path, check=refuse)
    assert [file.suffix for file in tmp_path.iterdir()] == [".failed"], "only a note for processes that waited"
    build.load(COMPILER, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    build.load(COMPILER, tmp_path, check=refuse)
    assert len(builds) == 2, "what is stored is neither built nor checked again"


def test_stored_build_that_does_not_load_is_replaced(tmp_path: Path, builds: list[str]) -> None:
    stored = tmp_path / f"ops-{build._key(COMPILER)}.so"
    stored.write_bytes(b"")
    build.load(COMPILER, tmp_path, check=accept)
    assert len(builds) == 1
    assert stored.stat().st_size > 0


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A build without optimisation, with the narrowest vectors."""
    if not COMPILER[0]:
        pytest.skip("no C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", ("-O0", "-std=c++17", "-pthread", "-fPIC", "-w"))
        return build.load(COMPILER, tmp_path_factory.mktemp("portable"))


@pytest.mark.long
def test_build_without_optimisation_gives_the_same_results(portable: ctypes.CDLL) -> None:
    case = attention_case(2, [1, 40], [70, 90], window=50, softcap=4.0, sinks=True)
    case.check(native.attend(portable, *case))


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86's levels of vectors")
@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512", "sapphirerapids"])
def test_the_library_compiles_for_processors_with_other_instructions(processor: str) -> None:
    """The processors have AVX2; AVX-512; and AVX-512 with bfloat16 instructions and AMX."""
    if not COMPILER[0]:
        pytest.skip("no C++ compiler")
    for source in build.SOURCES:
        flags = ("-O0", "-std=c++17", "-fPIC", "-w", f"-march={processor}")
        build._compile([*COMPILER, *flags, "-c", str(source), "-o", os.devnull])


def check_nan(library: ctypes.CDLL) -> None:
    """Fails unless exactly the rows of attention are NaN that have a NaN in their query or in a key that they attend
    to. Computes few and many rows over the same keys."""
    for dtype, softcap in product(build.DTYPES, (0.0, 4.0)):
        for lens in (([1, 3], [70, 200]), ([40], [90])):
            for place in ("query", "key"):
                case = attention_case(2, *lens, dtype=dtype, softcap=softcap)
                if place == "query":
                    case.q[-1] = torch.nan
                else:
                    assert isinstance(case.k_pool, torch.Tensor)
                    case.k_pool[case.ragged.page_table[-1, 4], 2] = torch.nan  # key 66 of the last request
                want = case.expected().isnan()
                assert want.any()
                assert not want.all()
                got = native.attend(library, *case)
                assert torch.equal(got.isnan(), want), f"a NaN {place} in {dtype}"


@pytest.mark.usefixtures("native")
def test_nan_reaches_all_rows_that_see_it() -> None:
    library = build.library()
    assert library is not None
    check_nan(library)


@pytest.mark.long
def test_nan_reaches_all_rows_that_see_it_with_narrow_vectors(portable: ctypes.CDLL) -> None:
    check_nan(portable)


def test_one_of_several_builds_and_the_others_wait(tmp_path: Path, builds: list[str]) -> None:
    with ThreadPoolExecutor(3) as threads:  # the lock is per open file, so threads act like processes
        list(threads.map(lambda _: build.load(COMPILER, tmp_path, check=accept), range(3)))
    assert len(builds) == 1


@pytest.mark.usefixtures("native")
def test_failed_build_is_not_repeated_by_those_that_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[str] = []
    lock, all_are_here = build._lock, Barrier(3)

    def count(compiler: list[str], path: Path, check: Callable[[object], None]) -> None:
        builds.append(path.name)
        check(None)

    def lock_together(folder: Path) -> AbstractContextManager[None]:
        all_are_here.wait(60)
        return lock(folder)

    def reason_of(_: int) -> str:
        with pytest.raises((AssertionError, subprocess.SubprocessError)) as raised:
            build.load(COMPILER, tmp_path, check=refuse)
        return str(raised.value)

    monkeypatch.setattr(build, "_build", count)
    monkeypatch.setattr(build, "_lock", lock_together)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(reason_of, range(3))) == ["wrong on this machine"] * 3
    assert len(builds) == 1
    monkeypatch.setattr(build, "_lock", lock)
    reason_of(0)
    assert len(builds) == 2, "a process that starts later tries again"


@pytest.mark.long
@pytest.mark.usefixtures("native")
def test_worker_threads_serve_concurrent_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PRODUCT_WORK", 0)
    monkeypatch.setattr(threads, "_n_threads", 4)
    x, weight = torch.randn(3, 40), torch.randn(900, 40)
    packed, expected = ops.pack(weight), x @ weight.T

    def work(_: int) -> None:
        for _ in range(300):
            torch.testing.assert_close(ops.linear(x, packed), expected, atol=1e-4, rtol=1e-4)

    with ThreadPoolExecutor(3) as callers:
        list(callers.map(work, range(3)))


FORKS = """
import os, signal, sys, time
import torch
from banyan.kernels import ops
from banyan.kernels.native import threads as counts

counts.PRODUCT_WORK = 0
torch.set_num_threads(4)
x, weight = torch.randn(3, 40), torch.randn(900, 40)
packed, expected = ops.pack(weight), x @ weight.T
for k in range(60):
    ops.linear(x, packed)
    until = time.perf_counter() + k % 30 * 5e-6  # the threads go to sleep about now
    while time.perf_counter() < until: pass
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(not all(torch.allclose(ops.linear(x, packed), expected, atol=1e-4) for _ in range(3)))
    if os.waitpid(child, 0)[1]: sys.exit(f"child {k} hung, or its results are wrong")
"""


@pytest.mark.long
@pytest.mark.usefixtures("native")
def test_forked_child_does_not_wait_for_threads_that_it_lacks(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "script.py").write_text(FORKS)
    done = run_python(str(tmp_path / "script.py"))
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("native")
def test_why_not_deterministic_names_the_reason() -> None:
    assert dispatch_report.why_not_deterministic(torch.float32, 64) == ""
    assert "float16" in dispatch_report.why_not_deterministic(torch.float16, 64)
    assert "heads of 24" in dispatch_report.why_not_deterministic(torch.float32, 24)
    assert "heads of 528" in dispatch_report.why_not_deterministic(torch.float32, 528)  # too large for rope_kv


@pytest.mark.usefixtures("clear_library_cache")
def test_why_not_deterministic_names_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "C++ compiler" in dispatch_report.why_not_deterministic(torch.float32, 64)


@pytest.mark.usefixtures("native", "clear_library_cache")
def test_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    why = dispatch_report.why_not_deterministic(torch.float32, 64)
    assert str(tmp_path / "file" / "banyan") in why
    assert "XDG_CACHE_HOME" in why


def test_library_has_its_own_number_of_threads() -> None:
    n_torch_threads = torch.get_num_threads()
    threads.use(n_torch_threads + 2)
    try:
        assert threads.for_rows(1 << 20) == n_torch_threads + 2
        assert torch.get_num_threads() == n_torch_threads
    finally:
        threads.use(0)
    assert threads.for_rows(1 << 20) == n_torch_threads
