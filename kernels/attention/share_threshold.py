"""From how many keys on a shared read pays: measured on the device, once, and kept.

Rows that read a subtree together spare its keys, and each merges one more partial result. What that costs, told in
keys that are read in the same time, depends on caches, vector units and launches: no table of machines knows it.
(FastTree, Pan et al., 2025, chooses by such a cost; here it is a number that `plan` compares with.)
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

N_ROWS, N_KEYS, OWN = (2, 4, 8, 16), (64, 128, 256, 512, 1024), 64
"""What is timed: decodes that share so many keys, and have so many of their own behind them."""
REPEATS = 25
"""Each is timed so often, one after the other, as in a step attention comes between other ops; the best counts, as what
else the machine does only ever makes one slower."""
MARGIN = 0.1
"""Of the time, that sharing has to save to be worth it: from process to process the same case moves by as much, and
where it hardly pays, it must not cost."""


class AttentionShape(NamedTuple):
    """A model's attention, and the pools it reads."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    page: int
    dtype: torch.dtype
    kv_dtype: torch.dtype


def settle(shape: AttentionShape, device: torch.device) -> float:
    """From now on, plans of this process for such a device go by what `shape` costs on it: kept from earlier, or
    measured now (a tenth of a second; on a GPU its kernels are compiled first)."""
    file, key = build.cache_folder() / "merge_keys.json", f"{_device(device)}: {' '.join(map(str, shape))}"
    kept = _read(file)
    if key not in kept:
        kept[key] = measure(functools.partial(_seconds, shape, device))
        with contextlib.suppress(OSError):  # where nothing can be kept, it is measured each time
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(f".{time.monotonic_ns()}")  # who writes at the same time has a file of its own
            scratch.write_text(json.dumps(kept, indent=1))
            scratch.replace(file)
    MERGE_KEYS[device.type] = kept[key]
    return kept[key]


def measure(seconds: Callable[[int, int], tuple[float, float]]) -> float:
    """The number by which most time is saved, over all that is timed: seconds(n_rows, n_keys), alone and together."""
    timed = []
    for n in N_ROWS:
        for n_keys in N_KEYS:
            alone, together = seconds(n, n_keys)
            timed.append((n_keys * (n - 1) / n, math.log(alone / together) - MARGIN))  # keys that a row is spared
    found = {cut: sum(gain for spared, gain in timed if spared > cut) for cut, _ in timed}
    return max(found, key=lambda cut: (found[cut], cut))


def _seconds(shape: AttentionShape, device: torch.device, n: int, n_keys: int) -> tuple[float, float]:
    """Of one call, its plan made before: each row reads for itself; they share. The two take turns."""
    n_shared, n_own = n_keys // shape.page, OWN // shape.page
    sizes = n_shared + n * n_own, shape.page, shape.n_kv_heads, shape.head_dim
    pools = [empty(sizes, shape.kv_dtype, device) for _ in range(2)]
    for part in (part for pool in pools for part in parts(pool)):  # any numbers; were they equal, less would be done
        if part.dtype == torch.uint8:
            part.random_(100)
        else:
            part.normal_()
    pages = [[*range(n_shared), *range(n_shared + i * n_own, n_shared + (i + 1) * n_own)] for i in range(n)]
    q = torch.randn((n, shape.n_heads, shape.head_dim), dtype=shape.dtype, device=device)
    runs = []
    for merge_keys in (math.inf, 0.0):
        batch = ops.ragged([1] * n, [n_keys + OWN] * n, pages, shape.page, device)
        call = functools.partial(ops.attention, q, *pools, batch, scale=1.0)
        before, MERGE_KEYS[device.type] = MERGE_KEYS[device.type], merge_keys
        try:
            call()
        finally:
            MERGE_KEYS[device.type] = before
        runs.append(_replayed(call, device))
    best = [math.inf, math.inf]
    for _ in range(REPEATS):
        best = [min(old, _time(run, device)) for old, run in zip(best, runs, strict=True)]
    return best[0], best[1]


def _replayed(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """`call`; on a GPU four of them as a graph, as decodes run: launches would hide what the device takes."""
    if device.type != "cuda":
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            call()
    return graph.replay


def _time(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device(device: torch.device) -> str:
    """The device and the kernels on it: of another build, the number is measured again."""
    if device.type == "cuda":
        source = hashlib.sha256(Path(__file__).with_name("kernel.py").read_bytes()).hexdigest()[:12]
        return f"{torch.cuda.get_device_name(device)}, {source}"
    library = build.library()
    return f"{'plain torch' if library is None else Path(library._name).stem}, {threads.most()} threads"


def _read(file: Path) -> dict[str, float]:
    """What was kept; nothing, where that cannot be read."""
    try:
        kept = json.loads(file.read_text())
        return {str(key): float(value) for key, value in kept.items() if value > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
