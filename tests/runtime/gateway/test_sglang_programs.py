"""Programs in the forms of SGLang's benchmarks, with `RuntimeEndpoint("http://...")`: the results of the socket."""

from __future__ import annotations

from typing import Any

import pytest

import banyan as sgl

GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"
WORDS = ("the oak", "a fig")
FEW_SHOTS = "".join(f"Question: What is {n} plus 1?\nAnswer: {n + 1}\n\n" for n in range(4))
QUESTION = "What is 23 plus 48?"
PAGE = "Lisbon is the capital of Portugal, on the river Tejo. "


@sgl.function
def boolq(s, question):  # type: ignore[no-untyped-def]
    s += FEW_SHOTS + "Question: " + question + "\nAnswer:" + sgl.gen("answer", max_tokens=5, stop=["\n"])


@sgl.function
def ceval(s, question):  # type: ignore[no-untyped-def]
    s += FEW_SHOTS + question + sgl.gen("answer", choices=["A", "B", "C", "D"])


@sgl.function
def rate(s, name, event):  # type: ignore[no-untyped-def]
    s += "Here is a description of " + name + ".\n" + "Event: " + event + "Rate (1 to 10):"
    s += sgl.gen(name="Rate", max_tokens=2, temperature=0)


@sgl.function
def triple(s, name, event):  # type: ignore[no-untyped-def]
    s += "Turn the input into (subject, predicate, object).\n" + name + "is" + event + ".\n"
    s += "(" + name + "," + sgl.gen(name="Triple", max_tokens=12, stop=")", temperature=0)


@sgl.function
def generative_agents(s, question):  # type: ignore[no-untyped-def]
    states = [program.run(name=question, event="walks") for program in (rate, triple)]
    for state in states:
        s += state.text() + "\n"
    s += "Emoji:" + sgl.gen(name="Emoji", max_tokens=6)


@sgl.function
def gsm8k(s, question):  # type: ignore[no-untyped-def]
    s += FEW_SHOTS + question
    s += sgl.gen("answer", max_tokens=24, stop=["Question", "Assistant:", "<|separator|>"])


@sgl.function
def hellaswag(s, question):  # type: ignore[no-untyped-def]
    s += FEW_SHOTS + question + sgl.select("answer", choices=[" sits down.", " swims away.", " sings."])


@sgl.function
def json_decode_regex(s, question):  # type: ignore[no-untyped-def]
    s += PAGE + question + "\n{\n" + '  "name": ' + sgl.gen("name", max_tokens=8, regex=r'"[\w\s]{1,8}"') + ",\n"
    s += '  "population": ' + sgl.gen("population", max_tokens=8, regex=r"[0-9]{1,6}") + "\n}\n"


CHARACTER = (
    '\\{\n    "name": "[\\w\\d\\s]{1,16}",\n    "house": "(Oak|Fig)",\n    "length": [0-9]{1,2}\\.[0-9]{0,2}\n\\}'
)
CITY = '\\{\n  "name": "[\\w\\d\\s]{1,16}",\n  "top": \\["[\\w\\d\\s]{1,8}", "[\\w\\d\\s]{1,8}"\\]\n\\}'


@sgl.function
def json_jump_forward_character(s, question):  # type: ignore[no-untyped-def]
    s += question + " is a character.\n" + sgl.gen("json_output", max_tokens=100, regex=CHARACTER)


@sgl.function
def json_jump_forward_city(s, question):  # type: ignore[no-untyped-def]
    s += "Page begin.\n" + PAGE + question + "Page end.\n" + sgl.gen("json_output", max_tokens=100, regex=CITY)


@sgl.function
def line_retrieval(s, question):  # type: ignore[no-untyped-def]
    bodies = [f"line {i}: REGISTER_CONTENT is {i * 7}" for i in range(4)]
    s += "Here is a list of lines.\n"
    forks = s.fork(len(bodies), [i * 1000 for i in range(len(bodies))])  # it warns, as it does nothing here
    forks += lambda i: bodies[i] + "\n"
    forks.join(mode="concate_and_append")
    s += "\n" + question + sgl.gen("answer", max_tokens=16)


@sgl.function
def llava_bench(s, question):  # type: ignore[no-untyped-def]
    s += sgl.user(sgl.image(GIF) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=16))


@sgl.function
def llm_judge(s, question):  # type: ignore[no-untyped-def]
    dimensions = ["Content: well researched.", "Structure: a clear body.", "Grammar: proper use."]
    s += "Please serve as a judge.\n```\n" + question + "\n```\n\n"
    forks = s.fork(len(dimensions))
    for i in range(len(dimensions)):
        forks[i] += "USER: Judge the metric. " + dimensions[i] + '\nEnd with the word "END"\nJUDGE:'
        forks[i] += sgl.gen("judgement", max_tokens=12, stop="END")
    forks.join()
    for i in range(len(dimensions)):
        s += dimensions[i].split(":")[0] + ": " + forks[i]["judgement"].strip() + "\n"
    s += "In summary, I would give the article a score of" + sgl.gen("score", max_tokens=2)


@sgl.function
def long_json_decode(s, question):  # type: ignore[no-untyped-def]
    s += "Page begin.\n" + PAGE * 5 + question + "Page end.\n{\n"
    s += '  "name": "' + sgl.gen("name", max_tokens=8, stop='"') + '",\n'
    s += '  "air port code": "' + sgl.gen("air port code", max_tokens=8, stop='"') + '",\n}\n'


@sgl.function
def mmlu(s, question):  # type: ignore[no-untyped-def]
    s += FEW_SHOTS + question + sgl.gen("answer", max_tokens=1)


