"""Programs on OpenAI's HTTP API, or on any server that speaks it. Needs the `openai` package: the extra `openai`."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from banyan.backends.base import Question
from banyan.backends.job import CHATML, Job, features
from banyan.backends.local import LocalProgram
from banyan.backends.openai import bounds, format, responses
from banyan.backends.openai.api_speculation import ApiSpeculation
from banyan.execution.source_line import warn
from banyan.runtime.errors import (
    BanyanError,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    ModelNotFound,
    Overloaded,
    ProgramError,
    PromptTooLong,
    RuntimeLost,
    Unsupported,
)
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.sglang.unsupported import FixedChatTemplate

COMPLETION_MODELS = frozenset({"gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"})
"""Models that take text, not turns, unless `is_chat_model` says otherwise."""
BROKEN = frozenset({"ReadError", "WriteError", "CloseError", "RemoteProtocolError"})
"""Errors of the HTTP library (httpx or httpx2) on a connection that was made. They concern one request: only an error
without a connection says that the server cannot be reached."""


class ApiTokenUsage:
    """The token counts of all requests so far. Any thread may add counts."""

    def __init__(self) -> None:
        self.reset()

    def __repr__(self) -> str:
        return f"TokenUsage(prompt_tokens={self.prompt_tokens}, completion_tokens={self.completion_tokens})"

    def reset(self) -> None:
        """Set all counts to 0."""
        with _lock:
            self.prompt_tokens = self.completion_tokens = self.cached_tokens = self.n_requests = 0

    def add(self, usage: wire.TokenUsage, n_requests: int = 1) -> None:
        with _lock:
            self.prompt_tokens += usage.prompt
            self.completion_tokens += usage.generated
            self.cached_tokens += usage.cached
            self.n_requests += n_requests


class _ApiProgram(LocalProgram):
    """A program on an API. speculation: the text that was generated ahead; None without `num_api_spec_tokens`."""

    speculation: ApiSpeculation | None = None

    def __init__(self, backend: OpenAI, name: str) -> None:
        super().__init__(backend, name)
        self._api = backend

    def limit(self, limits: wire.ProgramLimits) -> None:
        """Raises Unsupported for a priority, a deadline or durability, which an API cannot provide. The frontend itself
        enforces the timeout and the budget."""
        for name in ("priority", "deadline"):
            if getattr(limits, name):
                raise Unsupported(
                    f"{name} is not supported: an API itself decides the order of requests; leave {name} out"
                )
        if limits.durable:
            raise Unsupported("durable: only a server of `banyan serve` keeps the progress of a program")

    def generate_ahead(self, n_tokens: int) -> None:
        self.speculation = ApiSpeculation(n_tokens, self._api.kind, self._api.extensions)


class OpenAI:
    """A model behind OpenAI's API. Other arguments are those of `openai.OpenAI`: api_key, base_url, timeout and so on.

    is_chat_model: whether the model takes turns (chat completions) or text (completions). None: turns, except for
    OpenAI's three completion models. chat_template: the markers around turns in the prompts of a completion model:
    "chatml", or a mapping of role -> (prefix, suffix); the suffix of the assistant is also a stop string of all gens in
    turns. is_azure: the arguments are those of `openai.AzureOpenAI`. extensions: options beyond OpenAI's that this
    server has: top_k, min_p, repetition_penalty, min_tokens, stop_token_ids, ignore_eos, chat_template_kwargs (of a
    chat model), and prefix (the server continues a turn of the assistant that has begun). Gens with any
    other such option are refused. max_in_flight: maximum number of requests at a time.

    All requests run on one thread of the process. The client retries temporary failures (no connection, 408, 409, 429,
    5xx) max_retries times (2), after growing pauses, or after the pause that the server asks for. Other failures are
    raised where the value is read. RuntimeLost means that no connection can be made. A 5xx or a connection that breaks
    is a ProgramError, and a 429 is Overloaded: they fail one branch, or one item of a batch. An answer fails too if it
    is larger than its request can need, is cut, or takes longer than six times `timeout` in all. With an http_client of
    your own, limiting the size of responses is up to that client, and a stream needs a finish_reason. A select on a
    completion model scores its choices by the log-probabilities that `echo` returns; on a chat model it generates the
    choice under a schema that allows nothing else.

    ConfigError: the package is missing, or an argument is wrong.
    """

    chat_template = FixedChatTemplate("give it to the constructor, bn.OpenAI(..., chat_template=...)")
    enforces_schemas = False
    """Not all servers do; see backends/base.py."""

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: str | Mapping[str, tuple[str, str]] | wire.ChatMarkers | None = None,
        is_azure: bool = False,
        *args: Any,
        extensions: Collection[str] = (),
        max_in_flight: int = 64,
        **kwargs: Any,
    ) -> None:
        if unknown := set(extensions) - set(format.EXTENSIONS):
            have = ", ".join(format.EXTENSIONS)
            raise ConfigError(f"unknown extension {min(unknown)!r}; choose from {have}")
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}; it must be at least 1")
        self.model_name = model_name
        self.kind: format.Kind = "chat"
        if is_chat_model is False or (is_chat_model is None and model_name in COMPLETION_MODELS):
            self.kind = "completion"
        self.extensions, self.max_in_flight = frozenset(extensions), max_in_flight
        self.token_usage = ApiTokenUsage()
        self._new_client = _client_factory(is_azure, args, kwargs)
        self._connection: _Connection | None = None
        self.base_url = str(self._connect().client.base_url)
        # OpenAI's chat models need the new name of max_tokens; other servers may know only the old one.
        is_openai = is_azure or "api.openai.com" in self.base_url
        self._max_tokens_as = "max_completion_tokens" if is_openai else "max_tokens"
        chat = _markers(chat_template) or (CHATML if self.kind == "chat" else None)
        self.welcome = wire.Welcome(version=wire.VERSION, model=model_name, max_context=1 << 31, chat=chat,
                                    images=self.kind == "chat")  # fmt: skip

    def __repr__(self) -> str:
        return f"<OpenAI {self.model_name} ({self.kind}) at {self.base_url}>"

    @property
    def refuses(self) -> frozenset[str]:
        """The options of gens and other features that this API lacks."""
        return format.refusals(self.kind) - self.extensions

    def program(self, name: str = "") -> LocalProgram:
        return _ApiProgram(self, name)

    def ask(self, what: Question) -> Any:
        """Returns a dict with the model, its address, and the numbers of requests and tokens so far. Unsupported:
        `what` is "flush" or "check", because a client can neither empty nor check the server behind an API."""
        if what in ("flush", "check"):
            raise Unsupported(f"{what}: a client cannot {what} the server behind an API")
        usage = self.token_usage
        return {
            "model": self.model_name,
            "base_url": self.base_url,
            "kind": self.kind,
            "requests": usage.n_requests,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        }

    def start(self, job: Job) -> None:
        """Start to answer a gen or select. Called by programs."""
        refused = self.refuses
        if format.plain_schema(job.op, self.kind) is not None:
            refused -= {"regex", "choices"}
        for what in features(job):
            if what in refused:
                format.refuse(what, self.kind)
        ask: Callable[[], Awaitable[GenOutcome]]
        speculation = job.owner.speculation if isinstance(job.owner, _ApiProgram) else None
        if speculation is not None and speculation.takes(job):
            if (known := speculation.find(job)) is not None:
                job.finish(_deliver(job, known))
                return
            ask = partial(self._ask_ahead, job, speculation)
        elif isinstance(job.op, wire.Gen):
            request = format.gen_request(job, self.kind, self.extensions, self._max_tokens_as)
            ask = partial(self._gen, job, request)
        else:
            ask = partial(self._select, job, format.select_requests(job, self.kind, self.extensions))
        job.on_stop(self._connect().loop.run(self._answer(job, ask)).cancel)

    def close(self) -> None:
        """Close the connections. Idempotent. Happens by itself when the backend is garbage-collected."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- on the loop -----------------------------------------------------------------------------------------------

    async def _answer(self, job: Job, ask: Callable[[], Awaitable[GenOutcome]]) -> None:
        import asyncio

        try:
            connection = self._connect()
            async with connection.slots, asyncio.timeout(_total_seconds(connection.client.timeout)):
                outcome = await ask()
        except Exception as e:
            job.fail(self._translated(e))
        else:
            self.token_usage.add(outcome.usage)
            job.finish(outcome, is_separated=any(sample.reasoning for sample in outcome.samples))

    async def _ask_ahead(self, job: Job, speculation: ApiSpeculation) -> GenOutcome:
        return _deliver(job, await speculation.ask(job, self._max_tokens_as, self._create))

    async def _gen(self, job: Job, request: dict[str, Any]) -> GenOutcome:
        assert isinstance(job.op, wire.Gen)
        options = request.get("n", 1), job.op.reasoning is not None, job.op.tools is not None
        if not request.get("stream"):
            outcome = responses.outcome(await self._create(request), self.kind, *options)
            if (schema := format.plain_schema(job.op, self.kind)) is None:
                return outcome
            stop = job.op.sampling.stop
            samples = tuple(format.plain_sample(sample, schema, stop) for sample in outcome.samples)
            return _deliver(job, outcome._replace(samples=samples))
        chunks = await self._create(request)
        reader, is_separated = responses.ResponseReader(self.kind, *options), False
        try:
            async for chunk in chunks:
                reasoning, text = reader.take(chunk)
                is_separated = is_separated or bool(reasoning)
                job.deliver_separated(reasoning, is_thought=True)
                if is_separated:  # the server leaves no marks in the text
                    job.deliver_separated(text)
                elif text:
                    job.deliver(text)
            # Some servers give no finish_reason, others no [DONE]. A stream with neither was cut: a connection that
            # closes is also how HTTP ends a body without a length.
            if not (reader.has_ended or bounds.has_done_event(chunks.response)):
                raise ProgramError(f"{self.base_url} ended its answer in the middle: no finish_reason came, no [DONE]")
            return reader.outcome()
        finally:
            with contextlib.suppress(Exception):  # an earlier error is the one to report
                await chunks.close()
                async for _ in chunks:  # read the buffered rest, so that the stream's generators, a cycle, end
                    pass

    async def _select(self, job: Job, requests: list[dict[str, Any]]) -> GenOutcome:
        return responses.chosen(job, [await self._create(request) for request in requests], self.kind)

    async def _create(self, request: dict[str, Any]) -> Any:
        client = self._connect().client
        bounds.limits.set(bounds.AnswerLimits.of(request))  # limits for this task, which also reads the response
        endpoint = client.chat.completions if self.kind == "chat" else client.completions
        return await endpoint.create(model=self.model_name, **request)

    def _connect(self) -> _Connection:
        """The connection of this process: a forked child makes its own."""
        with _lock:
            loop = _ApiLoop.of_this_process()
            if self._connection is None or self._connection.loop is not loop:
                self._connection = _Connection(loop, self._new_client(), self.max_in_flight)
                weakref.finalize(self, self._connection.close).atexit = False
            return self._connection

    def _translated(self, error: Exception) -> BaseException:
        """A timeout, an AnswerTooLarge or an error of the openai package as a BanyanError; other errors unchanged."""
        import openai

        if isinstance(error, TimeoutError):
            return DeadlineExceeded(f"{self.base_url} did not end its answer in time; raise timeout=")
        if not isinstance(error, openai.OpenAIError | bounds.AnswerTooLarge):
            return error
        message = f"{self.base_url}: {error}"
        translated: BanyanError = ProgramError(message)
        match error:
            case openai.APITimeoutError():
                translated = DeadlineExceeded(
                    f"{self.base_url} did not answer in time, also after retries; raise timeout="
                )
            case openai.APIConnectionError() if type(error.__cause__).__name__ in BROKEN:
                translated = ProgramError(f"{self.base_url} ended the connection: {error.__cause__}")
            case openai.APIConnectionError():
                translated = RuntimeLost(f"{self.base_url} cannot be reached: {error.__cause__ or error}")
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                translated = ConfigError(f"{message}; see api_key=")
            case openai.NotFoundError():
                translated = ModelNotFound(message)
            case openai.RateLimitError():
                translated = Overloaded(message)
            case openai.APIStatusError() if error.code == "context_length_exceeded":
                translated = PromptTooLong(message)
        translated.__cause__ = error
        return translated


