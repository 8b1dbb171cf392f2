"""The pocket model's training text: one seeded generator per family of tasks, and their mixture.

Every family is a function that takes a `Draw` and returns a `Sample`. Names, codes, labels and values are drawn anew
for each sample, so that the model learns to find and copy instead of memorizing. `FAMILIES` lists the families; those
for reading, recall, chat, puzzles and drills are in this file.
"""

# Phrases are long lines.
# ruff: noqa: E501

import itertools
from collections.abc import Callable, Iterator

from pocket.chat import Message, Sample, Target
from pocket.everyday import (
    everyday_chat,
    everyday_few_shot,
    everyday_json,
    everyday_reading,
    everyday_recall,
    everyday_tools,
    subjects,
)
from pocket.few_shot import few_shot
from pocket.records import extraction
from pocket.transcripts import SYSTEMS, tool_calls
from pocket.words import ANIMALS, COLOURS, DAYS, JOBS, TOPICS, Draw, Phrases

# --- reading, recall, chat -------------------------------------------------------------------------------------------

# relation -> (statements, questions, kind of value); {n}: the person, {v}: the value
FACTS: dict[str, tuple[Phrases, Phrases, str]] = {
    "city": (Phrases(("{n} lives in {v}.", "The home of {n} is in {v}.", "{n} moved to {v} and lives there.", "{n} is at home in {v}.", "Since May {n} lives in {v}.", "{v} is the city of {n}.", "{n} has a home in {v}."), ("Today {n} lives in {v}.",)),
             Phrases(("Where does {n} live?", "In which city does {n} live?", "Which city is the home of {n}?", "What city is the home of {n}?", "What is the city of {n}?", "Which city does {n} live in?"), ("In what city does {n} live?",)), "city"),
    "job": (Phrases(("{n} works as a {v}.", "{n} is a {v}.", "The job of {n} is {v}.", "{n} earns money as a {v}.", "As a job, {n} is a {v}.", "By day {n} works as a {v}.", "{n} has the job of a {v}."), ("By profession, {n} works as a {v}.",)),
            Phrases(("What is the job of {n}?", "What does {n} work as?", "Which job does {n} have?", "What is the work of {n}?", "What job is it that {n} has?", "As what does {n} work?"), ("What job does {n} have?",)), "job"),
    "pet": (Phrases(("{n} has a pet called {v}.", "The pet of {n} is called {v}.", "{v} is the pet of {n}.", "{n} and the pet {v} are always together.", "{n} feeds a pet called {v}.", "The pet that {n} has is called {v}."), ("At home, {n} has a pet called {v}.",)),
            Phrases(("What is the pet of {n} called?", "Which pet does {n} have?", "Who is the pet of {n}?", "What is the name of the pet of {n}?", "What pet does {n} have?", "How does {n} call the pet?"), ("How is the pet of {n} called?",)), "name"),
    "colour": (Phrases(("{n} likes the colour {v}.", "The favourite colour of {n} is {v}.", "{n} always wears {v}, a favourite colour.", "The colour of {n} is {v}.", "{v} is the colour that {n} likes.", "{n} loves the colour {v}."), ("The colour that {n} likes is {v}.",)),
               Phrases(("Which colour does {n} like?", "What is the favourite colour of {n}?", "Which colour is the favourite of {n}?", "What colour is the favourite of {n}?", "Which is the colour of {n}?"), ("What colour does {n} like?",)), "colour"),
    "code": (Phrases(("The code of {n} is {v}.", "{n} got the code {v}.", "{n} uses {v} as a code.", "{v} is the code of {n}.", "With {v} as code {n} gets in.", "{n} was given the code {v}."), ("{n} has the code {v}.",)),
             Phrases(("What is the code of {n}?", "Which code does {n} have?", "Which code does {n} use?", "What code was given to {n}?", "What code does {n} have?", "With which code does {n} get in?"), ("What code does {n} use?",)), "code"),
    "day": (Phrases(("{n} comes on {v}.", "The visit of {n} is on {v}.", "On {v}, {n} comes to visit.", "{n} visits us on {v}.", "{v} is the day of the visit of {n}.", "The day {n} comes is {v}."), ("We expect the visit of {n} on {v}.",)),
            Phrases(("When does {n} come?", "On which day does {n} visit?", "Which day is the visit of {n}?", "What day does {n} visit?", "When is the visit of {n}?", "On which day does {n} come?", "What is the day of the visit of {n}?"), ("On what day does {n} come?",)), "day"),
    "age": (Phrases(("{n} is {v} years old.", "The age of {n} is {v}.", "{n} turned {v} years.", "{n} has the age of {v} years.", "Now {n} is {v} years old.", "{n} is aged {v}."), ("At present {n} is {v} years old.",)),
            Phrases(("How old is {n}?", "What is the age of {n}?", "Which age is {n}?", "What is the age that {n} has?", "How many years old is {n}?", "At what age is {n}?"), ("What age is {n}?",)), "age"),
    "phone": (Phrases(("The phone number of {n} is {v}.", "{n} can be called at {v}.", "To call {n}, dial {v}.", "{n} answers the phone at {v}.", "The number of {n} is {v}.", "Dial {v} for {n}.", "You reach {n} at {v}."), ("Call {n} at {v}.",)),
              Phrases(("What is the phone number of {n}?", "Which number do I call for {n}?", "What is the number of {n}?", "How do I call {n}?", "What number do I call for {n}?", "Which number do I dial for {n}?"), ("What number do I dial to call {n}?",)), "phone"),
    "item": (Phrases(("{n} bought a {v}.", "{n} came home with a new {v}.", "A {v} was bought by {n}.", "{n} went out and bought a {v}.", "Today {n} bought a {v}.", "{n} paid for a {v}."), ("Yesterday {n} bought a {v}.",)),
             Phrases(("What did {n} buy?", "What was bought by {n}?", "Which thing was bought by {n}?", "What thing did {n} pay for?", "Which new thing does {n} have?"), ("Which thing did {n} buy?",)), "item"),
    "room": (Phrases(("{n} is in room {v}.", "The room of {n} is {v}.", "You find {n} in room {v}.", "{n} works in room {v}.", "{n} waits in room {v}.", "Room {v} is the room of {n}.", "{n} has the room {v}."), ("{n} stays in room {v}.",)),
             Phrases(("In which room is {n}?", "What is the room of {n}?", "Where do I find {n}?", "Which room has {n}?", "What room is {n} in?", "Which room does {n} have?", "In what room do I find {n}?"), ("Which room is {n} in?",)), "room"),
}  # fmt: skip
MINE = {
    "name": (Phrases(("My name is {v}.", "I am called {v}.", "Hello, I am {v}.", "Hi, my name is {v}.", "I am {v}.", "Good morning, my name is {v}.", "People call me {v}.", "Hello, I am called {v}."), ("Hello, my name is {v}.",)), Phrases(("What is my name?", "Who am I?", "Do you know my name?", "Tell me my name.", "Say my name, please.", "What am I called?", "Can you tell me my name?", "Please say who I am."), ("Please tell me my name.",)), "Your name is {v}.", "name"),
    "city": (Phrases(("I live in {v}.", "My home is in {v}.", "My city is {v}.", "My home is the city of {v}.", "I moved to {v}.", "Now I live in {v}.", "I am at home in {v}."), ("I live in the city of {v}.",)), Phrases(("Where do I live?", "In which city do I live?", "Which city is my home?", "Which city do I live in?", "What is my city?", "What city is my home?", "Tell me where I live.", "Do you know where I live?"), ("What city do I live in?",)), "You live in {v}.", "city"),
    "job": (Phrases(("I work as a {v}.", "My job is {v}.", "I am a {v}.", "Now I work as a {v}.", "As a job, I am a {v}.", "I earn money as a {v}."), ("These days I work as a {v}.",)), Phrases(("What is my job?", "What do I work as?", "Do you know my job?", "Which job do I have?", "Say what my job is.", "Please tell me what my job is.", "As what do I work?"), ("Tell me my job.",)), "Your job is {v}.", "job"),
    "pet": (Phrases(("My pet is called {v}.", "I have a pet called {v}.", "{v} is my pet.", "My pet has the name {v}.", "I live with a pet called {v}.", "I feed my pet {v}."), ("At home I have a pet called {v}.",)), Phrases(("What is my pet called?", "Which pet do I have?", "What is the name of my pet?", "How do I call my pet?", "Tell me what my pet is called.", "Do you know my pet?", "Who is my pet?"), ("How is my pet called?",)), "Your pet is called {v}.", "name"),
    "colour": (Phrases(("My favourite colour is {v}.", "I like the colour {v}.", "I love the colour {v}.", "The colour I love is {v}.", "{v} is the colour I like.", "{v} is my favourite colour."), ("The colour I like is {v}.",)), Phrases(("What is my favourite colour?", "Which colour do I like?", "What colour is my favourite?", "Tell me my favourite colour.", "Do you know which colour I like?", "Which is my colour?"), ("What colour do I like?",)), "Your favourite colour is {v}.", "colour"),
    "code": (Phrases(("My code is {v}.", "Remember the code {v}.", "The door code is {v}.", "Keep the code {v} in mind.", "The code {v} is mine.", "Please keep the code {v}.", "I use the code {v}."), ("Please remember the code {v}.",)), Phrases(("What is the code?", "Which code did I tell you?", "What is my code?", "What was the code?", "Tell me the code.", "Which code is mine?", "Do you know the code I told you?", "What code do I use?"), ("What code did I tell you?",)), "The code is {v}.", "code"),
    "day": (Phrases(("My exam is on {v}.", "The exam is on {v}.", "On {v} I have my exam.", "{v} is the day of my exam.", "I take the exam on {v}.", "There is an exam on {v} for me."), ("I have an exam on {v}.",)), Phrases(("When is my exam?", "On which day is the exam?", "Which day is my exam?", "What is the day of my exam?", "When do I have the exam?", "Tell me when my exam is.", "What day do I have the exam?"), ("What day is my exam?",)), "Your exam is on {v}.", "day"),
    "age": (Phrases(("I am {v} years old.", "My age is {v}.", "I turned {v}.", "Today I am {v} years old.", "Now I am {v} years old.", "I turned {v} years old this week."), ("I just turned {v} years old.",)), Phrases(("How old am I?", "What is my age?", "Which age am I?", "Tell me my age.", "Tell me how old I am.", "Do you know my age?", "What age do I have?", "At what age am I?", "Say how old I am."), ("What age am I?",)), "You are {v} years old.", "age"),
    "phone": (Phrases(("My phone number is {v}.", "You can call me at {v}.", "Call me at {v}.", "My number is {v}.", "Dial {v} to call me.", "The number of my phone is {v}."), ("My number for the phone is {v}.",)), Phrases(("What is my phone number?", "Which number is mine?", "What is my number?", "Tell me my number.", "Which phone number did I tell you?", "Do you know my phone number?", "At which number can you call me?"), ("Tell me my phone number.",)), "Your phone number is {v}.", "phone"),
    "item": (Phrases(("I bought a {v}.", "Today I bought a {v}.", "I came home with a new {v}.", "This week I bought a {v}.", "I went out and bought a {v}.", "A {v} is what I bought."), ("Yesterday I bought a {v}.",)), Phrases(("What did I buy?", "Which thing did I buy?", "What thing did I buy?", "Say what I bought.", "Do you know what I bought?", "What was it that I bought?", "Tell me which thing I bought."), ("Tell me what I bought.",)), "You bought a {v}.", "item"),
    "friend": (Phrases(("My best friend is {v}.", "{v} is my best friend.", "My best friend is called {v}.", "I have a best friend, {v}.", "My best friend has the name {v}.", "The best friend I have is {v}."), ("The name of my best friend is {v}.",)), Phrases(("Who is my best friend?", "What is my best friend called?", "Please tell me who my best friend is.", "What is the name of my best friend?", "Name my best friend.", "Do you know my best friend?", "Tell me the name of my best friend."), ("Please name my best friend.",)), "Your best friend is {v}.", "name"),
}  # fmt: skip
NOUNS = {"name": "name", "city": "city", "job": "job", "pet": "pet", "colour": "favourite colour", "code": "code",
         "age": "age", "phone": "phone number", "friend": "best friend", "day": "exam"}  # fmt: skip
