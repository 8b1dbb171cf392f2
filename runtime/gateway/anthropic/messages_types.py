"""The body of POST /v1/messages, and its conversion to the messages of chat completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai import chat_types as chat
from banyan.runtime.gateway.openai.chat_types import Body
from banyan.runtime.protocol.roles import ASSISTANT

PINNED = {"5m": 300.0, "1h": 3600.0}
"""Seconds for which the KV of a conversation with cache_control is pinned."""


class CacheControl(Body):
    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] = "5m"


class TextBlock(Body, tag="text", tag_field="type"):
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class Base64Source(Body, tag="base64", tag_field="type"):
    media_type: str
    data: str


class URLSource(Body, tag="url", tag_field="type"):
    url: str


class ImageBlock(Body, tag="image", tag_field="type"):
    source: Base64Source | URLSource
    cache_control: CacheControl | None = None


class ToolUseBlock(Body, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


class ToolResultBlock(Body, tag="tool_result", tag_field="type"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None
    cache_control: CacheControl | None = None


class ThinkingBlock(Body, tag="thinking", tag_field="type"):
    """Reasoning of an earlier turn. It is not given to the model again."""

    thinking: str
    signature: str = ""


class RedactedThinking(Body, tag="redacted_thinking", tag_field="type"):
    data: str


Block = TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinking


class MessageTurn(Body):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessageTool(Body):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    # Accepted without effect; a header of the response names them.
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class MessageToolChoice(Body):
    """name: the tool, for the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("only the type `tool` takes a name")


class Thinking(Body):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = None
    display: str | None = None


class MessageSchemaFormat(Body):
    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Body):
    effort: str | None = None
    format: MessageSchemaFormat | None = None


class Metadata(Body):
    user_id: str | None = None


class CountRequest(Body, kw_only=True):
    """The body of POST /v1/messages/count_tokens: those fields of a message request that decide its prompt."""

    model: str
    messages: Annotated[list[MessageTurn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    speed: str | None = None
    """Accepted without effect; a header of the response names it."""

    def chat_request(self) -> chat.ChatRequest:
        """The same request in the form of chat completions. If the last message is the assistant's and has no tool
        calls, the output continues it. HTTPError: a block does not fit the role of its message."""
        turns: list[chat.ChatTurn] = []
        if self.system:
            content: Any = self.system if isinstance(self.system, str) else _parts(self.system)
            turns.append(chat.ChatTurn(role="system", content=content))
        for k, one in enumerate(self.messages):
            turns += _turns(one, f"messages[{k}]")
        choice: chat.ToolChoice = None
        match self.tool_choice:
            case MessageToolChoice(name=str(name)):
                choice = chat.NamedTool(function=chat.NamedFunction(name=name))
            case MessageToolChoice(type="any"):
                choice = "required"
            case MessageToolChoice(type="none"):
                choice = "none"
        form = None
        if self.output_config is not None and (asked := self.output_config.format) is not None:
            form = chat.SchemaFormat(json_schema=chat.JSONSchemaFormat(name="output", schema=asked.schema))
        return chat.ChatRequest(
            model=self.model,
            messages=turns,
            continue_final_message=turns[-1].role == ASSISTANT and not turns[-1].tool_calls,
            tools=[
                chat.ToolSpec(
                    function=chat.FunctionSpec(
                        name=one.name, description=one.description, parameters=one.input_schema, strict=one.strict
                    )
                )
                for one in self.tools or ()
            ],
            tool_choice=choice,
            parallel_tool_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
            response_format=form,
        )

    @property
    def pinned(self) -> float:
        """For how many seconds the KV of the conversation is pinned: the longest `ttl` of its cache_control fields, or
        0.0."""
        blocks: list[Any] = [one for turn in self.messages if isinstance(turn.content, list) for one in turn.content]
        results = [one.content for one in blocks if isinstance(one, ToolResultBlock) and isinstance(one.content, list)]
        blocks += [one for result in results for one in result]
        system = self.system if isinstance(self.system, list) else []
        controls = [getattr(one, "cache_control", None) for one in (self, *blocks, *system, *(self.tools or ()))]
        return max((PINNED[one.ttl] for one in controls if one is not None), default=0.0)


class MessageRequest(CountRequest, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: chat.Stops | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    metadata: Metadata | None = None
    thread: dict[str, Any] | None = None
    # Accepted without effect; a header of the response names them.
    service_tier: str | None = None
    inference_geo: str | None = None

    def chat_request(self) -> chat.ChatRequest:
        return replace(
            super().chat_request(),
            stream=self.stream,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k or None,
            user=None if self.metadata is None else self.metadata.user_id,
        )


PROMPT_IGNORED = (
    *("output_config.effort", "messages.content.is_error", "messages.content.citations", "speed"),
    *("tools.eager_input_streaming", "tools.input_examples"),
)
MESSAGE_IGNORED = (*PROMPT_IGNORED, "service_tier", "inference_geo")
THINKING_IGNORED = ("thinking.budget_tokens", "thinking.display")
"""Fields that have no effect here. Of `thinking`, the listed fields have no effect for a model that reasons; for other
models, all of `thinking` has none."""


def _parts(blocks: Sequence[TextBlock | ImageBlock]) -> list[chat.ContentPart]:
    return [chat.TextPart(text=one.text) if isinstance(one, TextBlock) else _image(one) for one in blocks]


def _image(block: ImageBlock) -> chat.ImagePart:
    source = block.source
    url = source.url if isinstance(source, URLSource) else f"data:{source.media_type};base64,{source.data}"
    return chat.ImagePart(image_url=chat.ImageURL(url=url))


def _turns(message: MessageTurn, where: str) -> list[chat.ChatTurn]:
    """Split one message into turns: one for each tool result, then one for all other blocks, if there are any. where:
    the path of the message in the body, for errors. HTTPError: a block does not fit the message's role."""
    if isinstance(message.content, str):
        return [chat.ChatTurn(role=message.role, content=message.content)]
    where = f"{where}.content"
    turns: list[chat.ChatTurn] = []
    parts: list[chat.ContentPart] = []
    calls: list[chat.ToolCallPart] = []
    for k, block in enumerate(message.content):
        is_misplaced = isinstance(block, ToolUseBlock | ToolResultBlock) and (
            (message.role == ASSISTANT) != isinstance(block, ToolUseBlock)
        )
        if is_misplaced:
            raise HTTPError(400, f"a message of the {message.role} must not have such a block", param=f"{where}[{k}]")
        match block:
            case TextBlock() | ImageBlock():
                parts += _parts([block])
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                calls.append(
                    chat.ToolCallPart(id=block.id, function=chat.CalledFunction(name=block.name, arguments=arguments))
                )
            case ToolResultBlock(content=content):
                result: Any = content if isinstance(content, str) or content is None else _parts(content)
                place = f"{where}[{k}]"
                turns.append(
                    chat.ConvertedTurn(role="tool", content=result, tool_call_id=block.tool_use_id, where=place)
                )
    if parts or calls or not turns:
        turns.append(chat.ConvertedTurn(role=message.role, content=parts, tool_calls=calls or None, where=where))
    return turns
