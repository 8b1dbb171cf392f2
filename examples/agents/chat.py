"""A streamed conversation: the user states facts, changes the subject, and asks for the facts later.

    python examples/agents/chat.py [--model MODEL | --socket PATH]

The whole conversation is one program and one message to the server; each reply streams as it is generated.
For an interactive chat: `banyan chat`.
"""

import banyan as bn
from common import Saved, choose_runtime, verdict

TURNS = {
    "Hello!": "Hello",
    "My name is Priya.": "Priya",
    "I bought a violin.": "",
    "My exam is on Thursday.": "",
    "What is a banyan tree?": "root",
    "What did I buy?": "violin",
    "When is my exam?": "Thursday",
    "Who am I?": "Priya",
}


@bn.function
def conversation(s, turns):
    for i, text in enumerate(turns):
        s += bn.user(text)
        s += bn.assistant(bn.gen(f"reply{i}", max_tokens=64, temperature=0))


def main() -> None:
    saved, right = Saved(), []
    state = conversation.run(list(TURNS), stream=True)
    for i, (text, known) in enumerate(TURNS.items()):
        print(f"  you  {text}\nmodel  ", end="")
        for piece in state.text_iter(f"reply{i}"):
            print(piece, end="", flush=True)
        print()
        right.append(known in state[f"reply{i}"])
    print(saved.add(state))
    verdict(right)


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