AGAIN = Phrases(
    ("What was my {r} again?", "Do you remember my {r}?", "I forgot my {r}.", "Say my {r}.", "My {r}, please.", "Tell me about my {r}.",
     "Repeat my {r}.", "Can you tell me my {r}?", "And my {r}?"),
    ("Remind me of my {r}.",),
)  # fmt: skip
READ = Phrases(
    train=("Read the text and answer.", "Answer from the text.", "Answer with words from the text.", ""),
    held=("Answer the question from the text.",),
)
ACKNOWLEDGE = "I will remember that."
CHAT: tuple[tuple[Phrases, str], ...] = (
    (Phrases(("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Good morning!", "Good evening!", "Hey", "Hello there"), ("Hi, hello!", "Good morning")), "Hello! How can I help you?"),
    (Phrases(("Who are you?", "What are you?", "What is your name?", "Tell me who you are."), ("Please tell me who you are.", "And who are you?")), "I am the Banyan pocket model, a very small language model."),
    (Phrases(("What can you do?", "How can you help me?", "What are you good at?", "What can I ask you?"), ("Tell me what you can do.", "So what can you do?")), "I can call tools, extract JSON, label texts, answer from a text and remember what you tell me."),
    (Phrases(("Thanks!", "Thank you.", "Thank you!", "Thanks a lot!", "Many thanks."), ("Thank you very much!", "Thanks a lot.")), "You are welcome."),
    (Phrases(("Bye", "Goodbye!", "See you later.", "Bye!", "Good night!"), ("Goodbye", "Bye, see you later!")), "Goodbye!"),
    (Phrases(("How are you?", "How do you do?", "How are you today?", "Are you well?"), ("And how are you today?",)), "I am well, thank you."),
    (Phrases(("Who made you?", "Where do you come from?", "Who trained you?"), ("And who made you?",)), "I was trained from nothing for Banyan, on text made by a program."),
    (Phrases(("How big are you?", "How many parameters do you have?", "Are you a large model?"), ("Tell me how big you are.",)), "I have about seven million parameters."),
    (Phrases(("What is Banyan?", "Tell me about Banyan.", "What does Banyan do?"), ("Please tell me what Banyan is.",)), "Banyan is a language and a runtime for programs that call language models."),
    (Phrases(("What is a banyan?", "What is a banyan tree?"), ("Tell me what a banyan tree is.",)), "A banyan is a tree whose branches root again."),
    (Phrases(("How many days are in a week?", "How many days has a week?"), ("Tell me how many days are in a week.",)), "A week has seven days."),
    (Phrases(("What colour is the sky?", "Which colour has the sky?"), ("Tell me what colour the sky is.",)), "The sky is blue."),
)  # fmt: skip


