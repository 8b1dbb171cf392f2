"""Training samples, and the chat template that makes their text, in Python and in Jinja. Both give the same text.

The template is append-only: the text of the first n messages is a prefix of the text of all of them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pocket.tools import Function, Tool

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
TOOLS_OPEN, TOOLS_CLOSE = "<tools>", "</tools>"
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
GENERATE = f"{START}assistant\n"

TEMPLATE = """\
{%- macro type_of(schema, defs) -%}
{%- set one = (schema.anyOf or [schema]) | rejectattr("type", "equalto", "null") | first or {} -%}
{%- set one = defs[one["$ref"].split("/") | last] or {"type": "object"} if one["$ref"] is string else one -%}
{%- set types = [one.type] if one.type is string else one.type if one.type is sequence else [] -%}
{{ types | reject("equalto", "null") | first or ("object" if one.properties else "string") }}
{%- endmacro -%}
{%- macro one_tool(tool) -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{"name": {{ f.name | tojson }}, "description": {{ (f.description or "") | tojson }}, "parameters": {
{%- set parameters = f.parameters or {} -%}
{%- set properties = parameters.properties if parameters.properties is defined else parameters -%}
{%- for name, schema in properties.items() -%}
{{ name | tojson }}: {{ (schema if schema is string else type_of(schema, parameters["$defs"] or {})) | tojson }}
{%- if not loop.last %}, {% endif -%}
{%- endfor -%}
}}
{%- endmacro -%}
{%- set has_system = messages and messages[0].role == "system" -%}
{%- if has_system or tools -%}
<|im_start|>system
{% if has_system %}{{ messages[0].content }}{% endif -%}
{%- if tools -%}
{%- if has_system and messages[0].content %}{{ "\\n" }}{% endif -%}
<tools>{{ "\\n" }}
{%- for tool in tools %}{{ one_tool(tool) }}{{ "\\n" }}{% endfor -%}
</tools>
{%- endif -%}
<|im_end|>{{ "\\n" }}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and has_system) -%}
<|im_start|>{{ message.role }}{{ "\\n" }}
{%- if message.content %}{{ message.content }}{% endif -%}
{%- for call in message.tool_calls or [] -%}
{%- set f = call.function if call.function is defined else call -%}
<tool_call>{"name": {{ f.name | tojson }}, "arguments": {{ "" -}}
{{ f.arguments if f.arguments is string else f.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>{{ "\\n" }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant{{ "\\n" }}
{%- endif -%}
"""


class Target(str):
    """Text inside a prompt that can be predicted from the text before it; it is trained on like an answer."""

    __slots__ = ()


Content = str | tuple[str, ...]
Message = Mapping[str, Any]


class Span(NamedTuple):
    """A piece of a sample's text. is_target: the model must generate it."""

    text: str
    is_target: bool


@dataclass(frozen=True)
class Sample:
    """A conversation (`messages`, `tools`) or, if `plain` is not empty, text without a template.

    `functions` are the real functions of the tools. `answers[i]` is text that the last assistant turn before user turn
    i + 1 must contain (only in the family "tools"; the other families are scored by the exact text).
    """

    family: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    plain: Content = ()
    functions: Mapping[str, Function] = field(default_factory=dict)
    answers: tuple[str, ...] = ()

    def spans(self) -> list[Span]:
        return _pieces(self.plain) if self.plain else render(self.messages, self.tools)


def _pieces(content: Content) -> list[Span]:
    parts = (content,) if isinstance(content, str) else content
    return [Span(str(part), isinstance(part, Target)) for part in parts]


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """An assistant turn that calls one tool."""
    written = json.dumps(arguments, ensure_ascii=False)
    return f'{CALL_OPEN}{{"name": {json.dumps(name)}, "arguments": {written}}}{CALL_CLOSE}'


def parse_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The first tool call of an assistant turn; None if there is no well-formed one."""
    _, opened, rest = text.partition(CALL_OPEN)
    body, closed, _ = rest.partition(CALL_CLOSE)
    if not (opened and closed):
        return None
    try:
        call = json.loads(body)
        return str(call["name"]), dict(call["arguments"])
    except (ValueError, TypeError, KeyError):
        return None


def system_text(content: str, tools: Iterable[Tool]) -> str:
    """The content of a system message with a tool list in it, as the template writes it for `tools=`."""
    lines = [content] if content else []
    return "\n".join([*lines, TOOLS_OPEN, *(tool.line for tool in tools), TOOLS_CLOSE])


def render(messages: Iterable[Message], tools: tuple[Tool, ...] = ()) -> list[Span]:
    """The text of a conversation as spans; joined, they are the output of `TEMPLATE`."""
    turns = list(messages)
    spans: list[Span] = []
    if tools:
        has_system = bool(turns) and turns[0]["role"] == "system"
        content = system_text(turns[0]["content"] if has_system else "", tools)
        turns[: int(has_system)] = [{"role": "system", "content": content}]
    for turn in turns:
        spans.append(Span(f"{START}{turn['role']}\n", False))
        content = turn.get("content") or ""
        if turn["role"] == "assistant":
            calls = "".join(call_text(call["name"], call["arguments"]) for call in turn.get("tool_calls", ()))
            spans.append(Span(f"{content}{calls}{END}", not turn.get("is_given", False)))
        else:
            spans += [*_pieces(content), Span(END, False)]
        spans.append(Span("\n", False))
    return spans