def _total_seconds(timeout: Any) -> float | None:
    """Maximum time in seconds that a request may take in all; None: no limit. timeout: the `timeout` of a client of
    the openai package."""
    seconds = getattr(timeout, "read", timeout)
    return None if seconds is None else bounds.SLOWEST * seconds


def _deliver(job: Job, outcome: GenOutcome) -> GenOutcome:
    """Deliver an answer as one piece, if the gen streams. Returns the answer."""
    if isinstance(job.op, wire.Gen) and job.op.stream:
        job.deliver(outcome.samples[0].text)
    return outcome


def served(base_url: str, api_key: str | None = None, timeout: float = 10.0) -> OpenAI:
    """Returns an OpenAI backend for the first model that the server at `base_url` lists. Assumes that the server
    supports all options that `OpenAI(extensions=...)` can name (top_k and so on), except "prefix". Issues a warning
    that lists the features of programs that will not work on this server.

    ConnectFailed: the server does not list its models within `timeout` seconds. ModelNotFound: it lists none.
    """
    key = api_key or os.environ.get("OPENAI_API_KEY") or "none"  # the package needs one
    make = _client_factory(False, (), {"base_url": base_url, "api_key": key, "timeout": timeout, "max_retries": 0})
    import asyncio

    import openai

    async def look() -> tuple[Any, bool]:
        """Returns (the models of the server, whether the server has the chat API). To find out, sends the chat API an
        empty request: the API is missing if the status is 404 or 405, and present with any other status."""
        async with make() as client, asyncio.timeout(timeout):
            models = (await client.models.list()).data
            try:
                await client.post("/chat/completions", body={}, cast_to=object)
            except openai.APIStatusError as e:
                return models, e.status_code not in (404, 405)
            return models, True

    try:
        models, is_chat = _ApiLoop.of_this_process().run(look()).result()
    except openai.APIConnectionError as e:
        raise ConnectFailed(f"{base_url} cannot be reached: {e.__cause__ or e}") from e
    except (openai.OpenAIError, TimeoutError) as e:
        raise ConnectFailed(f"{base_url} does not list its models: {str(e) or 'no answer in time'}") from e
    if not models:
        raise ModelNotFound(f"{base_url} lists no model; write bn.OpenAI(model_name, base_url=...)")
    extensions = set(format.EXTENSIONS) - {"prefix"}
    found = OpenAI(models[0].id, is_chat, base_url=base_url, api_key=key, extensions=extensions)
    outside = (
        "text and gens outside of turns will not run (if the server has the completion API, use bn.OpenAI(..., "
        "is_chat_model=False) for them), nor will"
        if is_chat
        else "turns need bn.OpenAI(..., chat_template=...), and these will not run:"
    )
    refused = ", ".join(sorted(found.refuses - {"text", "gen"}))
    warn(
        f"{base_url} is not Banyan's. Programs run on its model {found.model_name!r} through OpenAI's {found.kind} "
        f"API: {outside} {refused} (each error says what to use). All of the language runs on `banyan serve --http`."
    )
    return found


