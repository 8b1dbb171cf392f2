"""What all requests share: the connections to the server, and the data kept between requests."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from banyan.runtime.client.client import Client, connect
from banyan.runtime.gateway.keys import Keys, check_site
from banyan.runtime.gateway.openai.response_store import ResponseStore
from banyan.runtime.gateway.page.run_pages import RunPages
from banyan.runtime.gateway.programs.sessions import Sessions
from banyan.runtime.server_metrics import Family, ServerMetrics


class Mailbox:
    """Carries calls from the client's I/O thread to the event loop. Calls that arrive together wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Have the event loop run `call`, in the order of the posts. May be called on any thread; does not block."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_woken = False  # before the calls are taken: a later post must wake the loop again
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            if self._calls:  # one has failed; the loop reports it
                self._loop.call_soon(self._run)


class Gateway:
    """The data that the handlers share. Used on one event loop only.

    mailbox    brings values from the client's thread to the loop
    names      the names of the model, the main one first
    origins    sites whose pages may call this server
    responses  responses that later requests may continue
    sessions   the connections to the server for programs over HTTP
    run_pages  pages of runs that clients have published
    counts     responses, by path and status; status 0: the client hung up before the response began
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        loop: asyncio.AbstractEventLoop,
        names: Sequence[str] = (),
        *,
        isolates_users: bool = False,
        origins: Sequence[str] = (),
    ) -> None:
        """client: the gateway's own connection to the server. (The connections of tenants are made when they are
        needed.) loop: the event loop that runs the handlers. names: those of the model; (): the server's.
        isolates_users: whether end users of a tenant share no KV. origins: the sites whose pages may call this
        server."""
        self._clients, self._keys, self.isolates_users = {"": client}, keys, isolates_users
        self.origins = origins
        self._connecting: dict[str, asyncio.Task[Client]] = {}  # by tenant
        self.responses = ResponseStore()
        self.mailbox = Mailbox(loop)
        self.names = tuple(names) or (client.welcome.model,)
        self.sessions = Sessions()
        self.run_pages = RunPages()
        self.counts: Counter[tuple[str, int]] = Counter()
        self._metrics, self._counting = ServerMetrics(), asyncio.Lock()

    def identify(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the tenant that makes a request with these headers; "": the server needs no keys. HTTPError: the key
        is missing or wrong, or a page of another site sends the request."""
        tenant = self._keys.identify(headers)
        if not tenant:
            check_site(headers, self.origins)
        return tenant

    async def client(self, tenant: str = "") -> Client:
        """Return the connection of a tenant to the server. tenant "": the gateway's own connection, which may ask for
        the data of all tenants. Raises BanyanError if it cannot connect."""
        client = self._clients.get(tenant)
        if client is None or client.lost is not None:
            if (task := self._connecting.get(tenant)) is None:
                task = self._connecting[tenant] = asyncio.create_task(self._connect(tenant))
            client = await asyncio.shield(task)  # the other requests that wait need it if this one is cancelled
        return client

    async def _connect(self, tenant: str) -> Client:
        own = self._clients[""].address
        try:
            client = self._clients[tenant] = await asyncio.to_thread(
                connect, own.path, token=own.token, server_key=own.server_key, tenant=tenant
            )
            return client
        finally:
            del self._connecting[tenant]

    async def counters(self) -> tuple[Family, ...]:
        """Ask the server for its counters. Raises BanyanError if the server does not answer."""
        async with self._counting:  # so that answers are taken in their order
            client = await self.client()
            self._metrics.update(await asyncio.to_thread(client.ask, "stats"))
            return tuple(self._metrics.families())
