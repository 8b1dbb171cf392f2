"""Several gens from one request: `num_api_spec_tokens`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import banyan as bn

pytest.importorskip("openai")

CARD = "Name: Ada\nBirthday: May 4\nJob: pilot\n"


@bn.function(num_api_spec_tokens=64)
def card(s: bn.State) -> None:
    s += bn.user("Construct a character.")
    s += bn.assistant(
        "Name:"
        + bn.gen("name", stop="\n")
        + "\nBirthday:"
        + bn.gen("birthday", stop="\n")
        + "\nJob:"
        + bn.gen("job", stop="\n")
    )


@bn.function(num_api_spec_tokens=64)
def two_gens(s: bn.State, **options: Any) -> None:
    s += "Name:" + bn.gen("name", stop="\n") + "\nJob:" + bn.gen("job", **{"stop": "\n", **options}) + "!"


def completion_api(
    fake: ModuleType, text_of: Callable[[str], str], finish: str = "length"
) -> Callable[[str, Any], Any]:
    """A completion API that continues a prompt by `text_of`, up to a stop."""

    def answer(path: str, body: Any) -> Any:
        text = text_of(body["prompt"])
        for stop in body.get("stop", ()):
            text = text.split(stop)[0]
        response = fake.completion(*[text] * body.get("n", 1))
        for choice in response["choices"]:
            choice["finish_reason"] = finish
        return response

    return answer


def test_completion_model_ends_a_turn_at_its_marker(serve: Any, fake: ModuleType) -> None:
    """Also where the text goes on with the next turn, which the model should not write."""
    text = " Ada\nJob: pilot<|im_end|>\n<|im_start|>user\nWho?\n"
    api, backend = serve(completion_api(fake, lambda prompt: text), is_chat_model=False, chat_template="chatml")

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State) -> None:
        s += bn.user("Hi") + bn.assistant("Name:" + bn.gen("name", stop="\n") + "\nJob:" + bn.gen("job", stop="\n"))

    state = program.run(backend=backend)
    assert (state["name"], state["job"]) == (" Ada", " pilot")
    assert len(api.bodies) == 1


def test_turn_with_several_gens_is_one_chat_request(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat(CARD))
    state = card.run(backend=backend, temperature=0.5)
    assert (state["name"], state["birthday"], state["job"]) == (" Ada", " May 4", " pilot")
    assert state.messages()[-1] == {"role": "assistant", "content": CARD.rstrip()}
    assert state.get_meta_info("name")["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert api.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Construct a character."}],
            "temperature": 0.5,
            "max_tokens": 128,
        }
    ]
    usage = state.usage
    assert (usage.prompt, usage.generated) == (9, 2), "one request"


def test_deviating_turn_is_requested_again(serve: Any, fake: ModuleType) -> None:
    answers = ["Sure! " + CARD, CARD.replace("Job:", "Trade:"), CARD]
    api, backend = serve(lambda path, body: fake.chat(answers[len(api.bodies) - 1]))
    state = card.run(backend=backend)
    assert state["job"] == " pilot"
    assert len(api.bodies) == 3
    assert state.usage.prompt == 27, "the usage of all three requests"


def test_repeated_deviation_raises_with_its_position(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat(CARD.replace("Job:", "Trade:")))
    state = card.run(backend=backend)
    with pytest.raises(bn.BadOutput, match=r"after 'Name: Ada.*May 4.n' it says 'Trade: pilot") as raised:
        state["job"]
    assert raised.value.gen == "job"
    assert (state["name"], len(api.bodies)) == (" Ada", 3)
    api.answer = lambda path, body: fake.chat("I cannot.")
    with pytest.raises(bn.BadOutput, match=r"it says 'I cannot.', and it should continue with 'Name:'.*asked 3 times"):
        card.run(backend=backend)["name"]


def test_different_options_within_a_turn_raise(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat(CARD))

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State) -> None:
        s += bn.assistant("Name:" + bn.gen("a", stop="\n") + "\nBirthday:" + bn.gen("b", stop="\n", temperature=0.2))

    with pytest.raises(bn.BadOutput, match="its options differ from those of the gens before it"):
        program.run(backend=backend)["b"]


def test_server_with_prefix_continues_a_deviating_turn(serve: Any, fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        prefix = body["messages"][-1]["content"]
        return fake.chat(" Ada\nAge: 9\n" if prefix == "Name:" else {"Birthday": " May 4\nSecret", "Job": " pilot\n"}[
            prefix.removesuffix(":").split("\n")[-1]
        ])  # fmt: skip

    api, backend = serve(answer, extensions=["prefix"])
    state = card.run(backend=backend)
    assert (state["name"], state["birthday"], state["job"]) == (" Ada", " May 4", " pilot")
    assert [body["messages"][-1]["content"] for body in api.bodies] == [
        "Name:",
        "Name: Ada\nBirthday:",
        "Name: Ada\nBirthday: May 4\nJob:",
    ]


def test_completion_of_several_gens_is_one_request(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(completion_api(fake, lambda prompt: " Ada\nJob: pilot\nAge: 9"), is_chat_model=False)
    state = two_gens.run(backend=backend)
    assert state.text() == "Name: Ada\nJob: pilot!"
    assert [(body["prompt"], body.get("stop"), body["max_tokens"]) for body in api.bodies] == [("Name:", None, 128)]


@pytest.mark.parametrize(
    ("text", "options", "n_requests"),
    [
        (" Ada\nAge: 9\n", {}, 2),  # the program continues with other text
        (" Ada\nJob: pi", {}, 2),  # no end of the gen
        (" Ada", {}, 2),  # no text left
        (" Ada\nJob: captain\n", {"temperature": 0.2}, 2),  # another distribution
        (" Ada\nJob: captain\n", {"stop": None}, 2),  # unknown end of the gen
        (" Ada\nJob: captain\n", {"n": 2}, 2),  # one text for two samples
        (" Ada\nJob: pilot\n", {"max_tokens": 90}, 1),
    ],
)
def test_unusable_speculation_is_requested_again(
    serve: Any, fake: ModuleType, text: str, options: dict[str, Any], n_requests: int
) -> None:
    api, backend = serve(
        completion_api(fake, lambda prompt: text if prompt == "Name:" else " pilot\nmore"), is_chat_model=False
    )
    state = two_gens.bind(**options).run(backend=backend)
    job = state["job"]
    assert (job[0] if isinstance(job, list) else job).startswith(" pilot")
    assert state["name"] == " Ada"
    assert len(api.bodies) == n_requests
    if n_requests == 2:
        assert api.bodies[1]["prompt"] == "Name: Ada\nJob:"


def test_text_ended_by_the_model_needs_no_stop(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(completion_api(fake, lambda prompt: " Ada\nJob: pilot", finish="stop"), is_chat_model=False)
    state = two_gens.run(backend=backend)
    assert (state["job"], len(api.bodies)) == (" pilot", 1)


def test_branches_do_not_share_a_sample(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(completion_api(fake, lambda prompt: " Ada\nJob: pilot\n"), is_chat_model=False)

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State) -> None:
        s += "Name:" + bn.gen("name", stop="\n")
        forks = s.fork(2)
        forks += "\nJob:" + bn.gen("job", stop="\n")
        forks.join()

    assert program.run(backend=backend)["job"] == [" Ada", " Ada"]
    assert len(api.bodies) == 3, "each branch draws its own sample"


@pytest.mark.parametrize(("option", "value"), [("priority", 1), ("deadline", 9.0), ("adapter", "poems")])
def test_option_that_the_api_lacks_is_refused(option: str, value: Any, serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat("Ada\n"))

    @bn.function(num_api_spec_tokens=40)
    def program(s: bn.State) -> None:
        s += bn.user("Who?") + bn.assistant("Name: " + bn.gen("a", stop="\n", **{option: value}))

    with pytest.raises(bn.Unsupported, match=f"^{option}: OpenAI's chat API"):
        program.run(backend=backend)["a"]
    assert not api.bodies


def test_stream_arrives_in_one_piece(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(completion_api(fake, lambda prompt: " Ada\nJob: pilot\n"), is_chat_model=False)
    state = two_gens.run(backend=backend, stream=True)
    assert (list(state.text_iter("name")), list(state.text_iter("job"))) == ([" Ada"], [" pilot"])
    assert "stream" not in api.bodies[0]


def test_record_replay_compile_and_batch_keep_the_option(serve: Any, fake: ModuleType, tmp_path: Path) -> None:
    api, backend = serve(lambda path, body: fake.chat(CARD))
    with bn.Record(backend, tmp_path / "recording") as recorder:
        assert card.run(backend=recorder)["job"] == " pilot"
    assert card.run(backend=bn.Replay(tmp_path / "recording"))["job"] == " pilot"
    assert bn.compile(card.bind()).run(backend=backend)["job"] == " pilot"
    states = card.run_batch([()] * 8, backend=backend)
    assert [state["job"] for state in states] == [" pilot"] * 8
    assert len(api.bodies) == 10


def test_concurrent_programs_get_their_own_text(serve: Any, fake: ModuleType) -> None:
    gate = threading.Barrier(2, timeout=30)

    def answer(path: str, body: Any) -> Any:
        gate.wait()
        return fake.chat(CARD.replace("Ada", body["messages"][0]["content"]))

    _, backend = serve(answer)

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State, name: str) -> None:
        s += bn.user(name) + bn.assistant("Name: " + bn.gen("a", stop="\n") + "\nBirthday:" + bn.gen("b", stop="\n"))

    assert [state["a"] for state in program.run_batch([("Bo",), ("Cy",)], backend=backend)] == ["Bo", "Cy"]


def test_mock_accepts_the_option() -> None:
    mock = bn.Mock({"name": " Ada", "birthday": " May 4", "job": " pilot"})
    assert card.run(backend=mock).messages()[-1]["content"] == CARD.rstrip()


@pytest.mark.parametrize("n", [0, -1, "many"])
def test_invalid_number_of_tokens_raises(n: Any) -> None:
    with pytest.raises(bn.BadProgram, match="num_api_spec_tokens"):
        bn.function(num_api_spec_tokens=n)(lambda s: None)
