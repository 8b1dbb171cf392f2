"""Programs on OpenAI's HTTP API, or on any server that speaks it. Needs the `openai` package: the extra `http`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from banyan.backends.base import Question
from banyan.backends.job import CHATML, Job
from banyan.backends.local import LocalProgram
from banyan.runtime.errors import (
    BanyanError,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    ModelNotFound,
    ProgramError,
    PromptTooLong,
    RuntimeLost,
    Unsupported,
)
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.backends.openai.api_speculation import ApiSpeculation
    from banyan.backends.openai.format import Kind

COMPLETION_MODELS = frozenset({"gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"})
"""Models that take text, not turns, where nobody says which they do."""


class ApiTokenUsage:
    """Tokens of all requests so far, counted by any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def __repr__(self) -> str:
        return f"TokenUsage(prompt_tokens={self.prompt_tokens}, completion_tokens={self.completion_tokens})"

    def reset(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self.prompt_tokens = self.completion_tokens = self.cached_tokens = self.n_requests = 0

    def add(self, usage: wire.TokenUsage, n_requests: int = 1) -> None:
        with self._lock:
            self.prompt_tokens += usage.prompt
            self.completion_tokens += usage.generated
            self.cached_tokens += usage.cached
            self.n_requests += n_requests


class _ApiProgram(LocalProgram):
    """A program that cannot be more urgent than others. ahead: what was said for gens to come, if it is kept."""

    speculation: ApiSpeculation | None = None

    def limit(self, limits: wire.ProgramLimits) -> None:
        """The language keeps them. Unsupported: an order, which is not ours to give."""
        for name in ("priority", "deadline"):
            if getattr(limits, name):
                raise Unsupported(f"{name}: it is the server's to say who goes first; leave it out")
        if limits.durable:
            raise Unsupported("durable: a server of `banyan serve` keeps what a program has come to, and no other does")
        super().limit(limits)

    def foresee(self, n_tokens: int) -> None:
        assert isinstance(self._backend, OpenAI)
        self.speculation = self._backend.foreseeing(n_tokens)


class OpenAI:
    """A model behind OpenAI's API. Other arguments are those of `openai.OpenAI`: api_key, base_url, timeout and so on.

    is_chat_model: whether it takes turns (chat completions) or text (completions); None: turns, but for OpenAI's three
    completion models. chat_template: "chatml" or a mapping of role -> (prefix, suffix); what stands around turns where
    a completion model is given some. is_azure: the arguments are those of `openai.AzureOpenAI`. extensions: options
    beyond OpenAI's that this server knows by the names of Banyan: top_k, min_p, repetition_penalty, min_tokens,
    stop_token_ids, ignore_eos, and prefix (it continues a turn of the assistant that has begun); what is not named here
    is refused. max_in_flight: requests at once.

    Requests run side by side on one thread of the process. Failures that may pass (no connection, 408, 409, 429, 5xx)
    are tried again max_retries times (2), with growing pauses or those that the server asks for; others at once raise
    where the value is read. A select scores its choices on a completion model, by the log-probabilities that `echo`
    gives; on a chat model the choice is generated, token by token, under a schema that allows nothing else.

    ConfigError: the package is missing, or an argument is wrong.
    """

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
        from banyan.backends.openai import format  # here: it is not needed before

        if unknown := set(extensions) - set(format.EXTENSIONS):
            have = ", ".join(format.EXTENSIONS)
            raise ConfigError(f"extensions: there is none called {min(unknown)!r}; there are {have}")
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}; it must be at least 1")
        self._format = format
        self.model_name = model_name
        self.kind: Kind = "chat"
        if is_chat_model is False or (is_chat_model is None and model_name in COMPLETION_MODELS):
            self.kind = "completion"
        self.extensions, self.max_in_flight = frozenset(extensions), max_in_flight
        self.token_usage = ApiTokenUsage()
        self._make = _maker(is_azure, args, kwargs)
        self._connection: _Connection | None = None
        self._starting = threading.Lock()
        self.base_url = str(self._here().client.base_url)
        # OpenAI's own chat models want the new name of max_tokens; other servers may know only the old one.
        is_openai = is_azure or "api.openai.com" in self.base_url
        self._max_tokens_as = "max_completion_tokens" if is_openai else "max_tokens"
        chat = _markers(chat_template) or (CHATML if self.kind == "chat" else None)
        self.welcome = wire.Welcome(version=wire.VERSION, model=model_name, max_context=1 << 31, chat=chat,
                                    images=self.kind == "chat")  # fmt: skip

    def __repr__(self) -> str:
        return f"<OpenAI {self.model_name} ({self.kind}) at {self.base_url}>"

    @property
    def refuses(self) -> frozenset[str]:
        """Options of gens, and other things of programs, that this API cannot do; each is refused by name."""
        return self._format.refusals(self.kind) - self.extensions

    def program(self, name: str = "") -> LocalProgram:
        return _ApiProgram(self, name)

    def foreseeing(self, n_tokens: int) -> ApiSpeculation:
        """What keeps the texts that a program's gens ask for ahead. For programs, not for users."""
        from banyan.backends.openai.api_speculation import ApiSpeculation

        return ApiSpeculation(n_tokens, self.kind, self.extensions)

    def ask(self, what: Question) -> Any:
        """ "info": model and address; "stats": tokens so far. There is nothing to check. Unsupported: "flush"."""
        if what == "flush":
            raise Unsupported("flush: the cache behind an API is not ours to empty")
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
        """Answer a gen or select. For the executor of programs, not for users."""
        ask: Callable[[], Awaitable[GenOutcome]]
        ahead = job.owner.speculation if isinstance(job.owner, _ApiProgram) else None
        if ahead is not None and ahead.takes(job):
            if (known := ahead.known(job)) is not None:
                job.finish(_whole(job, known))
                return
            ask = partial(self._ask_ahead, job, ahead)
        elif isinstance(job.op, wire.Gen):
            request = self._format.gen_request(job, self.kind, self.extensions, self._max_tokens_as)
            ask = partial(self._gen, job, request)
        else:
            ask = partial(self._select, job, self._format.select_requests(job, self.kind, self.extensions))
        self._here().loop.run(self._answer(job, ask), job.on_stop)

    def close(self) -> None:
        """Close its connections. Idempotent; a backend that nobody holds any more does it by itself."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- on the loop -----------------------------------------------------------------------------------------------

    async def _answer(self, job: Job, ask: Callable[[], Awaitable[GenOutcome]]) -> None:
        try:
            async with self._here().places:
                outcome = await ask()
        except Exception as e:
            job.fail(self._explained(e))
        else:
            self.token_usage.add(outcome.usage)
            job.finish(outcome)

    async def _ask_ahead(self, job: Job, ahead: ApiSpeculation) -> GenOutcome:
        return _whole(job, await ahead.ask(job, self._max_tokens_as, self._create))

    async def _gen(self, job: Job, request: dict[str, Any]) -> GenOutcome:
        if not request.get("stream"):
            return self._format.outcome(await self._create(request), self.kind)
        from banyan.backends.openai.stream import StreamedResponse

        gathered = StreamedResponse(self.kind)
        async for chunk in await self._create(request):
            if text := gathered.take(chunk):
                job.deliver(text)
        return self._format.outcome(gathered.response(), self.kind)._replace(times=wire.Times(first=gathered.first))

    async def _select(self, job: Job, requests: list[dict[str, Any]]) -> GenOutcome:
        return self._format.chosen(job, [await self._create(request) for request in requests], self.kind)

    async def _create(self, request: dict[str, Any]) -> Any:
        client = self._here().client
        endpoint = client.chat.completions if self.kind == "chat" else client.completions
        return await endpoint.create(model=self.model_name, **request)

    def _here(self) -> _Connection:
        """That of this process: a forked child makes its own."""
        with self._starting:
            loop = _ApiLoop.of_this_process()
            if self._connection is None or self._connection.loop is not loop:
                self._connection = _Connection(loop, self._make(), self.max_in_flight)
                weakref.finalize(self, self._connection.close).atexit = False
            return self._connection

    def _explained(self, error: Exception) -> BaseException:
        """An error of the client as one of ours; others as they are."""
        import openai

        if not isinstance(error, openai.OpenAIError):
            return error
        message = f"{self.base_url}: {error}"
        made: BanyanError = ProgramError(message)
        match error:
            case openai.APITimeoutError():
                made = DeadlineExceeded(
                    f"{self.base_url} did not answer in time, also when asked again; raise timeout="
                )
            case openai.APIConnectionError():
                made = RuntimeLost(f"{self.base_url} cannot be reached: {error.__cause__ or error}")
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                made = ConfigError(f"{message}; see api_key=")
            case openai.NotFoundError():
                made = ModelNotFound(message)
            case openai.RateLimitError() | openai.InternalServerError():
                made = RuntimeLost(message)
            case openai.APIStatusError() if error.code == "context_length_exceeded":
                made = PromptTooLong(message)
        made.__cause__ = error
        return made


def _whole(job: Job, outcome: GenOutcome) -> GenOutcome:
    """An answer that comes in one piece, also to one that streams."""
    if isinstance(job.op, wire.Gen) and job.op.stream:
        job.deliver(outcome.samples[0].text)
    return outcome


def served(base_url: str, api_key: str | None = None, timeout: float = 10.0) -> OpenAI:
    """The model that a server with this API names first, with the options that such servers know beyond OpenAI's.

    ConnectFailed: nobody answers there within `timeout` seconds. ModelNotFound: it names none.
    """
    from banyan.backends.openai import format

    key = api_key or os.environ.get("OPENAI_API_KEY") or "none"  # the client wants one
    _maker(False, (), {})
    import openai

    with openai.OpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=0) as client:
        try:
            models = client.models.list().data
        except openai.APIConnectionError as e:
            raise ConnectFailed(f"{base_url} cannot be reached: {e.__cause__ or e}") from e
        except openai.OpenAIError as e:
            raise ConnectFailed(f"{base_url} does not tell its models: {e}") from e
    if not models:
        raise ModelNotFound(f"{base_url} names no model; write bn.OpenAI(model_name, base_url=...)")
    extensions = set(format.EXTENSIONS) - {"prefix"}
    return OpenAI(models[0].id, base_url=base_url, api_key=key, extensions=extensions)


def _maker(is_azure: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    try:
        import openai
    except ImportError as e:
        raise ConfigError("the OpenAI backend needs the openai package: pip install 'banyan[http]'") from e
    kind = openai.AsyncAzureOpenAI if is_azure else openai.AsyncOpenAI

    def make() -> Any:
        try:
            return kind(*args, **kwargs)
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
    """A client of the API on a loop. places: bounds its requests."""

    def __init__(self, loop: _ApiLoop, client: Any, max_in_flight: int) -> None:
        import asyncio

        self.loop, self.client, self.places = loop, client, asyncio.Semaphore(max_in_flight)
        self._is_closed = False

    def close(self) -> None:
        if not self._is_closed and self.loop is _ApiLoop.current:
            self.loop.run(self.client.close())
        self._is_closed = True


class _ApiLoop:
    """An event loop on a thread of its own: one per process, made when it is first needed."""

    current: _ApiLoop | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="banyan-http", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _ApiLoop:
        with cls._making:
            if cls.current is None:
                cls.current = cls()
            return cls.current

    @classmethod
    def forget(cls) -> None:
        """In a forked child: threads do not follow there."""
        cls.current, cls._making = None, threading.Lock()

    def run(self, work: Any, on_stop: Callable[[Callable[[], object]], None] | None = None) -> None:
        """Run a coroutine; it is cancelled when what is given to `on_stop` is called."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if on_stop is not None:
            on_stop(future.cancel)


os.register_at_fork(after_in_child=_ApiLoop.forget)
