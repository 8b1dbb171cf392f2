"""A second held-out set: questions of a stranger who has not read the model card.

Its wrong answers were read while the training text was written, so it is now a development set; `newcomers` is a newer
held-out set by another author.

It shares no template, no name and no label set with the training text (`tests/training` checks it). The words of
few-shot texts are plain English, and the training text has some of them. Answers are judged as a person would judge
them: a tool's answer by the value in it, JSON by its content, recall by the value told, and chat by a pattern that any
good answer matches.
"""

# Phrases are long lines.
# ruff: noqa: E501, SIM905

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pocket import tools as real
from pocket.chat import Message, Sample
from pocket.tools import Function, Tool

FIRST = "Ingrid Kwame Saoirse Bartosz Xiulan Thabo Eleni Rashid Marguerite Dmitri Hiroko Ayodele Gwen Tomasz Leticia Anselm Birgit Faisal Noor Pippa Ulrich Zainab Cormac Delphine Esteban Joaquin".split()  # fmt: skip
LAST = "Solberg Mensah Gallagher Kowalczyk Zhang Mokoena Papadaki Haddad Leclerc Volkov Nakamura Adeyemi Pritchard Zielinski Barbosa Whitcombe Lindqvist Rahman Okonkwo Fitzgerald Hoffmann Ibarra Drummond Beaumont".split()  # fmt: skip
PLACES = "Bergen Ghent Krakow Dunedin Valparaiso Tampere Leipzig Gdansk Cardiff Halifax Nantes Bristol Reykjavik Adelaide Montevideo Tbilisi Aarhus Bologna Antalya Mombasa".split()  # fmt: skip
PETS = "Rex Biscuit Waffles Luna Ziggy Pickles Nimbus Bosun Mochi Shadow Bandit Tofu".split()
STREETS = ("Elm Row", "Harbour Lane", "Mill Close", "Station Parade", "Church Walk")


Draw = Callable[[random.Random], str]
Records = tuple[tuple[dict[str, Draw], tuple[str, ...]], ...]
Told = tuple[tuple[Draw, tuple[str, ...], tuple[str, ...]], ...]


class Ask(NamedTuple):
    """A tool, questions for it, and how its arguments and its result are drawn."""

    tool: Tool
    questions: tuple[str, ...]
    fields: dict[str, Draw]
    result: Draw


class Author(NamedTuple):
    """All texts of one author, from which `samples` draws."""

    name: str
    people: Sequence[str]
    names: Sequence[str]  # all others
    systems: tuple[str, ...]
    asks: tuple[Ask, ...]
    # a question and an expression, two units, or the sign of the days
    sums: tuple[tuple[str, str], ...]
    units: tuple[tuple[str, str, str], ...]
    dates: tuple[tuple[str, int], ...]
    # fields with their values, texts that tell of them
    records: Records
    pulls: tuple[str, ...]
    # label sets -> texts of each label, six or more, as people write them
    classes: dict[str, dict[str, tuple[str, ...]]]
    shapes: tuple[tuple[str, str, str], ...]
    heads: tuple[str, ...]
    # what is told, what is asked later
    told: Told
    nods: tuple[str, ...]
    fillers: tuple[tuple[str, str], ...]
    # texts of three people and other fields, with questions and answers
    passages: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    facts: dict[str, Draw]
    reads: tuple[str, ...]
    # what is said, and what an answer has to have (a regular expression)
    chats: tuple[tuple[tuple[str, ...], str], ...]


def _full(r: random.Random) -> str:
    return f"{r.choice(FIRST)} {r.choice(LAST)}"


def of(*words: str) -> Draw:
    return lambda r: r.choice(words)


def integer(low: int, high: int) -> Draw:
    return lambda r: str(r.randint(low, high))


def _place(r: random.Random) -> str:
    return r.choice(PLACES)


def reference(r: random.Random) -> str:
    return "".join(r.choice("BCDFGHKMPRTX") for _ in range(r.choice((2, 3)))) + "".join(
        r.choice("0123456789") for _ in range(r.choice((3, 4, 5)))
    )


