"""The body of POST /v1/responses, and its conversion to the messages of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai import chat_types as chat
from banyan.runtime.gateway.openai.chat_types import Body
from banyan.runtime.protocol.roles import ASSISTANT

LOGPROBS = "message.output_text.logprobs"
"""The value of the field `include` that asks for logprobs."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""The limits are OpenAI's."""


class InputText(Body, tag="input_text", tag_field="type"):
    text: str


class OutputText(Body, tag="output_text", tag_field="type"):
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputImage(Body, tag="input_image", tag_field="type"):
    image_url: str
    detail: str | None = None


class ReasoningPart(Body, tag="reasoning_text", tag_field="type"):
    text: str


class SummaryText(Body, tag="summary_text", tag_field="type"):
    text: str


InputPart = InputText | OutputText | chat.RefusalPart | InputImage | ReasoningPart


class InputItem(Body):
    """A message, a call, the output of a call, earlier reasoning, which is not given to the model again, or a reference
    to an item of a stored response."""

    type: Literal["message", "function_call", "function_call_output", "reasoning", "item_reference"] = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[SummaryText] | None = None
    encrypted_content: str | None = None


class FunctionTool(chat.FunctionSpec, tag="function", tag_field="type"):
    pass


class FunctionChoice(Body, tag="function", tag_field="type"):
    name: str


class AllowedFunctions(Body, tag="allowed_tools", tag_field="type"):
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]


class ResponseSchemaFormat(chat.JSONSchemaFormat, tag="json_schema", tag_field="type"):
    pass


class TextOptions(Body):
    format: chat.TextFormat | chat.JSONFormat | ResponseSchemaFormat | None = None
    verbosity: str | None = None


class ResponseStreamOptions(Body):
    include_obfuscation: bool | None = None


class ReasoningOptions(Body):
    """The field `reasoning` of a request. effort: passed to the chat template, if the template reads it. The other
    fields have no effect."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponsePrompt(Body, kw_only=True):
    """The fields of a request that decide the prompt of the response. Alone, they are the body of POST
    /v1/responses/input_tokens."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning: ReasoningOptions | None = None
    # Accepted without effect; a header of the response names them.
    truncation: str | None = None

    def chat_request(self, turns: list[chat.ChatTurn]) -> chat.ChatRequest:
        """A chat request with the messages `turns` and the other fields of this request."""
        choice: chat.ToolChoice = None
        match self.tool_choice:
            case FunctionChoice(name=name):
                choice = chat.NamedTool(function=chat.NamedFunction(name=name))
            case AllowedFunctions(mode=mode, tools=tools):
                named = [chat.NamedTool(function=chat.NamedFunction(name=tool.name)) for tool in tools]
                choice = chat.AllowedTools(allowed_tools=chat.AllowedToolList(mode=mode, tools=named))
            case str(mode):
                choice = mode
        form = self.text.format if self.text is not None else None
        return chat.ChatRequest(
            model=self.model,
            messages=turns,
            tools=[chat.ToolSpec(function=tool) for tool in self.tools or ()],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=chat.SchemaFormat(json_schema=form) if isinstance(form, ResponseSchemaFormat) else form,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
        )


class ResponseRequest(ResponsePrompt, kw_only=True):
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    # Accepted without effect; a header of the response names them.
    service_tier: str | None = None
    max_tool_calls: int | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the response has the logprobs of its text."""
        return self.top_logprobs is not None or LOGPROBS in (self.include or ())

    def chat_request(self, turns: list[chat.ChatTurn]) -> chat.ChatRequest:
        return replace(
            super().chat_request(turns),
            stream=True,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=self.has_logprobs,
            top_logprobs=self.top_logprobs,
            user=self.user,
            safety_identifier=self.safety_identifier,
            prompt_cache_key=self.prompt_cache_key,
        )


PROMPT_IGNORED = (
    *("truncation", "text.verbosity", "input.content.detail"),
    *("reasoning.summary", "reasoning.generate_summary", "reasoning.context", "reasoning.mode"),
)
RESPONSE_IGNORED = (
    *PROMPT_IGNORED,
    *("service_tier", "max_tool_calls", "prompt_cache_retention", "prompt_cache_options"),
    "stream_options.include_obfuscation",
)
"""Fields that are accepted, but have no effect here."""


def turns_of(given: str | Sequence[InputItem]) -> list[chat.ChatTurn]:
    """Convert `given`, the input of a request without references, to messages of chat completions. HTTPError: an item
    is invalid."""
    if isinstance(given, str):
        return [chat.ChatTurn(role="user", content=given)]
    turns: list[chat.ChatTurn] = []
    for k, item in enumerate(given):
        where = f"input[{k}]"
        if item.type == "reasoning":
            continue
        if item.type == "function_call":
            if item.call_id is None or item.name is None:
                raise HTTPError(400, "a function_call must have a call_id and a name", param=where)
            call = chat.ToolCallPart(
                id=item.call_id, function=chat.CalledFunction(name=item.name, arguments=item.arguments or "{}")
            )
            if not turns or turns[-1].role != ASSISTANT:
                turns.append(chat.ConvertedTurn(role=ASSISTANT, where=where))
            turns[-1].tool_calls = [*(turns[-1].tool_calls or ()), call]
        elif item.type == "function_call_output":
            if item.call_id is None or item.output is None:
                raise HTTPError(400, "a function_call_output must have a call_id and an output", param=where)
            content = _content(item.output)
            turns.append(chat.ConvertedTurn(role="tool", content=content, tool_call_id=item.call_id, where=where))
        elif item.role is None:
            raise HTTPError(400, "a message must have a role", param=f"{where}.role")
        else:
            turns.append(chat.ConvertedTurn(role=item.role, content=_content(item.content), where=where))
    return turns


def _content(given: str | list[InputPart] | None) -> str | list[chat.ContentPart] | None:
    if not isinstance(given, list):
        return given
    parts: list[chat.ContentPart] = []
    for part in given:
        match part:
            case InputText() | OutputText():
                parts.append(chat.TextPart(text=part.text))
            case chat.RefusalPart():
                parts.append(chat.TextPart(text=part.refusal))
            case InputImage():
                parts.append(chat.ImagePart(image_url=chat.ImageURL(url=part.image_url)))
    return parts
