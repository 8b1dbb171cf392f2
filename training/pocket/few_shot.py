"""Few-shot classification: labelled examples, then a text to label. Only the examples contain the label names."""

# Phrases are long lines.
# ruff: noqa: E501

from collections.abc import Callable

from pocket.chat import Content, Message, Sample, Target
from pocket.words import BAD, GOOD, ITEMS, TOPICS, Draw, Phrases

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
WAYS_TWO = (
    "{n} [saw|wrote about|asked for|spoke of|looked at|lost|sold|wants|drew|thinks of] [the|a|one] {a} and [the|a|one] {b}.",
    "[The|A|One|This] {a} [is|was|lies|stood|came|belongs|went] [by|on|with|under|behind|before|after|beside|to] [the|a] {b}.",
    "[We|They|You|I] [have|took|like|need|lost|want|draw|heard of] [the|a] {a} [and|or|with|but no|for|instead of] [the|a] {b}.",
    "[Where|What|Who|How] [is|was|needs|has] [the|a] {a}[,| and| or| with] [the|a] {b}?",
    "[Some|Every|Each|First the|Only the|Both the] {a} and [a|the|one] {b}[.|!|]",
)
WAYS_ONE = (
    "{n} [saw|wrote about|wants|spoke of|looked at|lost|sold|brought|drew|thinks of] [the|a|one] {a}[.| today.| again.| at home.]",
    "[The|A|This|One|Our] {a} [is new|was good|came late|is gone|stood here|has no name|is old].",
    "[We|They|You|I] [have|took|like|need|lost|want|draw|heard of] [the|a|one] {a}[.|!| now.]",
    "[Where|What|Who|How] [is|was|needs|has] [the|a] {a}?",
)  # fmt: skip
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


def _classes(d: Draw, n: int, *, short: bool) -> tuple[list[Callable[[], str]], list[tuple[str, ...]]]:
    """n functions that make the texts of n classes, which differ by topic, opinion or made-up keywords.

    Also returns the made-up keywords of each class, because only the examples show what they mean; [] without them.
    """
    kind = d.rng.random()
    if n == 2 and kind < 0.2:

        def opinion(words: tuple[str, ...]) -> str:
            a, b = d.some(words, 2)
            return d.say(OPINION, a=a, b=b, i=d.listed(ITEMS), n=d.name())

        makers: list[Callable[[], str]] = [lambda: opinion(GOOD), lambda: opinion(BAD)]
        d.rng.shuffle(makers)
        return makers, []
    keys: list[tuple[str, ...]] = []
    if kind < 0.65:
        groups = [tuple(TOPICS[t].split()) for t in d.some(tuple(TOPICS), n)]
    else:
        words = d.distinct("word", 3 * n)
        groups = keys = [tuple(words[3 * i : 3 * i + 3]) for i in range(n)]

    def about(group: tuple[str, ...]) -> str:
        a, b = d.some(group, 2)
        if short:
            return d.say(BARE, a=a, b=b)
        phrases, ways = (ABOUT_TWO, WAYS_TWO) if d.chance(0.6) else (ABOUT_ONE, WAYS_ONE)
        return d.said(phrases, ways, a=a, b=b, n=d.name())

    return [lambda g=g: about(g) for g in groups], keys  # type: ignore[misc]


def few_shot(d: Draw) -> Sample:
    """k labelled examples, then a text to label. Only the examples contain the label names."""
    n = d.pick((2, 2, 3, 3, 4))
    labels = d.distinct("label", n)
    makers, keys = _classes(d, n, short=d.chance(0.5))
    k = d.rng.randrange(2 * n, d.pick((9, 13, 25, 25)))
    order = [*range(n), *range(n)] + [d.rng.randrange(n) for _ in range(k - 2 * n)]
    d.rng.shuffle(order)
    shown = [""] * n  # the texts of each class so far

    def is_told(c: int, text: str) -> bool:
        """Whether the class of a text follows from the examples so far."""
        return any(key in text and key in shown[c] for key in keys[c]) if keys else bool(shown[c])

    pairs: list[tuple[str, str, bool]] = []
    for c in order:
        text = makers[c]()
        pairs.append((text, labels[c], is_told(c, text)))
        shown[c] += f" {text}"
    asked = d.rng.randrange(n)
    while not is_told(asked, question := makers[asked]()):
        pass
    form = d.rng.random()
    head = d.say(INSTRUCTIONS)
    if form < 0.15:  # as turns
        messages: list[Message] = [{"role": "system", "content": head}] if head else []
        for text, label, told in [*pairs, (question, labels[asked], True)]:
            answer: Message = {"role": "assistant", "content": label, "is_given": not told}
            messages += [{"role": "user", "content": text}, answer]
        return Sample("few_shot", tuple(messages))
    before, between, after = ("Text: ", "\nLabel:", "\n\n") if form < 0.75 else ("", " ->", "\n")
    parts: list[str] = []
    for text, label, told in pairs:
        parts += [f"{before}{text}{between}", Target(f" {label}") if told else f" {label}", after]
    parts.append(f"{before}{question}{between}")
    if d.chance(0.5) and form < 0.75:  # plain text, no template
        lead = f"{head}\n\n" if head else ""
        return Sample("few_shot", plain=(lead, *parts, Target(f" {labels[asked]}"), Target("\n\n")))
    content: Content = (f"{head}\n" if head else "", *parts)
    return Sample("few_shot", ({"role": "user", "content": content}, {"role": "assistant", "content": labels[asked]}))