ASKS = (
    Ask(Tool("local_weather", "Current weather in a city", {"city": "string"}),
        ("What's the weather like in {city}?", "Is it raining in {city} right now?", "How warm is it in {city} today?", "{city} weather right now", "Do I need an umbrella in {city}?"),
        {"city": _place}, of("drizzly", "17C", "overcast", "-3C", "blustery")),
    Ask(Tool("find_contact", "Looks someone up in the address book", {"person": "string"}),
        ("What's {person}'s number?", "I have to ring {person}, what number do I use?", "How can I get hold of {person}?", "Could you dig out contact details for {person}?"),
        {"person": _full}, integer(2000000, 9899999)),
    Ask(Tool("parcel_stop", "Tells the last stop of a parcel", {"tracking_code": "string"}),
        ("Where has my parcel {tracking_code} got to?", "Any news on {tracking_code}?", "Whereabouts of {tracking_code}?", "My package number is {tracking_code}, has it arrived yet?"),
        {"tracking_code": reference}, of("Rotterdam", "depot", "delivered", "customs")),
    Ask(Tool("fx_rate", "Exchanges money from one currency to another", {"amount": "number", "source": "string", "target": "string"}),
        ("What would {amount} {source} come to in {target}?", "I've got {amount} {source}, what would I get in {target}?", "{amount} {source}, what's that worth in {target}?", "Change {amount} {source} to {target} for me"),
        {"amount": integer(11, 980), "source": of("USD", "GBP", "NOK"), "target": of("EUR", "JPY", "CHF")}, integer(1001, 99999)),
    Ask(Tool("hold_table", "Books a table at a restaurant", {"restaurant": "string", "guests": "integer", "hour": "string"}),
        ("Could you hold a table for {guests} over at {restaurant}, {hour}?", "We're {guests} and we'd like to eat at {restaurant} at {hour}, can you reserve?", "Get me a table at {restaurant}, {hour}, {guests} persons."),
        {"restaurant": of("Trattoria Bruno", "Noodle Corner", "Blue Heron", "Chez Odile"), "guests": integer(2, 9), "hour": of("18:15", "19:40", "20:25")}, reference),
    Ask(Tool("wake_up_call", "Sets an alarm", {"at": "string"}),
        ("I'd like to be woken at {at}.", "Set an alarm for {at} please", "I have to get up at {at} tomorrow, set the alarm."),
        {"at": of("05:35", "06:55", "07:25", "04:10")}, of("armed", "enabled")),
    Ask(Tool("play_song", "Plays music by an artist", {"artist": "string"}),
        ("Play something by {artist}", "I'd love to hear some {artist}.", "Put on {artist} please!"),
        {"artist": of("Sigur Ros", "Nina Simone", "Daft Punk", "Fela Kuti")}, of("playing", "streaming")),
    Ask(Tool("employee_salary", "The salary of an employee", {"employee": "string"}),
        ("How much does {employee} earn?", "What do we pay {employee}?", "salary of {employee}?"),
        {"employee": _full}, integer(21500, 98700)),
    Ask(Tool("search_docs", "Searches the handbook", {"topic": "string"}),
        ("What does the handbook say on {topic}?", "Search the docs for {topic}.", "Anything in there about {topic}?"),
        {"topic": of("parental leave", "expenses", "overtime", "remote work")}, of("p37", "p112", "p8")),
    Ask(Tool("capital_of", "Capital city of a country", {"country": "string"}),
        ("What's the capital of {country}?", "Which city is the capital of {country}?", "capital of {country}"),
        {"country": of("Uruguay", "Georgia", "Mongolia", "Bhutan", "Malawi")}, of("Qorvale", "Tesmira", "Lundrak")),
)  # fmt: skip
SUMS = (
    ("what do {a} times {b} make?", "{a}*{b}"), ("gimme {a} + {b}", "{a}+{b}"), ("I have {a} euros and spend {b}. What's left over?", "{a}-{b}"),
    ("If I buy {b} coffees at {a} euros each, what do I pay?", "{a}*{b}"), ("Could you multiply {a} with {b} for me?", "{a}*{b}"),
    ("How much is {b} less than {a}?", "{a}-{b}"), ("There are {a} kids in {b} buses each. How many kids altogether?", "{a}*{b}"),
    ("My rent is {a} and my bills are {b}, what's the sum?", "{a}+{b}"), ("Take {p} percent off, no wait: what is {p}% of {a}?", "{a}*{p}/100"),
    ("We're {b} friends and the bill is {a}. What does everybody owe?", "{a}/{b}"), ("{a} divided by {b}, what's that", "{a}/{b}"),
    ("how many hours are {b} shifts of {a} hours", "{a}*{b}"), ("I drove {a} km on Saturday and {b} km on Sunday. What's my total?", "{a}+{b}"),
    ("Work this out for me: ({a} + {b}) * {p}", "({a}+{b})*{p}"), ("{a} - {b} = ?", "{a}-{b}"), ("A crate has {a} bottles, we ordered {b} crates. How many bottles?", "{a}*{b}"),
)  # fmt: skip
UNITS = (
    ("How far is {v} miles in kilometres, I mean km?", "miles", "km"), ("My bag weighs {v} kg, what's that in pounds?", "kg", "pounds"),
    ("It's {v} Fahrenheit outside, how much is that in Celsius?", "Fahrenheit", "Celsius"), ("How many feet tall is a tower of {v} m?", "m", "feet"),
    ("I need {v} gallons in litres", "gallons", "litres"), ("{v} hours, how many minutes would that be?", "hours", "minutes"),
)  # fmt: skip
DATES = (
    ("My visa from {d} is good for {k} days. When does it run out?", 1), ("What's the date {k} days from {d}?", 1), ("If I start on {d} and need {k} days, when am I finished?", 1),
    ("The rent was due {k} days before {d}. What date was that?", -1),
)  # fmt: skip
SYSTEMS = ("", "", "You're a friendly concierge.", "Assistant for the Brookfield office. Keep answers short.", "Today's helper: use whatever tool fits.", "You answer customers of a travel agency.")  # fmt: skip


