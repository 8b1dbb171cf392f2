"""instructor: sentences to pydantic models.

    pip install instructor
    banyan serve pocket --http 8000
    python examples/clients/instructor_extract.py [URL]

The server constrains the output to the schema, so the first try is valid JSON.
"""

import datetime
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, PositiveInt


class Order(BaseModel):
    customer: str
    quantity: PositiveInt
    item: str
    price: float
    date: datetime.date


TEXTS = [
    "On 2027-03-06, Clara Jansen bought 14 lamps (order QX-204) and paid 343 euros.",
    "Order B4417: 250 bricks at 87.5 euros for Omar Costa, to be sent on 2028-11-30.",
]


def main(url: str = "http://127.0.0.1:8000") -> None:
    openai = OpenAI(base_url=f"{url}/v1", api_key="none")
    client = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)
    fields = ", ".join(Order.model_fields)
    for text in TEXTS:
        message = {"role": "user", "content": f"Extract {fields} as JSON.\nText: {text}"}
        order = client.create(model="pocket", response_model=Order, messages=[message], temperature=0)
        print(f"{text}\n  {order!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
