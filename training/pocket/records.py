"""JSON extraction: a text that describes a record, and the requested fields of the record as JSON.

Texts are combined from clauses, so that training sees thousands of ways to describe a record. A model that saw only five
sentences per kind learned the positions of the values in them, not the meaning of the words around the values.
"""

# Phrases are long lines.
# ruff: noqa: E501

import json
import string
from typing import NamedTuple

from pocket.chat import Message, Sample
from pocket.transcripts import ASPECTS, SYSTEMS
from pocket.words import COLOURS, EVENTS, JOBS, Draw, Phrases


class Frame(NamedTuple):
    """Subjects of a sentence, and predicates that may follow them. predicates: field -> predicates that state it."""

    subjects: tuple[str, ...]
    predicates: dict[str, tuple[str, ...]]


class Kind(NamedTuple):
    """Phrases for one kind of record: whole texts, and clauses to combine."""

    whole: Phrases
    frames: tuple[Frame, ...]
    notes: dict[str, tuple[str, ...]]  # field -> complete sentences


class Flow(NamedTuple):
    """Parts of one long sentence: optional leads, a core, and optional tails; `[a|b]` as in `Draw.vary`."""

    leads: tuple[str, ...]
    cores: tuple[str, ...]
    tails: tuple[str, ...]


KINDS: dict[str, Kind] = {
    "people": Kind(
        Phrases(
            train=("{name} is {age} years old and lives in {city}. {name1} works as a {job} and can be reached at {email}.",
                   "{name}, a {job} from {city}, is {age}. Write to {email}.",
                   "Meet {name}: {age} years old, {job}, living in {city}, email {email}.",
                   "From {city} comes {name}, who is {age} and works as a {job} ({email}).",
                   "The {job} {name} ({age}) lives in {city}. Email: {email}.",
                   "Name: {name}. Age: {age}. Job: {job}. City: {city}. Email: {email}.",
                   "We welcome {name}, {age}, a {job}. Home: {city}. Mail goes to {email}.",
                   "In {city} there is a {job} of {age} years called {name}. The address is {email}.",
                   "My colleague {name} is a {job}, {age} years old, in {city}: {email}."),
            held=("{name} lives in {city}, is {age} years old and works as a {job}. Email: {email}.",
                  "Our new {job} is {name}, {age}, from {city}. Write to {email}."),
        ),
        (
            Frame(("{name}", "{name}", "{name}, who", "The {job} {name}", "{name} ({age})", "{name}, {age},", "{name}, a {job},", "{name} from {city}", "A {job} called {name}", "Our {job} {name}",
                   "{name}, {job},", "Our neighbour {name}", "The new {job}, {name},", "My friend {name}", "From {city}, {name}"),
                  {"age": ("is {age} years old", "is {age}", "turned {age}", "is aged {age}", "has the age of {age}"),
                   "city": ("lives in {city}", "comes from {city}", "is from {city}", "has a home in {city}", "moved to {city}", "stays in {city}"),
                   "job": ("works as a {job}", "is a {job}", "has a job as a {job}", "is our {job}", "became a {job}"),
                   "email": ("can be reached at {email}", "has the email {email}", "answers to {email}", "writes from {email}", "uses {email}")}),
            Frame(("Our {job}", "The {job}", "A new {job}", "Their {job}", "The best {job} of {city}", "The {job} from {city}", "The person we met"),
                  {"name": ("is {name}", "is called {name}", "has the name {name}", "is named {name}"),
                   "age": ("is {age} years old", "is {age}", "turned {age}"),
                   "city": ("lives in {city}", "is from {city}", "comes from {city}"),
                   "email": ("has the email {email}", "can be reached at {email}")}),
        ),
        {"name": ("The name is {name}.", "Name: {name}.", "Here is {name}.", "This is {name}."),
         "age": ("Age: {age}.", "The age is {age}.", "{name1} is {age} years old.", "{age} years old."),
         "city": ("City: {city}.", "Home: {city}.", "{name1} lives in {city}.", "The city is {city}.", "Lives in {city}."),
         "job": ("Job: {job}.", "The job is {job}.", "{name1} works as a {job}.", "Works as a {job}.", "By trade a {job}."),
         "email": ("Email: {email}.", "Write to {email}.", "Mail: {email}.", "The email is {email}.", "Contact: {email}.", "Send mail to {email}.", "{name1} can be reached at {email}.")},
    ),
    "orders": Kind(
        Phrases(
            train=("{customer} ordered {quantity} {item}s for {price} euros. The order {order_id} ships on {date}.",
                   "Order {order_id}: {quantity} {item}s at {price} euros for {customer}, to be sent on {date}.",
                   "On {date}, {customer} bought {quantity} {item}s (order {order_id}) and paid {price} euros.",
                   "We send {quantity} {item}s to {customer} on {date}. Price: {price} euros. Order number: {order_id}.",
                   "{order_id} is the order of {customer}: {quantity} {item}s, {price} euros, {date}.",
                   "For {price} euros, {customer} gets {quantity} {item}s on {date}. This is order {order_id}.",
                   "Dated {date}: {quantity} {item}s, {price} euros, order {order_id}, customer {customer}.",
                   "{quantity} {item}s go to {customer} on {date} for {price} euros as order {order_id}."),
            held=("{customer} paid {price} euros for {quantity} {item}s on {date}. The order number is {order_id}.",
                  "The order {order_id} of {customer} has {quantity} {item}s, costs {price} euros and ships on {date}."),
        ),
        (
            Frame(("{customer}", "{customer}", "On {date}, {customer}", "Our customer {customer}", "The customer {customer}", "In order {order_id}, {customer}", "For {price} euros, {customer}", "Yesterday {customer}"),
                  {"item": ("ordered {quantity} {item}s", "bought {quantity} {item}s", "wants {quantity} {item}s", "gets {quantity} {item}s", "asked for {quantity} {item}s", "receives {quantity} {item}s"),
                   "price": ("paid {price} euros", "pays {price} euros", "spent {price} euros", "owes {price} euros"),
                   "date": ("expects it on {date}", "gets it on {date}", "is served on {date}"),
                   "order_id": ("has the order number {order_id}", "made the order {order_id}", "sent order {order_id}")}),
            Frame(("Order {order_id}", "The order {order_id}", "{order_id}", "The order of {customer}", "The order", "The parcel of {customer}", "The parcel {order_id}"),
                  {"item": ("is for {quantity} {item}s", "holds {quantity} {item}s", "lists {quantity} {item}s", "consists of {quantity} {item}s", "brings {quantity} {item}s"),
                   "price": ("costs {price} euros", "comes to {price} euros", "has a price of {price} euros", "is worth {price} euros"),
                   "customer": ("goes to {customer}", "is for {customer}", "was made by {customer}", "came from {customer}"),
                   "date": ("ships on {date}", "leaves on {date}", "is sent on {date}", "is due on {date}", "arrives on {date}"),
                   "order_id": ("has the number {order_id}", "is number {order_id}")}),
            Frame(("{quantity} {item}s", "The {quantity} {item}s", "{quantity} {item}s of order {order_id}", "{quantity} {item}s for {customer}"),
                  {"price": ("cost {price} euros", "were sold for {price} euros", "cost {price} euros in total"),
                   "customer": ("go to {customer}", "are for {customer}", "were ordered by {customer}"),
                   "date": ("ship on {date}", "leave on {date}", "are sent on {date}", "are due on {date}"),
                   "order_id": ("have the order number {order_id}", "make up order {order_id}", "belong to {order_id}")}),
        ),
        {"customer": ("Customer: {customer}.", "The customer is {customer}.", "It goes to {customer}.", "It is for {customer}."),
         "item": ("{quantity} {item}s were ordered.", "Content: {quantity} {item}s.", "It is {quantity} {item}s.", "We sold {quantity} {item}s."),
         "price": ("Price: {price} euros.", "The price is {price} euros.", "It costs {price} euros.", "Total: {price} euros.", "To pay: {price} euros."),
         "date": ("Date: {date}.", "It ships on {date}.", "The date is {date}.", "It leaves on {date}.", "Delivery on {date}."),
         "order_id": ("Order: {order_id}.", "Order number: {order_id}.", "This is order {order_id}.", "The number of the order is {order_id}.", "Its number is {order_id}.", "Reference: {order_id}.")},
    ),
    "events": Kind(
        Phrases(
            train=("The {event} with {host} takes place in {city} on {date} at {time}. There are {seats} seats.",
                   "On {date} at {time}, {host} opens the {event} in {city}, with {seats} seats.",
                   "{host} invites you to a {event} in {city} on {date}, {time}. Seats: {seats}.",
                   "{city}, {date}: {event} with {host}, start {time}, {seats} seats.",
                   "{seats} people can join the {event} of {host} on {date} at {time} in {city}.",
                   "Come to {city} on {date}: at {time} the {event} of {host} begins, for {seats} people.",
                   "At {time} on {date} there is a {event} by {host} in {city}. We have {seats} seats.",
                   "Do not miss the {event} by {host}! {city}, {date}, {time}, {seats} seats."),
            held=("Join the {event} of {host} in {city}. It starts on {date} at {time} and has {seats} seats.",
                  "In {city}, {host} gives a {event} for {seats} people on {date} at {time}."),
        ),
        (
            Frame(("{host}", "{host}", "On {date}, {host}", "At {time}, {host}", "On {date} at {time}, {host}", "Our host {host}", "From {city}, {host}"),
                  {"event": ("opens a {event}", "invites you to a {event}", "leads the {event}", "holds a {event}", "plans a {event}", "welcomes you to the {event}", "runs a {event}",
                             "offers a {event}", "announces a {event}", "prepares a {event}", "has a {event}", "starts a {event}", "hosts a {event}", "brings a {event} to you"),
                   "city": ("comes to {city}", "meets you in {city}", "is in {city}", "waits for you in {city}"),
                   "date": ("comes on {date}", "begins on {date}", "expects you on {date}"),
                   "time": ("starts at {time}", "begins at {time}", "expects you at {time}"),
                   "seats": ("has {seats} seats", "offers {seats} seats", "expects {seats} people", "has room for {seats} people")}),
            Frame(("The {event}", "The {event}", "A {event}", "The {event} with {host}", "The {event} by {host}", "Our {event} in {city}", "The {city} {event}", "This {event}", "The {event} of {host}", "The {event} on {date}"),
                  {"host": ("is led by {host}", "is held by {host}", "is with {host}", "is opened by {host}", "has {host} as host"),
                   "city": ("is in {city}", "takes place in {city}", "comes to {city}", "is held in {city}"),
                   "date": ("is on {date}", "takes place on {date}", "comes on {date}", "begins on {date}"),
                   "time": ("starts at {time}", "begins at {time}", "opens at {time}", "is at {time}"),
                   "seats": ("has {seats} seats", "offers {seats} seats", "is for {seats} people", "holds {seats} people", "has room for {seats} people")}),
            Frame(("Join us: it", "It", "All of it", "This"),
                  {"event": ("is a {event}", "is the {event} of {host}"), "city": ("is in {city}", "takes place in {city}"), "date": ("is on {date}", "starts on {date}"),
                   "time": ("starts at {time}", "begins at {time}"), "seats": ("has {seats} seats", "is for {seats} people"), "host": ("is led by {host}", "is held by {host}")}),
        ),
        {"event": ("Event: {event}.", "It is a {event}.", "Join the {event}.", "Come to the {event}."),
         "host": ("Host: {host}.", "The host is {host}.", "With {host}.", "{host} is the host.", "{host} leads it."),
         "city": ("City: {city}.", "Place: {city}.", "It is in {city}.", "We meet in {city}."),
         "date": ("Date: {date}.", "It is on {date}.", "On {date}.", "The date is {date}."),
         "time": ("Time: {time}.", "It starts at {time}.", "Start: {time}.", "Doors open at {time}.", "At {time}."),
         "seats": ("Seats: {seats}.", "There are {seats} seats.", "{seats} seats.", "It has {seats} seats.", "{seats} people can come.")},
    ),
    "products": Kind(
        Phrases(
            train=("The {item} {model} is {colour}, weighs {weight} grams and costs {price} euros.",
                   "{model}: a {colour} {item} of {weight} grams for {price} euros.",
                   "For {price} euros you get the {colour} {item} {model}, which weighs {weight} grams.",
                   "New: {item} {model} in {colour}, {weight} grams, {price} euros.",
                   "A {weight} gram {item}, the {colour} {model}, sells for {price} euros.",
                   "We offer a {item} at {price} euros: {model}, {colour}, {weight} grams.",
                   "In {colour}, {price} euros, {weight} grams: {item} {model}.",
                   "The {model} is our {item} in {colour}. It weighs {weight} grams. Price: {price} euros."),
            held=("The {colour} {item} {model} costs {price} euros and weighs {weight} grams.", "A {item} in {colour}, {weight} grams, {price} euros: the {model}."),
        ),
        (
            Frame(("The {item} {model}", "The {model}", "The {item}", "A {item}", "This {item}", "The {colour} {item}", "The {colour} {model}", "Our {item} {model}", "A {colour} {item}", "{model}", "The {item} called {model}", "The {model} {item}"),
                  {"item": ("is a {item}", "is our {item}", "is a new {item}"),
                   "model": ("is called {model}", "has the model number {model}", "is the model {model}", "is named {model}"),
                   "colour": ("is {colour}", "comes in {colour}", "has the colour {colour}", "is sold in {colour}"),
                   "weight": ("weighs {weight} grams", "has a weight of {weight} grams", "is {weight} grams heavy"),
                   "price": ("costs {price} euros", "sells for {price} euros", "is sold for {price} euros", "has a price of {price} euros", "is yours for {price} euros")}),
            Frame(("For {price} euros there is the {item}, which", "In our shop, the {item}", "For {price} euros, the {item} {model}", "At {weight} grams, the {item}", "Look: the {item}", "In {colour}, the {item}"),
                  {"model": ("is called {model}", "is the {model}"), "colour": ("is {colour}", "comes in {colour}"),
                   "weight": ("weighs {weight} grams", "is {weight} grams heavy"), "price": ("costs {price} euros", "sells for {price} euros")}),
        ),
        {"item": ("Item: {item}.", "It is a {item}.", "We sell a {item}.", "Product: {item}."),
         "model": ("Model: {model}.", "The model is {model}.", "Its name is {model}.", "It is the {model}.", "The {model}."),
         "colour": ("Colour: {colour}.", "The colour is {colour}.", "It is {colour}.", "It comes in {colour}.", "In {colour}."),
         "weight": ("Weight: {weight} grams.", "It weighs {weight} grams.", "The weight is {weight} grams.", "{weight} grams."),
         "price": ("Price: {price} euros.", "It costs {price} euros.", "The price is {price} euros.", "{price} euros.", "Yours for {price} euros.")},
    ),
}  # fmt: skip
_ORDERS = "[ordered|bought|wants|gets|asked for|receives|takes|needs|chose|picked|booked|orders|buys|collects|reserved|will get|would like|has ordered|is sent|is waiting for]"
_HOSTS = "[opens|leads|holds|plans|runs|offers|announces|prepares|has|starts|hosts|directs|teaches|presents|organises|arranges|chairs|manages|puts on|sets up|will hold|leads us through|is planning|promises]"
_IS = "[is|takes place|begins|starts|happens|is held|opens|comes|will be|is planned|goes ahead]"
_SELLS = "[sells|goes|is sold|is yours|is on offer|is listed|can be had]"
FLOWS: dict[str, tuple[Flow, ...]] = {
    "people": (
        Flow(("", "", "In {city}, ", "From {city}: ", "At {age}, "),
             ("{name} [is|works as|became|was hired as|is known as|trained as] [a|the|our] {job}", "[Our|The|A|My|Their|This] [new |old |best |first ||]{job}[,| is| is called|, called] {name}", "{name} [lives|stays|works|has a home|moved|grew up|settled] in {city}",
              "{name}, [a|our|the] {job},", "[Meet|Ask|Welcome|Here is|This is|Say hello to|Write to|Call|Thank] {name}", "{name} [joins us|is new here|starts today|answers mail|has a job|left school|works here]", "{name} [is|turned|has turned|is now] {age}[ years old|]"),
             (", {age} years old", ", {age},", ", aged {age}", " ({age})", " at the age of {age}", " from {city}", " in {city}", " of {city}", ", {city}", ", a {job}", " as [a|our] {job}", ", {job}", " ({email})", ", email {email}", " with the email {email}", ", {email}", " and [answers to|uses|has|reads] {email}", " and can be [reached|found] at {email}")),
    ),
    "orders": (
        Flow(("", "", "On {date}, ", "For {price} euros, ", "In order {order_id}, ", "Under {order_id}, ", "{date}: ", "With order {order_id}, ", "By {date}, "),
             (f"{{customer}} {_ORDERS} {{quantity}} {{item}}s", f"[our|the|a] customer {{customer}} {_ORDERS} {{quantity}} {{item}}s", "{quantity} {item}s [go|are sent|were sold|leave us|are packed|were shipped|travel] to {customer}",
              "order {order_id} [has|holds|lists|brings|is for|contains|covers|includes] {quantity} {item}s", "we [send|sold|deliver|ship|owe|pack|bring] {customer} {quantity} {item}s", "{customer} [pays|paid|owes|spent|sent us|gave us|transferred] {price} euros"),
             (" for {price} euros", " at {price} euros", ", price {price} euros", ", {price} euros in total", " on {date}", ", due on {date}", ", dated {date}", " before {date}", " (order {order_id})", " as order {order_id}", " with the number {order_id}", " under {order_id}", ", order {order_id}", " for {customer}", " from {customer}", " by {customer}", " for {quantity} {item}s", " with {quantity} {item}s")),
    ),
    "events": (
        Flow(("", "", "In {city}, ", "On {date}, ", "At {time}, ", "On {date} at {time}, ", "With {host}, ", "Here in {city}, ", "{city}, {date}: "),
             (f"{{host}} {_HOSTS} [a|the|our|this] {{event}}", f"[the|a|our|this] {{event}} {_IS}", "[there is|there will be|we have|you find|you can join|do not miss|come to|join|visit|we plan] [a|the|our] {event}",
              "{host} [invites|welcomes|calls|takes|asks] [you|us|everyone|all] to [a|the] {event}", "[a|the|our] {event} [with|of|by] {host}", "{seats} people [can come|are invited|may come|will come|fit|meet] for [a|the] {event}"),
             (" with {host}", " by {host}", " of {host}", ", host {host}", " in {city}", " at {city}", ", {city}", " on {date}", ", {date}", " at {time}", ", {time}", " from {time}", " for {seats} people", " with {seats} seats", ", {seats} seats", " ({seats} seats)", " with room for {seats}", " before {seats} people")),
    ),
    "products": (
        Flow(("", "", "New: ", "For {price} euros: ", "In {colour}: ", "Today: ", "At {weight} grams, "),
             ("[the|a|our|this|one] {colour} {item}[ {model}|][ is here| is new|]", "[a|the|our|one|this] {item} in {colour}[ called {model}|, the {model}|]", "[the|a|our|this|one] [new |good |small ||][{colour} |]{item}[ {model}|]", "[the|our|this|a] [{colour} |]{model} [is|remains|makes] [a|our|the] [good |small ||]{item}", "[we offer|we have|you get|here is|look at|take|try|buy|see|order] [a|the|our|this] [{colour} |]{item}[ {model}|]",
              f"[the|our|this] [{{colour}} |]{{item}}[ {{model}}|] {_SELLS}", "[the|a|our] [{colour} |]{item}[ {model}|] [costs|is|brings|fetches] {price} euros", "[the|a|our] [{colour} |]{item}[ {model}|] [weighs|has|brings|is] {weight} grams"),
             (" in {colour}", ", {colour}", ", colour {colour}", " for {price} euros", " at {price} euros", ", {price} euros", ", price {price} euros", " of {weight} grams", " with {weight} grams", ", {weight} grams", " at {weight} grams", ", model {model}", " called {model}", ": the {model}", ", the {model}", " ({model})", " under the name {model}")),
    ),
}  # fmt: skip
EXTRACT = Phrases(
    train=("Extract {f} as JSON.", "Extract these fields as JSON: {f}.", "Give {f} as JSON.", "Return JSON with the fields {f}.",
           "Write the {f} from the text as JSON.", "Fields: {f}. Answer with JSON.", "Turn the text into JSON with {f}.", "Please extract {f} as JSON.",
           "Find {f} and answer with JSON.", "I need {f} as JSON.", "As JSON, please: {f}.", "Read the text and give JSON with the fields {f}.",
           "Extract JSON. Fields: {f}.", "Use JSON for {f}.", "Get the fields {f} as JSON."),
    held=("Extract the fields {f} as JSON.", "Answer with JSON. Fields: {f}."),
)  # fmt: skip
INTEGERS = ("age", "quantity", "seats", "weight")
NUMBERS = ("price",)
UNTYPED = tuple(word for word in ASPECTS if word not in (*INTEGERS, *NUMBERS))
TIED = {"quantity": "item"}  # phrases for the second field state the first too
LINKS = (", ", " and ", ", and ")