def _value(d: Draw, kind: str) -> str:
    makers: dict[str, Callable[[], str]] = {
        "city": d.city, "name": d.name, "code": d.code, "item": d.item, "job": lambda: d.mixed(JOBS), "colour": lambda: d.mixed(COLOURS),
        "day": lambda: d.pick(DAYS), "age": lambda: str(d.number(18, 90)), "phone": lambda: d.digits(d.pick((5, 6, 7, 8))),
        "room": lambda: str(d.number(2, 999)), "animal": lambda: d.mixed(ANIMALS),
    }  # fmt: skip
    return makers[kind]()


def reading(d: Draw) -> Sample:
    """A passage of facts about several people, then questions whose answers are spans of it."""
    names = d.distinct("name" if d.chance(0.7) else "full_name", d.rng.randrange(2, 5))
    facts: dict[tuple[str, str], str] = {}
    while len(facts) < d.pick((3, 4, 5, 6, 8)):
        relation = d.pick(tuple(FACTS))
        facts.setdefault((d.pick(names), relation), _value(d, FACTS[relation][2]))
    passage = " ".join(d.say(FACTS[r][0], n=n, v=v) for (n, r), v in facts.items())
    asked = d.some(list(facts), min(len(facts), d.pick((2, 3, 4, 6))))
    head = d.say(READ)
    messages: list[Message] = []
    for i, (n, r) in enumerate(asked):
        question = d.asked(d.say(FACTS[r][1], n=n))
        content = question if i else "\n".join(filter(None, (head, f"Text: {passage}", f"Question: {question}")))
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": facts[n, r]}]
    return Sample("reading", tuple(messages))


