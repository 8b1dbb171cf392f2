"""The memory and cores that this process may use, within the limits of its container."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from banyan.runtime.config import Hardware

_CGROUPS = Path("/sys/fs/cgroup")


def probe(gpus: bool = True, n: int = 1) -> Hardware:
    """What is available now to each of n processes; each may have a GPU. gpus: look at the GPU too, which claims some
    of its memory."""
    gpu, free_gpu = None, 0
    if gpus and torch.cuda.is_available():
        gpu, free_gpu = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[0]
    return Hardware(n_cores=n_cores() // n, free_memory=free_memory() // n, gpu=gpu, free_gpu_memory=free_gpu)


def n_cores(root: Path = _CGROUPS) -> int:
    """Physical cores that this process may use. Hyperthreads share a matrix unit and would only slow each other
    down."""
    allowed = len(os.sched_getaffinity(0))
    cores = min(psutil.cpu_count(logical=False) or allowed, allowed)
    for group in _groups("cpu", root):
        quota = _words(group / "cpu.max")  # "max 100000" or "150000 100000", in microseconds
        if not quota:
            quota = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0] not in ("max", "-1"):
            cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)


def free_memory(root: Path = _CGROUPS) -> int:
    """Bytes that can still be allocated: the machine's, or what the tightest cgroup limit leaves."""
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


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The directories of this process's cgroups (v1 and v2), from its own up to the root."""
    for line in _membership():  # "0::/path" (v2) or "4:memory:/path" (v1)
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        # Inside a container the path may be the host's; then the container's own group is mounted at the root.
        yield from (g for g in (group, *group.parents) if g.is_relative_to(base) and g.is_dir())


def _membership() -> list[str]:
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
