"""Training text as people write who have not read the card: the same families of tasks in many more wordings.

Names are of many spellings, records of many domains, tools have up to three arguments of any name, label sets are drawn
at random, and what was never told is answered with `NO_IDEA`.
"""

# Phrases are long lines.
# ruff: noqa: E501, SIM905

import json
from collections.abc import Callable, Sequence

from pocket.chat import Message, Sample, Target
from pocket.subjects import INTENTS, SAID, SUBJECTS
from pocket.tools import ADD_DAYS, CALCULATOR, CONVERT, DAYS_BETWEEN, FUNCTIONS, Function, Tool, run
from pocket.transcripts import UNITS
from pocket.words import ANIMALS, COLOURS, DAYS, JOBS, Draw

NO_IDEA = "I do not know that. I only know what you tell me."
CANNOT = "I cannot do that. I am a very small model."
HELLO, NOTED = "Hello! How can I help you?", "I will remember that."
Maker = Callable[[Draw], str]

# --- values ------------------------------------------------------------------------------------------------------------

_CAPITALS = "B C D F G H J K L M N P R S T V W Z Br Ch Cr Dr Fr Gr Kr Kw Ll Ny Ph Pr Qu Rh Sch Sh Sk Sl Sm Sn St Sv Sz Th Tr Ts Tz Wr Xi Y Zh Bj Dm Fj Gh Gw A E I O U Au Ei".split()  # fmt: skip
_MIDDLES = "b d f g k l m n p r s t v z bb ck ch ff gg lk ll lm ls lv mb mm nd ng nk nn nt ph pp rd rg rk rl rm rn rr rt rv sh sk ss st sz tch th tt tz vr w wn x y zh dl kh".split()  # fmt: skip
_VOWELS = "a a e e i i o o u y aa ae ai au ay ea ee ei eo eu ia ie io oa oo ou oy ua ue".split()
_ENDINGS = "a o e i an en in on ar er or us is as el il ek ik ak ov ev ski sky ska sen son berg feld dal ström mann wood ford ley ton well worth ez es az ini elli etti eau ier oux ck rd rt ng nd th sh ld ll nn ss tt".split()  # fmt: skip


def rare(d: Draw) -> str:
    """A name such as `Kwamberg`, of any language's look."""
    syllables = d.pick((0, 0, 1, 1, 2))
    name = d.pick(_CAPITALS) + (d.pick(_VOWELS) if d.chance(0.9) else "")
    name += "".join(d.pick(_MIDDLES) + d.pick(_VOWELS) for _ in range(syllables)) + d.pick(_MIDDLES) + d.pick(_ENDINGS)
    if d.chance(0.04):
        name += d.pick("éöñüøšçå")
    return name


def first(d: Draw) -> str:
    return rare(d) if d.chance(0.6) else d.name()


def person(d: Draw) -> str:
    if d.chance(0.12):
        return first(d)
    middle = f" {d.pick('ABCDEFGHJKLMNPRSTW')}." if d.chance(0.05) else ""
    last = f"{rare(d)}-{rare(d)}" if d.chance(0.03) else rare(d)
    return f"{first(d)}{middle} {last}" if d.chance(0.7) else d.full_name()


def place(d: Draw) -> str:
    if d.chance(0.12):
        return f"{d.pick(('New', 'San', 'Port', 'Saint', 'North', 'East', 'El'))} {rare(d)}"
    return rare(d) if d.chance(0.6) else d.city()


def noun(d: Draw) -> str:
    """A plain word of any subject, or a made-up one."""
    return d.pick(SUBJECTS[d.pick(tuple(SUBJECTS))]) if d.chance(0.7) else d.word()


def thing(d: Draw) -> str:
    return " ".join(noun(d) for _ in range(d.pick((1, 1, 2)))) if d.chance(0.6) else d.item()


def titled(d: Draw) -> str:
    """A name of several words, such as `The Salt Drenalo`."""
    words = [(noun(d) if d.chance(0.7) else rare(d)).capitalize() for _ in range(d.pick((1, 2, 2, 3)))]
    return " ".join([*(["The"] if d.chance(0.3) else []), *words])


def phrase(d: Draw) -> str:
    return " ".join(noun(d) for _ in range(d.pick((1, 2, 2, 3, 4))))


def code(d: Draw) -> str:
    """A reference of letters and digits in any order."""
    if d.chance(0.4):
        return d.code()
    signs = "".join(d.pick("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") for _ in range(d.pick((3, 4, 5, 6, 7, 8))))
    return signs.lower() if d.chance(0.15) else signs


def clock(d: Draw) -> str:
    return (
        f"{d.rng.randrange(24):02}:{d.rng.randrange(60):02}"
        if d.chance(0.8)
        else f"{d.rng.randrange(1, 13)} {d.pick(('am', 'pm'))}"
    )


def whole(low: int, high: int) -> Maker:
    return lambda d: str(d.number(low, high))


def phone(d: Draw) -> str:
    return d.digits(d.pick((5, 6, 7, 8, 9, 10))) if d.chance(0.7) else f"+{d.digits(2)} {d.digits(3)} {d.digits(4)}"


def street(d: Draw) -> str:
    name = f"{rare(d)} {d.pick(('Street', 'Road', 'Avenue', 'Square', 'Drive', 'Gate', 'Hill', 'Way'))}"
    return f"{d.number(1, 199)} {name}" if d.chance(0.5) else name


def mail(d: Draw) -> str:
    return f"{rare(d).lower()}@{d.word()}.{d.pick(('com', 'org', 'net', 'io'))}"


def money(d: Draw) -> str:
    return d.value()


def any_value(d: Draw) -> str:
    return d.pick((person, place, noun, titled, code, clock, Draw.date, phone, money, whole(1, 9999), first, rare))(d)


def casual(d: Draw, text: str) -> str:
    """A template as it is typed in haste: without a capital, without the last sign, without an apostrophe."""
    if d.chance(0.25) and text[0] != "{":
        text = text[0].lower() + text[1:]
    if d.chance(0.2):
        text = text.rstrip(".!?")
    if d.chance(0.2):
        text = text.replace("'", "")
    if d.chance(0.12):
        text = d.pick(
            (
                "Hey, {0}",
                "Please, {0}",
                "{0} please",
                "Hmm. {0}",
                "One more: {0}",
                "Sorry, {0}",
                "By the way, {0}",
                "{0} Thanks.",
                "Dear model, {0}",
                "Quick one: {0}",
            )
        ).replace("{0}", text)
    return text


def worded(d: Draw, /, *ways: str, **fields: object) -> str:
    """One of `ways`, expanded, sometimes with made-up words, sometimes as typed in haste, with its fields filled in."""
    return casual(d, d.strange(d.vary(d.pick(ways)))).format(**fields)


# --- JSON --------------------------------------------------------------------------------------------------------------