def recall(d: Draw) -> Sample:
    """Facts that the user tells over several turns, with other turns between, and questions about them."""
    told: dict[tuple[str, str], str] = {}
    messages: list[Message] = []
    facts = d.some(tuple(MINE), d.rng.randrange(1, 5))

    def turn(question: str, answer: str) -> None:
        messages.extend(({"role": "user", "content": question}, {"role": "assistant", "content": answer}))

    def ask(key: tuple[str, str]) -> None:
        who, relation = key
        if who == "me":
            again = relation in NOUNS and not d.held and d.chance(0.3)
            turn(
                d.say(AGAIN, r=NOUNS[relation]) if again else d.asked(d.say(MINE[relation][1])),
                MINE[relation][2].format(v=told[key]),
            )
        else:
            turn(d.asked(d.say(FACTS[relation][1], n=who)), f"{told[key]}.")

    if d.chance(0.3):
        messages.append({"role": "system", "content": d.say(SYSTEMS) or "You are a helpful assistant."})
    for relation in facts:
        told["me", relation] = _value(d, MINE[relation][3])
        text = d.say(MINE[relation][0], v=told["me", relation])
        turn(text, f"Hello {told['me', relation]}!" if relation == "name" else ACKNOWLEDGE)
        while d.chance(0.35):
            phrases, answer = d.pick(CHAT)
            turn(d.say(phrases), answer)
        if d.chance(0.3):
            who, other = d.name(), d.pick(tuple(FACTS))
            told[who, other] = _value(d, FACTS[other][2])
            turn(d.say(FACTS[other][0], n=who, v=told[who, other]), ACKNOWLEDGE)
        if d.chance(0.3):
            ask(d.pick(list(told)))
    for key in d.some(list(told), min(len(told), d.pick((1, 2, 3)))):
        ask(key)
    return Sample("recall", tuple(messages))


