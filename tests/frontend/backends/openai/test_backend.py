"""OpenAI's API as a backend, with a fake server on this machine. No network."""

from __future__ import annotations

import datetime
import enum
import gc
import json
import re
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import pytest

import banyan as bn
from banyan.backends.openai.backend import served
from banyan.runtime.protocol import wire
from forks import in_child
from waits import wait_until

pytest.importorskip("openai")


@bn.function
def chat(s: bn.State, **options: Any) -> None:
    s += bn.system("Be brief.") + bn.user("6*7?") + bn.assistant(bn.gen("a", **options))


@bn.function
def plain(s: bn.State, **options: Any) -> None:
    s += "6*7=" + bn.gen("a", **options)


def run(program: Any, backend: Any, stream: bool = False, **options: Any) -> bn.State:
    """Runs the program with options for its gen."""
    state: bn.State = program.bind(**options).run(opts=bn.Options(backend=backend, stream=stream))
    return state


# ---- chat ----------------------------------------------------------------------------------------------------------


def test_chat_template_cannot_be_assigned(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match=r"give it to the constructor, bn.OpenAI"):
        backend.chat_template = "chatml"


def test_conversation_is_sent_as_messages(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat(f"answer {len(body['messages'])}"))

    @bn.function
    def conversation(s: bn.State) -> None:
        s += bn.system("Be brief.") + bn.user("one") + bn.assistant(bn.gen("a", max_tokens=9) + ".")
        s += bn.user(["two ", s.ref("a")]) + bn.assistant(bn.gen("b", temperature=0, stop="\n"))

    state = conversation.run(backend=backend)
    assert (state["a"], state["b"]) == ("answer 2", "answer 4")
    first, second = api.bodies
    assert first == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}],
        "max_tokens": 9,
    }
    assert second["messages"][2:] == [
        {"role": "assistant", "content": "answer 2."},
        {"role": "user", "content": "two answer 2"},
    ]
    assert (second["temperature"], second["stop"], second["max_tokens"]) == (0, ["\n"], 128)
    assert api.paths == ["/v1/chat/completions"] * 2
    assert api.headers[0]["authorization"] == "Bearer key"
    assert state.messages()[-1] == {"role": "assistant", "content": "answer 4"}
    assert "answer 2.<|im_end|>" in state.text()


def test_forks_send_concurrent_requests(serve: Any, fake: ModuleType) -> None:
    gate = threading.Barrier(4, timeout=30)

    def answer(path: str, body: Any) -> Any:
        gate.wait()
        return fake.chat(body["messages"][-1]["content"])

    _, backend = serve(answer)

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(4)
        forks += [bn.user(f"{i}") + bn.assistant(bn.gen("a")) for i in range(4)]
        forks.join()

    assert program.run(backend=backend)["a"] == ["0", "1", "2", "3"]