# fields with their values; texts that have all fields
DOMAINS: tuple[tuple[dict[str, Maker], tuple[str, ...]], ...] = (
    ({"name": person, "age": whole(1, 99), "city": place, "job": lambda d: d.mixed(JOBS)},
     ("[This is|Meet|Here comes|My friend is|We met] {name}, {age}[ years old| years| years of age|], a {job} [from|of|in] {city}.", "{name} is {age} and [works|earns money|spends the day] as a {job} in {city}.", "I am {name}, I am {age}, I live in {city} and I work as a {job}.", "At {age}, {name} [moved|went|came] to {city} [to be|to work as|as] a {job}.", "The {age}-year-old {job} {name} [lives|was born|stays|is at home] in {city}.", "{name} ({job}, {age}) - {city}", "My name is {name}. I'm {age}. Home is {city}, and my trade is {job}.", "{name}, {age}, {job}, {city}", "Born in {city}, {name} became a {job} and is now {age}.", "Yesterday {name} turned {age}. The {job} still lives in {city}.")),
    ({"guest": person, "hotel": titled, "nights": whole(1, 30), "room": whole(1, 900), "arrival": Draw.date},
     ("{guest} stays {nights} nights at {hotel}, room {room}, from {arrival}.", "Hotel {hotel}: {guest} arrives on {arrival} for {nights} nights (room {room}).", "On {arrival} {guest} checks into room {room} of {hotel} for {nights} nights.", "Room {room} at the {hotel} is kept for {guest}, {nights} nights, arrival {arrival}.", "{nights} nights from {arrival}, {hotel}, {guest}, room {room}")),
    ({"make": rare, "model": code, "year": whole(1960, 2024), "mileage": whole(100, 9999), "price": money},
     ("For sale: {make} {model}, built {year}, {mileage} km, {price} euros.", "I sell my {make} {model} of {year} with {mileage} km for {price} euros.", "A {year} {make} {model}, mileage {mileage}, yours for {price}.", "{price} euros buys you this {make} {model} ({year}), {mileage} km on the clock.")),
    ({"film": titled, "director": person, "released": whole(1900, 2030), "length": whole(60, 240)},
     ("{film} was [directed|made|shot] by {director} and came out in {released}. It runs {length} minutes.", "{director} directed {film} ({released}, {length} min).", "In {released}, {director} released {film}, a film of {length} minutes.", "{film}, {released}. Directed by {director}. {length} minutes.")),
    ({"student": person, "course": titled, "grade": lambda d: d.pick("ABCDEF"), "teacher": person},
     ("{student} took {course} with {teacher} and got a grade of {grade}.", "In {course}, {teacher} gave {student} [a|the grade|the mark] {grade}.", "{teacher} teaches {course}; {student} passed with {grade}.", "Grade {grade} for {student} in {course}, signed {teacher}.")),
    ({"sender": person, "receiver": person, "sum": money, "account": phone},
     ("{sender} [sent|paid|transferred|moved] {sum} to {receiver} (account {account}).", "{receiver} got {sum} from {sender} into account {account}.", "Transfer of {sum} from {sender} to {receiver}, account {account}.", "To account {account} of {receiver}: {sum}, from {sender}.")),
    ({"employee": person, "department": noun, "boss": person, "since": whole(1980, 2024)},
     ("{employee} works in {department} under {boss} since {since}.", "Since {since}, {employee} has been in the {department} department; the boss is {boss}.", "{boss} leads {department}, where {employee} has worked since {since}.", "{employee} reports to {boss} ({department}, since {since}).")),
    ({"product": thing, "shop": titled, "cost": money, "stars": whole(1, 5)},
     ("Bought a {product} at {shop} for {cost}, I give it {stars} stars.", "{stars} stars for the {product} from {shop}, which cost {cost}.", "{shop} sells the {product} at {cost} euros ({stars} stars).", "The {product} from {shop} was {cost}. Rating: {stars} out of 5.")),
    ({"caller": person, "problem": phrase, "device": thing, "ticket": code},
     ("{caller} called about {problem} with the {device}; ticket {ticket}.", "Ticket {ticket}: {caller} reports {problem} on the {device}.", "The {device} of {caller} has a problem: {problem}. We opened {ticket}.", "{ticket} was opened by {caller} since the {device} shows {problem}.")),
    ({"plant": rare, "height": whole(2, 500), "colour": lambda d: d.mixed(COLOURS), "month": lambda d: d.pick("January February March April May June July August September October November December".split())},
     ("The {plant} grows {height} cm tall and has {colour} flowers in {month}.", "In {month} the {colour} {plant} reaches {height} cm.", "{plant}: {colour}, {height} cm, blooms in {month}.")),
    ({"street": street, "rooms": whole(1, 12), "rent": whole(200, 4000), "landlord": person},
     ("Flat on {street}, {rooms} rooms, {rent} a month, landlord {landlord}.", "{landlord} rents out {rooms} rooms at {street} for {rent}.", "For {rent} you get {rooms} rooms on {street}. Call {landlord}.", "The rent for the {rooms} rooms at {street} is {rent}; {landlord} owns the place.")),
    ({"meeting": phrase, "chair": person, "day": lambda d: d.pick(DAYS), "time": clock, "place": place},
     ("The meeting on {meeting} is on {day} at {time} in {place}, {chair} leads it.", "{chair} invites us to talk about {meeting}: {day}, {time}, {place}.", "On {day} at {time} we discuss {meeting} in {place} with {chair}.", "{place}, {day}, {time}: {meeting}, chaired by {chair}.")),
    ({"name": person, "email": mail, "phone": phone, "company": titled},
     ("{name} of {company}, {email}, phone {phone}", "Write to {name} ({company}) at {email} or call {phone}.", "I'm {name} and I work at {company}. Mail {email}, telephone {phone}.", "{company} is reached through {name}: {phone} or {email}.", "Best wishes, {name}\n{company}\n{phone}\n{email}", "{name} here from {company}: call me at {phone}, or mail {email}.")),
    ({"pet": first, "kind": lambda d: d.mixed(ANIMALS), "owner": person, "weight": whole(1, 90)},
     ("{pet} is the {kind} of {owner} and weighs {weight} kg.", "{owner} brought {pet}, a {kind} of {weight} kg.", "The {kind} {pet} ({weight} kg) belongs to {owner}.", "{pet}, {kind}, {weight} kg, owner {owner}")),
    ({"country": place, "capital": place, "people": whole(10, 9999), "language": rare},
     ("{country} has {people} thousand people; its capital is {capital} and they speak {language}.", "In {country} they speak {language}. The capital {capital} is large. People: {people}.", "{capital} is the capital of {country}, where {people} people speak {language}.")),
    ({"winner": person, "prize": money, "game": titled, "loser": person},
     ("{winner} beat {loser} in {game} and won {prize} euros.", "In {game}, {loser} lost to {winner}, who takes {prize}.", "{prize} euros go to {winner} after {game} against {loser}.", "{winner} won {prize} at {game}, {loser} came second.")),
    ({"artist": person, "song": titled, "album": titled, "length": lambda d: f"{d.rng.randrange(1, 9)}:{d.rng.randrange(60):02}"},
     ("{song} by {artist} is on {album} and lasts {length}.", "{artist} sings {song} ({length}) on the album {album}.", "The album {album} of {artist} has the song {song}, {length}.", "\"{song}\" ({length}), {artist}, from \"{album}\".")),
    ({"buyer": person, "quantity": whole(1, 500), "item": thing, "price": money, "order": code},
     ("{buyer} orders {quantity} {item} at {price} each, order {order}.", "Order {order}: {quantity} x {item}, {price}, for {buyer}.", "Please send {quantity} {item} to {buyer}. Price {price}. Order {order}.", "{buyer} bought {quantity} {item} and paid {price} ({order}).")),
    ({"train": code, "start": place, "end": place, "departs": clock, "track": whole(1, 30)},
     ("Train {train} from {start} to {end} leaves at {departs} on track {track}.", "{departs}, track {track}: {train}, {start} to {end}.", "At {departs} the {train} to {end} departs {start} from track {track}.", "{train} goes from {start} to {end}, track {track}, at {departs}.")),
)  # fmt: skip
WISHES = (
    "[Extract|Get|Take|Read|Find|Collect|Return|List|Give|Show|Write|Output|Produce] [the |][fields |values |keys |]{f} [as|in|in the form of] [JSON|a JSON object|json] [from|of|out of|for] [this|the] [text|note|line|mail|sentence|document]:{g}{t}",
    "[Make|Build|Create|Write] [JSON|a JSON object|json] [with|from|of|holding|that has] [the fields |the keys |]{f}[.|:]{g}{t}", "[JSON|Json|json] [with|of|for] {f}:{g}{t}", "{t}\n\n[Extract|Get|Return|Write|List] {f} [as|in] JSON[.|:|]",
    "{t}\n[As JSON, with|JSON with|Now JSON of|To JSON, fields:] {f}[.|]", "[Text|Note|Mail|Document|Message|Record]: {t}\n[Fields|Keys|Wanted|Columns]: {f}\n[JSON|Output|Answer|Object]:", "[Fields|Keys|Properties]: {f}.\n[Text|Note|Source|Content]: {t}",
    "[What is|Tell me|Find|Which are] the {f}[?| in this?| here?] [Answer|Write|Respond] [with|in|as] JSON[.|:]{g}{t}", "[Schema|JSON schema|Format|Form|Shape]: {s}\n[Text|Content|Source|Document]: {t}", "[Use|Follow|Complete|Apply] [this|the] [schema|form|format|template][:|] {s}{g}{t}",
    "{t}{g}[Answer|Reply|Respond] [in|with] JSON [like|of the form|after the schema] {s}[.|]", "[Extract|Get|Find] {f} [as|into] JSON.{g}{t}", "[I need|We want|I want|Please give me] {f} as JSON.{g}{t}", "[Structure|Sort|Put|Transform] [this|the text|it] [into|as] JSON ({f}){g}{t}",
)  # fmt: skip
NOISE = ("", "", "", "", "It was {a}.", "We like the {a}.", "Thank you for the {a}.", "See you soon.", "The {a} is fine too.", "Best regards.")  # fmt: skip
GAPS = ("\n", "\n\n", " ", "\nText: ", '\n"""\n', ": ", "\n- ")


def _told(d: Draw) -> tuple[dict[str, str], str]:
    """A record and a text that tells of it."""
    if d.chance(0.2):
        names = dict.fromkeys(noun(d) if d.chance(0.6) else d.word() for _ in range(d.rng.randrange(2, 7)))
        record = {name: any_value(d) for name in names}
        order = d.some(list(record), len(record))
        between, end = d.pick(
            (
                (": ", ", "),
                (": ", "\n"),
                (" = ", "; "),
                (" is ", ", "),
                (" ", ", "),
                (" - ", "\n"),
                ("\t", "\n"),
                (": ", ". "),
            )
        )
        return record, end.join(f"{name}{between}{record[name]}" for name in order)
    makers, texts = d.pick(DOMAINS)
    record = {name: make(d) for name, make in makers.items()}
    told = d.strange(d.vary(d.pick(texts)))
    before, after = (d.pick(NOISE).format(a=noun(d)) for _ in range(2))
    text = " ".join(filter(None, (before, told.format(**record), after)))
    if d.chance(0.15):  # a field may have any name that stands for it
        text = f"{text} {d.pick(('Also,', 'Besides,', 'And'))} the {(key := noun(d))} is {(value := any_value(d))}."
        record |= {key: value} if key not in record else {}
    return record, text


