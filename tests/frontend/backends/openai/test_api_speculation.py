"""Several gens out of one request: `num_api_spec_tokens`."""

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
def line(s: bn.State, **options: Any) -> None:
    s += "Name:" + bn.gen("name", stop="\n") + "\nJob:" + bn.gen("job", **{"stop": "\n", **options}) + "!"


def plain(fake: ModuleType, said: Callable[[str], str], finish: str = "length") -> Callable[[str, Any], Any]:
    """A completion API that goes on as `said` says, and stops where it is told to."""

    def answer(path: str, body: Any) -> Any:
        text = said(body["prompt"])
        for stop in body.get("stop", ()):
            text = text.split(stop)[0]
        told = fake.completion(text)
        told["choices"][0]["finish_reason"] = finish
        return told

    return answer


def test_a_turn_with_several_gens_is_one_request_of_a_chat_api(serve: Any, fake: ModuleType) -> None:
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
    assert (usage.prompt, usage.generated) == (9, 2), "paid once"


def test_a_turn_that_departs_is_asked_for_again(serve: Any, fake: ModuleType) -> None:
    answers = ["Sure! " + CARD, CARD.replace("Job:", "Trade:"), CARD]
    api, backend = serve(lambda path, body: fake.chat(answers[len(api.bodies) - 1]))
    state = card.run(backend=backend)
    assert state["job"] == " pilot"
    assert len(api.bodies) == 3
    assert state.usage.prompt == 27, "all three are paid for"


def test_a_turn_that_always_departs_is_an_error_that_says_where(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(lambda path, body: fake.chat(CARD.replace("Job:", "Trade:")))
    state = card.run(backend=backend)
    with pytest.raises(bn.BadOutput, match=r"behind 'Name: Ada.*May 4.n' it says 'Trade: pilot") as raised:
        state["job"]
    assert raised.value.gen == "job"
    assert (state["name"], len(api.bodies)) == (" Ada", 3)
    api.answer = lambda path, body: fake.chat("I cannot.")
    with pytest.raises(bn.BadOutput, match=r"it says 'I cannot.', and it should go on with 'Name:'.*asked 3 times"):
        card.run(backend=backend)["name"]


def test_options_that_differ_within_a_turn_are_an_error(serve: Any, fake: ModuleType) -> None:
    _, backend = serve(lambda path, body: fake.chat(CARD))

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State) -> None:
        s += bn.assistant("Name:" + bn.gen("a", stop="\n") + "\nBirthday:" + bn.gen("b", stop="\n", temperature=0.2))

    with pytest.raises(bn.BadOutput, match="it has other options than those before it"):
        program.run(backend=backend)["b"]


def test_a_server_that_continues_turns_is_asked_where_the_program_departs(serve: Any, fake: ModuleType) -> None:
    def answer(path: str, body: Any) -> Any:
        begun = body["messages"][-1]["content"]
        return fake.chat(" Ada\nAge: 9\n" if begun == "Name:" else {"Birthday": " May 4\nSecret", "Job": " pilot\n"}[
            begun.removesuffix(":").split("\n")[-1]
        ])  # fmt: skip

    api, backend = serve(answer, extensions=["prefix"])
    state = card.run(backend=backend)
    assert (state["name"], state["birthday"], state["job"]) == (" Ada", " May 4", " pilot")
    assert [body["messages"][-1]["content"] for body in api.bodies] == [
        "Name:",
        "Name: Ada\nBirthday:",
        "Name: Ada\nBirthday: May 4\nJob:",
    ]


