"""Computes what fits into memory: the sizes of weights and KV, for an engine that starts and for `banyan size`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from banyan.runtime import config as configs
from banyan.runtime.config import Config, Hardware, KVBudget, ModelFacts, ModelPlacement
from banyan.runtime.errors import ConfigError

if TYPE_CHECKING:
    from banyan.runtime.engine.speculation.drafters import DraftSource
    from banyan.runtime.model.families import ModelSpec


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime would allocate: sizes in bytes, contexts in tokens. With several devices, the numbers are per
    device."""

    model: str
    device: str
    dtype: str
    n_devices: int
    memory: int  # free memory before the weights are loaded
    weight_bytes: int
    kv_formula: str  # how kv_token_bytes is computed, with the numbers
    kv_token_bytes: int  # keys and values of one token, over all layers
    page: int  # tokens
    page_bytes: int  # bytes of a page; without those of windowed layers, if these have their own pages
    n_pages: int
    window: int  # tokens that windowed layers keep of a request; 0: they have no pages of their own
    window_page_bytes: int
    n_window_pages: int
    kv_bytes: int  # bytes of all pages, and of the spare ones: one page, and two of windowed layers
    context: int
    concurrent: int
    request_pages: int  # pages that one request of `context` tokens takes
    request_window_pages: int  # most pages of windowed layers that this request takes
    n_fitting: int  # requests of `context` tokens that fit at once
    longest_context: int  # tokens of each of `concurrent` equal requests; at most the model's maximum
    fragmentation_bytes: int  # bytes of free slots in the last pages of `concurrent` requests, on average
    step_weight_bytes: int  # bytes of weights that a decode step reads
    step_kv_bytes: int  # KV that a decode step of `concurrent` full requests reads, if they share nothing


def _facts(
    config: Config, spec: ModelSpec, placement: ModelPlacement, source: DraftSource | None, weight_bytes: int
) -> ModelFacts:
    """What `config.resolve` needs to know about a model (or one rank's part of it) and its draft model. weight_bytes:
    bytes of the model's weights, without the draft model's."""
    import torch

    from banyan.runtime.engine.kv_pool import bytes_per_token

    if spec.chunk % config.page and spec.chunk < placement.context:
        raise ConfigError(
            f"page is {config.page}, but {spec.name} attends in chunks of {spec.chunk} tokens; choose a smaller page"
        )
    width = getattr(torch, placement.dtype).itemsize
    placed = _placed(spec, placement)
    kv_bytes = bytes_per_token(placed, config.kv_dtype)
    window_bytes = bytes_per_token(placed, config.kv_dtype, spec.n_windowed)
    if source is not None:
        weight_bytes, kv_bytes = weight_bytes + source.n_parameters * width, kv_bytes + source.kv_elements * width
    return ModelFacts(
        spec.name, spec.max_context, spec.dtype, weight_bytes, kv_bytes, spec.kind, spec.kv_layers is not None,
        spec.window, window_bytes, spec.n_first, spec.n_whole_rows,
    )  # fmt: skip