def tools(r: random.Random, author: Author) -> Sample:
    """One or two questions, each for one of up to five tools."""
    asks = r.sample(author.asks, r.randint(1, 3))
    offered = [ask.tool for ask in asks] + [real.CALCULATOR, real.CONVERT, real.ADD_DAYS][: r.randint(1, 3)]
    functions: dict[str, Function] = dict(real.FUNCTIONS)
    messages: list[Message] = []
    answers: list[str] = []
    known: dict[tuple[str, ...], str] = {}  # tool and arguments -> result
    if system := r.choice(author.systems):
        messages.append({"role": "system", "content": system})
    for _ in range(r.choice((1, 1, 2))):
        kinds = ["ask", "ask", "sum"] + ["unit"] * (real.CONVERT in offered) + ["date"] * (real.ADD_DAYS in offered)
        kind = r.choice(kinds)
        if kind == "ask":
            ask = r.choice(asks)
            fields = {name: draw(r) for name, draw in ask.fields.items()}
            question = r.choice(ask.questions).format(**fields)
            answer = known.setdefault((ask.tool.name, *fields.values()), ask.result(r))
            functions[ask.tool.name] = _only(fields, answer, functions.get(ask.tool.name))
        elif kind == "sum":
            template, form = r.choice(author.sums)
            values = {
                "a": r.choice((str(r.randint(12, 950)), f"{r.randint(2, 90)}.{r.randint(1, 9)}")),
                "b": str(r.randint(2, 60)),
                "p": str(r.randint(3, 40)),
            }
            question, answer = template.format(**values), real.calculator(form.format(**values))
        elif kind == "unit":
            template, f, t = r.choice(author.units)
            v = r.choice((str(r.randint(3, 400)), f"{r.randint(2, 90)}.{r.randint(1, 9)}"))
            question, answer = template.format(v=v), real.convert(v, f, t)
        else:
            template, sign = r.choice(author.dates)
            d, k = f"20{r.randint(19, 39)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}", r.randint(3, 300)
            question, answer = template.format(d=d, k=k), real.add_days(d, sign * k)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        answers.append(answer)
    r.shuffle(offered)
    return Sample("tools", tuple(messages), tuple(offered), functions=functions, answers=tuple(answers))


def _only(fields: dict[str, str], answer: str, before: Function | None) -> Function:
    """A tool's function that answers one set of arguments, and those that `before` answers."""

    def call(**arguments: object) -> str:
        if {name: str(value) for name, value in arguments.items()} == fields:
            return answer
        return before(**arguments) if before else "error: not found"

    return call


