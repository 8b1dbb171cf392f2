"""These tests run kernels in Triton's interpreter, in a separate process (see ../test_interpreted.py)."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    from kernel_support import interpreter

    interpreter.install()


def pytest_ignore_collect() -> bool | None:
    return None if os.environ.get("TRITON_INTERPRET") == "1" else True


@pytest.fixture(autouse=True)
def _poison_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills the result of `torch.empty` with NaN to reveal rows that a kernel does not write."""
    import torch

    stock_empty, stock_empty_like = torch.empty, torch.empty_like

    def poison(t: torch.Tensor) -> torch.Tensor:
        return t.fill_(torch.nan) if t.is_floating_point() else t

    monkeypatch.setattr(torch, "empty", lambda *args, **named: poison(stock_empty(*args, **named)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **named: poison(stock_empty_like(*args, **named)))
