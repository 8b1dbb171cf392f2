from __future__ import annotations

import os
import stat
import typing
from typing import Any

import msgspec
import pytest

from banyan.radix_cache.windows import WindowPages
from banyan.runtime.config import (
    GROUPS,
    OF_ENGINES,
    OWN,
    Config,
    Hardware,
    ModelFacts,
    ModelPlacement,
    address,
    drafters,
    make,
    origins,
    parse_bytes,
    private_socket,
    request_window_pages,
    resolve,
)
from banyan.runtime.errors import ConfigError, OutOfMemory

CPU = Hardware(n_cores=4, free_memory=8 << 30)
GPU = Hardware(n_cores=4, free_memory=8 << 30, gpu="H200", free_gpu_memory=100 << 30)
MODEL = ModelFacts(name="m", max_context=4096, checkpoint_dtype="bfloat16", weight_bytes=2 * 10**9, kv_bytes=131_072)
SMALL = ModelFacts(name="s", max_context=512, checkpoint_dtype="float32", weight_bytes=4 * 10**6, kv_bytes=1024)

# Every option with a valid value that is not its default.
VALUES = {
    "model": "org/name", "device": "cpu", "dtype": "float16", "context": 128, "kv_dtype": "int8", "kv_memory": "1GiB",
    "page": 32, "weight_dtype": "int8", "state_memory": "1GiB",
    "cache": False, "eviction": "slru", "host_memory": "2GiB", "host_file": "/tmp/x/kv", "max_running": 3,
    "schedule": "fair", "step_tokens": 64, "speculate": "tree", "replicas": 2, "threads": 2, "socket": "/tmp/x/s",
    "max_message": 1 << 18, "max_programs": 5, "max_width": 6, "max_program": 1000, "max_client": 2000,
    "metrics": "0.0.0.0:9090",
    "engine_timeout": 5.0, "constraint_bytes": 1000, "constraint_seconds": 0.5, "log": "debug",
    "constraint_engine": "outlines_core", "token_file": "tokens", "deterministic": True, "isolate": "connection",
    "durable_bytes": "1GiB", "slo": "ttft=1s,itl=50ms", "traces": "console",
    "bind": "tcp://127.0.0.1:7100", "curve_key": "server.key_secret", "draft_model": "org/small",
    "engines_at": "tcp://127.0.0.1:7200", "engine_keys": "engines", "ray": "auto", "min_replicas": 2, "max_replicas": 3,
    "sampling_defaults": "openai", "tp": 2, "adapters": {"poems": "/adapters/poems"},
    "prefill_replicas": 1, "window": 512, "sinks": 8, "kv_transfer": "nixl",
}  # fmt: skip


def test_every_option_has_a_test_value() -> None:
    assert set(VALUES) >= {f.name for f in msgspec.structs.fields(Config)}


@pytest.mark.parametrize("name", VALUES)
def test_every_option_is_accepted_and_round_trips_as_json(name: str) -> None:
    joins, scales = ("engines_at", "engine_keys", "curve_key"), ("min_replicas", "max_replicas", "replicas")
    needed = (
        {"host_file": ("host_memory",), "bind": ("curve_key",), "curve_key": ("bind",)}
        | {"prefill_replicas": ("replicas",), "sinks": ("window",), "kv_transfer": ("ray",)}
        | dict.fromkeys(joins[:2], joins)
        | dict.fromkeys(scales[:2], scales)
    )
    config = make(**{key: VALUES[key] for key in (name, *needed.get(name, ()))})
    assert getattr(config, name) == VALUES[name] != getattr(Config(), name)
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_every_option_has_a_help_text() -> None:
    for name, hint in typing.get_type_hints(Config, include_extras=True).items():
        assert typing.get_args(hint)[1], name


