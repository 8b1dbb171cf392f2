"""Pages that leave the device and come back, in an engine: every answer is checked against the naive loop."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol.wire import Sampling


def prompts(n: int, length: int = 40) -> list[list[int]]:
    """n prompts that share nothing."""
    return [[(7 * i + k * k) % 50 for k in range(length)] for i in range(n)]


def ask(fake: ModuleType, e: Any, asked: list[list[int]]) -> list[int]:
    """One after the other, so that each finds what is left of all before it. How many tokens each found."""
    found = []
    for rid, ids in enumerate(asked):
        output = fake.drive(e, [fake.run(rid, ids)], check=True)[rid]
        assert output.ids == fake.greedy(ids, 8)
        found.append(output.finish.n_cached)
    return found


@pytest.mark.parametrize("page", [1, 4, 16])
def test_what_left_the_device_is_found_again(fake: ModuleType, page: int) -> None:
    asked = prompts(8)
    e = fake.engine(page=page, n_pages=128 // page, n_host=1024 // page)
    assert ask(fake, e, asked) == [0] * 8
    assert ask(fake, e, asked) == [39] * 8
    stats = e.cache.stats()
    assert stats.n_host_hit_tokens > 0
    assert stats.n_moved_in > 0
    assert min(ask(fake, fake.engine(page=page, n_pages=128 // page), asked * 2)) == 0, "without it they are lost"


def test_answers_stay_right_under_pressure_on_both_tiers(fake: ModuleType) -> None:
    asked = dict(enumerate([*prompts(12, 30), *prompts(12, 50)] * 2))
    e = fake.engine(page=4, n_pages=40, n_host=60, step_tokens=24)
    s = Sampling(max_tokens=20, temperature=0)
    outputs = fake.drive(e, [fake.run(rid, ids, s) for rid, ids in asked.items()], check=True)
    assert {rid: output.ids for rid, output in outputs.items()} == {
        rid: fake.greedy(ids, 20) for rid, ids in asked.items()
    }
    assert e.cache.stats().n_moved_out > 60, "host memory, too, was full"


def test_an_engine_that_is_started_again_is_warm(fake: ModuleType, tmp_path: Path) -> None:
    asked, options = prompts(6), {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    ask(fake, e, asked)
    e.close()
    warm = fake.engine(**options)
    assert ask(fake, warm, asked) == [32] * 6, "whole pages"
    warm.model.store.release()


def test_an_engine_that_was_killed_leaves_what_had_left_the_device(fake: ModuleType, tmp_path: Path) -> None:
    asked, options = prompts(6), {"n_pages": 8, "n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    ask(fake, e, asked)
    e.model.store.release()  # without a word
    warm = fake.engine(**options)
    assert sum(ask(fake, warm, asked)) >= 3 * 32
    warm.model.store.release()


def test_what_the_file_lost_is_computed_again(fake: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    asked, options = prompts(6), {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(path)}
    e = fake.engine(**options)
    ask(fake, e, asked)
    e.close()
    data = bytearray(path.read_bytes())
    first = len(data) - 64 * 256  # 64 pages of 16 slots of 16 bytes stand at its end
    for page in range(9):
        data[first + 256 * page + 7 * page] ^= 1
    path.write_bytes(data)
    warm = fake.engine(**options)
    found = ask(fake, warm, asked)
    assert min(found) == 0, "what is not what was written is not used"
    assert max(found) == 32, "and the rest is"
    warm.model.store.release()


@pytest.mark.parametrize("harm", ["head", "labels", "short", "empty", "other weights", "other context", "other page"])
def test_a_file_that_says_something_else_is_begun_anew(fake: ModuleType, tmp_path: Path, harm: str) -> None:
    path = tmp_path / "kv"
    asked = prompts(3)
    options: dict[str, Any] = {"n_pages": 64, "n_host": 64, "host_memory": "1MB", "host_file": str(path)}
    e = fake.engine(**options)
    ask(fake, e, asked)
    e.close()
    data = path.read_bytes()
    if harm in ("head", "labels"):
        first = 0 if harm == "head" else 4096
        path.write_bytes(data[:first] + bytes(b ^ 255 for b in data[first : first + 4096]) + data[first + 4096 :])
    elif harm in ("short", "empty"):
        path.write_bytes(data[: len(data) // 2 if harm == "short" else 0])
    elif harm == "other weights":
        options["weights"] = "others"
    elif harm == "other context":
        options["context"] = 256
    else:
        options["page"] = 8
    other = fake.engine(**options)
    assert ask(fake, other, asked) == [0, 0, 0]
    other.close()
    again = fake.engine(**options)
    n = 39 if harm == "other page" else 32
    assert ask(fake, again, asked) == [n] * 3, "and from now on it is this one's"
    again.close()


def test_two_engines_do_not_share_a_file(fake: ModuleType, tmp_path: Path) -> None:
    options = {"n_host": 64, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    e = fake.engine(**options)
    with pytest.raises(ConfigError, match="another server"):
        fake.engine(**options)
    e.model.store.release()


def test_a_file_that_cannot_be_is_refused(fake: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot hold"):
        fake.engine(n_host=64, host_memory="1MB", host_file=str(tmp_path / "no" / "kv"))
