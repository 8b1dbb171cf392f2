"""One frozen, typed tree of options; an unknown key is an error. What is "auto" is resolved once, by `resolve`.

`Runtime(...)`, `banyan serve` and the processes all read this tree: a flag of the command line is a field here
(`--kv-memory` is `Config.kv_memory`), with its help text, and there is no other list of options.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from banyan.runtime.errors import ConfigError, OutOfMemory

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "int8", "fp8"]
WeightDtype = Literal["auto", "int8"]
Schedule = Literal["dfs", "fair", "lpm", "fcfs"]
Eviction = Literal["lru", "slru", "lfu", "fifo", "priority"]

TOKEN = "BANYAN_TOKEN"
"""The environment variable with a client's token; a server without a token_file asks for the one in it."""
SERVER_KEY = "BANYAN_SERVER_KEY"
"""The environment variable with the public key of a server that is joined by tcp://, or with the file that holds it."""


def _doc(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every option of a runtime. Sizes are in tokens unless the name says otherwise."""

    model: Annotated[
        str, _doc("a local directory or hub id in Hugging Face format; 'pocket' is the one that ships")
    ] = "pocket"
    device: Annotated[Device, _doc("where the model runs; auto takes a GPU if there is one")] = "auto"
    dtype: Annotated[Dtype, _doc("of weights and KV; auto: float32 on a CPU, the checkpoint's on a GPU")] = "auto"
    weight_dtype: Annotated[
        WeightDtype,
        _doc("how linear layers keep their weights: auto: in dtype; int8: in 8 bits, scaled per output, on a CPU"),
    ] = "auto"
    context: Annotated[int | None, _doc("longest prompt + output in tokens; default: the model's own")] = None
    kv_dtype: Annotated[
        KVDtype,
        _doc("how keys and values are kept: auto: in dtype; int8 or fp8 (e4m3): in 8 bits, scaled per token and head"),
    ] = "auto"
    kv_memory: Annotated[str, _doc("memory for KV pages: '2GiB', '500MB', or auto: from what is free")] = "auto"
    page: Annotated[int, _doc("KV slots in a page, a power of two")] = 16
    cache: Annotated[bool, _doc("keep and share KV in the radix tree")] = True
    eviction: Annotated[Eviction, _doc("which pages go first, of those that no running program waits for")] = "lru"
    host_memory: Annotated[
        str, _doc("memory of the host for KV pages that leave the device: '4GiB'; '0': they are forgotten")
    ] = "0"
    host_file: Annotated[
        str, _doc("path of a file to keep that memory in, so that a server that is started again has it")
    ] = ""
    max_running: Annotated[int, _doc("most requests in one step")] = 64
    schedule: Annotated[
        Schedule,
        _doc(
            "who is started first: the oldest program, depth-first (dfs); the one that was given least (fair); the "
            "longest prefix in the tree (lpm); who came first (fcfs)"
        ),
    ] = "dfs"
    step_tokens: Annotated[int, _doc("token budget of a step; long prompts are computed in chunks that fit")] = 512
    speculate: Annotated[
        str,
        _doc(
            "who proposes tokens before they are computed: auto, off, or names with commas: tree (texts in the radix "
            "tree and outputs that run beside), ngram (the request's own text), model (`draft_model`), grammar (what a "
            "constraint forces)"
        ),
    ] = "auto"
    draft_model: Annotated[
        str,
        _doc(
            "a smaller model with the same tokenizer, to propose tokens: a local directory or hub id; 'draft' is that "
            "of 'pocket'"
        ),
    ] = ""
    deterministic: Annotated[
        bool, _doc("the same bits whatever else runs, what is cached, and how prompts are cut into chunks; costs time")
    ] = False
    threads: Annotated[int | None, _doc("CPU threads of the engine; default: one per physical core")] = None
    engine_timeout: Annotated[
        float, _doc("seconds without a sign of life after which the engine is ended, and another takes over")
    ] = 30.0
    constraint_bytes: Annotated[int, _doc("largest schema, regex or grammar that a gen may bring")] = 64 << 10
    constraint_seconds: Annotated[float, _doc("time that a schema, regex or grammar has to compile")] = 2.0
    constraint_engine: Annotated[
        Literal["llguidance", "outlines_core"],
        _doc("what holds outputs to regexes and choices; JSON schemas and grammars are llguidance's in any case"),
    ] = "llguidance"
    token_file: Annotated[
        str,
        _doc(
            "a file of mode 0600 with a line `TENANT TOKEN` for each token that clients may come with; a third word, "
            f"operator, lets a tenant see and flush what is not its own. Without it: the token in {TOKEN}, if set"
        ),
    ] = ""
    bind: Annotated[
        str,
        _doc(
            "tcp://HOST:PORT, for clients on other machines; encrypted, with curve_key, and for those who have a token"
        ),
    ] = ""
    curve_key: Annotated[str, _doc("the file with the server's secret key; `banyan keys DIR` makes one")] = ""
    isolate: Annotated[
        Literal["tenant", "connection"],
        _doc("whose prompts share KV: those of a tenant (all clients, where there are no tokens), or of a connection"),
    ] = "tenant"
    socket: Annotated[str, _doc("path of the IPC socket; default: a private directory of this process")] = ""
    max_message: Annotated[int, _doc("largest message accepted from a client, in bytes")] = 64 << 20
    max_programs: Annotated[int, _doc("most programs of one client at a time")] = 1 << 16
    max_width: Annotated[int, _doc("most branches of a fork, samples of a gen, choices of a select")] = 4096
    max_program: Annotated[int, _doc("most that one program may take on the server, in bytes")] = 256 << 20
    max_client: Annotated[int, _doc("most that all programs of one client may take on the server, in bytes")] = 1 << 30
    durable_bytes: Annotated[
        str, _doc("most that the journals of durable programs take on disk, beside the socket")
    ] = "256MiB"
    metrics: Annotated[
        str, _doc("where to tell counters and times, as Prometheus reads them: a port of this machine, or HOST:PORT")
    ] = ""
    slo: Annotated[
        str,
        _doc(
            "service levels that requests and programs should keep to, as ttft=500ms,itl=50ms,program=30s: time to the "
            "first token, between tokens (the mean of a request), of a whole program. Metrics and top tell how many do"
        ),
    ] = ""
    traces: Annotated[
        str, _doc("where spans of programs and gens go: console, or the URL of an OpenTelemetry collector (OTLP, HTTP)")
    ] = ""
    log: Annotated[Literal["quiet", "info", "debug"], _doc("how much the server tells on stderr")] = "quiet"


class Hardware(msgspec.Struct, frozen=True):
    """What `resolve` has to know about the machine. Memory in bytes, free at this moment."""

    n_cores: int
    free_memory: int
    gpu: str | None = None
    free_gpu_memory: int = 0


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A Config with nothing left open, and the decisions that made it so, one line each, for the log."""

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16", "float16"]
    context: int
    n_pages: int
    n_host: int = 0
    """Pages of host memory, for what leaves the device."""
    threads: int
    decisions: tuple[str, ...]


class ModelFacts(msgspec.Struct, frozen=True):
    """What `resolve` has to know about the model. kv_elements: numbers stored per token over all layers (K and V).
    kv_beside: how many of them are of models that run beside it, which keep theirs in dtype. kv_heads: of the model's
    own, over all layers (K and V); each has a scale where numbers have 8 bits."""

    name: str
    max_context: int
    checkpoint_dtype: str
    n_parameters: int
    kv_elements: int
    kv_beside: int = 0
    kv_heads: int = 0


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


def make(**options: Any) -> Config:
    """A Config from keyword options; ConfigError names an unknown option and the one that was probably meant."""
    fields = {f.name: f for f in msgspec.structs.fields(Config)}
    for name in options:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(fields)}"
            raise ConfigError(f"there is no option {name!r}{hint}")
    try:
        config = msgspec.convert(options, Config)
    except msgspec.ValidationError as e:
        raise ConfigError(f"bad option: {e}") from e
    _check(config)
    return config