def small_talk(d: Draw) -> Sample:
    """Short chat, with or without a system text."""
    messages: list[Message] = []
    if d.chance(0.5) and (system := d.say(SYSTEMS)):
        messages.append({"role": "system", "content": system})
    for phrases, answer in d.some(CHAT, d.rng.randrange(1, 4)):
        messages += [{"role": "user", "content": d.asked(d.say(phrases))}, {"role": "assistant", "content": answer}]
    return Sample("chat", tuple(messages))


# --- puzzles (for trees of thought) ----------------------------------------------------------------------------------


def puzzle(d: Draw) -> Sample:
    """Reach a target number from two to four numbers: propose one step, or judge whether a result is the target.

    The step is any of the possible ones: a program is meant to sample several."""
    messages: list[Message] = []
    if d.chance(0.5):
        numbers = [d.number(2, 99) for _ in range(d.pick((2, 3, 3, 4)))]
        target = d.number(10, 999)
        while len(numbers) > 1:
            a, b = d.some(numbers, 2)
            sign = d.pick("+*")
            ask = f"Numbers: {' '.join(map(str, numbers))}\nTarget: {target}\nPropose a step."
            messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": f"{a}{sign}{b}"}]
            numbers.remove(a)
            numbers.remove(b)
            numbers.append(a * b if sign == "*" else a + b)
        return Sample("puzzle", tuple(messages))
    for _ in range(d.pick((1, 2, 3))):
        target = str(d.number(10, 9999))
        near = list(target)
        near[d.rng.randrange(len(near))] = d.pick("0123456789")
        result = target if d.chance(0.45) else "".join(near) if d.chance(0.5) else str(d.number(10, 9999))
        ask = f"Result: {result}\nTarget: {target}\nIs the target reached?"
        messages += [
            {"role": "user", "content": ask},
            {"role": "assistant", "content": "yes" if result == target else "no"},
        ]
    return Sample("puzzle", tuple(messages))


# --- drills ----------------------------------------------------------------------------------------------------------


def lines(d: Draw) -> Sample:
    """A very short line, repeated: from this, attention first learns to find and copy."""
    makers = (d.name, d.city, d.item, d.word, d.code, d.value, lambda: d.digits(4))
    line = d.pick((" ", ", ", "; ", ": ")).join(d.pick(makers)() for _ in range(d.rng.randrange(1, 4)))
    return Sample("lines", plain=(f"{line}\n", *(Target(f"{line}\n") for _ in range(d.rng.randrange(2, 5)))))


def topics(d: Draw) -> Sample:
    """Lines with words of one topic each: they teach faster than labels which words go together."""
    rows = [
        d.some(TOPICS[topic].split(), d.rng.randrange(4, 9)) for topic in d.some(tuple(TOPICS), d.rng.randrange(2, 6))
    ]
    between = d.pick((", ", " ", "; "))
    return Sample(
        "topics", plain=tuple(part for row in rows for part in (row[0], Target(between + between.join(row[1:])), "\n"))
    )


