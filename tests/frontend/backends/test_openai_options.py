"""Every option on OpenAI's API: sent, or refused by name; and what fails there, tried again or not."""

from __future__ import annotations

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

# Option of a gen -> a value that is not its default, and what the body then holds (None: it is refused).
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


def name_of(option: str, value: Any) -> str:
    """What users call it."""
    return value.kind if isinstance(value, wire.ConstraintSpec) else NAMES.get(option, option)


def ask(backend: bn.OpenAI, sampling: wire.Sampling) -> wire.Value:
    program = backend.program()
    turn = (wire.BeginTurn("assistant"),) if backend.kind == "chat" else ("Q",)
    program.submit([wire.Append(0, turn), wire.Gen(0, 0, sampling)])
    return program.future(0).result(30)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("option", [field.name for field in fields(wire.Sampling)])
def test_every_option_is_sent_or_refused_by_name(serve: Any, fake: ModuleType, option: str, kind: str) -> None:
    value, expected = OPTIONS[option]
    also = {"logprobs": True} if option == "top_logprobs" else {}
    sampling = wire.Sampling(**{option: value}, **also)
    told = fake.chat("x") if kind == "chat" else fake.completion("x")
    api, backend = serve(lambda path, body: told, is_chat_model=kind == "chat")
    if expected is None:
        named = name_of(option, value)
        with pytest.raises(bn.Unsupported, match=rf"^{named}: OpenAI's {kind} API has no such thing; use "):
            ask(backend, sampling)
        assert api.bodies == []
        return
    ask(backend, sampling)
    (body,) = api.bodies
    assert {"max_tokens": 128} | expected.get(kind, expected) == {
        key: value for key, value in body.items() if key not in ("model", "messages", "prompt")
    }


EXTENSIONS = ["top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"]


@pytest.mark.parametrize("option", EXTENSIONS)
def test_extensions_are_sent_by_name(serve: Any, fake: ModuleType, option: str) -> None:
    value, _ = OPTIONS[option]
    api, backend = serve(lambda path, body: fake.chat("x"), extensions=[option])
    ask(backend, wire.Sampling(**{option: value}))
    assert api.bodies[0][option] == (list(value) if isinstance(value, tuple) else value)


@bn.function
def begun(s: bn.State) -> None:
    s += bn.user("?") + bn.assistant("Well, " + bn.gen("a"))


def test_a_turn_that_has_begun(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match=r"^prefix: .* or OpenAI\(..., extensions=\[\"prefix\"\]\)"):
        begun.run(backend=backend)["a"]
    api, backend = serve(lambda path, body: fake.chat("yes"), extensions={"prefix"})
    assert begun.run(backend=backend)["a"] == "yes"
    body = api.bodies[0]
    assert body["messages"][-1] == {"role": "assistant", "content": "Well, "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    ("expr", "named"),
    [
        ("text" + bn.assistant(bn.gen("a")), "text"),
        (bn.gen("a"), "gen"),
        (bn.user(bn.gen("a")), "gen"),
        (bn.user(bn.raw("<|x|>")) + bn.assistant(bn.gen("a")), "raw"),
        (bn.assistant(bn.gen("a", max_tokens=0)), "max_tokens=0"),
    ],
)
def test_what_a_chat_model_cannot_read(serve: Any, fake: ModuleType, expr: Any, named: str) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match=f"^{named}: .*; use "):
        bn.function(lambda s: s.__iadd__(expr)).run(backend=backend)["a"]


# ---- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "n_tries", "error"),
    [
        (500, None, 3, bn.RuntimeLost),
        (503, None, 3, bn.RuntimeLost),
        (429, None, 3, bn.RuntimeLost),
        (400, None, 1, bn.ProgramError),
        (400, "context_length_exceeded", 1, bn.PromptTooLong),
        (401, None, 1, bn.ConfigError),
        (403, None, 1, bn.ConfigError),
        (404, None, 1, bn.ModelNotFound),
        (422, None, 1, bn.ProgramError),
    ],
)
def test_only_what_may_pass_is_tried_again(
    serve: Any, fake: ModuleType, status: int, code: str | None, n_tries: int, error: type[Exception]
) -> None:
    def answer(path: str, body: Any) -> Any:
        raise fake.Refusal(status, "what went wrong", code, retry_after_ms="1")

    api, backend = serve(answer)
    with pytest.raises(error, match="what went wrong") as raised:
        chat.run(backend=backend)["a"]
    assert type(raised.value) is error
    assert raised.value.__cause__ is not None
    assert len(api.bodies) == n_tries