@sgl.function
def mtbench(s, question):  # type: ignore[no-untyped-def]
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer_1", max_tokens=16))
    s += sgl.user("Go on.") + sgl.assistant(sgl.gen("answer_2", max_tokens=16))


@sgl.function
def multi_chain_reasoning(s, question):  # type: ignore[no-untyped-def]
    hints = ["Think step by step.", "Break this down.", "I am extremely good at math."]
    s += "Question: " + question + "\n"
    forks = s.fork(3)
    for i in range(3):
        forks[i] += "Answer: " + hints[i] + sgl.gen("chain", max_tokens=16, temperature=0.3, seed=i, stop="Question")
    forks.join()
    for i in range(3):
        s += f"Solution {i + 1}: " + forks[i]["chain"].strip() + "\n\n"
    s += "The final answer is " + sgl.gen("answer", max_tokens=8)


@sgl.function
def multi_document_qa(s, question):  # type: ignore[no-untyped-def]
    documents = [PAGE, "Paris is in France. ", "Rome is in Italy. "]
    s += sgl.user_begin()
    s += "Question:" + question + "Documents begin.\n"
    forks = s.fork(len(documents))
    forks += lambda i: documents[i]
    forks.join("concate_and_append")
    s += "\nDocuments end." + sgl.user_end()
    s += sgl.assistant(sgl.gen("answer", max_tokens=16))


@sgl.function
def multi_turn_chat(s, question):  # type: ignore[no-untyped-def]
    for turn in range(3):
        s += question + str(turn)
        s += sgl.gen(max_tokens=8, ignore_eos=True)


@sgl.function
def react(s, question):  # type: ignore[no-untyped-def]
    steps = [("I search it.", "Search[oak]", "An oak is a tree."), ("I know it.", "Finish[tree]", "Done.")]
    s += "Solve a task with Thought, Action, Observation.\n" + question
    for i in range(1, len(steps) + 2):
        s += "Thought " + str(i) + ":"
        thought = s.fork(1)
        thought[0] += sgl.gen(name="thought_action", max_tokens=16, stop="Observation")
        thought.join()
        if i > len(steps):
            break
        said, action, seen = steps[i - 1]
        s += said + "\nAction " + str(i) + ":" + action + "\nObservation " + str(i) + ":" + seen + "\n"


@sgl.function
def expand_tip(s, topic, tip):  # type: ignore[no-untyped-def]
    s += "Expand a tip for " + topic + ":" + tip + "\nParagraph:"
    s += sgl.gen("paragraph", max_tokens=12, stop=["\n\n"], temperature=0)


@sgl.function
def tip_suggestion(s, question):  # type: ignore[no-untyped-def]
    s += "Two tips for " + question + ":\n1." + sgl.gen("tip_1", max_tokens=8, stop=[":", "."])
    s += "\n2." + sgl.gen("tip_2", max_tokens=8, stop=[":", "."]) + "\n"
    paragraphs = [expand_tip(topic=question, tip=s[name]) for name in ("tip_1", "tip_2")]
    for i, paragraph in enumerate(paragraphs):
        s += f"Tip {i + 1}:" + paragraph["paragraph"] + "\n"


def think(s: Any, prompt: str, name: str) -> Any:
    s += sgl.user(prompt)
    forks = s.fork(2)
    forks += sgl.assistant(sgl.gen(name, max_tokens=8, temperature=0.001, seed=3))
    return forks


@sgl.function
def tree_of_thought_v0(s, question):  # type: ignore[no-untyped-def]
    plans = think(s, "Plan: " + question, "plan")
    solutions = [fork for plan in plans for fork in think(plan, "Solve it.", "answer")]
    return [one.text() for one in solutions]


@sgl.function
def tree_of_thought_deep(s, question):  # type: ignore[no-untyped-def]
    leaves = [s]
    for prompt, name in (("Plan: " + question, "plan"), ("Solve it.", "answer"), ("Score it.", "score")):
        leaves = [fork for leaf in leaves for fork in think(leaf, prompt, name)]
    return [one.text() for one in leaves]


PROGRAMS: tuple[Any, ...] = (
    *(boolq, ceval, generative_agents, gsm8k, hellaswag, json_decode_regex, json_jump_forward_character),
    *(json_jump_forward_city, line_retrieval, llava_bench, llm_judge, long_json_decode, mmlu, mtbench),
    *(multi_chain_reasoning, multi_document_qa, multi_turn_chat, react, tip_suggestion, tree_of_thought_deep),
    tree_of_thought_v0,
)

SHORT = (multi_document_qa, react, tip_suggestion)


def results(program: Any, backend: Any) -> list[Any]:
    """What a benchmark reads of its states: texts, variables, what the program returns, or the error."""
    sgl.set_default_backend(backend)
    try:
        arguments = [{"question": f"{QUESTION} Which tree is it, {word}?"} for word in WORDS]
        states = program.run_batch(arguments, temperature=0, num_threads=2, on_error="return")
        return [
            (state.text(), {name: state[name] for name in state._values}, state.ret_value)
            if state.error() is None
            else (type(state.error()).__name__, str(state.error()))
            for state in states
        ]
    finally:
        sgl.set_default_backend(None)


@pytest.mark.filterwarnings("ignore:position_ids_offset")
@pytest.mark.parametrize(
    "program",
    [pytest.param(one, id=one.name, marks=() if one in SHORT else pytest.mark.long) for one in PROGRAMS],
)
def test_benchmark_of_sglang_has_the_results_of_the_socket(
    program: Any, over_socket: sgl.RuntimeEndpoint, url: str
) -> None:
    expected = results(program, over_socket)
    with sgl.RuntimeEndpoint(url) as backend:
        assert results(program, backend) == expected
    assert all((one[0] == "Unsupported") == (program is llava_bench) for one in expected), expected