RECORDS: Records = (
    ({"name": _full, "age": integer(19, 88), "residence": _place},
     ("{name} ({age}) has been living in {residence} for years.", "I'm {name}, {age}, based in {residence}.", "Say hi to {name} who just turned {age} and relocated to {residence}!", "{name} is a {age}-year-old from {residence}.")),
    ({"traveller": _full, "flight": reference, "bound_for": _place, "seat": lambda r: f"{r.randint(1, 39)}{r.choice('ABCDEF')}"},
     ("Passenger {traveller} is booked on flight {flight} to {bound_for}, seat {seat}.", "Flight {flight} to {bound_for}: {traveller} sits in {seat}.", "Boarding pass for {traveller}. {flight} -> {bound_for}. Seat {seat}.")),
    ({"title": of("The Salt Road", "Winter Harvest", "Night Ferry", "A Field of Glass", "The Last Orchard"), "author": _full, "year": integer(1931, 2024), "pages": integer(88, 940)},
     ("{author} published {title} in {year}; it has {pages} pages.", "\"{title}\" by {author} ({year}), {pages} pages.", "In {year} {author} wrote the {pages}-page novel {title}.")),
    ({"company": of("Norfab", "Bluewick", "Hexalume", "Tarn & Sons", "Quillworks"), "invoice": reference, "amount": integer(45, 9800), "due": lambda r: f"20{r.randint(19, 39)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"},
     ("Invoice {invoice} from {company} over {amount} dollars must be settled by {due}.", "{company} billed us {amount} dollars (invoice {invoice}, due {due}).", "Please pay {company} {amount} dollars until {due}, reference invoice {invoice}.")),
    ({"patient": _full, "doctor": lambda r: f"Dr. {r.choice(LAST)}", "ward": integer(1, 14), "diagnosis": of("migraine", "bronchitis", "appendicitis", "anaemia")},
     ("{doctor} admitted {patient} to ward {ward} with {diagnosis}.", "{patient} is on ward {ward}; {doctor} found {diagnosis}.", "Ward {ward}: {patient}, {diagnosis}, treated by {doctor}.")),
    ({"name": _full, "phone": integer(2000000, 9899999), "street": of(*STREETS)},
     ("Hi, {name} here, you can ring me on {phone}, I live on {street}.", "{name}, {street}, tel. {phone}", "Contact: {name}. Tel {phone}. Street: {street}.")),
    ({"dish": of("moussaka", "ramen", "paella", "goulash", "shakshuka"), "minutes": integer(12, 190), "servings": integer(2, 12)},
     ("This {dish} serves {servings} and takes {minutes} minutes.", "Cook the {dish} for {minutes} minutes; enough for {servings} servings.", "Recipe: {dish}, {servings} servings, {minutes} minutes in total.")),
    ({"team": of("Rovers", "Falcons", "Harriers", "Comets"), "opponent": of("Wanderers", "Pirates", "Tigers", "Albion"), "score": lambda r: f"{r.randint(0, 6)}-{r.randint(0, 6)}", "scorer": _full},
     ("{team} played {opponent} and it ended {score}; {scorer} scored.", "Final score {score}: {team} against {opponent}, goal by {scorer}.", "{scorer} scored for {team} against {opponent} ({score}).")),
)  # fmt: skip
PULLS = (
    "Pull out {f} as JSON.\n{t}", "Turn this into JSON with the keys {f}:\n\n{t}", "{t}\n\nGive me {f} from this message as a JSON object.",
    "Parse the following into a JSON object with {f}.\nText: {t}", "What are the {f} here? Reply in JSON only.\n\"{t}\"", "Could I have that in JSON, with {f}? {t}",
    "Convert to JSON. Keys: {f}.\nInput: {t}", "From the text below, get me a JSON with {f}.\n\n{t}",
    "Schema: {s}\nText: {t}\nJSON:", "Fill in this schema: {s}\n\n{t}",
)  # fmt: skip


def _json_type(value: str) -> str:
    return "integer" if value.isdigit() else "number" if re.fullmatch(r"\d+\.\d+", value) else "string"


def extraction(r: random.Random, author: Author) -> Sample:
    """One text, and a request for some of its fields as JSON."""
    makers, texts = r.choice(author.records)
    record = {name: draw(r) for name, draw in makers.items()}
    fields = r.sample(list(record), r.randint(2, len(record)))
    listed = ", ".join(fields) if r.random() < 0.5 else ", ".join(fields[:-1]) + " and " + fields[-1]
    typed = {f: _json_type(record[f]) for f in fields}
    prompt = r.choice(author.pulls).format(f=listed, s=json.dumps(typed), t=r.choice(texts).format(**record))
    messages = (
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": json.dumps({f: record[f] for f in fields})},
    )
    return Sample("json", messages)