def test_a_failure_that_passes_is_not_seen(serve: Any, fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        if len(api.bodies) < 3:
            raise fake.Refusal(503, retry_after_ms="1")
        return fake.chat("at last")

    api, backend = serve(answer)
    assert chat.run(backend=backend)["a"] == "at last"
    api, backend = serve(answer, max_retries=1)
    with pytest.raises(bn.RuntimeLost):
        chat.run(backend=backend)["a"]


def test_nobody_there() -> None:
    backend = bn.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    with pytest.raises(bn.RuntimeLost, match=r"127.0.0.1:9/v1/ cannot be reached"):
        chat.run(backend=backend)["a"]


def test_a_server_that_does_not_answer(serve: Any, fake: ModuleType) -> None:
    done = threading.Event()
    _, backend = serve(lambda path, body: done.wait(30), timeout=0.2, max_retries=0)
    with pytest.raises(bn.DeadlineExceeded, match="did not answer in time"):
        chat.run(backend=backend)["a"]
    done.set()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: bn.OpenAI("m", api_key="x", extensions=["top_x"]), "none called 'top_x'"),
        (lambda: bn.OpenAI("m", api_key="x", max_in_flight=0), "at least 1"),
        (lambda: bn.OpenAI("m", api_key="x", colour="red"), "colour"),
        (lambda: bn.OpenAI("m", api_key="x", chat_template="vicuna"), "'vicuna' is not known"),
        (lambda: bn.OpenAI("m", is_azure=True, api_key="x"), "azure|api_version|AZURE|OPENAI"),
    ],
)
def test_what_cannot_be_made(make: Callable[[], Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(bn.ConfigError, match=why):
        make()


def test_no_key_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(bn.ConfigError, match="api_key"):
        bn.OpenAI("m")


def test_azure_is_made_with_its_own_arguments() -> None:
    backend = bn.OpenAI("m", is_azure=True, api_key="x", api_version="1", azure_endpoint="http://a.example")
    assert backend.base_url.startswith("http://a.example/openai/deployments") or "a.example" in backend.base_url
    assert backend._max_tokens_as == "max_completion_tokens"


def test_a_flush_is_refused(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"))
    with pytest.raises(bn.Unsupported, match="flush"):
        bn.flush_cache(backend)


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(bn.ConfigError, match=r"pip install 'banyan\[http\]'"):
        bn.OpenAI("m")


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_what_is_refused_is_declared(serve: Any, fake: ModuleType, kind: str) -> None:
    _, backend = serve(lambda path, body: fake.chat("x"), is_chat_model=kind == "chat")
    for option, (value, expected) in OPTIONS.items():
        named = name_of(option, value)
        assert (named in backend.refuses) == (expected is None), option
    others = {"image", "json_schema", "tools"}
    turns = {"gen", "text", "raw", "prefix", "unconditional_likelihood_normalized"}
    assert backend.refuses & others == (others if kind == "completion" else set())
    assert backend.refuses & turns == (turns if kind == "chat" else set())
    _, more = serve(lambda path, body: fake.chat("x"), is_chat_model=kind == "chat", extensions=["top_k"])
    assert backend.refuses - more.refuses == {"top_k"}


@pytest.mark.parametrize("option", [field.name for field in fields(wire.Sampling)])
@pytest.mark.parametrize("kind", ["mock", "record", "replay"])
def test_backends_without_a_model_of_their_own_take_every_option(tmp_path: Path, option: str, kind: str) -> None:
    value, _ = OPTIONS[option]
    sampling = wire.Sampling(**{option: value}, **({"logprobs": True} if option == "top_logprobs" else {}))

    def answered(backend: Any) -> str:
        program = backend.program()
        program.submit([wire.Append(0, ("Q",)), wire.Gen(0, 0, sampling)])
        return str(program.future(0).result(30).samples[0].text)

    mock = bn.Mock("a")
    if kind == "mock":
        assert answered(mock) == "a"
    else:
        with bn.Record(mock, tmp_path / "run") as recorder:
            assert answered(recorder) == "a"
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling == sampling, "it arrives, and a test can look at it"
    if kind == "replay":
        assert answered(bn.Replay(tmp_path / "run")) == "a"
        plain = bn.Replay(tmp_path / "run").program()
        plain.submit([wire.Append(0, ("Q",)), wire.Gen(0, 0)])
        error = plain.future(0).exception()
        assert isinstance(error, bn.ReplayMismatch)
        assert f"{option}: recorded" in str(error)


@pytest.mark.parametrize("option", [field.name for field in fields(wire.Sampling)])
def test_a_mock_refuses_by_name_what_it_is_told_to(tmp_path: Path, option: str) -> None:
    value, _ = OPTIONS[option]
    named = name_of(option, value)
    mock = bn.Mock("a", refuses=[named])
    with bn.Record(mock, tmp_path / "run") as recorder:
        assert recorder.refuses == mock.refuses == {named}
        program = recorder.program()
        sampling = wire.Sampling(**{option: value})
        program.submit([wire.Append(0, ("Q",)), wire.Fork(0, (1,)), wire.Gen(0, 0, sampling), wire.Gen(1, 1)])
        error = program.future(0).exception(30)
        assert isinstance(error, bn.Unsupported)
        assert str(error).startswith(f"{named}: ")
        assert program.future(1).result(30).samples[0].text == "a", "what does not ask for it goes on"


@bn.tool
def look() -> str:
    """Looks."""
    return "seen"


ASKING: dict[str, Any] = {
    "tools": lambda: bn.user("?") + bn.assistant(bn.gen("a", tools=[look])),
    "select": lambda: bn.select("a", ["x", "y"]),
    "greedy_token_selection": lambda: bn.select("a", ["x", "y"], choices_method=bn.greedy_token_selection),
    "raw": lambda: bn.raw("<|im_end|>") + bn.gen("a"),
    "roles": lambda: bn.user("?") + bn.assistant(bn.gen("a")),
    "priority": lambda: bn.gen("a", priority=3),
    "deadline": lambda: bn.gen("a", deadline=3.0),
    "json_schema": lambda: bn.gen("a", json_schema='{"type": "object"}'),
    "grammar": lambda: bn.gen("a", grammar='start: "a"'),
}


@pytest.mark.parametrize("what", ASKING)
def test_so_it_does_where_a_program_asks(what: str) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += ASKING[what]()

    assert what in ALL
    with pytest.raises(bn.Unsupported, match=f"^{what}: this Mock"):
        program.run(backend=bn.Mock("x", refuses={what}))["a"]


def test_a_stream_is_refused_too() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")

    with pytest.raises(bn.Unsupported, match=r"^stream: "):
        program.run(backend=bn.Mock("x", refuses={"stream"}), stream=True)["a"]


def test_what_there_is_not_cannot_be_refused() -> None:
    with pytest.raises(bn.ConfigError, match=r"there is nothing called 'top_q'; there are .*top_p"):
        bn.Mock("a", refuses={"top_q"})
