"""An agent with tools: the model writes a call, the tool runs, its result goes back, until the model answers.

    python examples/agents/react_tools.py [--model MODEL | --socket PATH]

Every round sends only the tool's result: all that stands before it lies in the tree, as KV, on the server.
"""

import ast
import datetime
import json
import operator
from typing import get_type_hints

import banyan as bn
from common import Saved, choose_runtime, verdict

PRICES = {"lamp": 24.5, "desk": 180, "chair": 79.9}
METRES = {"km": 1000, "m": 1, "miles": 1609.344, "feet": 0.3048}
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def number(value: float) -> str:
    return f"{round(value, 2):.12g}"


def calculator(expression: str):
    "Work out an arithmetic expression."

    def value(node):
        match node:
            case ast.Constant():
                return node.value
            case ast.BinOp():
                return SIGNS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("only numbers, + - * / and brackets")

    return number(value(ast.parse(expression, mode="eval").body))


def convert(value: float, from_unit: str, to_unit: str):
    "Convert a value between units."
    return number(value * METRES[from_unit] / METRES[to_unit])


def add_days(date: str, days: int):
    "Add days to a date."
    return datetime.date.fromisoformat(date) + datetime.timedelta(days)


def lookup(table: str, key: str):
    "Find a key in a table."
    return {"prices": PRICES}[table][key]


TOOLS = {tool.__name__: tool for tool in (calculator, convert, add_days, lookup)}


def describe(tool) -> str:
    """One line of JSON, from the function's own name, docstring and annotations."""
    kinds = {str: "string", float: "number", int: "integer"}
    parameters = {name: kinds[kind] for name, kind in get_type_hints(tool).items()}
    return json.dumps({"name": tool.__name__, "description": tool.__doc__, "parameters": parameters})


SYSTEM = "\n".join(
    ["You are a careful assistant. Use the tools.", f"Tables: prices ({', '.join(PRICES)}).", "<tools>"]
    + [describe(tool) for tool in TOOLS.values()]
    + ["</tools>"]
)


def run_call(text: str) -> str:
    """The result of the call in the model's turn, or what was wrong with it: the model reads either."""
    try:
        call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
        return str(TOOLS[call["name"]](**call["arguments"]))
    except (KeyError, TypeError, ValueError, SyntaxError, ArithmeticError) as error:
        return f"error: {error}"


@bn.function
def agent(s, question, max_rounds=6):
    s += bn.system(SYSTEM) + bn.user(question)
    for _ in range(max_rounds):
        s += bn.assistant(bn.gen("turn", max_tokens=80, temperature=0))
        print("  model:", turn := s["turn"])
        if "<tool_call>" not in turn:
            return turn
        print("  tool: ", result := run_call(turn))
        s += bn.role("tool", result)
    return "no answer"


QUESTIONS = {
    "What is 12.5 times 48?": "600",
    "Priya buys 14 lamps. What is the price?": "343",
    "How much do a desk and a chair cost?": "259.9",
    "Convert 26.2 miles to km.": "42.16",
    "What date is 45 days after 2027-01-20?": "2027-03-06",
}


def main() -> None:
    saved, right = Saved(), []
    for question, known in QUESTIONS.items():
        print(question)
        state = agent.run(question)
        saved.add(state)
        right.append(known in state.ret_value)
        print("  right\n" if right[-1] else f"  wrong: it is {known}\n")
    print(saved)
    verdict(right)


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
