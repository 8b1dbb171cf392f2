"""Pages that move to host memory and back: every output is checked against the naive loop."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from banyan.runtime.engine.kv_pool import open_file
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol.wire import Ask, Hold, Sampling
from forms import in_short


def prompts(n: int, length: int = 40) -> list[list[int]]:
    """n prompts that share nothing."""
    return [[(7 * i + k * k) % 50 for k in range(length)] for i in range(n)]


def cached_tokens(fake: ModuleType, e: Any, inputs: list[list[int]]) -> list[int]:
    """Run the prompts one after the other; return each one's number of cached tokens."""
    found = []
    for rid, ids in enumerate(inputs):
        output = fake.drive(e, [fake.run(rid, ids)], check=True)[rid]
        assert output.ids == fake.greedy(ids, 8)
        found.append(output.finish.n_cached)
    return found


@pytest.mark.parametrize("page", in_short([4], [1, 4, 16]))
def test_evicted_pages_are_restored_from_the_host(fake: ModuleType, page: int) -> None:
    inputs = prompts(8)
    e = fake.engine(page=page, n_pages=128 // page, n_host=1024 // page)
    assert cached_tokens(fake, e, inputs) == [0] * 8
    assert cached_tokens(fake, e, inputs) == [39] * 8
    stats = e.cache.stats()
    assert stats.n_host_hit_tokens > 0
    assert stats.n_moved_in > 0
    without_host = fake.engine(page=page, n_pages=128 // page)
    assert min(cached_tokens(fake, without_host, inputs * 2)) == 0


@pytest.mark.long
def test_outputs_are_correct_with_both_tiers_full(fake: ModuleType) -> None:
    inputs = dict(enumerate([*prompts(12, 30), *prompts(12, 50)] * 2))
    e = fake.engine(page=4, n_pages=40, n_host=60, step_tokens=24)
    s = Sampling(max_tokens=20, temperature=0)
    outputs = fake.drive(e, [fake.run(rid, ids, s) for rid, ids in inputs.items()], check=True)
    assert {rid: output.ids for rid, output in outputs.items()} == {
        rid: fake.greedy(ids, 20) for rid, ids in inputs.items()
    }
    assert e.cache.stats().n_moved_out > 60, "host memory was full too"


def test_restarted_engine_reads_the_host_file(fake: ModuleType, tmp_path: Path) -> None:
    inputs, options = prompts(6), {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    cached_tokens(fake, e, inputs)
    e.close()
    warm = fake.engine(**options)
    assert cached_tokens(fake, warm, inputs) == [32] * 6, "whole pages"
    warm.model.store.release()


def test_killed_engine_leaves_its_evicted_pages_in_the_file(fake: ModuleType, tmp_path: Path) -> None:
    inputs, options = prompts(6), {"n_pages": 8, "n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    cached_tokens(fake, e, inputs)
    e.model.store.release()  # as in a crash
    warm = fake.engine(**options)
    assert sum(cached_tokens(fake, warm, inputs)) >= 3 * 32
    warm.model.store.release()


def test_flush_leaves_no_page_in_the_file(fake: ModuleType, tmp_path: Path) -> None:
    inputs, options = prompts(6), {"n_pages": 8, "n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    cached_tokens(fake, e, inputs)
    e.take(Hold(1, fake.int32(inputs[0]), steps=10.0, prefetch=True))  # orders moves to the file
    assert e.answer(Ask(1, "flush")).ok
    e.close()
    restarted = fake.engine(**options)
    assert cached_tokens(fake, restarted, inputs) == [0] * 6
    restarted.model.store.release()


def test_corrupted_file_pages_are_recomputed(fake: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    inputs, options = prompts(6), {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(path)}
    e = fake.engine(**options)
    cached_tokens(fake, e, inputs)
    e.close()
    data = bytearray(path.read_bytes())
    first = len(data) - 64 * 256  # the file ends with 64 pages of 16 slots of 16 bytes
    for page in range(9):
        data[first + 256 * page + 7 * page] ^= 1
    path.write_bytes(data)
    warm = fake.engine(**options)
    found = cached_tokens(fake, warm, inputs)
    assert min(found) == 0, "corrupted pages are not used"
    assert max(found) == 32, "intact pages are used"
    warm.model.store.release()


@pytest.mark.parametrize("damage", ["head", "labels", "short", "empty", "other weights", "other context", "other page"])
def test_mismatched_file_is_overwritten(fake: ModuleType, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "kv"
    inputs = prompts(3)
    options: dict[str, Any] = {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(path)}
    e = fake.engine(**options)
    cached_tokens(fake, e, inputs)
    e.close()
    data = path.read_bytes()
    if damage in ("head", "labels"):
        first = 16 if damage == "head" else 4096  # behind the mark of page files
        path.write_bytes(data[:first] + bytes(b ^ 255 for b in data[first : first + 4096]) + data[first + 4096 :])
    elif damage in ("short", "empty"):
        path.write_bytes(data[: len(data) // 2 if damage == "short" else 0])
    elif damage == "other weights":
        options["weights"] = "others"
    elif damage == "other context":
        options["context"] = 256
    else:
        options["page"] = 8
    other = fake.engine(**options)
    assert cached_tokens(fake, other, inputs) == [0, 0, 0]
    other.close()
    restarted = fake.engine(**options)
    n = 39 if damage == "other page" else 32
    assert cached_tokens(fake, restarted, inputs) == [n] * 3, "the file now belongs to the new engine"
    restarted.close()


def test_file_of_another_device_is_emptied(fake: ModuleType, tmp_path: Path) -> None:
    options = {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    cached_tokens(fake, e, prompts(3))
    e.close()
    for device, is_kept in (("cpu", True), ("cuda", False)):
        file = open_file(e.config, msgspec.structs.replace(e.resolved, device=device), e.spec, "")
        assert bool(list(file.labels())) == is_kept
        file.close()


def test_second_engine_on_a_host_file_is_refused(fake: ModuleType, tmp_path: Path) -> None:
    options = {"n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    with pytest.raises(ConfigError, match="another server"):
        fake.engine(**options)
    e.model.store.release()


def test_host_file_that_is_no_page_file_is_refused(fake: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("mine")
    with pytest.raises(ConfigError, match=r"host_file: .*text is another kind of file, which is not overwritten"):
        fake.engine(n_host=64, host_memory="1MB", host_file=str(tmp_path / "text"))
    assert (tmp_path / "text").read_text() == "mine"


def test_host_file_in_a_missing_folder_is_refused(fake: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot hold"):
        fake.engine(n_host=64, host_memory="1MB", host_file=str(tmp_path / "no" / "kv"))
