"""/v1/responses, with the openai package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from pocket_answers import ADA_STONE, ANSWER, PARAMETERS, Person

import wire_fuzz
from banyan.runtime import launch
from banyan.runtime.client import client
from banyan.runtime.client.program_futures import ProgramHandle
from banyan.runtime.errors import BadProgram, Cancelled
from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import Handler, HTTPRequest, Reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.gateway import Gateway
from banyan.runtime.gateway.keys import Keys
from banyan.runtime.gateway.openai import response_store, responses
from banyan.runtime.gateway.openai.chat_types import ChatTurn
from banyan.runtime.gateway.openai.responses_types import ResponseRequest
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.protocol import wire
from raw_http import post
from waits import wait_until

CALCULATOR: Any = {
    "type": "function",
    "name": "calculator",
    "description": "Work out an arithmetic expression.",
    "parameters": PARAMETERS,
    "strict": True,
}
ADA = "Extract name, age, city as JSON.\nText: Ada Stone is 41 years old and lives in Lisbon. Ada works as a baker."


def create(client: openai.OpenAI, given: Any = "Hi, who are you?", **options: Any) -> Any:
    return client.responses.create(model="pocket", input=given, **({"temperature": 0} | options))


def test_a_response_that_follows_goes_on_with_the_same_tokens(openai_client: openai.OpenAI) -> None:
    first = create(openai_client)
    assert (first.output_text, first.status, first.usage.output_tokens) == (ANSWER, "completed", 20)
    second = create(openai_client, "Thanks.", previous_response_id=first.id)
    assert second.usage.input_tokens_details.cached_tokens >= 35  # all tokens of the first one
    third = create(openai_client, "Thanks.", previous_response_id=first.id)  # another branch
    assert third.output_text == second.output_text
    changed = create(openai_client, "Thanks.", previous_response_id=first.id, instructions="Be brief.")
    assert changed.usage.input_tokens > second.usage.input_tokens


def test_tool_loop_by_previous_response_and_by_items(openai_client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": [{"type": "input_text", "text": "What is 23 plus 48?"}]}]
    first = create(openai_client, question, tools=[CALCULATOR])
    (call,) = first.output
    assert (call.type, call.name, call.arguments) == ("function_call", "calculator", '{"expression": "23+48"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "71"}
    followed = create(openai_client, [result], previous_response_id=first.id, tools=[CALCULATOR])
    sent_again = create(openai_client, [*question, call.to_dict(), result], tools=[CALCULATOR])
    assert followed.output_text == sent_again.output_text == "The answer is 71."


def test_items_of_stored_responses_are_input_by_reference(openai_client: openai.OpenAI) -> None:
    """The AI SDK of Vercel sends the model's own turns so, and failed from the second turn on."""
    question = [{"role": "user", "content": "What is 23 plus 48?"}]
    first = create(openai_client, question, tools=[CALCULATOR])
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "71"}
    items = [*question, {"type": "item_reference", "id": call.id}, result]
    found = create(openai_client, items, tools=[CALCULATOR])
    assert found.output_text == "The answer is 71."
    said, thanks = {"type": "item_reference", "id": found.output[0].id}, {"role": "user", "content": "Thanks."}
    by_reference = create(openai_client, [*items, said, thanks], tools=[CALCULATOR])
    by_value = create(
        openai_client, [*question, call.to_dict(), result, found.output[0].to_dict(), thanks], tools=[CALCULATOR]
    )
    assert (by_reference.output_text, by_reference.usage.input_tokens) == (
        by_value.output_text,
        by_value.usage.input_tokens,
    )
    counted = openai_client.responses.input_tokens.count(
        model="pocket", input=[*items, said, thanks], tools=[CALCULATOR]
    )
    assert counted.input_tokens == by_value.usage.input_tokens
    changed = {**found.output[0].to_dict(), "content": "No."}  # an item that is sent stays as it is
    one, other = (create(openai_client, [*items, said, item, thanks], max_output_tokens=1) for item in (changed, said))
    assert one.usage.input_tokens < other.usage.input_tokens
    openai_client.responses.delete(found.id)
    with pytest.raises(openai.NotFoundError, match="send the item itself") as raised:
        create(openai_client, [*items, said, thanks], tools=[CALCULATOR])
    assert raised.value.param == "input[3].id"