def _check(c: Config) -> None:
    def need(ok: bool, message: str) -> None:
        if not ok:
            raise ConfigError(message)

    need(c.page > 0 and c.page & (c.page - 1) == 0, f"page is {c.page}; it must be a power of two, such as 16")
    n_host_bytes = parse_bytes(c.host_memory)
    need(n_host_bytes > 0 or not c.host_file, f"host_file is {c.host_file}, of no size; set host_memory too, to '4GiB'")
    need(n_host_bytes == 0 or c.cache, f"host_memory is {c.host_memory}, for what the cache evicts; but cache is off")
    need(c.max_running >= 1, f"max_running is {c.max_running}; it must be at least 1")
    need(c.step_tokens >= 1, f"step_tokens is {c.step_tokens}; it must be at least 1")
    need(c.context is None or c.context >= 2, f"context is {c.context}; it must be at least 2")
    need(c.threads is None or c.threads >= 1, f"threads is {c.threads}; it must be at least 1")
    need(c.engine_timeout > 0, f"engine_timeout is {c.engine_timeout}; it must be above 0")
    need(c.constraint_bytes >= 1, f"constraint_bytes is {c.constraint_bytes}; it must be at least 1")
    need(c.constraint_seconds > 0, f"constraint_seconds is {c.constraint_seconds}; it must be above 0")
    need(c.max_message >= 1 << 16, f"max_message is {c.max_message}; it must be at least 65536 bytes")
    for name in ("max_programs", "max_width", "max_program", "max_client"):
        need(getattr(c, name) >= 1, f"{name} is {getattr(c, name)}; it must be at least 1")
    if c.metrics:
        address(c.metrics)
    parse_bytes(c.durable_bytes)
    slo(c.slo)
    if c.bind:
        tcp(c.bind)
    how = "make keys with `banyan keys DIR`, and give DIR/server.key_secret"
    need(not c.bind or bool(c.curve_key), f"bind is {c.bind}, and there is no curve_key to encrypt with; {how}")
    need(bool(c.bind) or not c.curve_key, "curve_key is for tcp://, and bind names no address")
    if c.kv_memory != "auto":
        parse_bytes(c.kv_memory)
    names = drafters(c.speculate, c.draft_model)
    need(
        not c.draft_model or "model" in names,
        f"draft_model is {c.draft_model}, but speculate is {c.speculate}; add model to it",
    )
    # A Unix socket's address holds 108 bytes, its end included.
    need(len(os.fsencode(c.socket)) < 108, f"the socket's path is too long for Linux (107 bytes): {c.socket}")


