"""The marks with which reasoning models enclose their reasoning, by SGLang's names of the formats."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from banyan.runtime.protocol.wire import Reasoning

THINK_TAGS: Final = Reasoning()
_FORCED_TAGS = Reasoning(is_forced=True)

REASONING_FORMATS: Final[dict[str, Reasoning]] = {
    **dict.fromkeys(
        ("deepseek-v3", "deepseek-v4", "deepseek-v41", "dots", "glm45", "granite_thinking_parser"), THINK_TAGS
    ),
    **dict.fromkeys(("hunyuan", "interns1", "kimi_k2", "ling3", "mimo", "nanbeige", "nano_v3"), THINK_TAGS),
    **dict.fromkeys(("nemotron_3", "poolside_v1", "qwen3"), THINK_TAGS),
    **dict.fromkeys(("deepseek-r1", "gigachat35", "iquest_q1", "minimax", "minimax-append-think"), _FORCED_TAGS),
    **dict.fromkeys(("qwen3-thinking", "step3", "step3p5"), _FORCED_TAGS),
    "apertus2509": Reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
    **dict.fromkeys(
        ("beam", "gpt-oss"),
        Reasoning("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", answer="<|channel|>final<|message|>"),
    ),
    "cohere_command4": Reasoning(
        "<|START_THINKING|>", "<|END_THINKING|>", is_forced=True, answer="<|START_TEXT|>", close="<|END_TEXT|>"
    ),
    "gemma4": Reasoning("<|channel>thought", "<channel|>"),
    "inkling": Reasoning(
        *("<|content_thinking|>", "<|end_message|><|message_model|>"),
        answer="<|content_text|>",
        close="<|end_message|>",
    ),
    "k2_horizon": Reasoning("<ifm|think>", "</ifm|think>", is_forced=True),
    "kimi": Reasoning("◁think▷", "◁/think▷"),
    "kimi_k3": Reasoning(
        *("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        is_forced=True,
        answer="<|open|>response<|sep|>",
        close="<|close|>response<|sep|>",
    ),
    "minimax-m3": Reasoning("<mm:think>", "</mm:think>"),
    "mistral": Reasoning("[THINK]", "[/THINK]"),
    "muse": Reasoning("to=self<|message|>", "<|eom|><|start|>assistant", answer="to=user<|message|>", close="<|eot|>"),
}
"""SGLang's model type -> how that model marks its reasoning."""


def format_in(template: str) -> Reasoning | None:
    """The format whose marks occur in the source of a chat template; None if there is none, so the model does not
    reason."""
    found = (m for m in REASONING_FORMATS.values() if m.start in template and _is_end_in(m.end, template))
    if (marks := next(found, None)) is None:
        return None
    return replace(marks, is_forced=False)  # a prompt that ends inside the reasoning contains the start mark


def _is_end_in(end: str, template: str) -> bool:
    """Whether an end mark occurs in a chat template. Some end marks also contain the start of the next message, such as
    "<|end|><|start|>assistant". A template writes the two parts in different places, so each part is searched for."""
    return all(part in template for part in re.split(r"(<\|\w+\|>)", end))
