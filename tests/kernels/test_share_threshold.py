"""The threshold of shared reads: derived from times, measured once per device, and cached."""

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
    alone, together = n * (n_keys + N_OWN_KEYS), n_keys + n * N_OWN_KEYS + n * merge_keys
    return alone * (noise.uniform(1.0, 1.1) if noise else 1.0), together * (noise.uniform(1.0, 1.1) if noise else 1.0)


def lost(cut: float, merge_keys: float) -> tuple[float, float]:
    """How much slower than the better choice the threshold `cut` is at worst: in shared cases, and in others."""
    shared, alone = [0.0], [0.0]
    for n in N_ROWS:
        for n_keys in N_KEYS:
            by_itself, together = seconds(merge_keys, None, n, n_keys)
            if n_keys * (n - 1) / n > cut:
                shared.append(together / by_itself - 1)
            else:
                alone.append(by_itself / together - 1)
    return max(shared), max(alone)


@pytest.mark.parametrize("merge_keys", [33.0, 50.0, 100.0, 300.0, 700.0])
def test_what_is_shared_pays_and_little_that_would_is_left(merge_keys: float) -> None:
    shared, alone = lost(measure(partial(seconds, merge_keys, None)), merge_keys)
    assert shared == 0
    assert alone < 2 * share_threshold.MARGIN


@pytest.mark.parametrize("seed", range(5))
def test_noise_misleads_only_where_it_hardly_matters(seed: int) -> None:
    shared, alone = lost(measure(partial(seconds, 100.0, Random(seed))), 100.0)
    assert shared < 0.03
    assert alone < 2 * share_threshold.MARGIN


def test_where_sharing_never_pays_little_is_shared() -> None:
    assert measure(partial(seconds, 1e9, None)) == max(N_KEYS) * (max(N_ROWS) - 1) / max(N_ROWS)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(plan.MERGE_KEYS, "cpu", 48.0)
    return tmp_path / "banyan" / "kernels" / "merge_keys.json"


def test_it_is_measured_once_and_plans_go_by_it(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = share_threshold.calibrate(SHAPE, CPU)
    assert 0 < found <= max(N_KEYS)
    assert plan.MERGE_KEYS["cpu"] == found
    assert list(json.loads(kept.read_text()).values()) == [found]
    plan.MERGE_KEYS["cpu"] = 48.0
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: pytest.fail("it was measured before"))
    assert share_threshold.calibrate(SHAPE, CPU) == plan.MERGE_KEYS["cpu"] == found


def test_each_shape_and_number_of_threads_has_its_own(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter((1.0, 2.0, 3.0))
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: next(found))
    assert share_threshold.calibrate(SHAPE, CPU) == 1.0
    assert share_threshold.calibrate(SHAPE._replace(head_dim=32), CPU) == 2.0
    monkeypatch.setattr(share_threshold.threads, "n_max", lambda: 3)
    assert share_threshold.calibrate(SHAPE, CPU) == 3.0
    assert sorted(json.loads(kept.read_text()).values()) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"x": "y"}', '{"x": null}'])
def test_a_file_that_cannot_be_read_is_measured_again(kept: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text(text)
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: 7.0)
    assert share_threshold.calibrate(SHAPE, CPU) == 7.0
    assert list(json.loads(kept.read_text()).values()) == [7.0]


def test_where_nothing_can_be_kept_it_is_measured_each_time(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.parent.parent.mkdir(parents=True)
    kept.parent.write_text("not a folder")
    found = iter((7.0, 8.0))
    monkeypatch.setattr(share_threshold, "measure", lambda seconds: next(found))
    assert [share_threshold.calibrate(SHAPE, CPU) for _ in range(2)] == [7.0, 8.0]


def test_what_is_timed_is_not_shared_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[plan.AttentionPlan] = []
    monkeypatch.setattr(share_threshold, "REPEATS", 1)
    attention = share_threshold.ops.attention

    def look(q, k, v, batch, **options):  # type: ignore[no-untyped-def]
        out = attention(q, k, v, batch, **options)
        made.extend(work.n_partials for work in batch.plans.values())  # type: ignore[union-attr]
        return out

    monkeypatch.setattr(share_threshold.ops, "attention", look)
    before = dict(plan.MERGE_KEYS)
    assert min(share_threshold._seconds(SHAPE, CPU, 4, 128)) > 0
    assert set(made) == {0, 8}, "partial results, of what is timed first and second"
    assert made[0] == 0
    assert before == plan.MERGE_KEYS
