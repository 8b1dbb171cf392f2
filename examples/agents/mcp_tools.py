"""The tools of an MCP server beside a tool of this process: the model combines them.

    pip install '.[mcp]'
    python examples/agents/mcp_tools.py [--model MODEL | --socket PATH]

`bn.mcp` takes any command that starts an MCP server, or the URL of one.
"""

import sys
from pathlib import Path

import banyan as bn
from common import Saved, choose_runtime, verdict

SERVER = [sys.executable, Path(__file__).parent / "data/shop_server.py"]
SYSTEM = "You are a careful assistant. Use the tools.\nTables: prices (lamp, desk, chair); stock (lamp, desk, chair)."


@bn.tool
def calculator(expression: str):
    "Work out an arithmetic expression."
    sign = "*" if "*" in expression else "+"
    left, right = map(float, expression.split(sign))
    return f"{left * right if sign == '*' else left + right:g}"


@bn.function
def agent(s, question, tools):
    s += bn.system(SYSTEM) + bn.user(question)
    s += bn.assistant(bn.gen("answer", tools=tools, max_rounds=5, max_tokens=80, temperature=0))


QUESTIONS = {
    "How many lamps are in stock?": "14",
    "What do 12 lamps cost?": "294",
    "What do a desk and a chair cost together?": "259.9",
}


def main() -> None:
    saved, right = Saved(), []
    with bn.mcp(SERVER) as tools:
        for question, known in QUESTIONS.items():
            state = agent.run(question, [*tools, calculator])
            print(question)
            for call in state.tool_calls("answer"):
                print(f"  {call.name}({', '.join(map(str, call.arguments.values()))}) = {call.result}")
            print(f"  {state['answer']}")
            right.append(known in state["answer"])
            saved.add(state)
    print(saved)
    verdict(right)


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
