"""Measures from how many shared keys on a shared read pays, once per device, and caches the number on disk.

Rows that read a subtree together save reading its keys, and each merges one more partial result. The cost of the
merge, as a number of keys that are read in the same time, depends on caches, vector units and launch overhead, so it is
measured. (FastTree, Pan et al., 2025, decides by such a cost; here `plan` compares with one number.)
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from banyan.kernels import ops
from banyan.kernels.attention.plan import MERGE_KEYS
from banyan.kernels.kv_layout import empty, parts
from banyan.kernels.native import build, threads

N_ROWS, N_KEYS, N_OWN_KEYS = (2, 4, 8, 16), (64, 128, 256, 512, 1024), 64
"""The measured cases: so many decodes that share so many keys, and have so many keys of their own."""
REPEATS = 25
"""Runs per case; the best one counts, since other load only makes a run slower."""
MARGIN = 0.1
"""Share of the time that sharing must save: measurements of one case vary by as much between processes."""


class AttentionShape(NamedTuple):
    """A model's attention and its pools."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    page: int
    dtype: torch.dtype
    kv_dtype: torch.dtype


def calibrate(shape: AttentionShape, device: torch.device) -> float:
    """Sets MERGE_KEYS for the device's type, from the cache file or by measuring, and returns the number.

    A measurement takes a tenth of a second. On a GPU, the kernels are compiled first.
    """
    file, key = build.cache_folder() / "merge_keys.json", f"{_device_name(device)}: {' '.join(map(str, shape))}"
    cached = _read(file)
    if key not in cached:
        cached[key] = measure(functools.partial(_seconds, shape, device))
        with contextlib.suppress(OSError):  # without a writable cache, each process measures
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(f".{time.monotonic_ns()}")  # processes may write at the same time
            scratch.write_text(json.dumps(cached, indent=1))
            scratch.replace(file)
    MERGE_KEYS[device.type] = cached[key]
    return cached[key]


def measure(seconds: Callable[[int, int], tuple[float, float]]) -> float:
    """The threshold that saves most time over all cases. seconds(n_rows, n_keys): time without and with sharing."""
    timed = []
    for n in N_ROWS:
        for n_keys in N_KEYS:
            alone, together = seconds(n, n_keys)
            timed.append((n_keys * (n - 1) / n, math.log(alone / together) - MARGIN))  # keys saved per row, gain
    gains = {threshold: sum(gain for saved, gain in timed if saved > threshold) for threshold, _ in timed}
    return max(gains, key=lambda threshold: (gains[threshold], threshold))


def _seconds(shape: AttentionShape, device: torch.device, n: int, n_keys: int) -> tuple[float, float]:
    """Times one call without and with sharing, in turns. The plan is made before."""
    n_shared, n_own = n_keys // shape.page, N_OWN_KEYS // shape.page
    sizes = n_shared + n * n_own, shape.page, shape.n_kv_heads, shape.head_dim
    pools = [empty(sizes, shape.kv_dtype, device) for _ in range(2)]
    for part in (part for pool in pools for part in parts(pool)):  # equal numbers would be faster
        if part.dtype == torch.uint8:
            part.random_(100)
        else:
            part.normal_()
    pages = [[*range(n_shared), *range(n_shared + i * n_own, n_shared + (i + 1) * n_own)] for i in range(n)]
    q = torch.randn((n, shape.n_heads, shape.head_dim), dtype=shape.dtype, device=device)
    runs = []
    for merge_keys in (math.inf, 0.0):
        batch = ops.ragged([1] * n, [n_keys + N_OWN_KEYS] * n, pages, shape.page, device)
        call = functools.partial(ops.attention, q, pools[0], pools[1], batch, scale=1.0)
        before, MERGE_KEYS[device.type] = MERGE_KEYS[device.type], merge_keys
        try:
            call()
        finally:
            MERGE_KEYS[device.type] = before
        runs.append(_captured(call, device))
    best = [math.inf, math.inf]
    for _ in range(REPEATS):
        best = [min(old, _time(run, device)) for old, run in zip(best, runs, strict=True)]
    return best[0], best[1]


def _captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """On a GPU, a graph of four calls, as decodes run: else launches would hide the device's time. Else `call`."""
    if device.type != "cuda":
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            call()
    return graph.replay


def _time(run: Callable[[], object], device: torch.device) -> float:
    wait: Callable[[], None] = (
        functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    )
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _device_name(device: torch.device) -> str:
    """Names the device and the build of its kernels: another build is measured again."""
    if device.type == "cuda":
        source = hashlib.sha256(Path(__file__).with_name("kernel.py").read_bytes()).hexdigest()[:12]
        return f"{torch.cuda.get_device_name(device)}, {source}"
    library = build.library()
    return f"{'plain torch' if library is None else Path(library._name).stem}, {threads.n_max()} threads"


def _read(file: Path) -> dict[str, float]:
    """The cached numbers; none if the file cannot be read."""
    try:
        return {str(key): float(value) for key, value in json.loads(file.read_text()).items() if value > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