def drill(d: Draw) -> Sample:
    """Pure copying, mostly early in training: repeated lines, and values looked up by their keys."""
    makers = (d.name, d.full_name, d.city, d.item, d.word, d.code, d.value, d.date, lambda: d.digits(5))
    kind = d.rng.random()
    things = [d.pick(makers)() for _ in range(d.rng.randrange(2, 10))]
    if kind < 0.3:
        line = d.pick((" ", ", ", "; ", "\n")).join(things)
        return Sample("drill", plain=(f"{line}\n", *(Target(f"{line}\n") for _ in range(d.rng.randrange(1, 4)))))
    messages: list[Message] = []
    if kind < 0.5:
        line = d.pick((" ", ", ", "; ")).join(things)
        for start in ("Repeat: ", "Again: ")[: d.rng.randrange(1, 3)]:
            messages += [{"role": "user", "content": f"{start}{line}"}, {"role": "assistant", "content": line}]
        return Sample("drill", tuple(messages))
    keys = d.distinct(d.pick(("name", "word", "code", "city")), len(things))
    pairs = dict(zip(keys, things, strict=True))
    text = d.pick(("\n", "; ")).join(f"{k}: {v}" for k, v in pairs.items())
    asked = [d.pick(keys) for _ in range(d.rng.randrange(2, 8))]
    for i, key in enumerate(asked):
        content = f"{key}?" if i else f"{text}\n{key}?"
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": pairs[key]}]
    return Sample("drill", tuple(messages))


def long_conversation(d: Draw) -> Sample:
    """Samples of several families in one conversation, so that the model learns to use text from far back."""
    tools, functions, answers = (), {}, ()
    messages: list[Message] = []
    if d.chance(0.6):
        first = tool_calls(d)
        tools, functions, answers = first.tools, first.functions, first.answers
        messages += first.messages
    for _ in range(d.rng.randrange(2, 8)):
        sample = d.pick((extraction, few_shot, reading, recall, small_talk, puzzle))(d)
        messages += [m for m in sample.messages if m["role"] != "system"]
    return Sample("long", tuple(messages), tools, functions=functions, answers=answers)


Family = Callable[[Draw], Sample]
FAMILIES: dict[str, Family] = {
    "tools": tool_calls,
    "json": extraction,
    "few_shot": few_shot,
    "reading": reading,
    "recall": recall,
    "chat": small_talk,
    "puzzle": puzzle,
    "long": long_conversation,
    "drill": drill,
    "topics": topics,
    "lines": lines,
    "everyday_tools": everyday_tools,
    "everyday_json": everyday_json,
    "everyday_few_shot": everyday_few_shot,
    "everyday_recall": everyday_recall,
    "everyday_reading": everyday_reading,
    "everyday_chat": everyday_chat,
    "subjects": subjects,
}
MIXTURE = {
    "tools": 0.03,
    "json": 0.05,
    "few_shot": 0.04,
    "reading": 0.02,
    "recall": 0.03,
    "chat": 0.02,
    "puzzle": 0.01,
    "long": 0.003,
    "drill": 0.01,
    "everyday_tools": 0.14,
    "everyday_json": 0.3,
    "everyday_few_shot": 0.16,
    "everyday_recall": 0.12,
    "everyday_reading": 0.08,
    "everyday_chat": 0.06,
    "subjects": 0.01,
}
# The mixture of the first pools: the model must learn to copy first, as the other families need it.
FIRST_MIXTURE = {family: share / 2 for family, share in MIXTURE.items()} | {"drill": 0.3, "lines": 0.2}


def stream(seed: int | str, *, held: bool = False, mixture: dict[str, float] | None = None) -> Iterator[Sample]:
    """An endless stream of samples, the same for the same seed."""
    draw = Draw(seed, held=held)
    weights = mixture or MIXTURE
    names, shares = list(weights), list(weights.values())
    while True:
        yield FAMILIES[draw.rng.choices(names, shares)[0]](draw)


def samples(family: str, n: int, seed: int | str, *, held: bool = True) -> list[Sample]:
    """n samples of one family; by default from the held-out set."""
    return list(itertools.islice(stream(seed, held=held, mixture={family: 1.0}), n))