CLASSES = {
    "mood": {
        "upbeat": ("Best day of my life!", "I love this place so much", "What a wonderful surprise, thank you", "I'm thrilled with how it turned out", "This made me smile all afternoon", "Everything went perfectly, I'm delighted", "So glad I came here", "Amazing service and lovely people"),
        "fuming": ("This is a complete disgrace", "I hate waiting on the phone for hours", "Never again, what a terrible experience", "You people are useless", "I'm furious about how I was treated", "Worst purchase I ever made", "The staff were rude and it was awful", "It broke after a day, disgusting quality"),
    },
    "desk": {
        "invoicing": ("Two payments left my account instead of one", "Why is my bill so high?", "Please refund the payment from my card", "The invoice shows the wrong amount", "My credit card was declined when paying", "When will I be refunded?", "Can I get a receipt for my payment?", "There's a fee on my bill I don't understand"),
        "outage": ("The website has been down since noon", "The app crashes when I open it", "I get an error message on the screen", "Nothing loads, the server seems broken", "The system freezes every few minutes", "The page shows error 500", "My connection keeps dropping", "The software stopped working after the update"),
        "freight": ("My package never arrived", "When will my order be delivered?", "The courier left it at the wrong door", "The box was damaged in shipping", "Where is my shipment?", "Delivery is a week late", "I'd like to change the delivery address", "The tracking has not moved since Monday"),
    },
    "login": {
        "signin": ("I forgot my password", "You have shut me out of my account", "I can't sign in any more", "The login code never comes", "The new password does not work either", "It says my username is unknown", "How do I change my login email?", "I am locked out of my account"),
        "buying": ("How much is the large one?", "Do students pay less?", "I'd like to buy ten of these", "What does the premium plan cost?", "Is there a sale next week?", "Can I order the blue one in bulk?", "Which price applies to schools?", "I want to upgrade to the bigger package"),
    },
    "pages": {
        "cuisine": ("Simmer the onions in butter until soft", "Add a pinch of salt and stir the soup", "Bake the bread for forty minutes", "Chop the garlic and fry it in oil", "The sauce needs more pepper", "Whisk the eggs with sugar and flour", "Roast the chicken with lemon", "Serve the pasta with grated cheese"),
        "astronomy": ("The telescope found a new planet", "A comet will pass close to the sun", "Stars form in clouds of gas", "The rocket reached orbit at dawn", "The moon hides the sun in an eclipse", "Our galaxy has billions of stars", "The probe sent pictures of Jupiter", "Astronauts repaired the satellite"),
        "gardening": ("Plant the tulips in autumn", "The roses need pruning", "Water the lawn in the evening", "Spread compost on the soil", "Pull out the weeds by hand", "Sow the seeds in rows", "The hedge has grown too tall", "Put the seedlings in the greenhouse"),
        "motoring": ("The engine makes a strange noise", "Check the brakes and tyres", "The car needs a new clutch", "He drove to the garage for petrol", "The gearbox is stuck in third", "Change the oil every year", "The headlights are broken", "A flat tyre stopped our drive"),
    },
    "clubs": {
        "soccer": ("The striker scored twice in the second half", "The goalkeeper saved a penalty", "The coach changed the team at half time", "They won the cup final", "The referee showed a red card", "Fans filled the stadium for the match", "The league starts in August", "He was transferred to a rival club"),
        "classical": ("The violins were out of tune", "She sang the opera beautifully", "The pianist played a sonata", "The conductor raised his baton", "A new album with eight songs", "The choir practised the hymn", "The cello solo was moving", "The concert ended with a symphony"),
        "medical": ("Take two pills after each meal", "The patient has a high fever", "The nurse changed the bandage", "Surgery went well, said the doctor", "He was taken to hospital with chest pain", "The vaccine protects against flu", "She coughs all night", "The clinic treats allergies"),
    },
    "mail": {
        "junk": ("You have won a million dollars, click here", "Cheap pills, limited offer, buy now!!!", "Claim your free prize today", "Make money fast from home", "Congratulations, you were selected for a gift card", "Lowest prices on watches, act now", "Hot deal: click this link for free cash", "Earn thousands weekly, no work needed"),
        "genuine": ("Are we still meeting for lunch on Thursday?", "Please find the report attached", "Mum's birthday is next weekend", "Can you send me the notes from class?", "I'll be ten minutes late to the meeting", "Grandpa sends his love", "The kids have school on Monday", "Let me know when you get home"),
    },
    "speech": {
        "asking": ("Where is the station?", "What time do you close?", "Who wrote this book?", "Is there a bus to the airport?", "How old is the bridge?", "Why is the door locked?", "When does the film begin?", "Which way is north?"),
        "instructing": ("Close the window.", "Bring me the hammer.", "Turn off the lights.", "Stop talking now.", "Send the letter today.", "Open the box carefully.", "Put it on the shelf.", "Wait outside the office."),
    },
}  # fmt: skip
SHAPES = (("Customer wrote: ", "\nWe file it as:", "\n\n"), ("Line to sort: ", "\nGoes under:", "\n\n"), ("", " => ", "\n"), ("Entry: ", "\nBucket:", "\n\n"), ("- ", " | ", "\n"), ("\"", "\",", "\n"), ("Review: ", "\nClass:", "\n"))  # fmt: skip
HEADS = ("", "The first few are done for you.\n\n", "Pick the right category for the last one.\n\n", "Assign each message to one of: {labels}.\n\n", "text,label\n")  # fmt: skip


