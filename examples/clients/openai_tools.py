"""The openai package: pydantic models as tools, and a loop that runs what the model calls.

    banyan serve pocket --http 8000
    python examples/clients/openai_tools.py [URL]

The arguments match the models, because the server enforces the schemas.
"""

import datetime
import sys

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class AddDays(BaseModel):
    "Add days to a date."

    date: str
    days: int

    def __call__(self):
        return datetime.date.fromisoformat(self.date) + datetime.timedelta(self.days)


class DaysBetween(BaseModel):
    "Count the days between two dates."

    start: str
    end: str

    def __call__(self):
        return (datetime.date.fromisoformat(self.end) - datetime.date.fromisoformat(self.start)).days


TOOLS = [pydantic_function_tool(AddDays, name="add_days"), pydantic_function_tool(DaysBetween, name="days_between")]
QUESTIONS = ["What date is 45 days after 2027-01-20?", "How many days are between 2027-01-20 and 2027-03-06?"]


def answer(client: OpenAI, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    for _ in range(5):
        found = client.chat.completions.parse(model="pocket", messages=messages, tools=TOOLS, temperature=0)
        message = found.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            try:
                result = call.function.parsed_arguments()
            except ValueError as error:  # a date such as 2027-02-30
                result = f"Error: {error}"
            print(f"  {call.function.name}({call.function.arguments}) = {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    return "no answer after five rounds"


def main(url: str = "http://127.0.0.1:8000") -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for question in QUESTIONS:
            print(question)
            print(" ", answer(client, question))


if __name__ == "__main__":
    main(*sys.argv[1:])