def test_a_completion_api_is_asked_once_where_it_foresees_the_text(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(plain(fake, lambda prompt: " Ada\nJob: pilot\nAge: 9"), is_chat_model=False)
    state = line.run(backend=backend)
    assert state.text() == "Name: Ada\nJob: pilot!"
    assert [(body["prompt"], body.get("stop"), body["max_tokens"]) for body in api.bodies] == [("Name:", None, 128)]


@pytest.mark.parametrize(
    ("said", "options", "n_requests"),
    [
        (" Ada\nAge: 9\n", {}, 2),  # the program goes on otherwise
        (" Ada\nJob: pi", {}, 2),  # its end is not there
        (" Ada", {}, 2),  # nothing is left
        (" Ada\nJob: captain\n", {"temperature": 0.2}, 2),  # not as it would be drawn
        (" Ada\nJob: captain\n", {"stop": None}, 2),  # nobody can tell where it ends
        (" Ada\nJob: captain\n", {"n": 2}, 2),  # of one there are no two
        (" Ada\nJob: pilot\n", {"max_tokens": 90}, 1),
    ],
)
def test_what_is_not_foreseen_is_asked_for(
    serve: Any, fake: ModuleType, said: str, options: dict[str, Any], n_requests: int
) -> None:
    api, backend = serve(plain(fake, lambda prompt: said if prompt == "Name:" else " pilot\nmore"), is_chat_model=False)
    state = line.bind(**options).run(backend=backend)
    job = state["job"]
    assert (job[0] if isinstance(job, list) else job).startswith(" pilot")
    assert state["name"] == " Ada"
    assert len(api.bodies) == n_requests
    if n_requests == 2:
        assert api.bodies[1]["prompt"] == "Name: Ada\nJob:"


def test_a_text_that_the_model_ended_needs_no_stop(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(plain(fake, lambda prompt: " Ada\nJob: pilot", finish="stop"), is_chat_model=False)
    state = line.run(backend=backend)
    assert (state["job"], len(api.bodies)) == (" pilot", 1)


def test_branches_draw_their_own(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(plain(fake, lambda prompt: " Ada\nJob: pilot\n"), is_chat_model=False)

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State) -> None:
        s += "Name:" + bn.gen("name", stop="\n")
        forks = s.fork(2)
        forks += "\nJob:" + bn.gen("job", stop="\n")
        forks.join()

    assert program.run(backend=backend)["job"] == [" Ada", " Ada"]
    assert len(api.bodies) == 3, "a sample that both took would be one sample"


def test_a_gen_that_streams_comes_in_one_piece(serve: Any, fake: ModuleType) -> None:
    api, backend = serve(plain(fake, lambda prompt: " Ada\nJob: pilot\n"), is_chat_model=False)
    state = line.run(backend=backend, stream=True)
    assert (list(state.text_iter("name")), list(state.text_iter("job"))) == ([" Ada"], [" pilot"])
    assert "stream" not in api.bodies[0]


def test_every_way_to_make_a_program_keeps_it(serve: Any, fake: ModuleType, tmp_path: Path) -> None:
    api, backend = serve(lambda path, body: fake.chat(CARD))
    with bn.Record(backend, tmp_path / "tape") as recorder:
        assert card.run(backend=recorder)["job"] == " pilot"
    assert card.run(backend=bn.Replay(tmp_path / "tape"))["job"] == " pilot"
    assert bn.compile(card.bind()).run(backend=backend)["job"] == " pilot"
    states = card.run_batch([()] * 8, backend=backend)
    assert [state["job"] for state in states] == [" pilot"] * 8
    assert len(api.bodies) == 10


def test_programs_that_run_at_once_do_not_mix(serve: Any, fake: ModuleType) -> None:
    gate = threading.Barrier(2, timeout=30)

    def answer(path: str, body: Any) -> Any:
        gate.wait()
        return fake.chat(CARD.replace("Ada", body["messages"][0]["content"]))

    _, backend = serve(answer)

    @bn.function(num_api_spec_tokens=64)
    def program(s: bn.State, name: str) -> None:
        s += bn.user(name) + bn.assistant("Name: " + bn.gen("a", stop="\n") + "\nBirthday:" + bn.gen("b", stop="\n"))

    assert [state["a"] for state in program.run_batch([("Bo",), ("Cy",)], backend=backend)] == ["Bo", "Cy"]


def test_backends_without_requests_take_it() -> None:
    mock = bn.Mock({"name": " Ada", "birthday": " May 4", "job": " pilot"})
    assert card.run(backend=mock).messages()[-1]["content"] == CARD.rstrip()


@pytest.mark.parametrize("n", [0, -1, "many"])
def test_a_number_that_cannot_be(n: Any) -> None:
    with pytest.raises(bn.BadProgram, match="num_api_spec_tokens"):
        bn.function(num_api_spec_tokens=n)(lambda s: None)
