"""Sentences to JSON: the prompt contains the schema; the output is parsed with `json.loads` and compared.

    python examples/agents/extract.py [--model MODEL | --socket PATH]

The four programs are one batch and run together.
"""

import json

import banyan as bn
from common import Saved, choose_runtime, verdict

ORDER = {"customer": "string", "quantity": "integer", "item": "string", "price": "number", "date": "string"}
PERSON = {"name": "string", "age": "integer", "job": "string", "city": "string"}
TEXTS = [
    (
        ORDER,
        "On 2027-03-06, Clara Jansen bought 14 lamps (order QX-204) and paid 343 euros.",
        {"customer": "Clara Jansen", "quantity": 14, "item": "lamp", "price": 343, "date": "2027-03-06"},
    ),
    (
        ORDER,
        "Order B4417: 250 bricks at 87.5 euros for Omar Costa, to be sent on 2028-11-30.",
        {"customer": "Omar Costa", "quantity": 250, "item": "brick", "price": 87.5, "date": "2028-11-30"},
    ),
    (
        PERSON,
        "Meet Yuki Larsen: 41 years old, carpenter, living in Porto, email yuki@drelo.org.",
        {"name": "Yuki Larsen", "age": 41, "job": "carpenter", "city": "Porto"},
    ),
    (
        PERSON,
        "The dentist Helen Okafor (58) lives in Nairobi. Email: helen.okafor@stanu.net.",
        {"name": "Helen Okafor", "age": 58, "job": "dentist", "city": "Nairobi"},
    ),
]


@bn.function
def extract(s, schema, text):
    s += bn.user(f"Extract JSON.\nSchema: {json.dumps(schema)}\nText: {text}")
    s += bn.assistant(bn.gen("record", max_tokens=120, temperature=0))


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def main() -> None:
    saved = Saved()
    states = extract.run_batch([{"schema": schema, "text": text} for schema, text, _ in TEXTS])
    right = []
    for state, (_schema, text, known) in zip(states, TEXTS, strict=True):
        print(f"{text}\n  {state['record']}")
        right.append(parsed(state["record"]) == known)
    print(saved.add(*states))
    verdict(right)


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
