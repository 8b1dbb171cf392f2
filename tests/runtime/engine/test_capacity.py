"""`bn.size`: its figures are those of the engine that is built with the same options."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.cli.main import main
from banyan.kernels.kv_layout import parts
from banyan.runtime.config import Hardware, make
from banyan.runtime.engine import capacity, process
from banyan.runtime.errors import ConfigError
from banyan.runtime.model.size import measure
from banyan.runtime.model.spec import read_spec
from forms import short_form

MEMORY = 100_000_000

ENGINES: list[dict[str, Any]] = [
    {"model": "pocket"},
    {"model": "pocket", "kv_dtype": "int8", "dtype": "bfloat16", "weight_dtype": "int4", "context": 512},
    {"model": "pocket", "draft_model": "draft", "kv_dtype": "fp8", "weight_dtype": "int8", "page": 32},
    {"model": "pocket", "kv_memory": "16MiB", "deterministic": True},
    {"model": "llama", "kv_memory": "1000 tokens", "kv_dtype": "k8v4"},
    {"model": "gemma2", "step_tokens": 64, "kv_dtype": "int8"},
    {"model": "gpt2", "weight_dtype": "int8", "kv_dtype": "int8"},
    {"model": "mixtral", "dtype": "bfloat16"},
    {"model": "gpt_oss", "weight_dtype": "int4"},
    {"model": "llama", "window": 30, "sinks": 4, "context": 3000, "step_tokens": 64, "kv_memory": "1000 tokens"},
]


SHORT = (0, 4, 5, 9)


@pytest.mark.parametrize("i", short_form(product(range(len(ENGINES))), lambda i: i in SHORT))
def test_figures_are_those_of_an_engine(
    i: int, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ENGINES[i] | {"device": "cpu", "threads": 1}
    if options["model"] != "pocket":
        options["model"] = str(tiny_model(options["model"]))
    planned = bn.size(memory=MEMORY, **options)
    monkeypatch.setattr(process, "probe", lambda *_: Hardware(n_cores=1, free_memory=MEMORY))
    engine = process.build(make(**options))
    store = engine.model.store
    pools = [part for pair in store.kv for pool in pair for part in parts(pool)]
    drafted = [getattr(drafter, "_kv", ()) for drafter in engine.drafting.drafters]
    pools += [part for own in drafted for pair in own for pool in pair for part in parts(pool)]
    assert planned.n_pages == store.n_pages > 0
    assert planned.n_window_pages == store.n_window_pages == (engine.cache.window.n_slots if planned.window else 0)
    assert planned.window == options.get("window", 8 if "gemma2" in options["model"] else 0)
    assert planned.kv_bytes == sum(pool.untyped_storage().nbytes() for pool in _storages(pools))
    assert planned.weight_bytes == measure(engine.model.model).n_bytes
    n_fitting = planned.n_pages * planned.page // planned.context
    if planned.window:
        n_fitting = min(n_fitting, planned.n_window_pages // planned.request_window_pages)
    assert planned.n_fitting == n_fitting > 0


def _storages(pools: list[Any]) -> list[Any]:
    """One of the pools in each allocation."""
    return list({pool.untyped_storage().data_ptr(): pool for pool in pools}.values())


def test_weights_are_counted_once_and_a_packed_head_is_a_copy(tiny_model: Callable[..., Path]) -> None:
    spec = read_spec(path := tiny_model("llama", tie_word_embeddings=True))
    planned = bn.size(str(path), MEMORY, device="cuda", dtype="float32")
    frequencies = 4 * spec.head_dim // 2
    assert planned.weight_bytes == 4 * spec.n_parameters + frequencies
    assert planned.step_weight_bytes == planned.weight_bytes, "the head reads the embedding"
    on_cpu = bn.size(str(path), MEMORY, device="cpu", dtype="float32")
    assert on_cpu.weight_bytes >= 4 * (spec.n_parameters + spec.vocab_size * spec.hidden) + frequencies
    assert on_cpu.weight_bytes - on_cpu.step_weight_bytes == 4 * spec.vocab_size * spec.hidden


def test_requests_and_contexts_that_fit() -> None:
    planned = bn.size("pocket", "1GB", "1k", 4, kv_memory="4096 tokens", device="cpu")
    assert (planned.context, planned.request_pages, planned.n_fitting) == (1024, 64, 4)
    assert bn.size("pocket", "1GB", "1k", 5, kv_memory="4096 tokens", device="cpu").longest_context == 51 * 16
    assert bn.size("pocket", "1GB", kv_memory="4096 tokens", device="cpu").longest_context == 2048, "the model's own"
    small = bn.size("pocket", "1MB", device="cpu")
    assert (small.n_pages, small.n_fitting, small.longest_context) == (0, 0, 0)
    assert planned.step_kv_bytes == 4 * 1024 * planned.kv_token_bytes
    assert planned.fragmentation_bytes == 4 * 15 * planned.kv_token_bytes // 2


@pytest.mark.parametrize(("max_running", "kv_dtype"), [(4, "auto"), (5, "int8")])
def test_fit_is_int8_where_dtype_holds_too_few_contexts(max_running: int, kv_dtype: str) -> None:
    four_contexts = 4 * 2048 * bn.size("pocket", "1GB", device="cpu").kv_token_bytes
    options = {"kv_memory": str(four_contexts), "max_running": max_running, "device": "cpu"}
    assert bn.size("pocket", "1GB", kv_dtype="fit", **options) == bn.size("pocket", "1GB", kv_dtype=kv_dtype, **options)


def test_heads_that_are_no_groups_are_refused(tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="head dimension 24 is not a multiple of 16; use kv_dtype='int8'"):
        bn.size(str(tiny_model("qwen3")), "1GB", device="cpu", kv_dtype="k8v4")


def test_devices_share_heads_and_matrices() -> None:
    one, two = (bn.size("pocket", MEMORY, device="cuda", tp=n) for n in (1, 2))
    assert two.kv_token_bytes == one.kv_token_bytes // 2
    assert one.weight_bytes / 2 < two.weight_bytes < one.weight_bytes * 0.52, "norms are on both"
    assert bn.size("pocket", MEMORY, device="cuda", tp=4).kv_token_bytes == two.kv_token_bytes, "there are 2 KV heads"
    with pytest.raises(ConfigError, match="tp can be 1, 2, 4"):
        bn.size("pocket", MEMORY, tp=3)


@pytest.mark.parametrize(("text", "tokens"), [("32k", 32768), ("1.5K", 1536), ("4096", 4096), (77, 77)])
def test_contexts_are_read(text: str | int, tokens: int) -> None:
    assert capacity._count(text) == tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "long"}, "cannot read 'long'"),
        ({"context": "32k"}, "supports at most 2048"),
        ({"context": [1]}, r"cannot read \[1\]"),
        ({"memory": "much"}, "cannot read 'much'"),
        ({"memory": -1}, "cannot read '-1'"),
        ({"memory": float("nan")}, "cannot read 'nan'"),
        ({"concurrent": 0}, "at least 1"),
        ({"concurrent": "4"}, "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bn.size("pocket", device="cpu", **options)


@pytest.mark.long
def test_the_command_prints_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["size", "pocket", "--memory", "1GB", "--context", "1k", "--concurrent", "4", "--kv", "int8"]
    options = ["--weight-dtype", "int8", "--device", "cpu", "--page", "32"]
    planned = bn.size("pocket", "1GB", "1k", 4, kv_dtype="int8", weight_dtype="int8", device="cpu", page=32, tp=2)
    assert main([*command, *options, "--tp", "2", "--json"]) == 0
    assert bn.Capacity(**json.loads(capsys.readouterr().out)) == planned
    assert main([*command, *options]) == 0
    shown = capsys.readouterr().out
    assert "8 layers x 2 KV heads x (64 B of K + 4 B of scales + 64 B of V + 4 B of scales) = 2,176 B" in shown


def test_the_command_plans_attention_sinks(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["size", "pocket", "--memory", "1GB", "--context", "9k", "--window", "256", "--sinks", "2", "--json"]
    assert main(command) == 0
    shown = bn.Capacity(**json.loads(capsys.readouterr().out))
    assert shown == bn.size("pocket", "1GB", "9k", window=256, sinks=2)
    assert shown.context == 9216
    assert shown.n_fitting > 0
    assert main(command[:-1]) == 0
    assert "with one spare page and two of layers with a window\n" in capsys.readouterr().out
    pages = shown.page_bytes, shown.window_page_bytes
    assert shown.kv_bytes == (shown.n_pages + 1) * pages[0] + (shown.n_window_pages + 2) * pages[1]
