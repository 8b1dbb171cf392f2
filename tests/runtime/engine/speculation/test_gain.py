"""What came of drafts decides what is expected of them."""

from __future__ import annotations

import pytest

from banyan.runtime.engine.speculation.gain import EVERY, Gain


def test_nothing_is_known_at_first() -> None:
    gain = Gain()
    assert gain.factor(1) == gain.factor(16) == 1.0
    assert not gain.has_to_rest(1)


@pytest.mark.parametrize(
    ("plain", "drafted", "factor"),
    [
        ((10, 10), (30, 30), 1.0),
        ((8, 10), (24, 30), 1.0),  # steps take longer than thought, with drafts and without
        ((10, 10), (24, 30), 0.8),  # with drafts alone
        ((15, 10), (30, 30), 2 / 3),  # half of what comes without drafts is forced, and drafts foresee nothing else
        ((10, 10), (36, 30), 1.2),
        ((10, 10), (1, 30), 0.2),  # no more is believed
    ],
)
def test_what_is_always_wrong_is_put_right(plain: tuple[int, float], drafted: tuple[int, float], factor: float) -> None:
    gain = Gain()
    for _ in range(400):
        gain.note(10, True, *drafted)
        gain.note(10, False, *plain)
    assert gain.factor(10) == pytest.approx(factor, rel=0.1)
    assert (gain.factor(10) - 1) * (factor - 1) >= 0
    assert gain.factor(15) == pytest.approx(gain.factor(10), rel=0.1), "about as many requests"
    assert gain.factor(16) == gain.factor(7) == 1.0, "others are another matter"


def test_where_drafts_hardly_pay_some_steps_are_without() -> None:
    gain = Gain()
    for expected, is_close in ((1.1, True), (3.0, False)):
        gain.expect(4, expected)
        rests = []
        for _ in range(5 * (EVERY + 1)):
            rests.append(gain.has_to_rest(4))
            gain.note(4, not rests[-1], 4, 4.0)
        assert sum(rests) == (5 if is_close else 0)


def test_one_odd_step_changes_little() -> None:
    gain = Gain()
    for _ in range(100):
        gain.note(1, True, 3, 3.0)
        gain.note(1, False, 1, 1.0)
    gain.note(1, True, 1, 25.0)
    assert gain.factor(1) > 0.8
