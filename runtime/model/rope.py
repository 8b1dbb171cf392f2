"""Rotary positions (RoPE): the settings in config.json, and the frequencies that follow from them.

The structs need no torch, since the server and the command line read them; `frequencies` imports it when called. Kinds
and formulas follow transformers' ROPE_INIT_FUNCTIONS and the papers: linear scaling (kaiokendev, 2023), YaRN (Peng et
al., 2023, arXiv:2309.00071), LongRoPE (Ding et al., 2024, arXiv:2402.13753), and the piecewise scaling of Llama 3.1.

transformers chooses some frequencies by the longest sequence of a batch, which would invalidate cached keys. A cache
that requests share needs one choice, made when the model is loaded:

* dynamic (NTK): plain rope. The context ends at `max_position_embeddings`; up to there, dynamic and plain rope are
  equal.
* longrope: the long factors for all positions if the configured context is longer than the original one, else the
  short factors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from banyan.runtime.errors import BadModel, Unsupported

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 1e30  # a number of config.json; larger ones, such as infinity, do not convert to int or float32
_Positive = Annotated[float, msgspec.Meta(gt=0, le=_LARGEST)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
_Length = Annotated[int, msgspec.Meta(ge=1)]


class _Scaling(msgspec.Struct, frozen=True, kw_only=True, tag_field="rope_type", forbid_unknown_fields=True):
    rope_theta: _Positive = 10000.0

    def reach(self, trained: int) -> int:
        """The longest context, in tokens, that a model with this scaling supports. trained: the model's
        max_position_embeddings."""
        return trained


class NoScaling(_Scaling, tag="default", frozen=True, kw_only=True):
    pass


class LinearScaling(_Scaling, tag="linear", frozen=True, kw_only=True):
    factor: _Positive

    def reach(self, trained: int) -> int:
        return int(trained * self.factor)


class DynamicScaling(_Scaling, tag="dynamic", frozen=True, kw_only=True):
    factor: _Positive


class Proportional(_Scaling, tag="proportional", frozen=True, kw_only=True):
    factor: _Positive = 1.0
    partial_rotary_factor: _NotNegative = 1.0


class Yarn(_Scaling, tag="yarn", frozen=True, kw_only=True):
    rope_theta: Annotated[float, msgspec.Meta(gt=1, le=_LARGEST)] = 10000.0  # its logarithm is a divisor
    factor: _Positive
    original_max_position_embeddings: _Length
    attention_factor: _NotNegative | None = None
    beta_fast: _NotNegative | None = None
    beta_slow: _NotNegative | None = None
    mscale: _NotNegative | None = None
    mscale_all_dim: _NotNegative | None = None
    truncate: bool = True

    def reach(self, trained: int) -> int:
        return int(self.original_max_position_embeddings * self.factor)


class LongRope(_Scaling, tag="longrope", frozen=True, kw_only=True):
    short_factor: list[_Positive]
    long_factor: list[_Positive]
    original_max_position_embeddings: Annotated[int, msgspec.Meta(ge=2)]  # its logarithm is a divisor
    factor: _Positive
    attention_factor: _NotNegative | None = None


class Llama3(_Scaling, tag="llama3", frozen=True, kw_only=True):
    factor: _Positive
    low_freq_factor: _NotNegative
    high_freq_factor: _NotNegative
    original_max_position_embeddings: _Length

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:  # their difference is a divisor
            raise ValueError(
                f"low_freq_factor is {self.low_freq_factor:g}, but must be less than high_freq_factor, "
                f"{self.high_freq_factor:g}"
            )


Rope = NoScaling | LinearScaling | DynamicScaling | Proportional | Yarn | LongRope | Llama3


def parse_rope(config: dict[str, Any]) -> Rope:
    """The rope settings of a config.json, in the older form (rope_theta, rope_scaling) or the newer (rope_parameters).

    Raises Unsupported for an unknown kind or field, and BadModel for an invalid value.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise BadModel(f"config.json: the rope settings are {given!r}, which is not an object")
    fields = dict(given)
    kind = fields.pop("rope_type", None) or fields.pop("type", None) or "default"
    if not isinstance(kind, str):
        raise BadModel(f"config.json: rope_type is {kind!r}, which is not a string")
    fields.pop("type", None)
    fields = {"rope_type": kind, "rope_theta": config.get("rope_theta") or 10000.0} | fields
    known = {cls.__struct_config__.tag: cls for cls in Rope.__args__}
    if kind not in known:
        raise Unsupported(f"rope_type is {kind!r}; supported: {', '.join(sorted(known))}")
    names = {field.name for field in msgspec.structs.fields(known[kind])}
    if "original_max_position_embeddings" in names:
        trained = config.get("original_max_position_embeddings") or fields.get("original_max_position_embeddings")
        fields["original_max_position_embeddings"] = trained or config.get("max_position_embeddings")
    if kind in ("longrope", "yarn") and fields.get("factor") is None:
        lengths = config.get("max_position_embeddings"), fields["original_max_position_embeddings"]
        if all(isinstance(n, int) and n for n in lengths):  # if not, the conversion to a struct reports what is wrong
            fields["factor"] = lengths[0] / lengths[1]
    if fields.get("partial_rotary_factor") == 1.0:
        del fields["partial_rotary_factor"]
    unknown = sorted(key for key, value in fields.items() if value is not None and key not in names | {"rope_type"})
    if unknown:
        raise Unsupported(f"rope of kind {kind!r} has {', '.join(map(repr, unknown))}, which is not known for it")
    fields = {key: value for key, value in fields.items() if value is not None}
    try:
        rope: Rope = msgspec.convert(fields, Rope)
    except msgspec.ValidationError as e:
        raise BadModel(f"config.json: rope: {e}") from e
    return rope