def test_max_in_flight_limits_concurrent_requests(serve: Any, fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        time.sleep(0.02)
        return fake.chat("x")

    api, backend = serve(answer, max_in_flight=3)
    states = chat.run_batch([()] * 20, backend=backend)
    assert [s["a"] for s in states] == ["x"] * 20
    assert api.n_most == 3


def chunk(text: str | None = None, *, index: int = 0, finish: str | None = None, **delta: Any) -> Any:
    choice = {"index": index, "finish_reason": finish, "delta": {"content": text, **delta}}
    return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def test_stream_has_pieces_usage_and_times(serve: Any) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    usage["prompt_tokens_details"] = {"cached_tokens": 4}  # type: ignore[assignment]
    last = chunk() | {"choices": [], "usage": usage}
    gate = threading.Event()

    def chunks(path: str, body: Any) -> Any:
        yield chunk("One")
        gate.wait(30)
        yield from [chunk(" two"), chunk("other", index=1), chunk(finish="length"), last]

    api, backend = serve(chunks)
    state = run(chat, backend, stream=True, n=2)
    pieces = state.text_iter("a")
    assert next(pieces) == "One", "the first piece arrives before the rest"
    gate.set()
    assert list(pieces) == [" two"]
    assert state["a"] == ["One two", "other"]
    assert api.bodies[0]["stream_options"] == {"include_usage": True}
    assert api.bodies[0]["n"] == 2
    assert (state.usage.prompt, state.usage.cached, state.usage.generated) == (9, 4, 3)
    assert state.get_meta_info("a")[0]["finish_reason"] == {"type": "length", "length": 0}
    times = state._record.program.future(0).result().times
    assert times.ready < times.first < times.ended


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model_type", [None, "deepseek-r1"])
@pytest.mark.parametrize("fields", [("reasoning_content",), ("reasoning",), ("reasoning_content", "reasoning")])
def test_reasoning_that_the_server_separated_is_kept(
    serve: Any, fake: ModuleType, fields: tuple[str, ...], model_type: str | None, stream: bool
) -> None:
    def answer(path: str, body: Any) -> Any:
        if not stream:
            return fake.chat("42", **dict.fromkeys(fields, "six times seven"))
        parts = [chunk(None, **dict.fromkeys(fields, text)) for text in ("six times", " seven")]
        return [chunk(""), *parts, chunk("4"), chunk("2", finish="stop")]

    api, backend = serve(answer)

    @bn.function
    def ask(s: bn.State) -> None:
        s += bn.user("6*7?") + bn.separate_reasoning(bn.assistant(bn.gen("x")), model_type=model_type)
        s += bn.user("Sure?") + bn.assistant(bn.gen("y"))

    state = ask.run(backend=backend, stream=stream)
    if stream:
        assert list(state.text_iter("x_reasoning_content")) == ["six times", " seven"]
        assert list(state.text_iter("x")) == ["4", "2"]
        assert list(state.text_iter("y")) == ["4", "2"], "without separate_reasoning the stream has no thoughts"
    assert (state["x"], state["x_reasoning_content"], state["y"]) == ("42", "six times seven", "42")
    assert api.bodies[1]["messages"][1] == {"role": "assistant", "content": "42"}
    samples = [state._record.program.future(ref).result().samples[0] for ref in (0, 1)]
    assert [sample.reasoning for sample in samples] == ["six times seven", ""]


@pytest.mark.parametrize("model_type", [None, "deepseek-r1"])
def test_sample_without_reasoning_is_an_answer_beside_one_with(serve: Any, fake: ModuleType, model_type: Any) -> None:
    body = fake.chat("42", "43")
    body["choices"][1]["message"]["reasoning_content"] = "and one"
    _, backend = serve(lambda path, _: body)

    @bn.function
    def ask(s: bn.State) -> None:
        s += bn.user("6*7?") + bn.separate_reasoning(bn.assistant(bn.gen("x", n=2)), model_type)

    state = ask.run(backend=backend)
    assert (state["x"], state["x_reasoning_content"]) == (["42", "43"], ["", "and one"])


@pytest.mark.parametrize("stream", [False, True])
def test_fewer_choices_than_asked_for_are_an_error(stream: bool, serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: [chunk("One", finish="stop")] if stream else fake.chat("One"))
    with pytest.raises(bn.ProgramError, match="asked for 2 choices, but it answered with 1"):
        run(chat, backend, stream=stream, n=2)["a"]


def test_response_has_samples_logprobs_and_usage(serve: Any, fake: ModuleType) -> None:
    other = {"token": "5", "logprob": -2.0, "bytes": None}
    content = [{"token": "4", "logprob": -0.1, "bytes": None, "top_logprobs": [other]}]
    response = fake.chat("4", "4", usage={"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10})
    for choice in response["choices"]:
        choice["logprobs"] = {"content": content}
    api, backend = serve(lambda path, body: response)
    state = run(chat, backend, n=2, return_logprob=True, top_logprobs_num=1, return_text_in_logprobs=True)
    assert state["a"] == ["4", "4"]
    assert (api.bodies[0]["logprobs"], api.bodies[0]["top_logprobs"]) == (True, 1)
    for meta in state.get_meta_info("a"):
        assert meta["output_token_logprobs"] == [(-0.1, -1, "4")]
        assert meta["output_top_logprobs"] == [[(-2.0, -1, "5")]]
        assert meta["completion_tokens"] == 1
    assert (backend.token_usage.prompt_tokens, backend.token_usage.completion_tokens) == (8, 2)
    assert bn.get_server_info(backend)["requests"] == 1
    backend.token_usage.reset()
    assert repr(backend.token_usage) == "TokenUsage(prompt_tokens=0, completion_tokens=0)"


def test_token_usage_sums_over_a_batch(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"))
    chat.run_batch([()] * 50, backend=backend)
    assert (backend.token_usage.prompt_tokens, backend.token_usage.n_requests) == (450, 50)


def test_json_schema_is_sent_as_response_format(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat('{"x": 1}'))
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    gen = wire.Gen(0, 0, wire.Sampling(constraint=wire.ConstraintSpec("json_schema", json.dumps(schema))))
    program = backend.program()
    program.submit([wire.Append(0, (wire.BeginTurn("assistant"),)), gen])
    assert program.future(0).result(30).samples[0].text == '{"x": 1}'
    assert api.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema, "strict": True},
    }


class Color(enum.Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "schema", "answer", "text", "value"),
    [
        ({"type": int}, {"type": "integer"}, '{"value": 42}', "42", 42),
        ({"dtype": int}, {"type": "integer"}, '{\n "value": 42.0}', "42", 42),
        ({"type": float}, {"type": "number"}, '{"value": -1.5}', "-1.5", -1.5),
        ({"type": bool}, {"type": "string", "enum": ["True", "False"]}, '{"value": "False"}', "False", False),
        ({"dtype": bool}, {"type": "string", "enum": ["True", "False"]}, '{"value": "True"}', "True", True),
        ({"type": Literal["a b", 2]}, {"type": "string", "enum": ["a b", "2"]}, '{"value": "2"}', "2", 2),
        ({"type": Color}, {"type": "string", "enum": ["red", "dark blue"]}, '{"value": "dark blue"}', "dark blue",
         Color.DARK_BLUE),
        ({"type": int}, {"type": "integer"}, "42", "42", 42),
    ],
    ids=str,
)  # fmt: skip
def test_type_of_plain_text_is_sent_as_the_schema_of_an_object(
    serve: Any, fake: ModuleType, options: Any, schema: Any, answer: str, text: str, value: Any, stream: bool
) -> None:
    api, backend = serve(lambda path, body: fake.chat(answer))

    @bn.function
    def ask(s: bn.State) -> None:
        s += bn.user("?") + bn.assistant(bn.gen("x", **options))

    state = ask.run(backend=backend, stream=stream)
    if stream:
        assert list(state.text_iter("x")) == [text]
    assert (state["x"], state.value("x"), state.messages()[-1]["content"]) == (text, value, text)
    sent = api.bodies[0]["response_format"]["json_schema"]["schema"]
    assert sent == {
        "type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False
    }  # fmt: skip
    assert "stop" not in api.bodies[0]


def test_limit_of_a_value_of_plain_text_leaves_room_for_its_object(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat('{"value": 1234}'))
    assert chat.bind(type=int, max_tokens=4).run(backend=backend).value("a") == 1234
    chat.bind(max_tokens=4).run(backend=backend).sync()
    chat.bind(type=int, max_tokens=4096).run(backend=backend).sync()  # maybe the most that the model takes
    assert [body["max_tokens"] for body in api.bodies] == [4 + 16, 4, 4096]


@pytest.mark.parametrize("answer", ["null", "NaN", "1e400", "-Infinity", "[1]", "true"])
def test_value_that_is_no_finite_number_is_a_bad_output(serve: Any, fake: ModuleType, answer: str) -> None:
    _, backend = serve(lambda path, body: fake.chat(f'{{"value": {answer}}}'))
    for kind in (float, int, Literal["None", 2]):
        with pytest.raises(bn.BadOutput):
            chat.bind(type=kind).run(backend=backend).value("a")


def test_invalid_answer_for_a_type_of_plain_text_is_a_bad_output(serve: Any, fake: ModuleType) -> None:
    answers = ['{"value": "forty"}', '{"value": null}', '{"valu', "about forty"]
    api, backend = serve(lambda path, body: fake.chat(answers[len(api.bodies) - 1]))
    for answer in answers:
        with pytest.raises(bn.BadOutput, match="not a valid int"):
            chat.bind(type=int).run(backend=backend).value("a")
        assert api.bodies[-1]["response_format"], answer
    with pytest.raises(bn.Unsupported, match=r"regex: .*json_schema=, or a type= that is written as JSON"):
        chat.bind(type=datetime.date).run(backend=backend)["a"]
    with pytest.raises(bn.Unsupported, match="regex"):
        plain.bind(type=int).run(backend=serve(lambda path, body: fake.completion("4"), is_chat_model=False)[1])["a"]


def test_refusal_raises_program_error(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat(None, refusal="I cannot help with that."))
    with pytest.raises(bn.ProgramError, match="the model refused: I cannot") as raised:
        chat.run(backend=backend)["a"]
    assert raised.value.gen == "a"


# ---- tools ---------------------------------------------------------------------------------------------------------

SPEC = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_sent_and_their_results_returned(serve: Any, fake: ModuleType, stream: bool) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

    def answer(path: str, body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return [chunk("3"), chunk(finish="stop")] if stream else fake.chat("3")
        if stream:
            first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}
            return [
                chunk(tool_calls=[first]),
                chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
                chunk(finish="tool_calls"),
            ]
        return fake.chat(None, finish="tool_calls", tool_calls=[call])

    api, backend = serve(answer)
    program = backend.program()
    called: list[wire.Called] = []

    def execute(message: wire.Called) -> None:
        called.append(message)
        program.submit([wire.Results(0, 0, message.round, ("three",))])

    program.on_call(0, execute)
    tools = wire.Tools((json.dumps(SPEC),), max_rounds=1)
    turn = (wire.BeginTurn("user"), "1+2?", wire.EndTurn(), wire.BeginTurn("assistant"))
    program.submit([wire.Append(0, turn), wire.Gen(0, 0, tools=tools, stream=stream)])
    value = program.future(0).result(30)
    assert value.samples[0].text == "3"
    assert [c.calls for c in called] == [(wire.WireToolCall("c1", "add", '{"a": 1}'),)]
    first, second = api.bodies
    assert first["tools"] == second["tools"] == [SPEC]
    assert "tool_choice" not in first
    assert second["tool_choice"] == "none", "the last round must answer"
    assert second["messages"] == [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "three"},
    ]
    if not stream:
        assert value.usage == wire.TokenUsage(18, 0, 4), "the sum of both rounds"


