"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from banyan.runtime.protocol.limits import MAX_COUNT, MAX_NAME, MAX_STOP, MAX_STOPS

Schema = dict[str, Any] | bool
TokenId = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP)]
Stops = Annotated[list[Stop], Meta(max_length=MAX_STOPS)]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base class of request body types. Unknown fields are rejected."""


class TextPart(Body, tag="text", tag_field="type"):
    """All fields but text have no effect. Clients that also speak Anthropic's API send cache_control. OpenAI's agents
    package for JavaScript sends a text of the model with the other fields of the message in which it came."""

    text: str
    cache_control: dict[str, Any] | None = None
    role: str | None = None
    refusal: None = None
    annotations: list[Any] | None = None
    tool_calls: list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class RefusalPart(Body, tag="refusal", tag_field="type"):
    refusal: str


class ImageURL(Body):
    url: str
    detail: str | None = None


class ImagePart(Body, tag="image_url", tag_field="type"):
    image_url: ImageURL
    cache_control: dict[str, Any] | None = None


ContentPart = TextPart | RefusalPart | ImagePart


class CalledFunction(Body):
    """The function of a tool call. parsed_arguments: has no effect. `parse` of the openai package adds it to its
    result, and clients send it back. provider_specific_fields: see ChatTurn."""

    name: str
    arguments: str
    parsed_arguments: Any = None
    provider_specific_fields: Any = None


class ToolCallPart(Body):
    """A tool call that the assistant made. index: has no effect. Streamed calls have it, and some clients send it
    back. extra_content, provider_specific_fields: see ChatTurn."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None
    extra_content: Any = None
    provider_specific_fields: Any = None


class ChatTurn(Body):
    """One message of the conversation. reasoning_content, reasoning: the reasoning of an earlier turn of the assistant,
    which the model does not get again. parsed: has no effect; `parse` of the openai package adds it. Nor have the
    fields after it: gateways and agents add them to the answers of other models, and send them back to this one."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallPart] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    parsed: Any = None
    id: str | None = None
    phase: str | None = None
    cache_control: dict[str, Any] | None = None
    extra_content: Any = None
    provider_specific_fields: Any = None
    reasoning_details: list[Any] | None = None
    thinking_blocks: list[Any] | None = None


class ConvertedTurn(ChatTurn, kw_only=True):
    """A message that was made from a request of another API. where: the path in that request of what it was made from,
    for errors."""

    where: str


class FunctionSpec(Body):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(Body):
    function: FunctionSpec
    type: Literal["function"] = "function"


class NamedFunction(Body):
    name: str


class NamedTool(Body, tag="function", tag_field="type"):
    function: NamedFunction


class AllowedToolList(Body):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(Body, tag="allowed_tools", tag_field="type"):
    allowed_tools: AllowedToolList


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedTools | None


class JSONSchemaFormat(Body):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(Body, tag="text", tag_field="type"):
    pass


class JSONFormat(Body, tag="json_object", tag_field="type"):
    pass


class SchemaFormat(Body, tag="json_schema", tag_field="type"):
    json_schema: JSONSchemaFormat


class StreamOptions(Body):
    """continuous_usage_stats: vLLM's; with include_usage, each chunk has the usage of its choice so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(Body):
    """vLLM's fields for a constraint, of which one is set. json: a schema, or one as text."""

    json: Schema | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingFields(Body):
    """Fields that the OpenAI endpoints share. The fields from top_k on are not in OpenAI's API. None: not given. ebnf:
    SGLang's name of grammar."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Stops | None = None
    user: str | None = None
    response_format: TextFormat | JSONFormat | SchemaFormat | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: Stop | Stops | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None
    choices: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    # Routers fill these in. Only the default values are accepted.
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    return_hidden_states: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None

    def __post_init__(self) -> None:
        if self.no_stop_trim or self.return_hidden_states:
            raise ValueError("no_stop_trim and return_hidden_states must be false")
        if False in (self.skip_special_tokens, self.separate_reasoning, self.stream_reasoning):
            raise ValueError("skip_special_tokens, separate_reasoning and stream_reasoning must be true")


class ChatRequest(SamplingFields, kw_only=True):
    messages: Annotated[list[ChatTurn], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Accepted without effect; a header of the response names them.
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.add_generation_prompt is False and not self.continue_final_message:  # vLLM requires both
            raise ValueError("`add_generation_prompt` must be true without continue_final_message")


IGNORED = (
    *("metadata", "store", "service_tier", "prompt_cache_retention", "prompt_cache_options"),
    *("verbosity", "prediction", "stream_options.include_obfuscation"),
    *("messages.name", "messages.content.image_url.detail", "messages.content.cache_control"),
    "messages.cache_control",
)
"""Fields that are accepted, but have no effect here."""


class CompletionRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/completions. logprobs: how many alternatives are given for each token."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: None = None


class TokenizeRequest(Body, kw_only=True):
    """The body of POST /tokenize: either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: list[ChatTurn] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Body, kw_only=True):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
