"""Who a program belongs to and how urgent it is, and the checks of what its client says about that."""

from __future__ import annotations

import math
from typing import NamedTuple

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol.limits import MAX_PRIORITY


class SchedulingInfo(NamedTuple):
    """The client of a program, and how urgent the program is. The fields client, priority, deadline and namespace are
    those of wire.Run."""

    client: int = 0
    priority: int = 0
    deadline: float = 0.0
    namespace: bytes = b""
    weights: bytes = b""
    """The fingerprint of the weights that compute the program; b"": any."""


def check_seconds(name: str, seconds: float) -> None:
    """Check a time that a client sent. BadProgram: the time is negative or nan."""
    if not seconds >= 0:
        raise BadProgram(f"{name} is {seconds}; it must be at least 0 seconds")


def check_priority(priority: int, deadline: float) -> None:
    """Check the priority and the deadline (in seconds) that a client sent. Raises BadProgram if one of them is out of
    range."""
    if abs(priority) > MAX_PRIORITY:
        raise BadProgram(f"priority is {priority}; it must be in {-MAX_PRIORITY} .. {MAX_PRIORITY}")
    if not 0 <= deadline < math.inf:
        raise BadProgram(f"deadline is {deadline}; it must be at least 0 seconds")