def test_unknown_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no option 'kv_memroy'; did you mean 'kv_memory'"):
        make(kv_memroy="1GB")
    with pytest.raises(ConfigError, match="no option 'zzz'; the options are model, device"):
        make(zzz=1)
    with pytest.raises(ConfigError, match=r"'kv_memroy'; did you mean 'kv_memory'\?\nthere is no option 'zzz'"):
        make(kv_memroy="1GB", zzz=1)
    for name in ("http", "http_keys"):
        with pytest.raises(ConfigError, match=f"no option '{name}' here; run `banyan serve --http 8000`"):
            make(**{name: 8000})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"zzz": 1}', type=Config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page", 0), ("page", 12), ("max_running", 0), ("step_tokens", 0), ("context", 1), ("threads", 0),
        ("engine_timeout", 0.0), ("constraint_bytes", 0), ("constraint_seconds", 0.0), ("max_message", 10),
        ("max_programs", 0), ("max_width", 0), ("max_program", 0), ("max_client", 0),
        ("metrics", "here"), ("metrics", "1.2.3.4:99999"),
        ("kv_memory", "a lot"), ("device", "tpu"), ("dtype", "int3"), ("cache", "maybe"), ("log", "loud"),
        ("schedule", "random"), ("socket", "/x" * 60), ("model", 7), ("eviction", "mru"), ("host_memory", "some"),
        ("host_file", "/tmp/x"), ("speculate", "on"), ("speculate", "tree,oracle"), ("speculate", ""),
        ("speculate", "tree,model"),
    ],
)  # fmt: skip
def test_invalid_option_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as e:
        make(**{name: value})
    assert name in str(e.value) or str(value)[:8] in str(e.value)


@pytest.mark.parametrize("adapters", [{"": "/x"}, {"a b": "/x"}, {"a" * 129: "/x"}, {"a": ""}, ["a=/x"]])
def test_adapter_without_a_name_or_directory_is_refused(adapters: object) -> None:
    with pytest.raises(ConfigError, match=r"not a valid name of an adapter|no directory|Expected `object`"):
        make(adapters=adapters)


@pytest.mark.parametrize(
    ("speculate", "names"),
    [
        ("auto", ("tree", "ngram", "grammar")), ("off", ()), ("ngram", ("ngram",)),
        ("grammar, tree", ("tree", "grammar")), ("tree,ngram,grammar", ("tree", "ngram", "grammar")),
    ],
)  # fmt: skip
def test_speculate_names_the_drafters(speculate: str, names: tuple[str, ...]) -> None:
    assert drafters(make(speculate=speculate).speculate) == names


def test_draft_model_adds_a_drafter() -> None:
    for speculate, names in (("auto", ("tree", "ngram", "model", "grammar")), ("model", ("model",))):
        config = make(speculate=speculate, draft_model="draft")
        assert drafters(config.speculate, config.draft_model) == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinks": 4}, "set window too"),
        ({"window": -1}, "at least 1"),
        ({"window": 100, "sinks": -1}, "sinks -1"),
        ({"window": 100, "tp": 2}, "leave out window or tp"),
        ({"window": 100, "draft_model": "draft"}, "leave out window or draft_model"),
        ({"window": 100, "host_memory": "1GiB"}, "leave out window or host_memory"),
        ({"window": 100, "replicas": 2, "prefill_replicas": 1}, "leave out window or prefill_replicas"),
        ({"cache": False, "host_memory": "1GiB"}, "cache is off"),
        ({"cache": False, "replicas": 2, "prefill_replicas": 1}, "cache is off"),
        ({"speculate": "off", "draft_model": "draft"}, "draft_model is draft, but speculate is off; add model to it"),
        ({"speculate": "model,tree"}, "draft_model is not set; set it"),
        ({"bind": "tcp://127.0.0.1:0"}, "banyan keys DIR"),
        ({"bind": "tcp://*:7100", "curve_key": "k"}, "write it like tcp://10.0.0.1:7100"),
        ({"bind": "7100", "curve_key": "k"}, "write it like"),
        ({"bind": "tcp://h:70000", "curve_key": "k"}, "write it like"),
        ({"curve_key": "k"}, "neither bind nor engines_at is set"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5 kb", 1500), ("17", 17), (" 3 KiB ", 3072)]
)
def test_sizes_are_parsed(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1MB", "1e3", "2 PB", "1,5GB"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="2GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("90", ("127.0.0.1", 90)), ("host:90", ("host", 90)), ("[::1]:90", ("::1", 90)), ("::1:90", ("::1", 90))],
)
def test_addresses_are_parsed(text: str, parsed: tuple[str, int]) -> None:
    assert address(text) == parsed