def _client_factory(is_azure: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    try:
        import openai
    except ImportError as e:
        raise ConfigError("the OpenAI backend needs the openai package: pip install 'banyan[openai]'") from e
    kind = openai.AsyncAzureOpenAI if is_azure else openai.AsyncOpenAI

    def make() -> Any:
        try:
            return kind(*args, **{"http_client": bounds.http_client()} | kwargs)
        except (openai.OpenAIError, TypeError, ValueError) as e:
            raise ConfigError(f"OpenAI: {e}") from e

    return make


def _markers(template: str | Mapping[str, tuple[str, str]] | wire.ChatMarkers | None) -> wire.ChatMarkers | None:
    if template is None or isinstance(template, wire.ChatMarkers):
        return template
    if template == "chatml":
        return CHATML
    if isinstance(template, str):
        raise ConfigError(
            f"chat_template: {template!r} is not known; give 'chatml' or a dict of role -> (prefix, suffix)"
        )
    roles = {role: (prefix, suffix) for role, (prefix, suffix) in template.items()}
    ending = roles.get("assistant", ("", ""))[1].strip()
    return wire.ChatMarkers(roles=roles, stop=(ending,) if ending else ())


class _Connection:
    """A client of the API and the loop that it runs on. slots: a semaphore that limits the requests at a time."""

    def __init__(self, loop: _ApiLoop, client: Any, max_in_flight: int) -> None:
        import asyncio

        self.loop, self.client, self.slots = loop, client, asyncio.Semaphore(max_in_flight)
        self._is_closed = False
        _connections.add(self)

    def close(self) -> None:
        if not self._is_closed and self.loop is _ApiLoop.current:
            self.loop.run(self.client.close())
        self._is_closed = True


class _ApiLoop:
    """An event loop on its own thread: one per process, started when it is first needed."""

    current: _ApiLoop | None = None

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="banyan-http", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _ApiLoop:
        with _lock:
            if cls.current is None:
                cls.current = cls()
            return cls.current

    def run(self, coroutine: Any) -> Future[Any]:
        """Start a coroutine on the loop. Returns its future at once."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _leave_to_parent() -> None:
    """Called in a forked child, which has none of the parent's threads. Forget the parent's event loop, and make a new
    lock, because a thread of the parent may have held the old one."""
    global _lock
    _ApiLoop.current, _lock = None, threading.RLock()
    _of_parent.extend(_connections)


_lock = threading.RLock()
_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
_of_parent: list[_Connection] = []
"""The parent's connections in a forked child. They are kept for ever, because the finalizer of a client would close its
TLS connections, which the parent uses."""
os.register_at_fork(after_in_child=_leave_to_parent)
