"""The options of a runtime: one frozen, typed struct, which `Runtime(...)`, `banyan serve`, the server and the engine
use. Each command-line flag is a field here, with its help text: `--kv-memory` is `Config.kv_memory`."""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from banyan.runtime.errors import ConfigError, OutOfMemory

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "fit", "int8", "fp8", "k8v4"]
WeightDtype = Literal["auto", "int8", "int4", "dtype"]
Schedule = Literal["dfs", "fair", "lpm", "fcfs"]
Eviction = Literal["lru", "slru", "lfu", "fifo", "priority"]

TOKEN = "BANYAN_TOKEN"
"""Environment variable with a client's token. If it is set, a server without a token_file requires this token."""
API_KEY = "BANYAN_API_KEY"
"""Environment variable with the API key for servers at a URL."""
SERVER_KEY = "BANYAN_SERVER_KEY"
"""Environment variable with the public key of a server at tcp://, or with the path of the file that holds the key."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every option of a runtime, with its help text. Sizes are in tokens unless the name says otherwise."""

    model: Annotated[str, "a directory or hub id in Hugging Face format, a .gguf file, 'pocket' or 'smol'"] = "pocket"
    device: Annotated[Device, "where the model runs; auto: a GPU if there is one"] = "auto"
    dtype: Annotated[Dtype, "dtype of weights and KV; auto: float32 on a CPU, the checkpoint's dtype on a GPU"] = "auto"
    weight_dtype: Annotated[
        WeightDtype, "linear weights; int8, int4: rounded in groups of 32; auto: as stored if quantised, else dtype"
    ] = "auto"
    tp: Annotated[
        int, "number of processes that compute the model together, each a part of every layer (tensor parallel)"
    ] = 1
    adapters: Annotated[
        dict[str, str],
        "name and directory of an adapter (LoRA) in peft's format; gens select it by name; may be given several times",
    ] = {}
    context: Annotated[int | None, "maximum length of prompt + output, in tokens; default: the model's own"] = None
    window: Annotated[
        int,
        "approximate attention, for texts longer than the memory or the model's context: each token attends to this "
        "many last tokens and to the first `sinks`; pages between these are freed; 0: off, a token attends to all",
    ] = 0
    sinks: Annotated[
        int | None, "with `window`: first tokens of a text that each token attends to as well; default: 4"
    ] = None
    kv_dtype: Annotated[
        KVDtype,
        "dtype of keys and values; int8, fp8 (e4m3): with a scale per token and head; k8v4: keys as int8, values in 4 "
        "bits; fit: int8 if dtype holds fewer than `max_running` full contexts; auto: dtype",
    ] = "auto"
    kv_memory: Annotated[
        str, "memory for KV pages: '2GiB', '500MB', '20000 tokens'; auto: a share of the free memory"
    ] = "auto"
    state_memory: Annotated[
        str, "memory for recurrent states, in models that have them: '2GiB'; auto: as much as for KV pages"
    ] = "auto"
    page: Annotated[int, "KV slots in a page, a power of two"] = 16
    cache: Annotated[bool, "keep KV in the radix tree and share it between requests"] = True
    eviction: Annotated[
        Eviction,
        "which pages that no running program waits for are evicted first: lru (longest unused), slru (lru, but pages "
        "used again are protected), lfu (least often used), fifo (longest stored), priority (used by gens of the "
        "lowest `priority` only)",
    ] = "lru"
    host_memory: Annotated[str, "host memory for evicted KV pages: '4GiB'; '0': they are discarded"] = "0"
    host_file: Annotated[str, "a file that holds the host memory, so that it survives a server restart"] = ""
    max_running: Annotated[int, "maximum number of requests in one step"] = 64
    schedule: Annotated[
        Schedule,
        "order of waiting requests: dfs (oldest program, siblings together), fair (program with the least service), "
        "lpm (longest prefix match in the tree), fcfs (first come, first served)",
    ] = "dfs"
    step_tokens: Annotated[int, "token budget of a step; longer prompts are computed in chunks"] = 512
    speculate: Annotated[
        str,
        "drafters: auto, off, or a comma-separated list of tree (texts in the radix tree, concurrent outputs), "
        "ngram (the request's own text), model (`draft_model`), grammar (tokens that a constraint forces)",
    ] = "auto"
    draft_model: Annotated[
        str,
        "the draft model: a smaller model with the same tokenizer or a Medusa or EAGLE head (a directory or hub id; "
        "'draft' belongs to 'pocket'), or 'layers:N', the first N layers of the model itself",
    ] = ""
    deterministic: Annotated[
        bool, "bitwise equal results for any batch, cache contents and chunk size; costs some speed"
    ] = False
    replicas: Annotated[
        int,
        "engines on this machine, each with a copy of the model; they share `threads`, `kv_memory` and `host_memory`; "
        "0: only engines that join at `engines_at`",
    ] = 1
    prefill_replicas: Annotated[
        int, "number of the replicas that take prompts only; the others pull the KV of long prompts from them"
    ] = 0
    min_replicas: Annotated[int, "minimum number of engines, however low the load is; with `max_replicas`"] = 1
    max_replicas: Annotated[
        int, "maximum number of engines: load adds and removes them, each with the memory of the first; 0: never"
    ] = 0
    kv_transfer: Annotated[
        Literal["tcp", "nixl"],
        "how KV moves between engines on different machines; tcp: encrypted; nixl: by NVIDIA's NIXL, over RDMA if "
        "available, not encrypted; needs the extra `nixl`",
    ] = "tcp"
    ray: Annotated[
        str,
        "address of a Ray cluster that runs the engines, each with these threads and memory: auto, HOST:PORT",
    ] = ""
    threads: Annotated[int | None, "CPU threads of the engines; default: one per physical core"] = None
    engine_timeout: Annotated[float, "seconds without a heartbeat after which the engine is killed and replaced"] = 30.0
    sampling_defaults: Annotated[
        Literal["model", "openai"],
        "defaults of temperature, top_p, top_k, min_p and repetition_penalty; model: from the model's "
        "generation_config.json; openai: temperature 1 and nothing else",
    ] = "model"
    constraint_bytes: Annotated[int, "maximum size of a schema, regex or grammar, in bytes"] = 2 << 20
    constraint_seconds: Annotated[float, "time limit for compiling a schema, regex or grammar"] = 2.0
    constraint_engine: Annotated[
        Literal["llguidance", "outlines_core"],
        "engine for regexes and choices; JSON schemas and grammars always use llguidance",
    ] = "llguidance"
    token_file: Annotated[
        str,
        "a file of mode 0600 with a line `TENANT TOKEN` per accepted client token; a third word, operator, lets a "
        f"tenant see and flush the data of others. Without a file: the token in {TOKEN}, if set",
    ] = ""
    bind: Annotated[
        str, "tcp://HOST:PORT, for clients on other machines; encrypted with curve_key; such clients need a token"
    ] = ""
    curve_key: Annotated[str, "file with the server's secret key; `banyan keys DIR` creates one"] = ""
    engines_at: Annotated[
        str, "tcp://HOST:PORT, where engines on other machines join (`banyan engine`); encrypted with curve_key"
    ] = ""
    engine_keys: Annotated[
        str, "a file with a line `NAME KEY`, as `banyan keys` prints it, for each such engine; read at each join"
    ] = ""
    isolate: Annotated[
        Literal["tenant", "connection"],
        "who shares KV: all clients of a tenant (without tokens: all clients), or one connection with itself",
    ] = "tenant"
    socket: Annotated[str, "path of the IPC socket; default: in a private directory of this process"] = ""
    max_message: Annotated[int, "maximum size of a message from a client, in bytes; clients split long programs"] = (
        1 << 20
    )
    max_programs: Annotated[int, "maximum number of programs of one client; a run counts while its state lives"] = (
        1 << 16
    )
    max_width: Annotated[int, "maximum number of branches of a fork, samples of a gen, choices of a select"] = 4096
    max_program: Annotated[int, "maximum server memory of one program, in bytes"] = 256 << 20
    max_client: Annotated[
        int,
        "maximum server memory of all programs of one client, in bytes; also of its messages that wait, and of the "
        "prompts of its running requests",
    ] = 1 << 30
    durable_bytes: Annotated[str, "maximum disk space for the journals of durable programs"] = "256MiB"
    metrics: Annotated[str, "serve Prometheus metrics at a local port, or at HOST:PORT"] = ""
    slo: Annotated[
        str,
        "service levels, such as ttft=500ms,itl=50ms,program=30s: time to first token, mean time between "
        "tokens of a request, duration of a program; a number without a unit is in seconds. Metrics and "
        "`banyan top` show the share that meets them",
    ] = ""
    traces: Annotated[
        str, "where to send spans of programs and gens: console, or the URL of an OTLP/HTTP collector"
    ] = ""
    log: Annotated[Literal["quiet", "info", "debug"], "log level of the server on stderr"] = "quiet"


class HTTPConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of the HTTP process of a server. socket: where the server listens. token_file: the server's token
    file; if there are API keys, it must contain an operator's token."""

    socket: str
    address: Annotated[
        str, "serve HTTP at a local port, or at HOST:PORT: the APIs of OpenAI and Anthropic, see docs/http.md"
    ]
    keys_file: Annotated[
        str, "a file of mode 0600 with a line NAME:KEY per accepted API key; each name is its own tenant"
    ] = ""
    isolate: Annotated[
        Literal["key", "user"],
        "who shares KV over HTTP: all requests with keys of the same name, or only those of them that agree in all of "
        "`user`, `safety_identifier` and `prompt_cache_key`",
    ] = "key"
    cors: Annotated[str, "comma-separated origins whose pages may call the server; *: all"] = ""
    models: Annotated[
        str, "comma-separated names of the model for clients, which replace its hub id or the last part of its path"
    ] = ""
    token_file: str = ""


LIMITS = (
    *("max_message", "max_programs", "max_width", "max_program", "max_client"),
    *("constraint_bytes", "constraint_seconds", "durable_bytes"),
)
"""The options that limit clients. Limits that are the same for all servers are in protocol/limits.py."""

OWN = (
    *("model", "draft_model", "device", "threads", "tp"),
    *("kv_memory", "state_memory", "host_memory", "host_file"),
)
"""The options that an engine on another machine takes from its own machine, and not from the server."""

