"""Tool-call transcripts: questions, tool calls, and answers copied from real tool results."""

# Word lists and phrases are long lines and strings that are split into words.
# ruff: noqa: E501, SIM905

from pocket.chat import Message, Sample
from pocket.stories import STORIES, WAYS
from pocket.tools import (
    ADD_DAYS,
    CALCULATOR,
    CONVERT,
    DAYS_BETWEEN,
    FUNCTIONS,
    LOOKUP,
    Function,
    Tool,
    run,
    table_lookup,
)
from pocket.words import DAYS, ITEMS, Draw, Phrases

SYSTEMS = Phrases(
    train=(
        "You are the Banyan pocket model.", "You are a helpful assistant.", "Use the tools when they help.",
        "You are a careful assistant. Use the tools.", "Answer with the help of the tools.", "You can call tools.", "",
        "You are Banyan. Call one tool at a time.", "Be brief and exact.",
    ),
    held=("You are an exact assistant with tools.", "Call a tool when it helps. Be brief.", ""),
)  # fmt: skip
OPENINGS = Phrases(
    train=("What is {x}?", "Compute {x}.", "Calculate {x}.", "Work out {x}.", "How much is {x}?", "Tell me what {x} is.",
           "Please compute {x}.", "Can you work out {x}?", "I need {x}.", "What does {x} come to?", "{x} = ?", "{x}",
           "Find {x}.", "Give me the result of {x}.", "Hello! What is {x}?", "What do you get for {x}?", "Please tell me what {x} is.", "Could you compute {x}?", "I want to know {x}.",
           "Help me with {x}.", "Could you tell me {x}?", "Solve {x}.", "Figure out {x}.", "How much would {x} be?", "Please: what is {x}?", "Tell me how much {x} is."),
    held=("Could you figure out {x}?", "Evaluate {x}.", "Please tell me how much {x} is.", "Help me: what is {x}?"),
)  # fmt: skip
OPERATORS = {
    "+": ("plus", "+", "plus", "added to"),
    "-": ("minus", "-", "minus", "less"),
    "*": ("times", "*", "multiplied by", "x"),
    "/": ("divided by", "/", "divided by", "over"),
}
PROBLEMS: dict[str, Phrases] = {
    "{a}+{b}": Phrases(
        train=("{n} has {a} {i}s and gets {b} more. How many {i}s does {n} have now?",
               "There are {a} {i}s on the shelf and {b} {i}s in the box. How many {i}s are there in total?",
               "{n} sold {a} {i}s in the morning and {b} in the afternoon. How many in total?",
               "A train with {a} people takes on {b} more people. How many are on it now?",
               "{n} pays {a} for a {i} and {b} for a {j}. What is the total?",
               "Add {a} and {b}.", "What is the sum of {a} and {b}?", "{n} walked {a} steps, then {b} steps more. How many together?",
               "We had {a} {i}s. Then {b} more came. How many do we have now?",
               "{n} found {a} {i}s and {m} found {b}. How many did they find together?",
               "A {i} costs {a} and a {j} costs {b}. What do they cost together?", "{n} had {a} {i}s and bought {b} more. How many in total?",
               "In the box there are {a} {i}s and in the bag {b}. How many are there in all?", "{n} paid {a} for the {i}, then {b} for the {j}. How much was it in total?",
               "{n} spent {a} on a {i} and {b} on a {j}. How much in total?", "There are {a} {i}s here and {b} there. How many are there together?", "{n} has {a} {i}s. {m} brings {b} more. How many {i}s are there?",
               "A {i} is {a} and a {j} is {b}. What is the sum?", "{n} owns {a} {i}s and gets {b} more. How many is that in total?"),
        held=("{n} owns {a} {i}s and buys {b} more. How many {i}s in total?",
              "In one room there are {a} {i}s and in the other {b}. How many are there together?",
              "{n} paid {a} for a {j} and {b} for a {i}. How much in total?"),
    ),
    "{a}-{b}": Phrases(
        train=("{n} has {a} {i}s and gives away {b}. How many are left?", "There were {a} {i}s. {b} were sold. How many are left?",
               "Of {a} {i}s, {b} are broken. How many are left?", "{n} had {a} coins and spent {b}. How many coins are left?",
               "Subtract {b} from {a}.", "What is the difference between {a} and {b}?",
               "A tank held {a} litres and lost {b}. How much is left?", "{n} read {b} of {a} pages. How many pages remain?",
               "A {i} costs {a}. {n} has only {b}. How much is missing?", "Take {b} away from {a}. What remains?",
               "From {a} {i}s, {n} took {b}. How many remain?", "{n} lost {b} of {a} {i}s. How many are left?", "The shop had {a} {i}s. It sold {b}. How many are left?",
               "There were {a} {i}s but {b} were lost. How many remain?", "{b} of {a} {i}s were sold. How many are left?", "{n} gave away {b} of the {a} {i}s. How many remain?",
               "Of the {a} {i}s, {b} were given to {m}. How many are left?", "The box had {a} {i}s and {n} took {b} out. How many {i}s remain?", "{n} had {a} {i}s and sold {b}. How many are left?"),
        held=("{n} had {a} {i}s but lost {b}. How many are left?", "{b} of the {a} {i}s were given away. How many remain?",
              "The shop had {a} {i}s and sold {b}. How many {i}s are left?"),
    ),
    "{a}*{b}": Phrases(
        train=("A box holds {a} {i}s. How many {i}s are in {b} boxes?", "One {i} costs {a}. What do {b} {i}s cost?",
               "{n} buys {b} {i}s at {a} each. What is the price?", "There are {b} rows with {a} {i}s each. How many {i}s is that?",
               "{n} earns {a} each day. How much in {b} days?", "A {i} weighs {a} grams. What do {b} of them weigh?",
               "Every bag has {a} {i}s. How many are in {b} bags?", "What is the product of {a} and {b}?", "Multiply {a} by {b}.",
               "{n} runs {a} km each day. How many km in {b} days?", "Each of {b} people pays {a}. How much is that?",
               "How much do {b} {i}s cost at {a} each?", "Each {i} is {a}. What do {b} {i}s cost?", "A {i} costs {a}. How much do {b} of them cost?", "There are {b} boxes with {a} {i}s each. How many is that?",
               "{n} wants {b} {i}s. Each costs {a}. What is the price?", "{b} bags hold {a} {i}s each. How many in total?", "One {i} is {a}. {n} buys {b}. What is the price?", "{n} pays {a} for each of {b} {i}s. How much is that?"),
        held=("{n} buys {b} {i}s. One costs {a}. What is the price?", "There are {b} bags with {a} {i}s each. How many is that?",
              "Each {i} costs {a}. How much do {b} of them cost?"),
    ),
    "{a}/{b}": Phrases(
        train=("{n} shares {a} {i}s equally among {b} people. How many does each get?", "Divide {a} by {b}.",
               "{a} {i}s are packed equally into {b} boxes. How many are in each box?", "{b} friends share a bill of {a}. How much does each pay?",
               "Split {a} into {b} equal parts. How big is each part?", "{b} {i}s cost {a}. What does one cost?",
               "A rope of {a} m is cut into {b} equal pieces. How long is each?", "{n} drives {a} km in {b} hours. How many km per hour?",
               "What is {a} shared by {b}?", "{b} people split {a} {i}s equally. How many does each get?", "{n} packs {a} {i}s into {b} boxes. How many are in each box?",
               "A bill of {a} is shared by {b} friends. How much does each pay?", "{b} boxes hold {a} {i}s in all, equally. How many does each hold?", "{a} {i}s go to {b} people in equal parts. How many does each get?",
               "There are {a} {i}s for {b} people. What does each get?"),
        held=("{b} people share {a} {i}s equally. How many does each get?", "A bill of {a} is split equally by {b} friends. What does each pay?",
              "{b} boxes hold {a} {i}s, equally. How many are in each box?"),
    ),
    "{a}*{b}+{c}": Phrases(
        train=("{n} buys {b} {i}s at {a} each and a {j} for {c}. What is the total?", "Multiply {a} by {b}, then add {c}.",
               "There are {b} boxes of {a} {i}s and {c} more {i}s. How many in total?", "{b} rows hold {a} {i}s each, and {c} are on the floor. How many {i}s in total?",
               "{n} pays {a} for each of {b} {i}s and {c} for a {j}. What is the total?", "A shelf has {b} rows of {a} {i}s. {c} more come. How many are there?",
               "{n} buys {b} {i}s at {a} each. A {j} costs {c} more. What does it all cost?", "Multiply {a} by {b} and add {c}.", "There are {b} bags of {a} {i}s, and {c} more. How many in total?",
               "A taxi takes {a} per km and {c} to start. What do {b} km cost?",
               "{n} fills {b} bags with {a} {i}s each and has {c} left over. How many in total?"),
        held=("There are {b} rows of {a} {i}s and {c} more. How many {i}s in total?", "{n} buys {b} {i}s at {a} each and pays {c} for a {j}. What is the total?"),
    ),
    "({a}+{b})*{c}": Phrases(
        train=("Add {a} and {b}, then multiply by {c}.", "A {i} costs {a} and a {j} costs {b}. What do {c} of each cost?",
               "{n} gets {a} and {b} each day. How much in {c} days?", "What is the sum of {a} and {b}, times {c}?",
               "Add {a} and {b}. Multiply the sum by {c}.", "Take the sum of {a} and {b} and multiply it by {c}.", "Add {a} to {b}, then multiply by {c}.",
               "A {i} costs {a}, a {j} {b}. {n} buys {c} of each. What is the price?", "{n} buys {c} of each: a {i} at {a} and a {j} at {b}. How much is it?", "{c} people each pay {a} and {b}. How much is that?",
               "Multiply the sum of {a} and {b} by {c}.", "One {i} is {a} and one {j} is {b}. What do {c} of each cost?"),
        held=("Add {a} to {b} and multiply the sum by {c}.", "A {j} costs {a} and a {i} {b}. What do {c} of each cost?"),
    ),
    "{b}*{a}/100": Phrases(
        train=("What is {a}% of {b}?", "How much is {a} percent of {b}?", "Compute {a}% of {b}.", "{n} saves {a}% of {b}. How much is that?",
               "A {i} costs {b}. The tax is {a}%. How much is the tax?", "{n} spends {a} percent of {b}. How much is it?", "Work out {a} percent of {b}.",
               "{n} pays {a}% of {b}. What does {n} pay?", "Of {b} {i}s, {a} percent are new. How many is that?", "What do you get for {a}% of {b}?", "{n} gave away {a} percent of {b}. How much was that?",
               "I want {a}% of {b}.", "Find {a} percent of {b}.", "{a}% of {b}?", "{n} gets {a} percent of {b}. What is that?"),
        held=("Please work out {a}% of {b}.", "{n} pays {a} percent of {b}. How much is that?"),
    ),
}  # fmt: skip
UNITS = (
    ("km", "miles"), ("miles", "km"), ("m", "feet"), ("feet", "m"), ("cm", "inches"), ("inches", "cm"), ("kg", "pounds"),
    ("pounds", "kg"), ("grams", "ounces"), ("ounces", "grams"), ("litres", "gallons"), ("gallons", "litres"), ("cups", "litres"),
    ("Celsius", "Fahrenheit"), ("Fahrenheit", "Celsius"), ("hours", "minutes"), ("minutes", "hours"), ("days", "hours"),
    ("weeks", "days"), ("minutes", "seconds"), ("hours", "seconds"), ("yards", "m"), ("pints", "litres"), ("days", "weeks"),
)  # fmt: skip
CONVERSIONS = Phrases(
    train=("Convert {v} {f} to {t}.", "How many {t} is {v} {f}?", "How many {t} are {v} {f}?", "What is {v} {f} in {t}?",
           "{v} {f} in {t}?", "Change {v} {f} into {t}.", "Please convert {v} {f} to {t}.", "I have {v} {f}. How many {t} is that?",
           "{n} needs {v} {f} in {t}.", "Express {v} {f} in {t}.", "A {i} measures {v} {f}. What is that in {t}?", "Could you change {v} {f} to {t}?", "How much is {v} {f} when given in {t}?",
           "{n} has {v} {f}. What is that in {t}?", "{n} needs {v} {f}. How many {t} is that?", "Turn {v} {f} into {t}.", "Give {v} {f} in {t}.", "Can you convert {v} {f} to {t}?", "There are {v} {f}. How many {t} are that?"),
    held=("Could you convert {v} {f} into {t}?", "How much is {v} {f} in {t}?", "{n} has {v} {f}. How many {t} is that?"),
)  # fmt: skip
AFTER = Phrases(
    train=("What date is {k} days after {d}?", "Add {k} days to {d}.", "Which date comes {k} days after {d}?", "It is {d}. What is the date in {k} days?",
           "{n} leaves on {d} and comes back {k} days later. On which date?", "What day will it be {k} days after {d}?",
           "An order of {d} arrives {k} days later. When?", "Today is {d}. The {e} is in {k} days. On which date is it?", "Which date is {k} days after {d}?", "The {e} comes {k} days after {d}. On which date is it?",
           "Today is {d}. What date will we have in {k} days?", "What is the date {k} days after {d}?", "When is the {e}, if it is {k} days after {d}?", "Which day will it be {k} days after {d}?"),
    held=("Which day is {k} days after {d}?", "Today is {d}. What date will it be in {k} days?", "The {e} is {k} days after {d}. When is it?"),
)  # fmt: skip
BEFORE = Phrases(
    train=("What date is {k} days before {d}?", "Which date was {k} days before {d}?", "It is {d}. What was the date {k} days ago?",
           "Go back {k} days from {d}.", "{n} left {k} days before {d}. On which date?", "Today is {d}. The {e} was {k} days ago. On which date was it?", "What was the date {k} days before {d}?", "Which day was it {k} days before {d}?", "Today is {d}. What was the date {k} days ago?",
           "The {e} was {k} days before {d}. When was it?", "Which date do we get {k} days before {d}?"),
    held=("Which day was {k} days before {d}?", "Today is {d}. What date was it {k} days ago?"),
)  # fmt: skip
BETWEEN = Phrases(
    train=("How many days are between {d} and {f}?", "How many days is it from {d} to {f}?", "Count the days from {d} to {f}.",
           "{n} is away from {d} to {f}. How many days is that?", "The {e} runs from {d} until {f}. How many days?", "How long is it from {d} to {f}?", "{n} stays from {d} to {f}. How many days?", "How many days are there between {d} and {f}?", "How many days lie between {d} and {f}?",
           "The {e} is from {d} to {f}. How many days is that?", "{n} works from {d} until {f}. How many days is it?"),
    held=("How many days are there from {d} to {f}?", "{n} stays from {d} until {f}. How many days is that?"),
)  # fmt: skip
LOOKUPS = Phrases(
    train=("Look up {k} in {t}.", "What does the table {t} say for {k}?", "Find {k} in the table {t}.", "What is the entry for {k} in {t}?",
           "In {t}, what is the value of {k}?", "Check {t} for {k}.", "Please look {k} up in {t}.", "I need the entry of {k} from {t}.", "Search the table {t} for {k}.", "Please find {k} in the table {t}.", "What is there in {t} for {k}?", "Look in {t} for {k}.", "Find {k} in {t}.", "Please check {t} for {k}.",
           "Give me {k} from {t}.", "Get {k} from {t}.", "What does {t} say about {k}?", "What is {k} in {t}?"),
    held=("Search {t} for {k}.", "What is in the table {t} for {k}?", "Please find {k} in {t}."),
)  # fmt: skip
PRICE = Phrases(
    train=(
        "What does a {k} cost?",
        "How much is a {k}?",
        "What is the price of the {k}?",
        "How much does the {k} cost?",
        "Tell me the price of a {k}.",
        "What is the cost of a {k}?",
        "How much do I pay for the {k}?",
        "I want to know the price of the {k}.",
        "What does the {k} cost?",
        "Give me the price of the {k}.",
    ),
    held=("How much does a {k} cost?", "I need the price of the {k}."),
)
PRICES = Phrases(
    train=(
        "What do {q} {k}s cost?",
        "How much do {q} {k}s cost?",
        "{n} buys {q} {k}s. What is the price?",
        "What is the price of {q} {k}s?",
        "How much do I pay for {q} {k}s?",
        "{n} needs {q} {k}s. What do they cost?",
        "{n} orders {q} {k}s. How much are they?",
        "How much is it for {q} {k}s?",
        "I want {q} {k}s. What is the price?",
        "What is the cost of {q} {k}s?",
        "{n} gets {q} {k}s. How much is that?",
    ),
    held=("How much are {q} {k}s?", "{n} wants {q} {k}s. What do they cost?"),
)
BOTH = Phrases(
    train=(
        "What do a {k} and a {j} cost together?",
        "How much do a {k} and a {j} cost?",
        "{n} buys a {k} and a {j}. What is the total?",
        "What is the price of a {k} and a {j} together?",
        "{n} wants a {k} and a {j}. What is the price?",
        "What do the {k} and the {j} cost together?",
        "{n} needs a {k} and a {j}. How much are they together?",
        "I buy a {k} and a {j}. What do they cost?",
    ),
    held=("{n} wants a {k} and a {j}. What do they cost together?", "How much are a {k} and a {j} together?"),
)
STOCK = Phrases(
    train=(
        "How many {k}s are in stock?",
        "How many {k}s do we have?",
        "Is there a {k} in stock?",
        "What is the stock of the {k}?",
        "How many {k}s does the stock have?",
        "Do we still have {k}s?",
        "How many {k}s are there?",
        "Are there {k}s in stock?",
        "Tell me the stock of {k}s.",
    ),
    held=("How many {k}s are there in stock?", "Do we have {k}s in stock?"),
)
GENERIC = Phrases(
    train=("What is the {a} of {x}?", "Tell me the {a} of {x}.", "I want to know the {a} of {x}.", "Find the {a} of {x}.", "Get the {a} of {x}, please.",
           "Do you know the {a} of {x}?", "Which {a} does {x} have?", "{x}: what is the {a}?", "Can you find the {a} of {x}?", "Give me the {a} of {x}.", "Please tell me the {a} of {x}.", "I need the {a} of {x}.",
           "Look for the {a} of {x}.", "What is the {a} that {x} has?", "Could you get the {a} of {x}?", "For {x}, what is the {a}?", "Say the {a} of {x}."),
    held=("Please give me the {a} of {x}.", "What {a} does {x} have?", "Could you find the {a} of {x}?"),
)  # fmt: skip
ASPECTS = tuple(
    """weather height address email salary owner colour weight rating status phone manager birthday size language age price
    distance capacity speed level score temperature population number origin type version width balance rank""".split()
)
THINGS = ("city", "person", "product", "room", "ticket", "country", "user", "team")