DRAFTERS = ("tree", "ngram", "model", "grammar")
"""In the order in which they are asked."""


def drafters(speculate: str, draft_model: str = "") -> tuple[str, ...]:
    """The drafters that `Config.speculate` names, in their order; auto: all that there are."""
    if speculate == "off":
        return ()
    if speculate == "auto":
        return tuple(name for name in DRAFTERS if name != "model" or draft_model)
    names = {name.strip() for name in speculate.split(",")}
    if unknown := names.difference(DRAFTERS):
        raise ConfigError(
            f"speculate is {speculate!r}; it must be auto, off, or drafters with commas between them, but there is no "
            f"drafter {min(unknown)!r}: there are {', '.join(DRAFTERS)}"
        )
    if "model" in names and not draft_model:
        raise ConfigError(f"speculate is {speculate!r}, but there is no draft_model; name one, as draft_model='draft'")
    return tuple(name for name in DRAFTERS if name in names)


def address(text: str) -> tuple[str, int]:
    """'9090' -> ('127.0.0.1', 9090); '0.0.0.0:9090' -> ('0.0.0.0', 9090). Port 0: one that is free."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"cannot read {text!r} as an address; write it like 9090 or 0.0.0.0:9090")
    return host or "127.0.0.1", int(port)


LEVELS = ("ttft", "itl", "program")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3}


def slo(text: str) -> dict[str, float]:
    """'ttft=500ms,itl=0.05' -> {'ttft': 0.5, 'itl': 0.05}, in seconds."""
    levels: dict[str, float] = {}
    for one in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+(?:\.\d+)?)\s*(s|ms|)\s*", one)
        if not match or match[1] not in LEVELS or match[1] in levels or float(match[2]) <= 0:
            raise ConfigError(f"cannot read {one!r} as a service level; write slo like ttft=500ms,itl=50ms,program=30s")
        levels[match[1]] = float(match[2]) * _SECONDS[match[3]]
    return levels


def tcp(text: str) -> tuple[str, int]:
    """'tcp://10.0.0.1:7100' -> ('10.0.0.1', 7100). An address has to be named: there is no tcp://*."""
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/*\[\]]+):(\d{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise ConfigError(f"cannot read {text!r} as an address; write it like tcp://10.0.0.1:7100")
    return match[1].strip("[]"), int(match[2])


def parse_bytes(text: str) -> int:
    """'2GiB' -> 2147483648. Units are B, kB, MB, GB (decimal) and KiB, MiB, GiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ConfigError(f"cannot read {text!r} as a size in memory; write it like '2GiB' or '500MB'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def resolve(config: Config, hardware: Hardware, model: ModelFacts) -> Resolved:
    """Fill each "auto". Pure: the same arguments give the same answer. OutOfMemory says the numbers.

    KV memory by default is what lies free after the weights, times 0.8 on a GPU and 0.4 on a CPU (where others live
    too), but no more than 64 full contexts: pages that nobody can fill only slow the start.
    """
    said: list[str] = []
    device = _device(config, hardware)
    dtype: Any = config.dtype
    if dtype == "auto":
        known = model.checkpoint_dtype if model.checkpoint_dtype in _WIDTH else "bfloat16"
        dtype = "float32" if device == "cpu" else known
    said.append(f"{model.name} on {hardware.gpu if device == 'cuda' else 'CPU'} in {dtype}")

    context = config.context or model.max_context
    if context > model.max_context:
        raise ConfigError(f"context is {context}, but {model.name} was made for at most {model.max_context} tokens")

    page_bytes = config.page * _kv_bytes(config, model, dtype)
    need = -(-context // config.page)
    if config.kv_memory == "auto":
        weights = model.n_parameters * _WIDTH[dtype]
        free = hardware.free_gpu_memory if device == "cuda" else hardware.free_memory
        budget = int((free - weights) * (0.8 if device == "cuda" else 0.4))
        n_pages = min(budget // page_bytes, 64 * need)
    else:
        budget = parse_bytes(config.kv_memory)
        n_pages = budget // page_bytes
    if n_pages < need:
        raise OutOfMemory(
            f"a context of {context} tokens needs {need} pages = {need * page_bytes / 2**20:.1f} MiB of KV memory, but "
            f"there are {max(budget, 0) / 2**20:.1f} MiB; lower `context`, raise `kv_memory`, or use a 16-bit `dtype`"
        )
    kept = "" if config.kv_dtype == "auto" else f" in {config.kv_dtype}"
    said.append(
        f"KV: {n_pages} pages of {config.page} slots = {n_pages * config.page} tokens, "
        f"{n_pages * page_bytes / 2**20:.0f} MiB{kept}; context {context}"
    )
    free = hardware.free_memory - (n_pages * page_bytes if device == "cpu" else 0)
    if n_host := _host_pages(config, page_bytes, free):
        where = config.host_file or "memory"
        said.append(f"second tier: {n_host} pages, {n_host * page_bytes / 2**20:.0f} MiB in {where}")
    threads = config.threads or max(1, hardware.n_cores)
    if config.weight_dtype != "auto":
        said.append(f"weights of linear layers in {config.weight_dtype}")
    said.append(f"{threads} threads")
    if config.deterministic:
        said.append("deterministic: the same bits in any batch, cache and chunks; drafts are chains, which keep them")
    return Resolved(
        device=device,
        dtype=dtype,
        context=context,
        n_pages=n_pages,
        n_host=n_host,
        threads=threads,
        decisions=tuple(said),
    )


def _device(config: Config, hardware: Hardware) -> Literal["cpu", "cuda"]:
    """Where the model runs."""
    device: Literal["cpu", "cuda"] = ("cuda" if hardware.gpu else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not hardware.gpu:
        raise ConfigError("device is 'cuda', but torch sees no GPU here; use device='cpu' or install a CUDA build")
    if device == "cuda" and config.weight_dtype != "auto":
        raise ConfigError(f"weight_dtype is {config.weight_dtype!r}, which is for a CPU; leave it out")
    return device


def _kv_bytes(config: Config, model: ModelFacts, dtype: str) -> int:
    """What a token takes."""
    if config.kv_dtype == "auto":
        return model.kv_elements * _WIDTH[dtype]
    return model.kv_elements - model.kv_beside + 4 * model.kv_heads + model.kv_beside * _WIDTH[dtype]


def _host_pages(config: Config, page_bytes: int, free: int) -> int:
    """Pages of the second tier. free: bytes of main memory that the first one leaves."""
    asked = parse_bytes(config.host_memory)
    n_host = asked // page_bytes
    if asked and not n_host:
        raise ConfigError(f"host_memory is {config.host_memory}, but a page takes {page_bytes / 2**20:.1f} MiB")
    if n_host and not config.host_file and n_host * page_bytes > free:
        needed, there = n_host * page_bytes / 2**20, max(free, 0) / 2**20
        raise OutOfMemory(f"host_memory is {needed:.0f} MiB, but {there:.0f} MiB are free; lower it")
    return n_host


def private_socket() -> Path:
    """A socket path in a fresh directory that only this user can enter (mode 0700)."""
    return Path(tempfile.mkdtemp(prefix="banyan-")) / "s"