OF_ENGINES = (
    *("model", "dtype", "weight_dtype", "context", "kv_dtype", "window", "sinks", "page", "cache", "eviction"),
    *("max_running", "step_tokens", "schedule", "speculate", "draft_model", "deterministic", "constraint_engine"),
    "kv_transfer",
)
"""The options that must be equal for servers that share an engine."""

GROUPS: dict[str, tuple[str, ...]] = {
    "model": (
        *("model", "device", "dtype", "weight_dtype", "tp", "adapters", "context", "threads"),
        *("replicas", "prefill_replicas", "min_replicas", "max_replicas"),
        "sampling_defaults",
    ),
    "KV memory": (
        *("kv_memory", "kv_dtype", "state_memory", "window", "sinks"),
        *("page", "cache", "eviction", "host_memory", "host_file"),
    ),
    "batches and speculation": (
        *("max_running", "step_tokens", "schedule", "speculate", "draft_model", "deterministic", "constraint_engine"),
    ),
    "who may connect": ("socket", "bind", "curve_key", "token_file", "isolate"),
    "engines on other machines": ("engines_at", "engine_keys", "ray", "kv_transfer"),
    "logs and monitoring": ("log", "metrics", "slo", "traces", "engine_timeout"),
    "limits of clients": LIMITS,
}
"""All options by subject, in the order of `banyan serve --help`."""