@pytest.mark.parametrize("text", ["", "host:", "65536", "-1", "\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="as an address"):
        address(text)


def test_auto_selects_the_gpu_and_the_checkpoints_dtype() -> None:
    resolved = resolve(Config(), GPU, MODEL)
    assert (resolved.device, resolved.dtype, resolved.context, resolved.threads) == ("cuda", "bfloat16", 4096, 4)
    assert "H200" in resolved.decisions[0]


def test_auto_without_a_gpu_selects_cpu_and_float32() -> None:
    resolved = resolve(Config(threads=3), CPU, SMALL)
    assert (resolved.device, resolved.dtype, resolved.threads) == ("cpu", "float32", 3)
    assert any(f"{resolved.n_pages} pages" in line for line in resolved.decisions)


def test_unsupported_checkpoint_dtype_becomes_bfloat16_on_a_gpu() -> None:
    facts = msgspec.structs.replace(MODEL, checkpoint_dtype="float8_e4m3fn")
    assert resolve(Config(), GPU, facts).dtype == "bfloat16"


def test_kv_memory_is_counted_in_pages() -> None:
    page = 256 * 4 * 16
    assert resolve(Config(kv_memory=f"{100 * page}B"), CPU, SMALL).n_pages == 100
    assert resolve(Config(kv_memory="1600 tokens"), CPU, SMALL).n_pages == 100
    assert resolve(Config(kv_memory="1601 tokens"), CPU, SMALL).n_pages == 101
    with pytest.raises(OutOfMemory, match="context of 512 tokens"):
        resolve(make(kv_memory="100 tokens"), CPU, SMALL)
    assert resolve(Config(), CPU, SMALL).n_pages == 64 * 512 // 16, "at most 64 full contexts"


def test_replicas_share_threads_and_memory() -> None:
    page = 256 * 4 * 16
    two = resolve(Config(replicas=2, threads=7, kv_memory=f"{200 * page}B", host_memory=f"{60 * page}B"), CPU, SMALL)
    assert (two.n_pages, two.n_host, two.threads) == (100, 30, 3)
    assert resolve(Config(replicas=2, kv_memory="3200 tokens"), CPU, SMALL).n_pages == 100
    assert resolve(Config(replicas=64), CPU, SMALL).threads == 1
    with pytest.raises(OutOfMemory, match="for each of 4 engines"):
        resolve(Config(replicas=4, kv_memory="1600 tokens"), CPU, SMALL)


def test_replicas_on_one_gpu_share_its_memory() -> None:
    big = msgspec.structs.replace(MODEL, max_context=1 << 17)
    n_pages = {
        (n, n_gpus): resolve(Config(replicas=n), msgspec.structs.replace(GPU, n_gpus=n_gpus), big).n_pages
        for n, n_gpus in ((1, 1), (4, 4), (4, 2), (4, 1))
    }
    assert n_pages[4, 4] == n_pages[1, 1]
    assert n_pages[1, 1] > 2 * n_pages[4, 2] > 4 * n_pages[4, 1], n_pages


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(OutOfMemory, match=r"4096 tokens needs 256 pages = 512\.0 MiB.*only 95\.4 MiB"):
        resolve(Config(kv_memory="100MB"), GPU, MODEL)
    with pytest.raises(OutOfMemory, match=r"only 0\.0 MiB"):
        resolve(Config(), Hardware(n_cores=1, free_memory=1 << 20), MODEL)


def test_private_socket_is_in_a_directory_of_mode_0700() -> None:
    paths = private_socket(), private_socket()
    try:
        assert paths[0] != paths[1]
        for path in paths:
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert path.parent.stat().st_uid == os.getuid()
    finally:
        for path in paths:
            path.parent.rmdir()


# ---- windowed layers -----------------------------------------------------------------------------------------------


WINDOWED = msgspec.structs.replace(MODEL, max_context=32768, window=1024, window_bytes=MODEL.kv_bytes * 5 // 6)


def test_windowed_layers_have_pages_of_their_own() -> None:
    options = {"kv_memory": "20GiB", "device": "cpu"}
    machine = Hardware(n_cores=1, free_memory=64 << 30)
    own, shared = (resolve(make(**options), machine, model) for model in (WINDOWED, MODEL))
    full_bytes = 16 * (WINDOWED.kv_bytes - WINDOWED.window_bytes)
    used = own.n_pages * full_bytes + own.n_window_pages * 16 * WINDOWED.window_bytes
    assert 0.999 < used / (20 << 30) <= 1.0001
    n_request = 2 + (1024 + 512 + 2 * 16) // 16
    assert own.n_pages / own.n_window_pages == pytest.approx((2048 / n_request) ** 0.5, rel=0.01)
    assert own.n_pages > 2.8 * shared.n_pages
    assert own.n_window_pages > shared.n_pages / 2, "texts that are shorter than the window"
    assert any("a request keeps its last 1024 tokens" in line for line in own.decisions)
    assert shared.n_window_pages == 0
    WindowPages(n_request, 16, 1024, 512 + 2 * 16)
    with pytest.raises(ValueError, match="too few"):
        WindowPages(n_request - 1, 16, 1024, 512 + 2 * 16)


def test_step_that_computes_a_whole_image_needs_pages_of_windowed_layers() -> None:
    config, model = make(device="cpu"), msgspec.structs.replace(WINDOWED, n_whole_rows=256)
    placement = ModelPlacement("cpu", "bfloat16", 32_768)
    assert request_window_pages(config, WINDOWED, placement) == 2 + (1024 + 512 + 2 * 16) // 16
    assert request_window_pages(config, model, placement) == 2 + (1024 + 512 + 256 + 2 * 16) // 16


def test_long_contexts_leave_half_to_texts_shorter_than_the_window() -> None:
    options = {"kv_memory": "20GiB", "device": "cpu"}
    machine = Hardware(n_cores=1, free_memory=64 << 30)
    own = resolve(make(**options), machine, msgspec.structs.replace(WINDOWED, max_context=100_000))
    even = (20 << 30) // (16 * WINDOWED.kv_bytes)
    assert own.n_window_pages == pytest.approx(even / 2, rel=0.01)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"context": 1500}, {}),
        ({"host_memory": "1GiB"}, {}),
        ({"draft_model": "layers:1"}, {}),
        ({}, {"is_recurrent": True}),
        ({}, {"window": 0, "window_bytes": 0}),
    ],
)
def test_windowed_layers_share_the_pages_of_the_others(options: dict[str, Any], changes: dict[str, Any]) -> None:
    machine = Hardware(n_cores=1, free_memory=64 << 30)
    model = msgspec.structs.replace(WINDOWED, **changes)
    resolved = resolve(make(device="cpu", **options), machine, model)
    assert resolved.n_window_pages == 0
    plain = msgspec.structs.replace(model, window=0, window_bytes=0)
    assert resolved == resolve(make(device="cpu", **options), machine, plain)


