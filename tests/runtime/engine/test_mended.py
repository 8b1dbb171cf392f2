"""Corruption injected into the cache of a running engine: it is detected, suspect pages are withdrawn, and all outputs
are correct."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.protocol.wire import Ask, Sampling
from corruption import corrupt_node_key, lease_a_page_twice, most_used_node
from forms import in_short

LONG = Sampling(max_tokens=30, temperature=0.0)


def prompt(k: int) -> list[int]:
    return [(7 * (k % 3) + i * i) % 50 for i in range(20)] + [k, 1, 2, 3]


def lose_a_page(e: Any) -> None:
    e.cache.pool.free.pop()


def free_a_page_in_use(e: Any) -> None:
    e.cache.pool.free.append(most_used_node(e).pages[0])


def lose_a_page_of_a_node(e: Any) -> None:
    most_used_node(e).pages.pop()


def lose_a_child(e: Any) -> None:
    most_used_node(e).parent.order.clear()  # type: ignore[union-attr]


def miscount_locks(e: Any) -> None:
    most_used_node(e).n_locks += 3


FOUND_IN_EACH_STEP = [lose_a_page, free_a_page_in_use, lease_a_page_twice]
FOUND_BY_CHECK = [lose_a_page_of_a_node, corrupt_node_key, lose_a_child, miscount_locks]


@pytest.mark.parametrize("n_host", in_short([40], [0, 40]))
@pytest.mark.parametrize("corrupt", FOUND_IN_EACH_STEP + FOUND_BY_CHECK)
def test_engine_repairs_corruption_and_keeps_serving(
    fake: ModuleType, capfd: pytest.CaptureFixture[str], corrupt: Callable[[Any], None], n_host: int
) -> None:
    e = fake.engine(page=4, n_pages=120, n_host=n_host, step_tokens=40)
    outputs: dict[int, Any] = {}
    fake.drive(e, [fake.run(100 + k, prompt(k)) for k in range(6)], outputs)
    for k in range(8):
        e.take(fake.run(k, prompt(k), LONG))
    for _ in range(6):
        fake.step(e, outputs)
    assert len(e.scheduler.running) >= 2
    corrupt(e)
    if corrupt in FOUND_IN_EACH_STEP:
        assert not e.cache.conserved()
        fake.step(e, outputs)
    else:
        e.take(Ask(1, "check"))
        (answer,) = e.answers
        e.answers.clear()
        assert not answer.ok
        assert b"the engine continues" in answer.body
    assert e.cache.n_mended == 1
    assert "please report it" in capfd.readouterr().err
    fake.drive(e, [fake.run(8, prompt(8), LONG)], outputs, check=True)
    for k in range(9):
        assert outputs[k].ids == fake.greedy(prompt(k), 30), f"request {k}"
    assert e.cache.n_mended == 1
    assert not any(output.failed for output in outputs.values())
    e.take(Ask(2, "flush"))
    e.take(Ask(3, "check"))
    assert all(answer.ok for answer in e.answers)
    assert e.cache.stats().n_free == 120


def test_withdrawn_pages_do_not_block_other_requests(fake: ModuleType) -> None:
    e = fake.engine(page=4, n_pages=20)
    e.take(fake.run(0, prompt(0), LONG))
    outputs: dict[int, Any] = {}
    fake.step(e, outputs)
    node = most_used_node(e)
    e.cache.pool.free += node.pages
    fake.step(e, outputs)
    assert e.cache.n_mended == 1
    fake.drive(e, [fake.run(1, list(range(40)), Sampling(max_tokens=40, temperature=0.0))], outputs, check=True)
    assert outputs[0].ids == fake.greedy(prompt(0), 30)
    assert outputs[1].ids == fake.greedy(list(range(40)), 40)


def test_irreparable_corruption_raises(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    e = fake.engine(page=4, n_pages=20)
    fake.drive(e, [fake.run(0, prompt(0))])
    monkeypatch.setattr(type(e.cache.tree), "queue", lambda self, level: self.dead)
    e.cache.pool.free.pop()
    with pytest.raises((AssertionError, IndexError)):
        e.step()