def everyday_json(d: Draw) -> Sample:
    """One or two texts, and the fields wanted of each as JSON."""
    messages: list[Message] = _system(d, 0.15)
    for _ in range(d.pick((1, 1, 1, 2))):
        record, text = _told(d)
        fields = d.some(list(record), d.rng.randrange(1, len(record) + 1))
        typed = {
            f: d.pick(("string", "string", "number", "integer")) if _is_number(record[f]) else "string" for f in fields
        }
        wish = d.vary(d.pick(WISHES))
        is_schema = "{s}" in wish
        if not is_schema:  # numbers as they are
            typed = {f: "number" if _is_number(record[f]) else "string" for f in fields}
        schema = (
            json.dumps(typed)
            if d.chance(0.6)
            else json.dumps({"type": "object", "properties": {f: {"type": t} for f, t in typed.items()}})
        )
        quote = d.pick(("", "", "", '"', "`", "'"))
        marked = [f"{quote}{f}{quote}" for f in fields]
        listed = (
            ", ".join(marked)
            if d.chance(0.5) or len(fields) == 1
            else f"{', '.join(marked[:-1])}{d.pick((' and ', ', and ', ' & '))}{marked[-1]}"
        )
        prompt = (
            casual(d, wish)
            .replace("{f}", listed)
            .replace("{s}", schema)
            .replace("{g}", d.pick(GAPS))
            .replace("{t}", text)
        )
        answer = {f: _number(record[f]) if typed[f] != "string" else record[f] for f in fields}
        messages += [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
        ]
    return Sample("everyday_json", tuple(messages))


def _is_number(value: str) -> bool:
    return value.replace(".", "", 1).isdigit() and not (value[0] == "0" or len(value) > 6) and value[-1] != "."


def _number(value: str) -> float | int:
    return float(value) if "." in value else int(value)


SYSTEMS = (
    "You are a [kind|good|quick|polite|clever|patient] [helper|assistant|bot|model|clerk].", "[Answer|Reply|Speak|Write] [briefly|shortly|politely|in one line|in English|exactly].", "You work for [a bank|a shop|a school|the {a} team|{n}].",
    "[Help|Serve|Assist] the [user|people|guests|team] with the {a}.", "[This is|You are on] the {a} [desk|line|chat].",
)  # fmt: skip


def _system(d: Draw, share: float) -> list[Message]:
    return (
        [{"role": "system", "content": d.vary(d.pick(SYSTEMS)).format(a=noun(d), n=titled(d))}]
        if d.chance(share)
        else []
    )


# --- few-shot ------------------------------------------------------------------------------------------------------------

FUNCTION_WORDS = "the a my our this that is was are were has have had not no and or but if in on at to of for with by from it they we you I he she when after before why how what still again now then so too very all two three".split()  # fmt: skip


def _text_of(d: Draw, words: Sequence[str]) -> str:
    """A sentence about a subject: a template, or its words among words that say little."""
    if d.chance(0.6):
        a, b, c = d.some(words, 3)
        text = d.vary(d.pick(SAID)).format(
            a=a, b=b if d.chance(0.7) else noun(d), c=c if d.chance(0.5) else d.word(), n=first(d)
        )
    else:
        n = d.rng.randrange(1, 4)
        row = [
            *d.some(words, n),
            *(d.pick(FUNCTION_WORDS) for _ in range(d.rng.randrange(2, 7))),
            *([d.word()] if d.chance(0.3) else []),
        ]
        d.rng.shuffle(row)
        text = " ".join(row) + d.pick((".", "", "!", "?", "."))
    return text[0].upper() + text[1:] if d.chance(0.85) else text


def _intent_text(d: Draw, ways: Sequence[str]) -> str:
    return d.vary(d.pick(ways)).format(a=noun(d), b=noun(d), n=first(d))


FORMS = (
    ("Text: ", "\nLabel:", "\n\n"), ("Sentence: ", "\nTopic:", "\n\n"), ("Question: ", "\nKind:", "\n"), ("", " ->", "\n"), ("", " :", "\n"), ("* ", " =", "\n"), ("", "\t", "\n"), ("", ",", "\n"), ("", ";", "\n"), ("'", "',", "\n"),
    ("Ticket: ", "\nQueue:", "\n\n"), ("Comment: ", "\nTag:", "\n---\n"), ("Q: ", "\nA:", "\n\n"), ("<", ">", "\n"), ("Example: ", " Class:", "\n"), ("", " ==", "\n"), ("In: ", "\nOut:", "\n"), ("> ", "\n<", "\n"), ("", "\n", "\n\n"), ("Mail: ", " | Type:", "\n"),
)  # fmt: skip
LEADS = ("", "", "", "[Label|Sort|Tag|Mark|Classify] [the texts|each line|the last one|them all][.|:]", "[Choose|Find|Say|Give] the [label|class|tag|topic|kind] [of the last text|that fits][.|:]", "The labels are {l}.", "[Classes|Labels|Tags|Topics]: {l}", "[Continue|Complete|Finish] the [list|table|file].", "[id|line|text|body],[class|kind|tag|topic]", "[Choose|Select] from {l}.")  # fmt: skip


def everyday_few_shot(d: Draw) -> Sample:
    """Two to six examples of each label, or a table of many rows; then texts of the same subjects."""
    n = d.pick((2, 2, 2, 3, 3, 4))
    kind = d.rng.random()
    makers: list[Callable[[], str]]
    if kind < 0.15:
        names = d.some(tuple(INTENTS), min(n, len(INTENTS)))
        makers = [lambda ways=INTENTS[name]: _intent_text(d, ways) for name in names]  # type: ignore[misc]
    else:
        names = d.some(("joy", "anger"), 2) if kind < 0.27 else d.some(tuple(SUBJECTS), n)
        makers = [lambda words=SUBJECTS[name]: _text_of(d, words) for name in names]  # type: ignore[misc]
    way = d.rng.random()
    labels = (
        d.distinct("label", len(names))
        if way < 0.5
        else names
        if way < 0.7
        else list(dict.fromkeys(noun(d) for _ in names))
    )
    if len(labels) < len(names):
        labels = d.distinct("label", len(names))
    if d.chance(0.15):
        labels = [label.capitalize() for label in labels]
    k = d.pick((2, 3, 3, 4, 4, 5, 6)) if d.chance(0.9) else d.pick((8, 12))
    order = [i for i in range(len(names)) for _ in range(k)]
    d.rng.shuffle(order)
    before, between, after = d.pick(FORMS)
    gap = "" if between[-1] in ",\t\n;<" and d.chance(0.7) else " "
    seen: set[int] = set()
    parts: list[str] = []
    for i in order:
        shown = f"{gap}{labels[i]}"
        parts += [f"{before}{makers[i]()}{between}", Target(shown) if i in seen else shown, after]
        seen.add(i)
    asked = d.rng.randrange(len(names))
    ending = f"{before}{makers[asked]()}{between}"
    lead = d.vary(d.pick(LEADS)).replace("{l}", ", ".join(d.some(labels, len(labels))))
    head = [f"{lead}{d.pick((chr(10), chr(10) * 2))}"] if lead else []
    if d.chance(0.15):  # as turns
        messages: list[Message] = [{"role": "system", "content": lead}] if lead else []
        shots = [(parts[3 * j], labels[c], order.index(c) == j) for j, c in enumerate(order)]
        for text, label, is_given in (*shots, (ending, labels[asked], False)):
            messages += [
                {"role": "user", "content": text.removeprefix(before).removesuffix(between)},
                {"role": "assistant", "content": label, "is_given": is_given},
            ]
        return Sample("everyday_few_shot", tuple(messages))
    if d.chance(0.5):
        return Sample(
            "everyday_few_shot", plain=(*head, *parts, ending, Target(f"{gap}{labels[asked]}"), Target(after))
        )
    return Sample(
        "everyday_few_shot",
        ({"role": "user", "content": (*head, *parts, ending)}, {"role": "assistant", "content": labels[asked]}),
    )


def subjects(d: Draw) -> Sample:
    """Words of one subject to a line: what belongs together is learned faster from words than from their labels."""
    rows = [d.some(SUBJECTS[name], d.rng.randrange(4, 10)) for name in d.some(tuple(SUBJECTS), d.rng.randrange(2, 6))]
    between = d.pick((", ", " ", "; "))
    return Sample(
        "subjects",
        plain=tuple(part for row in rows for part in (row[0], Target(between + between.join(row[1:])), "\n")),
    )


# --- recall, reading -----------------------------------------------------------------------------------------------------

