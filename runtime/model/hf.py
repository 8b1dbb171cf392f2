"""Any other decoder-only architecture: transformers' own modelling code over our pages.

transformers looks its attention up in a registry (`ALL_ATTENTION_FUNCTIONS`); ours writes K and V to the pools and
reads them back through the page table. Everything else (norms, experts, positions, logit caps) stays their code.

What a layer's attention means is learned from the model itself, once, when it is loaded: the first forward pass runs
with a mask function (`ALL_MASK_ATTENTION_FUNCTIONS`) that receives the rule by which transformers would build the
layer's mask, finds the window in it, and hands that to the layer in the mask's place. Then the paged model must give
the same logits as the model's own eager code on a few tokens, in chunks and beside another request. A rule, option or
state that pages cannot express is an `Unsupported` that names it; what slips through every name is caught by the
comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from banyan.kernels import ops
from banyan.kernels.kv_layout import Pool, Quantized
from banyan.kernels.ops import Ragged, ragged
from banyan.runtime.errors import BadModel, BanyanError, Unsupported
from banyan.runtime.model.facts import DTYPES, ModelSpec
from banyan.runtime.model.weights import Checkpoint, Progress

_PLAIN, _LEARNING = "banyan", "banyan_learning"  # our two names in transformers' registry
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_PROBE = 24  # tokens of the comparison at load
_PROBE_PAGE = 16


class Rule(NamedTuple):
    """What one layer's attention does, as far as it is not told with each call."""

    window: int
    softcap: float


class HfStep(NamedTuple):
    """What our attention function must know of the forward pass that is running."""

    family: str
    ragged: Ragged
    kv: Sequence[tuple[Pool, Pool]]
    rules: dict[int, Rule]  # by layer; filled while learning
    max_context: int


_STEP: ContextVar[HfStep] = ContextVar("step")