def test_conversation_with_calls_has_their_text(serve: Any, fake: ModuleType) -> None:
    @bn.tool
    def price(item: str) -> float:
        "The price of an item."
        return 24.5

    def answer(path: str, body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return fake.chat("It costs 24.5.")
        called = {"name": "price", "arguments": '{"item": "lamp"}'}
        return fake.chat(
            "Let me see.", finish="tool_calls", tool_calls=[{"id": "c", "type": "function", "function": called}]
        )

    api, backend = serve(answer)

    @bn.function
    def ask(s: bn.State) -> None:
        s += bn.user("A lamp?") + bn.assistant(bn.gen("a", tools=[price]))

    state = ask.run(backend=backend)
    turn = 'Let me see.<tool_call>{"name": "price", "arguments": {"item": "lamp"}}</tool_call>'
    assert [message["content"] for message in state.messages()] == ["A lamp?", turn, "24.5", "It costs 24.5."]
    assert turn in state.text()
    assert api.bodies[1]["messages"][1]["content"] == "Let me see."
    assert api.bodies[1]["messages"][1]["tool_calls"][0]["function"]["name"] == "price"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_a_gen_without_tools_are_ignored(serve: Any, fake: ModuleType, stream: bool) -> None:
    calls = [{"index": 0, "id": "c", "type": "function", "function": {"name": "price", "arguments": "{}"}}]
    answer = [chunk("Hi", tool_calls=calls), chunk(finish="stop")] if stream else fake.chat("Hi", tool_calls=calls)
    _, backend = serve(lambda path, body: answer)
    assert chat.run(backend=backend, stream=stream)["a"] == "Hi"


def test_tool_calls_beyond_max_rounds_raise(serve: Any, fake: ModuleType) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    _, backend = serve(lambda path, body: fake.chat(None, tool_calls=[call]))
    program = backend.program()
    program.on_call(0, lambda m: program.submit([wire.Results(0, 0, m.round, ("x",))]))
    tools = wire.Tools((json.dumps(SPEC),), max_rounds=2)
    program.submit([wire.Append(0, (wire.BeginTurn("assistant"),)), wire.Gen(0, 0, tools=tools)])
    with pytest.raises(bn.ToolError, match=r"still calls tools \(add\) after 2 rounds"):
        program.future(0).result(30)


# ---- completions ---------------------------------------------------------------------------------------------------


def test_completion_model_receives_the_prompt_as_text(serve: Any, fake: ModuleType) -> None:
    logprobs = {"tokens": ["4", "2"], "token_logprobs": [-0.5, -0.25], "text_offset": [4, 5]}
    logprobs["top_logprobs"] = [{"5": -1.5}, {}]
    api, backend = serve(lambda path, body: fake.completion("42", logprobs=[logprobs]), is_chat_model=False)
    state = run(plain, backend, return_logprob=True, top_logprobs_num=1)
    assert state.text() == "6*7=42"
    assert api.paths == ["/v1/completions"]
    assert api.bodies == [{"model": "m", "prompt": "6*7=", "max_tokens": 128, "logprobs": 1}]
    meta = state.get_meta_info("a")
    assert meta["output_token_logprobs"] == [(-0.5, -1, None), (-0.25, -1, None)]
    assert meta["finish_reason"] == {"type": "length", "length": 3}


def test_completion_is_streamed(serve: Any, fake: ModuleType) -> None:
    chunks = [fake.completion(text) for text in ("for", "ty", "-two")]
    _, backend = serve(lambda path, body: chunks, is_chat_model=False)
    state = run(plain, backend, stream=True)
    assert list(state.text_iter("a")) == ["for", "ty", "-two"]


@pytest.mark.parametrize(
    ("template", "prompt", "stop"),
    [
        ("chatml", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"),
        ({"user": ("U:", "\n"), "assistant": ("A:", "</s>")}, "U:hi\nA:", "</s>"),
    ],
)
def test_turns_need_a_chat_template_on_a_completion_model(
    serve: Any, fake: ModuleType, template: Any, prompt: str, stop: str
) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("hi") + bn.assistant(bn.gen("a"))

    api, backend = serve(lambda path, body: fake.completion("x"), is_chat_model=False, chat_template=template)
    assert program.run(backend=backend)["a"] == "x"
    assert api.bodies[0]["prompt"] == prompt
    assert api.bodies[0]["stop"] == [stop]
    for own, sent in (("x", ["x", stop]), (["a", stop, "b", "c", "d"], ["a", stop, "b", "c", "d"])):
        program.run(stop=own, backend=backend)["a"]
        assert api.bodies[-1]["stop"] == sent
    with pytest.raises(bn.Unsupported, match=f"stop: .* takes 4 strings, and {re.escape(repr(stop))}, which ends"):
        program.run(stop=["a", "b", "c", "d"], backend=backend)["a"]
    _, without = serve(lambda path, body: fake.completion("x"), is_chat_model=False)
    with pytest.raises(bn.BadProgram, match="no chat template"):
        program.run(backend=without)["a"]


def test_kind_of_model_follows_from_its_name() -> None:
    kinds = {name: bn.OpenAI(name, api_key="x").kind for name in ("gpt-4o", "gpt-3.5-turbo-instruct")}
    assert kinds == {"gpt-4o": "chat", "gpt-3.5-turbo-instruct": "completion"}
    assert "<OpenAI gpt-4o (chat) at https://api.openai.com" in repr(bn.OpenAI("gpt-4o", api_key="x"))


# ---- select --------------------------------------------------------------------------------------------------------


@bn.function
def choose(s: bn.State, method: str = bn.token_length_normalized, temperature: float = 0.0) -> None:
    s += "The sky is" + bn.select("c", [" blue", " green today"], temperature, method, seed=3)  # type: ignore[arg-type]


LOGPROBS = {" blue": -1.0, " green": -3.0, " today": 0.0, "is": -0.5, " sky": -0.5, " is": -0.5}
UNCONDITIONAL_LOGPROBS = {" blue": -0.5, " green": -4.0, " today": -4.0}


@pytest.mark.parametrize(
    ("method", "chosen", "normalized"),
    [
        (bn.token_length_normalized, " blue", [-1.0, -1.5]),
        (bn.greedy_token_selection, " blue", [-1.0, -1.5]),
        (bn.unconditional_likelihood_normalized, " green today", [-1.0, -1.5]),
    ],
)
def test_select_scores_its_choices(
    serve: Any, fake: ModuleType, method: str, chosen: str, normalized: list[float]
) -> None:
    def answer(path: str, body: Any) -> Any:
        assert (body["echo"], body["max_tokens"]) == (True, 0)
        is_unconditional = not body["prompt"][0].startswith("The")
        response = [
            fake.scored(p, lambda t: UNCONDITIONAL_LOGPROBS[t] if is_unconditional else LOGPROBS[t])
            for p in body["prompt"]
        ]
        return fake.completion(*body["prompt"], logprobs=response)

    api, backend = serve(answer, is_chat_model=False)
    state = choose.run(method, backend=backend)
    assert state["c"] == chosen
    meta = state.get_meta_info("c")
    assert meta["normalized_prompt_logprobs"] == normalized
    assert len(api.bodies) == 1 + (method == bn.unconditional_likelihood_normalized)
    assert meta["input_token_logprobs"][0] == [(-1.0, -1, None)]


def test_select_samples_at_a_temperature(serve: Any, fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        return fake.completion(*body["prompt"], logprobs=[fake.scored(p, LOGPROBS.__getitem__) for p in body["prompt"]])

    _, backend = serve(answer, is_chat_model=False)
    state = choose.run(temperature=0.5, backend=backend)
    assert state["c"] in (" blue", " green today")
    assert sum(state.get_meta_info("c")["weights"]) == pytest.approx(1.0)
    assert 0.5 < state.get_meta_info("c")["weights"][0] < 1


def test_select_without_logprobs_raises(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.completion("x", "y"), is_chat_model=False)
    with pytest.raises(bn.ProgramError, match="no log-probabilities of the prompt"):
        choose.run(backend=backend)["c"]

    def answer(path: str, body: Any) -> Any:
        scored = [fake.scored(p, LOGPROBS.__getitem__) for p in body["prompt"] if p.startswith("The")]
        return fake.completion(*body["prompt"], logprobs=scored or None)

    _, backend = serve(answer, is_chat_model=False)
    with pytest.raises(bn.ProgramError, match="no log-probabilities of the prompt"):
        choose.run(bn.unconditional_likelihood_normalized, backend=backend)["c"]


def test_chat_model_selects_with_a_schema(serve: Any, fake: ModuleType) -> None:
    answers = ['{"choice": "no"}', '{"choice": "maybe"}', "yes"]
    api, backend = serve(lambda path, body: fake.chat(answers[len(api.bodies) - 1]))

    @bn.function
    def program(s: bn.State, method: str = bn.token_length_normalized) -> None:
        s += bn.user("?") + bn.assistant(bn.select("c", ["yes", "no"], choices_method=method))  # type: ignore[arg-type]

    assert program.run(backend=backend)["c"] == "no"
    schema = api.bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["choice"]["enum"] == ["yes", "no"]
    assert api.bodies[0]["temperature"] == 0
    for _ in range(2):
        with pytest.raises(bn.ProgramError, match="should have answered with one of the choices"):
            program.run(backend=backend)["c"]
    with pytest.raises(bn.Unsupported, match="use greedy_token_selection"):
        program.run(bn.unconditional_likelihood_normalized, backend=backend)["c"]


def test_cancel_closes_the_request(serve: Any, fake: ModuleType) -> None:
    def slow(path: str, body: Any) -> Any:
        for _ in range(200):
            yield chunk("x")
            yield 0.05
        finished.append(True)

    finished: list[bool] = []
    api, backend = serve(slow)
    state = run(chat, backend, stream=True)
    assert next(iter(state.text_iter("a"))) == "x"
    state.cancel()
    with pytest.raises(bn.Cancelled):
        state["a"]
    wait_until(lambda: not api.n_active, "the end of the answer")
    assert not finished


PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc33"
    "0000000049454e44ae426082"
)


def test_images_are_parts_of_a_message(serve: Any, fake: ModuleType) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("What is this? " + bn.image(PIXEL) + " Be brief.") + bn.assistant(bn.gen("a"))

    api, backend = serve(lambda path, body: fake.chat("a dot"))
    assert program.run(backend=backend)["a"] == "a dot"
    before, image, after = api.bodies[0]["messages"][0]["content"]
    assert (before, after) == ({"type": "text", "text": "What is this? "}, {"type": "text", "text": " Be brief."})
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    _, text_only = serve(lambda path, body: fake.completion("x"), is_chat_model=False, chat_template="chatml")
    with pytest.raises(bn.Unsupported, match="image"):
        program.run(backend=text_only)["a"]
    direct = text_only.program()
    direct.submit([wire.Append(0, (wire.Image(PIXEL, "image/png"),)), wire.Gen(0, 0)])
    with pytest.raises(bn.Unsupported, match=r"^image: OpenAI's completion API"):
        direct.future(0).result(30)


def test_invalid_answer_is_requested_again(serve: Any, fake: ModuleType) -> None:
    answers = ["not json", '{"x": 1}']
    api, backend = serve(lambda path, body: fake.chat(answers[len(api.bodies) - 1]))

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("?") + bn.assistant(bn.gen("a", type=dict[str, int], retries=2))

    state = program.run(backend=backend)
    assert state.value("a") == {"x": 1}
    assert [m["role"] for m in api.bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert api.bodies[1]["messages"][1]["content"] == "not json"
    assert state.messages() == [{"role": "user", "content": "?"}, {"role": "assistant", "content": '{"x": 1}'}]


MODELS = {"object": "list", "data": [{"id": "served", "object": "model", "created": 0, "owned_by": "x"}]}


def test_http_endpoint_uses_the_model_that_the_server_lists(serve: Callable[..., Any], fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        if path == "/v1/models":
            return MODELS
        return fake.chat("yes")

    api, _ = serve(answer)
    for url in (api.url, api.url.removesuffix("/v1"), api.url + "/"):
        with pytest.warns(UserWarning, match="is not Banyan's.*chat API: text.*regex.*banyan serve --http"):
            found = bn.RuntimeEndpoint(url, api_key="secret")
        with found as backend:
            assert isinstance(backend, bn.OpenAI)
            assert backend.model_name == "served"
            state = bn.function(lambda s: s.user("Q") + s.assistant(bn.gen("x", top_k=5))).run(backend=backend)
            assert state["x"] == "yes"
    assert api.bodies[-1]["top_k"] == 5, "an option of compatible servers"
    assert all(headers["authorization"] == "Bearer secret" for headers in api.headers)


def test_http_endpoint_takes_the_completion_api_where_there_is_no_other(
    serve: Callable[..., Any], fake: ModuleType
) -> None:
    def answer(path: str, body: Any) -> Any:
        if path == "/v1/models":
            return MODELS
        raise fake.Refusal(404)

    api, _ = serve(answer)
    with pytest.warns(UserWarning, match="completion API: turns need.*chat_template"):
        backend = bn.RuntimeEndpoint(api.url)
    assert "text" not in backend.refuses
    backend.close()


def test_http_endpoint_without_models_raises(serve: Callable[..., Any], fake: ModuleType) -> None:
    api, _ = serve(lambda path, body: {"object": "list", "data": []})
    with pytest.raises(bn.ModelNotFound, match="lists no model"):
        bn.RuntimeEndpoint(api.url)

    def refuse(path: str, body: Any) -> Any:
        raise fake.Refusal(404)

    api, _ = serve(refuse)
    with pytest.raises(bn.ConnectFailed, match="does not list its models"):
        bn.RuntimeEndpoint(api.url)


def test_timeout_of_an_endpoint_holds_for_its_look_ups_together(serve: Callable[..., Any], fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        time.sleep(0.4)
        return MODELS

    api, _ = serve(answer)
    with pytest.raises(bn.ConnectFailed, match=r"no answer in time|cannot be reached"):
        served(api.url, timeout=0.6)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_leaves_the_requests_of_its_parent_alone(serve: Any, fake: ModuleType) -> None:
    asked, go = threading.Event(), threading.Event()

    def answer(path: str, body: Any) -> Any:
        text = body["messages"][-1]["content"]
        if text == "parent":
            asked.set()
            assert go.wait(30)
        return fake.chat(text)

    _, backend = serve(answer)

    @bn.function
    def program(s: bn.State, text: str) -> None:
        s += bn.user(text) + bn.assistant(bn.gen("x"))

    state = program.run("parent", backend=backend)
    assert asked.wait(30)

    def work() -> list[str]:
        texts = [program.run("child", backend=backend)["x"]]
        try:
            state.text()
        except bn.RuntimeLost as e:
            texts.append(str(e))
        state.cancel()
        backend.close()
        gc.collect()
        return texts

    own, lost = in_child(work)
    assert own == "child"
    assert "is its fork" in lost
    go.set()
    assert state["x"] == "parent"


# ---- servers that answer in their own ways ---------------------------------------------------------------------------


def call(name: str | None, arguments: str, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


CALLS_IN_CHUNKS = {
    "no index": [[call("f", "{}", id="a")], [call("g", "{}", id="b")]],
    "index 0 for each": [[call("f", "{}", id="a", index=0)], [call("g", "{}", id="b", index=0)]],
    "no ids": [[call("f", "{", index=0)], [call(None, "}", index=0)], [call("g", "{}", index=0)]],
    "the name again": [[call("f", "{", id="a", index=0)], [call("f", "}", id="a", index=0)],
                       [call("g", "{}", id="b", index=1)]],
    "the rest without index": [[call("f", "{", id="a")], [call(None, "}")], [call("g", "{}", id="b")]],
    "an id for each part": [[call("f", "{", id="a", index=0)], [call(None, "}", id="c", index=0)],
                            [call("g", "{}", id="b", index=1)]],
}  # fmt: skip


@pytest.mark.parametrize("chunks", CALLS_IN_CHUNKS.values(), ids=CALLS_IN_CHUNKS)
def test_calls_in_odd_chunks_stay_apart(serve: Any, chunks: list[Any]) -> None:
    made: list[str] = []

    @bn.tool
    def f() -> str:
        """Do it."""
        made.append("f")
        return "f's"

    @bn.tool
    def g() -> str:
        """Do it."""
        made.append("g")
        return "g's"

    def answer(path: str, body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return [chunk("done", finish="stop")]
        return [chunk(tool_calls=calls) for calls in chunks]

    api, backend = serve(answer)
    state = run(chat, backend, stream=True, tools=[f, g])
    assert state["a"] == "done"
    assert sorted(made) == ["f", "g"]
    called, *results = api.bodies[1]["messages"][2:]
    ids = [one["id"] for one in called["tool_calls"]]
    assert [one["tool_call_id"] for one in results] == ids
    assert len(set(ids) - {""}) == 2
    assert [one["content"] for one in results] == ["f's", "g's"]


def test_calls_of_a_whole_answer_are_told_apart_by_their_place(serve: Any, fake: ModuleType) -> None:
    calls = [call("f", "{}", id="a", index=0), call("f", "{}", id="b", index=0)]

    @bn.tool
    def f() -> str:
        """Do it."""
        return "f's"

    def answer(path: str, body: Any) -> Any:
        is_second = body["messages"][-1]["role"] == "tool"
        return fake.chat("done") if is_second else fake.chat("", tool_calls=calls, finish="tool_calls")

    api, backend = serve(answer)
    assert run(chat, backend, tools=[f])["a"] == "done"
    assert [one["tool_call_id"] for one in api.bodies[1]["messages"][3:]] == ["a", "b"]


def test_chunks_without_choices_or_text_are_skipped(serve: Any) -> None:
    usage = chunk() | {"choices": None, "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}
    filtered = chunk() | {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}]}
    _, backend = serve(lambda path, body: [chunk("42", finish="stop"), filtered, usage])
    assert run(chat, backend, stream=True)["a"] == "42"


def test_error_with_the_status_of_a_success_is_named(serve: Any) -> None:
    _, backend = serve(lambda path, body: {"error": {"message": "no credits"}})
    with pytest.raises(bn.ProgramError, match="no credits"):
        run(chat, backend)["a"]


def test_completion_without_logprobs_of_its_tokens_is_read(serve: Any, fake: ModuleType) -> None:
    logprobs = {"tokens": ["4"], "token_logprobs": None, "top_logprobs": None, "text_offset": None}
    _, backend = serve(lambda path, body: fake.completion("42", logprobs=[logprobs]), is_chat_model=False)
    assert run(plain, backend)["a"] == "42"


def test_turn_keeps_its_options_and_its_text_before_a_call(serve: Any, fake: ModuleType) -> None:
    @bn.tool
    def f() -> str:
        """Do it."""
        return "f's"

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant("So: " + bn.gen("a", top_k=5) + bn.gen("b", tools=[f]))

    def answer(path: str, body: Any) -> Any:
        if "tools" not in body:
            return fake.chat("first ")
        is_second = body["messages"][-1]["role"] == "tool"
        return fake.chat("done") if is_second else fake.chat("", tool_calls=[call("f", "{}", id="a")])

    api, backend = serve(answer, extensions=["prefix", "top_k"])
    assert program.run(backend=backend)["b"] == "done"
    first, _, third = api.bodies
    assert (first["top_k"], first["continue_final_message"]) == (5, True)
    assert third["messages"][1]["content"] == "So: first "
