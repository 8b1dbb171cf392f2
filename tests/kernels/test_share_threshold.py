"""The threshold of shared reads is derived from measured times, once per device, and cached."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch

from banyan.kernels.attention import plan, share_threshold
from banyan.kernels.attention.share_threshold import N_KEYS, N_OWN_KEYS, N_ROWS, AttentionShape, measure

CPU = torch.device("cpu")
SHAPE = AttentionShape(4, 2, 16, 16, torch.float32, torch.float32)


def seconds(merge_keys: float, noise: Random | None, n: int, n_keys: int) -> tuple[float, float]:
    """Times without and with sharing on a device where a partial result costs as much as `merge_keys` keys."""
    unshared, shared = n * (n_keys + N_OWN_KEYS), n_keys + n * N_OWN_KEYS + n * merge_keys
    return unshared * (noise.uniform(1.0, 1.1) if noise else 1.0), shared * (noise.uniform(1.0, 1.1) if noise else 1.0)


def slowdowns(cut: float, merge_keys: float) -> tuple[float, float]:
    """The largest slowdown by the threshold `cut` against the better choice: in shared and in unshared cases."""
    shared, unshared = [0.0], [0.0]
    for n in N_ROWS:
        for n_keys in N_KEYS:
            unshared_time, shared_time = seconds(merge_keys, None, n, n_keys)
            if n_keys * (n - 1) / n > cut:
                shared.append(shared_time / unshared_time - 1)
            else:
                unshared.append(unshared_time / shared_time - 1)
    return max(shared), max(unshared)


@pytest.mark.parametrize("merge_keys", [33.0, 50.0, 100.0, 300.0, 700.0])
def test_threshold_shares_only_profitable_reads(merge_keys: float) -> None:
    shared, unshared = slowdowns(measure(partial(seconds, merge_keys, None)), merge_keys)
    assert shared == 0
    assert unshared < 2 * share_threshold.MARGIN


@pytest.mark.parametrize("seed", range(5))
def test_noise_costs_little(seed: int) -> None:
    shared, unshared = slowdowns(measure(partial(seconds, 100.0, Random(seed))), 100.0)
    assert shared < 0.03
    assert unshared < 2 * share_threshold.MARGIN


def test_threshold_is_maximal_if_sharing_never_pays() -> None:
    assert measure(partial(seconds, 1e9, None)) == max(N_KEYS) * (max(N_ROWS) - 1) / max(N_ROWS)


@pytest.fixture
def cache_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(plan.MERGE_KEYS, "cpu", 48.0)
    return tmp_path / "banyan" / "kernels" / "merge_keys.json"


def test_threshold_is_measured_once_and_used_by_plans(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = share_threshold.calibrate(SHAPE, CPU)
    assert 0 < measured <= max(N_KEYS)
    assert plan.MERGE_KEYS["cpu"] == measured
    assert list(json.loads(cache_file.read_text()).values()) == [measured]
    plan.MERGE_KEYS["cpu"] = 48.0
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: pytest.fail("measured twice"))
    assert share_threshold.calibrate(SHAPE, CPU) == plan.MERGE_KEYS["cpu"] == measured


def test_each_shape_and_number_of_threads_is_measured(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter((1.0, 2.0, 3.0))
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: next(measured))
    assert share_threshold.calibrate(SHAPE, CPU) == 1.0
    assert share_threshold.calibrate(SHAPE._replace(head_dim=32), CPU) == 2.0
    monkeypatch.setattr(share_threshold.threads, "n_max", lambda: 3)
    assert share_threshold.calibrate(SHAPE, CPU) == 3.0
    assert sorted(json.loads(cache_file.read_text()).values()) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"x": "y"}', '{"x": null}'])
def test_invalid_cache_file_is_replaced(cache_file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_file.parent.mkdir(parents=True)
    cache_file.write_text(text)
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: 7.0)
    assert share_threshold.calibrate(SHAPE, CPU) == 7.0
    assert list(json.loads(cache_file.read_text()).values()) == [7.0]


def test_threshold_is_measured_each_time_without_a_cache(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_file.parent.parent.mkdir(parents=True)
    cache_file.parent.write_text("not a folder")
    measured = iter((7.0, 8.0))
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: next(measured))
    assert [share_threshold.calibrate(SHAPE, CPU) for _ in range(2)] == [7.0, 8.0]


def test_measurement_times_unshared_then_shared_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    n_partials: list[plan.AttentionPlan] = []
    monkeypatch.setattr(share_threshold, "REPEATS", 1)
    attention = share_threshold.ops.attention

    def record(q, k, v, batch, **options):  # type: ignore[no-untyped-def]
        out = attention(q, k, v, batch, **options)
        n_partials.extend(work.n_partials for work in batch.plans.values())  # type: ignore[union-attr]
        return out

    monkeypatch.setattr(share_threshold.ops, "attention", record)
    before = dict(plan.MERGE_KEYS)
    assert min(share_threshold._seconds(SHAPE, CPU, 4, 128)) > 0
    assert set(n_partials) == {0, 8}, "partial results of the first and the second measurement"
    assert n_partials[0] == 0
    assert before == plan.MERGE_KEYS
