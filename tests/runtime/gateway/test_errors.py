"""The status of each error: clients send a request again after 408, 429 and every status from 500 on."""

from __future__ import annotations

import pytest

from banyan.runtime import errors
from banyan.runtime.gateway.errors import http_error


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.BadProgram, 400),
        (errors.PromptTooLong, 400),
        (errors.ConstraintSyntax, 400),
        (errors.OutOfMemory, 400),
        (errors.Quarantined, 400),  # although it is an EngineLost: the same request would end the next engine
        (errors.Overloaded, 429),
        (errors.ConstraintBusy, 429),
        (errors.ConstraintBroke, 500),
        (errors.EngineLost, 503),
        (errors.Cancelled, 503),
        (errors.DeadlineExceeded, 504),
    ],
)
def test_status(kind: type[errors.BanyanError], status: int) -> None:
    found = http_error(kind("why"))
    code = "context_length_exceeded" if kind is errors.PromptTooLong else kind.code
    assert (found.status, found.code, found.message) == (status, code, "why")