BELONGINGS: tuple[tuple[str, Maker], ...] = (
    ("dog", first), ("cat", first), ("horse", first), ("parrot", first), ("brother", first), ("mother", first), ("father", first), ("boss", person), ("teacher", person), ("neighbour", person), ("doctor", person), ("wife", first), ("son", first), ("daughter", first),
    ("school", titled), ("street", street), ("birthplace", place), ("home town", place), ("country", place), ("bank", titled), ("car", titled), ("boat", titled), ("team", titled), ("favourite band", titled), ("favourite book", titled), ("favourite food", thing),
    ("favourite animal", noun), ("favourite number", whole(1, 9999)), ("favourite drink", noun), ("hobby", noun), ("password", code), ("pin", lambda d: d.digits(4)), ("plate", code), ("seat", code), ("ticket", code), ("booking", code), ("customer number", phone), ("room number", whole(1, 999)),
    ("shoe size", whole(20, 50)), ("height", whole(120, 210)), ("weight", whole(30, 150)), ("birthday", Draw.date), ("deadline", Draw.date), ("meeting", lambda d: d.pick(DAYS)), ("haircut", lambda d: d.pick(DAYS)), ("train", clock), ("email", mail), ("budget", money), ("gate", code), ("desk", whole(1, 400)),
)  # fmt: skip
STATED = (
    "My {r} is {v}.", "My {r}[: |'s ]{v}[.|]", "[Note|Remember|Keep in mind|Write down|Do not forget]: my {r} is {v}.", "[You should know|I tell you|Let me say|Just so you know] that my {r} is {v}.", "{v} is my {r}.", "[The|This] {r} I have is {v}.", "I [have|got] [a|the] {r}[:|,| called| named] {v}.", "[For|About|As] my {r}[:|,|, it is] {v}.",
    "My {r} is [called|named] {v}.", "My [old|new|own|dear] {r} is {v}.", "The name of my {r} is {v}.", "We [have|own|keep] a {r}, {v}.", "I have a {r}. [Its name is|It is|The name is|That is] {v}.",
)  # fmt: skip
ASKED_FOR = (
    "[What|Which] [is|was|'s] my {r}[ again| called| now|]?", "[Tell|Remind|Give] me my {r}[.|, please.| again.]", "Do you [know|remember|recall] my {r}?", "[Which|What] {r} [do I have|did I tell you|is mine|did I say]?", "Who is my {r}?", "How is my {r} called?", "[What|Which] [is the|'s the|is] name of my {r}?",
    "[And|So|Now,] my {r}?", "What did I [say|tell you] [about|of] my {r}?", "What was my {r} again?", "[When|Where|What] is my {r}?", "What's the {r}?", "Say my {r}.",
)  # fmt: skip
# what is told of me, what is asked, what is answered
TOLD: tuple[tuple[tuple[str, ...], tuple[str, ...], str, Maker], ...] = (
    (("I am {v}.", "I'm {v}.", "My name is {v}.", "It's me, {v}.", "I'm called {v}[ by all|].", "[Hi|Hello|Hey|Good day][,|!] [I am|I'm|my name is] {v}[.|!|]", "The name is {v}.", "[They|People|Friends] call me {v}.", "{v} is my name.", "Just call me {v}."), ("What is my name?", "Who am I?", "What's my name[ again|]?", "[Do you know|Can you say|Tell me] [who I am|my name][?|]", "What [am I|do they] call[ed|] [me|]?", "My name?", "Do you remember [my name|me|who I am]?", "How am I called?"), "Your name is {v}.", first),
    (("I live in {v}.", "I'm [living|staying|at home] in {v}.", "I come from {v}.", "I [was born|started|went to school] in {v}.", "I moved to {v}.", "My family is from {v}.", "I am from {v}.", "Home for me is {v}.", "I'm from {v}."), ("Where do I live?", "Where [do I come|did I say I am|am I] from?", "[Which|What] [city|town|place] [am I from|do I live in|is mine|did I tell you]?", "Where was I born?", "Where's my home?", "Where did I move?"), "You live in {v}.", place),
    (("I work as a {v}.", "I'm a {v}.", "I am a {v} by [trade|training].", "I earn my money as a {v}.", "My work is that of a {v}.", "They pay me as a {v}.", "I've worked as a {v} [all my life|since May]."), ("What do I do[ for work| all day|]?", "What's my job?", "What [work|job] do I do?", "How do I earn my money?", "As what do I work?", "What am I[ by trade|]?"), "You are a {v}.", lambda d: d.mixed(JOBS)),
    (("I love {v}.", "I like {v} [best|most|a lot].", "Nothing is better than {v}.", "I am fond of {v}."), ("What do I [like|love]?", "What [do I like best|am I fond of]?", "Which thing do I love?"), "You like {v}.", noun),
    (("I hate {v}.", "I can't stand {v}.", "I do not like {v}.", "I can not eat {v}.", "I [must|have to] avoid {v}[, it makes me ill|]."), ("What do I [hate|avoid]?", "What can't I [stand|eat|have]?", "What must I avoid?", "What makes me ill?"), "You avoid {v}.", noun),
    (("I'm [leaving|flying|coming back|travelling] on {v}.", "I [leave|fly|start|come back] on {v}."), ("When do I [leave|fly|start|come back]?", "[On which day|When] am I [leaving|flying|coming back]?"), "It is on {v}.", lambda d: d.pick(DAYS) if d.chance(0.5) else d.date()),
    (("I'm going to {v} [soon|next week|in May].", "My [trip|holiday] goes to {v}.", "I will [fly|drive|walk] to {v}."), ("Where am I going?", "Where does my [trip|holiday] go?", "Where will I [fly|drive|be]?"), "You are going to {v}.", place),
    (("The {n} code is {v}.", "[Use|Keep|Save|Remember] the {n} code {v}.", "{v} is the {n} code.", "The code [for|of] the {n} is {v}."), ("What is the {n} code?", "[Which|What] code [did I say|has the {n}|is it for the {n}]?", "Tell me the {n} code.", "The {n} code, please?"), "The {n} code is {v}.", code),
)  # fmt: skip


def everyday_recall(d: Draw) -> Sample:
    """Facts of the user told in several turns, in one, or in the system message; and questions, some of what was not told."""
    facts: list[tuple[str, str, str]] = []  # statement, question, answer
    relations = list(BELONGINGS)
    d.rng.shuffle(relations)
    used: set[str] = set()
    for _ in range(d.pick((1, 1, 2, 2, 3, 4))):
        if d.chance(0.45) and (free := [told for told in TOLD if told[2] not in used]):
            statements, questions, answer, make = d.pick(free)
            used.add(answer)
            fields = {"v": make(d), "n": noun(d)}
            facts.append((worded(d, *statements, **fields), worded(d, *questions, **fields), answer.format(**fields)))
        else:
            r, make = relations.pop()
            if d.chance(0.2):
                r, make = d.pick((d.word(), noun(d))), any_value
            v = make(d)
            ways = STATED if make in (first, person, titled) else STATED[:8]
            facts.append((worded(d, *ways, r=r, v=v), worded(d, *ASKED_FOR, r=r), f"Your {r} is {v}."))
    messages: list[Message] = _system(d, 0.2)
    form = d.rng.random()
    asked = d.pick(facts)
    if form < 0.3:
        content = f"{' '.join(statement for statement, _, _ in facts)} {asked[1]}"
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": asked[2]}]
    else:
        for i, (statement, _, _) in enumerate(facts):
            reply = NOTED if d.chance(0.8) else d.pick(("Okay.", "Noted!", "Got it.", "I see.", "All right.", "Sure."))
            messages += [
                {"role": "user", "content": statement},
                {"role": "assistant", "content": reply, "is_given": reply != NOTED},
            ]
            if d.chance(0.3):
                _say(d, messages)
            if d.chance(0.15):
                _, question, answer = d.pick(facts[: i + 1])
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        messages += [{"role": "user", "content": asked[1]}, {"role": "assistant", "content": asked[2]}]
    for _ in range(d.pick((0, 1, 2, 3))):
        _, question, answer = d.pick(facts)
        if d.chance(0.25):  # what was not told
            r = relations.pop()[0]
            question, answer = worded(d, *ASKED_FOR, r=r), NO_IDEA
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Sample("everyday_recall", tuple(messages))


# sentences, each with questions; {a} {b} people, {p} a place, {t} a time, {d} a day, {i} {j} things, {k} a number, {r} a role, {s} a street
SCENES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("{a} [gave|sold|sent|brought] the {i} to {b}.", (("Who [got|received|has] the {i}[ now|]?", "{b}"), ("Who [gave away|gave|sold|sent|brought] the {i}?", "{a}"), ("What did {b} get?", "{i}"), ("To whom did {a} [give|send|sell] the {i}?", "{b}"))),
    ("{a} [took|found|bought|fixed|lost|painted] the {i}[ on {d}|].", (("Who [took|found|bought|fixed|lost|painted] the {i}?", "{a}"), ("What did {a} [take|find|buy|fix|lose|paint]?", "{i}"))),
    ("The {r} [is|is called|of the house is] {a}.", (("Who is the {r}?", "{a}"), ("What is the {r} called?", "{a}"), ("What's the name of the {r}?", "{a}"), ("Which person is the {r}?", "{a}"))),
    ("The {i} [costs|is] {k} euros.", (("[What|How much] [does|is] the {i}[ cost|]?", "{k}"), ("What is the price of the {i}?", "{k}"), ("What does the {i} cost?", "{k}"))),
    ("The {i} [opens|starts|begins|closes|ends|comes] at {t}.", (("When does the {i} [open|start|begin|close|end|come]?", "{t}"), ("At what time is the {i}?", "{t}"))),
    ("The {i} is on {d}.", (("When is the {i}?", "{d}"), ("[Which|What] day is the {i}[ on|]?", "{d}"), ("On which day is the {i}?", "{d}"))),
    ("The {i} is in {p}.", (("Where is the {i}?", "{p}"), ("[Which|What] [city|town] is the {i} in?", "{p}"), ("In which place is the {i}?", "{p}"))),
    ("{a} keeps the {i} [at|on|near] {s}.", (("Where is the {i}[ kept|]?", "{s}"), ("Who keeps the {i}?", "{a}"), ("Where does {a} keep the {i}?", "{s}"))),
    ("{a} works in the {i} [of|in] {p}.", (("Where does {a} work?", "{i}"), ("Who works in the {i}?", "{a}"))),
    ("{a} [drives|travels|goes] to {p} [every|on] {d}.", (("Where does {a} [go|drive|travel]?", "{p}"), ("When does {a} [go|drive|travel]?", "{d}"), ("Who [goes|drives|travels] to {p}?", "{a}"))),
    ("{a} is the {r} of {b}.", (("Who is the {r} of {b}?", "{a}"), ("What is {a} to {b}?", "{r}"), ("Who is {b}'s {r}?", "{a}"))),
    ("There are {k} {i}s [in|at] {p}.", (("How many {i}s are [there|in {p}]?", "{k}"), ("What is the number of {i}s?", "{k}"))),
    ("The {i} is [looked after|kept|run|managed|owned|held] by {a}.", (("Who [looks after|keeps|runs|manages|owns|holds|has] the {i}?", "{a}"), ("Whose {i} is it?", "{a}"))),
    ("{a} [runs|owns|manages|leads] the {i}[ on {s}| in {p}|].", (("Who [runs|owns|manages|leads] the {i}?", "{a}"), ("What does {a} [run|own|manage|lead]?", "{i}"))),
    ("{a} [borrowed|rented|hired] the {i} from {b}.", (("Who [borrowed|rented|has|hired] the {i}?", "{a}"), ("From whom did {a} [borrow|rent|hire] the {i}?", "{b}"), ("Who owns the {i}?", "{b}"))),
)  # fmt: skip
ROLES = "baker guide director owner leader captain cook driver manager chief boss host nurse teacher keeper coach editor mayor pilot chair writer winner".split()  # fmt: skip
PAGES = (
    "{p}\n{q}", "{q}\n{p}", "{p} {q}", "Passage: {p}\nQuestion: {q}", "Passage: {p}\n\nQuery: {q}", "[Note|Facts|Story|Information|Article]: {p}\n[Question|Query|Q]: {q}[|\nAnswer:]", "[Here is|This is] [a note|a story|the text|some text]: {p}\n[Question|Tell me]: {q}",
    "[Use|Read|Look at|Take] [this|the] [text|note|story][.|:] {p}\n{q}", "[Text|Context|Source]: {p}\n[Q|Question]: {q}[\nA:|\nAnswer:|]", "{q}\n[Text|Context|Note|Source]: {p}", "[Question|Q]: {q}\n[Text|Passage]: {p}", "\"{p}\"\n\n{q}", "[According to|From] [this|the text]: {p}\n\n{q}",
)  # fmt: skip