def few_shot(r: random.Random, author: Author) -> Sample:
    """Three to five examples of each label, then a new text to label."""
    classes = author.classes[r.choice(list(author.classes))]
    labels = r.sample(list(classes), r.randint(2, len(classes)))
    k = r.randint(3, 5)
    texts = {label: r.sample(classes[label], k + 1) for label in labels}
    asked = r.choice(labels)
    pairs = [(text, label) for label in labels for text in texts[label][:k]]
    r.shuffle(pairs)
    before, between, after = r.choice(author.shapes)
    gap = "" if between[-1] in " ," else " "  # before a label
    body = "".join(f"{before}{text}{between}{gap}{label}{after}" for text, label in pairs)
    head = r.choice(author.heads).format(labels=", ".join(labels))
    prompt = f"{head}{body}{before}{texts[asked][k]}{between.rstrip(' ')}"
    if r.random() < 0.5:
        return Sample("few_shot", plain=(prompt, asked if between.endswith(",") else f" {asked}", after))
    return Sample("few_shot", ({"role": "user", "content": prompt}, {"role": "assistant", "content": asked}))


TOLD: Told = (
    (of(*FIRST), ("It's {v}, good to be here.", "You can call me {v}.", "btw my name's {v}", "This is {v} speaking."), ("so what's my name then?", "So who am I again?", "Do you still know what I'm called?")),
    (of(*PETS), ("I have a dog named {v}.", "My dog's name is {v}.", "We just got a puppy, we call it {v}!"), ("What's my dog's name?", "How is my dog called again?", "what did I name my dog?")),
    (of(*PETS), ("Our cat goes by the name of {v}.", "I own a cat called {v}."), ("What's the name of our cat?", "What do we call our cat?")),
    (of(*FIRST), ("My sister is called {v}.", "I've got a sister, {v}."), ("What's my sister's name?", "What is my sister called?")),
    (_place, ("I'm originally from {v}.", "I grew up in {v}.", "My hometown is {v}."), ("Where do I hail from?", "Which town did I grow up in?", "What's my hometown?")),
    (reference, ("The wifi password is {v}.", "Note the wifi password: {v}"), ("What's the wifi password?", "Give me the wifi password again")),
    (integer(3, 480), ("My locker number is {v}.", "I have locker {v}."), ("Which locker do I have?", "What's my locker number?")),
    (reference, ("My flight is {v}.", "I'm booked on {v}."), ("What flight am I on?", "Which flight did I say?")),
    (of("peanuts", "shellfish", "lactose", "pollen"), ("I can't have {v}, I'm allergic.", "Careful, I have an allergy: {v}."), ("What am I allergic to?", "Which allergy do I have?")),
    (of("teal", "maroon", "turquoise", "crimson"), ("My favourite color is {v}.", "I really like {v}, it's my favourite color."), ("What's my favourite color?", "Which color do I like best?")),
    (of("archaeologist", "beekeeper", "midwife", "locksmith"), ("I make a living as a {v}.", "I've been a {v} for ten years."), ("What do I do for a living?", "What's my profession?")),
    (of("Tuesday", "Saturday", "Thursday"), ("My dentist appointment is on {v}.", "I've an appointment at the dentist's this {v}."), ("When do I see the dentist?", "Which day is my dentist appointment?")),
)  # fmt: skip
FILLERS = (("cool", "Great."), ("How's it going?", "I am well, thank you."), ("Nice to meet you.", "Nice to meet you too."), ("Thanks, that's handy.", "You are welcome."), ("ok", "All right."))  # fmt: skip