class Hardware(msgspec.Struct, frozen=True):
    """What `resolve` needs to know about the machine. free_memory: free bytes of main memory. gpu: the name of the GPU
    that is used, one of n_gpus; None if there is none. free_gpu_memory: its free bytes."""

    n_cores: int
    free_memory: int
    gpu: str | None = None
    free_gpu_memory: int = 0
    n_gpus: int = 1


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Config that can be "auto" or depend on the machine, with the values for this machine. n_pages:
    KV pages on the device. n_window_pages: KV pages of windowed layers; 0: these have no pages of their own.
    state_memory: bytes for recurrent states; 0: the model has none. n_host: KV pages in host memory. threads: CPU
    threads of one process. all_threads: CPU threads of all processes of an engine. decisions: lines for the log that
    say what was chosen."""

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16", "float16"]
    context: int
    n_pages: int
    n_window_pages: int = 0
    state_memory: int = 0
    n_host: int = 0
    threads: int
    all_threads: int = 0
    decisions: tuple[str, ...]


class ModelFacts(msgspec.Struct, frozen=True):
    """What `resolve` needs to know about the model, in the dtypes that it will have on the device. weight_bytes: bytes
    of its weights. kv_bytes: bytes of the keys and values of one token, over all layers. Both include a draft model.
    kind: a description for users of how the model is stored and run; "" for one of Banyan's own families in floats.
    is_recurrent: some layers have a recurrent state. window: tokens of the largest sliding window; 0: no layer has one.
    window_bytes: the part of kv_bytes that belongs to layers with a window. n_first: tokens at the beginning of a text
    that these layers read as well. n_whole_rows: see `ModelSpec.n_whole_rows`."""

    name: str
    max_context: int
    checkpoint_dtype: str
    weight_bytes: int
    kv_bytes: int
    kind: str = ""
    is_recurrent: bool = False
    window: int = 0
    window_bytes: int = 0
    n_first: int = 0
    n_whole_rows: int = 0


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_DTYPES = ("float32", "bfloat16", "float16")


def make(**options: Any) -> Config:
    """Create a Config and check it. Raises ConfigError if an option has a bad value, or if it is unknown (the message
    names the most similar one)."""
    fields = Config.__struct_fields__
    if unknown := [name for name in options if name not in fields]:
        raise ConfigError("\n".join(map(unknown_option, unknown)))
    try:
        config = msgspec.convert(options, Config)
    except msgspec.ValidationError as e:
        raise ConfigError(f"bad option: {e}") from e
    check(config)
    return config


def unknown_option(name: str) -> str:
    """Returns the error message for an option that does not exist. If an existing option has a similar name, the
    message names it; otherwise it lists all options."""
    if name.split("_")[0] == "http":
        return f"there is no option {name!r} here; run `banyan serve --http 8000`, and connect to that server"
    fields = Config.__struct_fields__
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(fields)}"
    return f"there is no option {name!r}{hint}"


_MINIMUMS = {
    "max_running": 1, "step_tokens": 1, "context": 2, "replicas": 0, "threads": 1, "constraint_bytes": 1,
    "max_message": 1 << 16, "max_programs": 1, "max_width": 1, "max_program": 1, "max_client": 1, "tp": 1,
}  # fmt: skip


def check(c: Config) -> None:
    """Check all options. Raises ConfigError if an option has an invalid value, or if two options exclude each other."""

    def require(ok: bool, message: str) -> None:
        if not ok:
            raise ConfigError(message)

    for name, minimum in _MINIMUMS.items():
        value = getattr(c, name)
        require(value is None or value >= minimum, f"{name} is {value}; it must be at least {minimum}")
    for name in ("engine_timeout", "constraint_seconds"):
        require(getattr(c, name) > 0, f"{name} is {getattr(c, name)}; it must be above 0")
    require(c.page > 0 and c.page & (c.page - 1) == 0, f"page is {c.page}; it must be a power of two, such as 16")
    n_host_bytes = parse_bytes(c.host_memory)
    require(n_host_bytes > 0 or not c.host_file, "host_file needs a size; set host_memory too, such as '4GiB'")
    require(n_host_bytes == 0 or c.cache, "host_memory holds what the cache evicts, but the cache is off")
    _check_window(c, n_host_bytes)
    require(c.tp == 1 or c.replicas <= 1, "tp splits one engine, and replicas starts several; set one of them")
    require(c.tp == 1 or not c.max_replicas, "tp splits one engine, and max_replicas may add others; set one of them")
    require(
        0 <= c.prefill_replicas < max(1, c.replicas),
        f"prefill_replicas is {c.prefill_replicas}; of {c.replicas} replicas, at least one must generate",
    )
    require(
        c.cache or not c.prefill_replicas,
        "prefill_replicas compute prompts into the cache, from which others pull them, but the cache is off",
    )
    require(c.tp == 1 or not c.host_file, "host_file holds the KV of one process; use host_memory alone, or tp=1")
    require(c.tp == 1 or not c.adapters, "adapters cannot be split by tp; leave tp out, or merge them into the model")
    for name, path in c.adapters.items():
        check_adapter_name(name)
        require(bool(path), f"adapter {name!r} has no directory; write it like NAME=DIR")
    if c.metrics:
        address(c.metrics)
    parse_bytes(c.durable_bytes)
    slo(c.slo)
    if c.bind:
        tcp(c.bind)
    if c.engines_at:
        tcp(c.engines_at)
    for name in ("bind", "engines_at"):
        require(
            not getattr(c, name) or bool(c.curve_key),
            f"{name} needs curve_key, for encryption; create one with `banyan keys DIR` and pass DIR/server.key_secret",
        )
    require(
        bool(c.bind or c.engines_at) or not c.curve_key,
        "curve_key is for tcp://, and neither bind nor engines_at is set",
    )
    require(
        bool(c.engines_at) == bool(c.engine_keys),
        "engines_at and engine_keys go together: where engines join, and a file with the keys that are accepted there",
    )
    require(
        c.max_replicas == 0 or 1 <= c.min_replicas <= c.replicas <= c.max_replicas,
        f"min_replicas is {c.min_replicas}, replicas {c.replicas} and max_replicas {c.max_replicas}; they must satisfy "
        "1 <= min_replicas <= replicas <= max_replicas",
    )
    require(c.max_replicas > 0 or c.min_replicas == 1, "min_replicas has an effect only with max_replicas")
    require(not (c.ray and c.engines_at), "ray makes its own engines_at and keys; leave these out")
    require(not (c.ray and c.host_file), "host_file is on one machine, but ray chooses the machines; leave it out")
    require(not c.ray or c.replicas > 0, "ray runs `replicas` engines; set replicas to at least 1")
    require(
        c.kv_transfer == "tcp" or bool(c.engines_at or c.ray),
        "kv_transfer is for engines on other machines, and neither engines_at nor ray is set",
    )
    require(c.replicas > 0 or bool(c.engines_at), "replicas is 0, and engines_at is not set; there would be no engine")
    if c.kv_memory != "auto" and _tokens(c.kv_memory) is None:
        parse_bytes(c.kv_memory)
    if c.state_memory != "auto":
        parse_bytes(c.state_memory)
    names = drafters(c.speculate, c.draft_model)
    require(
        not c.draft_model or "model" in names,
        f"draft_model is {c.draft_model}, but speculate is {c.speculate}; add model to it",
    )
    # The address of a Unix socket holds 108 bytes, including the null byte at its end.
    require(len(os.fsencode(c.socket)) < 108, f"the socket's path is longer than Linux allows (107 bytes): {c.socket}")


def _check_window(c: Config, n_host_bytes: int) -> None:
    if not c.window:
        if c.sinks is not None:
            raise ConfigError("sinks has an effect only together with window; set window too, for instance to 1024")
        return
    if c.window < 1 or n_sinks(c) < 0:
        raise ConfigError(f"window is {c.window} and sinks {n_sinks(c)}; they must be at least 1 and 0")
    for other, reason in (
        ("tp" if c.tp > 1 else "", "tp supports only the attention that the model was trained with"),
        ("draft_model" if c.draft_model else "", "a draft model keeps and reads the whole text"),
        ("host_memory" if n_host_bytes else "", "host memory holds all pages of a text or none"),
        ("prefill_replicas" if c.prefill_replicas else "", "no other engine can use what these replicas compute"),
    ):
        if other:
            raise ConfigError(f"window frees pages inside a text, and {reason}; leave out window or {other}")


def n_sinks(c: Config) -> int:
    """How many tokens at the beginning of a text all later tokens attend to, besides their window. 0 without the option
    `window`."""
    return (4 if c.sinks is None else c.sinks) if c.window else 0


def check_adapter_name(name: str) -> None:
    """Check the name of an adapter. Raises ConfigError if the name is not valid."""
    if not re.fullmatch(r"[\w.-][\w./-]{0,127}", name):
        raise ConfigError(
            f"{name[:200]!r} is not a valid name of an adapter: it must have 1 to 128 letters, digits and ./_-"
        )


DRAFTERS = ("tree", "ngram", "model", "grammar")
"""The names of the drafters, in the order in which the engine asks them."""
EARLY_EXIT = "layers:"
"""The prefix of a `draft_model` that names the first layers of the model itself; their number follows."""


def drafters(speculate: str, draft_model: str = "") -> tuple[str, ...]:
    """The drafters that `Config.speculate` selects, in the order of DRAFTERS. "auto" selects all that are available.
    Raises ConfigError if a name is unknown, or if "model" is selected without a draft model."""
    if speculate == "off":
        return ()
    if speculate == "auto":
        return tuple(name for name in DRAFTERS if name != "model" or draft_model)
    names = {name.strip() for name in speculate.split(",")}
    if unknown := names.difference(DRAFTERS):
        raise ConfigError(
            f"speculate is {speculate!r}; it must be auto, off, or a comma-separated list of {', '.join(DRAFTERS)}; "
            f"there is no drafter {min(unknown)!r}"
        )
    if "model" in names and not draft_model:
        raise ConfigError(f"speculate is {speculate!r}, but draft_model is not set; set it, for instance to 'draft'")
    return tuple(name for name in DRAFTERS if name in names)


def address(text: str) -> tuple[str, int]:
    """Parse an address: '9090' -> ('127.0.0.1', 9090); '0.0.0.0:9090' -> ('0.0.0.0', 9090); '[::1]:9090' ->
    ('::1', 9090). Port 0 stands for any free port. Raises ConfigError if the text is no address."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"cannot read {text!r} as an address; write it like 9090 or 0.0.0.0:9090")
    return host.strip("[]") or "127.0.0.1", int(port)


