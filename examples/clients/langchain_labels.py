"""LangChain: a chain of prompt, model and parser labels 24 notes, 8 at a time.

    pip install langchain-openai
    banyan serve pocket --http 8000
    python examples/clients/langchain_labels.py [URL]

The notes share one prefix, which is computed once.
"""

import json
import sys
from pathlib import Path

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

DATA = Path(__file__).parents[1] / "agents/data/notes.jsonl"
NOTES = [json.loads(line) for line in DATA.read_text().splitlines()]
EXAMPLES, REST = NOTES[:12], NOTES[12:36]
PREFIX = "Label each text.\n" + "".join(f"Text: {note['text']}\nLabel: {note['label']}\n\n" for note in EXAMPLES)
LABELS = sorted({note["label"] for note in EXAMPLES})


def main(url: str = "http://127.0.0.1:8000") -> None:
    only = {"choices": LABELS}  # the model can write nothing else
    model = ChatOpenAI(model="pocket", base_url=f"{url}/v1", api_key="none", temperature=0, extra_body=only)
    chain = ChatPromptTemplate.from_messages([("user", PREFIX + "Text: {text}\nLabel:")]) | model | StrOutputParser()
    labels = chain.batch([{"text": note["text"]} for note in REST], config={"max_concurrency": 8})
    for note, label in list(zip(REST, labels, strict=True))[:4]:
        print(f"{label:8} {note['text']}")
    right = sum(label == note["label"] for note, label in zip(REST, labels, strict=True))
    print(f"{right} of {len(REST)} right")


if __name__ == "__main__":
    main(*sys.argv[1:])
