"""The memory and cores that this process may use, within the limits of its container."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from banyan.runtime.config import Hardware

_CGROUPS = Path("/sys/fs/cgroup")
_HUGE = 1 << 21  # bytes of a huge page
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


def probe(gpus: bool = True, n: int = 1, replica: int = 0) -> Hardware:
    """Find the memory and cores that each of n processes can use now. gpus: look at the GPUs too, which claims some of
    their memory; n processes have a GPU each, and the least free memory counts. replica: the number of this engine. The
    engines of a server take the GPUs in turn, and this engine's GPU becomes the current device."""
    gpu, free_gpu, n_gpus = None, 0, 1
    if gpus and torch.cuda.is_available():
        n_gpus = torch.cuda.device_count()
        if replica:
            torch.cuda.set_device(replica % n_gpus)
        devices = range(min(n, n_gpus)) if n > 1 else (None,)
        gpu, free_gpu = torch.cuda.get_device_name(), min(torch.cuda.mem_get_info(i)[0] for i in devices)
    return Hardware(n_cores() // n, free_memory() // n, gpu, free_gpu, n_gpus)


def n_cores(root: Path = _CGROUPS) -> int:
    """Physical cores that this process may use. Hyperthreads of a core share its vector units, so a second one per core
    would only slow the first down. root: the mount point of the cgroups."""
    allowed = len(os.sched_getaffinity(0))
    cores = min(psutil.cpu_count(logical=False) or allowed, allowed)
    for group in _groups("cpu", root):
        # "max 100000" or "150000 100000", in microseconds
        quota = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0] not in ("max", "-1"):
            cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)


def free_memory(root: Path = _CGROUPS) -> int:
    """Bytes that this process can still allocate: what the machine has free or, if less, what the tightest cgroup limit
    leaves. root: the mount point of the cgroups."""
    free: int = psutil.virtual_memory().available
    for group in _groups("memory", root):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _words(group / limit_file), _words(group / used_file)
            if limit and used and limit[0] != "max":
                words = _words(group / "memory.stat")  # name value name value ...
                stat = dict(zip(words[::2], words[1::2], strict=False))
                reclaimable = int(stat.get("inactive_file", stat.get("total_inactive_file", "0")))
                free = min(free, int(limit[0]) - int(used[0]) + reclaimable)
    return max(0, free)


def use_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Move the memory of tensors on the CPU to pages of 2 MiB, if Linux supports it (since 6.1 it moves the memory
    immediately). A step reads all weights; with pages of 4 KiB it waits for page table lookups, most of all in a
    virtual machine."""
    madvise: Any = getattr(ctypes.CDLL(None), "madvise", None)
    for first, end in _huge_spans(tensors) if madvise is not None else ():
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), advice)


def _huge_spans(tensors: Iterable[Tensor]) -> Iterator[tuple[int, int]]:
    """Return the address ranges (start, end) of whole huge pages of 2 MiB in the memory of CPU tensors. Tensors with
    only an allocator's header between them are treated as one range. Otherwise much would be lost at their ends,
    because even the largest tensors span only a few huge pages."""
    spans = list[tuple[int, int]]()
    on_cpu = [t for t in tensors if t.device.type == "cpu"]
    for start, end in sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in on_cpu):
        if spans and start - spans[-1][1] < 2 * mmap.PAGESIZE:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((start, end))
    whole = ((-(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE) for start, end in spans)
    return ((first, end) for first, end in whole if first < end)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the directories of this process's cgroups (v1 and v2): its own cgroup, then those that contain it.
    controller: "cpu" or "memory". root: the mount point of the cgroups."""
    for line in _membership():  # "0::/path" (v2) or "4:memory:/path" (v1)
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        # Inside a container the path may be the host's; then the container's own group is mounted at the root.
        yield from (g for g in (group, *group.parents) if g.is_relative_to(base) and g.is_dir())


def _membership() -> list[str]:
    return _read(Path("/proc/self/cgroup")).splitlines()


def _words(file: Path) -> list[str]:
    return _read(file).split()


def _read(file: Path) -> str:
    """The text of a file; "" if it cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