def everyday_reading(d: Draw) -> Sample:
    """Two to six sentences about people and things, then questions whose answer is a span of them."""
    facts = []
    for sentence, questions in d.some(SCENES, d.rng.randrange(2, 6)):
        fields = {
            "a": first(d) if d.chance(0.6) else person(d),
            "b": first(d),
            "p": place(d),
            "t": clock(d),
            "d": d.pick(DAYS),
            "i": noun(d) if d.chance(0.8) else thing(d),
            "k": d.value(),
            "r": d.pick(ROLES),
            "s": street(d),
        }
        told = d.vary(sentence)
        asked = [
            (d.vary(question), answer)
            for question, answer in questions
            if answer.strip("{}") in told.replace("{", " ").replace("}", " ").split()
        ]
        facts.append(
            (
                d.strange(told).format(**fields),
                [(casual(d, d.strange(q)).format(**fields), a.format(**fields)) for q, a in asked],
            )
        )
    passage = " ".join(text for text, _ in facts)
    messages: list[Message] = _system(d, 0.1)
    for i in range(d.pick((1, 2, 3, 4))):
        question, answer = d.pick(d.pick(facts)[1])
        if d.chance(0.06):
            question, answer = f"Who is the {d.word()}?", NO_IDEA
        content = question if i else d.vary(d.pick(PAGES)).replace("{p}", passage).replace("{q}", question)
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return Sample("everyday_reading", tuple(messages))


# --- chat ----------------------------------------------------------------------------------------------------------------

CHAT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("[hi|hello|hey|hiya|howdy|hallo|hei][ there| you| friend| again| model| Banyan| all| everybody| mate| {n}|][!|.|!!|, {n} here.|]", "[good|Good] [day|morning to you|evening to all|afternoon][!|.|, {n}!|]", "[Is|are] [anybody|someone|you] [here|there|home|awake][?|]", "[Welcome|Hello], little model", "[Hello hello|hi hi|Hey hey|Salut|Ahoy][!|]", "[Hey|Hi][,|] [are you there|is someone there|got a minute|can we talk|I'm back|it's me][?|.|]"), HELLO),
    (("[thanks|thank you|thanks a bunch|tysm|thx a lot|many thanks|thank u|merci|thanks mate|I thank you][!|.| for your help.| for all.| for the {a}.|, {n}.|]", "[That|This] [was|is] [very helpful|useful|kind of you|a great help][.|, thanks.|, thank you!]", "[Perfect|Wonderful|Nice|Excellent|Awesome|Lovely|Super], [thanks|thank you][!|.|]", "[How kind of you|You are kind|I am grateful|You helped me a lot|That helped me][!|.|]", "[cheers|Cheers][!|, mate.|, bye.|]"), "You are welcome."),
    (("[bye|goodbye|bye for now|bye then|farewell|see ya|see you|see you tomorrow|later|so long|ciao|take care|good night][!|.| model| {n}|, all|]", "[I am|I'm] [off|leaving|going|out][ now| then|][.|, bye.|, see you.|]", "[I must|I should|I have to] [leave|be off|run|sleep|stop][ now|][.|, bye.|!|]", "[We are done|That was all|I'm finished|Nothing more][.| for now.|, bye.|]", "[Until|See you] [next time|next week|soon|on Monday][!|.|]"), "Goodbye!"),
    (("[who|what] [are|r] you[ exactly| then| really|][?|]", "[what|What] [should I call you|are you called|kind of model are you|sort of thing are you|model is this][?|]", "[Are|are] you [a person|a machine|real|an AI|a bot|a computer|alive|GPT|a big model|Claude|Siri|a man or a woman|a language model][?|]", "[Tell me|Say something] about yourself[.|]", "[Introduce|Describe] yourself[.|]", "[Do you have a name|Have you got a name|Your name][?|]", "[Whom|Who] am I [speaking|talking|writing] [to|with][?|]", "[Is|Am I speaking with] [this|it] a [machine|person|bot|program][?|]"), "I am the Banyan pocket model, a very small language model."),
    (("[what|What] [do you do|are you for|can I do here|can I use you for|do you know how to do|are you able to do|tasks can you do|is your job|is your purpose][?|]", "[How|how] [do you work|can I use you|do I use this|does this work|may you help me][?|]", "[Can|can] you help[ me| us|][?| with something?|]", "[Help me|I need help|I need some help|Help!|Please help]", "[Which|What] [questions|tasks|things] [do you answer|can you do|are you good at|do you understand|should I ask][?|]", "[What|Which] are your [abilities|features|tasks|talents|limits][?|]", "[Show|Tell] me what you [do|know|are made for][.|]"), "I can call tools, extract JSON, label texts, answer from a text and remember what you tell me."),
    (("[how|How] [are you|are things|is it going|do you feel|is everything|goes it|was your day|have you been|are we today][ today| now| there|, {n}|][?|]", "[How's|how's] [it going|everything|your day|work|it][?|]", "[Are you|You] [fine|ok|okay|happy|good|feeling well][?| today?|]", "[what's|What is] [new|going on|happening|the news][?|]", "[All well|Everything okay|Doing well][?|]", "[I'm fine|I am good|I feel great], [and you|how about you|you][?|]"), "I am well, thank you."),
    (("[That|This|It|Your answer] [is|was|seems|looks] [false|bad|not true|not what I asked|nonsense|a mistake|incorrect|no good][.|!|]", "[You are|You're|u r] [wrong|dumb|bad|silly|no use|an idiot|useless|mistaken|terrible|awful][.|!|]", "[No|no][,|!|.] [wrong|that is false|not that|I said something else|try again|incorrect][.|!|]", "[Wrong|False|Bad answer|Rubbish|Try again|That makes no sense|You made a mistake][!|.|]"), "I am sorry. I make mistakes."),
    (("[You are|You're|u r] [good|nice|smart|the best|clever|sweet|kind|awesome|amazing|wonderful|helpful][.|!|, really.|]", "[Bravo|Very good|Excellent answer|Great answer|Impressive|Good bot|That is right|Correct|Good answer|Wow|Fantastic][!|.|]", "[I like|I love] [you|it|that|your answer][.|!|]", "[You did|You do] [well|a good job|fine][.|!|]"), "Thank you, I am glad."),
    (("[Glad|Happy|Good|Lovely|Great|Nice] to [see|know|find|talk to] you[!|.|, {n}.|]", "[A pleasure|It is a pleasure|How nice] to [meet|know] you[.|!|]", "[I am|I'm] [glad|happy] [we met|to know you|to meet you][.|!|]"), "Nice to meet you too."),
    (("[okay|Okay|OK|fine|Fine|good|Good|sure|Sure|right|Right|yes|Yes|alright|all right|great|Great|got it|I see|nice|Nice|understood|hm|aha|yep|k|wow][.|!|, then.|]",), "All right."),
    (("[sorry|Sorry|My mistake|Excuse me|Pardon|I am sorry|oops][.|!| about that.|]",), "No problem."),
    (("[I am|I'm|I feel] [sad|tired|bored|lonely|ill|not well|angry|stressed][ today|][.|]", "[I had a bad day|My {a} died|I lost my {a}|Nothing works today][.|]"), "I am sorry to hear that."),
    (("[I am|I'm|I feel] [happy|glad|great|in love|excited][ today|][.|!|]", "[I won a prize|I passed my exam|Today is my birthday|I got the job][!|.]"), "I am happy to hear that."),
    (("What's Banyan?", "[What|Which] is Banyan for?", "[Explain|Describe] Banyan[.| to me.|]", "Banyan?", "What do you know about Banyan?"), "Banyan is a language and a runtime for programs that call language models."),
    (("[How|how] [large|small|many weights|old] are you?", "[What|Which] size are you?", "How many parameters?"), "I have about three million parameters."),
)  # fmt: skip
UNKNOWN = (
    "[What|Which] [is|was] the [capital|population|currency|flag|largest city|area|language|king|history|size] of {p}?", "[Who|Which person] [is|was|became] the [president|king|queen|leader|author|founder|mayor|inventor|captain|singer] of [{p}|the {a}|{t}]?", "[Who|who] [wrote|made|invented|painted|discovered|won|built|founded|directed|sang] [{t}|the {a}|the {a} in {y}][?|]",
    "[When|In which year] [was|did|is] {n} [born|die|married|king]?", "When [did|was] the {a} [begin|end|start|invented|built|found]?", "[How|how] [tall|high|old|big|far|deep|heavy|long|fast] is [{n}|{p}|the {a}|Mount {p}|the {p} tower][?|]", "[What|what] is [a |the |][{a}|{w}|{a} {a2}][?|]", "[What|what] [are|causes|makes|does] [{a}s|{a}|{w} mean|the {a}][?|]",
    "[Why|why] [is|does|are|do] [the {a} {a2}|the {a} so {a2}|{a}s {a2}|we {a}|people {a}][?|]", "[How|how] [do I|does one|can I|do you] [{a} a {a2}|make a {a}|get to {p}|fix my {a}|learn {w}][?|]", "[Where|where] is [{p}|the {a} of {p}|{n}][?|]", "[How many|how many] [people|{a}s] [live in|are there in|are in] {p}[?|]", "[Do you know|Have you heard of|Tell me about|What about] [{p}|{n}|the {a} of {p}|{t}|{a} and {a2}][?|.|]",
    "[Who|who] is {n}[?|]", "[Who|who] [won|lost|played] the {a} [in {y}|last year|yesterday][?|]", "[What|what] [happened|was invented|was there] in {y}[?|]", "[What|what] [is|will be] the [news|time|date|day|temperature|price of {a}|score][ now| today| next week|][?|]", "[Will|Is] it [rain|snow|be cold|raining|sunny] [tomorrow|today|in {p}|next week][?|]", "What does {w} mean?", "[Is|Are] [{p}|{a}s|the {a}] [bigger than|older than|better than|near] [{p2}|{a2}s|the {a2}]?",
)  # fmt: skip
REQUESTS = (
    "[Write|Make|Compose|Give|Tell|Draft|Sing] [me |us |][a|an|some|one] [poem|story|song|essay|letter|email|joke|riddle|tale|rhyme|speech|report|blog post|haiku|article|recipe][ about {a}| for {n}| on {a} and {a2}| with {a}|][.|!|]", "[Translate|Put|Turn|Say] [this|'{a} {a2}'|'{a}'|the {a}|{w}] [into|in|to] [German|French|Chinese|Italian|Latin|{p}ish][.|?|]", "[Explain|Describe|Summarise|Teach me|Discuss] [{a}|{a} {a2}|the {a}|how the {a} {a2}s|{t}|{a} and {a2}][ to me| in detail| in short| to a child|][.|!|]",
    "[Can|Could|Will|Would] you [draw|sing|write|paint|cook|drive|code|program|make] [me |us |][a|the|some] [{a}|{a} {a2}|poem|song|joke][?|]", "[Write|Make|Fix|Debug] [a|the|my] [program|script|function|Python code|web page|table] [for|that|with|about] [{a}|{a} {a2}s|the {a}][.|]", "[Recommend|Suggest|Choose|Name] [me |us |][a|some|three|the best] [book|film|{a}|{a}s|name|restaurant|song|present][ for {n}| about {a}| in {p}|][.|?|]",
    "[What|Which {a}|Where] [shall|should|could|do] I [eat|cook|read|wear|buy|do|see|watch|say|give {n}][ for lunch| today| next week| this evening|][?|]", "[Tell|Give] me [something|a fact|news|advice|an idea|a story|a tip] [about {a}|on {a}|for {n}|about {p}][.|]", "[Know any|Got any|Have you any|Any] [jokes|poems|stories|songs|ideas|tips][ about {a}|][?|]", "[Play|Show|Open|Buy|Order|Call|Send|Book] [me |us |][a|the|my|some] [{a}|{a} {a2}|{a} for {n}][.|!|]",
)  # fmt: skip


