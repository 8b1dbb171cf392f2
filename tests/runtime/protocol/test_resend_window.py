from __future__ import annotations

import pytest

from banyan.runtime.protocol import resend_window
from banyan.runtime.protocol.resend_window import ResendWindow, pack, unpack


def test_what_did_not_come_is_kept_in_order() -> None:
    sent: ResendWindow[str] = ResendWindow()
    for text in "abcd":
        sent.put(text)
    assert (sent.n, sent.is_empty) == (4, False)
    assert sent.since(1) == ["b", "c", "d"]
    sent.came(2)
    assert sent.since(2) == ["c", "d"]
    assert sent.since(1) is None, "it came, and nobody asks for it"
    sent.came(1)
    assert sent.since(2) == ["c", "d"], "old news"
    sent.came(4)
    assert (sent.n, sent.is_empty, sent.since(4)) == (4, True, [])
    sent.put("e")
    assert sent.since(4) == ["e"]


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend_window, "N_KEPT", 3)
    sent: ResendWindow[int] = ResendWindow()
    for i in range(10):
        sent.put(i)
    assert sent.since(7) == [7, 8, 9]
    assert sent.since(6) is None


def test_syncs_travel_as_bytes() -> None:
    three = [(1, 2, 3), (1 << 40, 0, 7)]
    assert list(unpack(pack(three))) == three
    assert list(unpack(b"")) == []
    with pytest.raises(ValueError, match="three numbers"):
        unpack(b"1234")