def wording() -> str:
    """All words around the values of records."""
    return f"{KINDS} {FLOWS} {EXTRACT} {UNTYPED} {ANYTHING}"


def told_of(template: str) -> set[str]:
    """The fields that a template contains."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def _record(d: Draw, kind: str) -> dict[str, str]:
    """Field values of one record, as they stand in the text."""
    if kind == "people":
        name = d.full_name()
        first, last = name.lower().split()
        user = first if d.chance(0.5) else f"{first}.{last}"
        email = f"{user}@{d.word()}.{d.pick(('com', 'org', 'net'))}"
        return {"name": name, "age": str(d.number(18, 90)), "city": d.city(), "job": d.mixed(JOBS), "email": email}
    person = d.full_name() if d.chance(0.7) else d.name()
    if kind == "orders":
        return {
            "customer": person,
            "quantity": str(d.number(2, 999)),
            "item": d.item(),
            "price": d.value(),
            "date": d.date(),
            "order_id": d.code(),
        }
    if kind == "events":
        return {
            "event": d.mixed(EVENTS),
            "host": person,
            "city": d.city(),
            "date": d.date(),
            "time": d.time(),
            "seats": str(d.number(10, 900)),
        }
    return {
        "item": d.item(),
        "model": d.code(),
        "colour": d.mixed(COLOURS),
        "weight": str(d.number(10, 5000)),
        "price": d.value(),
    }


def _flowing(d: Draw, flow: Flow, left: set[str]) -> str:
    """A sentence with a core, an optional lead, and tails for some of the fields in `left`."""
    core = d.vary(d.pick(flow.cores))
    told = told_of(core)
    lead = d.pick(flow.leads)
    if told_of(lead) & told or not told_of(lead) <= left:
        lead = ""
    told |= told_of(lead)
    text = lead + core
    for tail in d.some(flow.tails, len(flow.tails)):
        new = told_of(tail)
        if new <= left - told and d.chance(0.8):
            text += d.vary(tail)
            told |= new
    text = text.rstrip(",") + "."
    return text[0].upper() + text[1:]


def _composed(d: Draw, kind: Kind, flows: tuple[Flow, ...], wanted: set[str]) -> str:
    """A template made of clauses. It contains the wanted fields in any order, mostly once each."""
    left = {TIED.get(field, field) for field in wanted}
    sentences: list[str] = []
    for _ in range(d.pick((0, 1, 1, 1, 2))):
        if d.chance(0.5):
            sentences.append(_flowing(d, d.pick(flows), left))
            left -= told_of(sentences[-1])
            continue
        frame = d.pick(kind.frames)
        subject = d.pick(frame.subjects)
        fitting = left - told_of(subject)
        said = [field for field in frame.predicates if field in fitting]
        if not said:
            continue
        said = d.some(said, min(len(said), d.pick((1, 2, 2, 3, 3, 4))))
        clauses = [d.pick(frame.predicates[field]) for field in said]
        for clause in (subject, *clauses):
            left -= told_of(clause)
        if subject.endswith(" who") and len(clauses) == 1:
            subject = subject.removesuffix(", who")
        ending = clauses[0] if len(clauses) == 1 else ", ".join(clauses[:-1]) + d.pick(LINKS[1:]) + clauses[-1]
        sentences.append(f"{subject} {ending}.")
    rest = [d.pick(kind.notes[field]) for field in sorted(left)]
    d.rng.shuffle(rest)
    if d.chance(0.25):  # as a list: `a, b, c.`
        rest = [", ".join(note.rstrip(".") for note in rest) + "."] if rest else []
    if d.chance(0.3):
        sentences = [*rest, *sentences]
    else:
        sentences += rest
    return " ".join(sentences)


def _listed(d: Draw, fields: list[str]) -> str:
    """A template that lists field names and values."""
    between, end = d.pick(((": ", "; "), (": ", "\n"), (" = ", ", "), (": ", ", "), (" is ", ", "), (": ", " | ")))
    return end.join(f"{field}{between}{{{field}}}" for field in d.some(fields, len(fields)))


def _telling(d: Draw, kind: str, record: dict[str, str], wanted: list[str]) -> str:
    """The template of a text with the wanted fields of a record, and maybe more."""
    if d.held:
        return d.pick(KINDS[kind].whole.held)
    way = d.rng.random()
    if way < 0.25:
        return d.strange(d.pick(KINDS[kind].whole.train))
    told = {field for field in record if field in wanted or d.chance(0.7)}
    if way < 0.32:
        return _listed(d, sorted(told))
    while (template := _composed(d, KINDS[kind], FLOWS[kind], told)) in KINDS[kind].whole.held:
        pass
    return d.strange(template)


ANYTHING = ("The {f} is {{{f}}}.", "It has the {f} {{{f}}}.", "{f}: {{{f}}}.", "Its {f} is {{{f}}}.", "The {f} of it is {{{f}}}.",
            "{{{f}}} is the {f}.", "With {{{f}}} as {f}.", "We know the {f}: {{{f}}}.")  # fmt: skip


def _anything(d: Draw) -> tuple[dict[str, str], str]:
    """(A record with random words as field names, a template that has each name next to its value)."""
    names = [d.listed(UNTYPED) if d.chance(0.6) else d.word() for _ in range(d.rng.randrange(2, 7))]
    record = {name: d.pick((d.name, d.city, d.item, d.word, d.code, d.value, d.date))() for name in names}
    if d.chance(0.3):
        return record, _listed(d, list(record))
    return record, " ".join(d.pick(ANYTHING).format(f=f) for f in record)


def _typed(name: str, value: str) -> object:
    if name in INTEGERS:
        return int(value)
    return (float(value) if "." in value else int(value)) if name in NUMBERS else value


def extraction(d: Draw) -> Sample:
    """One to three texts, each answered by a JSON object with the fields named in the prompt."""
    system = d.say(SYSTEMS) if d.chance(0.3) else ""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    fixed = d.pick(tuple(KINDS)) if d.chance(0.5) else ""
    for _ in range(d.pick((1, 1, 2, 3))):
        if not d.held and d.chance(0.12):
            record, template = _anything(d)
            fields = d.some(tuple(record), d.rng.randrange(1, len(record) + 1))
        else:
            kind = fixed or d.pick(tuple(KINDS))
            record = _record(d, kind)
            fields = d.some(tuple(record), d.rng.randrange(2, len(record) + 1))
            template = _telling(d, kind, record, fields)
        text = template.format(**record, name1=record.get("name", "").split(" ")[0])
        types = {f: "integer" if f in INTEGERS else "number" if f in NUMBERS else "string" for f in fields}
        if d.chance(0.3):
            prompt = f"Extract JSON.\nSchema: {json.dumps(types)}\nText: {text}"
        else:
            prompt = f"{d.say(EXTRACT, f=', '.join(fields))}\nText: {text}"
        answer = json.dumps({f: _typed(f, record[f]) for f in fields}, ensure_ascii=False)
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return Sample("json", tuple(messages))