def _say(d: Draw, messages: list[Message], *, is_told: bool = True) -> None:
    """Appends one turn of chat. is_told: something may have been told before, so that only what no one tells is asked."""
    kind = d.rng.random()
    fields = {
        "n": first(d),
        "p": place(d),
        "p2": place(d),
        "a": noun(d),
        "a2": noun(d),
        "w": d.word(),
        "t": titled(d),
        "y": str(d.rng.randrange(1200, 2040)),
    }
    if kind < 0.55:
        phrases, answer = d.pick(CHAT)
        said = casual(d, d.vary(d.pick(phrases))).format(**fields)
    elif kind < 0.75:
        said, answer = worded(d, *UNKNOWN, **fields), NO_IDEA
    elif kind < 0.9 or is_told:
        said, answer = casual(d, d.vary(d.pick(REQUESTS))).format(**fields), CANNOT
    elif d.chance(0.5):
        said, answer = worded(d, *d.pick(TOLD)[1], **fields), NO_IDEA
    else:
        said, answer = worded(d, *ASKED_FOR, r=d.pick(BELONGINGS)[0]), NO_IDEA
    if d.chance(0.1):
        said = (
            f"{d.pick(('Hello!', 'Hi,', 'Okay,', 'Well,', 'Thanks!', 'So,'))} {said}"
            if answer in (NO_IDEA, CANNOT)
            else said
        )
    messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]


def everyday_chat(d: Draw) -> Sample:
    """One to four turns of chat: most with one answer, and questions and wishes that a very small model cannot meet."""
    messages = _system(d, 0.3)
    for _ in range(d.pick((1, 1, 2, 3, 4))):
        _say(d, messages, is_told=False)
    return Sample("everyday_chat", tuple(messages))


# --- tools ---------------------------------------------------------------------------------------------------------------