class Borrowed:
    """A model whose code is transformers'; see `load.Model` for what `forward` promises."""

    def __init__(self, spec: ModelSpec, model: Any, context: int) -> None:
        self.spec = spec
        self._model = model
        self._context = context
        self.rules: dict[int, Rule] = {}

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(rule.window for rule in self.rules.values())

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: Sequence[tuple[Pool, Pool]], rows: Tensor
    ) -> Tensor:
        token = _STEP.set(HfStep(self.spec.family, ragged, kv, self.rules, self.spec.max_context))
        try:
            out = self._model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=rows,
                return_dict=True,
            )
        finally:
            _STEP.reset(token)
        logits: Tensor = out.logits[0].float()
        return logits

    def learn(self) -> None:
        """Find each layer's rule and compare with the model's own attention; Unsupported where they cannot agree."""
        try:
            self._learn()
        except (BanyanError, torch.OutOfMemoryError):
            raise
        except Exception as e:  # their code was not written for this; what breaks is a reason, not our crash
            raise Unsupported(f"{self.spec.family} cannot run over pages: {type(e).__name__}: {e}") from e

    def _learn(self) -> None:
        s, device, is_exact = self.spec, self._model.device, self._model.dtype == torch.float32
        n = min(_PROBE, s.max_context)
        first = torch.arange(n, device=device) * 7919 % s.vocab_size
        second = (torch.arange(-(-n // 4), device=device) * 104729 + 17) % s.vocab_size
        self._model.set_attn_implementation("eager")
        with torch.inference_mode():
            want = torch.cat([self._model(input_ids=ids[None], use_cache=False).logits[0] for ids in (first, second)])

        n_chunk, n_pages = -(-n // 3), -(-n // _PROBE_PAGE)
        shape = (2 * n_pages, _PROBE_PAGE, s.n_kv_heads, s.head_dim)
        kv = [tuple(torch.zeros(2, *shape, dtype=self._model.dtype, device=device)) for _ in range(s.n_layers)]
        pages = [list(range(n_pages)), list(range(n_pages, 2 * n_pages))]

        def step(ids: list[Tensor], starts: list[int]) -> Tensor:
            q, ends = [len(own) for own in ids], [start + len(own) for own, start in zip(ids, starts, strict=True)]
            positions = torch.cat([torch.arange(*span, device=device) for span in zip(starts, ends, strict=True)])
            batch = ragged(q, ends, pages[: len(ids)], _PROBE_PAGE, device)
            return self.forward(torch.cat(ids), positions, batch, kv, torch.arange(sum(q), device=device))

        self._model.set_attn_implementation(_LEARNING)
        got = [step([first[:n_chunk]], [0])]
        if set(self.rules) != set(range(s.n_layers)):
            raise Unsupported(
                f"{s.family}: {len(self.rules)} of {s.n_layers} layers go through transformers' attention registry; "
                "the others keep their state elsewhere, and pages cannot hold it"
            )
        self._model.set_attn_implementation(_PLAIN)
        got.append(step([first[n_chunk:], second], [n_chunk, 0]))
        off = (torch.cat(got) - want.float()).norm(dim=-1) / want.float().norm(dim=-1)  # one number per row
        # In 16 bits a token may be sent to other experts for a rounding error: there a part's median must be near.
        parts = off.split([n_chunk, n - n_chunk, len(second)])
        worst = float(off.max() if is_exact else max(part.median() for part in parts))
        if not worst < (1e-3 if is_exact else 0.1):  # also false for NaN
            raise Unsupported(
                f"{s.family}: through paged attention its logits differ from transformers' own by {worst:.1%}; "
                "it computes something that the attention registry does not show"
            )
        for layer, rule in self.rules.items():
            if rule.window >= self._context:
                self.rules[layer] = rule._replace(window=0)  # hides nothing: spares a mask


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention signature: query, key, value [1, heads, n_rows, head_dim] -> [1, n_rows, heads, dim]."""
    step = _STEP.get()
    layer = module.layer_idx
    rule = step.rules.get(layer)
    if rule is None or attention_mask is not None:
        rule = step.rules[layer] = _rule(module, query, key, value, attention_mask, options, step)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))  # [n_rows, heads, head_dim]
    k_pool, v_pool = step.kv[layer]
    dtype = q.dtype if isinstance(k_pool, Quantized) else k_pool.dtype
    ops.write_kv(k.to(dtype), v.to(dtype), k_pool, v_pool, step.ragged.slots)
    scale = options.get("scaling")
    out = ops.attention(
        q.to(dtype),
        k_pool,
        v_pool,
        step.ragged,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=rule.softcap,
        window=rule.window,
        sinks=options.get("s_aux"),
    )
    return out[None].to(query.dtype), None


# Options of attention calls that we pass on, that the mask's rule covers, or that only other kernels read.
_KNOWN_OPTIONS = {"scaling", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "dropout"}


def _rule(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any], step: HfStep
) -> Rule:
    """The rule of a layer from the call it makes; Unsupported names what pages or kernels cannot do."""
    name = type(module).__name__
    if v.shape != k.shape:
        raise Unsupported(f"{name}: values of another shape than keys ({list(v.shape)}, {list(k.shape)})")
    pool = step.kv[module.layer_idx][0]
    if k.shape[1::2] != pool.shape[2:]:
        raise Unsupported(
            f"{name}: layer {module.layer_idx} has {k.shape[1]} key-value heads of {k.shape[3]}, but config.json says "
            f"{pool.shape[2]} of {pool.shape[3]}; layers of different shapes are not supported"
        )
    if unknown := [key for key, value in options.items() if key not in _KNOWN_OPTIONS and _is_set(value)]:
        raise Unsupported(f"{name}: its attention takes {', '.join(unknown)}, which paged attention does not know")
    if options.get("is_causal") is False:
        raise Unsupported(f"{name}: its attention is not causal")
    if mask is None or mask.shape != (1, 1, 1, 1):
        raise Unsupported(f"{name}: it makes its attention mask itself, so its rule cannot be read")
    return Rule(int(mask), options.get("softcap") or 0.0)


def _is_set(value: Any) -> bool:
    return value is not None and value is not False


def _mask(*, mask_function: Callable[..., Tensor], device: torch.device | None = None, **_: Any) -> Tensor:
    """In place of a mask, its rule: the window (0: all tokens), as a tensor [1, 1, 1, 1].

    The rule is transformers' function (batch, head, query, key) -> visible, read at the last two rows of the context:
    full attention sees one more token in the second, a window the same number in both, and chunks anything else.
    """
    step = _STEP.get()
    last = step.max_context - 1
    keys = torch.arange(last + 2)
    zero = torch.tensor(0)
    rows = (last - 1, last)
    seen = [mask_function(zero, zero, torch.tensor(row), keys).expand(len(keys)) for row in rows]
    counts = [int(visible.sum()) for visible in seen]
    for row, visible, count in zip(rows, seen, counts, strict=True):
        if not torch.equal(visible, (keys > row - count) & (keys <= row)):
            raise Unsupported(f"{step.family}: its attention mask is neither causal nor a causal window")
    if counts == [last, last + 1]:
        return torch.zeros(1, 1, 1, 1, device=device)
    if counts[0] != counts[1]:
        raise Unsupported(f"{step.family}: its attention mask is no causal window (attention in chunks?)")
    return torch.full((1, 1, 1, 1), float(counts[0]), device=device)


AttentionInterface.register(_PLAIN, _attention)  # without a mask function of that name no mask is built
AttentionInterface.register(_LEARNING, _attention)
AttentionMaskInterface.register(_LEARNING, _mask)


def read_spec(path: Path, common: dict[str, Any]) -> ModelSpec:
    """The spec of an architecture that transformers computes. `common`: name, family, eos_ids, n_parameters.

    Raises Unsupported, naming it, for what can be known without the weights to be beyond pages.
    """
    family = common["family"]
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as e:  # config classes raise what they like
        if family not in transformers.CONFIG_MAPPING:
            raise Unsupported(f"transformers {transformers.__version__} knows no model_type {family!r}") from e
        raise BadModel(f"{path / 'config.json'}: {e}") from e
    _check(config, family)
    n_heads = config.num_attention_heads
    n_kv_heads = 1 if getattr(config, "multi_query", False) else getattr(config, "num_key_value_heads", None) or n_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    dtype = str(config.dtype or "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise Unsupported(f"the checkpoint's dtype is {dtype!r}; known are {', '.join(DTYPES)}")
    return ModelSpec(
        n_layers=config.num_hidden_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        hidden=config.hidden_size,
        vocab_size=config.vocab_size,
        max_context=config.max_position_embeddings,
        dtype=dtype,
        tie_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        **common,
    )


def _check(config: Any, family: str) -> None:
    try:
        architecture = AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise Unsupported(f"{family} is not a causal language model in transformers") from None
    kinds = set(getattr(config, "layer_types", None) or ())
    refused = {
        "its layers keep a recurrent state": getattr(architecture, "_is_stateful", False),
        f"layers of kind {', '.join(sorted(kinds - _KNOWN_LAYERS))}": kinds - _KNOWN_LAYERS,
        "multi-head latent attention (kv_lora_rank)": getattr(config, "kv_lora_rank", None),
        "attention in chunks (attention_chunk_size)": getattr(config, "attention_chunk_size", None),
        "several models in one (" + ", ".join(config.sub_configs) + ")": config.sub_configs,
    }
    for what, is_so in refused.items():
        if is_so:
            raise Unsupported(f"{family}: {what} is not supported")
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings"):
        if not isinstance(getattr(config, name, None), int):
            raise Unsupported(f"{family}: its config does not say {name}")


def build(
    spec: ModelSpec, path: Path, device: torch.device, dtype: torch.dtype, context: int, progress: Progress | None
) -> Borrowed:
    """Load the weights with transformers (which also renames and fuses them), then learn and compare."""
    model: Any
    info: dict[str, Any]
    n_bytes = Checkpoint(path).n_bytes
    with _reported(progress, n_bytes):
        try:
            model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]  # a pair, with the info
                path, dtype=dtype, attn_implementation="eager", use_safetensors=True, local_files_only=True,
                trust_remote_code=False, output_loading_info=True,
            )  # fmt: skip
        except (RuntimeError, ValueError, OSError) as e:
            raise BadModel(f"{path}: transformers cannot load it: {e}") from e
    if missing := sorted(info["missing_keys"]):
        raise BadModel(f"{path} has no tensor {', '.join(missing[:4])} ({len(missing)} are missing)")
    if unused := sorted(info["unexpected_keys"]):
        raise Unsupported(f"{path} has weights that {type(model).__name__} does not use: {', '.join(unused[:4])}")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.to(device, copy=True)  # transformers leaves views of the files
    model.eval()
    _freeze_rope(model, context)
    borrowed = Borrowed(msgspec.structs.replace(spec, dtype=str(dtype).removeprefix("torch.")), model, context)
    borrowed.learn()
    return borrowed


def _freeze_rope(model: nn.Module, context: int) -> None:
    """Choose once what transformers would choose anew by the longest sequence of each batch; see `rope`."""
    module: Any
    for module in model.modules():
        kinds = getattr(module, "rope_type", "default")
        per_layer = kinds if isinstance(kinds, dict) else {"": kinds}
        moving = {kind for kind in per_layer.values() if kind == "longrope" or "dynamic" in kind}
        if not moving:
            continue
        parameters = module.config.rope_parameters
        if len(per_layer) > 1 or parameters.keys() & {"short_mscale", "long_mscale"}:
            raise Unsupported(f"{type(module).__name__}: rope of kind {', '.join(moving)} in a form of its own")
        if moving == {"longrope"}:
            turns, module.attention_scaling = ROPE_INIT_FUNCTIONS["longrope"](module.config, seq_len=context)
            module.inv_freq.copy_(turns)
        module.rope_type = "default"


@contextmanager
def _reported(progress: Progress | None, n_bytes: int) -> Iterator[None]:
    """Tell `progress` how far transformers' own loading is, instead of letting it draw a bar."""

    def hook(factory: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Iterator[Any]:
        items = list(args[0])
        for i, item in enumerate(items):
            yield item
            if progress is not None:
                progress(n_bytes * (i + 1) // len(items), n_bytes)

    if not hasattr(logging, "set_tqdm_hook"):  # the first releases of transformers 5: they draw their own bar
        yield
        if progress is not None:
            progress(n_bytes, n_bytes)
        return
    previous = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(previous)
