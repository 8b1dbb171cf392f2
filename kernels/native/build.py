"""Compiles the C++ library (attention.cpp, ops.cpp) for this machine, once, and loads it.

It is built on first use by the system's compiler (10 to 40 s; Triton needs one at run time too), into a cache folder.
The two sources are compiled in parallel. The library's file name is a hash of source, compiler, flags and CPU. A new
build is tested against the references before it gets that name, so that a compiler bug cannot go unnoticed.
Without a compiler, or if the test fails, a warning is logged and plain torch is used. ctypes calls the plain C ABI, at
0.3 us per call.
"""

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from banyan.kernels.native import self_test

SOURCES = tuple(Path(__file__).with_name(name) for name in ("attention.cpp", "ops.cpp"))
FLAGS = ("-O3", "-march=native", "-std=c++17", "-pthread", "-fPIC", "--param=avoid-fma-max-bits=0")
"""The last flag turns off an optimisation of GCC for AMD's processors: it splits fused multiply-adds in loops with only
one chain of them, so that a row's result would depend on whether it is multiplied alone or in a batch."""
DTYPES = (torch.float32, torch.bfloat16)  # the dtypes that the library supports; torch computes all others

_log = logging.getLogger("banyan.kernels")
_why_not = ""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library; None if it cannot be built, as `why_not` says. Builds it on the first call."""
    global _why_not
    try:
        return load(_compiler(), cache_folder())
    except (OSError, RuntimeError) as error:  # most likely from the folder
        reason = f"{error}; XDG_CACHE_HOME can name another folder for builds"
    except (ValueError, subprocess.SubprocessError, AssertionError) as error:
        reason = _reason(error)
    _why_not = reason.strip()[:500]
    _log.warning("CPU kernels could not be built; the CPU ops run in plain torch, 2-4 times slower: %s", _why_not)
    return None


def why_not() -> str:
    """Why `library` returned None; "" if it returned a library."""
    return _why_not


def _reason(error: Exception) -> str:
    stderr: str = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return stderr or str(error)


def _compiler() -> list[str]:
    """The C++ compiler and its first arguments: those that the environment variable CXX names, for example "ccache
    g++"; without CXX, c++. Raises ValueError if there is no such program."""
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named) or ["c++"]
    except ValueError as error:
        raise ValueError(f"CXX={named}: {error}") from None
    program = shutil.which(words[0])
    if program is None:
        raise ValueError(f"no C++ compiler ({words[0]}) found; it must be GCC 12 or newer, or Clang")
    return [program, *words[1:]]


def cache_folder() -> Path:
    """The folder of builds. Raises RuntimeError if the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "banyan" / "kernels"


def load(compiler: Sequence[str], folder: Path, check: Callable[[ctypes.CDLL], None] = self_test.run) -> ctypes.CDLL:
    """Loads the library from `folder`. Builds and checks it first if the file is missing, or incomplete after a crash
    of the machine. compiler: a program and its first arguments.

    Raises CalledProcessError if the compiler fails, AssertionError if `check` fails, OSError if the library cannot be
    loaded. Of several processes, one builds and the others wait for it; if it fails, they raise SubprocessError with
    its reason.
    """
    path = folder / f"ops-{_key(compiler)}.so"
    with suppress(OSError):
        return _declare(ctypes.CDLL(str(path)))
    folder.mkdir(parents=True, exist_ok=True)
    note = path.with_suffix(".failed")  # the reason of the last failure
    noted = _changed(note)
    with _lock(folder):
        with suppress(OSError):  # another process may have built it meanwhile
            return _declare(ctypes.CDLL(str(path)))
        if _changed(note) > noted:  # or failed to build it
            raise subprocess.SubprocessError(note.read_text())
        try:
            _build(compiler, path, check)
        except (subprocess.SubprocessError, AssertionError) as error:
            with suppress(OSError):
                note.write_text(_reason(error))
            raise
        note.unlink(missing_ok=True)
    return _declare(ctypes.CDLL(str(path)))


def _changed(file: Path) -> int:
    """When a file was written, in ns; 0 if there is no file."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """A context that holds an flock of the folder. The flock ends with the process, however the process ends."""
    file = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS locks no folders: there, each process builds, and renames its own finished file
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _build(compiler: Sequence[str], path: Path, check: Callable[[ctypes.CDLL], None]) -> None:
    _log.info("compiling the CPU kernels for this machine with %s, once; this takes up to 40 s", shlex.join(compiler))
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        built = Path(scratch) / path.name
        objects = [str(built.with_name(f"{source.stem}.o")) for source in SOURCES]
        commands = [
            [*compiler, *FLAGS, "-c", str(source), "-o", part] for source, part in zip(SOURCES, objects, strict=True)
        ]
        with ThreadPoolExecutor(len(SOURCES)) as threads:
            list(threads.map(_compile, commands))
        _compile([*compiler, *FLAGS, "-shared", *objects, "-o", str(built)])
        check(_declare(ctypes.CDLL(str(built))))
        with built.open("rb") as file:
            os.fsync(file.fileno())
        built.rename(path)


def _compile(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


def _key(compiler: Sequence[str]) -> str:
    """The hash of all that the binary depends on."""
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    digest = hashlib.sha256()
    for file in (*SOURCES, *sorted(SOURCES[0].parent.glob("*.h"))):
        digest.update(file.read_bytes())
    digest.update((version + " ".join([*compiler[1:], *FLAGS]) + _cpu()).encode())
    return digest.hexdigest()[:20]


def _cpu() -> str:
    """The CPU's model and features, which -march=native depends on."""
    wanted = ("model name", "flags", "Features", "CPU part")
    with open("/proc/cpuinfo") as lines:
        return "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    p, i, n, f = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
    library.banyan_panel.restype = library.banyan_has_tiles.restype = i
    for name, arguments in {
        "attention": [i, i, p],
        "rms_norm": [i, p, p, p, p, p, n, n, n, n, n, f, i],
        "linear": [i, p, p, p, n, n, i],
        "rope_kv": [i, i, p, i],
        "layers": [i, i, p, p, i, p],
        "add_lora": [i, p, n, p, p, n, p, n, n, i],
        "experts": [i, p, i],
        "silu_mul": [i, p, p, n, n, n, i],
        "mask_logits": [p, p, p, n, n, n, n, i],
        "draw": [p, p, p, n, n, n, i],
    }.items():
        function = getattr(library, f"banyan_{name}")
        function.argtypes, function.restype = arguments, None
    return library
