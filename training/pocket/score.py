"""Held-out scores of a pocket model, greedy and without constraints: `python -m pocket.score`

Scores need only a callable `generate(prompts) -> texts` (greedy, up to the end of the turn), so any runtime can be
scored. Tool conversations run as in an agent: the real functions execute the model's calls, the results are appended to
the conversation, and the answer must contain the right value.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from banyan.runtime.model.pocket import path
from pocket import strangers
from pocket.chat import END, GENERATE, Message, Sample, parse_call, render
from pocket.data import ACKNOWLEDGE, CHAT, samples
from pocket.newcomers import NEWCOMERS
from pocket.strangers import STRANGERS, Author
from pocket.tools import run

Generate = Callable[[list[str]], list[str]]

SEED = 99
MAX_CALLS = 4
TARGETS = {"tools": 0.95, "json": 0.94, "few_shot": 0.90, "recall": 0.95, "reading": 0.90, "chat": 0.94}
STRANGE_TARGETS = {"tools": 0.90, "json": 0.85, "few_shot": 0.80, "recall": 0.90, "chat": 0.85}
SCORES = Path(__file__).parent / "scores.json"
CARD = path().parents[1] / "CARD.md"
MARK = "<!-- scores -->"


def hugging_face(folder: Path, *, batch: int = 16, max_new_tokens: int = 96) -> Generate:
    """`generate` by transformers' own Llama in float32."""
    tok = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(prompts: list[str]) -> list[str]:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        texts = [""] * len(prompts)
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            inputs = tok([prompts[i] for i in chosen], return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.inference_mode():
                out = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
            new = tok.batch_decode(out[:, inputs["input_ids"].shape[1] :])
            for i, text in zip(chosen, new, strict=True):
                texts[i] = text.split(END)[0]
        return texts

    return generate


def _text(messages: Sequence[Message], sample: Sample) -> str:
    return "".join(span.text for span in render(messages, sample.tools)) + GENERATE


def _agents(generate: Generate, chosen: Sequence[Sample], show: int = 0) -> list[list[bool]]:
    """Runs all tool conversations in lockstep. Returns for each whether its questions were answered correctly."""
    talks: list[list[Message]] = [[] for _ in chosen]
    right: list[list[bool]] = [[] for _ in chosen]
    waiting = [[m for m in sample.messages if m["role"] in ("system", "user")] for sample in chosen]
    n_calls = [0] * len(chosen)

    def advance(i: int) -> bool:
        while waiting[i]:
            talks[i].append(waiting[i].pop(0))
            if talks[i][-1]["role"] == "user":
                n_calls[i] = 0
                return True
        return False

    live = [i for i in range(len(chosen)) if advance(i)]
    while live:
        texts = generate([_text(talks[i], chosen[i]) for i in live])
        going = []
        for i, text in zip(live, texts, strict=True):
            call = parse_call(text)
            if call and n_calls[i] < MAX_CALLS:
                n_calls[i] += 1
                talks[i].append({"role": "assistant", "content": text})
                talks[i].append({"role": "tool", "content": run(*call, chosen[i].functions)})
                going.append(i)
                continue
            right[i].append(not call and strangers.says(text, chosen[i].answers[len(right[i])]))
            talks[i].append({"role": "assistant", "content": text})
            if not right[i][-1] and show:
                show -= 1
                print(f"--- tools\n{_text(talks[i], chosen[i])[-700:]}\n!!! {chosen[i].answers[len(right[i]) - 1]!r}")
            if advance(i):
                going.append(i)
        live = going
    return right


def _questions(sample: Sample, *, is_last: bool) -> list[tuple[str, str]]:
    """(prompt, expected text) of each question of a sample. With `is_last`, in plain text and in the family few_shot:
    only of the last."""
    if sample.plain:
        parts = [str(part) for part in sample.plain]
        return [("".join(parts[:-2]), parts[-2].strip())]
    turns = [i for i, m in enumerate(sample.messages) if m["role"] == "assistant"]
    if sample.family == "few_shot" or is_last:
        turns = turns[-1:]
    elif sample.family == "recall":  # only questions, not the chat between them
        told = {ACKNOWLEDGE, *(answer for _, answer in CHAT)}
        turns = [i for i in turns if not {(said := str(sample.messages[i]["content"])), said[:6]} & {*told, "Hello "}]
    return [(_text(sample.messages[:i], sample), str(sample.messages[i]["content"])) for i in turns]


def score(
    generate: Generate, family: str, n: int, *, seed: int = SEED, show: int = 0, author: Author | None = None
) -> tuple[float, int]:
    """(Share of correct answers, number of answers) over n held-out samples.

    show: how many wrong answers to print. author: the author of the held-out set; None: the first set.
    """
    chosen = strangers.samples(family, n, seed, author) if author else samples(family, n, seed)
    if family == "tools":
        marks = _agents(generate, chosen, show)
        flat = [good for mark in marks for good in mark]
        return sum(flat) / len(flat), len(flat)
    asked = [question for sample in chosen for question in _questions(sample, is_last=author is not None)]
    texts = generate([prompt for prompt, _ in asked])
    if author:
        good = [strangers.is_right(family, text, goal) for (_, goal), text in zip(asked, texts, strict=True)]
    elif family == "puzzle":
        good = [
            _is_step(prompt, text) if "Propose" in prompt.rsplit("user", 1)[-1] else text == goal
            for (prompt, goal), text in zip(asked, texts, strict=True)
        ]
    else:
        good = [text.strip().split("\n")[0] == goal for (_, goal), text in zip(asked, texts, strict=True)]
    for (prompt, goal), text, ok in zip(asked, texts, good, strict=True):
        if not ok and show:
            show -= 1
            print(f"--- {family}\n{prompt[-700:]}\n>>> {text!r}\n!!! {goal!r}")
    return sum(good) / len(good), len(good)


def _is_step(prompt: str, text: str) -> bool:
    """Whether a proposed step uses two of the puzzle's numbers."""
    numbers = prompt.rsplit("Numbers: ", 1)[1].split("\n")[0].split()
    for number in text.replace("*", "+").split("+"):
        if number not in numbers:
            return False
        numbers.remove(number)
    return len(text.replace("*", "+").split("+")) == 2


@torch.inference_mode()
def acceptance(target: Path, draft: Path, *, depth: int = 3, n: int = 60, seed: int = SEED) -> float:
    """The share of drafted tokens that are accepted if `draft` proposes `depth` greedy tokens per step.

    Measured on the assistant turns of held-out tool calls and JSON. The true text stands in for the target's output;
    they differ in a few per cent. A drafted token is accepted if it and all tokens before it in its draft are right.
    """
    tok = AutoTokenizer.from_pretrained(target)
    model = LlamaForCausalLM.from_pretrained(draft, dtype=torch.float32).eval()
    accepted = drafted = 0
    for sample in [*samples("tools", n // 2, seed), *samples("json", n // 2, seed)]:
        before: list[int] = []
        for span in sample.spans():
            ids = tok(span.text, add_special_tokens=False).input_ids
            at = 0
            while span.is_target and at < len(ids):
                text, n_right = [*before, *ids[:at]], 0
                for k in range(min(depth, len(ids) - at)):
                    drafted += 1
                    token = int(model(torch.tensor([text])).logits[0, -1].argmax())
                    if token != ids[at + k]:
                        drafted += min(depth, len(ids) - at) - k - 1
                        break
                    n_right += 1
                    text.append(token)
                accepted += n_right
                at += n_right + 1
            before += ids
    return accepted / drafted


def record(n: int = 100) -> dict[str, Any]:
    """Scores the shipped models and writes `scores.json` and the tables in the card."""
    generate = hugging_face(path("pocket"))
    scores: dict[str, Any] = {"strangers": {}, "newcomers": {}}
    for author in (None, STRANGERS, NEWCOMERS):
        for family in strangers.FAMILIES if author else (*TARGETS, "puzzle"):
            share, n_answers = score(generate, family, n, author=author)
            (scores[author.name] if author else scores)[family] = {"share": round(share, 4), "n": n_answers}
            print(author.name if author else "first set", family, f"{share:.1%} of {n_answers}", flush=True)
    scores["draft_acceptance"] = {"share": round(acceptance(path("pocket"), path("draft"), n=n // 5), 4), "depth": 3}
    SCORES.write_text(json.dumps(scores, indent=2) + "\n")
    CARD.write_text(CARD.read_text().split(MARK)[0] + card_scores(scores))
    return scores


def card_scores(scores: dict[str, Any]) -> str:
    """The last section of the card, from the content of scores.json."""

    def table(scores: dict[str, Any], targets: dict[str, float]) -> str:
        def goal(text: str) -> str:
            return f"{text}|" if targets else ""

        lines = ["| family | right | answers |" + goal(" goal "), "|---|---|---|" + goal("---")]
        lines += [
            f"| {family} | {s['share']:.1%} | {s['n']} |"
            + goal(f" {f'{targets[family]:.0%}' if family in targets else ''} ")
            for family, s in scores.items()
            if "n" in s
        ]
        return "\n".join(lines) + "\n\n"

    draft = scores["draft_acceptance"]
    return (
        f"{MARK}\n## Held-out scores\n\n"
        f"Greedy, no constraint, by `score.py` (seed {SEED}), transformers' Llama in float32.\n\n"
        f"{table(scores, TARGETS)}"
        f"On the strangers' set:\n\n{table(scores['strangers'], STRANGE_TARGETS)}"
        f"On the newcomers' set:\n\n{table(scores['newcomers'], {})}"
        f"Draft: {draft['share']:.1%} of the tokens it drafts are accepted at depth {draft['depth']}"
        " (tool calls and JSON).\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=path("pocket"), help="a model folder")
    parser.add_argument("--n", type=int, default=100, help="samples per family")
    parser.add_argument(
        "--families", nargs="*", default=["tools", "json", "few_shot", "recall", "reading", "chat", "puzzle"]
    )
    authors = parser.add_mutually_exclusive_group()
    for flag, author in (("--strange", STRANGERS), ("--new", NEWCOMERS)):
        authors.add_argument(
            flag, dest="author", action="store_const", const=author, help=f"score the {author.name}' set"
        )
    parser.add_argument("--show", type=int, default=0, help="print this many wrong answers of each family")
    parser.add_argument("--record", action="store_true", help="write scores.json and the card's table")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.record:
        record(args.n)
        return
    generate = hugging_face(args.model)
    for family in args.families:
        started = time.monotonic()
        if args.author and family not in strangers.FAMILIES:
            continue
        share, n_answers = score(generate, family, args.n, show=args.show, author=args.author)
        print(f"{family:10} {share:6.1%} of {n_answers} ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