def _n_fitting(config: Config, model: ModelFacts, placement: ModelPlacement, budget: KVBudget) -> int:
    """How many requests of a full context fit into the pages."""
    n = budget.n_pages // -(-placement.context // config.page)
    if n_window := configs.request_window_pages(config, model, placement):
        return min(n, budget.n_window_pages // n_window)
    return n


def fit(config: Config, hardware: Hardware, spec: ModelSpec, placement: ModelPlacement, source: DraftSource | None,
        weight_bytes: int) -> tuple[Config, ModelFacts]:  # fmt: skip
    """Replace kv_dtype "fit" in the configuration by "auto" if enough full contexts fit into memory, else by "int8".
    Also returns what `config.resolve` needs to know about the model. weight_bytes: see `_facts`."""
    if config.kv_dtype == "fit":
        plain = msgspec.structs.replace(config, kv_dtype="auto")
        known = _facts(plain, spec, placement, source, weight_bytes)
        n_contexts = _n_fitting(plain, known, placement, configs.kv_budget(plain, hardware, known, placement))
        is_enough = n_contexts >= min(config.max_running, configs.MOST_CONTEXTS)
        config = plain if is_enough else msgspec.structs.replace(config, kv_dtype="int8")
    return config, _facts(config, spec, placement, source, weight_bytes)


def size(
    model: str = "pocket", memory: str | int | None = None, context: str | int | None = None, concurrent: int = 1,
    **options: Any,
) -> Capacity:  # fmt: skip
    """Compute what a runtime with these options would allocate, and how many requests would fit. Reads only config.json
    and the headers of the weights.

    memory      free memory of each device, such as "24GB"; default: what is free here now
    context     tokens of a request, prompt and output, such as "32k"; default: the model's own maximum
    concurrent  requests that run at once
    options     those of `Runtime`, such as kv_dtype="int8", weight_dtype="int4", kv_memory="4GiB", tp=2. device="cuda"
                plans for a GPU also on a machine without one

    Raises ConfigError, and what `Runtime` raises for a model that it cannot load.
    """
    from banyan.runtime.engine.hardware import probe
    from banyan.runtime.engine.speculation import drafters
    from banyan.runtime.model import spec as specs
    from banyan.runtime.model.parallel import Shard, sharded
    from banyan.runtime.model.size import weight_size

    config = configs.make(model=model, context=None if context is None else _count(context), **options)
    if not isinstance(concurrent, int) or concurrent < 1:
        raise ConfigError(f"concurrent is {concurrent!r}; it must be an int of at least 1")
    hardware = probe(config.device != "cpu", config.tp)
    if memory is not None:
        n = configs.parse_bytes(str(memory))
        gpu = hardware.gpu or ("a GPU" if config.device == "cuda" else None)
        hardware = Hardware(hardware.n_cores, n, gpu, n)
    path = specs.resolve(model)
    whole = specs.windowed(specs.read_spec(path), config.window, configs.n_sinks(config))
    source = drafters.find(config, path)
    spec = sharded(whole, config.tp)
    placement = configs.place(config, hardware, spec.name, spec.max_context, spec.dtype)
    shard = Shard(0, config.tp) if config.tp > 1 else None
    weights = weight_size(path, whole, *placement, config.deterministic, config.weight_dtype, shard)
    config, model_facts = fit(config, hardware, spec, placement, source, weights.n_bytes)
    budget = configs.kv_budget(config, hardware, model_facts, placement)
    n_window = configs.request_window_pages(config, model_facts, placement)
    longest = budget.n_pages // concurrent
    if budget.n_window_pages // concurrent < n_window:
        longest = min(longest, budget.n_window_pages // concurrent)
    spare = budget.page_bytes + 2 * budget.window_page_bytes
    window_bytes = budget.window_page_bytes // config.page
    kept = placement.context * (model_facts.kv_bytes - window_bytes) + (spec.window + spec.n_first) * window_bytes
    return Capacity(
        model=spec.name,
        device=placement.device,
        dtype=placement.dtype,
        n_devices=config.tp,
        memory=hardware.free_gpu_memory if placement.device == "cuda" else hardware.free_memory,
        weight_bytes=weights.n_bytes,
        kv_formula=_formula(_placed(spec, placement), config, model_facts.kv_bytes),
        kv_token_bytes=model_facts.kv_bytes,
        page=config.page,
        page_bytes=budget.page_bytes,
        n_pages=budget.n_pages,
        window=spec.window if n_window else 0,
        window_page_bytes=budget.window_page_bytes,
        n_window_pages=budget.n_window_pages,
        kv_bytes=budget.used_bytes + spare,
        context=placement.context,
        concurrent=concurrent,
        request_pages=-(-placement.context // config.page),
        request_window_pages=n_window,
        n_fitting=_n_fitting(config, model_facts, placement, budget),
        longest_context=min(longest * config.page, max(spec.max_context, placement.context)),
        fragmentation_bytes=concurrent * (config.page - 1) * model_facts.kv_bytes // 2,
        step_weight_bytes=weights.per_step,
        step_kv_bytes=concurrent * kept,
    )


def _placed(spec: ModelSpec, placement: ModelPlacement) -> ModelSpec:
    return msgspec.structs.replace(spec, dtype=placement.dtype)


def _formula(spec: ModelSpec, config: Config, kv_bytes: int) -> str:
    from banyan.kernels.kv_layout import HALVES, slot_bytes
    from banyan.runtime.engine.kv_pool import bytes_per_token, dtypes

    heads = []
    for name, dtype in zip(("latents",) if spec.latent_dim else "KV", dtypes(spec, config.kv_dtype), strict=False):
        n_bytes = spec.head_dim * dtype.itemsize // (2 if dtype == HALVES else 1)
        scales = slot_bytes(1, spec.head_dim, dtype) - n_bytes
        heads.append(f"{n_bytes} B of {name}" + (f" + {scales} B of scales" if scales else ""))
    drafted = kv_bytes - bytes_per_token(spec, config.kv_dtype)
    more = f" + {drafted:,} B of the draft model" if drafted else ""
    kv_heads = "" if spec.latent_dim else f"{spec.n_kv_heads} KV heads x "
    return f"{spec.n_kv_layers} layers x {kv_heads}({' + '.join(heads)}){more} = {kv_bytes:,} B"


def _count(text: str | int) -> int:
    """'32k' -> 32768, '1.5k' -> 1536, 4096 -> 4096."""
    spelled = str(text).strip().lower()
    try:
        return round(float(spelled.removesuffix("k")) * (1024 if spelled.endswith("k") else 1))
    except (ValueError, OverflowError) as e:
        raise ConfigError(f"cannot read {text!r} as a number of tokens; write it like 4096 or 32k") from e
