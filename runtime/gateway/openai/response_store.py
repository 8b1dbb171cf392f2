"""Keeps responses in memory, so that later requests can retrieve or continue them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import ref

import msgspec

from banyan.runtime.client.client import Client
from banyan.runtime.client.program_futures import ProgramHandle
from banyan.runtime.errors import BanyanError
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import ChatTurn
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.protocol import wire

MAX_STORED = 1024
"""Maximum number of responses that are kept for later requests. The least recently used are dropped first."""
SHARE = 0.25
"""The share of the server's limits for one client (`max_client` bytes of memory, `max_programs` programs) that a
tenant's stored responses may take."""
IDLE_SECONDS = 300.0
"""Seconds after which the program of a conversation without a running response is closed. An open program keeps the
weights with which it began, and a change of weights waits for it."""


@dataclass
class Conversation:
    """A program on the server that later responses can continue. client: the connection that the program uses. states,
    refs: counters that give the next free numbers of states and values. n_bytes: the size of the turns so far, which
    the stored responses keep and, while the program is open, the server too."""

    client: Client
    program: ProgramHandle
    states: count[int] = field(default_factory=lambda: count(1))
    refs: count[int] = field(default_factory=count)
    n_bytes: int = 0
    _n_running: int = 0
    _timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Called when a response of the conversation begins to run."""
        self._n_running += 1
        if self._timer is not None:
            self._timer.cancel()

    def end(self, *, is_kept: bool) -> None:
        """Called when a response of the conversation has ended. is_kept: whether the store has responses of the
        conversation. If not, its program closes when the handle is collected."""
        self._n_running -= 1
        if is_kept and not self._n_running:
            # weak: the store may drop the responses before
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, _close, ref(self.program))

    def hold(self, turns: Sequence[ChatTurn]) -> None:
        """Add the size of `turns` to n_bytes. Called for turns that are sent to the server, or that the model wrote."""
        self.n_bytes += len(msgspec.json.encode(turns))


def _close(program: ref[ProgramHandle]) -> None:
    if (found := program()) is not None:
        found.close()


@dataclass
class ConversationBranch:
    """A state of a conversation that ends with the output of a response, so that a later one can continue it. writer:
    has recorded the tool calls of the state. tools: the tools in its prompt (wire.Tools.specs). is_open: whether the
    turn of the output is still open."""

    conversation: Conversation
    state: int
    writer: PromptWriter
    tools: tuple[str, ...]
    is_open: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the state continues that of another response. State 0 belongs to the first one."""
        return self.state > 0


@dataclass(eq=False)
class StoredResponse:
    """A response that later requests may retrieve or continue. payload: the response as JSON data. turns: the
    conversation so far, including this response's output. n_bytes: the size of the payload. task: that of a response in
    the background."""

    tenant: str
    payload: dict[str, Any]
    turns: list[ChatTurn]
    instructions: str | None
    branch: ConversationBranch
    n_bytes: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the response has its whole output. If not, it still runs, has failed or was cancelled, and no request
        may continue it or refer to its items."""
        return self.payload["status"] in ("completed", "incomplete")

    @property
    def has_program(self) -> bool:
        """Whether the server still has the program of the conversation."""
        return not self.branch.conversation.program.is_over

    def drop(self) -> None:
        """Stop the response if it still runs in the background, and have the server drop its state. Called when the
        response leaves the store."""
        if self.task is not None:
            self.task.cancel()
        with suppress(BanyanError):  # the program is over, or the server is gone
            self.branch.conversation.program.submit((wire.Drop(self.branch.state),))


class ResponseStore:
    """The responses that later requests may retrieve or continue, of all tenants. A conversation ends when its last
    response is dropped."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def put(self, stored: StoredResponse) -> None:
        """Store a response, and drop the least recently used ones if a limit requires it. All tenants together may
        have MAX_STORED responses. The conversations and bytes of one tenant are limited to SHARE of the server's limits
        for a client."""
        self._stored[stored.payload["id"]] = stored
        while len(self._stored) > MAX_STORED:
            self._drop(next(iter(self._stored.values())))
        welcome = stored.branch.conversation.client.welcome
        n_conversations, n_bytes = self._held(stored.tenant)
        for one in [one for one in self._stored.values() if one.tenant == stored.tenant and one is not stored]:
            is_few = n_conversations <= max(1, welcome.max_programs * SHARE) or not welcome.max_programs
            is_small = n_bytes <= welcome.max_client * SHARE
            if is_few and is_small:
                break
            if one.has_program or not is_small:  # without a program it does not count as a conversation
                self._drop(one)
                n_conversations, n_bytes = self._held(stored.tenant)

    def _held(self, tenant: str) -> tuple[int, int]:
        """What a tenant has in the store. Returns the number of its conversations whose program is not over, and the
        larger of two sizes in bytes: that of all its conversations, whose turns its responses keep, and that of its
        payloads."""
        found = [one for one in self._stored.values() if one.tenant == tenant]
        conversations = {id(one.branch.conversation): one.branch.conversation for one in found}.values()
        n_open = sum(not one.program.is_over for one in conversations)
        return n_open, max(sum(one.n_bytes for one in conversations), sum(one.n_bytes for one in found))

    def _drop(self, stored: StoredResponse) -> None:
        del self._stored[stored.payload["id"]]
        stored.drop()

    def get(self, tenant: str, number: str, param: str | None = None) -> StoredResponse:
        """Return the response with the id `number`, and mark it as used. param: the field of the request that names it,
        for the error. HTTPError: this tenant has no such response."""
        stored = self._stored.get(number)
        if stored is None or stored.tenant != tenant:
            text = f"there is no response {number[:80]!r}, or it is not kept any more"
            if param is None:
                raise HTTPError(404, text, code="not_found")
            raise HTTPError(
                400, f"{text}; send the conversation as input", param=param, code="previous_response_not_found"
            )
        self._stored.move_to_end(number)
        return stored

    def items(self, tenant: str, numbers: Collection[str | None]) -> dict[str | None, dict[str, Any]]:
        """The output items with the ids `numbers` that this tenant has in finished responses, by id. Marks the
        responses as used."""
        found: dict[str | None, dict[str, Any]] = {}
        for one in [one for one in self._stored.values() if one.tenant == tenant and one.is_finished]:
            if items := {item["id"]: item for item in one.payload["output"] if item["id"] in numbers}:
                found |= items
                self._stored.move_to_end(one.payload["id"])
        return found

    def pop(self, tenant: str, number: str) -> None:
        """Drop the response with the id `number`. HTTPError: this tenant has no such response."""
        self._drop(self.get(tenant, number))