def origins(text: str) -> list[str]:
    """Parse the origins of `HTTPConfig.cors`. Raises ConfigError if one is neither * nor SCHEME://HOST[:PORT], the form
    in which browsers send it: in ASCII, and without the scheme's own port."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    for one in found:
        if not re.fullmatch(r"\*|(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://[^\sA-Z/?#@\x80-\U0010ffff]+", one):
            raise ConfigError(
                f"http_cors has {one!r}; write an origin as browsers send it, like https://app.example, or *. They "
                "write xn-- for other alphabets, and no port that the scheme implies"
            )
    return found


def model_names(text: str) -> tuple[str, ...]:
    """Parse `HTTPConfig.models`. Raises ConfigError if a name is empty, longer than 256 characters or not printable."""
    found = tuple(dict.fromkeys(one.strip() for one in text.split(","))) if text else ()
    for one in found:
        if not 0 < len(one) <= 256 or not one.isprintable():
            raise ConfigError(f"http_models has {one[:80]!r}; write names like gpt-4o,my-model")
    return found


def slo(text: str) -> dict[str, float]:
    """Parse service levels: 'ttft=500ms,itl=0.05' -> {'ttft': 0.5, 'itl': 0.05}, in seconds. Raises ConfigError for any
    other form."""
    levels: dict[str, float] = {}
    for one in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(ttft|itl|program)\s*=\s*(\d+(?:\.\d+)?)\s*(s|ms|)\s*", one)
        if not match or match[1] in levels or float(match[2]) <= 0:
            raise ConfigError(f"cannot read {one!r} as a service level; write slo like ttft=500ms,itl=50ms,program=30s")
        levels[match[1]] = float(match[2]) * (1e-3 if match[3] == "ms" else 1.0)
    return levels


def tcp(text: str) -> tuple[str, int]:
    """Parse an address: 'tcp://10.0.0.1:7100' -> ('10.0.0.1', 7100). Raises ConfigError for any other form, also for
    tcp://*, because the host must be given."""
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/*\[\]]+):(\d{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise ConfigError(f"cannot read {text!r} as an address; write it like tcp://10.0.0.1:7100")
    return match[1].strip("[]"), int(match[2])


def parse_bytes(text: str) -> int:
    """Parse a size: '2GiB' -> 2147483648. Units: B, kB, MB, GB (decimal), KiB, MiB, GiB. Raises ConfigError for any
    other form."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ConfigError(f"cannot read {text!r} as a size in memory; write it like '2GiB' or '500MB'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _tokens(text: str) -> int | None:
    """Parse a number of tokens: '20000 tokens' -> 20000. Returns None if the text has another unit."""
    match = re.fullmatch(r"\s*(\d+)\s*tokens?\s*", text)
    return int(match[1]) if match else None


class ModelPlacement(NamedTuple):
    """Where a model runs, in which dtype it computes, and for which context, in tokens."""

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16", "float16"]
    context: int


def place(config: Config, hardware: Hardware, name: str, max_context: int, checkpoint_dtype: str) -> ModelPlacement:
    """The first part of `resolve`: choose device, dtype and context. name, max_context and checkpoint_dtype are the
    model's. Raises ConfigError if the options do not fit the model or the machine."""
    device: Literal["cpu", "cuda"] = ("cuda" if hardware.gpu else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not hardware.gpu:
        raise ConfigError("device is 'cuda', but torch sees no GPU here; use device='cpu' or install a CUDA build")
    dtype: Any = config.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else checkpoint_dtype if checkpoint_dtype in _DTYPES else "bfloat16"
    context = config.context or max_context
    reach = config.window + n_sinks(config)
    if config.window and reach > max_context:
        raise ConfigError(
            f"window and sinks are {reach} tokens together, but {name} supports at most {max_context}; lower window"
        )
    if config.window and reach >= context:
        raise ConfigError(
            f"window and sinks are {reach} tokens together, but the context has only {context}; leave window out, or "
            "lower it"
        )
    if context > max_context and not config.window:
        raise ConfigError(
            f"context is {context}, but {name} supports at most {max_context} tokens; with window it may be longer"
        )
    return ModelPlacement(device, dtype, context)


MOST_CONTEXTS = 64
"""With kv_memory 'auto', there are pages for at most this many full contexts: more pages would only make the start
slower."""


class KVBudget(NamedTuple):
    """The number of KV pages, and the bytes of a page. n_window_pages, window_page_bytes: the same for windowed layers,
    if these have their own pages; else 0. n_bytes: bytes available for all pages. state_bytes: bytes for recurrent
    states."""

    n_pages: int
    page_bytes: int
    n_window_pages: int
    window_page_bytes: int
    n_bytes: int
    state_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.n_pages * self.page_bytes + self.n_window_pages * self.window_page_bytes


def tokens_ahead(config: Config, device: str, n_whole_rows: int = 0) -> int:
    """The largest number of tokens, beyond those computed, for which a request may claim pages of windowed layers.
    n_whole_rows: see `ModelSpec.n_whole_rows`."""
    n_steps = 2 if device == "cuda" else 1  # on a GPU, a step is planned while another is computed
    n_beyond = max(0, n_whole_rows - 1)  # a step that reaches an image's first row computes the others as well
    return n_steps * (config.step_tokens + n_beyond) + 2 * config.page


def request_window_pages(config: Config, model: ModelFacts, placement: ModelPlacement) -> int:
    """Maximum number of pages of windowed layers that one request needs. Returns 0 if windowed layers have no pages of
    their own, which is so if

    - a full context needs no more pages than that,
    - a layer has a recurrent state,
    - there is a host tier, which keeps all pages of a text or none, or
    - the model's first layers draft, because drafting supports only one kind of pages.
    """
    shares = model.is_recurrent or parse_bytes(config.host_memory) or config.draft_model.startswith(EARLY_EXIT)
    if shares or not model.window:
        return 0
    n_ahead = tokens_ahead(config, placement.device, model.n_whole_rows)
    n = -(-(model.window + n_ahead) // config.page) + 2  # as `WindowPages.need`
    n += -(-model.n_first // config.page)
    return n if n < -(-placement.context // config.page) else 0


def kv_budget(config: Config, hardware: Hardware, model: ModelFacts, placement: ModelPlacement) -> KVBudget:
    """The second part of `resolve`: divide the memory.

    By default the KV memory is 80 % (on a GPU) or 40 % (on a CPU) of the memory that is free after the weights, but at
    most the memory of MOST_CONTEXTS full contexts. Engines that share a device share its memory. If a model has
    recurrent states, they get half of this memory.

    If windowed layers have their own pages, let f be the number of windowed pages per other page that a full context
    needs. A text shorter than the window needs 1 windowed page per other page. As a compromise, there are sqrt(f)
    windowed pages per other page, but at least half as many windowed pages as there would be pages if all layers shared
    them. If all layers are windowed, the other pages take no memory, and there are enough of them for a context.
    """
    n_context = -(-placement.context // config.page)
    n_window = request_window_pages(config, model, placement)
    window_bytes = config.page * model.window_bytes if n_window else 0
    page_bytes = config.page * model.kv_bytes - window_bytes
    share = max(math.sqrt(n_window / n_context), page_bytes / (2 * page_bytes + window_bytes)) if n_window else 0.0
    both = page_bytes + share * window_bytes

    def pages(n: int, n_bytes: int) -> KVBudget:
        n = max(0, n)
        n_all = n if page_bytes else max(n, n_context)
        return KVBudget(n_all, page_bytes, math.ceil(share * n), window_bytes, n_bytes, states)

    is_gpu = placement.device == "cuda"
    free = hardware.free_gpu_memory if is_gpu else hardware.free_memory
    n_sharing = -(-config.replicas // (hardware.n_gpus if is_gpu else 1))
    budget = int((free - n_sharing * model.weight_bytes) * (0.8 if is_gpu else 0.4)) // n_sharing
    budget //= 2 if model.is_recurrent else 1
    states = 0
    if model.is_recurrent:
        states = budget if config.state_memory == "auto" else parse_bytes(config.state_memory) // config.replicas
    if config.kv_memory == "auto":
        return pages(min(int(budget // both), MOST_CONTEXTS * n_context), budget)
    if (n_tokens := _tokens(config.kv_memory)) is not None:
        n_pages = -(-n_tokens // (config.page * config.replicas))
        n_pages = n_pages if page_bytes else int(n_pages / share)
        return pages(n_pages, pages(n_pages, 0).used_bytes)
    budget = parse_bytes(config.kv_memory) // config.replicas
    return pages(int(budget // both), budget)


def resolve(config: Config, hardware: Hardware, model: ModelFacts) -> Resolved:
    """Replace each "auto" by a value for this machine and model. Raises ConfigError if options do not fit them, and
    OutOfMemory if the KV memory is too small for one context."""
    placement = place(config, hardware, model.name, model.max_context, model.checkpoint_dtype)
    device, dtype, context = placement
    decisions = [
        f"{model.name} on {hardware.gpu if device == 'cuda' else 'CPU'} in {dtype}{model.kind and ', '}{model.kind}"
    ]
    n_needed = -(-context // config.page)
    _check_recurrent(config, model)
    found = kv_budget(config, hardware, model, placement)
    n_pages, page_bytes = found.n_pages, found.page_bytes
    if n_pages < n_needed:
        each = f" for each of {config.replicas} engines" if config.replicas > 1 else ""
        least = msgspec.structs.replace(config, kv_memory=f"{n_needed * config.page * config.replicas} tokens")
        needed = kv_budget(least, hardware, model, placement).used_bytes
        raise OutOfMemory(
            f"a context of {context} tokens needs {n_needed} pages = {needed / 2**20:.1f} MiB of KV memory, but only "
            f"{max(found.n_bytes, 0) / 2**20:.1f} MiB are available{each}; lower `context`, raise `kv_memory`, or use "
            "a 16-bit `dtype`"
        )
    n_window_needed = request_window_pages(config, model, placement)
    if found.n_window_pages < n_window_needed:
        raise OutOfMemory(
            f"a window of {model.window} tokens needs {n_window_needed} pages = "
            f"{n_window_needed * found.window_page_bytes / 2**20:.1f} MiB of KV memory, but only "
            f"{max(found.n_bytes, 0) / 2**20:.1f} MiB are available; lower `window` or `step_tokens`, or raise "
            "`kv_memory`"
        )
    if config.window:
        decisions.append(
            f"approximate: a token attends to the first {n_sinks(config)} and the last {config.window} tokens"
        )
    kept = "" if config.kv_dtype == "auto" else f" in {config.kv_dtype}"
    decisions.append(
        f"KV: {n_pages} pages of {config.page} slots = {n_pages * config.page} tokens, "
        f"{n_pages * page_bytes / 2**20:.0f} MiB{kept}; context {context}"
    )
    if n_window := found.n_window_pages:
        decisions.append(
            f"KV of windowed layers: {n_window} pages, {n_window * found.window_page_bytes / 2**20:.0f} MiB; a request "
            f"keeps its last {model.window} tokens" + (f" and its first {model.n_first}" if model.n_first else "")
        )
    taken = config.replicas * (found.used_bytes + model.weight_bytes) if device == "cpu" else 0
    if n_host := _host_pages(config, page_bytes, hardware.free_memory - taken):
        where = config.host_file or "memory"
        decisions.append(f"second tier: {n_host} pages, {n_host * page_bytes / 2**20:.0f} MiB in {where}")
    if config.weight_dtype != "auto":
        decisions.append(f"weights of linear layers in {config.weight_dtype}")
    threads = max(1, (config.threads or hardware.n_cores) // config.replicas)
    decisions.append(f"{threads} threads" if config.tp == 1 else f"{config.tp} processes, each with {threads} threads")
    if config.deterministic:
        decisions.append("deterministic: bitwise equal in any batch, cache and chunks; drafts do not branch")
    return Resolved(
        device=device,
        dtype=dtype,
        context=context,
        n_pages=n_pages,
        n_window_pages=found.n_window_pages,
        state_memory=found.state_bytes,
        n_host=n_host,
        threads=threads,
        all_threads=threads * config.tp,
        decisions=tuple(decisions),
    )


def _check_recurrent(config: Config, model: ModelFacts) -> None:
    """Raises ConfigError if an option conflicts with the model's recurrent states, or if state_memory is set for a
    model without recurrent states."""
    if not model.is_recurrent:
        if config.state_memory != "auto":
            raise ConfigError(f"state_memory is for models with a recurrent state; {model.name} has none; leave it out")
        return
    names = set(drafters(config.speculate, config.draft_model))
    if config.draft_model or (config.speculate != "auto" and names - {"grammar"}):
        raise ConfigError(
            f"{model.name} has a recurrent state, which cannot be rolled back after a rejected draft; leave out "
            "draft_model, and let speculate be auto, off or grammar"
        )
    if config.host_file:
        raise ConfigError(f"host_file keeps no recurrent states, without which KV of {model.name} is of no use")


def _host_pages(config: Config, page_bytes: int, free: int) -> int:
    """How many KV pages of host memory each engine gets by the option `host_memory`. free: bytes of main memory that
    the engines' weights and pages leave free. Raises ConfigError if an engine's part of `host_memory` is smaller than a
    page, and OutOfMemory if the pages of all engines exceed `free` and there is no `host_file`."""
    asked = parse_bytes(config.host_memory) // config.replicas
    if not asked:
        return 0  # a page may have no bytes
    n_host = asked // page_bytes
    if not n_host:
        raise ConfigError(f"host_memory is {config.host_memory}, but a page takes {page_bytes / 2**20:.1f} MiB")
    needed = config.replicas * n_host * page_bytes
    if not config.host_file and needed > free:
        there = max(free, 0) / 2**20
        raise OutOfMemory(f"host_memory is {needed / 2**20:.0f} MiB, but {there:.0f} MiB are free; lower it")
    return n_host


def token_lines(text: str) -> list[tuple[int, list[str]]]:
    """(line number, words) of each line that has words, in the text of a file of tokens or keys. A comment begins with
    a # at the start of a word."""
    split = ((n, re.split(r"(?:^|\s)#", line)[0].split()) for n, line in enumerate(text.splitlines(), 1))
    return [(n, words) for n, words in split if words]


def read_text(path: Path, what: str) -> str:
    """The text of a file. Raises ConfigError if the file cannot be read. what: the option that names the file."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{what} {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e


def read_private(path: Path, what: str) -> str:
    """The text of a file of secrets. Raises ConfigError if the file cannot be read, or if other users may read it.
    what: the option that names the file."""
    text = read_text(path, what)
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise ConfigError(f"other users may read {what} {path} (mode {mode:04o}); run `chmod 600 {path}`")
    return text


MIN_KEY, MAX_KEY = 16, 4096
"""Lengths of an API key, in characters."""


def api_keys(path: Path) -> dict[str, str]:
    """Key -> name, from a file of API keys (`HTTPConfig.keys_file`). Raises ConfigError if a line is invalid; the
    message names the line and never contains a key."""
    names: dict[str, str] = {}
    for n, line in enumerate(read_private(path, "http_keys").splitlines(), 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        name, found, key = map(str.strip, line.partition(":"))
        if not (found and name and len(name) <= 64 and name.isascii() and name.isprintable()):
            raise ConfigError(f"{path}, line {n}: must be NAME:KEY, with a name of 1 to 64 ASCII characters")
        if not MIN_KEY <= len(key) <= MAX_KEY:
            lengths = f"has {len(key)} characters, but must have {MIN_KEY} to {MAX_KEY}"
            raise ConfigError(f"{path}, line {n}: the key {lengths}")
        if key in names:
            raise ConfigError(f"{path}, line {n}: an earlier line has the same key")
        names[key] = name
    if not names:
        raise ConfigError(f"{path} holds no API keys; write a line NAME:KEY for each")
    return names


def operator_token(path: Path) -> str:
    """The operator's token in a file of tokens (`token_file`), with which the HTTP process connects to the server.
    Raises ConfigError if the file has none."""
    lines = [words for _, words in token_lines(read_private(path, "token_file")) if len(words) > 1]
    is_one_tenant = len({words[0] for words in lines}) == 1
    found = next((words[1] for words in lines if is_one_tenant or words[2:] == ["operator"]), "")
    if not found:
        raise ConfigError(f"token_file {path} has no operator's token, which the HTTP process needs")
    return found


def private_socket() -> Path:
    """A socket path in a new directory of mode 0700."""
    return Path(tempfile.mkdtemp(prefix="banyan-")) / "s"
