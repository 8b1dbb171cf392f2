"""Few-shot classification: labelled examples, then a text to label; the label names stand nowhere but in the examples."""

# Phrases are read as lists, in long lines.
# ruff: noqa: E501

from collections.abc import Callable

from banyan.runtime.model.pocket.chat import Content, Message, Sample, Target
from banyan.runtime.model.pocket.words import BAD, GOOD, ITEMS, TOPICS, Draw, Phrases

ABOUT_TWO = Phrases(
    train=("We talked about the {a} and the {b}.", "The {a} was better than the {b}.", "{n} asked about the {a} and the {b}.", "A {a} and a {b}.",
           "I saw the {a}, then the {b}.", "{n} wrote about the {a} and a {b}.", "The {b} came with a {a}.", "There was no {a} and no {b}.",
           "Where are the {a} and the {b}?", "{n} needs a {a} and a {b}.", "The {a} of {n} and the {b}.", "{a}, {b}"),
    held=("{n} told me about a {a} and the {b}.", "They found the {a} near the {b}.", "No {a} without a {b}."),
)  # fmt: skip
ABOUT_ONE = Phrases(
    train=(
        "{n} likes the {a}.",
        "The {a} is here.",
        "What about the {a}?",
        "{n} came back with the {a}.",
        "I need a {a} today.",
        "This is about the {a}.",
        "The {a}",
    ),
    held=("{n} asked for a {a}.", "Tell me about the {a}."),
)
OPINION = Phrases(
    train=(
        "The {i} is {a}.",
        "What a {a} {i}!",
        "{n} found the {i} {a} and {b}.",
        "A {a} and {b} {i}.",
        "I think the {i} was {a}.",
        "This {i} is {a}, {n} says.",
    ),
    held=("{n} says the {i} was {a} and {b}.", "The {a} {i} of {n} is {b}."),
)
INSTRUCTIONS = Phrases(
    train=(
        "Classify the text.",
        "Give the label of the last text.",
        "Label each text.",
        "Which label fits?",
        "Sort the texts.",
        "",
    ),
    held=("Classify each text.", "Label the last text."),
)


BARE = Phrases(("{a}", "{a}, {b}", "The {a}", "A {a}", "{a} and {b}"), ("The {a} and the {b}", "{b}"))


def _classes(d: Draw, n: int, *, short: bool) -> list[Callable[[], str]]:
    """n classes, each a maker of texts: by topic, by opinion, or by arbitrary key words shared with the examples."""
    kind = d.rng.random()
    if n == 2 and kind < 0.2:

        def opinion(words: tuple[str, ...]) -> str:
            a, b = d.some(words, 2)
            return d.say(OPINION, a=a, b=b, i=d.listed(ITEMS), n=d.name())

        makers: list[Callable[[], str]] = [lambda: opinion(GOOD), lambda: opinion(BAD)]
        d.rng.shuffle(makers)
        return makers
    if kind < 0.65:
        groups = [tuple(TOPICS[t].split()) for t in d.some(tuple(TOPICS), n)]
    else:
        words = d.distinct("word", 3 * n)
        groups = [tuple(words[3 * i : 3 * i + 3]) for i in range(n)]

    def about(group: tuple[str, ...]) -> str:
        a, b = d.some(group, 2)
        phrases = BARE if short else ABOUT_TWO if d.chance(0.6) else ABOUT_ONE
        return d.say(phrases, a=a, b=b, n=d.name())

    return [lambda g=g: about(g) for g in groups]  # type: ignore[misc]


def few_shot(d: Draw) -> Sample:
    """k labelled examples, then a text to label; the label names stand nowhere but in the examples."""
    n = d.pick((2, 2, 3, 3, 4))
    labels = d.distinct("label", n)
    makers = _classes(d, n, short=d.chance(0.5))
    k = d.rng.randrange(2 * n, d.pick((9, 13, 25, 25)))
    order = [*range(n), *range(n)] + [d.rng.randrange(n) for _ in range(k - 2 * n)]
    d.rng.shuffle(order)
    pairs = [(makers[c](), labels[c]) for c in [*order, d.rng.randrange(n)]]
    seen: set[str] = set()
    parts: list[str] = []
    form = d.rng.random()
    head = d.say(INSTRUCTIONS)
    if form < 0.15:  # as turns
        messages: list[Message] = [{"role": "system", "content": head}] if head else []
        for text, label in pairs:
            answer = {"role": "assistant", "content": label, "is_given": label not in seen}
            messages += [{"role": "user", "content": text}, answer]
            seen.add(label)
        return Sample("few_shot", tuple(messages))
    before, between, after = ("Text: ", "\nLabel:", "\n\n") if form < 0.75 else ("", " ->", "\n")
    for text, label in pairs[:-1]:
        parts += [f"{before}{text}{between}", Target(f" {label}") if label in seen else f" {label}", after]
        seen.add(label)
    question, label = pairs[-1]
    if d.chance(0.5) and form < 0.75:  # plain text, no template
        lead = f"{head}\n\n" if head else ""
        return Sample(
            "few_shot", plain=(lead, *parts, f"{before}{question}{between}", Target(f" {label}"), Target("\n\n"))
        )
    lead = f"{head}\n" if head else ""
    content: Content = (lead, *parts, f"{before}{question}{between}")
    return Sample("few_shot", ({"role": "user", "content": content}, {"role": "assistant", "content": label}))