class Entries:
    """The function of a made-up tool with one argument. values: argument -> result."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.values: dict[str, str] = {}

    def __call__(self, **arguments: str) -> str:
        if set(arguments) != {self.argument}:
            return f"error: the argument is {self.argument}"
        return self.values.get(arguments[self.argument], "error: not found")


class Talk:
    """A conversation with tools, to which turns are appended."""

    def __init__(self, draw: Draw, system: str, tools: list[Tool], functions: dict[str, Function]) -> None:
        self.draw, self.tools, self.functions = draw, tools, functions
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.answers: list[str] = []

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": self.draw.asked(text)})

    def call(self, name: str, /, **arguments: object) -> str:
        result = run(name, arguments, self.functions)
        assert not result.startswith("error"), (name, arguments, result)
        self.messages.append({"role": "assistant", "tool_calls": ({"name": name, "arguments": arguments},)})
        self.messages.append({"role": "tool", "content": result})
        return result

    def answer(self, text: str, value: str) -> None:
        """Append the answer to the question. value: text that a right answer must contain."""
        self.messages.append({"role": "assistant", "content": text})
        self.answers.append(value)


def _plain(text: str) -> float | int:
    return float(text) if "." in text else int(text)


def arithmetic(talk: Talk) -> None:
    d = talk.draw
    kind = d.rng.random()
    if kind < 0.25:
        sign = d.pick("+-*/")
        a, b = d.value(), d.value()
        question = d.said(OPENINGS, WAYS["opening"], x=f"{a} {d.pick(OPERATORS[sign])} {b}")
        expression = f"{a}{sign}{b}"
    elif kind < 0.4:
        a, b, c = d.value(), d.value(), d.value()
        first, second = d.pick("+-*/"), d.pick("+-*/")
        shape = d.pick(("{a}{p}{b}{q}{c}", "({a}{p}{b}){q}{c}", "{a}{p}({b}+{c})", "({a}{p}{b})"))
        expression = shape.format(a=a, b=b, c=c, p=first, q=second)
        spaced = expression
        for sign in "+-*/":
            spaced = spaced.replace(sign, f" {sign} ")
        question = d.said(OPENINGS, WAYS["opening"], x=spaced if d.chance(0.7) else expression)
    else:
        form = d.pick(tuple(PROBLEMS))
        fields = {"a": d.value(), "b": str(d.amount()), "c": d.value()}
        if "100" in form:
            fields["a"] = str(d.number(2, 95))
        i, j = d.distinct("item", 2)
        question = d.said(PROBLEMS[form], STORIES[form], n=d.name(), m=d.name(), i=i, j=j, **fields)
        expression = form.format(**fields)
    talk.ask(question)
    result = run("calculator", {"expression": expression}, talk.functions)
    if result.startswith("error"):
        talk.messages.pop()
        return arithmetic(talk)
    talk.call("calculator", expression=expression)
    return talk.answer(f"The answer is {result}.", result)


def conversion(talk: Talk) -> None:
    d = talk.draw
    f, t = d.pick(UNITS)
    v = d.value()
    talk.ask(d.said(CONVERSIONS, WAYS["conversion"], v=v, f=f, t=t, n=d.name(), i=d.item()))
    result = talk.call("convert", value=_plain(v), from_unit=f, to_unit=t)
    talk.answer(f"{v} {f} is {result} {t}.", result)


def later_date(talk: Talk) -> None:
    d = talk.draw
    day, k = d.date(), d.number(2, 900)
    back = d.chance(0.4)
    event = d.pick(("concert", "race", "meeting", "exam", "party"))
    phrases, ways = (BEFORE, WAYS["before"]) if back else (AFTER, WAYS["after"])
    talk.ask(d.said(phrases, ways, k=k, d=day, n=d.name(), e=event))
    result = talk.call("add_days", date=day, days=-k if back else k)
    talk.answer(f"The date is {result}.", result)


def date_span(talk: Talk) -> None:
    d = talk.draw
    start, end = sorted((d.date(), d.date()))
    talk.ask(d.said(BETWEEN, WAYS["between"], d=start, f=end, n=d.name(), e=d.pick(("fair", "course", "trip", "show"))))
    result = talk.call("days_between", start=start, end=end)
    talk.answer(f"That is {result} days.", result)


def table_question(talk: Talk, tables: dict[str, dict[str, str]]) -> None:
    """Append a question about the tables, which needs one look-up, or several and a calculation."""
    d = talk.draw
    kind = d.rng.random()
    if kind < 0.4 or "prices" not in tables:
        table = d.pick(tuple(tables))
        key = d.pick(tuple(tables[table]))
        by_sense = {"prices": (PRICE, "price"), "stock": (STOCK, "stock")}.get(table, (LOOKUPS, "lookup"))
        phrases, way = by_sense if d.chance(0.6) else (LOOKUPS, "lookup")
        talk.ask(d.said(phrases, WAYS[way], k=key, t=table))
        result = talk.call("lookup", table=table, key=key)
        return talk.answer(f"The entry for {key} is {result}.", result)
    first, second = d.some(tuple(tables["prices"]), 2)
    if kind < 0.75:
        q = d.number(2, 999)
        talk.ask(d.said(PRICES, WAYS["prices"], q=q, k=first, n=d.name()))
        price = talk.call("lookup", table="prices", key=first)
        expression = f"{q}*{price}"
    else:
        talk.ask(d.said(BOTH, WAYS["both"], k=first, j=second, n=d.name()))
        price = talk.call("lookup", table="prices", key=first)
        expression = f"{price}+{talk.call('lookup', table='prices', key=second)}"
    result = talk.call("calculator", expression=expression)
    return talk.answer(f"The answer is {result}.", result)


def chained(talk: Talk) -> None:
    """Append a question with a calculation whose result is converted or used in another calculation."""
    d = talk.draw
    kind = d.rng.random()
    if kind < 0.5:
        f, t = d.pick(UNITS)
        a, b = d.value(), str(d.amount())
        sign, words = d.pick(
            (
                ("+", ("Add {a} and {b} {f}", "A rope of {a} {f} and a rope of {b} {f} are joined")),
                ("*", ("{b} times {a} {f}", "There are {b} pieces of {a} {f} each")),
            )
        )
        words = d.pick(words).format(a=a, b=b, f=f)
        talk.ask(f"{words}. How many {t} is that?")
        expression = f"{a}{sign}{b}" if sign == "+" else f"{b}*{a}"
        total = talk.call("calculator", expression=expression)
        result = talk.call("convert", value=_plain(total), from_unit=f, to_unit=t)
        talk.answer(f"{total} {f} is {result} {t}.", result)
    else:
        a, b, c = d.value(), d.value(), d.value()
        sign = d.pick("+-*")
        first = d.said(OPENINGS, WAYS["opening"], x=f"{a} {d.pick(OPERATORS[sign])} {b}")
        again = d.pick("+-*")
        talk.ask(f"{first} Then {dict(zip('+-*', ('add', 'subtract', 'multiply by'), strict=True))[again]} {c}.")
        total = talk.call("calculator", expression=f"{a}{sign}{b}")
        result = talk.call("calculator", expression=f"{total}{again}{c}")
        talk.answer(f"The answer is {result}.", result)


def _generic_tools(d: Draw, n: int) -> dict[str, tuple[Tool, str, str]]:
    """n made-up tools: name -> (tool, aspect, argument name)."""
    made: dict[str, tuple[Tool, str, str]] = {}
    while len(made) < n:
        aspect = d.listed(ASPECTS) if d.chance(0.5) else d.word()
        if not d.held and d.chance(0.1):
            aspect += "s"  # not every word that ends in s is a plural
        thing = d.pick(THINGS)
        name = d.pick(("get_{a}", "{a}_of", "find_{a}", "{a}", "{a}_finder", "{t}_{a}")).format(a=aspect, t=thing)
        argument = d.pick((thing, thing, "name", "id", "query"))
        if not d.held and d.chance(0.4):  # any word: the model must copy it from the list of tools
            argument = d.word() if d.chance(0.6) else d.listed(ASPECTS)
        words = d.pick(
            ("Get the {a} of a {t}.", "Find the {a} of a {t}.", "The {a} of a {t}.", "Returns the {a} of the {t}.")
        )
        if aspect not in (a for _, a, _ in made.values()):
            made[name] = (Tool(name, words.format(a=aspect, t=thing), {argument: "string"}), aspect, argument)
    return made


def _generic_question(talk: Talk, made: dict[str, tuple[Tool, str, str]]) -> None:
    d = talk.draw
    name, (_, aspect, argument) = d.pick(list(made.items()))
    x = d.pick((d.name, d.city, d.full_name, d.code))()
    result = d.pick((d.value, d.word, d.name, d.code))()
    entries = talk.functions.setdefault(name, Entries(argument))
    assert isinstance(entries, Entries)
    result = entries.values.setdefault(x, result)
    talk.ask(d.said(GENERIC, WAYS["generic"], a=aspect, x=x))
    talk.call(name, **{argument: x})
    talk.answer(f"The {aspect} of {x} is {result}.", result)


def _tables(d: Draw) -> dict[str, dict[str, str]]:
    """Random tables: prices, stock, and tables with arbitrary names."""
    tables: dict[str, dict[str, str]] = {}
    if d.chance(0.75):
        goods = d.distinct("item", d.rng.randrange(3, 6))
        tables["prices"] = {k: d.value() for k in goods}
        if d.chance(0.4):
            tables["stock"] = {k: str(d.amount()) for k in goods}
    for _ in range(d.rng.randrange(0 if tables else 1, 3)):
        keys = d.distinct(d.pick(("name", "city", "item", "code")), d.rng.randrange(2, 5))
        tables[d.pick((d.word(), "rooms", "phones", "jobs", "teams"))] = {
            k: d.pick((d.value, d.name, d.code))() for k in keys
        }
    names = list(tables)
    d.rng.shuffle(names)
    return {name: tables[name] for name in names}


def world_text(tables: dict[str, dict[str, str]]) -> str:
    """The line of a prompt that lists the tables of `lookup`."""
    return "Tables: " + "; ".join(f"{name} ({', '.join(keys)})" for name, keys in tables.items()) + "."


def tool_calls(d: Draw) -> Sample:
    """A conversation of one to four questions, each answered with one to three calls."""
    kinds = [arithmetic, conversion, later_date, date_span, table_question, chained, _generic_question]
    weights = [5, 2, 1.5, 1, 2.5, 1.5, 2]
    chosen = d.rng.choices(kinds, weights, k=d.pick((1, 2, 3, 3, 4)))
    tools, functions = [CALCULATOR], dict(FUNCTIONS)
    tools += [tool for tool, p in ((CONVERT, 0.6), (ADD_DAYS, 0.5), (DAYS_BETWEEN, 0.5)) if d.chance(p)]
    needs = {conversion: CONVERT, chained: CONVERT, later_date: ADD_DAYS, date_span: DAYS_BETWEEN}
    tools += [tool for kind, tool in needs.items() if kind in chosen and tool not in tools]
    system = d.say(SYSTEMS)
    tables: dict[str, dict[str, str]] = {}
    if table_question in chosen or d.chance(0.2):
        tables = _tables(d)
        tools.append(LOOKUP)
        functions["lookup"] = table_lookup(tables)
        system = f"{system}\n{world_text(tables)}" if system else world_text(tables)
    made = _generic_tools(d, d.rng.randrange(1, 4)) if _generic_question in chosen or d.chance(0.15) else {}
    tools += [tool for tool, _, _ in made.values()]
    d.rng.shuffle(tools)
    talk = Talk(d, system, tools, functions)
    for kind in chosen:
        if kind is table_question:
            table_question(talk, tables)
        elif kind is _generic_question:
            _generic_question(talk, made)
        else:
            kind(talk)
    return Sample("tools", tuple(talk.messages), tuple(tools), functions=talk.functions, answers=tuple(talk.answers))


__all__ = ["DAYS", "ITEMS", "SYSTEMS", "Talk", "tool_calls", "world_text"]
