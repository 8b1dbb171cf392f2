"""Runs the architectures that the native decoder does not compute: with transformers' modelling code, but on Banyan's
KV pages.

transformers looks up its attention function in a registry (`ALL_ATTENTION_FUNCTIONS`). The function that this module
registers writes K and V to the pools, and reads them through the page table. Everything else (norms, experts,
positions, logit caps) remains transformers' code.

If layers differ in the number or size of their heads, a page has room for the largest. Queries, keys and values of the
other layers are padded with zeros, which changes no score and no output. Multi-head latent attention reads latents
(latent.py). On a CPU, linear layers become `Linear`, and experts `PackedExperts` (moe.py). Recurrent states are kept in
slots (recurrent.py).

The attention rule of each layer (its sliding window and softcap) is found when the model is loaded. For the first
forward pass, this module registers a mask function (`ALL_MASK_ATTENTION_FUNCTIONS`). It gets the rule by which
transformers would build the mask of a layer, derives the window from that rule, and returns the window in place of a
mask.

Then the logits of a few tokens are compared with those of the model's eager code, in chunks and batched with another
request. A rule, option or state that paged attention cannot express raises an `Unsupported` that names it. Any other
difference fails the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
    PreTrainedModel,
    cache_utils,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from banyan.kernels import ops
from banyan.kernels.kv_layout import Pool, Quantized, kv_pools
from banyan.kernels.linear.grouped import Grouped, quantise
from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.moe.experts import Gate
from banyan.kernels.ops import AttentionOptions, Ragged, ragged
from banyan.runtime.errors import BadModel, BanyanError, Unsupported
from banyan.runtime.model import latent, moe, recurrent
from banyan.runtime.model.families import ModelSpec, dtype_name
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.quantised.config import Quantisation
from banyan.runtime.model.quantised.fp4 import regroup
from banyan.runtime.model.quantised.readers import state_dict
from banyan.runtime.model.towers import ImageInputs, ImageTower, attend_blocks
from banyan.runtime.model.weights import Checkpoint, Progress

_PAGED, _PROBING = "banyan", "banyan_probing"  # our names in transformers' registry
_ATTENTION = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
_RECURRENT = {"conv", "linear_attention", "mamba", "hybrid", "hybrid_sliding", "dummy", "mlp", "moe"}
"""Kinds of layers that only models with recurrent state have: with a state, with a state and attention, or with
neither."""
_UNBOUNDED = 1 << 17  # the longest context if neither config.json nor attention limits it
_HEAD_DIMS = ("head_dim", "qk_head_dim", "v_head_dim", "global_head_dim", "swa_head_dim", "swa_v_head_dim")
_KV_HEADS = ("num_key_value_heads", "num_global_key_value_heads", "swa_num_key_value_heads")
# config fields with the number of experts
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PROBE = 24  # tokens of the comparison
_PROBE_PAGE = 16


class AttentionRule(NamedTuple):
    """What one layer's attention does. window: its sliding window in tokens; 0: none. softcap: the softcap of its
    logits; 0: none. in_chunks: whether a token attends only to tokens of its own chunk of the text."""

    window: int
    softcap: float
    in_chunks: bool = False


class HfStep(NamedTuple):
    """The arguments of the forward pass that runs now. transformers calls the attention function, which reads them from
    here."""

    spec: ModelSpec
    ragged: Ragged
    kv: Mapping[int, tuple[Pool, Pool]]  # by layer
    rules: dict[int, AttentionRule]  # by layer; filled by the first forward pass
    images: ImageInputs | None = None


_STEP: ContextVar[HfStep] = ContextVar("step")


def _images() -> ImageInputs | None:
    """The image inputs of the forward pass that runs now; None: it has no images, or none runs."""
    step = _STEP.get(None)
    return None if step is None else step.images


class HfModel:
    """A model that runs transformers' code; implements `load.Model`. tower: the part that computes the embeddings of
    images; None: the model takes only text."""

    def __init__(self, spec: ModelSpec, model: Any, context: int) -> None:
        self.spec = spec
        self._model = model
        self._context = context
        self.rules: dict[int, AttentionRule] = {}
        self._kv_layers = range(spec.n_layers) if spec.kv_layers is None else spec.kv_layers
        self._state_parts: list[recurrent.StatePart] = []
        self._is_stepwise = False  # see StatePool
        self._states: recurrent.StatePool | None = None
        self.tower = None if spec.images is None else ImageTower(model, _images)

    @property
    def state_bytes(self) -> int:
        """The size of one request's recurrent state, in bytes."""
        return recurrent.slot_bytes(self._state_parts)

    def new_states(self, n_slots: int) -> recurrent.StatePool:
        """Make a pool for the recurrent states of `n_slots` requests. `forward` uses this pool from now on. Before each
        step, the caller must call the pool's `begin`."""
        self._states = recurrent.StatePool(self._state_parts, n_slots, self._model.device, self._is_stepwise)
        return self._states

    @property
    def module(self) -> nn.Module:
        """The model as transformers' own module."""
        module: nn.Module = self._model
        return module

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(rule.window for rule in self.rules.values())

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: Sequence[tuple[Pool, Pool]], rows: Tensor,
        adapted: AdaptedRows | None = None, images: ImageInputs | None = None,
    ) -> Tensor:  # fmt: skip
        """See `load.Model`. images: the rows of images in this step."""
        assert adapted is None, "lora.read refuses adapters for this model"
        if images is not None and images.positions is not None:
            positions = images.positions
        by_layer = dict(zip(self._kv_layers, kv, strict=False))
        token = _STEP.set(HfStep(self.spec, ragged, by_layer, self.rules, images))
        try:
            with recurrent.using(self._states):
                out = self._model(
                    input_ids=ids[None],
                    position_ids=positions[..., None, :],
                    use_cache=False,
                    logits_to_keep=rows,
                    return_dict=True,
                )
        finally:
            _STEP.reset(token)
        logits: Tensor = out.logits[0]
        if len(logits) != len(rows):  # some families ignore logits_to_keep
            logits = logits[rows]
        return logits.float()

    def _set_attention(self, name: str) -> None:
        """Set transformers' attention implementation to `name`, except for the tower that reads images."""
        by_part = {"": name, "text_config": name, "vision_config": "sdpa"}
        self._model.set_attn_implementation(name if self.tower is None else by_part)

    def probe(self, n_bits: int = 0, keeps_fp4: bool = False) -> None:
        """Make the model ready to run on KV pages. Find the attention rule of each layer, pack linear layers and
        experts, and compare the logits of a few tokens with those of transformers' eager code. Unsupported: they
        differ, or the model needs something that paged attention cannot do.

        n_bits: the number of bits to which weights are rounded; 0: they are not rounded. keeps_fp4: whether expert
        weights that MXFP4 can represent exactly are stored in MXFP4.
        """
        try:
            self._probe(n_bits, keeps_fp4)
        except (BanyanError, torch.OutOfMemoryError):
            raise
        except Exception as e:  # transformers' code was not written for this, so any failure means unsupported
            raise Unsupported(f"{self.spec.family} cannot run over pages: {type(e).__name__}: {e}") from e

    def _probe(self, n_bits: int, keeps_fp4: bool) -> None:
        s, device = self.spec, self._model.device
        is_exact = self._model.dtype == torch.float32 and not n_bits and not keeps_fp4
        n = min(_PROBE, s.max_context)
        first = torch.arange(n, device=device) * 7919 % s.vocab_size
        second = (torch.arange(-(-n // 4), device=device) * 104729 + 17) % s.vocab_size
        self._set_attention("eager")
        experts = moe.gates(self._model)
        if n_bits:
            _round(self._model, n_bits, set() if self.tower is None else _beside_text(self._model))
            moe.round_experts(experts, n_bits)
        with torch.inference_mode(), _called(self._model) as called:
            want = torch.cat([self._model(input_ids=ids[None], use_cache=False).logits[0] for ids in (first, second)])
        _freeze_temperature(self._model)
        if self.tower is None:
            _drop_unused(self._model, called)
        if s.kv_layers is not None:
            self._state_parts, self._is_stepwise = recurrent.pack_mixers(self._model, first[:6])
            self.new_states(2)
        if s.latent_dim:
            latent.absorb(self._model)
        _pack(self._model, called, device, n_bits, experts, regroup if keeps_fp4 else None)

        chunk = s.chunk if s.chunk < self._context else 0
        page = gcd(_PROBE_PAGE, chunk)
        n_chunk, n_pages = -(-n // 3), -(-n // page)
        shape = (2 * n_pages, page, s.n_kv_heads, s.head_dim)
        kv = kv_pools(s.n_kv_layers, shape, (self._model.dtype,) * 2, device, s.latent_dim)
        pages = [list(range(n_pages)), list(range(n_pages, 2 * n_pages))]

        def step(ids: list[Tensor], starts: list[int]) -> Tensor:
            q, ends = [len(own) for own in ids], [start + len(own) for own, start in zip(ids, starts, strict=True)]
            positions = torch.cat([torch.arange(*span, device=device) for span in zip(starts, ends, strict=True)])
            batch = ragged(q, ends, pages[: len(ids)], page, device, chunk=chunk)
            if self._states is not None:
                self._states.copy([(-1, slot) for slot, start in enumerate(starts) if not start])
                self._states.begin([(n, slot, ()) for slot, n in enumerate(q)])
            return self.forward(torch.cat(ids), positions, batch, kv, torch.arange(sum(q), device=device))

        self._set_attention(_PROBING)
        got = [step([first[:n_chunk]], [0])]
        if set(self.rules) != set(self._kv_layers):
            raise Unsupported(
                f"{s.family}: {len(self.rules)} of {len(self._kv_layers)} layers go through transformers' attention "
                "registry; the state of the others cannot be kept in pages"
            )
        self._set_attention(_PAGED)
        got.append(step([first[n_chunk:], second], [n_chunk, 0]))
        off = (torch.cat(got) - want.float()).norm(dim=-1) / want.float().norm(dim=-1)  # relative error per row
        # In 16 bits, rounding can route a token to other experts: there the median of each part must be close.
        parts = off.split([n_chunk, n - n_chunk, len(second)])
        worst = float(off.max() if is_exact else max(part.median() for part in parts))
        if not worst < (1e-3 if is_exact else 0.1):  # true for NaN
            raise Unsupported(
                f"{s.family}: through paged attention its logits differ from transformers' own by {worst:.1%}; "
                "it computes something outside of the attention registry"
            )
        # then config.json lacks some windows
        if tuple(self.rules[i].window for i in range(len(s.windows))) != s.windows:
            self.spec = msgspec.structs.replace(s, windows=())
        for layer, rule in self.rules.items():
            if rule.window >= self._context:
                self.rules[layer] = rule._replace(window=0)  # a window that hides nothing needs no mask


@contextmanager
def _called(model: nn.Module) -> Iterator[set[nn.Module]]:
    """A context manager that collects the modules of `model` that run inside the `with` block."""
    called: set[nn.Module] = set()
    hooks = [module.register_forward_hook(lambda own, *_: called.add(own)) for module in model.modules()]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def _drop_unused(model: nn.Module, called: set[nn.Module]) -> None:
    """Free the weights of the towers for images and sound, which a model that takes only text does not need. These are
    the parts that are a PreTrainedModel themselves and have no module in `called`."""
    for part in [*model.modules()]:
        if part is not model and isinstance(part, PreTrainedModel) and called.isdisjoint(part.modules()):
            for tensor in (*part.parameters(), *part.buffers()):
                tensor.data = tensor.data.new_empty(0)


class _PackedLinear(nn.Module):
    """Replaces an nn.Linear by Banyan's `Linear`. n_bits: the number of bits to which its weight is rounded; 0: it is
    not rounded."""

    def __init__(self, linear: nn.Linear, n_bits: int) -> None:
        super().__init__()
        weight, bias = linear.weight.data, None if linear.bias is None else linear.bias.data
        self.packed = Linear(quantise(weight, n_bits) if n_bits else weight, bias, dtype=weight.dtype)
        self.weight = weight.new_empty(0)  # some code reads its dtype

    def forward(self, x: Tensor) -> Tensor:
        y = self.packed(x.reshape(-1, x.shape[-1]).contiguous())
        return y.view(*x.shape[:-1], y.shape[-1])


def _round(model: nn.Module, n_bits: int, kept: set[nn.Module]) -> None:
    """Round the weight of each nn.Linear to n_bits, except in the modules in `kept`. The embedding is not rounded, even
    if the output head has the same weight.

    The eager model then has the same weights as the packed one, so their logits can be compared. When `_pack` rounds
    the weights again, this changes nothing.
    """
    for module in model.modules():
        if type(module) is nn.Linear and module not in kept:
            weight = module.weight.data
            module.weight = nn.Parameter(quantise(weight, n_bits).dequantise(weight.dtype), requires_grad=False)


def _pack(
    model: nn.Module, called: set[nn.Module], device: torch.device, n_bits: int, experts: dict[nn.Module, Gate],
    keep: Callable[[Tensor], Tensor | Grouped] | None,
) -> None:  # fmt: skip
    """Replace each module of experts by `PackedExperts`, and each nn.Linear in `called` by a `_PackedLinear`. On a GPU,
    linear layers are replaced only if they are rounded.

    called: the modules that ran in a forward pass. (Of other modules, transformers' code may read the weight directly.)
    n_bits: bits to which weights are rounded; 0: not rounded. keep: converts the weights of experts that are not
    rounded; None: they stay unchanged.
    """
    exact: Callable[[Tensor], Tensor | Grouped] = (lambda weight: weight) if keep is None else keep
    moe.pack_experts(model, experts, partial(quantise, n_bits=n_bits) if n_bits else exact)
    if device.type != "cpu" and not n_bits:
        return
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if type(child) is nn.Linear and child in called:
                setattr(parent, name, _PackedLinear(child, n_bits))


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Computes attention over KV pages. transformers calls it for each layer, because it is in transformers' registry.
    query, key, value: [1, heads, n_rows, dim]. Returns the output [1, n_rows, heads, dim], and None for the attention
    weights."""
    step = _STEP.get()
    layer = module.layer_idx
    if layer not in step.kv:
        raise Unsupported(
            f"{step.spec.family}: its config says that layer {layer} has no attention, but the layer calls it"
        )
    rule = step.rules.get(layer)
    if rule is None or attention_mask is not None:
        rule = step.rules[layer] = _rule(module, key, value, attention_mask, options, step)
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    absorbed = module.kv_b_proj if step.spec.latent_dim else None
    query = query if absorbed is None else absorbed.queries(query)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [n_rows, heads, head_dim]
    if getattr(module, "is_scaled_by_position", False):  # Llama 4
        n_floors = ((step.ragged.position + 1.0) / module.floor_scale).floor()
        q = (q * (n_floors.log1p() * module.attn_scale + 1.0)[:, None, None]).to(q.dtype)
    n_heads, n_kv_heads, v_dim, sinks = q.shape[1], k.shape[1], v.shape[2], options.get("s_aux")
    k_pool, v_pool = step.kv[layer]
    n_pool, dim = k_pool.shape[2:]
    if (n_kv_heads, k.shape[2], v_dim) != (n_pool, dim, v_pool.shape[3]):
        more = n_pool - n_kv_heads
        q = F.pad(q.reshape(len(q), n_kv_heads, -1, q.shape[2]), (0, dim - q.shape[2], 0, 0, 0, more)).flatten(1, 2)
        k, v = (F.pad(x, (0, dim - x.shape[2], 0, more)) for x in (k, v))
        sinks = sinks if sinks is None else F.pad(sinks, (0, q.shape[1] - n_heads))
    dtype = q.dtype if isinstance(k_pool, Quantized) else k_pool.dtype
    q, k, v = (x.contiguous().to(dtype) for x in (q, k, v))
    batch = (rule.in_chunks and step.ragged.local) or step.ragged.seen_in(rule.window)
    ops.write_kv(k, v, k_pool, v_pool, batch.slots)
    out = ops.attention(q, k_pool, v_pool, batch, AttentionOptions(scale, rule.softcap, rule.window, sinks))
    if step.images is not None and step.images.blocks:
        attend_blocks(out, q, k_pool, v_pool, step.images.blocks, scale, rule.window)
    out = out[:, :n_heads, :v_dim].to(query.dtype)
    return (out if absorbed is None else absorbed.outputs(out))[None], None


# Options of attention calls that we pass on, that the attention rule covers, or that only other kernels read.
_KNOWN_OPTIONS = {"scaling", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "dropout"} | {
    "logits_to_keep"
}


def _rule(
    module: Any, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any], step: HfStep
) -> AttentionRule:
    """Derive the attention rule of a layer from the arguments of its first call to attention. mask: what `_mask`
    returned. Unsupported: the layer needs something that paged attention cannot do; the message says what."""
    name = type(module).__name__
    n_pool, dim = step.kv[module.layer_idx][0].shape[2:]
    if k.shape[1] > n_pool or max(k.shape[3], v.shape[3]) > dim or k.shape[1] != v.shape[1]:
        raise Unsupported(
            f"{name}: layer {module.layer_idx} has {k.shape[1]} key-value heads of {k.shape[3]} and {v.shape[3]}, but "
            f"config.json says at most {n_pool} of {dim}"
        )
    given = [key for key, value in options.items() if value is not None and value is not False]
    if unknown := [key for key in given if key not in _KNOWN_OPTIONS]:
        raise Unsupported(f"{name}: its attention takes {', '.join(unknown)}, which paged attention does not support")
    if options.get("is_causal") is False:
        raise Unsupported(f"{name}: its attention is not causal")
    if mask is None or mask.shape != (1, 1, 1, 1):
        raise Unsupported(f"{name}: it makes its own attention mask, so its rule cannot be read")
    window = int(mask)
    return AttentionRule(max(window, 0), options.get("softcap") or 0.0, window < 0)


def _mask(*, mask_function: Callable[..., Tensor], device: torch.device | None = None, **_: Any) -> Tensor:
    """Find the window of a layer, and return it as a tensor [1, 1, 1, 1] in place of a mask. 0: a token attends to all
    tokens up to itself. -1: only to those of its chunk. Unsupported: the mask is neither of these nor a sliding window.

    mask_function comes from transformers: (batch, head, query, key) -> whether the query attends to the key. It is
    evaluated for the last two positions of the context. With full attention, the last position attends to one token
    more than the position before it. With a window, both attend to the same number of tokens.
    """
    step = _STEP.get()
    last = step.spec.max_context - 1
    keys = torch.arange(last + 2, device=device)
    zero = torch.tensor(0, device=device)
    rows = (last - 1, last)
    seen = [mask_function(zero, zero, torch.tensor(row, device=device), keys).expand(len(keys)) for row in rows]
    chunk = step.spec.chunk
    if 0 < chunk < last and all(
        torch.equal(visible, (keys >= row // chunk * chunk) & (keys <= row))
        for row, visible in zip(rows, seen, strict=True)
    ):
        return torch.full((1, 1, 1, 1), -1.0, device=device)
    counts = [int(visible.sum()) for visible in seen]
    for row, visible, count in zip(rows, seen, counts, strict=True):
        if not torch.equal(visible, (keys > row - count) & (keys <= row)):
            raise Unsupported(f"{step.spec.family}: its attention mask is neither causal nor a causal window")
    if counts == [last, last + 1]:
        return torch.zeros(1, 1, 1, 1, device=device)
    if counts[0] != counts[1]:
        raise Unsupported(f"{step.spec.family}: its attention mask is no causal window")
    return torch.full((1, 1, 1, 1), float(counts[0]), device=device)


AttentionInterface.register(_PAGED, _attention)  # no mask function has this name, so no mask is built
AttentionInterface.register(_PROBING, _attention)
AttentionMaskInterface.register(_PROBING, _mask)


def read_spec(path: Path, common: dict[str, Any]) -> ModelSpec:
    """Read the spec of an architecture that transformers computes from the config.json in `path`. common: the fields
    name, family, eos_ids and n_parameters of the spec.

    Unsupported: config.json alone shows that paged attention cannot run the model. BadModel: config.json is invalid.
    """
    family = common["family"]
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as e:  # config classes raise anything
        if family not in transformers.CONFIG_MAPPING:
            raise Unsupported(f"transformers {transformers.__version__} knows no model_type {family!r}") from e
        raise BadModel(f"{path / 'config.json'}: {e}") from e
    text = config.get_text_config()
    kv_layers = _kv_layers(text)
    _check(config, text, family, kv_layers)
    n_heads = _largest(text, "num_attention_heads") if kv_layers != () else text.hidden_size
    head_dim = max(_largest(text, name) for name in _HEAD_DIMS) or text.hidden_size // n_heads
    latent_dim = 0
    if getattr(text, "kv_lora_rank", None):
        if text.qk_rope_head_dim and latent.has_latents(auto_class(config)._model_mapping[type(config)]):
            latent_dim, n_kv_heads, head_dim = text.kv_lora_rank, 1, text.kv_lora_rank + text.qk_rope_head_dim
        else:  # latents become keys and values of all heads before attention
            n_kv_heads, head_dim = n_heads, max(text.qk_nope_head_dim + text.qk_rope_head_dim, text.v_head_dim)
    elif getattr(text, "multi_query", False):
        n_kv_heads = 1
    else:
        n_kv_heads = max(_largest(text, name) for name in _KV_HEADS) or n_heads
    if kv_layers == ():  # no layer has keys and values
        n_kv_heads = head_dim = 1
    return ModelSpec(
        n_layers=text.num_hidden_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        hidden=text.hidden_size,
        vocab_size=text.vocab_size,
        max_context=_max_context(path, text) or _UNBOUNDED,
        dtype=dtype_name(config.dtype or text.dtype),
        n_experts=_n_experts(text),
        kv_layers=kv_layers,
        chunk=getattr(text, "attention_chunk_size", None) or 0,
        windows=_windows(text) if kv_layers is None else (),
        latent_dim=latent_dim,
        **common,
    )


def _max_context(path: Path, config: Any) -> int:
    """The longest context that config.json allows, in tokens; 0: it names no limit. BadModel: it has invalid
    numbers."""
    longest, rope = _largest(config, "max_position_embeddings"), getattr(config, "rope_parameters", None) or {}
    try:
        if rope.get("rope_type") == "yarn":  # if layers differ in rope, its keys are kinds of layers
            longest = max(longest, int(rope["original_max_position_embeddings"] * float(rope["factor"])))
        if config.model_type in ("cohere", "cohere2"):  # Command R has 8192, but was trained for model_max_length
            longest = max(longest, getattr(config, "model_max_length", None) or 0)
    except (TypeError, ValueError, KeyError, OverflowError) as e:
        raise BadModel(f"{path / 'config.json'}: invalid numbers in rope_parameters or model_max_length: {e}") from e
    return longest


def _windows(config: Any) -> tuple[int, ...]:
    """The sliding window of each layer in tokens, according to config.json; 0: none. (): no layer has one. config.json
    may lack windows that the model has; `HfModel.probe` finds these."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = _largest(config, "sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds) if window else ()


def _kv_layers(config: Any) -> tuple[int, ...] | None:
    """The numbers of the layers with attention, for a model in which other layers have a recurrent state. None: no
    layer of the model has a recurrent state."""
    try:
        layers = DynamicCache(config=config).layers
        if any(isinstance(layer, cache_utils.LinearAttentionLayer) for layer in layers):
            return tuple(i for i, layer in enumerate(layers) if isinstance(layer, cache_utils.DynamicLayer))
    except Exception:  # a kind of layer that no cache has, or a release of transformers without such layers
        pass
    return None


def _largest(config: Any, name: str) -> int:
    """The field `name` of a config, a number. If the layers differ in it, the largest; if there is no such field, 0."""
    try:
        return getattr(config, name, None) or 0
    except Exception:  # if layers differ, transformers refuses to read it for the whole model
        return max(getattr(layer, name, None) or 0 for layer in config.per_layer_config)


def _n_experts(config: Any) -> int:
    return next((int(n) for name in _EXPERTS if (n := getattr(config, name, None))), 0)


def auto_class(config: Any) -> Any:
    """The auto class of transformers that makes the model; None if the model is not a language model. A model that also
    takes images counts as a language model."""
    return next(
        (auto for auto in (AutoModelForCausalLM, AutoModelForImageTextToText) if type(config) in auto._model_mapping),
        None,
    )


def _check(config: Any, text: Any, family: str, kv_layers: tuple[int, ...] | None) -> None:
    if (auto := auto_class(config)) is None:
        raise Unsupported(f"{family} is not a causal language model in transformers")
    kinds = set(getattr(text, "layer_types", None) or ())
    unknown = kinds - (_ATTENTION if kv_layers is None else _ATTENTION | _RECURRENT)
    is_stateful = getattr(auto._model_mapping[type(config)], "_is_stateful", False) and not (kinds and not unknown)
    what = f"layers of kind {', '.join(sorted(unknown))}" if unknown else ""
    if is_stateful and kv_layers is None:
        what = "a model whose layers keep a recurrent state in their own cache"
    if what:
        experts = "a mixture-of-experts model; " if _n_experts(text) else ""
        raise Unsupported(f"{family}: {experts}{what} is not supported; `banyan models` lists the models that can run")
    attention = () if kv_layers == () else ("num_attention_heads", "max_position_embeddings")
    for name in ("num_hidden_layers", "hidden_size", "vocab_size", *attention):
        if not _largest(text, name):
            raise Unsupported(f"{family}: its config has no {name}")


def _beside_text(model: Any) -> set[nn.Module]:
    """The modules of a multimodal model that do not take part in computing text, such as a vision tower."""
    return set(model.modules()) - {*model.get_decoder().modules(), model.get_output_embeddings()}


def build_empty(
    spec: ModelSpec, path: Path, device: torch.device, dtype: torch.dtype, n_bits: int, keeps_fp4: bool
) -> nn.Module:
    """Make the same module as `build`, but with undefined tensor contents and without reading weights. For a CPU, call
    this inside a FakeTensorMode."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    config.__dict__.pop("quantization_config", None)
    with torch.device("meta"):
        model: nn.Module = auto_class(config).from_config(config, dtype=dtype, attn_implementation="eager")
    if spec.images is not None:
        called = set(model.modules()) - _beside_text(model)
    else:
        own = [id(config), id(config.get_text_config())]
        towers = [part for part in model.modules() if isinstance(part, PreTrainedModel) and id(part.config) not in own]
        called = set(model.modules()).difference(*(tower.modules() for tower in towers))
        _drop_unused(model, called)
    moved: dict[int, Tensor] = {}  # tensor on the meta device -> new tensor, so that tied weights stay tied
    for module in model.modules():
        parts: Any
        for parts in (module._parameters, module._buffers):
            for name, old in parts.items():
                if old is not None and id(old) not in moved:
                    new = torch.empty_like(old, device=device)
                    moved[id(old)] = nn.Parameter(new, requires_grad=False) if isinstance(old, nn.Parameter) else new
                parts[name] = moved.get(id(old))
    with unset_fake_temporarily():
        experts = moe.gates(model)
    if spec.latent_dim:
        latent.absorb(model)
    _pack(model, called, device, n_bits, experts, partial(regroup, is_known=True) if keeps_fp4 else None)
    return model


def build(
    spec: ModelSpec,
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    context: int,
    n_bits: int,
    keeps_fp4: bool,
    progress: Progress | None,
) -> HfModel:
    """Load a model with transformers, which also renames and fuses the weights. Then probe the model, and return it.
    Unsupported: the probe failed, or the checkpoint has weights that the model does not use. BadModel: the checkpoint
    cannot be loaded.

    Quantised weights are dequantised first. keeps_fp4: whether experts that are stored in MXFP4 are then quantised to
    MXFP4 again, which loses nothing. n_bits: bits to which weights are rounded; 0: not rounded.
    """
    model: Any
    info: dict[str, Any]
    n_bytes = Checkpoint(path).n_bytes
    options = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True}
    with _reported(progress, n_bytes):
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
            auto = auto_class(config)
            if spec.quantisation is not None:
                model, info = _from_few_bits(auto, config, path, spec.quantisation, options)
            else:
                model, info = auto.from_pretrained(  # returns (model, info)
                    path, use_safetensors=True, local_files_only=True, trust_remote_code=False, **options
                )
        except (RuntimeError, ValueError, OSError) as e:
            raise BadModel(f"{path}: transformers cannot load it: {e}") from e
    if missing := sorted(info["missing_keys"]):
        raise BadModel(f"{path} has no tensor {', '.join(missing[:4])} ({len(missing)} are missing)")
    if unused := sorted(info["unexpected_keys"]):
        raise Unsupported(f"{path} has weights that {type(model).__name__} does not use: {', '.join(unused[:4])}")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.to(device, copy=True)  # transformers returns views of the files
    model.eval()
    _freeze_rope(model, context)
    hf_model = HfModel(msgspec.structs.replace(spec, dtype=str(dtype).removeprefix("torch.")), model, context)
    hf_model.probe(n_bits, keeps_fp4)
    return hf_model


def _from_few_bits(
    auto: Any, config: Any, path: Path, quantisation: Quantisation, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Load a quantised checkpoint. Returns the model, and transformers' info about the loading.

    Banyan's own readers dequantise the weights. If transformers read the files, it would need the package that wrote
    them, and often a GPU.
    """
    config.__dict__.pop("quantization_config", None)
    with Checkpoint(path) as weights:
        tensors = state_dict(weights, quantisation, options["dtype"])
    model, info = auto._model_mapping[type(config)].from_pretrained(None, config=config, state_dict=tensors, **options)
    info["unexpected_keys"] = [  # older GPTQ checkpoints have biases of zeros
        name for name in info["unexpected_keys"] if not name.endswith(".bias") or tensors[name].any()
    ]
    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise Unsupported(
            f"{config.model_type} stores its weights transposed, which is not supported for quantised checkpoints; "
            "load one in 16 bits"
        )
    return model, info


def _freeze_rope(model: nn.Module, context: int) -> None:
    """Fix the RoPE frequencies of a model for contexts of up to `context` tokens. transformers would choose them anew
    for each batch, by its longest sequence, so cached keys would become wrong."""
    module: Any
    for module in model.modules():
        kinds = getattr(module, "rope_type", "default")
        per_layer = kinds if isinstance(kinds, dict) else {"": kinds}
        dynamic = {kind for kind in per_layer.values() if kind == "longrope" or "dynamic" in kind}
        if not dynamic:
            continue
        parameters = module.config.rope_parameters
        has_scales = parameters.keys() & {"short_mscale", "long_mscale"}
        if len(per_layer) > 1 or (has_scales and module.config.model_type != "phimoe"):
            raise Unsupported(f"{type(module).__name__}: rope of kind {', '.join(dynamic)} with unknown parameters")
        if has_scales:
            # phimoe reads its config in each call, and takes the short factors at any length, though it was trained
            # with the long factors beyond the original context.
            kind = "long" if context > parameters["original_max_position_embeddings"] else "short"
            for name in ("factor", "mscale"):
                parameters[f"short_{name}"] = parameters[f"long_{name}"] = parameters[f"{kind}_{name}"]
        elif dynamic == {"longrope"}:
            frequencies, module.attention_scaling = ROPE_INIT_FUNCTIONS["longrope"](module.config, seq_len=context)
            module.inv_freq.copy_(frequencies)
        module.rope_type = "default"


def _freeze_temperature(model: nn.Module) -> None:
    """Turn off transformers' scaling of queries by their position, if the model has it. transformers counts positions
    from the start of the batch, which is wrong if the KV before it is cached. `_attention` scales the queries
    instead."""
    module: Any
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
            module.attn_temperature_tuning, module.is_scaled_by_position = False, True


@contextmanager
def _reported(progress: Progress | None, n_bytes: int) -> Iterator[None]:
    """A context manager that reports the progress of transformers' loading to `progress`, instead of showing
    transformers' own progress bar. n_bytes: the size of the checkpoint."""

    def hook(factory: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Iterator[Any]:
        items = list(args[0])
        for i, item in enumerate(items):
            yield item
            if progress is not None:
                progress(n_bytes * (i + 1) // len(items), n_bytes)

    if not hasattr(logging, "set_tqdm_hook"):  # the first releases of transformers 5 draw their own bar
        yield
        if progress is not None:
            progress(n_bytes, n_bytes)
        return
    previous = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(previous)
