"""The anthropic package: a streamed conversation. `cache_control` makes the server keep the KV.

    banyan serve pocket --http 8000
    python examples/clients/anthropic_chat.py [URL]

A turn computes only its own tokens.
"""

import sys

from anthropic import Anthropic

TURNS = ["My name is Priya.", "My exam is on Thursday.", "What is a banyan tree?", "When is my exam?", "Who am I?"]


def main(url: str = "http://127.0.0.1:8000") -> None:
    messages = []
    with Anthropic(base_url=url, api_key="none") as client:
        for text in TURNS:
            messages.append({"role": "user", "content": text})
            print(f"you: {text}\npocket: ", end="")
            with client.messages.stream(
                model="pocket",
                messages=messages,
                max_tokens=64,
                cache_control={"type": "ephemeral"},
                extra_body={"temperature": 0},
            ) as stream:
                for piece in stream.text_stream:
                    print(piece, end="", flush=True)
                reply = stream.get_final_message()
            print(f"  ({reply.usage.cache_read_input_tokens} tokens cached, {reply.usage.input_tokens} computed)")
            messages.append({"role": "assistant", "content": reply.content})


if __name__ == "__main__":
    main(*sys.argv[1:])
