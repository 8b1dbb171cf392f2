"""`check` names every violated invariant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from banyan.radix_cache.check import Corrupt, check
from cache_violations import VIOLATIONS, Scene, remove_free_page


@pytest.mark.parametrize(("violate", "message"), VIOLATIONS)
def test_check_names_every_violation(violate: Callable[[Scene], None], message: str) -> None:
    scene = Scene()
    check(scene.cache)
    violate(scene)
    with pytest.raises(Corrupt, match=message):
        check(scene.cache)


def test_conserved_detects_a_lost_page() -> None:
    scene = Scene()
    assert scene.cache.conserved()
    remove_free_page(scene)
    assert not scene.cache.conserved()


def test_check_changes_nothing() -> None:
    scene = Scene()
    before = scene.cache.stats()
    check(scene.cache)
    assert scene.cache.stats() == before