# ---- attention sinks -----------------------------------------------------------------------------------------------


SINKS = msgspec.structs.replace(MODEL, window=1000, window_bytes=MODEL.kv_bytes, n_first=4)


def test_window_lets_a_text_be_longer_than_the_memory_and_the_context() -> None:
    config = make(device="cpu", window=1000, context=1_000_000, kv_memory="4000 tokens")
    resolved = resolve(config, Hardware(n_cores=1, free_memory=64 << 30), SINKS)
    assert resolved.context == 1_000_000
    assert resolved.n_window_pages == 250, "all memory"
    assert resolved.n_pages >= 62_500, "numbers for a whole text"
    assert any("approximate: a token attends to the first 4 and the last 1000 tokens" in d for d in resolved.decisions)
    n_request = 3 + -(-(1000 + 512 + 2 * 16) // 16)
    WindowPages(n_request, 16, 1000, 512 + 2 * 16, 4)
    with pytest.raises(ValueError, match="too few"):
        WindowPages(n_request - 1, 16, 1000, 512 + 2 * 16, 4)
    small = msgspec.structs.replace(config, kv_memory=f"{16 * n_request - 16} tokens")
    with pytest.raises(OutOfMemory, match=rf"window of 1000 tokens needs {n_request} pages .* lower `window`"):
        resolve(small, Hardware(n_cores=1, free_memory=64 << 30), SINKS)


def test_window_runs_on_a_gpu() -> None:
    machine = Hardware(n_cores=1, free_memory=64 << 30, gpu="H100", free_gpu_memory=80 << 30)
    assert resolve(make(window=600), machine, SINKS).device == "cuda"


# ---- the second tier -----------------------------------------------------------------------------------------------


def test_host_memory_is_counted_in_pages() -> None:
    page = 16 * 256 * 4
    resolved = resolve(make(host_memory=f"{10 * page + 5}B"), CPU, SMALL)
    assert resolved.n_host == 10
    assert any("second tier: 10 pages" in line for line in resolved.decisions)
    assert resolve(make(), CPU, SMALL).n_host == 0


def test_host_file_may_be_larger_than_memory() -> None:
    assert resolve(make(host_memory="9GiB", host_file="/tmp/x"), CPU, SMALL).n_host > 0


def test_weights_in_few_bits_are_named() -> None:
    assert "weights of linear layers in int8" in resolve(make(weight_dtype="int8", device="cpu"), GPU, MODEL).decisions


def test_kv_in_few_bits_is_named() -> None:
    assert "in int8;" in resolve(make(kv_dtype="int8"), CPU, SMALL).decisions[1]
    assert " in " not in resolve(make(), CPU, SMALL).decisions[1]


def test_recurrent_states_and_pages_share_the_memory() -> None:
    recurrent, machine = msgspec.structs.replace(MODEL, is_recurrent=True), Hardware(n_cores=1, free_memory=64 << 30)
    half, plain = resolve(Config(), machine, recurrent), resolve(Config(), machine, MODEL)
    assert half.n_pages == plain.n_pages // 2
    assert half.state_memory // (16 * MODEL.kv_bytes) == half.n_pages
    assert resolve(Config(state_memory="3MiB"), machine, recurrent).state_memory == 3 << 20
    assert plain.state_memory == 0


RECURRENT = msgspec.structs.replace(SMALL, is_recurrent=True)


@pytest.mark.parametrize(
    ("options", "model", "error", "message"),
    [
        ({"device": "cuda"}, SMALL, ConfigError, "sees no GPU"),
        ({"context": 513}, SMALL, ConfigError, "513.*512 tokens; with window it may be longer"),
        ({"window": 4096, "context": 10**6}, SINKS, ConfigError, "supports at most 4096; lower window"),
        ({"window": 600, "sinks": 8, "context": 608}, SINKS, ConfigError, "608 tokens together, .* has only 608"),
        # 8 GiB less weights and KV
        ({"host_memory": "9GiB"}, SMALL, OutOfMemory, "9216 MiB, but 8156 MiB are free"),
        ({"host_memory": "8160MiB", "replicas": 2}, SMALL, OutOfMemory, "8160 MiB, but 8120 MiB are free"),
        ({"host_memory": "100B"}, SMALL, ConfigError, "host_memory is 100B, but a page takes"),
        ({"speculate": "tree"}, RECURRENT, ConfigError, "cannot be rolled back"),
        ({"draft_model": "draft"}, RECURRENT, ConfigError, "leave out draft_model"),
        ({"host_file": "/tmp/x", "host_memory": "1MiB"}, RECURRENT, ConfigError, "host_file keeps no recurrent states"),
        ({"state_memory": "1MiB"}, SMALL, ConfigError, "has none"),
    ],
)
def test_options_that_do_not_fit_the_model_or_the_machine_are_refused(
    options: dict[str, Any], model: ModelFacts, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        resolve(make(**options), CPU, model)


def test_servers_that_share_engines_need_equal_options_but_for_those_of_servers_and_machines() -> None:
    of_servers = {"adapters", "replicas", "prefill_replicas", "min_replicas", "max_replicas", "sampling_defaults"}
    of_machines = set(OWN) - {"model", "draft_model"}
    groups = ("model", "KV memory", "batches and speculation")
    names = {name for group in groups for name in GROUPS[group]}
    assert set(OF_ENGINES) - {"kv_transfer"} == names - of_servers - of_machines


def test_origins_have_the_form_that_browsers_send() -> None:
    valid = ["https://a.example", "http://localhost:3000", "http://a.example:443", "https://[::1]:8443", "*"]
    assert origins(" ,".join(valid) + ",") == valid
    wrong = ("https://a.example/", "not a url", "a.example", "*, https://A.example")
    for text in (*wrong, "https://\xe4.example", "https://a.example:443", "http://a.example:80"):
        with pytest.raises(ConfigError, match="http_cors has"):
            origins(text)
