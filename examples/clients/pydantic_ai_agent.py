"""pydantic-ai: an agent whose tool reads the dependencies of a run.

    pip install 'pydantic-ai-slim[openai]'
    banyan serve pocket --http 8000
    python examples/clients/pydantic_ai_agent.py [URL]

The request with the tool's result reuses the KV of the request that led to the call.
"""

import sys

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

TABLES = {"prices": {"lamp": 24.5, "desk": 180, "chair": 79.9}, "stock": {"lamp": 14, "desk": 2, "chair": 0}}
agent = Agent(deps_type=dict, model_settings={"temperature": 0})


@agent.system_prompt
def tables(context: RunContext[dict]) -> str:
    names = "; ".join(f"{name} ({', '.join(table)})" for name, table in context.deps.items())
    return f"You are a careful assistant. Use the tools.\nTables: {names}."


@agent.tool
def lookup(context: RunContext[dict], table: str, key: str) -> str:
    """Find a key in a table."""
    return str(context.deps[table][key])


def main(url: str = "http://127.0.0.1:8000") -> None:
    model = OpenAIChatModel("pocket", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    for question in ("What is the price of the desk?", "How many lamps are in stock?"):
        print(question)
        result = agent.run_sync(question, deps=TABLES, model=model)
        for message in result.all_messages():
            for part in message.parts:
                if part.part_kind == "tool-return":
                    print(f"  {part.tool_name}: {part.content}")
        print(" ", result.output)


if __name__ == "__main__":
    main(*sys.argv[1:])