# a tool, questions for it
USES: tuple[tuple[Tool, tuple[str, ...], dict[str, Maker]], ...] = (
    (Tool("get_time", "The time of day in a place.", {"place": "string"}), ("What time is it in {place}[ now|]?", "[Tell|Give] me the time in {place}.", "[How late|What's the time|time] in {place}?", "Is it [late|night|morning] in {place}?"), {"place": place}),
    (Tool("send_message", "Send a text to a person", {"to": "string", "text": "string"}), ("[Send|Write] {to} [the text|a message|this]: {text}", "[Tell|Write to|Text] {to}: {text}", "Send \"{text}\" to {to}.", "[Message|Please message] {to} with the text {text}."), {"to": person, "text": phrase}),
    (Tool("new_event", "Adds an event to the calendar.", {"title": "string", "date": "string"}), ("[Add|Put|Enter] {title} [to my calendar on|on|for] {date}.", "[On|At] {date} I have {title}, [add|note|save] it.", "New event: {title}, {date}", "Plan {title} for {date}."), {"title": phrase, "date": Draw.date}),
    (Tool("stock_price", "Price of a share", {"symbol": "string"}), ("What's {symbol} trading at?", "[Price|Quote] of {symbol}[?|]", "How is {symbol} doing[ on the market| today|]?", "Did {symbol} go up?"), {"symbol": lambda d: "".join(d.pick("ABCDEFGHIKLMNOPRSTUVXZ") for _ in range(d.pick((3, 4))))}),
    (Tool("book_room", "Books a hotel room.", {"hotel": "string", "nights": "integer"}), ("[Book|Get|Take] {nights} nights at {hotel}.", "[I|We] [want|would like] to stay {nights} nights in {hotel}[, please book|].", "A room at {hotel}, {nights} nights."), {"hotel": titled, "nights": whole(1, 30)}),
    (Tool("pay", "Sends money to someone.", {"to": "string", "amount": "number"}), ("[Pay|Send|Transfer|Give] {to} {amount}[ euros| dollars|].", "[Transfer|Send|Pay] {amount} to {to}.", "I owe {to} {amount} euros, [pay it|send it]."), {"to": person, "amount": money}),
    (Tool("dictionary", "Meaning of a word.", {"word": "string"}), ("What does {word} mean?", "[Define|Explain|Look up] [the word |]{word}.", "[Meaning|Definition] of {word}[?|]", "Is {word} a word?"), {"word": noun}),
    (Tool("translate", "Translates text into a language", {"text": "string", "language": "string"}), ("[Translate|Put] {text} [into|to] {language}.", "How do [I|you] say {text} in {language}?", "{text} in {language}?"), {"text": phrase, "language": rare}),
    (Tool("switch", "Switches a device in a room.", {"device": "string", "state": "string"}), ("[Turn|Switch|Put] {state} the {device}.", "[Turn|Switch] the {device} {state}.", "The {device} should be {state}."), {"device": thing, "state": lambda d: d.pick(("on", "off"))}),
    (Tool("route", "Distance between two places", {"start": "string", "end": "string"}), ("How far is it from {start} to {end}?", "[Distance|Route|Way] from {start} to {end}[?|]", "I [drive|go|walk] from {start} to {end}, how [far|long] is it?", "How do I get to {end} from {start}?"), {"start": place, "end": place}),
    (Tool("call_taxi", "Orders a taxi", {"address": "string", "time": "string"}), ("[Get|Order|Send|Call] [me |]a taxi to {address} at {time}.", "I need a [taxi|cab] at {time}, [address|from] {address}.", "Taxi, {address}, {time}."), {"address": street, "time": clock}),
    (Tool("buy_tickets", "Buys cinema tickets.", {"film": "string", "count": "integer"}), ("[Buy|Get|Order] {count} tickets for {film}.", "[We want|I'd like] to see {film}, {count} [people|tickets|seats].", "{count} x {film}[, please|]"), {"film": titled, "count": whole(1, 20)}),
    (Tool("reminder", "Reminds of something at a time.", {"what": "string", "when": "string"}), ("[Remind|Tell] me [of|about] {what} at {when}.", "At {when} I [need|want] to think of {what}, remind me.", "[Reminder|Note]: {what}, {when}"), {"what": phrase, "when": clock}),
    (Tool("read_file", "Content of a file.", {"path": "string"}), ("[Open|Read|Show|Print] {path}[.|, please.|]", "What [is in|does] {path}[ say|]?", "What does the file {path} hold?"), {"path": lambda d: f"{d.word()}{d.pick(('/', '_', '-'))}{d.word()}.{d.pick(('txt', 'csv', 'py', 'md'))}"}),
    (Tool("find_order", "Status of an order.", {"order_id": "string"}), ("[What|How] about [my |]order {order_id}?", "[Status|State] of {order_id}[?|]", "[Is|Was] {order_id} [sent|paid|ready]?", "Look for order {order_id}.", "I ordered [something|a {a}], the number is {order_id}. [Where is it|Is it here]?"), {"order_id": code}),
    (Tool("birthday", "Birthday of a person", {"name": "string"}), ("When is {name}'s birthday?", "[When was|On which day was] {name} born?", "[Birthday|Date of birth] of {name}[?|]", "How old is {name}?"), {"name": person}),
    (Tool("phone_book", "Phone number of somebody.", {"name": "string"}), ("[Find|Get|Give me] the [phone |]number of {name}.", "I want to [call|phone] {name}.", "[Which|What] [phone |]number has {name}?", "Do you have the number of {name}?"), {"name": person}),
    (Tool("people", "How many people live in a place", {"place": "string"}), ("How [many people|many] live in {place}?", "[How big is|Population of|Size of] {place}[?|]", "Is {place} a large town?"), {"place": place}),
    (Tool("forecast", "Weather forecast for a place on a day.", {"place": "string", "day": "string"}), ("[Will it|Does it] [rain|snow|get hot] in {place} on {day}?", "[Forecast|Weather] for {place} on {day}[?|]", "How will [the weather|it] be in {place} on {day}?"), {"place": place, "day": lambda d: d.pick(DAYS)}),
    (Tool("rent_car", "Rents a car.", {"model": "string", "days": "integer", "place": "string"}), ("[Rent|Hire|Get] [me |us |]a {model} in {place} for {days} days.", "I need a {model} for {days} days, pick-up in {place}.", "{days} days, {model}, {place}: [rent|book] it."), {"model": titled, "days": whole(1, 60), "place": place}),
    (Tool("library", "Whether the library has a book", {"book": "string"}), ("[Do you|Does the library] have {book}?", "[Can I|May I] borrow {book}?", "[Is|Was] {book} [in|there|lent out]?", "I'm looking for {book}."), {"book": titled}),
    (Tool("balance", "Balance of an account.", {"account": "string"}), ("[How much|What] is [on|in] [account |]{account}?", "[Balance|State] of [account |]{account}[?|]", "[Show|Give|Check] [me |]the balance of {account}.", "How much money has account {account}?"), {"account": phone}),
    (Tool("sensor", "Reads a sensor.", {"id": "string"}), ("What does [sensor |]{id} [say|read|measure]?", "[Read|Check|Poll] [the sensor |sensor |]{id}.", "[Value|Reading] of {id}[?|]"), {"id": code}),
    (Tool("swap_money", "Changes money between currencies", {"value": "number", "from_currency": "string", "to_currency": "string"}), ("[Swap|Turn] {value} {from_currency} [into|for] {to_currency}.", "[What|How many {to_currency}] [are|do I get for|is] {value} {from_currency}[ worth|][?|]", "I have {value} {from_currency} and need {to_currency}."), {"value": money, "from_currency": lambda d: "".join(d.pick("ABCDEGHKMNPRSUY") for _ in range(3)), "to_currency": lambda d: "".join(d.pick("ABCDEGHKMNPRSUY") for _ in range(3))}),
    (Tool("wiki", "Looks a subject up.", {"subject": "string"}), ("[Tell me about|What do you know about|Who or what is|What is] {subject}[?|.|]", "[Look up|Search for|Find out about] {subject}.", "[Information|Something|Facts] on {subject}[, please|]."), {"subject": phrase}),
    (Tool("who_is", "Finds the holder of an office", {"office": "string", "country": "string"}), ("Who is the {office} of {country}?", "[Name|Give me] the {office} of {country}.", "{country} has which {office}?", "{office} of {country}?"), {"office": noun, "country": place}),
)  # fmt: skip
VERBS = "Get Find Compute Check Set Make Open Send Book Start Stop Show Count Rate Move Save".split()
QUESTIONS = (  # for tools of any name
    "[{v}|Please {v}|Can you {v}|Could you {v}|I want you to {v}] the {a} [of|for|with|from|at] {x}[.|?|]", "[What|Which|How much] is the {a} [of|for|with] {x}[?|]", "{a} {x}", "[The |]{a} [of|for] {x}[, please|][.|?|]", "[Use|Call|Run] {f} [with|for|on] {x}[.|]", "[I need|Give me|Show me|Tell me|Get me] [the|a] {a} [of|for|with] {x}[.|, please.|]",
    "{x}: [what is the|the] {a}?", "[How about|What about] the {a} of {x}?", "[Do we|Do you|Does it] have [a|the] {a} [for|of] {x}?",
)  # fmt: skip
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "{a}*{b}": ("[what's|whats|What is|how much is|calc|compute] {a} [times|x|*|multiplied by|by] {b}[?|]", "{a} [times|x|*] {b}[?| =| = ?|]", "[One|A|Each] {i} [costs|is] {a}[ euros| dollars|], [what|how much] [do I pay for|are|will be] {b}[ of them|][?|]", "I [buy|bought|ordered|take] {b} {i}s [at|for] {a} [each|apiece|per piece|a piece][.|,] [how much is it|what does it cost|what's the total|what do I owe][?|]", "[There are|We have|I see] {b} [boxes|bags|rows|shelves|trays] [of|with] {a} {i}s[ each|]. How many [is that|{i}s are there|in all|together][?|]", "{n} [works|reads|runs|earns|sells] {a} [a day|every day|per week|each time], how much [in|after|over] {b} [days|weeks|times][?|]", "[Multiply|Take] {a} [by|times] {b}[.|, please|]", "[A|One|Every] [box|bag|tray|pack] [has|holds] {a} {i}s[,| and] [I need|we bought|there are] {b}. How many {i}s[ in all|]?", "If [I|we|you] [get|order|sell] {b} {i}s for {a} each, [what's|what is|how much is] [the total|it|that][?|]"),
    "{a}+{b}": ("[what's|whats|What is|how much is|sum] {a} [plus|+|and|added to] {b}[?|]", "{a} [plus|+|and] {b}[?| =| = ?| together]", "[I|We|{n}] [walked|cycled|ran|read|sold|ate] {a} [on Monday|first|yesterday|in May] and {b} [on Friday|then|today|in June]. [How much|How many|What] [in all|altogether|is the total|is that][?|]", "[The {i}|My {i}] [costs|is] {a} and [the {j}|my {j}] [costs|is] {b}[,|.] [what's|what is|how much is] [the total|the sum|both|it together][?|]", "[Add|Sum] {a} [and|to|plus] {b}[.|, please|]", "{a} {i}s and {b} {j}s, how many [things|in all|together]?"),
    "{a}-{b}": ("[what's|whats|What is|how much is] {a} [minus|-|less|take away] {b}[?|]", "{a} [minus|-|less] {b}[?| =|]", "I [had|got|own] {a} [euros|{i}s|dollars] and [lost|gave away|paid|used|ate|sold] {b}[.|,] [what|how much|how many] [is left|do I have now|remains|are left][?|]", "[Subtract|Take] {b} from {a}[.|, please|]", "[From|Of|Out of] {a} {i}s {b} are [gone|broken|sold|mine]. How many [are left|remain|stay]?", "What is {a} if I take {b} [off|away]?", "By how much is {a} more than {b}?"),
    "{a}/{b}": ("[what's|whats|What is|how much is] {a} [divided by|over|/|split by] {b}[?|]", "{a} [divided by|/|over] {b}[?| =|]", "[We are|They are|There are] {b} [people|friends|guests] and [pay|share|split] {a}[ euros|]. [What|How much] does each [pay|get][?|]", "[Split|Share|Divide] {a} [euros |{i}s |][between|among|by|into|with] {b}[ people| parts|][.|, please|]", "{b} of us share {a} {i}s, how many [each|for one|per person]?", "[The|A] [bill|dinner|taxi] [was|is|costs] {a} and {b} [of us|people|friends] share it[.|,] how much [each|per head|for everyone]?"),
    "{a}*{b}/100": ("[what's|whats|What is|how much is] {b}[%| percent| per cent] of {a}[?|]", "{b}[%| percent] of {a}[?| =|]", "[The tip|My share|The tax|Rent] is {b}[%| percent] of {a}[,|.] how much is [that|it][?|]", "[Work out|Find|Get] {b}[%| percent] [of|from] {a}[.|]", "{n} [pays|saves|gets] {b}[%| percent] of {a}, how much?"),
    "({a}+{b})*{c}": ("[({a} + {b}) * {c}|({a}+{b})*{c}][?| =|]", "[what's|What is|Solve|Compute|Evaluate|Calculate] [({a} + {b}) * {c}|({a}+{b})*{c}][?|.|]", "[Add|Sum] {a} and {b}, then [times|multiply by|multiply with] {c}[.|]"),
    "{a}*{b}+{c}": ("[{a} * {b} + {c}|{a}*{b}+{c}][?| =|]", "[what's|What is|Solve|Compute|Evaluate] {a} [times|*] {b} plus {c}[?|]", "I [buy|bought] {b} {i}s at {a} [each|apiece] and a {j} for {c}[.|,] [what's|what is] [the total|it all together][?|]"),
    "{a}-{b}-{c}": ("{a} - {b} - {c}[?| =|]", "I had {a}, spent {b} and then {c}. [What is left|How much do I have]?"),
}  # fmt: skip
CONVERTS = ("[what's|whats|What is|how much is] {v} {f} in {t}[?|]", "{v} {f} [in|to|as|into] {t}[?|]", "[My {i}|The {i}|It|{n}] [weighs|is|has|needs|measures|runs|takes] {v} {f}[,|.] [what is that|how much is that|how many is it|and] in {t}[?|]", "[I need|I have|We got|They want] {v} {f} [in|as|to] {t}[.|]", "How many {t} [are|in|make|is|would] {v} {f}[?| be?|]", "[Change|Turn|Make|Convert] {v} {f} [into|to] {t}[.|, please|]", "How [far|long|heavy|hot|much] is {v} {f} in {t}[?|]", "[Is|Are] {v} {f} [many|a lot of|how many] {t}?", "{v} {f} [would be|makes|equals] how many {t}?")  # fmt: skip
LATERS = (
    ("[What|Which] [date|day] [is|comes|will be] {k} days [after|from|past|on from] {d}[?|]", "{d} plus {k} days[?|]", "[It starts|My course starts|I begin|We begin] [on|at] {d} and [takes|lasts|needs] {k} days[.|,] when [does it end|is it over|am I done|do we finish][?|]", "My {i} [from|of] {d} is valid [for |]{k} days[.|,] [until when|when does it end|when does it expire][?|]", "[In {k} days from|{k} days after] {d}[, which date is it|: which date][?|]", "[Bill|Order] of {d}, due in {k} days. [When|Which date] is that?"),
    ("[What|Which] [date|day] [was|is|came] {k} days [before|ahead of|prior to] {d}[?|]", "{d} minus {k} days[?|]", "{k} days before {d}[?|, which date is it?|]", "[It|The {i}] was [due|here|sent|paid] {k} days before {d}[.|,] [when was it|what day was it|which date is that][?|]", "[Go|Count] {k} days back from {d}[.|]"),
)  # fmt: skip


