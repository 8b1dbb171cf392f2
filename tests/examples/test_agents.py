"""Each example on a scripted Mock, and on the pocket model through the whole path."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer

import banyan as bn
from banyan.runtime.model.spec import SHIPPED
from forms import in_short

AGENTS = Path(__file__).resolve().parents[2] / "examples" / "agents"
NAMES = sorted(path.stem for path in AGENTS.glob("*.py") if path.stem != "common")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """`example("chat")`: the module, with its folder on the import path as for a script."""
    monkeypatch.syspath_prepend(AGENTS)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", AGENTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    sys.modules.pop("common", None)


@pytest.fixture(scope="module")
def pocket() -> Iterator[bn.Runtime]:
    with bn.Runtime(threads=1) as runtime:
        yield runtime


@pytest.fixture
def run_main(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """`run_main(module, backend)`: the exit status and the output of main."""

    def run(module: ModuleType, backend: object) -> tuple[int, str]:
        bn.set_default_backend(backend)
        try:
            module.main()
        except SystemExit as e:
            return int(e.code or 0), capsys.readouterr().out
        return 0, capsys.readouterr().out

    yield run
    bn.set_default_backend(None)


# ---- on a Mock: the program itself ---------------------------------------------------------------------------------


REACT = [
    *({"calculator": {"expression": "12.5*48"}}, "The answer is 600."),
    {"lookup": {"table": "prices", "key": "lamp"}},
    *({"calculator": {"expression": "14*24.5"}}, "The answer is 343."),
    ({"lookup": {"table": "prices", "key": "desk"}}, {"lookup": {"table": "prices", "key": "chair"}}),
    *({"calculator": {"expression": "180+79.9"}}, "The answer is 259.9."),
    *({"convert": {"value": 26.2, "from_unit": "miles", "to_unit": "km"}}, "26.2 miles is 42.16 km."),
    *({"add_days": {"date": "2027-01-20", "days": 45}}, "The date is 2027-03-06."),
]


def test_react_tools_runs_each_call_and_prints_its_result(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    status, out = run_main(example("react_tools"), bn.Mock(REACT))
    assert status == 0
    assert "  model: calculator(expression='12.5*48')\n  tool:  600\n  model: The answer is 600.\n" in out
    assert "tool:  2027-03-06\n" in out
    assert out.endswith("5 of 5 right\n")


def test_react_tools_returns_errors_to_the_model_and_reports_wrong_answers(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    mock = bn.Mock(
        lambda prompt, name: "7" if "<|im_start|>tool\n" in prompt else {"calculator": {"expression": "1/0"}}
    )
    status, out = run_main(example("react_tools"), mock)
    assert status == 1
    assert "tool:  error: ZeroDivisionError: division by zero" in out
    assert "wrong: it is 600" in out
    assert out.endswith("0 of 5 right\n")
    assert "division by zero<|im_end|>" in mock.calls[1].prompt


def test_react_tools_reports_a_model_that_never_answers(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    status, out = run_main(
        example("react_tools"), bn.Mock(lambda prompt, name: {"lookup": {"table": "prices", "key": "x"}})
    )
    assert status == 1
    assert out.count("the model still calls tools (lookup) after 5 rounds") == 5


@pytest.mark.parametrize(
    "invalid_call",
    [{"rm": {}}, {"calculator": {"expression": "open(1)"}}, {"lookup": {"key": 1}}, {"add_days": {"date": "?"}}],
)
def test_react_tools_answers_an_invalid_call_with_an_error(
    invalid_call: dict[str, dict[str, object]], example: Callable[..., ModuleType]
) -> None:
    state = example("react_tools").agent.run("?", backend=bn.Mock([invalid_call, "never mind"]))
    (call,) = state.tool_calls("answer")
    assert call.is_error
    assert call.result.startswith("error: ")


def test_few_shot_counts_correct_labels(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    module = example("few_shot")
    labels = {note["text"]: note["label"] for note in module.REST}
    assert len(labels) >= 100

    def script(prompt: str, name: str) -> str:
        text = re.findall(r"Text: (.*)\nLabel:<", prompt)[0]
        return "music" if "trumpet" in text else labels[text]

    status, out = run_main(module, bn.Mock(script))
    n_wrong = sum("trumpet" in text and label != "music" for text, label in labels.items())
    assert status == 0
    assert f"{len(labels) - n_wrong} of {len(labels)} right" in out


def test_extract_compares_values_not_text(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    module = example("extract")
    expected = {text: record for _, text, record in module.TEXTS}

    def script(prompt: str, name: str) -> str:
        text = re.findall(r"Text: (.*)<\|im_end\|>", prompt)[0]
        return "no JSON" if "Helen" in text else str(expected[text]).replace("'", '"').replace(", ", " ,\n")

    status, out = run_main(module, bn.Mock(script))
    assert status == 1
    assert out.endswith("3 of 4 right\n")


def test_chat_is_one_program_in_one_message(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    module = example("chat")
    mock = bn.Mock([expected or "I will remember that." for expected in module.TURNS.values()])
    status, out = run_main(module, mock)
    assert status == 0
    assert len(mock.submits) == 1
    assert out.count("model  ") == len(module.TURNS)


def test_tree_of_thought_finds_a_solution_with_forks(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]]
) -> None:
    turn = itertools.count()

    def script(prompt: str, name: str) -> str:
        numbers = re.findall(r"Numbers: (.*)\n", prompt)[-1].split()
        steps = [f"{a}{sign}{b}" for a, b in itertools.combinations(numbers, 2) for sign in "+*"]
        return ["nonsense", *steps][next(turn) % (len(steps) + 1)]

    module = example("tree_of_thought")
    status, out = run_main(module, bn.Mock(script))
    assert status == 0
    for numbers, target in module.PUZZLES:
        path = re.search(rf"Reach {target} from .*\n(?:   .*\n)+  (.*)\n", out)
        assert path
        assert reaches_target(path[1].split(", then "), numbers, target)


def reaches_target(steps: list[str], numbers: tuple[int, ...], target: int) -> bool:
    remaining = list(numbers)
    for step in steps:
        a, sign, b = re.fullmatch(r"(\d+)([+*])(\d+)", step).groups()  # type: ignore[union-attr]
        remaining.remove(int(a))
        remaining.remove(int(b))
        remaining.append(int(a) * int(b) if sign == "*" else int(a) + int(b))
    return remaining[-1] == target


# ---- on the pocket model: the whole path ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", in_short(("chat", "extract", "react_tools"), NAMES))
def test_example_is_correct_on_the_pocket_model(
    name: str, example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]], pocket: bn.Runtime
) -> None:
    if name == "mcp_tools":
        pytest.importorskip("mcp", reason="the extra mcp is not installed")
    status, out = run_main(example(name), pocket)
    assert status == 0, out
    prompt, cached, computed = map(int, re.findall(r"prompt (\d+) tokens = (\d+) cached \+ (\d+) computed", out)[-1])
    assert prompt == cached + computed
    assert cached > 0
    pocket.ask("check")


def test_react_tools_computes_only_new_tokens(example: Callable[..., ModuleType], pocket: bn.Runtime) -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED / "pocket" / "tokenizer.json"))
    # not in the tree: no example asks this question
    state = example("react_tools").agent.run("What is 17.5 times 36?", backend=pocket)
    first, second = state.get_meta_info("answer")["rounds"]
    new = "<|im_end|>\n<|im_start|>tool\n630<|im_end|>\n<|im_start|>assistant\n"
    assert second["prompt_tokens"] == first["prompt_tokens"] + first["completion_tokens"] + len(tokenizer.encode(new))
    assert second["prompt_tokens"] - second["cached_tokens"] == len(tokenizer.encode(new))


def test_few_shot_computes_its_prefix_once_and_repeats_cost_one_token_per_request(
    example: Callable[..., ModuleType], run_main: Callable[..., tuple[int, str]], pocket: bn.Runtime
) -> None:
    module = example("few_shot")
    tokenizer = Tokenizer.from_file(str(SHIPPED / "pocket" / "tokenizer.json"))
    prompts = [
        tokenizer.encode(
            f"<|im_start|>user\n{module.PREFIX}Text: {note['text']}\nLabel:<|im_end|>\n<|im_start|>assistant\n"
        ).ids
        for note in module.REST
    ]
    n_shared = next(i for i, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1)
    n_needed = n_shared + sum(len(ids) - n_shared for ids in prompts)
    pocket.ask("flush")
    _, out = run_main(module, pocket)
    (prompt, _, first), (_, _, second) = (
        map(int, counts) for counts in re.findall(r"prompt (\d+) tokens = (\d+) cached \+ (\d+) computed", out)
    )
    assert prompt == sum(map(len, prompts))
    assert first <= 1.05 * n_needed
    assert second <= len(prompts)
    assert min(map(int, re.findall(r"(\d+) of 120 right", out))) >= 108


def test_example_runs_from_the_command_line_with_a_running_server(
    pocket: bn.Runtime, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = run_python(str(AGENTS / "extract.py"), "--socket", str(pocket.socket))
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("4 of 4 right\n")


@pytest.mark.parametrize("name", NAMES)
def test_docstring_of_each_example_has_its_command(name: str) -> None:
    docstring = ast.get_docstring(ast.parse((AGENTS / f"{name}.py").read_text())) or ""
    assert f"python examples/agents/{name}.py [--model MODEL | --socket PATH]" in docstring