def frequencies(rope: Rope, dim: int, max_context: int) -> tuple[Tensor, float]:
    """Returns the angle per position for each pair of dimensions, float32 [dim / 2], and the factor on cos and sin.

    max_context: tokens of the longest request, which selects longrope's factors.
    """
    import torch

    n = torch.arange(0, dim, 2, dtype=torch.float32)
    inverse = 1.0 / rope.rope_theta ** (n / dim)  # [dim / 2]
    match rope:
        case LinearScaling():
            return inverse / rope.factor, 1.0
        case Proportional():
            n_rotated = int(rope.partial_rotary_factor * dim // 2)
            return torch.where(torch.arange(dim // 2) < n_rotated, inverse, 0.0) / rope.factor, 1.0
        case Yarn():
            return _yarn(rope, inverse)
        case LongRope():
            is_long = max_context > rope.original_max_position_embeddings
            factors = torch.tensor(rope.long_factor if is_long else rope.short_factor)
            if factors.shape != inverse.shape:
                raise BadModel(f"config.json: rope has {len(factors)} factors, but {len(inverse)} pairs of dimensions")
            return inverse / factors, _longrope_scale(rope)
        case Llama3():
            return _llama3(rope, inverse), 1.0
        case NoScaling() | DynamicScaling():
            return inverse, 1.0


def _yarn(rope: Yarn, inverse: Tensor) -> tuple[Tensor, float]:
    """Returns the frequencies of YaRN, [dim / 2], and the factor on cos and sin. inverse: the unscaled frequencies. Low
    frequencies are divided by `factor`, high ones are kept, and those in between are blended; see sections 3.2 to 3.4
    of the paper."""
    import torch

    dim = 2 * len(inverse)

    def pair_with_turns(n_times: float) -> float:
        turns = rope.original_max_position_embeddings / (n_times * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.rope_theta))

    low, high = pair_with_turns(rope.beta_fast or 32), pair_with_turns(rope.beta_slow or 1)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    slow = ramp.clamp(0, 1)
    return inverse / rope.factor * slow + inverse * (1 - slow), _yarn_scale(rope)


def _yarn_scale(rope: Yarn) -> float:
    def mscale(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale()


def _longrope_scale(rope: LongRope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position_embeddings))


def _llama3(rope: Llama3, inverse: Tensor) -> Tensor:
    """Returns the frequencies of Llama 3.1, [dim / 2]. inverse: the unscaled frequencies. Low frequencies are divided
    by `factor`, high ones are kept, and those in between are blended."""
    wavelengths = 2 * math.pi / inverse
    n_waves = rope.original_max_position_embeddings / wavelengths
    blend = ((n_waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return inverse / rope.factor * (1 - blend) + inverse * blend
