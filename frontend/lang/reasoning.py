"""Gens of models that think before they speak."""

from __future__ import annotations

from msgspec.structs import replace

from banyan.lang.expr import Expression, GenExpr, Seq, leaves
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol.wire import Reasoning

SUFFIX = "_reasoning_content"
"""Behind the name of a gen: the variable that holds what was thought."""

_THINK, _ALWAYS = Reasoning(), Reasoning(is_forced=True)
_MODELS = {
    **dict.fromkeys(("deepseek-v3", "glm45", "interns1", "kimi_k2", "mimo", "nano_v3", "qwen3"), _THINK),
    **dict.fromkeys(("deepseek-r1", "minimax", "qwen3-thinking", "step3"), _ALWAYS),
    "kimi": Reasoning("◁think▷", "◁/think▷"),
}
"""SGLang's names of how models mark their thinking."""


def separate_reasoning(expr: Expression | None = None, model_type: str | None = None) -> Seq:
    """`expr`, with what its gens think told apart: variable x is what the model says, and so is what the prompt and
    streams get; `x_reasoning_content` is what it thought.

    model_type: how the model marks its thinking: "deepseek-r1", "qwen3" and so on; None: <think>...</think>.
    BadProgram: there is no gen with a name in it. Unsupported: a model type that is not known.
    """
    if model_type is not None and model_type not in _MODELS:
        raise Unsupported(f"model_type {model_type!r} is not known; there are {', '.join(sorted(_MODELS))}")
    marks = _THINK if model_type is None else _MODELS[model_type]
    if expr is None:
        return Seq(())
    flat = leaves(expr)
    if not any(isinstance(leaf, GenExpr) and leaf.name is not None for leaf in flat):
        raise BadProgram("separate_reasoning is given no gen that has a name; put one in it")
    return Seq(tuple(replace(leaf, reasoning=marks) if isinstance(leaf, GenExpr) else leaf for leaf in flat))