def recall(r: random.Random, author: Author) -> Sample:
    """One to three facts, in a turn each, in one turn or in the system message; small talk; and a question."""
    facts = r.sample(author.told, r.choice((1, 2, 2, 3)))
    values = [draw(r) for draw, _, _ in facts]
    told = [r.choice(phrases).format(v=v) for (_, phrases, _), v in zip(facts, values, strict=True)]
    at = r.randrange(len(facts))
    question = r.choice(facts[at][2])
    messages: list[Message] = []
    form = r.random()
    if form < 0.3:  # all in one message
        messages.append({"role": "user", "content": f"{' '.join(told)} {question}"})
    else:
        for text in told:
            messages += [
                {"role": "user", "content": text},
                {
                    "role": "assistant",
                    "content": r.choice(author.nods),
                    "is_given": True,
                },
            ]
            if r.random() < 0.3:
                said, answer = r.choice(author.fillers)
                messages += [
                    {"role": "user", "content": said},
                    {"role": "assistant", "content": answer, "is_given": True},
                ]
        messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": values[at]})
    return Sample("recall", tuple(messages), answers=(values[at],))


PASSAGES = (
    ("{a} runs the bakery on {s}. {b} delivers the flour every {d}. The key is kept by {c}.",
     (("Who runs the bakery?", "{a}"), ("Who has the key?", "{c}"), ("Which day does the flour come?", "{d}"), ("Where is the bakery?", "{s}"))),
    ("The museum in {p} opens at {t}. Tickets are {n} euros. The guide is {a}, the director is {b}.",
     (("What does a ticket cost?", "{n}"), ("When does the museum open?", "{t}"), ("Who's the guide there?", "{a}"), ("Who's the director?", "{b}"), ("Which city is the museum in?", "{p}"))),
    ("{a} lent the ladder to {b}. {c} borrowed the drill. The meeting is on {d} at {t}.",
     (("Who has the ladder?", "{b}"), ("Who borrowed the drill?", "{c}"), ("Which day is the meeting?", "{d}"))),
)  # fmt: skip
READS = (
    "{p}\n\n{q}",
    "Based on this passage: {p}\n\nMy question: {q}",
    "Read this: {p}\nNow tell me: {q}",
    "{q}\n\n{p}",
)


FACTS = {
    "s": of(*STREETS),
    "d": of("Monday", "Wednesday", "Friday"),
    "p": _place,
    "t": of("08:40", "09:25", "10:35"),
    "n": integer(4, 39),
}


def reading(r: random.Random, author: Author) -> Sample:
    """A short text about people and things, and a question about it."""
    text, questions = r.choice(author.passages)
    a, b, c = r.sample(author.people, 3)
    fields = {"a": a, "b": b, "c": c} | {name: draw(r) for name, draw in author.facts.items()}
    question, answer = r.choice(questions)
    answer = answer.format(**fields)
    messages = (
        {"role": "user", "content": r.choice(author.reads).format(p=text.format(**fields), q=question)},
        {"role": "assistant", "content": answer},
    )
    return Sample("reading", messages, answers=(answer,))


