"""An agent with tools: the model calls tools and reads their results until it answers.

    python examples/agents/react_tools.py [--model MODEL | --socket PATH]

The tools run in this process, the loop runs on the server. A round sends and computes only the results of the tools;
the KV of everything before them is in the radix tree.
"""

import ast
import datetime
import operator

import banyan as bn
from common import Saved, choose_runtime, verdict

PRICES = {"lamp": 24.5, "desk": 180, "chair": 79.9}
METRES = {"km": 1000, "m": 1, "miles": 1609.344, "feet": 0.3048}
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def number(value: float) -> str:
    return f"{round(value, 2):.12g}"


@bn.tool
def calculator(expression: str):
    "Work out an arithmetic expression."

    def value(node):
        match node:
            case ast.Constant(value=int() | float() as known):
                return known
            case ast.UnaryOp(op=ast.USub()):
                return -value(node.operand)
            case ast.BinOp() if type(node.op) in SIGNS:
                return SIGNS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("only numbers, + - * / and brackets")

    return number(value(ast.parse(expression, mode="eval").body))


@bn.tool
def convert(value: float, from_unit: str, to_unit: str):
    "Convert a value between units."
    return number(value * METRES[from_unit] / METRES[to_unit])


@bn.tool
def add_days(date: str, days: int):
    "Add days to a date."
    return datetime.date.fromisoformat(date) + datetime.timedelta(days)


@bn.tool
def lookup(table: str, key: str):
    "Find a key in a table."
    return {"prices": PRICES}[table][key]


SYSTEM = f"You are a careful assistant. Use the tools.\nTables: prices ({', '.join(PRICES)})."
TOOLS = [calculator, convert, add_days, lookup]


@bn.function
def agent(s, question):
    s += bn.system(SYSTEM) + bn.user(question)
    s += bn.assistant(bn.gen("answer", tools=TOOLS, max_rounds=5, max_tokens=80, temperature=0))
    for call in s.tool_calls("answer"):
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        print(f"  model: {call.name}({arguments})")
        print(f"  tool:  {call.result}")
    print("  model:", s["answer"])
    return s["answer"]


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
        try:
            state = agent.run(question)
            saved.add(state)
            right.append(known in state.ret_value)
        except bn.ToolError as error:  # the model never stops calling tools
            print(f"  {error.message}")
            right.append(False)
        print("  right\n" if right[-1] else f"  wrong: it is {known}\n")
    print(saved)
    verdict(right)


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
