"""Resources available to a process, including control group limits."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import psutil
import pytest
import torch

from banyan.runtime.engine import hardware

GIB = 1 << 30


@pytest.fixture
def own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group tree with this process in /jobs/one."""
    group = tmp_path / "jobs" / "one"
    group.mkdir(parents=True)
    monkeypatch.setattr(hardware, "_membership", lambda: ["0::/jobs/one"])
    return group


def test_unlimited_group_reports_the_machine(own_group: Path, tmp_path: Path) -> None:
    (own_group / "memory.max").write_text("max\n")
    (own_group / "memory.current").write_text("1000\n")
    (own_group / "cpu.max").write_text("max 100000\n")
    assert hardware.n_cores(tmp_path) == min(psutil.cpu_count(logical=False), len(os.sched_getaffinity(0)))
    assert hardware.free_memory(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_tightest_ancestor_limit_applies(own_group: Path, tmp_path: Path) -> None:
    for group, limit, used in ((own_group, 64, 30), (own_group.parent, 48, 47)):
        (group / "memory.max").write_text(f"{limit << 20}\n")
        (group / "memory.current").write_text(f"{used << 20}\n")
    assert hardware.free_memory(tmp_path) == 1 << 20
    (own_group.parent / "memory.stat").write_text(f"anon 5\ninactive_file {3 << 20}\nactive_file 7\n")
    assert hardware.free_memory(tmp_path) == 4 << 20  # inactive file pages are reclaimable


def test_usage_above_the_limit_leaves_nothing_free(own_group: Path, tmp_path: Path) -> None:
    (own_group / "memory.max").write_text("1000\n")
    (own_group / "memory.current").write_text("2000\n")
    assert hardware.free_memory(tmp_path) == 0


@pytest.mark.parametrize("quota", ["50000 100000", "100000 100000"])
def test_fractional_cpu_quota_rounds_up_to_one_core(own_group: Path, tmp_path: Path, quota: str) -> None:
    (own_group / "cpu.max").write_text(quota)
    assert hardware.n_cores(tmp_path) == 1


def test_cgroup_v1_limits_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_membership", lambda: ["7:memory:/a", "3:cpu,cpuacct:/a", "1:name=systemd:/a"])
    for path in ("memory/a", "cpu/a"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "memory/a/memory.limit_in_bytes").write_text("4096")
    (tmp_path / "memory/a/memory.usage_in_bytes").write_text("1024")
    (tmp_path / "cpu/a/cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu/a/cpu.cfs_period_us").write_text("100000")
    assert hardware.free_memory(tmp_path) == 3072
    assert hardware.n_cores(tmp_path) == 1


def test_group_mounted_at_the_root_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the host's group path does not exist under the mount."""
    monkeypatch.setattr(hardware, "_membership", lambda: ["0::/docker/abc"])
    (tmp_path / "memory.max").write_text("500")
    (tmp_path / "memory.current").write_text("100")
    assert hardware.free_memory(tmp_path) == 400


def test_probe_of_this_machine_is_plausible() -> None:
    probed = hardware.probe()
    assert 1 <= probed.n_cores <= (os.cpu_count() or 1)
    assert 0 < probed.free_memory <= psutil.virtual_memory().total
    assert (probed.gpu is None) == (probed.free_gpu_memory == 0)


def test_processes_that_work_together_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "n_cores", lambda: 8)
    monkeypatch.setattr(hardware, "free_memory", lambda: 12 * GIB)
    found = hardware.probe(False, 4)
    assert (found.n_cores, found.free_memory) == (2, 3 * GIB)


@pytest.mark.parametrize(("n", "least"), [(1, 12 * GIB), (2, 9 * GIB), (3, 4 * GIB), (8, 4 * GIB)])
def test_gpus_that_work_together_have_the_memory_of_the_fullest(
    n: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [12 * GIB, 9 * GIB, 4 * GIB]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=0: (free[device or 0], 16 * GIB))
    assert hardware.probe(True, n).free_gpu_memory == least


def test_huge_pages_cover_neighbouring_tensors_and_keep_their_content() -> None:
    huge = 1 << 21
    memory = torch.arange(4 * huge).to(torch.uint8)
    first = -memory.data_ptr() % huge  # where the first whole huge page begins
    half = huge // 2
    one, inner, next_to_it = (
        memory[first : first + 3 * half],
        memory[first + 5 : first + 90],
        memory[first + 3 * half + 64 :],
    )
    (span,) = hardware._huge_spans([next_to_it, inner, one])
    assert span == (memory.data_ptr() + first, (memory.data_ptr() + len(memory)) // huge * huge)
    apart = [memory[first : first + half], memory[first + half + 3 * mmap.PAGESIZE : first + huge]]
    assert not list(hardware._huge_spans(apart)), "no huge page lies in one of the two"
    hardware.use_huge_pages([memory])
    assert torch.equal(memory, torch.arange(4 * huge).to(torch.uint8))
