"""Options of OpenAI's API: each is sent or refused by name. Failures: only transient ones are retried."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import fields

import banyan as bn
from banyan.backends.job import ALL, NAMES
from banyan.runtime.protocol import wire

pytest.importorskip("openai")


@bn.function
def chat(s: bn.State) -> None:
    s += bn.system("Be brief.") + bn.user("6*7?") + bn.assistant(bn.gen("a"))


# ---- every option --------------------------------------------------------------------------------------------------

# Option of a gen -> a value other than its default, and its fields in the body (None: it is refused).
OPTIONS: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "max_tokens": (7, {"max_tokens": 7}),
    "min_tokens": (2, None),
    "n": (2, {"n": 2}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "top_k": (5, None),
    "min_p": (0.1, None),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
    "presence_penalty": (0.5, {"presence_penalty": 0.5}),
    "repetition_penalty": (1.5, None),
    "logit_bias": ({5: -100.0}, {"logit_bias": {"5": -100.0}}),
    "stop": (("x", "y"), {"stop": ["x", "y"]}),
    "stop_token_ids": ((3,), None),
    "ignore_eos": (True, None),
    "seed": (11, {"seed": 11}),
    "logprobs": (True, {"chat": {"logprobs": True}, "completion": {"logprobs": 0}}),
    "top_logprobs": (2, {"chat": {"logprobs": True, "top_logprobs": 2}, "completion": {"logprobs": 2}}),
    "constraint": (wire.ConstraintSpec("regex", "a+"), None),
    "stop_regex": (("a+",), None),
    "logprob_start": (0, None),
}


def public_name(option: str, value: Any) -> str:
    """The name of the option in the API."""
    return value.kind if isinstance(value, wire.ConstraintSpec) else NAMES.get(option, option)


def generate(backend: bn.OpenAI, sampling: wire.Sampling) -> wire.Value:
    program = backend.program()
    turn = (wire.BeginTurn("assistant"),) if backend.kind == "chat" else ("Q",)
    program.submit([wire.Append(0, turn), wire.Gen(0, 0, sampling)])
    return program.future(0).result(30)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("option", [field.name for field in fields(wire.Sampling)])
def test_option_is_sent_or_refused_by_name(serve: Any, fake: ModuleType, option: str, kind: str) -> None:
    value, expected = OPTIONS[option]
    other_options = {"logprobs": True} if option == "top_logprobs" else {}
    sampling = wire.Sampling(**{option: value}, **other_options)
    texts = ["x"] * sampling.n
    response = fake.chat(*texts) if kind == "chat" else fake.completion(*texts)
    api, backend = serve(lambda path, body: response, is_chat_model=kind == "chat")
    if expected is None:
        option_name = public_name(option, value)
        with pytest.raises(bn.Unsupported, match=rf"^{option_name}: OpenAI's {kind} API does not support it; use "):
            generate(backend, sampling)
        assert api.bodies == []
        return
    generate(backend, sampling)
    (body,) = api.bodies
    assert {"max_tokens": 128} | expected.get(kind, expected) == {
        key: value for key, value in body.items() if key not in ("model", "messages", "prompt")
    }


EXTENSIONS = ["top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"]


@pytest.mark.parametrize("option", EXTENSIONS)
def test_extensions_are_sent_by_name(serve: Any, fake: ModuleType, option: str) -> None:
    value, _ = OPTIONS[option]
    api, backend = serve(lambda path, body: fake.chat("x"), extensions=[option])
    generate(backend, wire.Sampling(**{option: value}))
    assert api.bodies[0][option] == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("prefix", ["", "Well, "])
def test_chat_template_kwargs_are_an_extension_of_chat_models(serve: Any, fake: ModuleType, prefix: str) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("?") + bn.assistant(prefix + bn.gen("a"))

    kwargs = {"enable_thinking": False}
    extensions = ["chat_template_kwargs", "prefix"]
    api, backend = serve(lambda path, body: fake.chat("x"), extensions=extensions)
    assert program.run(backend=backend, chat_template_kwargs=kwargs)["a"] == "x"
    assert api.bodies[0]["chat_template_kwargs"] == kwargs
    assert api.bodies[0].get("continue_final_message", False) == bool(prefix)
    for others in ({"extensions": ["prefix"]}, {"is_chat_model": False, "chat_template": "chatml"}):
        api, backend = serve(lambda path, body: fake.chat("x"), **{"extensions": extensions} | others)
        with pytest.raises(bn.Unsupported, match=r"^chat_template_kwargs: OpenAI's"):
            program.run(backend=backend, chat_template_kwargs=kwargs)["a"]
        assert api.bodies == []


@bn.function
def continued_turn(s: bn.State) -> None:
    s += bn.user("?") + bn.assistant("Well, " + bn.gen("a"))


def test_continued_turn_needs_the_prefix_extension(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match=r"^prefix: .* or OpenAI\(..., extensions=\[\"prefix\"\]\)"):
        continued_turn.run(backend=backend)["a"]
    api, backend = serve(lambda path, body: fake.chat("yes"), extensions={"prefix"})
    assert continued_turn.run(backend=backend)["a"] == "yes"
    body = api.bodies[0]
    assert body["messages"][-1] == {"role": "assistant", "content": "Well, "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    ("expr", "construct"),
    [
        ("text" + bn.assistant(bn.gen("a")), "text"),
        (bn.gen("a"), "gen"),
        (bn.user(bn.gen("a")), "gen"),
        (bn.user(bn.raw("<|x|>")) + bn.assistant(bn.gen("a")), "raw"),
        (bn.assistant(bn.gen("a", max_tokens=0)), "max_tokens=0"),
    ],
)
def test_chat_model_refuses_unsupported_constructs(serve: Any, fake: ModuleType, expr: Any, construct: str) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match=f"^{construct}: .*; use "):
        bn.function(lambda s: s.__iadd__(expr)).run(backend=backend)["a"]


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["dict", "text"])
def test_output_is_checked_against_its_schema(serve: Any, fake: ModuleType, schema: Any, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, retries: int) -> None:
        s += bn.user("?") + bn.assistant(bn.gen("a", json_schema=schema, retries=retries))

    api, backend = serve(lambda path, body: fake.chat('{"n": "six"}' if len(api.bodies) < 3 else '{"n": 6}'))
    with bn.Record(backend, tmp_path / "run") as recorder:
        with pytest.raises(bn.BadOutput, match=r"'six' is not of type 'integer' at \$\.n"):
            program.run(0, backend=recorder).value("a")
        assert program.run(1, backend=recorder).value("a") == {"n": 6}
    replay = bn.Replay(tmp_path / "run")
    with pytest.raises(bn.BadOutput, match="is not of type 'integer'"):
        program.run(0, backend=replay).value("a")
    assert program.run(1, backend=replay).value("a") == {"n": 6}
    assert program.run(0, backend=bn.Mock('{"n": "six"}')).value("a") == {"n": "six"}, "as the script says"


BELOW = {"$id": "https://a.example/below", "$defs": {"n": {"$anchor": "n"}}, "properties": {"n": {"$ref": "#n"}}}


@pytest.mark.parametrize(
    ("schema", "ref"),
    [
        ({"$ref": "#/$defs/m", "$defs": {"n": {}}}, "#/$defs/m"),
        ({"properties": {"n": {"items": {"$ref": "other.json"}}}}, "other.json"),
        ({"properties": {"n": {"$ref": "#n"}}, "$defs": {"below": BELOW}}, "#n"),
        ({"$ref": "#/anyOf/x", "anyOf": [{}]}, "#/anyOf/x"),
        ({"properties": {"m": {"items": [{"$ref": "#"}]}}}, ""),
        ({"$ref": "#/$defs/n", "$defs": {"n": {}}}, ""),
        ({"$ref": "https://a.example/below#n", "$defs": {"below": BELOW}}, ""),
        ({"anyOf": [{"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"const": {"$ref": "x"}}]}, ""),
    ],
)
def test_a_schema_with_a_reference_to_nothing_costs_no_request(
    serve: Any, fake: ModuleType, schema: Any, ref: str
) -> None:
    api, backend = serve(lambda path, body: fake.chat('{"n": true}'))
    gen = bn.user("?") + bn.assistant(bn.gen("a", json_schema=schema, retries=1))
    state = bn.function(lambda s: s.__iadd__(gen)).run(backend=backend)
    if ref:
        with pytest.raises(bn.BadProgram, match=f"reference {re.escape(repr(ref))} leads nowhere"):
            state.value("a")
    else:
        assert state.value("a") == {"n": True}
    assert len(api.bodies) == (not ref)


# ---- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "n_tries", "error"),
    [
        (500, None, 3, bn.ProgramError),
        (503, None, 3, bn.ProgramError),
        (429, None, 3, bn.Overloaded),
        (400, None, 1, bn.ProgramError),
        (400, "context_length_exceeded", 1, bn.PromptTooLong),
        (401, None, 1, bn.ConfigError),
        (403, None, 1, bn.ConfigError),
        (404, None, 1, bn.ModelNotFound),
        (422, None, 1, bn.ProgramError),
    ],
)
def test_only_transient_failures_are_retried(
    serve: Any, fake: ModuleType, status: int, code: str | None, n_tries: int, error: type[Exception]
) -> None:
    def answer(path: str, body: Any) -> Any:
        raise fake.Refusal(status, "reason of failure", code, retry_after_ms="1")

    api, backend = serve(answer)
    with pytest.raises(error, match="reason of failure") as raised:
        chat.run(backend=backend)["a"]
    assert type(raised.value) is error
    assert raised.value.__cause__ is not None
    assert len(api.bodies) == n_tries


def test_retry_hides_a_transient_failure(serve: Any, fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        if len(api.bodies) < 3:
            raise fake.Refusal(503, retry_after_ms="1")
        return fake.chat("success")

    api, backend = serve(answer)
    assert chat.run(backend=backend)["a"] == "success"
    api, backend = serve(answer, max_retries=1)
    with pytest.raises(bn.ProgramError, match="503"):
        chat.run(backend=backend)["a"]


@pytest.mark.parametrize("status", [429, 503])
def test_failed_request_fails_its_item_and_its_branch_only(
    serve: Any, fake: ModuleType, tmp_path: Path, status: int
) -> None:
    def answer(path: str, body: Any) -> Any:
        if body["messages"][-1]["content"] == "3":
            raise fake.Refusal(status)
        return fake.chat("x")

    @bn.function
    def item(s: bn.State, number: int) -> None:
        s += bn.user(str(number)) + bn.assistant(bn.gen("a"))

    @bn.function
    def branches(s: bn.State) -> None:
        forks = s.fork(5)
        forks += lambda i: bn.user(str(i)) + bn.assistant(bn.gen("a"))
        forks.join(on_error="collect")

    _, backend = serve(answer, max_retries=0)
    with pytest.raises(bn.BatchError) as raised:
        item.run_batch([(i,) for i in range(5)], backend=backend, checkpoint=tmp_path / "batch")
    assert list(raised.value.errors) == [3]
    assert len(raised.value.results) == 5
    assert [type(value) for value in branches.run(backend=backend)["a"]] == [str, str, str, bn.ForkError, str]


def test_unreachable_server_raises_runtime_lost() -> None:
    backend = bn.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    with pytest.raises(bn.RuntimeLost, match=r"127.0.0.1:9/v1/ cannot be reached"):
        chat.run(backend=backend)["a"]


def test_timeout_raises_deadline_exceeded(serve: Any, fake: ModuleType) -> None:
    done = threading.Event()
    _, backend = serve(lambda path, body: done.wait(30), timeout=0.2, max_retries=0)
    with pytest.raises(bn.DeadlineExceeded, match="did not answer in time"):
        chat.run(backend=backend)["a"]
    done.set()


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: bn.OpenAI("m", api_key="x", extensions=["top_x"]), "unknown extension 'top_x'"),
        (lambda: bn.OpenAI("m", api_key="x", max_in_flight=0), "at least 1"),
        (lambda: bn.OpenAI("m", api_key="x", colour="red"), "colour"),
        (lambda: bn.OpenAI("m", api_key="x", chat_template="vicuna"), "'vicuna' is not known"),
        (lambda: bn.OpenAI("m", is_azure=True, api_key="x"), "azure|api_version|AZURE|OPENAI"),
    ],
)
def test_invalid_constructor_arguments_raise(
    construct: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(bn.ConfigError, match=message):
        construct()


def test_missing_api_key_raises_in_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(bn.ConfigError, match="api_key"):
        bn.OpenAI("m")


def test_azure_backend_accepts_its_own_arguments() -> None:
    backend = bn.OpenAI("m", is_azure=True, api_key="x", api_version="1", azure_endpoint="http://a.example")
    assert backend.base_url.startswith("http://a.example/openai/deployments") or "a.example" in backend.base_url
    assert backend._max_tokens_as == "max_completion_tokens"


def test_flush_and_check_are_refused(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match="cannot flush"):
        bn.flush_cache(backend)
    with pytest.raises(bn.Unsupported, match="cannot check"):
        backend.ask("check")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(bn.ConfigError, match=r"pip install 'banyan\[openai\]'"):
        bn.OpenAI("m")


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_refuses_lists_the_unsupported_options(serve: Any, fake: ModuleType, kind: str) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"), is_chat_model=kind == "chat")
    for option, (value, expected) in OPTIONS.items():
        option_name = public_name(option, value)
        assert (option_name in backend.refuses) == (expected is None), option
    others = {"image", "json_schema", "tools"}
    turns = {"gen", "text", "raw", "prefix", "unconditional_likelihood_normalized"}
    assert backend.refuses & others == (others if kind == "completion" else set())
    assert backend.refuses & turns == (turns if kind == "chat" else set())
    _, extended = serve(lambda path, body: fake.chat("x"), is_chat_model=kind == "chat", extensions=["top_k"])
    assert backend.refuses - extended.refuses == {"top_k"}


@pytest.mark.parametrize("option", [field.name for field in fields(wire.Sampling)])
@pytest.mark.parametrize("kind", ["mock", "record", "replay"])
def test_mock_record_and_replay_accept_every_option(tmp_path: Path, option: str, kind: str) -> None:
    value, _ = OPTIONS[option]
    sampling = wire.Sampling(**{option: value}, **({"logprobs": True} if option == "top_logprobs" else {}))

    def generate_text(backend: Any) -> str:
        program = backend.program()
        program.submit([wire.Append(0, ("Q",)), wire.Gen(0, 0, sampling)])
        return str(program.future(0).result(30).samples[0].text)

    mock = bn.Mock("a")
    if kind == "mock":
        assert generate_text(mock) == "a"
    else:
        with bn.Record(mock, tmp_path / "run") as recorder:
            assert generate_text(recorder) == "a"
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling == sampling, "the mock records the options"
    if kind == "replay":
        assert generate_text(bn.Replay(tmp_path / "run")) == "a"
        plain = bn.Replay(tmp_path / "run").program()
        plain.submit([wire.Append(0, ("Q",)), wire.Gen(0, 0)])
        error = plain.future(0).exception()
        assert isinstance(error, bn.ReplayMismatch)
        assert f"{option}: recorded" in str(error)


@pytest.mark.parametrize("option", [field.name for field in fields(wire.Sampling)])
def test_mock_refuses_configured_options_by_name(tmp_path: Path, option: str) -> None:
    value, _ = OPTIONS[option]
    option_name = public_name(option, value)
    mock = bn.Mock("a", refuses=[option_name])
    with bn.Record(mock, tmp_path / "run") as recorder:
        assert recorder.refuses == mock.refuses == {option_name}
        program = recorder.program()
        sampling = wire.Sampling(**{option: value})
        program.submit([wire.Append(0, ("Q",)), wire.Fork(0, (1,)), wire.Gen(0, 0, sampling), wire.Gen(1, 1)])
        error = program.future(0).exception(30)
        assert isinstance(error, bn.Unsupported)
        assert str(error).startswith(f"{option_name}: ")
        assert program.future(1).result(30).samples[0].text == "a", "a gen without the option succeeds"


@bn.tool
def lookup() -> str:
    """Looks something up."""
    return "found"


CONSTRUCTS: dict[str, Any] = {
    "tools": lambda: bn.user("?") + bn.assistant(bn.gen("a", tools=[lookup])),
    "select": lambda: bn.select("a", ["x", "y"]),
    "greedy_token_selection": lambda: bn.select("a", ["x", "y"], choices_method=bn.greedy_token_selection),
    "raw": lambda: bn.raw("<|im_end|>") + bn.gen("a"),
    "roles": lambda: bn.user("?") + bn.assistant(bn.gen("a")),
    "priority": lambda: bn.gen("a", priority=3),
    "deadline": lambda: bn.gen("a", deadline=3.0),
    "adapter": lambda: bn.gen("a", adapter="poems"),
    "json_schema": lambda: bn.gen("a", json_schema='{"type": "object"}'),
    "grammar": lambda: bn.gen("a", grammar='start: "a"'),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_mock_refuses_configured_constructs(name: str) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += CONSTRUCTS[name]()

    assert name in ALL
    with pytest.raises(bn.Unsupported, match=f"^{name}: this Mock"):
        program.run(backend=bn.Mock("x", refuses={name}))["a"]


def test_mock_refuses_streams() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")

    with pytest.raises(bn.Unsupported, match=r"^stream: "):
        program.run(backend=bn.Mock("x", refuses={"stream"}), stream=True)["a"]


def test_unknown_name_in_refuses_raises() -> None:
    with pytest.raises(bn.ConfigError, match=r"unknown feature 'top_q'; choose from .*top_p"):
        bn.Mock("a", refuses={"top_q"})
