"""Label 120 notes from 12 examples: 120 requests run together and share one prefix, which is computed once.

    python examples/agents/few_shot.py [--model MODEL | --socket PATH]

In the second pass the radix tree holds every prompt, and only the last token of each is computed, for its logits.
"""

import json
from pathlib import Path

import banyan as bn
from common import Saved, choose_runtime

NOTES = [json.loads(line) for line in (Path(__file__).parent / "data/notes.jsonl").read_text().splitlines()]
EXAMPLES, REST = NOTES[:12], NOTES[12:]
PREFIX = "Label each text.\n" + "".join(f"Text: {note['text']}\nLabel: {note['label']}\n\n" for note in EXAMPLES)


@bn.function
def label(s, text):
    s += bn.user(f"{PREFIX}Text: {text}\nLabel:")
    s += bn.assistant(bn.gen("label", max_tokens=8, temperature=0, stop="\n"))


def main() -> None:
    for attempt in ("first", "second"):
        saved = Saved()
        states = label.run_batch([{"text": note["text"]} for note in REST], progress_bar=True)
        right = sum(state["label"].strip() == note["label"] for state, note in zip(states, REST, strict=True))
        print(f"{attempt} pass: {right} of {len(REST)} right\n  {saved.add(*states)}")
        print(f"  {saved.computed / len(REST):.1f} prompt tokens computed a request")


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
