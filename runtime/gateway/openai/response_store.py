"""Keeps responses that later requests may retrieve or continue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from banyan.runtime.client.client import Client
from banyan.runtime.client.program_futures import ProgramHandle
from banyan.runtime.errors import BanyanError
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import ChatTurn
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.protocol import wire

MAX_STORED = 1024
"""The most responses that are kept for later requests. The least recently used are dropped first."""
SHARE = 0.25
"""The share of the server's limits for one client (`max_client` bytes of memory, `max_programs` programs) that a
tenant's stored responses may take."""


@dataclass
class Conversation:
    """A program that later responses can continue. client: the connection to which the program belongs. states, refs:
    count the numbers for new states and values. n_bytes: the size of its turns, which the server keeps too."""

    client: Client
    program: ProgramHandle
    states: count[int] = field(default_factory=lambda: count(1))
    refs: count[int] = field(default_factory=count)
    n_bytes: int = 0

    def hold(self, turns: Sequence[ChatTurn]) -> None:
        """Add turns that are sent to the server, or that the model wrote, to n_bytes."""
        self.n_bytes += len(msgspec.json.encode(turns))


class StoredResponse:
    """A response that may be retrieved or continued. turns: the conversation, including the response's output. n_bytes:
    the size of the payload."""

    def __init__(self, tenant: str, payload: dict[str, Any], turns: list[ChatTurn], instructions: str | None) -> None:
        self.tenant, self.payload, self.turns, self.instructions = tenant, payload, turns, instructions
        self.n_bytes = 0
        self.conversation: Conversation | None = None
        self.state = 0
        """The number of the conversation's state that ends with this output."""
        self.writer: PromptWriter | None = None
        """The writer that has recorded the tool calls of that state."""
        self.is_open = False
        """Whether the turn of the output is still open in `state`."""
        self.task: asyncio.Task[None] | None = None
        """The task of a response in the background."""

    def drop(self) -> None:
        """End the response's task, and have the server drop its state. Called when no later request can name the
        response."""
        if self.task is not None:
            self.task.cancel()
        if self.conversation is not None:
            with suppress(BanyanError):  # the program is over, or the server is gone
                self.conversation.program.submit((wire.Drop(self.state),))


class ResponseStore:
    """The responses that are kept. When the last response of a conversation is dropped, the conversation is dropped
    too."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def put(self, stored: StoredResponse) -> None:
        """Keep a response. Drops the least recently used responses: of all tenants, while there are more than
        MAX_STORED; of this tenant, while it has too many conversations, or its conversations or payloads have too many
        bytes (see SHARE)."""
        self._stored[stored.payload["id"]] = stored
        while len(self._stored) > MAX_STORED:
            self._drop(next(iter(self._stored.values())))
        if stored.conversation is None:
            return
        welcome = stored.conversation.client.welcome
        for one in [one for one in self._stored.values() if one.tenant == stored.tenant and one is not stored]:
            n_conversations, n_bytes = self._held(stored.tenant)
            is_few = n_conversations <= max(1, welcome.max_programs * SHARE) or not welcome.max_programs
            if is_few and n_bytes <= welcome.max_client * SHARE:
                break
            self._drop(one)

    def _held(self, tenant: str) -> tuple[int, int]:
        """The number of a tenant's conversations, and the bytes of these or of all its payloads, whichever are more."""
        found = [one for one in self._stored.values() if one.tenant == tenant]
        conversations = {
            id(one.conversation): one.conversation.n_bytes for one in found if one.conversation is not None
        }
        return len(conversations), max(sum(conversations.values()), sum(one.n_bytes for one in found))

    def _drop(self, stored: StoredResponse) -> None:
        del self._stored[stored.payload["id"]]
        stored.drop()

    def get(self, tenant: str, number: str, param: str | None = None) -> StoredResponse:
        """Return a response. HTTPError: this tenant has no such response."""
        stored = self._stored.get(number)
        if stored is None or stored.tenant != tenant:
            text = f"there is no response {number[:80]!r}, or it is not kept any more; send the conversation as input"
            raise HTTPError(404 if param is None else 400, text, param=param, code="previous_response_not_found")
        self._stored.move_to_end(number)
        return stored

    def pop(self, tenant: str, number: str) -> None:
        """Forget a response. Raises the same HTTPError as `get`."""
        self._drop(self.get(tenant, number))