HELLO, NO_IDEA = r"\b(hello|hi|hey|good (morning|evening|day|afternoon)|greetings)\b", r"do not know|don't know|cannot|can't|no idea|not sure"  # fmt: skip
CHATS = (
    (("hi, new here!", "hello there friend", "heya", "Afternoon!", "yo", "Hi, anyone there?", "hello, anybody in?", "Greetings"), f"{HELLO}|help you"),
    (("thx", "oh perfect, that does it", "Cheers, that helps", "ty", "I appreciate it", "Great, thank you for that"), r"welcome|pleasure|glad|any time|happy to"),
    (("cya", "I have to go now", "right, I better get moving", "Talk to you tomorrow", "That's all for today, good night"), r"bye|see you|good night|later|take care"),
    (("and you are?", "what do people call you", "Are you a human?", "are you chatgpt?", "Am I talking to a robot?"), r"banyan|pocket|model"),
    (("what is it that you can do", "In what ways are you handy?", "What are your skills?", "could use a hand", "What sort of things may I ask?"), r"tools|json|label|remember|help"),
    (("everything okay with you?", "How's life?", "All fine over there?", "what's up?", "You feeling okay?"), r"\b(well|fine|good|great|all right)\b"),
    (("What's the capital of Peru?", "Who won the world cup in 1998?", "Who is the president of Brazil?", "How tall is Mount Everest?", "What is photosynthesis?", "When was Napoleon born?"), NO_IDEA),
    (("What will the weather be tomorrow?", "Write me a poem about autumn", "Can you tell me a joke?", "Translate 'good morning' into Spanish", "Explain quantum physics to me", "What should I eat tonight?"), NO_IDEA),
    (("You're stupid", "That was wrong.", "no, that's not right"), r"sorry|apolog|mistake"),
    (("You're great!", "good job", "well done!", "Nice work"), r"thank|glad|happy|kind"),
    (("Nice to meet you", "Pleased to meet you!"), r"\b(meet you|pleasure|pleased|hello|likewise)\b"),
    (("Have you got my name?", "Any idea where I live?", "What's my dog called?"), f"{NO_IDEA}|not told|have not|haven't"),
)  # fmt: skip


def chat(r: random.Random, author: Author) -> Sample:
    """One turn of chat to answer, sometimes after an earlier turn."""
    messages: list[Message] = []
    if r.random() < 0.3:
        messages.append({"role": "system", "content": r.choice([s for s in author.systems if s])})
    if r.random() < 0.3:
        said, answer = r.choice(author.fillers)
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer, "is_given": True}]
    phrases, wanted = r.choice(author.chats)
    messages += [{"role": "user", "content": r.choice(phrases)}, {"role": "assistant", "content": wanted}]
    return Sample("chat", tuple(messages), answers=(wanted,))


FAMILIES: dict[str, Callable[[random.Random, Author], Sample]] = {
    "tools": tools, "json": extraction, "few_shot": few_shot, "recall": recall, "reading": reading, "chat": chat,
}  # fmt: skip
STRANGERS = Author(
    "strangers", FIRST, (*LAST, *PLACES, *PETS), SYSTEMS, ASKS, SUMS, UNITS, DATES, RECORDS, PULLS, CLASSES, SHAPES, HEADS,
    TOLD, ("I will remember that.", "Noted.", "Okay!"), FILLERS, PASSAGES, FACTS, READS, CHATS,
)  # fmt: skip


def samples(family: str, n: int, seed: int | str, author: Author = STRANGERS) -> list[Sample]:
    """n samples of a family, the same for the same seed."""
    r = random.Random(f"{author.name}-{family}-{seed}")
    return [FAMILIES[family](r, author) for _ in range(n)]


MAX_WORDS = 14
"""Maximum length of a right answer about a text or a told fact: repeating the whole text is no answer."""


def says(text: str, value: str) -> bool:
    """Whether a text contains a value as whole words."""
    return re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-]|\.\d)", text) is not None


def is_right(family: str, text: str, wanted: str) -> bool:
    """Whether an answer to one question of this set is right."""
    if family == "json":
        try:
            got = json.loads(text)
        except ValueError:
            return False
        return isinstance(got, dict) and {k: str(v) for k, v in got.items()} == json.loads(wanted)
    if family == "few_shot":
        return text.strip().split("\n")[0].strip(" \"',.") == wanted
    if family == "chat":
        return re.search(wanted, text.lower()) is not None and not is_junk(text)
    return says(text, wanted) and len(text.split()) <= MAX_WORDS and not is_junk(text)


def is_junk(text: str) -> bool:
    """Whether a text has a broken character, or repeats a word or sign many times."""
    if "\ufffd" in text or re.search(r"(.{1,12}?)\1{5,}", text.replace("\n", " ")):
        return True
    return any(len(list(run)) > 3 for _, run in itertools.groupby(text.split()))