def _any_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool of any name with one to three arguments of any name, and questions for it."""
    aspect, verb = (d.word() if d.chance(0.5) else noun(d)), d.pick(VERBS)
    names = list(dict.fromkeys(noun(d) if d.chance(0.5) else d.word() for _ in range(d.pick((1, 1, 1, 2, 2, 3)))))
    makers: dict[str, Maker] = {}
    kinds: dict[str, str] = {}
    for name in names:
        kinds[name], makers[name] = d.pick(
            (
                ("string", person),
                ("string", place),
                ("string", code),
                ("string", titled),
                ("string", noun),
                ("string", Draw.date),
                ("integer", whole(1, 900)),
                ("number", money),
                ("string", clock),
            )
        )
    about = d.pick(
        ("{v} the {a}", "The {a} of a {o}", "{v}s the {a} for a {o}", "{a} by {o}", "{v} a {a} with {o}")
    ).format(v=verb, a=aspect, o=" and ".join(names)) + d.pick((".", ""))
    tool = Tool(
        d.pick(("{a}", "{v}_{a}", "{a}_{v}", "{a}_of", "get_{a}")).format(a=aspect, v=verb.lower()),
        about[0].upper() + about[1:],
        kinds,
    )
    first_name, *others = names
    x = f"{{{first_name}}}" + "".join(
        d.pick((" and {0} {1}", ", {0} {1}", ", {1}", " with {0} {1}")).format(o, f"{{{o}}}") for o in others
    )
    return (
        tool,
        tuple(
            q.replace("{v}", verb.lower()).replace("{a}", aspect).replace("{f}", tool.name).replace("{x}", x)
            for q in QUESTIONS
        ),
        makers,
    )


def everyday_tools(d: Draw) -> Sample:
    """One to three questions with up to six tools offered; also talk that needs none of them."""
    chosen = [d.pick(USES) if d.chance(0.6) else _any_tool(d) for _ in range(d.pick((1, 1, 1, 2, 3)))]
    chosen = list({tool.name: use for use in chosen for tool in use[:1]}.values())
    offered = [tool for tool, _, _ in chosen] + d.some(
        (CALCULATOR, CONVERT, ADD_DAYS, DAYS_BETWEEN), d.pick((1, 1, 2, 3))
    )
    d.rng.shuffle(offered)
    functions: dict[str, Function] = dict(FUNCTIONS)
    messages = _system(d, 0.5)
    answers: list[str] = []
    for _ in range(d.pick((1, 2, 2, 3, 4))):
        kinds = (
            ["use"] * 4
            + ["sum"] * 4 * (CALCULATOR in offered)
            + ["convert"] * 2 * (CONVERT in offered)
            + ["date"] * 2 * (ADD_DAYS in offered)
            + ["talk"]
        )
        kind = d.pick(kinds)
        arguments: dict[str, object]
        if kind == "use":
            tool, ways, makers = d.pick(chosen)
            fields = {name: make(d) for name, make in makers.items()}
            arguments = {name: _number(v) if tool.parameters[name] != "string" else v for name, v in fields.items()}
            said, name = worded(d, *ways, **fields, a=noun(d)), tool.name
            result = (
                any_value(d)
                if d.chance(0.6)
                else d.pick(("ok", "done", "yes", "no", noun(d), f"{d.number(1, 99)}{d.pick('CFkm%')}"))
            )
            wanted = f"The result is {result}."
        elif kind == "sum":
            form = d.pick(tuple(EXPRESSIONS))
            values = {"a": d.value(), "b": str(d.amount()) if d.chance(0.8) else d.value(), "c": d.value()}
            said = worded(
                d, *EXPRESSIONS[form], **values, i=noun(d) if d.chance(0.5) else d.item(), j=d.item(), n=first(d)
            )
            name, arguments = "calculator", {"expression": form.format(**values)}
            result = run(name, arguments, functions)
            wanted = f"The answer is {result}."
        elif kind == "convert":
            f, t = d.pick(UNITS)
            v = d.value()
            said = worded(d, *CONVERTS, v=v, f=f, t=t, i=d.item(), n=first(d))
            name, arguments = "convert", {"value": _number(v), "from_unit": f, "to_unit": t}
            result = run(name, arguments, functions)
            wanted = f"{v} {f} is {result} {t}."
        elif kind == "date":
            back, day, k = d.chance(0.35), d.date(), d.number(2, 900)
            said = worded(d, *LATERS[back], k=k, d=day, i=d.item())
            name, arguments = "add_days", {"date": day, "days": -k if back else k}
            result = run(name, arguments, functions)
            wanted = f"The date is {result}."
        else:
            phrases, answer = d.pick(CHAT)
            said = casual(d, d.vary(d.pick(phrases))).format(n=first(d), a=noun(d))
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
            answers.append(answer)
            continue
        messages += [
            {"role": "user", "content": said}, {"role": "assistant", "tool_calls": ({"name": name, "arguments": arguments},)},
            {"role": "tool", "content": result}, {"role": "assistant", "content": wanted},
        ]  # fmt: skip
        answers.append(result)
    return Sample("everyday_tools", tuple(messages), tuple(offered), functions=functions, answers=tuple(answers))


def wording() -> str:
    """The words around the values of a record, a fact and a scene: what is no value."""
    records = [text for makers, texts in DOMAINS for text in (*makers, *texts)]
    facts = [text for statements, questions, answer, _ in TOLD for text in (*statements, *questions, answer)]
    relations = [relation for relation, _ in BELONGINGS]
    said = [text for phrases, answer in CHAT for text in (*phrases, answer)]
    return f"{records} {WISHES} {NOISE} {GAPS} {facts} {relations} {STATED} {ASKED_FOR} {SCENES} {PAGES} {said} {NOTED} {NO_IDEA} {CANNOT}"