def test_a_reference_has_an_id_and_leaves_the_items_of_the_request(openai_client: openai.OpenAI) -> None:
    """A reference replaced an item of the request that has the same id."""

    def count(*items: Any) -> int:
        given: Any = [*items, {"role": "user", "content": "Thanks."}]
        return openai_client.responses.input_tokens.count(model="pocket", input=given).input_tokens

    (item,) = create(openai_client).output
    said = {"type": "item_reference", "id": item.id}
    edited = item.to_dict() | {"content": [{"type": "output_text", "text": "No. " * 30}]}
    n_before, n_said, n_edited = count(), count(said), count(edited)
    assert n_edited > n_said
    assert count(edited, said) == count(said, edited) == n_said + n_edited - n_before
    with pytest.raises(openai.BadRequestError, match="must have an id") as raised:
        count({"type": "item_reference"})
    assert raised.value.param == "input[0].id"


def test_the_items_to_which_a_request_refers_count_as_its_body(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of 9 MB with 120,000 references to one item took 880 MB."""
    (item,) = in_process.create()["output"]
    said = {"type": "item_reference", "id": item["id"]}
    monkeypatch.setattr(responses, "MAX_BODY", 5 * len(json.dumps(item)))
    in_process.create(input=[said] * 2)
    with pytest.raises(HTTPError, match="with the items to which it refers") as raised:
        in_process.create(input=[said] * 6)
    assert raised.value.status == 413


def test_items_of_another_tenant_are_not_found(two_tenants: str) -> None:
    with (
        openai.OpenAI(base_url=f"{two_tenants}/v1", api_key="1" * 20) as first,
        openai.OpenAI(base_url=f"{two_tenants}/v1", api_key="2" * 20) as other,
    ):
        (item,) = create(first).output
        ask = [{"type": "item_reference", "id": item.id}, {"role": "user", "content": "Thanks."}]
        assert create(first, ask).output_text
        with pytest.raises(openai.NotFoundError):
            create(other, ask)


def test_only_the_tools_of_a_request_are_in_its_prompt(openai_client: openai.OpenAI) -> None:
    options: Any = {"tools": [CALCULATOR]}
    before = create(openai_client, "What is 23 plus 48?", **options)
    result: Any = [{"type": "function_call_output", "call_id": before.output[0].call_id, "output": "71"}]
    for options in ({}, {"tools": [CALCULATOR]}, {"tools": [CALCULATOR], "tool_choice": "none"}, {}):
        before = create(openai_client, result, previous_response_id=before.id, **options)
        result = "Thanks."
        counted = openai_client.responses.input_tokens.count(
            model="pocket", previous_response_id=before.id, input=result, **options
        )
        after = create(openai_client, result, previous_response_id=before.id, **options)
        assert after.usage.input_tokens == counted.input_tokens, options


def test_events_of_text_and_of_calls(openai_client: openai.OpenAI) -> None:
    with openai_client.responses.stream(model="pocket", input="Hi, who are you?", temperature=0) as stream:
        events = list(stream)
        assert stream.get_final_response().output_text == ANSWER
    assert [one.sequence_number for one in events] == list(range(len(events)))
    kinds = [one.type.removeprefix("response.") for one in events if one.type != "response.output_text.delta"]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    events = list(create(openai_client, "What is 23 plus 48?", tools=[CALCULATOR], stream=True))
    kinds = [one.type.removeprefix("response.") for one in events]
    assert list(dict.fromkeys(kinds)) == [  # drafts decide how many pieces there are
        *("created", "in_progress", "output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]


def test_stream_of_a_call_that_max_tokens_cuts_ends_incomplete(openai_client: openai.OpenAI) -> None:
    question: Any = [{"role": "user", "content": "What is 23 plus 48?"}]
    *events, end = create(openai_client, question, tools=[CALCULATOR], stream=True, max_output_tokens=12)
    pieces = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
    (call,) = end.response.output
    assert (end.type, call.type, call.name, call.status) == (
        "response.incomplete", "function_call", "calculator", "incomplete"
    )  # fmt: skip
    assert "".join(pieces) == call.arguments != ""
    assert '{"expression": "23+48"}'.startswith(call.arguments)
    assert create(openai_client, "Hi, who are you?", previous_response_id=end.response.id).output_text


def test_call_that_turned_out_to_be_invalid_is_incomplete() -> None:
    output: list[dict[str, Any]] = []
    events = responses.ResponseEvents(output, has_logprobs=False)
    for piece in (wire.CallPiece("0", "f"), wire.CallPiece("0", arguments='{"x": 1e999}')):
        events.delta(wire.Delta(0, 0, 0, "", call=piece))
    events.end(wire.Sample("", "stop", calls=(wire.WireToolCall("1", "g", "{}"),)))
    assert [(item["name"], item["status"]) for item in output] == [("f", "incomplete"), ("g", "completed")]


def test_parse_and_logprobs(openai_client: openai.OpenAI) -> None:
    found = openai_client.responses.parse(model="pocket", input=ADA, text_format=Person, temperature=0)
    assert found.output_parsed == ADA_STONE
    cut: Any = create(openai_client, max_output_tokens=3, top_logprobs=1, include=["message.output_text.logprobs"])
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [one.token for one in cut.output[0].content[0].logprobs] == ["I", " am", " the"]


def test_allowed_tools_and_fields_without_effect(openai_client: openai.OpenAI) -> None:
    now = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    found = create(openai_client, "What is 23 plus 48?", tools=[CALCULATOR, now], tool_choice=choice)
    assert [(call.name, call.arguments) for call in found.output] == [("now", "{}")]
    assert found.tool_choice.to_dict() == choice
    raw = openai_client.responses.with_raw_response.create(
        model="pocket",
        input="Hi",
        max_output_tokens=1,
        store=False,
        include=["reasoning.encrypted_content"],
        text={"verbosity": "low"},
    )
    assert raw.headers["x-banyan-ignored"] == "text.verbosity, include"


def test_one_output_may_be_asked_for(openai_client: openai.OpenAI) -> None:
    assert create(openai_client, max_output_tokens=1, extra_body={"n": 1}).status == "incomplete"
    with pytest.raises(openai.BadRequestError, match="`n` is not supported"):
        create(openai_client, extra_body={"n": 2})


def test_times_are_whole_seconds_and_only_a_completed_response_has_its_end(url: str) -> None:
    for n_most, status in ((1, "incomplete"), (40, "completed")):
        body = {"model": "pocket", "input": "Hi, who are you?", "max_output_tokens": n_most, "temperature": 0}
        found = json.loads(post(url, "/v1/responses", body)[1])
        assert (found["status"], type(found["created_at"])) == (status, int)
        assert isinstance(found["completed_at"], int) == (status == "completed")


def test_empty_input_needs_a_previous_response(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        create(openai_client, [])
    assert raised.value.param == "input"
    first = create(openai_client, max_output_tokens=2)
    assert create(openai_client, [], previous_response_id=first.id, max_output_tokens=1).status == "incomplete"


def test_an_unknown_response_is_not_found(url: str) -> None:
    for method in ("GET", "DELETE"):
        status, data = post(url, "/v1/responses/resp_x", b"", method=method)
        error = json.loads(data)["error"]
        assert (status, error["code"]) == (404, "not_found")
        assert "send" not in error["message"]


def test_background_cancel_retrieve_and_delete(openai_client: openai.OpenAI, stats: Callable[[], Any]) -> None:
    begun = create(openai_client, background=True)
    assert begun.status == "in_progress"
    ended = wait_until(lambda: (r := openai_client.responses.retrieve(begun.id)).status == "completed" and r, "the end")
    assert ended.output_text == ANSWER
    openai_client.responses.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(begun.id)
    n_programs = stats()["server"]["programs"]
    long: Any = create(openai_client, background=True, extra_body={"max_output_tokens": 1900})
    assert openai_client.responses.cancel(long.id).status in ("cancelled", "completed")
    openai_client.responses.delete(long.id)
    wait_until(lambda: stats()["server"]["programs"] <= n_programs, "the end of its program", seen=stats)


NUMBERS: Any = {
    "type": "json_schema",
    "name": "numbers",
    "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 600},
}


def test_a_response_that_is_cancelled_keeps_its_text(openai_client: openai.OpenAI) -> None:
    begun = create(openai_client, background=True, text={"format": NUMBERS})
    wait_until(lambda: openai_client.responses.retrieve(begun.id).output, "the first piece")
    cancelled: Any = openai_client.responses.cancel(begun.id)
    (item,) = cancelled.output
    assert (cancelled.status, item.status) == ("cancelled", "incomplete")
    assert cancelled.output_text.startswith("[")
    assert openai_client.responses.retrieve(begun.id) == cancelled


class InProcess:
    """The endpoints in this process, where a test sees the programs of the responses."""

    def __init__(self, found: client.Client, gateway: Gateway, runner: asyncio.Runner) -> None:
        self._client, self._gateway, self._runner = found, gateway, runner

    def _do(self, handle: Handler, body: Any = None, **path: str) -> Any:
        request = HTTPRequest(self._gateway, "", self._client, {}, path, b"", json.dumps(body).encode())
        reply: Any = self._runner.run(handle(request))
        assert isinstance(reply, Reply)
        return json.loads(reply.body)

    def create(self, **options: Any) -> Any:
        body = {"model": "pocket", "input": "Hi", "max_output_tokens": 4, "temperature": 0}
        return self._do(responses.create, body | options)

    def failed(self, **options: Any) -> Any:
        """The payload of a response that fails after its first piece."""
        body = decode(json.dumps({"model": "pocket", "input": "Hi"} | options).encode(), ResponseRequest)
        request = HTTPRequest(self._gateway, "", self._client, {}, {}, b"", b"")

        async def run() -> Any:
            response = responses.ResponseRun(request, body, None, "")
            events = response.events()
            await anext(events)
            await events.aclose()
            data = response.failed(HTTPError(503, "gone"))
            assert [line for line in data.split() if line.startswith(b"response.")] == [
                *(b"response.output_text.done", b"response.content_part.done", b"response.output_item.done"),
                b"response.failed",
            ]
            return response.payload

        return self._runner.run(run())

    def wait(self, number: str) -> Any:
        """The payload of a response in the background, after its end."""
        stored = self._gateway.responses.get("", number)
        assert stored.task is not None
        self._runner.run(asyncio.wait([stored.task]))
        return stored.payload

    def delete(self, number: str) -> None:
        self._do(responses.delete, id=number)

    def run_timers(self) -> None:
        """Run the timers of the event loop that are due."""
        self._runner.run(asyncio.sleep(0))

    def program(self, number: str) -> ProgramHandle:
        return self._gateway.responses.get("", number).branch.conversation.program


@contextmanager
def endpoints(server: launch.ServerProcess) -> Iterator[InProcess]:
    with closing(client.connect(server.socket)) as found, asyncio.Runner() as runner:
        gateway = Gateway(found, Keys(), runner.get_loop())
        yield InProcess(found, gateway, runner)
        gateway.sessions._context.term()


@pytest.fixture
def in_process(pocket: launch.ServerProcess) -> Iterator[InProcess]:
    with endpoints(pocket) as found:
        yield found


def test_a_conversation_whose_program_failed_is_built_again(in_process: InProcess) -> None:
    first = in_process.create()
    before = in_process.create(previous_response_id=first["id"])
    program = in_process.program(first["id"])
    program.submit([wire.Read(1000, 1000)])  # there is no such state
    assert isinstance(program.future(1000).exception(10), BadProgram)
    after = in_process.create(previous_response_id=first["id"])
    assert after["output"][0]["content"] == before["output"][0]["content"]
    assert in_process.program(after["id"]) is not program


def test_a_response_that_fails_keeps_its_text(in_process: InProcess) -> None:
    payload = in_process.failed(text={"format": NUMBERS})
    (item,) = payload["output"]
    assert (payload["status"], item["status"]) == ("failed", "incomplete")
    assert item["content"][0]["text"].startswith("[")


def test_a_response_in_the_background_that_fails_unexpectedly_is_failed(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stayed in progress for ever."""
    monkeypatch.setattr(responses.ResponseRun, "_end", lambda run, value: 1 // 0)
    number = in_process.create(background=True)["id"]
    found = in_process.wait(number)
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert f"the response {number} failed" in capsys.readouterr().err


def test_the_program_of_an_idle_conversation_is_closed(
    in_process: InProcess, stats: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open one kept a change of weights from its end."""
    n_before = stats()["server"]["programs"]
    first = in_process.create()
    program = in_process.program(first["id"])
    monkeypatch.setattr(response_store, "IDLE_SECONDS", 0)
    second = in_process.create(previous_response_id=first["id"])
    wait_until(lambda: in_process.run_timers() or program.is_over, "the close")
    wait_until(lambda: stats()["server"]["programs"] <= n_before, "the end of the program", seen=stats)
    third = in_process.create(previous_response_id=first["id"])
    assert third["output"][0]["content"] == second["output"][0]["content"]


def test_only_conversations_with_stored_responses_have_a_timer(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(response_store, "_close", closed.append)
    monkeypatch.setattr(response_store, "IDLE_SECONDS", 0)
    in_process.create(store=False)
    in_process.run_timers()
    assert not closed
    first = in_process.create()
    in_process.create(previous_response_id=first["id"], store=False)
    in_process.run_timers()
    assert len(closed) == 2


def test_a_full_program_is_followed_by_a_new_one(
    serve: Callable[..., launch.ServerProcess], fake_model: Callable[..., Path]
) -> None:
    (fake_model() / "chat_template.jinja").write_text(wire_fuzz.TEMPLATE)
    with endpoints(serve({"max_program": 20_000})) as found:
        first = found.create(model="model")
        program = found.program(first["id"])
        for _ in range(12):
            found.create(model="model", previous_response_id=first["id"], store=False)
        assert program.is_over, "it was full"
        last = found.create(model="model", previous_response_id=first["id"])
        found.create(model="model", previous_response_id=last["id"])


def test_states_that_no_response_can_continue_are_dropped(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_process.create()  # state 0
    program, refs = in_process.program(first["id"]), count(1000)

    def dropped(n_states: int) -> list[int]:
        def is_dropped(state: int) -> bool:
            program.submit([wire.Read(state, ref := next(refs))])
            return isinstance(program.future(ref).exception(10), Cancelled)

        return [state for state in range(n_states) if is_dropped(state)]

    for _ in range(3):  # states 1 to 3
        in_process.create(previous_response_id=first["id"], store=False)
    second = in_process.create(previous_response_id=first["id"])  # state 4
    wait_until(lambda: dropped(5) == [1, 2, 3], "the drops", seen=lambda: dropped(5))
    assert not set(range(1000)) & set(program._futures._futures), "the client keeps no values"
    in_process.delete(first["id"])
    wait_until(lambda: dropped(5) == [0, 1, 2, 3], "the drop of the deleted one", seen=lambda: dropped(5))
    third = in_process.create(previous_response_id=second["id"])  # state 5
    assert in_process.program(third["id"]) is program
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] + 4
    monkeypatch.setattr(response_store, "MAX_STORED", 1)
    fourth = in_process.create(previous_response_id=third["id"])  # state 6
    assert in_process.program(fourth["id"]) is program
    wait_until(lambda: dropped(7) == [0, 1, 2, 3, 4, 5], "the drop of the evicted ones", seen=lambda: dropped(7))


LONG = "word " * 60_000


def test_conversations_whose_program_is_over_do_not_count() -> None:
    client: Any = SimpleNamespace(welcome=SimpleNamespace(max_programs=8, max_client=1 << 30))
    store = response_store.ResponseStore()

    def put(number: str, *, is_over: bool) -> None:
        program: Any = SimpleNamespace(is_over=is_over, submit=lambda ops: None)
        conversation = response_store.Conversation(client, program)
        branch = response_store.ConversationBranch(conversation, 0, PromptWriter(wire.ChatMarkers({})), ())
        store.put(response_store.StoredResponse("", {"id": number}, [], None, branch))

    for k in range(5):
        put(f"over{k}", is_over=True)
    for k in range(3):
        put(f"open{k}", is_over=False)
    assert [*store._stored] == [*(f"over{k}" for k in range(5)), "open1", "open2"]


def test_only_items_of_finished_responses_are_found() -> None:
    client: Any = SimpleNamespace(welcome=SimpleNamespace(max_programs=0, max_client=1 << 30))
    conversation = response_store.Conversation(client, SimpleNamespace(is_over=False))  # type: ignore[arg-type]
    branch = response_store.ConversationBranch(conversation, 0, PromptWriter(wire.ChatMarkers({})), ())
    store = response_store.ResponseStore()
    states = ("in_progress", "completed", "incomplete", "failed", "cancelled")
    for status in states:
        payload = {"id": f"resp_{status}", "status": status, "output": [{"id": status}]}
        store.put(response_store.StoredResponse("", payload, [], None, branch))
    assert [*store.items("", states)] == ["completed", "incomplete"]


def test_turns_count_after_the_end_of_their_program() -> None:
    """A response keeps all turns of its conversation, but only those of its own request counted: the memory of the HTTP
    process had no limit."""
    client: Any = SimpleNamespace(welcome=SimpleNamespace(max_programs=8, max_client=40_000))
    program: Any = SimpleNamespace(is_over=True, submit=lambda ops: None)
    store = response_store.ResponseStore()
    turns: list[ChatTurn] = []
    for k in range(8):
        turns = [*turns, ChatTurn(role="user", content="x" * 1000)]
        conversation = response_store.Conversation(client, program)
        conversation.hold(turns)
        branch = response_store.ConversationBranch(conversation, 0, PromptWriter(wire.ChatMarkers({})), ())
        store.put(response_store.StoredResponse("", {"id": f"{k}"}, turns, None, branch, n_bytes=1000))
    assert [*store._stored] == ["7"], "8,000 bytes of 10,000; 7,000 more do not fit"


def test_stored_responses_leave_room_for_other_requests(
    serve: Callable[..., launch.ServerProcess], fake_model: Callable[..., Path]
) -> None:
    (fake_model() / "chat_template.jinja").write_text(wire_fuzz.TEMPLATE)
    server = serve({"max_client": 1 << 20}, context=1 << 19)
    called = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": json.dumps({"x": LONG})},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    tools = [CALCULATOR | {"description": LONG}]
    for options in ({"input": LONG}, {"tools": tools, "tool_choice": "none"}, {"input": called}):
        with endpoints(server) as found:
            made = [found.create(model="model", **options)["id"] for _ in range(6)]
            assert found.create(model="model", previous_response_id=made[-1])["status"] == "completed"
            with pytest.raises(HTTPError, match="there is no response"):
                found.delete(made[0])


def test_stored_conversations_leave_programs_for_other_requests(
    serve: Callable[..., launch.ServerProcess], fake_model: Callable[..., Path]
) -> None:
    """When there were `max_programs`, the server refused all requests of the tenant."""
    (fake_model() / "chat_template.jinja").write_text(wire_fuzz.TEMPLATE)
    with endpoints(serve({"max_programs": 4})) as found:
        made = [found.create(model="model", input="Hi")["id"] for _ in range(6)]
        assert found.create(model="model", previous_response_id=made[-1])["status"] == "completed"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"given": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"given": [{"content": "x"}]}, "input[0].role"),
        ({"background": True, "stream": True}, "background"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {str(k): "x" for k in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ],
)
def test_errors_name_the_field(openai_client: openai.OpenAI, options: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        create(openai_client, **options)
    assert raised.value.param == param
