"""`bn.separate_reasoning`: keeps the reasoning of models that think apart from their answers."""

from __future__ import annotations

from msgspec.structs import replace

from banyan.lang.expr import Expression, GenExpr, Seq, leaves
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol.wire import Reasoning

SUFFIX = "_reasoning_content"
"""Appended to the name of a gen, this names the variable with its reasoning."""

_TAGS, _FORCED = Reasoning(), Reasoning(is_forced=True)
_MODELS = {
    **dict.fromkeys(("deepseek-v3", "glm45", "interns1", "kimi_k2", "mimo", "nano_v3", "qwen3"), _TAGS),
    **dict.fromkeys(("deepseek-r1", "minimax", "qwen3-thinking", "step3"), _FORCED),
    "kimi": Reasoning("◁think▷", "◁/think▷"),
}
"""SGLang's model type -> how that model marks its reasoning."""


def separate_reasoning(expr: Expression | None = None, model_type: str | None = None) -> Seq:
    """`expr`, with the reasoning of its gens kept apart.

    Variable x, the prompt and streams get the answer; variable `x_reasoning_content` gets the reasoning.

    model_type: how the model marks its reasoning: "deepseek-r1", "qwen3" and so on; None: <think>...</think>.
    BadProgram: no gen in `expr` has a name. Unsupported: an unknown model type.
    """
    if model_type is not None and model_type not in _MODELS:
        raise Unsupported(f"model_type {model_type!r} is not known; there are {', '.join(sorted(_MODELS))}")
    marks = _TAGS if model_type is None else _MODELS[model_type]
    if expr is None:
        return Seq(())
    flat = leaves(expr)
    if not any(isinstance(leaf, GenExpr) and leaf.name is not None for leaf in flat):
        raise BadProgram("separate_reasoning is given no gen that has a name; put one in it")
    return Seq(tuple(replace(leaf, reasoning=marks) if isinstance(leaf, GenExpr) else leaf for leaf in flat))
