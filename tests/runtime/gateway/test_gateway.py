"""What all requests of the HTTP process share."""

from __future__ import annotations

import asyncio
from typing import Any

from banyan.runtime.gateway.gateway import Mailbox


def test_calls_behind_one_that_fails_are_made() -> None:
    """They waited until the next post."""
    made: list[int] = []
    reported: list[Any] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        mailbox = Mailbox(loop)
        mailbox.post(lambda: made.append(1 // 0))
        mailbox.post(lambda: made.append(1))
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert made == [1]
    assert [type(one) for one in reported] == [ZeroDivisionError]
