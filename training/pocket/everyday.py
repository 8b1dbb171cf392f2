"""Training text in the style of people who have not read the model card: the same task families in many more wordings.

Names have many spellings, records come from many domains, tools have up to four arguments with any names, label sets
are random, and questions about facts that were never told are answered with `NO_IDEA`.
"""

# Phrases are long lines.
# ruff: noqa: E501, SIM905

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from pocket import amounts, clauses, gadgets, intents, memories, parts, roles, talks
from pocket.chat import Message, Sample, Target
from pocket.subjects import (
    CLAUSES,
    GROUPS,
    INTENTS,
    KINDRED,
    KINDS_OF,
    NAMES_OF,
    NOUNS,
    OFTEN,
    PARTS,
    SAID,
    SENTENCES,
    SUBJECTS,
)
from pocket.themes import THEMES, theme_makers
from pocket.tools import ADD_DAYS, CALCULATOR, CONVERT, DAYS_BETWEEN, FUNCTIONS, Function, Tool, run
from pocket.transcripts import UNITS
from pocket.words import ANIMALS, COLOURS, DAYS, EVENTS, JOBS, Draw

NO_IDEA = "I do not know that. I only know what you tell me."
CANNOT = "I cannot do that. I am a very small model."
HELLO, NOTED = "Hello! How can I help you?", "I will remember that."
Maker = Callable[[Draw], str]

# --- values ------------------------------------------------------------------------------------------------------------

_CAPITALS = "B C D F G H J K L M N P R S T V W Z Br Ch Cr Dr Fr Gr Kr Kw Ll Ny Ph Pr Qu Rh Sch Sh Sk Sl Sm Sn St Sv Sz Th Tr Ts Tz Wr Xi Y Zh Bj Dm Fj Gh Gw A E I O U Au Ei".split()  # fmt: skip
_MIDDLES = "b d f g k l m n p r s t v z bb ck ch ff gg lk ll lm ls lv mb mm nd ng nk nn nt ph pp rd rg rk rl rm rn rr rt rv sh sk ss st sz tch th tt tz vr w wn x y zh dl kh".split()  # fmt: skip
_VOWELS = ("a e i o u " * 12 + "y y aa ae ai au ay ea ee ei eo eu ia ie io oa oo ou oy ua ue").split()
_ENDINGS = "a o e i an en in on ar er or us is as el il ek ik ak ov ev ski sky ska sen son berg feld dal ström mann wood ford ley ton well worth ez es az ini elli etti eau ier oux ck rd rt ng nd th sh ld ll nn ss tt".split()  # fmt: skip


def rare(d: Draw) -> str:
    """A made-up name that looks like one of some language, such as `Kwamberg`."""
    syllables = d.pick((0, 0, 0, 1, 1, 1, 2))
    name = d.pick(_CAPITALS) + (d.pick(_VOWELS) if d.chance(0.9) else "")
    name += "".join(d.pick(_MIDDLES) + d.pick(_VOWELS) for _ in range(syllables)) + d.pick(_MIDDLES) + d.pick(_ENDINGS)
    if d.chance(0.04):
        name += d.pick("éöñüøšçå")
    return name


def first(d: Draw) -> str:
    if d.chance(0.05):
        return d.pick(KINDS_OF["pet"]).capitalize()
    return rare(d) if d.chance(0.6) else d.name()


def pet(d: Draw) -> str:
    """A name for a pet, often an ordinary word."""
    return d.pick(KINDS_OF["pet"]).capitalize() if d.chance(0.4) else first(d)


def kind_of(kind: str) -> Maker:
    return lambda d: d.pick(KINDS_OF[kind]) if d.chance(0.8) else d.word()


def person(d: Draw) -> str:
    if d.chance(0.12):
        return first(d)
    middle = f" {d.pick('ABCDEFGHJKLMNPRSTW')}." if d.chance(0.05) else ""
    if d.chance(0.06):
        return f"{d.pick(clauses.HONORIFICS)} {f'{first(d)} {rare(d)}' if d.chance(0.3) else rare(d)}"
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
    if d.chance(0.4):
        return _name_of(d, clauses.TITLES if d.chance(0.6) else clauses.FIRMS)
    words = [(noun(d) if d.chance(0.7) else rare(d)).capitalize() for _ in range(d.pick((1, 2, 2, 3)))]
    return " ".join([*(["The"] if d.chance(0.3) else []), *words])


def _name_of(d: Draw, forms: Sequence[str]) -> str:
    n, n2 = (d.pick(NOUNS).capitalize() for _ in range(2))
    a, b = (rare(d) if d.chance(0.6) else d.word().capitalize() for _ in range(2))
    return d.pick(forms).format(a=a, b=b, n=n, n2=n2)


def firm(d: Draw) -> str:
    return _name_of(d, clauses.FIRMS)


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
    name = f"{rare(d) if d.chance(0.5) else noun(d).capitalize()} {d.pick(clauses.STREETS)}"
    return f"{d.number(1, 199)} {name}" if d.chance(0.5) else name


def mail(d: Draw) -> str:
    return f"{rare(d).lower()}@{d.word()}.{d.pick(('com', 'org', 'net', 'io'))}"


def money(d: Draw) -> str:
    return d.value()


def any_value(d: Draw) -> str:
    return d.pick((person, place, noun, titled, code, clock, Draw.date, phone, money, whole(1, 9999), first, rare))(d)


def casual(d: Draw, text: str) -> str:
    """A template as if typed in haste: at random without a capital, end punctuation or apostrophes, or with filler."""
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
    """One of `ways`, expanded, with its fields filled in. Sometimes with made-up words, or as if typed in haste."""
    return casual(d, d.strange(d.vary(d.pick(ways)))).format(**fields)


def one(words: str) -> Maker:
    """A maker of items of a comma-separated list, sometimes of a made-up word instead."""
    listed = tuple(words.split(", "))
    return lambda d: d.pick(listed) if d.chance(0.85) else d.word()


def ranked(titles: str) -> Maker:
    """A maker of names with a title, such as `Dr. Kwamberg`."""
    listed = titles.split(", ")
    return lambda d: f"{d.pick(listed)} {rare(d) if d.chance(0.6) else person(d)}"


def sized(units: str, low: int, high: int) -> Maker:
    """A maker of numbers with the unit attached, as one word. Units with a space are left out, except millions etc."""
    listed = [u for u in units.split(",") if " " not in u or u.endswith("illion")] or [""]
    return lambda d: f"{d.number(low, high) if d.chance(0.8) else d.decimal()}{d.pick(listed)}"


def score(d: Draw) -> str:
    return f"{d.rng.randrange(12)}{d.pick(('-', '-', ':'))}{d.rng.randrange(12)}"


def seat(d: Draw) -> str:
    return f"{d.rng.randrange(1, 60)}{d.pick('ABCDEFGHJK')}"


def version(d: Draw) -> str:
    return ("v" if d.chance(0.3) else "") + f"{d.rng.randrange(30)}.{d.rng.randrange(30)}.{d.rng.randrange(30)}"


def degrees(d: Draw) -> str:
    return str(d.rng.randrange(-30, 45))


def decimal(d: Draw) -> str:
    return d.decimal()


def year(d: Draw) -> str:
    return str(d.rng.randrange(1700, 2040))


def address(d: Draw) -> str:
    return ".".join(str(d.rng.randrange(256)) for _ in range(4))


def slug(d: Draw) -> str:
    return d.pick(("-", "_", "/")).join((noun(d).lower(), d.word()))


def plate(d: Draw) -> str:
    letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
    return d.pick(("{0}{1} {2}{3} {4}{5}{6}", "{0}{1}{4}-{2}{3}", "{0}-{4}{5} {2}{3}{3}")).format(*(d.pick(letters) for _ in range(2)), *(d.pick("0123456789") for _ in range(2)), *(d.pick(letters) for _ in range(3)))  # fmt: skip


def day_month(d: Draw) -> str:
    """A date as people write it: `12 March`, `Sept 3`."""
    month = d.pick("January February March April May June July August September October November December Jan Feb Sept Oct Nov Dec".split())  # fmt: skip
    day = d.rng.randrange(1, 29)
    return f"{day} {month}" if d.chance(0.6) else f"{month} {day}"


def when(d: Draw) -> str:
    makers: tuple[Maker, ...] = (Draw.date, Draw.date, day_month, lambda d: d.pick(DAYS))
    return d.pick(makers)(d)


# fmt: off
ILLS = one("flu, measles, asthma, migraine, a broken wrist, pneumonia, back pain, diabetes, chickenpox, high blood pressure, a sprained ankle, bronchitis, hay fever, an ear infection, anaemia, food poisoning, tonsillitis, gout, eczema, a cold, a rash, arthritis, appendicitis, insomnia, concussion, toothache")
DRUGS = one("ibuprofen, aspirin, amoxicillin, insulin, paracetamol, cough syrup, penicillin, antibiotics, vitamin D, iron tablets, eye drops, cortisone, morphine, an inhaler")
DISHES = one("lentil soup, pancakes, mushroom risotto, fish stew, apple pie, chicken curry, beef chili, tomato soup, omelette, noodle salad, rice pudding, veggie lasagne, carrot cake, fried rice, goulash, dumplings, meatballs, tacos, paella, roast duck, garlic bread, pumpkin pie, fish and chips, burger, grilled cheese, ramen")
FOODS = one("flour, sugar, butter, eggs, rice, milk, salmon, tempeh, lentils, chicken, potatoes, mushrooms, cheese, olive oil, spinach, honey, onions, chickpeas, almonds, bacon, beans, beef, cocoa, cream")
MATERIALS = one("oak, steel, cotton, leather, glass, marble, wool, silk, plastic, bamboo, copper, granite, linen, pine, brass, concrete, rubber, clay, silver, aluminium, velvet, slate, titanium, paper, wax, denim")
INSTRUMENTS = one("violin, piano, cello, trumpet, guitar, drums, harp, flute, oboe, bass, clarinet, saxophone, banjo, organ, accordion, tuba, viola, mandolin, trombone")
SPORTS = one("football, tennis, hockey, rugby, chess, swimming, judo, handball, volleyball, curling, golf, boxing, rowing, cricket, basketball, fencing, karate, badminton, baseball, archery, skiing, darts, squash")
CROPS = one("wheat, barley, maize, potatoes, apples, olives, rice, carrots, grapes, soybeans, onions, sunflowers, oats, tomatoes, cabbage, hops, sugar beet, strawberries, cotton, rye, pumpkins, lettuce, plums, lavender")
BREEDS = one("beagle, poodle, tabby, collie, terrier, Siamese, dachshund, Holstein, merino, mustang, pug, labrador, greyhound, husky, Angora, spaniel, boxer, Persian, mongrel, corgi")
WILD = one("fox, heron, wolf, otter, owl, hedgehog, deer, badger, eagle, seal, bat, viper, moose, swan, whale, kestrel, lynx, beaver, bear, robin, stork, boar, falcon, turtle, woodpecker, crane")
CRIMES = one("theft, fraud, arson, burglary, speeding, vandalism, robbery, forgery, trespassing, assault, perjury, smuggling, blackmail, drunk driving, shoplifting, bribery, kidnapping, tax evasion")
VERDICTS = one("guilty, not guilty, dismissed, acquitted, settled, mistrial, convicted, upheld, overturned")
POSTS = one("manager, intern, director, designer, analyst, chief engineer, treasurer, secretary, head of sales, project lead, tester, developer, team lead, cashier, accountant, consultant, researcher, supervisor, editor, receptionist, buyer, trainer, data scientist, office manager, deputy head")
STATES = one("open, closed, pending, delayed, done, cancelled, in progress, on hold, shipped, lost, paid, approved, rejected, active, expired, ready, blocked, overdue, draft, resolved")
LEVELS = one("low, medium, high, urgent, critical, minor, major, normal")
SKIES = one("sunny, cloudy, rain, fog, light snow, clear, overcast, hail, drizzle, thunderstorms, windy, sleet, showers, heavy rain, mist, partly cloudy")
WINDS = one("north, south, east, west, northwest, southeast, northeast, southwest")
POSITIONS = one("goalkeeper, striker, midfielder, left back, defender, winger, pitcher, centre, point guard, scrum half, captain, sweeper, forward")
SUBJECT_NAMES = one("maths, history, biology, chemistry, geography, French, art, music, physics, Latin, economics, philosophy, English, Spanish, PE, drama, computing, algebra, German, ethics")
TONGUES = one("French, Arabic, Hindi, Swahili, Polish, Korean, Greek, Turkish, Dutch, Portuguese, Finnish, Welsh, Thai, Hebrew, Russian, Danish, Urdu, Zulu, Mandarin, Italian, Hungarian, Czech, Spanish, German")
FABRICS = one("cotton, wool, silk, denim, linen, velvet, nylon, fleece, tweed, suede, lace, cashmere")
GARMENTS = one("jacket, dress, jumper, coat, skirt, shirt, trousers, scarf, raincoat, suit, cardigan, blouse, hoodie, jeans, vest, kilt, sandals, boots, trainers, gloves")
SIZES = one("S, M, L, XL, XS, XXL, small, medium, large")
GENRES = one("jazz, folk, opera, thriller, comedy, western, romance, horror, blues, fantasy, drama, punk, documentary, crime, techno, soul, satire, mystery, country, science fiction, rock, reggae")
VEHICLES = one("bus, tram, ferry, lorry, van, bicycle, scooter, motorbike, tractor, yacht, truck, canoe, minibus, helicopter, taxi, moped, sedan, pickup, barge")
PARTIES = one("Greens, Liberals, Labour, Conservatives, Farmers Party, Unity, Socialists, Progress, Independents, Reform, Centre, Pirates, Democrats, New Deal, People First")
GASES = one("oxygen, helium, iron, carbon, zinc, nitrogen, copper, sodium, gold, argon, chlorine, neon, nickel, mercury, sulfur, calcium, lithium, radium, tin, lead")
GEMS = one("ruby, emerald, pearl, opal, jade, amber, sapphire, diamond, topaz, garnet, onyx, quartz, turquoise")
DRINKS = one("latte, espresso, green tea, lemonade, cola, red wine, lager, cider, iced tea, mango juice, hot chocolate, mineral water, flat white, gin and tonic, smoothie, stout, cappuccino, mint tea")
CLASSES = one("wizard, rogue, knight, archer, healer, druid, ranger, paladin, bard, monk, necromancer, warrior, thief, shaman")
WEAPONS = one("sword, bow, staff, dagger, axe, spear, hammer, crossbow, whip, sling, wand, shield, mace")
DAMAGES = one("a broken window, water damage, a dent, a cracked screen, a stolen bike, smoke damage, a scratched door, a burst pipe, a fallen tree, hail damage, a flooded cellar, a missing mirror")
FAULTS = one("no hot water, a dripping tap, a broken lift, mould, a blocked drain, a faulty boiler, no heating, a cracked tile, a leaking roof, a jammed lock, noisy pipes, flickering lights, a smashed lamp")
HOBBIES = one("fishing, chess, knitting, hiking, pottery, baking, cycling, photography, rowing, sailing, drawing, karaoke, birdwatching, climbing, origami, yoga, surfing, reading, stargazing")
FEELINGS = one("happy, nervous, tired, proud, angry, calm, bored, hopeful, lonely, grateful, upset, excited, sad, worried, relieved, jealous")
FLAVOURS = one("vanilla, chocolate, lemon, strawberry, pistachio, mint, coconut, mango, caramel, hazelnut, coffee, raspberry")
STYLES = one("cubism, gothic, baroque, modern, realism, art deco, impressionism, minimalism, pop art, romanticism, brutalism")
SURFACES = one("grass, clay, gravel, asphalt, sand, ice, cobbles, mud, wood, tarmac")
CAUSES = one("a short circuit, lightning, a gas leak, human error, bad weather, an engine fault, a typo, a full disk, a power cut, brake failure, ice on the road, a software bug, a burst tyre, a candle, arson, strong winds, a signal failure")
SHIFTS = one("night, early, late, morning, day, evening, weekend")
FREQUENCIES = one("daily, weekly, monthly, twice a day, every six hours, once a week, yearly, every morning, on weekdays")
TEAMS = lambda d: f"{place(d)} {d.pick(('United', 'City', 'Rovers', 'Tigers', 'Stars', 'Bears', 'Wolves', 'Athletic', 'Lions', 'Hawks', 'Giants', 'FC', 'Eagles'))}" if d.chance(0.6) else place(d)  # noqa: E731
percent = sized("%", 1, 100)
doctor = ranked("Dr., Dr, Doctor, Prof., Dr. med., Nurse")
captain = ranked("Capt., Captain, Cpt., Skipper, Commander, First Officer, Admiral")
officer = ranked("Sgt., Officer, Inspector, Constable, Det., Lt., PC, Detective, Sheriff, Trooper, Chief, Agent")
magistrate = ranked("Judge, Justice, Hon., Magistrate, Lord Justice")
polite = ranked("Mr, Mrs, Ms, Mr., Mrs., Ms., Miss, Sir, Madam, Mx")
academic = ranked("Prof., Professor, Dr., Dean, Prof. Dr.")
# fmt: on


# --- JSON --------------------------------------------------------------------------------------------------------------

# (field -> maker of its value, texts that have all fields)
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
    ({"patient": person, "diagnosis": ILLS, "physician": doctor, "ward": whole(1, 40), "admitted": Draw.date},
     ("{patient} was admitted on {admitted} with {diagnosis}; ward {ward}, under {physician}.", "Pt {patient}. Dx {diagnosis}. Seen by {physician}. Ward {ward}, adm. {admitted}", "{physician} is treating {patient} for {diagnosis} on ward {ward} [since|, admitted] {admitted}.", "[Hi all,|Dear team,] we took in {patient} on {admitted}. It looks like {diagnosis}. {physician} has the case, ward {ward}.", "On {admitted}, {patient} came to ward {ward} and {physician} [found|diagnosed] {diagnosis}.", "PATIENT {patient} | {diagnosis} | WARD {ward} | {physician} | {admitted}", "Mum says {patient} has {diagnosis} and is in ward {ward}, {physician} looks after them.", "{patient} suffers from {diagnosis}, {physician} says.")),
    ({"patient": person, "drug": DRUGS, "dose": sized("mg, mg,ml, ml,g", 1, 900), "frequency": FREQUENCIES, "prescriber": doctor},
     ("{prescriber} put {patient} on {drug}, {dose}, {frequency}.", "Rx: {drug} {dose} {frequency} for {patient} ({prescriber})", "{patient} is to take {dose} of {drug} {frequency}. Signed, {prescriber}", "Please give {patient} {drug} {frequency}, {dose} [at a time|each time]. [Ordered|Written] by {prescriber}.", "I, {patient}, was told by {prescriber} to take {drug} {frequency}, always {dose}.", "{drug}, {dose}, {frequency} - {patient}", "[As of today|From now on] {patient} gets {dose} {drug} {frequency}; {prescriber} will check next month.")),
    ({"name": person, "blood_type": one("A+, B+, AB+, O+, A-, B-, AB-, O-"), "pulse": whole(40, 180), "temperature": decimal, "height": whole(90, 210), "weight": whole(12, 160)},
     ("{name}, blood group {blood_type}, pulse {pulse}, temp {temperature}, {height} cm, {weight} kg", "[The nurse noted|We measured]: {name} is {height} cm [tall|in height] and weighs {weight} kg. Heart rate {pulse}, fever {temperature}, blood {blood_type}.", "{name} ({blood_type}): {pulse} beats per minute, {temperature} degrees, {weight} kg at {height} cm.", "With {height} cm and {weight} kg, {name} is fit. Pulse {pulse}. {temperature} C. Blood {blood_type}.", "Donor {name}, type {blood_type}, {weight} kilos, heart beats {pulse} a minute.")),
    ({"defendant": person, "charge": CRIMES, "judge": magistrate, "verdict": VERDICTS, "court": titled, "fine": whole(50, 9000)},
     ("{defendant} stood before {judge} at {court} for {charge}. Verdict: {verdict}. Fine: {fine}.", "[In the matter of|Re] {defendant}, charged with {charge}, {judge} ({court}) ruled: {verdict}.", "{judge} fined {defendant} {fine} euros for {charge} at {court}.", "Accused of {charge}, {defendant} was [found|declared] {verdict} by {judge} on Friday.", "COURT NEWS: {defendant}, {charge}, {verdict} - {judge} presiding, {court}", "{court} heard the {charge} case against {defendant}; {judge} said {verdict} and set a fine of {fine}.")),
    ({"lawyer": person, "client": person, "fee": money, "firm": titled, "case_no": code},
     ("{lawyer} of {firm} [represents|acts for|defends] {client} in case {case_no}, at {fee} an hour.", "Case {case_no}: counsel {lawyer} ({firm}) for {client}. Fee {fee}.", "[Dear|To] {client},\nmy fee in {case_no} is {fee}.\nYours, {lawyer}\n{firm}", "{client} hired {lawyer} from {firm} and pays {fee} for {case_no}.", "Invoice re {case_no}\nTo: {client}\nFrom: {lawyer}, {firm}\nAmount: {fee}")),
    ({"home": TEAMS, "away": TEAMS, "score": score, "scorer": person, "minute": whole(1, 90), "stadium": titled, "attendance": whole(100, 90000)},
     ("{home} [v|vs|against] {away} ended {score} at {stadium}. {scorer} [scored|netted] in the {minute}th minute in front of {attendance} fans.", "FT: {home} {score} {away} ({scorer} {minute}')", "{home} hosted {away} at {stadium}: {score}. Goal: {scorer}, minute {minute}. Attendance: {attendance}", "{attendance} people came to {stadium} and saw {home} play {away}. It finished {score}, {scorer} striking after {minute} minutes.", "What a game! {home} {score} {away}!! {scorer} with a screamer in minute {minute}", "At home, {home} got a {score} against {away}; {scorer} was the hero.", "{away} travelled to {home} for a match that ended {score}.")),
    ({"player": person, "team": TEAMS, "position": POSITIONS, "shirt": whole(1, 99), "goals": whole(0, 60), "nationality": TONGUES},
     ("{player} plays as a {position} for {team}, [wears|has] number {shirt} and scored {goals} goals.", "{team} sign {nationality} {position} {player}, who gets shirt {shirt}.", "No. {shirt}: {player} ({team}), {position}, {goals} goals", "With {goals} goals, {nationality} star {player} is the best {position} that {team} ever had. Shirt number {shirt}.", "{player}, {shirt}, {position}, {team}, {nationality}, {goals}", "The {nationality} {position} {player} left {team} after {goals} goals.")),
    ({"athlete": person, "event": one("100 m, marathon, high jump, javelin, 200 m freestyle, pole vault, triathlon, long jump, shot put, slalom, 10 km, hurdles, relay"), "result": lambda d: f"{d.rng.randrange(1, 60)}.{d.rng.randrange(10, 99)}s" if d.chance(0.5) else f"{d.rng.randrange(1, 5)}:{d.rng.randrange(10, 60)}:{d.rng.randrange(10, 60)}", "medal": one("gold, silver, bronze"), "nation": place},
     ("{athlete} ({nation}) won {medal} in the {event} in {result}.", "{medal} for {nation}! {athlete} finishes the {event} in {result}.", "{event}: {athlete}, {nation}, {result}, {medal}", "In the {event}, {nation}'s {athlete} took {medal} with a mark of {result}.", "A time of {result} gave {athlete} the {medal} medal in the {event}. All of {nation} is proud.")),
    ({"club": titled, "sport": SPORTS, "coach": person, "members": whole(8, 900), "founded": year},
     ("{club} is a {sport} club with {members} members, trained by {coach} and founded in {founded}.", "[Come and|] join {club}! {sport} for everyone. Coach: {coach}. {members} members since {founded}.", "{coach} coaches {sport} at {club} ({members} members, est. {founded}).", "Since {founded}, {club} [has offered|teaches] {sport}; now {members} people train with {coach}.", "club {club} / {sport} / {coach} / {members} / {founded}")),
    ({"farmer": person, "crop": CROPS, "hectares": whole(1, 900), "yield": sized("t, t,kg", 1, 900), "harvest": when},
     ("{farmer} grows {crop} on {hectares} hectares and brought in {yield} on {harvest}.", "Farm report - {farmer}: {crop}, {hectares} ha, {yield}, harvested {harvest}", "This year's {crop} [came|comes] to {yield} from {farmer}'s {hectares} hectares.", "On {harvest}, {farmer} starts to harvest the {crop}: {hectares} hectares.", "{hectares} hectares of {crop} belong to {farmer}; the harvest was {yield}.", "I am {farmer}, I farm {hectares} hectares of {crop} and I got {yield} this season.")),
    ({"tag": code, "breed": BREEDS, "sex": one("male, female"), "born": Draw.date, "farm": titled, "milk": sized("l, l, litres", 2, 60)},
     ("Animal {tag}, {breed}, {sex}, born {born} at {farm}, gives {milk} a day.", "{farm}: ear tag {tag}, {sex} {breed}, dob {born}", "The {sex} {breed} with tag {tag} was born on {born} and lives at {farm}.", "{tag} is a {breed} from {farm}, {sex}, {born}.", "At {farm} the {breed} {tag} yields {milk} of milk daily.")),
    ({"flight": code, "origin": place, "destination": place, "gate": lambda d: f"{d.pick('ABCDEFG')}{d.rng.randrange(1, 60)}", "seat": seat, "passenger": person, "boarding": clock},
     ("Flight {flight} from {origin} to {destination}: {passenger}, seat {seat}, gate {gate}, boarding {boarding}.", "BOARDING PASS\n{passenger}\n{origin} - {destination}\n{flight} Gate {gate} Seat {seat} {boarding}", "{passenger} flies from {origin} to {destination} on {flight} [in|and sits in] {seat}.", "Hi {passenger}, your flight {flight} to {destination} boards at {boarding} at gate {gate}. You're in {seat}.", "We leave {origin} at gate {gate} with {flight}, next stop {destination}. {boarding} boarding, seat {seat}, {passenger}.", "{boarding} - {flight} to {destination} now boarding at {gate}", "im on {flight} from {origin}, seat {seat}, landing in {destination} tonight")),
    ({"ship": titled, "skipper": captain, "cargo": one("grain, coal, cars, timber, bananas, oil, containers, cement, sheep, coffee, steel, salt, fish, cotton, furniture"), "port": place, "tonnage": whole(100, 90000), "crew": whole(3, 90)},
     ("The {ship} under {skipper} docked at {port} with {cargo}; {tonnage} tons, crew of {crew}.", "{skipper} [steers|commands|sails] the {ship} ({crew} hands) [bound for|to] {port} carrying {cargo}.", "VESSEL {ship}. MASTER {skipper}. CARGO {cargo}. PORT {port}.", "In {port} harbour lies the {ship}, loaded with {tonnage} tons of {cargo}. A crew of {crew} serves {skipper}.", "{cargo} arrived in {port} on board the {ship}, says {skipper}.")),
    ({"traveller": person, "passport": code, "nationality": TONGUES, "visa": one("tourist, student, work, transit, business, family, none"), "expires": Draw.date},
     ("{traveller}, {nationality}, passport {passport}, {visa} visa, expires {expires}.", "Passport {passport} belongs to {traveller} ({nationality}). Visa type: {visa}. Valid [until|till|thru] {expires}.", "[The|A] {nationality} citizen {traveller} holds a {visa} visa until {expires}, passport number {passport}.", "Visa: {visa}\nHolder: {traveller}\nDoc no: {passport}\nNationality: {nationality}\nExpiry: {expires}", "I am {traveller} and my {visa} visa runs out on {expires}.")),
    ({"tour": titled, "guide": person, "price": money, "meeting_point": street, "duration": sized("h, hours, min, days", 1, 20), "language": TONGUES},
     ("{tour}, {duration}, in {language}, guide {guide}. Meet at {meeting_point}. {price} [pp|per person|each].", "{guide} leads the {tour} in {language}: {duration} for {price} euros, start at {meeting_point}.", "Join {guide} for our {language} {tour}! We meet at {meeting_point}. Costs {price}.", "For {price} you get {duration} of {tour} with {guide}.", "Tour: {tour}. Lasts {duration}. Spoken: {language}. Start: {meeting_point}.")),
    ({"bug": code, "component": slug, "severity": LEVELS, "reporter": first, "assignee": first, "version": version, "state": STATES},
     ("{bug} ({severity}) in {component} {version}, reported by {reporter}, assigned to {assignee}, {state}.", "{reporter} found a {severity} bug in {component} version {version}; {assignee} will fix it ({bug}).", "[bug tracker] {bug} | {component} | {severity} | {state} | {assignee}", "hey {assignee}, can you look at {bug}? {component} breaks on {version}. {reporter} filed it as {severity}", "Since {version} the {component} module fails. Ticket {bug} by {reporter}, now with {assignee}, status {state}, severity {severity}.", "{assignee} took over {bug} from {reporter}; it is {state}.")),
    ({"server": slug, "ip": address, "tcp_port": whole(20, 65000), "os": one("Linux, Windows, BSD, macOS, Debian, Ubuntu, Solaris, Fedora"), "ram": sized("GB,GB, GB,MB", 1, 512), "cpu": percent},
     ("{server} ({ip}:{tcp_port}) runs {os} with {ram} of memory, load {cpu}.", "host={server} ip={ip} port={tcp_port} os={os} ram={ram} cpu={cpu}", "The server {server} at {ip} listens on port {tcp_port}. OS: {os}. RAM: {ram}. CPU at {cpu}.", "ssh to {ip} port {tcp_port}; it's {server}, a {os} box with {ram}", "ALERT {server}: cpu {cpu}, memory {ram}, addr {ip}", "We moved {server} to {os} and gave it {ram}; reach it at {ip}, port {tcp_port}.")),
    ({"level": one("INFO, WARN, ERROR, DEBUG, FATAL, info, warning, error"), "service": slug, "timestamp": lambda d: f"{d.date()}T{d.rng.randrange(24):02}:{d.rng.randrange(60):02}:{d.rng.randrange(60):02}", "message": phrase, "user": lambda d: rare(d).lower(), "status_code": whole(100, 599)},
     ("{timestamp} {level} {service}: {message} user={user} status={status_code}", "{level} | {timestamp} | {service} | {message}", "({service}) {level} at {timestamp} - {message} (user {user}, code {status_code})", "{timestamp} [-|] {service} answered {status_code} to {user}: {message}", "At {timestamp} the service {service} logged \"{message}\" with level {level} and status {status_code} for user {user}.", "{user} got a {status_code} from {service}, log says {level}: {message}")),
    ({"package": slug, "version": version, "author": person, "license": one("MIT, Apache-2.0, BSD, GPL, MPL, public domain, ISC"), "downloads": whole(5, 99000), "written_in": one("Python, Rust, Go, C, Java, Ruby, Lua, Haskell, Perl, Zig, Kotlin, Scala")},
     ("{package} {version} by {author} ({license}), written in {written_in}, {downloads} downloads.", "{author} [released|published|shipped] {version} of the {written_in} library {package} under {license}.", "name: {package}\nversion: {version}\nauthor: {author}\nlicense: {license}", "{downloads} people downloaded {package}, a {written_in} package from {author}. Current version: {version}. Licence: {license}.", "new release! {package} is at {version} now, thx {author}")),
    ({"commit": lambda d: "".join(d.pick("0123456789abcdef") for _ in range(7)), "branch": slug, "author": first, "files": whole(1, 90), "date": Draw.date},
     ("{author} pushed {commit} to {branch} on {date}, {files} files changed.", "commit {commit}\nAuthor: {author}\nDate: {date}\n{files} files changed on {branch}", "On {date} {author} merged {commit} ({files} files) into {branch}.", "{branch}@{commit} {author} {date} {files} files", "[fyi|heads up], {commit} by {author} broke {branch}; it touches {files} files")),
    ({"parcel": code, "carrier": titled, "from_city": place, "to_city": place, "weight": sized("kg,kg,g,lb", 1, 90), "status": STATES, "eta": when},
     ("Parcel {parcel} with {carrier}, from {from_city} to {to_city}, {weight}, {status}, expected {eta}.", "{carrier}: your parcel {parcel} is {status}. ETA {eta}.", "{carrier} carries {parcel} ({weight}) from {from_city} to {to_city}.", "Tracking no {parcel}. Sent from {from_city}. Going to {to_city}. Weight {weight}. Status {status}. Arrives {eta}.", "yo your package {parcel} ({weight}) left {from_city} and shud be in {to_city} by {eta}", "We handed {parcel} over to {carrier} in {from_city}; it should reach {to_city} on {eta}.")),
    ({"driver": person, "truck": plate, "load": FOODS, "pallets": whole(1, 40), "depot": place, "dock": whole(1, 60)},
     ("{driver} drives {truck} with {pallets} pallets of {load} to the depot in {depot}, dock {dock}.", "Dock {dock}, {depot}: truck {truck}, {driver}, {load}, {pallets} pallets", "Truck {truck} ({driver}) [unloads|is unloading] {pallets} pallets {load} at dock {dock} in {depot}.", "{pallets} pallets of {load} for {depot}. Driver {driver}. Plate {truck}.", "{driver} called: {truck} stuck on the way to {depot}, {load} on board.")),
    ({"sku": code, "article": thing, "stock": whole(0, 9000), "warehouse": place, "shelf": lambda d: f"{d.pick('ABCDEFGH')}-{d.rng.randrange(1, 99):02}", "supplier": titled},
     ("{article} ({sku}): {stock} in stock at {warehouse}, shelf {shelf}, from {supplier}.", "sku {sku}; {article}; qty {stock}; loc {warehouse} {shelf}; vendor {supplier}", "{supplier} supplies the {article}, sku {sku}. There are {stock} left on shelf {shelf} in {warehouse}.", "In {warehouse} we keep {stock} of the {article} on shelf {shelf}.", "Inventory: {sku} {article} {stock} {shelf}", "Go to {shelf} in {warehouse} and count the {article}: I got {stock}.")),
    ({"pupil": person, "class": lambda d: f"{d.rng.randrange(1, 13)}{d.pick('ABCDE')}", "subject": SUBJECT_NAMES, "mark": lambda d: d.pick(("A", "B+", "C-", "D", "F", "A-")) if d.chance(0.5) else f"{d.rng.randrange(100)}%", "tutor": polite, "absences": whole(0, 30)},
     ("{pupil}, class {class}: {mark} in {subject}, {absences} absences. Tutor: {tutor}.", "School report\nName {pupil}\nForm {class}\n{subject}: {mark}\nDays missed: {absences}\n{tutor}", "{tutor} teaches {subject} to {class} and gave {pupil} {mark}.", "{pupil} from {class} got {mark} in {subject}, well done! {tutor}", "Dear parents, {pupil} ({class}) missed {absences} days and now has {mark} in {subject}. Regards, {tutor}", "{class} / {pupil} / {subject} / {mark}")),
    ({"thesis": titled, "candidate": person, "advisor": academic, "university": place, "degree": one("PhD, MSc, BA, MA, BSc, doctorate, MBA, MPhil"), "defended": Draw.date},
     ("{candidate} defended the thesis {thesis} at {university} on {defended}, advised by {advisor} ({degree}).", "{thesis}, {degree} thesis by {candidate}, {university}. Advisor: {advisor}.", "On {defended} the university of {university} gave {candidate} a {degree} for \"{thesis}\". Supervisor was {advisor}.", "{advisor} is proud: {candidate} got the {degree} for {thesis}.", "Candidate {candidate} - title {thesis} - {advisor} - {defended}")),
    ({"officer": officer, "suspect": person, "offence": CRIMES, "location": street, "time": clock, "badge": whole(100, 9999)},
     ("{officer} (badge {badge}) arrested {suspect} for {offence} at {location} at {time}.", "At {time}, {suspect} was [stopped|held|caught] by {officer} on {location}. Offence: {offence}.", "INCIDENT {time} {location}: {offence}. Suspect {suspect}. Attending {officer}, {badge}.", "{suspect} is suspected of {offence} at {location}; {officer} leads the case.", "Police log: {time}, {location}, {offence}, {suspect}, {officer}", "{location} residents called about {offence} at {time}. {officer} came and took {suspect} away.")),
    ({"plate": plate, "speed": whole(31, 199), "limit": lambda d: d.pick("20 30 40 50 60 70 80 90 100 120".split()), "road": street, "owner": person, "penalty": whole(20, 900)},
     ("Car {plate} of {owner} was [caught|clocked|measured] at {speed} where {limit} is allowed, {road}. Penalty {penalty}.", "{owner} drove {speed} in a {limit} zone on {road} and pays {penalty}.", "Speeding notice: plate {plate}, {speed} km/h (limit {limit}), fine {penalty}", "{road}: {plate}, owner {owner}, speed {speed}, limit {limit}", "Dear {owner}, you owe {penalty} because {plate} went {speed} on {road} (max {limit}).")),
    ({"station": place, "temperature": degrees, "humidity": percent, "wind": sized("km/h, knots, mph, m/s", 1, 120), "direction": WINDS, "sky": SKIES},
     ("{station}: {sky}, {temperature} degrees, humidity {humidity}, wind {wind} from the {direction}.", "The station in {station} reports {sky}, {temperature} C, {humidity} humidity and {wind} winds from {direction}.", "Weather in {station} today: {sky}. Temp {temperature}. Humid {humidity}. Wind {wind} {direction}.", "Here in {station} it's {temperature} degrees with {sky}, the {direction} wind blows at {wind}.", "{station} {temperature} C {humidity} {wind} {direction} {sky}", "brr, {temperature} in {station}! {sky} and {wind} wind")),
    ({"quake": decimal, "depth": sized("km, km", 1, 300), "epicentre": place, "struck": clock, "injured": whole(0, 900)},
     ("A quake of magnitude {quake} struck near {epicentre} at {struck}, {depth} deep; {injured} people were hurt.", "{epicentre} shaken: magnitude {quake}, depth {depth}, {injured} injured", "At {struck} the ground shook in {epicentre}. Magnitude {quake}, depth {depth}. Injured: {injured}.", "{injured} hurt as {quake} tremor hits {epicentre} at {struck}")),
    ({"address": street, "bedrooms": whole(1, 9), "area": sized("m2,sqm,sqft, sq ft", 20, 900), "list_price": lambda d: f"{d.number(50, 990)}000", "agent": person, "built": year, "heating": one("gas, electric, oil, wood, solar, heat pump, district")},
     ("{address}: {bedrooms} bedrooms, {area}, built {built}, {heating} heating, wants {list_price}. Call {agent}.", "{agent} sells a {bedrooms}-bedroom house at {address} ({area}) for {list_price}.", "FOR SALE {bedrooms} bed home, {address}, {area}, {heating} heating. Price {list_price}. Agent {agent}", "Lovely house of {built} with {bedrooms} bedrooms and {area} on {address}. {agent} asks {list_price}.", "Built in {built}, the home at {address} has {heating} heating and {area} of floor. Viewing through {agent}.")),
    ({"tenant": person, "flat": seat, "fault": FAULTS, "reported": when, "plumber": person, "price": money},
     ("{tenant} in flat {flat} reported {fault} on {reported}; {plumber} fixed it for {price}.", "Flat {flat} ({tenant}): {fault}, reported {reported}.", "{plumber} went to {flat} to repair {fault}. Charge: {price}. Tenant: {tenant}.", "Dear landlord, there is {fault} in my flat {flat} since {reported}. {tenant}", "{reported}: {fault} at {flat}. {tenant} waits for {plumber}, will cost {price}.")),
    ({"band": titled, "singer": person, "genre": GENRES, "venue": titled, "gig": when, "entry": money},
     ("{band} play {genre} at {venue} on {gig}, tickets {entry}. {singer} sings.", "Live on {gig}: {band} with {singer}! {genre} night at {venue}, entry {entry}.", "{singer} and {band} bring {genre} to {venue}.", "{venue}, {gig}, {band} ({genre}), {entry} euros at the door", "Got tickets for {band} at {venue} for {entry} each. {gig}. {singer} on vocals, pure {genre}.")),
    ({"musician": person, "instrument": INSTRUMENTS, "orchestra": titled, "conductor": ranked("Maestro, Mr, Ms, Prof."), "piece": titled},
     ("{musician} plays the {instrument} in the {orchestra} under {conductor}; tonight: {piece}.", "{conductor} conducts {piece} with the {orchestra}. Solo {instrument}: {musician}.", "{piece}. {orchestra}. {musician}, {instrument}. {conductor}, conductor.", "The {orchestra} hired {musician} ({instrument}) for {piece}.", "As a child {musician} chose the {instrument}; today {conductor} wants them in the {orchestra}.")),
    ({"dish": DISHES, "serves": whole(1, 20), "minutes": whole(5, 240), "cook": first, "main_ingredient": FOODS, "oven": sized("C,F, degrees", 100, 250)},
     ("{cook}'s {dish} serves {serves}, takes {minutes} minutes and needs {main_ingredient}. Oven at {oven}.", "{dish} ({serves} people, {minutes} min), main ingredient {main_ingredient}, bake at {oven}", "For {serves} people {cook} makes {dish} with {main_ingredient} in {minutes} minutes.", "Recipe by {cook}: {dish}. Heat the oven to {oven}. Add {main_ingredient}. Ready in {minutes} minutes. Feeds {serves}.", "I cooked {dish} after {cook}'s recipe, {minutes} mins, enough for {serves}.")),
    ({"ingredient": FOODS, "amount": sized(" g, cups, tsp, tbsp, ml, kg,g,ml", 1, 900), "recipe": DISHES, "chef": ranked("Chef, Mr, Aunt, Uncle, Grandma, Mrs")},
     ("{chef} puts {amount} of {ingredient} into the {recipe}.", "{recipe}: {ingredient}, {amount} (from {chef})", "You need {amount} {ingredient} for {recipe}, says {chef}.", "In {chef}'s {recipe} there is {ingredient}, about {amount}.", "Add {amount} of {ingredient}. That is how {chef} makes {recipe}.")),
    ({"table": whole(1, 60), "waiter": first, "meal": DISHES, "drink": DRINKS, "bill": money, "tip": money},
     ("Table {table}: {meal} and {drink}, bill {bill}, tip {tip}, served by {waiter}.", "{waiter} [brought|took] {meal} and a {drink} to table {table}. They paid {bill} plus a tip of {tip}.", "table {table} wants {meal} + {drink}", "The guests at {table} had {meal}, drank {drink}, paid {bill} and gave {waiter} {tip} as a tip.", "{bill} for {meal} with {drink} at table {table}, thanks {waiter}!")),
    ({"substance": GASES, "mass": sized("g,mg,kg, g", 1, 900), "melting_point": sized("C,K, C", 20, 3000), "lab": titled, "scientist": academic, "colour": one("red, blue, green, yellow, white, clear, brown, violet, pink")},
     ("{scientist} heated {mass} of {substance} at {lab}; it melted at {melting_point} and turned {colour}.", "Sample: {substance}, {mass}, {colour}, melts at {melting_point}. Lab {lab}.", "In {lab}, {scientist} works with {substance}. Its melting point is {melting_point}.", "{mass} {substance}, colour {colour} - {scientist}, {lab}")),
    ({"species": WILD, "count": whole(1, 400), "observer": person, "habitat": one("lake, pine forest, marsh, city park, beach, river bank, meadow, cliff, garden, desert, moor"), "spotted": clock},
     ("{observer} saw {count} {species} at the {habitat} at {spotted}.", "Sighting: {species} x {count}, {habitat}, {spotted}, {observer}", "At {spotted} {observer} counted {count} of the {species} in a {habitat}.", "{count} {species} near the {habitat}! greetings {observer}", "Field note. Observer {observer}. Animal {species}. Number {count}. Place {habitat}. Time {spotted}.")),
    ({"star": rare, "distance": decimal, "constellation": rare, "magnitude": decimal, "discovered": year, "astronomer": academic},
     ("{star} in the constellation {constellation} is {distance} light years away, magnitude {magnitude}, found in {discovered} by {astronomer}.", "{astronomer} discovered {star} in {discovered}. Distance {distance} ly.", "{star} ({constellation}): brightness {magnitude}, distance {distance}", "In {discovered}, {astronomer} pointed the telescope at {constellation} and saw {star}.")),
    ({"candidate": person, "party": PARTIES, "votes": whole(10, 90000), "share": percent, "district": place, "turnout": percent},
     ("{candidate} ({party}) won {district} with {votes} votes, {share}, at a turnout of {turnout}.", "{district}: {candidate}, {party}, {votes} votes ({share})", "The {party} take {district}: {candidate} gets {share} of the vote.", "With {votes} votes {candidate} of the {party} goes to parliament for {district}. Turnout was {turnout}.", "ELECTION NIGHT {district}. {candidate}, {party}. {votes} votes. Turnout {turnout}.")),
    ({"motion": titled, "sponsor": ranked("Senator, Sen., Rep., MP, Minister, Councillor, Governor, Lady, Lord"), "ayes": whole(1, 400), "noes": whole(1, 400), "chamber": one("Senate, House, Commons, council, parliament, assembly, upper house"), "outcome": one("passed, failed, tabled, vetoed, withdrawn, rejected, adopted")},
     ("The {chamber} voted on {motion} by {sponsor}: {ayes} for, {noes} against, {outcome}.", "{motion} {outcome} in the {chamber}, {ayes} ayes and {noes} noes.", "{sponsor} brought {motion} to the {chamber}. It was {outcome}.", "{ayes} in favour, {noes} opposed: {motion} is {outcome}, {sponsor} said.")),
    ({"mayor": polite, "town": place, "inhabitants": whole(100, 90000), "elected": year, "budget": sized("m, million,k", 1, 900), "party": PARTIES},
     ("{mayor} ({party}) has been mayor of {town} since {elected}; {inhabitants} inhabitants, budget {budget}.", "{town} has {inhabitants} inhabitants. Mayor: {mayor}, {party}.", "In {elected} {town} elected {mayor} of the {party}.", "With a budget of {budget}, {town} ({inhabitants} souls) is run by {mayor}.")),
    ({"hero": rare, "class": CLASSES, "level": whole(1, 99), "weapon": WEAPONS, "hp": whole(5, 999), "guild": titled},
     ("{hero} is a level {level} {class} with a {weapon} and {hp} HP, guild {guild}.", "{hero} [{class}] lvl {level} hp {hp} {weapon} <{guild}>", "The {class} {hero} of {guild} swings a {weapon}. Level {level}, health {hp}.", "lf group: {class} lv {level}, {weapon}, ask {hero}", "{guild} welcomes {hero}, a {class} who fights with a {weapon} ({hp} hit points).")),
    ({"gamer": lambda d: f"{rare(d)}{d.rng.randrange(100)}" if d.chance(0.6) else rare(d).lower(), "high_score": whole(10, 99000), "game": titled, "platform": one("PC, console, phone, tablet, arcade, handheld"), "hours": whole(1, 900), "rank": whole(1, 500)},
     ("{gamer} scored {high_score} in {game} on {platform} after {hours} hours, rank {rank}.", "#{rank} {gamer} {high_score} ({game}, {platform})", "{gamer} spent {hours} hours in {game} and is ranked {rank} now.", "New record in {game}! {gamer} got {high_score} points on {platform}.", "omg {gamer} is rank {rank} in {game}, played {hours}h on {platform}")),
    ({"white": person, "black": person, "opening": titled, "moves": whole(8, 120), "outcome": one("1-0, 0-1, draw, white wins, black wins, stalemate"), "round": whole(1, 15)},
     ("Round {round}: {white} (white) against {black} (black), {opening}, {outcome} after {moves} moves.", "White: {white}. Black: {black}. Opening: {opening}. {moves} moves. Result {outcome}.", "{white} had white, {black} had black, and they played the {opening}: {outcome}.", "In round {round} the white pieces were with {white}, the black ones with {black}. {moves} moves, {outcome}.")),
    ({"novel": titled, "author": person, "publisher": titled, "pages": whole(40, 1200), "isbn": lambda d: f"{d.digits(3)}-{d.digits(1)}-{d.digits(5)}", "genre": GENRES, "published": year},
     ("{novel} by {author}, {publisher} {published}, {pages} pages, ISBN {isbn}, {genre}.", "{author} wrote the {genre} {novel}, which {publisher} published in {published}.", "\"{novel}\" ({published}) - {author} - {pages} pp. - {publisher}", "The {genre} novel {novel} has {pages} pages and comes from {author}.", "currently reading {novel} by {author}, {pages} pages, so good", "ISBN {isbn}: {author}, {novel}. {publisher}, {published}.")),
    ({"reader": person, "book": titled, "borrowed": Draw.date, "return_by": Draw.date, "card": whole(1000, 99999), "fine": money},
     ("{reader} (card {card}) borrowed {book} on {borrowed}; it is due {return_by}.", "Library: {book}, due back {return_by}. Card {card}, {reader}. Fine so far {fine}.", "On {borrowed} {reader} took {book} home, to be returned by {return_by}.", "Dear {reader}, {book} was due on {return_by}. You owe {fine}.", "card {card}: {book}, out {borrowed}, back {return_by}")),
    ({"painting": titled, "painter": person, "style": STYLES, "painted": year, "museum": titled, "value": sized("m, million,k", 1, 900)},
     ("{painting} was painted by {painter} in {painted}, hangs in {museum} and is worth {value}. Style: {style}.", "{painter}: {painting}, {painted}, {style}, {museum}", "The {museum} shows {painting}, a work of {style} by {painter}.", "A {painter} from {painted} called {painting} went for {value}.", "{style} at its best: {painting} by {painter}, seen at {museum}.")),
    ({"exhibit": thing, "material": MATERIALS, "century": lambda d: f"{d.rng.randrange(4, 21)}th", "found_in": place, "curator": academic, "case": whole(1, 90)},
     ("Case {case}: {exhibit} of {material}, {century} century, found in {found_in}.", "{curator} explains the {exhibit}, made of {material} in the {century} century.", "The {material} {exhibit} from {found_in} is in case {case}, curator {curator}.", "A {exhibit} ({material}) was dug up in {found_in}, {century} century, {curator} says.")),
    ({"garment": GARMENTS, "size": SIZES, "fabric": FABRICS, "colour": lambda d: d.mixed(COLOURS), "price": money, "brand": rare},
     ("{brand} {garment} in {colour}, size {size}, {fabric}, {price} euros.", "A {colour} {garment} made of {fabric}, size {size}, by {brand}, now {price}.", "{garment} / {size} / {colour} / {fabric} / {price}", "selling my {colour} {brand} {garment}, fits {size}, {fabric}, wants {price}", "The {brand} {garment} costs {price} and comes in {colour} {fabric}. I take {size}.", "Do you have the {garment} in {size} and {colour}? It was {price} at {brand}.")),
    ({"gem": GEMS, "carat": decimal, "jeweller": person, "appraisal": whole(50, 99000), "metal": one("gold, silver, platinum, white gold, brass, copper, steel"), "client": polite},
     ("{jeweller} set a {gem} of {carat} carat in {metal} for {client}, appraisal {appraisal}.", "Ring in {metal}, {gem}, {carat} ct. Appraised at {appraisal} by {jeweller}.", "{client} owns a {carat} carat {gem}; {jeweller} says it is worth {appraisal}.", "{gem} ({carat} ct) in {metal} for {client}")),
    ({"policy": code, "holder": person, "damage": DAMAGES, "claim": money, "insurer": titled, "happened": when},
     ("{holder} (policy {policy}, {insurer}) claims {claim} for {damage} on {happened}.", "Claim under {policy}: {damage}, {happened}, {claim}. Insured: {holder}", "{insurer} paid {holder} {claim} for {damage}.", "On {happened} {holder} had {damage} and told {insurer}, policy no. {policy}.", "To {insurer}: my policy is {policy}, I had {damage}, please pay {claim}. {holder}")),
    ({"borrower": person, "loan": whole(500, 99000), "interest": lambda d: f"{d.rng.randrange(10)}.{d.rng.randrange(1, 10)}%", "bank": titled, "months": whole(6, 360), "guarantor": person},
     ("{borrower} borrowed {loan} from {bank} at {interest} for {months} months, guarantor {guarantor}.", "{bank} lends {borrower} {loan}, rate {interest}, term {months} months.", "Loan of {loan} / {interest} / {months} months / {borrower} / {bank}", "{guarantor} stands surety for {borrower}, who owes {bank} {loan}.", "A credit of {loan} over {months} months: {bank} takes {interest} from {borrower}.")),
    ({"invoice": code, "vendor": titled, "total": money, "tax": percent, "due": Draw.date, "currency": one("EUR, USD, GBP, CHF, JPY, SEK, euros, dollars, pounds, yen, rupees, pesos")},
     ("Invoice {invoice} from {vendor}: {total} {currency} incl. {tax} tax, due {due}.", "{vendor} bills us {total} {currency} ({invoice}), pay by {due}.", "INVOICE NO {invoice}\n{vendor}\nTOTAL {total} {currency}\nVAT {tax}\nDUE {due}", "Please settle {invoice} of {vendor} before {due}; the sum is {total} {currency}, tax {tax} included.", "Reminder: {total} {currency} to {vendor} is overdue since {due}. Ref {invoice}")),
    ({"ticker": lambda d: "".join(d.pick("ABCDEFGHIKLMNOPRSTUVXZ") for _ in range(d.pick((2, 3, 4)))), "close": decimal, "change": lambda d: f"{d.pick('+-')}{d.rng.randrange(1, 20)}.{d.rng.randrange(1, 10)}%", "volume": sized("k,m, million,M", 1, 900), "ceo": person, "sector": one("energy, banking, retail, steel, chips, food, media, transport, health, mining, telecom")},
     ("{ticker} closed at {close} ({change}), volume {volume}.", "{sector} stock {ticker}, led by {ceo}, moved {change} to {close}.", "{ceo} runs {ticker}, a {sector} company. Shares at {close}, change {change}.", "{ticker} {close} {change} {volume}", "Markets: {ticker} ({sector}) ended the day at {close} as {volume} shares traded hands.")),
    ({"applicant": person, "position": POSTS, "experience": whole(1, 40), "salary": whole(900, 99000), "interviewer": first, "starts": when},
     ("{applicant} applied as {position}, {experience} years of experience, wants {salary}; interview with {interviewer}.", "Job offer: {position}, start {starts}, salary {salary}, to {applicant}", "{interviewer} interviewed {applicant} for the post of {position} ({experience} yrs exp).", "Dear {applicant}, we offer you {salary} a year as {position} from {starts}. {interviewer}, HR", "I'm {applicant}, {experience} years in the field, I want to be your {position}.", "We hired {applicant} as {position}; {starts} is the first day.")),
    ({"worker": person, "role": POSTS, "shift": SHIFTS, "site": place, "hours": whole(1, 60), "wage": decimal},
     ("{worker}, {role}, {shift} shift at {site}, {hours} hours at {wage}.", "{worker} works the {shift} shift in {site} as {role} for {wage} an hour.", "Timesheet {worker} ({role}): {hours} hrs, {shift}, {site}", "The {role} {worker} did {hours} hours on the {shift} shift. Hourly pay {wage}.", "rota: {site} {shift} {worker}")),
    ({"task": phrase, "owner": first, "priority": LEVELS, "deadline": when, "status": STATES, "project": titled},
     ("{owner} must do {task} for {project} by {deadline}, priority {priority}, status {status}.", "TODO {task} @{owner} !{priority} due:{deadline}", "{project} update: {task} is {status}. {owner} owns it. Deadline {deadline}.", "{owner}, {task} is {priority} and has to be finished by {deadline} pls", "Task: {task}\nWho: {owner}\nWhen: {deadline}\nState: {status}", "{task} ({project}) is now {status}, says {owner}.")),
    ({"bride": person, "groom": person, "wedding": when, "church": titled, "guests": whole(10, 400), "caterer": titled},
     ("{bride} marries {groom} on {wedding} at {church}, {guests} guests, food by {caterer}.", "The bride {bride} and the groom {groom} invite you to {church} on {wedding}.", "Groom: {groom}. Bride: {bride}. Date: {wedding}. {guests} guests.", "{caterer} cooks for {guests} guests when bride {bride} and groom {groom} wed at {church}.", "On {wedding} {groom} takes {bride} as his wife at {church}.")),
    ({"child": first, "birthday": day_month, "turning": whole(1, 18), "gift": thing, "mother": person, "cake": FLAVOURS},
     ("{child} is turning {turning} on {birthday} and wants a {gift}; {mother} bakes a {cake} cake.", "Birthday party for {child} ({turning}), {birthday}, {cake} cake, present: {gift}", "{mother}'s child {child} will be {turning} on {birthday}.", "Come to {child}'s party on {birthday}! There is {cake} cake. Idea for a gift: {gift}. RSVP {mother}", "my mum {mother} made {cake} cake bc im {turning} now! got a {gift}! love, {child}")),
    ({"sender": person, "recipient": person, "subject": phrase, "sent": Draw.date, "attachment": lambda d: f"{d.word()}.{d.pick(('pdf', 'docx', 'png', 'zip', 'xlsx', 'csv'))}"},
     ("From: {sender}\nTo: {recipient}\nSubject: {subject}\nDate: {sent}\nAttached: {attachment}", "{sender} mailed {recipient} about {subject} on {sent} with {attachment}.", "On {sent} {recipient} got a mail from {sender}, subject {subject}, file {attachment}.", "Hi {recipient}, see {attachment} about {subject}. Cheers, {sender}", "{sender} wrote to {recipient}. It was about {subject}.")),
    ({"customer": polite, "complaint": phrase, "product": thing, "bought": when, "refund": money, "clerk": first},
     ("{customer} complained to {clerk} about {complaint} with the {product} bought on {bought}; refund {refund}.", "{clerk} gave {customer} {refund} back for the {product}.", "Complaint: {customer} / {product} / {complaint} / {bought}", "I bought a {product} on {bought} and there is {complaint}! I want {refund} back!! {customer}", "Dear {customer}, we are sorry for the trouble ({complaint}) with your {product}. You will get {refund}. {clerk}, customer care")),
    ({"restaurant": titled, "reservation": clock, "party_size": whole(1, 20), "booked_by": person, "occasion": one("birthday, anniversary, business lunch, first date, farewell, reunion, graduation, wedding"), "contact": phone},
     ("{booked_by} reserved a table for {party_size} at {restaurant} at {reservation}, {occasion}, contact {contact}.", "{restaurant}: {reservation}, {party_size} persons, name {booked_by}, tel {contact}", "Table for {party_size} please, {reservation}, it's a {occasion}. {booked_by}, {contact}", "At {reservation} {party_size} people come to {restaurant} for a {occasion}; {booked_by} called from {contact}.", "booked {restaurant} for {reservation}, {party_size} of us")),
    ({"line": lambda d: d.pick((d.code(), f"{d.rng.randrange(1, 99)}", f"M{d.rng.randrange(1, 20)}")), "vehicle": VEHICLES, "stop": place, "every": whole(2, 60), "first": clock, "last": clock},
     ("Line {line}: {vehicle} every {every} minutes at {stop}, first {first}, last {last}.", "The {vehicle} {line} stops at {stop}; the first is at {first} and the last at {last}.", "{stop}: {vehicle} {line}, every {every} min", "Take the {vehicle} {line} from {stop}. It comes every {every} minutes. The last one goes at {last}.")),
    ({"accident": street, "vehicle": VEHICLES, "injured": whole(0, 40), "cause": CAUSES, "reported_by": officer, "hour": clock},
     ("A {vehicle} crashed on {accident} at {hour}; {injured} injured, cause: {cause}, {reported_by} reports.", "{reported_by}: {vehicle} crash, {accident}, {hour}, due to {cause}", "Because of {cause}, a {vehicle} left the road at {accident}. {injured} people were hurt.", "{injured} HURT AS {vehicle} CRASHES ON {accident}", "{hour}, {accident}: {vehicle} accident. {cause} is to blame, {reported_by} said.")),
    ({"fire": titled, "brigade": titled, "chief": officer, "trucks": whole(1, 30), "cause": CAUSES, "loss": sized("k,m, million, euros", 1, 900)},
     ("{brigade} fought a fire at {fire} with {trucks} trucks, led by {chief}; cause {cause}, loss {loss}.", "Fire at {fire}! {trucks} trucks of {brigade} on scene.", "{chief} of {brigade} says {cause} started the blaze at {fire}. Damage: {loss}.", "{fire} burnt down because of {cause}. It cost {loss}.")),
    ({"river": rare, "level": decimal, "bridge": titled, "gauge": code, "trend": one("rising, falling, steady, unchanged"), "warning": one("none, yellow, orange, red, green")},
     ("The {river} stands at {level} m at {bridge} (gauge {gauge}), {trend}, warning {warning}.", "{gauge} {river} {level} {trend}", "Flood info: {river}, bridge {bridge}, level {level}, trend {trend}, alert {warning}.", "At {bridge} the {river} is {trend}; gauge {gauge} shows {level} metres.")),
    ({"mountain": rare, "altitude": whole(300, 8900), "climber": person, "route": titled, "hut": titled, "summit": when},
     ("{climber} climbed {mountain} ({altitude} m) by the {route} route on {summit} and slept at {hut}.", "{mountain}, {altitude} metres. Route: {route}. Hut: {hut}.", "On {summit} {climber} stood on top of {mountain} at {altitude} m.", "{hut} hut: {climber} left for {mountain} via {route}")),
    ({"trail": titled, "length_km": decimal, "difficulty": one("easy, moderate, hard, expert, black, blue, red"), "surface": SURFACES, "ascent": sized("m, m", 20, 2000), "open_from": one("April, May, June, March, July, spring, summer")},
     ("The {trail} trail is {length_km} km long, {difficulty}, on {surface}, ascent {ascent}, open from {open_from}.", "{trail}: {length_km} km, {difficulty}, {ascent} up", "Hike {trail}! {difficulty}, {surface}, {length_km} km. Opens in {open_from}.", "From {open_from} on you can walk {trail}, {length_km} km of {surface}. You climb {ascent}.")),
    ({"racer": person, "car": rare, "circuit": titled, "lap": lambda d: f"{d.rng.randrange(1, 3)}:{d.rng.randrange(10, 60)}.{d.rng.randrange(100, 999)}", "grid": whole(1, 24), "points": whole(0, 400)},
     ("{racer} ({car}) drove a {lap} lap at {circuit}, starts from grid {grid} and has {points} points.", "P{grid} {racer} {car} {lap}", "{circuit} qualifying: {racer}, {car}, {lap}", "With {points} points {racer} leads the season; the {car} did {lap} at {circuit}.")),
    ({"boxer": person, "weight_class": one("heavyweight, flyweight, middleweight, lightweight, welterweight, bantamweight, featherweight"), "wins": whole(0, 60), "losses": whole(0, 30), "trainer": person, "gym": titled},
     ("{boxer}, {weight_class}, {wins} wins and {losses} losses, trained by {trainer} at {gym}.", "{weight_class} {boxer} ({wins} won, {losses} lost) boxes for {gym}.", "{trainer} trains {boxer} at {gym}. Record: {wins} wins, {losses} losses.")),
    ({"volunteer": person, "charity": titled, "donation": money, "cause": one("clean water, homeless cats, flood victims, cancer research, school meals, tree planting, refugees, blind people, old trains"), "hours": whole(1, 90), "hobby": HOBBIES},
     ("{volunteer} gave {donation} to {charity} for {cause} and {hours} hours of work. Hobby: {hobby}.", "{charity} helps with {cause}; {volunteer} donated {donation}.", "Thank you {volunteer} for {donation} towards {cause}! {charity}", "{volunteer} likes {hobby} and volunteers {hours} hours at {charity}.")),
    ({"diarist": first, "mood": FEELINGS, "slept": decimal, "steps": whole(100, 30000), "breakfast": DISHES, "date": Draw.date},
     ("{date}: {diarist} feels {mood}, slept {slept} hours, {steps} steps, ate {breakfast}.", "Dear diary, today ({date}) I am {mood}. Had {breakfast}, walked {steps} steps, slept {slept} h. {diarist}", "{diarist} was {mood} on {date} after {slept} hours of sleep.", "mood {mood}, steps {steps}, sleep {slept}, breakfast {breakfast}")),
    ({"factory": place, "machine": code, "output": whole(10, 9000), "defects": whole(0, 90), "material": MATERIALS, "operator": person},
     ("Machine {machine} in {factory}, run by {operator}, made {output} parts of {material}, {defects} defects.", "{factory} {machine}: {output} pcs, {defects} bad, {material}", "{operator} reports: {output} {material} parts from {machine}, {defects} of them faulty.", "The plant in {factory} uses {material}; on {machine} there were {defects} defects today.")),
    ({"builder": person, "structure": one("bridge, school, tower, barn, tunnel, dam, stadium, garage, chapel, pier, hospital, silo, wall, cottage"), "material": MATERIALS, "completed": year, "architect": person, "cost": sized("m, million,k, euros", 1, 900)},
     ("{builder} built the {structure} of {material}, designed by {architect}, finished in {completed} for {cost}.", "A {material} {structure}: architect {architect}, contractor {builder}, done {completed}, {cost}", "{architect} drew the {structure}; {builder} completed it in {completed}.", "The {structure} cost {cost} and is made of {material}.")),
    ({"channel": titled, "programme": titled, "airs": clock, "host": person, "viewers": sized("k,m, million", 1, 90), "genre": GENRES},
     ("{programme} with {host} airs at {airs} on {channel}, {viewers} viewers, {genre}.", "{airs} {channel} {programme} ({genre})", "{host} presents {programme} on {channel} at {airs}.", "On {channel} tonight: {programme}, {airs}. {viewers} watched last time.", "{viewers} people watched {host} in {programme}.")),
    ({"podcast": titled, "episode": whole(1, 500), "host": person, "guest": person, "topic": phrase, "runtime": sized("min, minutes, mins", 5, 180)},
     ("{podcast} episode {episode}: host {host} talks with guest {guest} about {topic}, {runtime}.", "Ep. {episode} of {podcast}, {runtime}. Guest: {guest}. Topic: {topic}. Host: {host}.", "In episode {episode} of {podcast}, {guest} is the guest and explains {topic}.", "{host}'s {podcast} #{episode} - {topic} ({runtime})")),
    ({"handle": lambda d: f"@{rare(d).lower()}", "followers": whole(1, 99000), "likes": whole(0, 9000), "posted": clock, "hashtag": lambda d: f"#{d.word()}", "caption": phrase},
     ("{handle}: {caption} {hashtag} - {likes} likes, {posted}", "{handle} ({followers} followers) posted \"{caption}\" at {posted} with {hashtag}; {likes} likes.", "{likes} people like {handle}'s post {hashtag}.", "At {posted} {handle} wrote {caption} {hashtag}")),
    ({"city": place, "latitude": decimal, "longitude": decimal, "elevation": whole(1, 4000), "zip": lambda d: d.digits(5), "county": rare},
     ("{city}, {county} county, zip {zip}, latitude {latitude}, longitude {longitude}, {elevation} m above the sea.", "{city}: lat {latitude}, lon {longitude}, elev {elevation}", "The town of {city} lies in {county} at {elevation} metres. Postcode {zip}.", "{zip} {city} ({county})")),
    ({"device": thing, "battery": percent, "serial": code, "firmware": version, "room": one("kitchen, hall, bedroom, cellar, attic, office, garage, bathroom, porch, nursery, den"), "online": one("yes, no")},
     ("{device} in the {room}: battery {battery}, serial {serial}, firmware {firmware}, online {online}.", "The {room} {device} has {battery} left and runs {firmware}.", "{device} s/n {serial} fw {firmware} bat {battery}", "Device {device}, room {room}, online: {online}.")),
    ({"phone_model": rare, "storage": sized("GB,TB, GB", 1, 900), "screen": sized(" inch,in", 4, 32), "colour": lambda d: d.mixed(COLOURS), "price": money, "warranty": sized(" months, years", 1, 36)},
     ("The {phone_model} in {colour} with {storage} and a {screen} display costs {price}, warranty {warranty}.", "{phone_model} {storage} {colour} {price}", "{price} for a {colour} {phone_model}? It has {storage} storage and {warranty} warranty.", "Display {screen}, memory {storage}, colour {colour}: the new {phone_model}.")),
    ({"mechanic": first, "car": rare, "repair": one("new brakes, oil change, tyre swap, new clutch, exhaust repair, respray, battery swap, wheel alignment, new windscreen, spark plugs"), "registration": plate, "cost": money, "pickup": when},
     ("{mechanic} does {repair} on the {car} {registration}, cost {cost}, pickup {pickup}.", "Your {car} ({registration}) is ready on {pickup}: {repair}, {cost} euros. {mechanic}", "{registration} {car}: {repair} - {cost}", "{repair} for a {car}, that's {cost}, collect it {pickup}, ask for {mechanic}.")),
    ({"donor": person, "organ": one("kidney, liver, heart, lung, cornea, bone marrow, pancreas, skin"), "surgeon": doctor, "hospital": titled, "operation": when, "theatre": whole(1, 12)},
     ("{surgeon} operates at {hospital}, theatre {theatre}, on {operation}: {organ} from {donor}.", "{donor} gave a {organ}; surgery by {surgeon} on {operation}", "{hospital}: {organ} transplant, {operation}, surgeon {surgeon}", "The {organ} of {donor} was used at {hospital} by {surgeon}.")),
    ({"dog": first, "vet": doctor, "breed": BREEDS, "vaccine": one("rabies, distemper, parvo, hepatitis, kennel cough, leptospirosis"), "next_visit": Draw.date, "chip": code},
     ("{vet} gave {dog}, a {breed}, the {vaccine} shot; chip {chip}, next visit {next_visit}.", "{dog} ({breed}) - {vaccine} done - back on {next_visit} - {vet}", "Vet card: {dog}, {breed}, chip no. {chip}.", "My {breed} {dog} saw {vet} for {vaccine}.", "{next_visit}: bring {dog} back to {vet}.")),
    ({"astronaut": captain, "mission": titled, "launch": Draw.date, "rocket": rare, "days_in_space": whole(1, 400), "agency": titled},
     ("{astronaut} flies {mission} on a {rocket} rocket, launch {launch}, {days_in_space} days, for {agency}.", "{agency} sends {astronaut} to space on {launch}.", "{mission}: crew {astronaut}, rocket {rocket}, liftoff {launch}", "After {days_in_space} days {astronaut} came home from {mission}.")),
    ({"soldier": ranked("Pvt., Sgt., Cpl., Maj., Col., Gen., Lt., Major, Colonel, Private"), "regiment": titled, "base": place, "enlisted": year, "award": one("Silver Star, Iron Cross, Purple Heart, medal of honour, service medal, none"), "battle": titled},
     ("{soldier} of the {regiment}, based in {base}, enlisted {enlisted}, fought at {battle}, award: {award}.", "{soldier} joined the {regiment} in {enlisted}.", "For {battle}, {soldier} received the {award}. Base: {base}.", "At {battle} the {regiment} lost {soldier}.")),
    ({"king": ranked("King, Queen, Emperor, Duke, Empress, Sultan, Prince, Tsar"), "realm": place, "crowned": year, "died": year, "heir": rare, "castle": titled},
     ("{king} of {realm} was crowned in {crowned}, lived at {castle} and died in {died}; the heir was {heir}.", "{realm}: {king} ({crowned}-{died}), then {heir}", "Crowned in {crowned}, {king} ruled {realm} from {castle}.", "When {king} died in {died}, {heir} got {realm}.")),
    ({"company": titled, "founder": person, "industry": one("software, shoes, toys, banking, bread, bikes, drones, shipping, furniture, games, solar power, coffee, films"), "employees": whole(1, 90000), "headquarters": place, "revenue": sized("m, million, billion,k", 1, 900)},
     ("{company}, founded by {founder}, makes {industry} in {headquarters} with {employees} employees and earns {revenue}.", "{company} ({headquarters}): {employees} staff, revenue {revenue}", "{founder} started {company} in {headquarters}; it is in {industry}.", "With {employees} people and sales of {revenue}, {company} is big in {industry}.", "{headquarters}-based {industry} firm {company} was set up by {founder}.")),
    ({"speaker": academic, "talk": titled, "hall": whole(1, 20), "slot": clock, "affiliation": place, "audience": whole(5, 900)},
     ("{speaker} from {affiliation} gives the talk {talk} in hall {hall} at {slot}, audience {audience}.", "{slot} Hall {hall}: {talk} ({speaker}, {affiliation})", "{audience} people heard {speaker} speak on {talk}.", "Next up at {slot}: {speaker} with \"{talk}\" in hall {hall}.")),
    ({"locker": whole(1, 900), "student_id": code, "holder": person, "floor": whole(1, 12), "building": titled, "key_no": code},
     ("Locker {locker}, floor {floor}, {building}: {holder} (id {student_id}), key {key_no}.", "{holder} has locker {locker} on floor {floor} of {building}.", "key {key_no} opens locker {locker}, held by {holder}", "Student {student_id} ({holder}) lost key {key_no}.")),
    ({"lost_item": thing, "found_at": place, "finder": person, "reward": money, "colour": lambda d: d.mixed(COLOURS), "mobile": phone},
     ("LOST: {colour} {lost_item}, near {found_at}. Reward {reward}. Call {mobile}.", "{finder} found a {colour} {lost_item} at {found_at}; reach {finder} on {mobile}.", "I lost my {lost_item} ({colour}) in {found_at}, {reward} for whoever brings it. {mobile}", "Found by {finder} in {found_at}: one {lost_item}.")),
    ({"beekeeper": person, "hives": whole(1, 200), "honey": sized("kg, kg, jars", 1, 900), "flower": one("clover, linden, heather, lavender, acacia, rape, thyme, chestnut"), "queen": code},
     ("{beekeeper} has {hives} hives and made {honey} of {flower} honey; queen {queen}.", "{hives} hives, {honey} honey from {flower}, keeper {beekeeper}", "Queen {queen} lives in one of the {hives} hives of {beekeeper}.", "This summer the {flower} gave {beekeeper} {honey}.")),
    ({"dive": whole(1, 900), "diver": person, "reef": titled, "deepest": sized("m, m, ft", 5, 90), "buddy": first, "visibility": sized("m, m", 1, 40), "seen": WILD},
     ("Dive {dive}: {diver} with buddy {buddy} at {reef}, {deepest} deep, visibility {visibility}, saw a {seen}.", "{diver} dived to {deepest} at {reef}. Buddy {buddy}.", "log no {dive} / {reef} / {deepest} / vis {visibility}", "At {reef} {diver} met a {seen} at {deepest}.")),
    ({"customer": person, "cut": one("bob, fringe, perm, buzz cut, trim, braids, highlights, shave, blow-dry, undercut"), "stylist": first, "slot": clock, "price": money, "next": when},
     ("{stylist} gives {customer} a {cut} at {slot}, {price} euros, next on {next}.", "{slot} {customer} - {cut} - {stylist}", "{customer} wants a {cut} with {stylist} at {slot}.", "Salon note: {customer}, {cut}, paid {price}, again {next}.", "A {cut} for {customer} at {slot}, that makes {price}.")),
    ({"drink": DRINKS, "size": SIZES, "milk": one("oat, soy, whole, almond, skimmed, none, coconut"), "name": first, "extra": one("cinnamon, extra shot, caramel, no sugar, whipped cream, ice, honey, vanilla"), "price": money},
     ("One {size} {drink} with {milk} milk and {extra} for {name}, {price}.", "{name}: {drink}, {size}, {milk} milk, {extra}", "Can I get a {drink}, {size}, {milk} milk? Name's {name}.", "{name} paid {price} for a {size} {drink} ({extra}).")),
    ({"cyclist": person, "stage": whole(1, 21), "team": titled, "gap": lambda d: f"+{d.rng.randrange(60)}:{d.rng.randrange(60):02}", "jersey": one("yellow, green, white, polka dot, pink, red"), "finish": place},
     ("Stage {stage} to {finish}: {cyclist} ({team}) {gap}, {jersey} jersey.", "{cyclist} of {team} wears the {jersey} jersey after stage {stage} in {finish}.", "{team}'s {cyclist} came in {gap} behind at {finish}.")),
    ({"prisoner": person, "cell": seat, "sentence": sized(" years, months,y", 1, 40), "crime": CRIMES, "warden": officer, "release": Draw.date},
     ("{prisoner} is in cell {cell} for {crime}, sentence {sentence}, release {release}, warden {warden}.", "{warden} guards {prisoner} (cell {cell}).", "{prisoner} got {sentence} for {crime} and goes free on {release}.", "Cell {cell}: {prisoner}, {crime}, out {release}")),
    ({"site": titled, "username": lambda d: f"{rare(d).lower()}{d.rng.randrange(100)}", "plan": one("free, basic, pro, gold, family, student, premium, business"), "joined": Draw.date, "referrer": first, "password_hint": thing},
     ("{username} joined {site} on {joined} with the {plan} plan, invited by {referrer}.", "Account {username} at {site}, plan {plan}, hint: {password_hint}", "{referrer} sent {username} to {site}; the plan is {plan}.", "Welcome to {site}, {username}! Plan: {plan}. Member since {joined}.")),
)  # fmt: skip
WISHES = (
    "[Extract|Get|Take|Read|Find|Collect|Return|List|Give|Show|Write|Output|Produce] [the |][fields |values |keys |]{f} [as|in|in the form of] [JSON|a JSON object|json] [from|of|out of|for] [this|the] [text|note|line|mail|sentence|document]:{g}{t}",
    "[Make|Build|Create|Write] [JSON|a JSON object|json] [with|from|of|holding|that has] [the fields |the keys |]{f}[.|:]{g}{t}", "[JSON|Json|json] [with|of|for] {f}:{g}{t}", "{t}\n\n[Extract|Get|Return|Write|List] {f} [as|in] JSON[.|:|]",
    "{t}\n[As JSON, with|JSON with|Now JSON of|To JSON, fields:] {f}[.|]", "[Text|Note|Mail|Document|Message|Record]: {t}\n[Fields|Keys|Wanted|Columns]: {f}\n[JSON|Output|Answer|Object]:", "[Fields|Keys|Properties]: {f}.\n[Text|Note|Source|Content]: {t}",
    "[What is|Tell me|Find|Which are] the {f}[?| in this?| here?] [Answer|Write|Respond] [with|in|as] JSON[.|:]{g}{t}", "[Schema|JSON schema|Format|Form|Shape]: {s}\n[Text|Content|Source|Document]: {t}", "[Use|Follow|Complete|Apply] [this|the] [schema|form|format|template][:|] {s}{g}{t}",
    "{t}{g}[Answer|Reply|Respond] [in|with] JSON [like|of the form|after the schema] {s}[.|]", "[Extract|Get|Find] {f} [as|into] JSON.{g}{t}", "[I need|We want|I want|Please give me] {f} as JSON.{g}{t}", "[Structure|Sort|Put|Transform] [this|the text|it] [into|as] JSON ({f}){g}{t}",
    "[Turn|Convert|Change|Parse|Make|Rewrite] [the following|this|what follows|the next line|the message below] [into|to] [JSON|a JSON object] [with|having|containing] [just |only |exactly |] {f}.{g}{t}", "[pls|plz|please] [get|grab|pull] {f} [as|in] json{g}{t}", "{f} -> JSON{g}{t}", "{f} [as|in] [json|JSON] [pls|please|thx|thanks|]{g}{t}", "[json only|JSON only|Only JSON|Just JSON|Nothing but JSON][,|:|;] {f}{g}{t}", "[Hello|Hi|Good morning|Dear assistant], [could|would] you [kindly |please |] [pull out|pick out|fish out|take down|note] {f} as JSON? [Thanks.|Many thanks.|Here it is:|The text:|]{g}{t}",
    "I would be grateful if you could [return|supply|provide] {f} in JSON [format|form|notation].{g}{t}", "[Kindly|Please] [provide|supply|furnish|prepare] a JSON object [listing|stating|giving] {f} [on the basis of|based on|according to|from] the [following|attached|enclosed|quoted] [text|passage|message|entry].{g}{t}", "GIVE ME {f} AS JSON{g}{t}", "NEED JSON: {f}{g}{t}", "[Below is|Here is|Here's|This is] [a|the|some] [text|note|message|entry|mail]. [Return|Give|Write|I want] {f} as JSON.{g}{t}", "[What|Which] {f} [does|do] [this|the text|the note|it] [mention|name|state|give|contain]? [JSON please.|As JSON.|Reply in JSON.|Only JSON.]{g}{t}",
    "{t}\n\n[From|Out of|Based on] [this|the above|the text above|that], [give|return|write|build|make] [JSON|a JSON object] [with|of|for] {f}[.|]", "{t}\n---\n[Extract|Take|JSON|Return|Need]: {f}[ (JSON)| as JSON|, json|]", "{t}\n\n{f}[?|.|:|] [JSON.|as json|In JSON, please.|json pls]", "{t} => JSON [with|of|] {f}", "{t}\n\n[So|Now|OK|Right], [what are|list|tell me] the {f}[?|.] [Use JSON.|JSON form.|As a JSON object.]", "[Read|Look at|Consider|See] [this|the text|the following] [and|then] [give|write|return|report|output] [JSON|a JSON object|the JSON] [with|of|for] {f}[.|:]{g}{t}", "\"{t}\"\n[Put|Write|Note|Store] {f} [into|in|as] [JSON|a JSON object][.|]",
    "'{t}'\n\n[Make|Give me|I want] JSON [out of it|from it|of that] with {f}[.|]", "<text>{t}</text>\n[Extract|Return|Output] {f} as JSON[.|]", "<input>\n{t}\n</input>\n[Keys|Fields]: {f}[. JSON only.|]", "[Task|Job|Instruction]: [extract|find|pull] {f} [as|to|into] JSON[.|]\n[Input|Text|Data|Given]: {t}\n[Output|Result|JSON|Answer]:", "[Input|Line|Entry|Message]: {t}\n[Task|To do|Wanted]: [JSON with|a JSON object of|make JSON with] {f}[.|]", "### [Text|Input]\n{t}\n### [Fields|Keys]\n{f}\n### [JSON|Output]", "## Instruction\n[Return|Write|Produce] JSON with the keys {f}.\n## Input\n{t}",
    "[You get|I send you|I'll paste|There is] a [text|line|note]. [You return|Send back|Answer with] JSON [with|that holds] {f}.{g}{t}", "[Fill|Complete|Fill in|Fill out] [this|the|my] [form|template|JSON|object|skeleton]: {e}{g}{t}", "{t}\n\n[Fill in|Complete|Fill out|Now fill]: {e}", "[Answer|Reply|Respond] [exactly |]like {e} [but |] with the [values|data] [from|of] the [text|note|message].{g}{t}", "[The|My|Our] [form|template|format] is {e}. [Fill it in|Use it|Complete it|Put in the values].{g}{t}", "[Form|Template|Skeleton|Shape]: {e}\n[Text|Source|Note|Input]: {t}\n[JSON|Filled|Output|Done]:", "[Extract|Return|Collect|Find] [as|in] JSON:{b}\n\n{t}", "[I need|We need|Wanted|Fields|Please extract] [these|the following|those|] [fields|keys|values|items]:{b}\n[Text|Note|From|Source]: {t}\n[Answer in JSON.|JSON:|As JSON, please.|Reply with JSON only.]",
    "{t}\n\n[Return|Write|Give me|Make] [JSON|a JSON object] [with|for|that has] [these keys|these fields|the keys|the following]:{b}", "[Types|Fields|Signature|Model|Class|Record]: {y}\n[Text|Input|Data]: {t}", "[Parse|Read|Turn|Map] [the text|this|it] [into|to|as] [an object|a record|JSON] [of type|with|like] {y}[.|:]{g}{t}", "{t}\n\n[Return|Produce|Emit] JSON [of|with] {y}[.|]", "[Return|Reply with|Give] [valid|strict|plain|pure] JSON ({y})[.| and nothing else.| only.]{g}{t}", "[The output must|Your answer must|The reply should|The result has to] [match|follow|fit|obey|satisfy] [this|the] schema[:|] {s}{g}{t}", "{t}\n\n[Schema|Use the schema|JSON schema|Follow]: {s}", "[Given|With|Using] [the|this] schema {s}[,|] [parse|read|extract|structure] [this|the text|it][.|:]{g}{t}", "[Schema|Spec|Output schema] {s}\n\n{t}\n\n[JSON|Output|Answer]:", "json_schema={s}\ntext={t}", "[Please|Kindly|You should|You must] [validate against|conform to|stick to] {s}[.|:]{g}{t}",
    "[Data entry|Form filling|Database import|Spreadsheet|CRM]: {f} [as|in] JSON{g}{t}", "[For|In] [our|my|the] [database|records|files|list|spreadsheet|archive] I need {f} [as|in] JSON[.|:]{g}{t}", "[Summarise|Record|Log|Register|Save] [this|it|the text] as JSON with [only |] {f}[.|:]{g}{t}", "[Only|Just|Nothing but] {f}[, please|], [as|in] [JSON|a JSON object][.|:]{g}{t}", "[I only care about|I'm only interested in|All I want is|Just need] {f}[.|;] [JSON please.|as JSON.|Give JSON.|in json]{g}{t}", "[Can|Could|Would|Will] [you|u] [turn|make|put|get|parse] [this|that|the text] into JSON[ please|][?| for me?] [Keys|Fields|With|I need]: {f}[.|]{g}{t}", "[How would|How does] this look as JSON with {f}?{g}{t}", "me want {f} from text, in json, thank you{g}{t}", "[I am|We are] [needing|wanting] the {f} in the JSON, [please do|kindly do][.|]{g}{t}",
    "[Identify|Locate|Spot|Determine|Detect|Recognise] {f}[.|;] [Output|Format|Response]: JSON[.|]{g}{t}", "[Entity|Information|Data|Field] extraction. [Fields|Entities|Slots|Keys]: {f}.{g}{t}", "[Slots|Entities|Attributes|Props]: {f}\n[Utterance|Sentence|Text|Snippet]: {t}\nJSON:", "[Headline|Tweet|Email|SMS|Post|Letter|Ad|Log line|Form]: {t}\n[Extract|Get|JSON of|Fields] {f}[.|]", "[API|Endpoint] [call|request|payload]: [build|make] the JSON body with {f} [from|for][:|] {t}", "parse(text, fields=({f})) where text ={g}{t}", "[Someone wrote|A customer wrote|A friend sent|We received|I got] this[.|:] [Extract|Give me|Pull] {f}[, JSON| as JSON|, in JSON].{g}{t}", "{t}\n[That was the text|That's all|End of text]. [Now|Please] {f} as JSON[.|!]", "JSON! {f}!{g}{t}", "[Key|Keys] {f}, [values|value] from the text, [as JSON|JSON object|JSON out].{g}{t}",
    "[An object|One object|A single JSON object] with {f}[, no more, no less|, nothing else|][.|:]{g}{t}", "[Transcribe|Translate|Encode|Express|Reformat|Represent] [this|the following] [as|in|into] JSON [with keys|using keys|under the keys|with] {f}[.|:]{g}{t}",
)  # fmt: skip
NOISE = ("", "", "", "", "It was {a}.", "We like the {a}.", "Thank you for the {a}.", "See you soon.", "The {a} is fine too.", "Best regards.", "FYI.", "Have a [nice|good|great] day!", "Cheers!", "Please [note|read|file|forward] this.", "[Sorry|Apologies] for the {a}.", "[No news|Nothing new|More] about the {a}.", "[As always|As you know|In short], the {a} [works|matters|helps].", "Don't forget the {a}!", "[Thx|Ta|Thanks]!", "[Just|Only] a {a} today.", "What a {a}!", "[That is all|More soon|To be continued].", "Sent from my phone.", "Update.", "NB!", "Hello all!", "[Anyway,|So,|Well,]", "(see {a})", "[The {a} and the {b} are|The {a} was] [nice|bad|new].".replace("{b}", "rest"))  # fmt: skip
GAPS = ("\n", "\n\n", " ", "\nText: ", '\n"""\n', ": ", "\n- ", "\n---\n", "\n> ", "\n\n\n", "\nInput: ", "\n```\n", "\n\nText:\n", " >> ", "\n* ", "\nHere: ")  # fmt: skip
# other names of a field
ALIASES: dict[str, tuple[str, ...]] = {
    name: tuple(others.split())
    for name, others in {
        "name": "full_name person who called", "age": "years age_years how_old", "city": "town place location home_town", "job": "occupation profession work trade", "guest": "visitor guest_name", "hotel": "hotel_name lodging accommodation", "nights": "night_count length_of_stay", "arrival": "check_in arrives arrival_date", "make": "brand maker manufacturer", "model": "type model_name", "year": "built model_year", "mileage": "kilometres km distance odometer", "price": "cost price_tag listed_price amount",
        "film": "movie film_title", "director": "directed_by film_maker", "released": "release_year year", "length": "duration runtime", "student": "pupil learner student_name", "course": "subject lecture course_name", "grade": "mark result", "teacher": "instructor lecturer tutor", "sender": "from sent_by", "receiver": "to recipient payee beneficiary", "sum": "amount total money", "account": "account_number account_no iban", "employee": "worker staff_member colleague", "department": "dept unit division", "boss": "manager supervisor head superior", "since": "start_year joined_in from_year",
        "product": "article item purchase goods", "shop": "store seller retailer", "cost": "price amount total_cost", "stars": "rating review score", "caller": "caller_name reported_by", "problem": "issue trouble defect", "device": "hardware equipment", "ticket": "ticket_no case_id reference", "plant": "flower species", "height": "size_cm height_cm tall", "colour": "color hue", "month": "season blooms_in", "street": "address road", "rooms": "room_count n_rooms", "rent": "monthly_rent price", "landlord": "owner lessor", "meeting": "topic subject agenda about", "chair": "chaired_by leader host", "day": "weekday", "time": "hour start_time clock", "place": "location venue where",
        "email": "mail email_address e_mail", "phone": "telephone phone_number tel", "company": "firm employer organisation business", "pet": "pet_name animal_name", "kind": "species animal", "owner": "holder belongs_to", "weight": "mass", "country": "nation state", "capital": "capital_city", "people": "population inhabitants", "language": "tongue spoken", "winner": "champion victor first_place", "prize": "reward winnings", "loser": "runner_up beaten second_place", "artist": "singer musician performer", "song": "title track_name", "album": "record album_title", "buyer": "customer client ordered_by", "quantity": "qty count number units", "item": "article product thing", "order": "order_id order_no order_number", "train": "train_no service", "start": "origin from from_station", "end": "destination to to_station", "departs": "departure leaves_at", "track": "platform",
        "patient": "patient_name sick_person", "diagnosis": "illness condition disease", "physician": "doctor treating_doctor", "ward": "ward_no", "admitted": "admission_date date", "drug": "medicine medication", "dose": "dosage amount", "frequency": "how_often interval", "prescriber": "doctor prescribed_by", "pulse": "heart_rate bpm", "temperature": "temp degrees", "defendant": "accused", "charge": "offence crime", "judge": "presiding_judge", "verdict": "ruling outcome decision", "fine": "penalty amount", "lawyer": "attorney counsel solicitor", "client": "customer", "fee": "charge amount", "firm": "law_firm company", "home": "home_team host_team", "away": "away_team visitors guest_team", "score": "result final_score", "scorer": "goal_scorer", "minute": "min", "stadium": "venue ground arena", "attendance": "spectators crowd", "player": "player_name", "team": "club side", "shirt": "shirt_number jersey_no", "goals": "goals_scored", "athlete": "competitor", "event": "discipline", "medal": "won", "coach": "trainer", "members": "member_count", "founded": "established founding_year",
        "farmer": "grower", "crop": "planted", "hectares": "area_ha field_size", "yield": "harvested_amount output", "harvest": "harvest_date", "flight": "flight_number flight_no", "origin": "from departure_city", "destination": "to arrival_city heading_to", "passenger": "traveller_name flyer", "boarding": "boarding_time", "ship": "vessel boat", "skipper": "captain master", "cargo": "shipload on_board", "port": "harbour", "bug": "bug_id issue_key", "severity": "priority seriousness", "reporter": "reported_by found_by", "assignee": "assigned_to fixer", "state": "status", "server": "hostname machine", "ip": "ip_address addr", "os": "operating_system", "ram": "memory", "message": "msg text", "parcel": "tracking_number package_id", "carrier": "courier shipper", "status": "state progress", "eta": "expected arrival_date", "driver": "driver_name", "stock": "in_stock on_hand quantity", "supplier": "vendor", "suspect": "alleged_offender", "officer": "policeman arresting_officer", "location": "place where scene",
        "speed": "velocity measured_speed", "station": "weather_station place", "humidity": "moisture", "sky": "conditions weather", "address": "street property", "bedrooms": "beds bedroom_count", "area": "size floor_area", "agent": "broker realtor", "tenant": "renter", "flat": "apartment unit", "fault": "problem defect", "band": "group", "genre": "style music_style", "venue": "place hall", "dish": "meal recipe_name", "serves": "portions servings people", "minutes": "cooking_time duration_min", "cook": "chef", "waiter": "server", "bill": "amount_due", "tip": "gratuity", "candidate": "nominee", "votes": "vote_count", "share": "percentage", "author": "writer written_by", "novel": "book title", "pages": "page_count", "publisher": "published_by", "painter": "artist", "painting": "work title", "borrower": "debtor", "loan": "principal amount", "interest": "rate interest_rate", "invoice": "invoice_no bill_number", "vendor": "supplier seller", "total": "amount sum", "due": "due_date pay_by", "applicant": "job_seeker candidate", "position": "post role", "salary": "pay yearly_pay", "task": "todo action", "deadline": "due_by until", "priority": "urgency importance", "customer": "client buyer", "refund": "money_back", "programme": "show broadcast", "founder": "founded_by", "employees": "staff headcount", "headquarters": "based_in seat", "speaker": "presenter", "date": "on_date when", "mother": "mum parent",
    }.items()
}  # fmt: skip
MISSING = (  # {w}: the value to write for a field that the text lacks
    "[Use|Write|Put|Give|Return|Set] {w} [for|where|when|if] [a field is missing|anything missing|what is not there|the text does not say|something is unknown|there is no value|a value cannot be found|not stated].", "[If|When|Where] [a field|a key|a value|something|anything|one] is [missing|absent|not given|not mentioned|not in the text|unknown|unclear], [use|write|put|set it to|return] {w}.",
    "[Missing|Absent|Unknown] [fields|values|keys|ones|info] [are|get|become|=|:|should be|must be] {w}.", "({w} if [missing|absent|unknown|not stated|it is not there])", "{w} for [missing|unknown|absent] [values|fields|ones|data].", "Do not guess: {w} [if unknown|if it is not in the text|when it isn't stated].", "[Not found|Not there|No value]? [Then|Use|Write] {w}.", "Leave nothing out; {w} stands for [a missing field|what is not said].", "pls put {w} if u cant find it", "Fields without a value get {w}.", "[Anything|Whatever] the [text|note|author] [leaves out|doesn't mention|does not tell] is {w}.",
)  # fmt: skip
NEVER_TOLD = "shoe_size blood_type fax vat_number eye_colour religion coupon warranty passport_no hobby website maiden_name tax_id discount star_sign wifi_password sponsor hair_colour deposit witness parking diet slogan spouse godfather mascot anthem".split()  # fmt: skip


# general field names for sorts of values: the only person of a record may have any name of the first row as its field
_SORTS: tuple[tuple[tuple[Maker, ...], str], ...] = (
    ((person, first, doctor, captain, officer, magistrate, polite, academic), "person human individual man woman contact participant member visitor guest speaker holder owner client customer user applicant attendee subscriber lodger tenant neighbour friend colleague partner sender recipient founder leader head organiser planner helper volunteer expert specialist worker artist performer actor singer painter photographer composer dancer poet athlete player runner rider racer swimmer boxer pilot sailor driver conductor inspector guard officer clerk cashier vendor dealer trader supplier producer grower breeder trainer instructor lecturer pupil candidate nominee voter witness suspect victim prisoner soldier widow bride groom host hostess cleaner gardener builder carpenter plumber electrician mechanic engineer chemist nurse surgeon therapist caretaker keeper ranger guide translator editor columnist critic reader viewer listener fan donor sponsor investor banker debtor heir somebody whom by_whom responsible in_charge signed_by"),
    ((place,), "place city town village location site region area municipality where whereabouts settlement spot district destination home venue community hamlet borough seaside_town hometown_now birthplace headquarters based_in located_in from_where base"),
    ((titled,), "title called named designation label caption heading full_title official_name brand_name"),
    ((money,), "price cost amount total sum value payment fee charge expense budget balance rate how_much to_pay euros net gross worth bid offer"),
    ((code,), "code number reference id identifier key serial token no ref_no registration tag index license label_code serial_no"),
    ((clock,), "time hour clock at_what_time start_time time_of_day when_exactly moment"),
    ((Draw.date, when), "date day on_date when deadline scheduled calendar_date takes_place dated"),
    ((phone,), "phone telephone mobile call phone_no dial number_to_call hotline landline cell"),
    ((mail,), "email mail address e_mail contact_email write_to inbox"),
    ((street,), "street address road lane lives_at street_name located_at house"),
    ((firm,), "company firm business supplier vendor employer biller organisation sponsor shop seller brand manufacturer publisher agency partner"),
    ((DISHES,), "dish meal food recipe what menu_item plate cooked"), ((ILLS,), "illness disease sickness problem ailment complaint finding condition trouble health_issue"),
    ((score,), "score result final_score outcome ended_as standing"), ((seat,), "seat place chair seat_no sits_in spot"),
)  # fmt: skip
SORTS: dict[Maker, tuple[str, ...]] = {maker: tuple(words.split()) for makers, words in _SORTS for maker in makers}


def _sorted_names(d: Draw, makers: dict[str, Maker]) -> dict[str, str]:
    """Field -> new name. Only a field that is alone of its sort may get one: a name of that sort identifies it."""
    sorts = {name: SORTS[make] for name, make in makers.items() if make in SORTS}
    alone = [name for name, words in sorts.items() if list(sorts.values()).count(words) == 1]
    new: dict[str, str] = {}
    for name in alone:
        other = d.pick(sorts[name])
        if other not in (*makers, *new.values()) and d.chance(0.8):
            new[name] = other
    return new


def _renamed(d: Draw, names: Sequence[str], share: float) -> dict[str, str]:
    """Field -> its name in the sample. A `share` of the fields get an alias; some records spell all names otherwise."""
    new: dict[str, str] = {}
    for name in names:
        others = [o for o in ALIASES.get(name, ()) if o not in names and o not in new.values()]
        new[name] = d.pick(others) if others and d.chance(share) else name
    spelling = d.pick(SPELLINGS) if d.chance(0.25) else str
    return {name: spelling(other) for name, other in new.items()}


def _camel(name: str) -> str:
    start, *rest = name.split("_")
    return start + "".join(part.capitalize() for part in rest)


SPELLINGS: tuple[Callable[[str], str], ...] = (
    _camel, _camel, str.upper, str.capitalize, lambda name: name.replace("_", " "), lambda name: name.replace("_", "-"),
    lambda name: name.replace("_", " ").title(), lambda name: _camel(name)[0].upper() + _camel(name)[1:],
)  # fmt: skip


def _lines(d: Draw, record: dict[str, str]) -> str:
    """A record as field names and values, in a random notation such as CSV, XML or `name: value`."""
    order = d.some(list(record), len(record))
    kind = d.rng.random()
    if kind < 0.15:
        comma = d.pick((",", ";", ", ", " | ", "\t"))
        return f"{comma.join(order)}\n{comma.join(record[name] for name in order)}"
    if kind < 0.22:
        return d.pick(("", "\n")).join(f"<{name.replace(' ', '_')}>{record[name]}</{name.replace(' ', '_')}>" for name in order)  # fmt: skip
    between, end = d.pick(
        (
            (": ", ", "), (": ", "\n"), (" = ", "; "), (" is ", ", "), (" ", ", "), (" - ", "\n"), ("\t", "\n"), (": ", ". "), ("=", " & "), ("=", ", "), (": ", " | "), (" -> ", "\n"), (" : ", " / "), (":", "\n"), (" ... ", "\n"), (") ", "\n"), (": ", "; "), (" >> ", "\n"),
        )
    )  # fmt: skip
    return end.join(f"{name}{between}{record[name]}" for name in order)


def _styled(d: Draw, told: str) -> str:
    """A template, sometimes all in capitals or without any; fields stay unchanged."""
    kind = d.rng.random()
    if kind > 0.12:
        return told
    change = str.upper if kind < 0.03 else str.lower
    return "".join(part if part.startswith("{") else change(part) for part in re.split(r"(\{\w+\})", told))


def _told(d: Draw) -> tuple[dict[str, str], str, list[str], dict[str, Maker]]:
    """(A record, a text that states it, fields that the text lacks, field -> maker of its value)."""
    if d.chance(0.15):
        names = dict.fromkeys(noun(d) if d.chance(0.6) else d.word() for _ in range(d.rng.randrange(2, 7)))
        record = {name: any_value(d) for name in names}
        return record, _lines(d, record), [], {}
    makers, texts = d.pick(DOMAINS)
    record = {name: make(d) for name, make in makers.items()}
    if d.chance(0.12):
        shown = d.some(list(record), d.rng.randrange(2, len(record) + 1))
        labels = _renamed(d, list(record), 0.3)
        text = _lines(d, {labels[name]: record[name] for name in shown})
        told = "".join(f"{{{name}}}" for name in shown)
    else:
        told = _styled(d, d.vary(d.pick(texts)))
        before, after = (d.vary(d.pick(NOISE)).format(a=noun(d)) if d.chance(0.35) else "" for _ in range(2))
        worded_told = d.strange(told) if d.chance(0.4) and ":" not in told else told
        # punctuation shows where the last value ends
        end = "" if worded_told[-1] in ".!?" or not after else d.pick((".", ".", " -", ";", "\n"))
        worded_told, shown = _shown(d, worded_told, record, makers) if d.chance(0.5) else (worded_told, record)
        text = " ".join(filter(None, (before, worded_told.format(**shown) + end, after)))
    absent = [name for name in record if f"{{{name}}}" not in told]
    record = {name: value for name, value in record.items() if name not in absent}
    if d.chance(0.12):  # one more field with any name
        text = f"{text} {d.pick(('Also,', 'Besides,', 'And', 'Moreover,', 'P.S.'))} the {(key := noun(d))} is {(value := any_value(d))}."
        absent = [name for name in absent if name != key]
        record |= {key: value} if key not in record and key not in makers else {}
    return record, text, absent, makers


def _entitled(d: Draw, titles: Sequence[str]) -> str:
    """A person, often with a title, which is part of the name."""
    way = d.rng.random()
    name = rare(d) if way < 0.3 else f"{first(d)} {rare(d)}"
    return f"{d.pick(titles)} {name}" if way < 0.6 else person(d)


# kind of value, as named in `clauses`, `roles`, `parts` and `amounts` -> its maker
_DRAWN: dict[str, Maker] = {
    "person": person, "first": first, "pet": pet, "place": place, "titled": titled, "firm": firm, "thing": thing, "rare": rare, "code": code, "clock": clock, "date": Draw.date, "when": when,
    "phone": phone, "mail": mail, "street": street, "money": money, "score": score, "seat": seat, "year": year, "age": whole(2, 99), "small": whole(1, 30), "count": lambda d: str(d.amount()), "months": whole(3, 60), "height": whole(90, 210), "heat": whole(80, 260),
    "job": lambda d: d.mixed(JOBS), "tongue": TONGUES, "hobby": HOBBIES, "colour": kind_of("colour"), "material": kind_of("material"), "genre": GENRES, "dish": DISHES, "food": FOODS, "ill": ILLS, "doctor": doctor, "drug": DRUGS, "state": STATES, "weekday": lambda d: d.pick(DAYS),
    "event": lambda d: d.mixed(EVENTS) if d.chance(0.6) else titled(d), "gate": lambda d: f"{d.pick('ABCDEFG')}{d.rng.randrange(1, 60)}" if d.chance(0.6) else str(d.rng.randrange(1, 60)), "zip": lambda d: d.digits(5),
    "team": lambda d: f"{d.pick(NOUNS).capitalize()}s" if d.chance(0.5) else TEAMS(d),
    "medic": lambda d: doctor(d) if d.chance(0.75) else person(d), "crime": CRIMES, "subject": SUBJECT_NAMES, "damage": DAMAGES, "kind": lambda d: d.mixed(ANIMALS),
    "work": lambda d: _name_of(d, amounts.WORKS) if d.chance(0.7) else titled(d), "named": lambda d: _name_of(d, amounts.NAMED), "plate": plate, "cold": degrees, "daym": day_month, "version": version, "slug": slug, "ip": address, "species": kind_of("pettype"),
}  # fmt: skip
_DRAWN |= {"phrase": phrase} | {name: one(words) for name, words in parts.WORDS.items()}
_DRAWN |= {name: functools.partial(_name_of, forms=forms) for name, forms in parts.NAMED.items()}
_DRAWN |= {name: functools.partial(_entitled, titles=titles.split(", ")) for name, titles in parts.TITLED.items()}
_BARE = ("street", "phone", "mail", "clock", "date", "code", "when", "seat")  # clear without a label


def _keys(d: Draw, sets: Sequence[Sequence[str]]) -> list[str]:
    """A name for each field from its set of names, no two alike."""
    chosen: list[str] = []
    for names in sets:
        chosen.append(d.pick([name for name in names if name not in chosen] or [f"{names[0]}_{len(chosen)}"]))
    return chosen


def _sentence(d: Draw, group: clauses.Group, facets: Sequence[tuple[str, clauses.Facet]]) -> str:
    """A template about the subject `{s}`, with a field `{key}` for each facet."""

    def say(ways: Sequence[str], key: str) -> str:
        return d.vary(d.pick(ways)).replace("{unit}", "{v}#").replace("{v}", f"{{{key}}}")

    facets = d.some(facets, len(facets))
    kind = d.rng.random()
    if kind < 0.22:
        comma = d.pick((", ", ", ", ", ", "; ", " - ", " / ", ". ", "\n", " | ", "\n"))
        parts = ["{s}"]
        for key, facet in facets:
            is_bare = (facet.maker in _BARE and d.chance(0.6)) or (facet.maker == "place" and d.chance(0.3))
            label = d.pick(facet.labels) + d.pick((": ", " ", " ", ": ", "=") if len(facet.labels) < 9 else (": ",))
            parts.append(say(("{v}",), key) if is_bare else say((f"{label}{{v}}",), key))
        if d.chance(0.3):
            d.rng.shuffle(parts)
            parts = [d.pick((f"{d.pick(group.keys)}: {{s}}".capitalize(), "{s}")) if p == "{s}" else p for p in parts]
        return comma.join(parts) + d.pick(("", ".", ""))
    n_posts = min(len(facets), d.pick((0, 0, 1, 1, 2, 3)))
    posts = [(key, facet) for key, facet in facets[:n_posts] if facet.posts]
    rest = [pair for pair in facets if pair not in posts] or [posts.pop()]
    beside = ""
    for key, facet in posts:
        post = say(facet.posts, key)
        beside += post if post.startswith(",") else f" {post}"
    subject = d.vary(d.pick(group.subjects))
    front = ""
    if len(rest) > 1 and rest[-1][1].fronts and d.chance(0.4):
        key, facet = rest.pop()
        front = say(facet.fronts, key)
        front += " " if front.endswith(":") else d.pick((", ", ", ", " "))
        subject = subject if subject[0] in "{\"'" or subject[:2] in ("I ", "I'") else subject[0].lower() + subject[1:]
    said = [say(facet.predicates, key) for key, facet in rest]
    pronoun = d.vary(d.pick(group.pronouns))
    told = said[0]
    for i, predicate in enumerate(said[1:], 2):
        is_last = i == len(said)
        told += d.pick((f". {pronoun} ", f". {pronoun} ", f"; {pronoun.lower() if pronoun != 'I' else 'I'} ", " and " if is_last else ", ", ", and " if is_last else ", ", " but ", "; ")) + predicate  # fmt: skip
    told = f"{front}{subject.replace('{s}', '{s}' + beside)} {told}{d.pick(('.', '.', '.', '!', ''))}"
    return re.sub(r",+ *([.,;:!?\"'])", r"\1", told)


def _of_a_kind(d: Draw) -> tuple[list[str], list[str], str, list[str]]:
    """Fields of one sort, told apart by the word beside the value: people by role, or counts by thing. Returns (field
    names, kinds of values, template, names that the text lacks)."""
    is_who = d.chance(0.5)
    n = d.pick((2, 2, 3, 3, 4))
    words = d.some(ROLES, 8) if is_who else list(dict.fromkeys(_plain(d) if d.chance(0.7) else d.word() for _ in range(9)))  # fmt: skip
    chosen = words[:n]
    if is_who:
        form = d.pick(("the {r} is {v}", "{v} is the {r}", "{r}: {v}", "{v} ({r})", "{v} as {r}", "{r} {v}", "the {r} was {v}", "{v}, the {r}", "{v} [works|serves|came] as {r}", "with {v} as {r}", "{v}, our {r}"))  # fmt: skip
        names, kinds = chosen, ["person"] * n
    else:
        form = d.pick(("{v} {r}s", "{v} {r}s", "{v} {r}s", "{v} x {r}", "{r}s: {v}", "{v} of the {r}s", "{r} ({v})", "{r} x{v}", "{v} {j} {r}s", "{v}-{r}"))  # fmt: skip
        names = [f"{r}s" for r in chosen] if d.chance(0.6) else [d.pick((f"{r}_count", f"n_{r}s", f"{r}s", r, f"number_of_{r}s")) for r in chosen]  # fmt: skip
        names, kinds = [name.replace(" ", "_") for name in names], ["count"] * n
    parts = [d.vary(form).replace("{r}", r).replace("{v}", f"{{{key}}}").replace("{j}", d.pick(("new", "old", "red", "big", "used", "fine"))) for r, key in zip(chosen, names, strict=True)]  # fmt: skip
    lead = d.vary(d.pick(("", "", "[We have|There are|They sent|I see|I ordered|The list:|The box holds|On board:] " if not is_who else "[In our team|At the play|On stage|Today], ")))  # fmt: skip
    comma = d.pick((", ", ", ", "; ", ". ", "\n", " / ")) if ", " not in form else d.pick(("; ", "\n", " / "))
    template = lead + (comma.join(parts) if d.chance(0.6) or ", " in form else f"{', '.join(parts[:-1])} and {parts[-1]}") + d.pick((".", ".", "!", ""))  # fmt: skip
    template = template[0].upper() + template[1:] if template[0] != "{" and d.chance(0.8) else template
    return names, kinds, template, [w for w in words[n:] if f"{w}s" not in template and w not in template]


def _composed(d: Draw) -> tuple[dict[str, str], str, list[str], dict[str, Maker]]:
    """Like `_told`, with a text made from `clauses`."""
    way = d.rng.random()
    if way < 0.14:
        names, kinds, template, absent = _of_a_kind(d)
    elif way < 0.35:
        pair = d.pick(clauses.PAIRS)
        other = [
            facet for facet in clauses.ENDINGS if facet.maker[:2] != {"date": "wh"}.get(pair.maker, pair.maker)[:2]
        ]
        extra = d.some(other, d.pick((0, 1, 1, 2, 3)))
        names = _keys(d, (*pair.keys, *(facet.keys for facet in extra)))
        kinds = [pair.maker, pair.maker, *(facet.maker for facet in extra)]
        told = d.vary(d.pick(pair.statements))
        template = told.replace("{a}", f"{{{names[0]}}}").replace("{b}", f"{{{names[1]}}}").replace("{n}", _plain(d))
        template = template[0].upper() + template[1:] if template[0] != "{" and d.chance(0.8) else template
        for key, facet in zip(names[2:], extra, strict=True):
            post = d.vary(d.pick(facet.posts)).replace("{unit}", "{v}#").replace("{v}", f"{{{key}}}")
            template += post if post.startswith(",") else f" {post}"
        template = re.sub(r",+ *([.,;:!?])", r"\1", template).rstrip(",") + d.pick((".", ".", "!", ""))
        absent = [facet.keys[0] for facet in other if facet not in extra]
    else:
        group = d.pick(clauses.GROUPED) if d.chance(0.8) else clauses.GROUPED[0]
        facets = d.some(group.facets, d.pick((1, 2, 2, 3, 3, 4, 5)))
        names = _keys(d, (group.keys, *(facet.keys for facet in facets)))
        kinds = [group.maker, *(facet.maker for facet in facets)]
        template = _sentence(d, group, list(zip(names[1:], facets, strict=True))).replace("{s}", f"{{{names[0]}}}")
        absent = [facet.keys[0] for facet in group.facets if facet not in facets]
    makers = {name: _DRAWN[kind] for name, kind in zip(names, kinds, strict=True)}
    record = {name: make(d) for name, make in makers.items()}
    before, after = (d.vary(d.pick(NOISE)).format(a=noun(d)) if d.chance(0.25) else "" for _ in range(2))
    end = "" if not after or template[-1] in ".!?" else "."
    template, shown = _shown(d, template, record, makers)
    template = d.strange(template) if len(kinds) > 2 and kinds[0] != kinds[1] and d.chance(0.3) else template
    text = " ".join(filter(None, (before, template.format(**shown) + end, after)))
    return record, text, [name for name in absent if name not in record], makers


def _framed(d: Draw) -> tuple[dict[str, str], str, list[str], dict[str, Maker]]:
    """Like `_told`, with a text from `roles`: a value's role in the text tells which field it belongs to."""
    if d.chance(0.18):
        return _quantified(d)
    frame = d.pick(roles.FRAMES)
    return _with_roles(d, frame.roles, d.pick(frame.texts), NOISE)[:4]


def _parted(d: Draw) -> tuple[dict[str, str], str, list[str], dict[str, Maker]]:
    """Like `_framed`, with a text from `parts`."""
    frame = d.pick(parts.FRAMES if d.chance(0.72) else parts.TWOS)
    return _with_roles(d, frame.roles, d.pick(frame.texts), NOISE, 0.15)[:4]


PEOPLE = frozenset(("person", "first", "medic", *parts.TITLED))
NAME_FORMS = ("{}_name", "name_of_{}", "the_{}", "{}_full_name", "name_of_the_{}", "which_{}", "who_is_{}")
FIELD_FORMS = ("the_{}", "which_{}", "{}_given", "{}_named", "{}_in_text")


def _with_roles(
    d: Draw,
    slots: Mapping[str, tuple[str, tuple[str, ...]]],
    phrase: str,
    noise: Sequence[str],
    named: float = 0.0,
) -> tuple[dict[str, str], str, list[str], dict[str, Maker], dict[str, str]]:
    """Like `_told`, with a text from `phrase`, and field -> letter of its slot.

    slots: letter -> (how the value is drawn, names of the field). named: share of the field names that are extended,
    for instance to `name_of_buyer`.
    """
    told = d.vary(phrase)
    letters = list(dict.fromkeys(re.findall(r"\{(\w)\}", told)))
    names = dict(zip(letters, _keys(d, [slots[letter][1] for letter in letters]), strict=True))
    for letter, name in names.items():
        if "_" not in name and name[-1] != "s" and name[-2:] != "ed" and d.chance(named):
            names[letter] = d.pick(NAME_FORMS if slots[letter][0] in PEOPLE else FIELD_FORMS).format(name)
    makers = {names[letter]: _drawn(slots[letter][0]) for letter in letters}
    record: dict[str, str] = {}
    for name, make in makers.items():
        while (value := make(d)) in record.values():
            pass
        record[name] = value
    template = re.sub(r"\{(\w)\}", lambda found: f"{{{names[found[1]]}}}", told)
    template = template[0].upper() + template[1:] if d.chance(0.8) else template
    before, after = (d.vary(d.pick(noise)).format(a=noun(d)) if d.chance(0.2) else "" for _ in range(2))
    end = "" if not after or template[-1] in ".!?" else "."
    people = [name for name, make in makers.items() if make in (person, first, _DRAWN["medic"])]
    is_alone = len(people) < 2 and "g" not in slots and not named and _DRAWN["job"] not in makers.values()
    template, values = _shown(d, template, record, {n: m for n, m in makers.items() if is_alone or n not in people})
    text = " ".join(filter(None, (before, _styled(d, template).format(**values) + end, after)))
    absent = [d.pick(keys) for letter, (_, keys) in slots.items() if letter not in letters]
    return record, text, [name for name in absent if name not in record], makers, {n: x for x, n in names.items()}


@functools.cache
def _drawn(kind: str) -> Maker:
    """The maker for a kind: a key of `_DRAWN`, a range of numbers (with decimals if it ends in `.`), or words."""
    if kind in _DRAWN:
        return _DRAWN[kind]
    if "|" in kind:
        return one(kind.replace("|", ", ").replace("_", " "))
    low, high = (int(end) for end in kind.rstrip(".").split("-"))
    draw_whole = whole(low, high)
    if not kind.endswith("."):
        return draw_whole
    return lambda d: (
        draw_whole(d) + (f".{d.pick(('', '', *'0123456789'))}{d.pick('123456789')}" if d.chance(0.6) else "")
    )


def _measured(d: Draw) -> tuple[dict[str, str], str, list[str], dict[str, Maker], dict[str, str]]:
    """Like `_told`, with a text about several numbers, and field -> its meaning."""
    if d.chance(0.2):
        record, text, meanings = amounts.counted(d, d.pick((person, place, titled, firm, thing))(d))
        return record, text, [], {}, meanings
    if d.chance(0.15):
        record, text = _run_on(d)
        return record, text, [], {}, {}
    scene = d.pick(amounts.SCENES)
    slots = {letter: (slot.kind, slot.keys) for letter, slot in scene.slots.items()}
    record, text, absent, makers, letters = _with_roles(d, slots, d.pick(scene.texts), amounts.ASIDES)
    text = d.pick(amounts.HEADS).format(a=noun(d)) + text if d.chance(0.08) else text
    return record, text, absent, makers, {name: scene.slots[letter].meaning for name, letter in letters.items()}


def _run_on(d: Draw) -> tuple[dict[str, str], str]:
    """(A record, a text in which names and other values alternate, mostly without words between them)."""
    names, others = d.some(amounts.RUN_NAMES, d.pick((1, 1, 2, 2))), d.some(amounts.RUN_OTHERS, d.pick((1, 2, 2, 3)))
    while len(others) < len(names) - 1 or {"date", "daym"} <= {kind for kind, _, _ in others}:
        others = d.some(amounts.RUN_OTHERS, 2)
    order = [names[0]] if d.chance(0.7) or len(others) < len(names) else []
    rest = names[len(order) :]
    for other in others:
        order += [other, *rest[:1]]
        rest = rest[1:]
    record: dict[str, str] = {}
    text = ""
    for key, (kind, _, before) in zip(_keys(d, [row[1].split() for row in order]), order, strict=True):
        record[key] = value = money(d) if kind == "sum" else _drawn(kind)(d)
        shown = f"{int(value):,}" if kind == "sum" and len(value) == 4 and value.isdigit() and d.chance(0.4) else value
        if kind == "sum":
            shown = f"{shown} {d.pick(clauses.CURRENCIES)}" if d.chance(0.6) else f"{d.pick(clauses.SIGNS)}{shown}"
        elif kind == "3-99.":
            shown += d.pick((" kg", "kg", " kilos"))
        ways = before.strip("|").split("|") if len(names) > 1 and kind in ("place", "work") else before.split("|")
        text += f"{d.pick(ways) if text or len(names) > 1 or d.chance(0.2) else ''}{shown}{d.pick((' ', ' ', ' ', ', '))}"  # fmt: skip
    return record, d.pick(amounts.RUN_STARTS) + text.rstrip(", ") + d.pick(amounts.RUN_ENDS)


def _quantified(d: Draw) -> tuple[dict[str, str], str, list[str], dict[str, Maker]]:
    """Like `_told`, with a text about a thing and several numbers that only their units tell apart."""
    chosen: list[tuple[str, str, str]] = []
    for row in d.some(roles.QUANTITIES, 8):
        unit = row[0].split()[0]
        alike = {other for kin in roles.ALIKE if unit in kin for other in kin}
        if len(chosen) < 4 and not any(other[0].split()[0] in alike for other in chosen):
            chosen.append(row)
    chosen = chosen[: d.pick((2, 2, 3, 3, 4))]
    subject = d.pick("item product thing name what subject object article".split())
    names = _keys(d, [(subject,), *(row[0].split() for row in chosen)])
    makers = dict.fromkeys(names[1:], _DRAWN["count"]) | {subject: d.pick((thing, noun, titled, DISHES))}
    record = {name: make(d) if d.chance(0.9) or name == subject else d.decimal() for name, make in makers.items()}
    bare = [
        d.pick(row[1].split(";")).replace("{v}", f"{{{name}}}") for name, row in zip(names[1:], chosen, strict=True)
    ]
    does = [
        d.pick(row[2].split(";")).replace("{v}", f"{{{name}}}") for name, row in zip(names[1:], chosen, strict=True)
    ]
    s = f"{{{subject}}}"
    way = d.rng.random()
    if way < 0.3:
        comma = d.pick((", ", ", ", "; ", " / ", "\n", " - ", ". "))
        listed = comma.join(bare) if d.chance(0.6) else f"{', '.join(bare[:-1])} and {bare[-1]}"
        told = d.pick((f"{s}: {listed}", f"{listed}: {s}", f"{s}, {listed}", f"The {s} ({listed})", f"{s} - {listed}."))
    elif way < 0.75:
        comma = d.pick((", ", ", ", "; it "))
        told = f"{d.pick(('The', 'This', 'Our', 'My', 'A'))} {s} {comma.join(does[:-1])}{d.pick((' and ', ', and ', '. It '))}{does[-1]}."
    else:
        told = d.pick((f"With {bare[0]}, the {s} {' and '.join(does[1:])}.", f"The {s} ({bare[0]}) {' and '.join(does[1:])}.", f"The {s} {' and '.join(does[1:])} ({bare[0]}).", f"{bare[0]} and {bare[1]}: that is the {s}.", f"The {s} {does[0]}; {', '.join(bare[1:])}."))  # fmt: skip
    template, values = _shown(d, told, record, makers)
    used = [name for name in record if f"{{{name}}}" in told]
    absent = [row[0].split()[0] for row in roles.QUANTITIES if row not in chosen]
    told_of = {name: record[name] for name in used}
    return told_of, template.format(**values), absent, {name: makers[name] for name in used}


_UNGROUPED = frozenset("year released since founded built published painted elected crowned died enlisted discovered completed card badge zip zip_code postcode post_code locker".split())  # fmt: skip


def _shown(d: Draw, template: str, record: dict[str, str], makers: dict[str, Maker]) -> tuple[str, dict[str, str]]:
    """The template and the values in more natural forms: with a currency, commas in numbers, titles in quotes, and
    words such as "Engineer" before names. `{key}#` marks where a currency belongs.
    """
    shown = dict(record)
    for name, make in makers.items():
        field = f"{{{name}}}"
        if make is money or f"{field}#" in template:
            way = d.rng.random()
            bare = re.compile(re.escape(field) + r"(?! ?#| ?[\w%€$£])")
            marked = f"{field} {field}#"
            word = d.pick(clauses.CURRENCIES) if d.chance(0.85) else f"{d.word()}s"
            if (marked in template and way < 0.75) or (marked not in template and way < 0.2 and bare.search(template)):
                template = template.replace(marked, f"{field} {word}") if marked in template else bare.sub(f"{field} {word}", template)  # fmt: skip
            elif marked in template or (way < 0.35 and bare.search(template)):
                sign = d.pick(clauses.SIGNS) + d.pick(("", "", " "))
                template = template.replace(marked, f"{sign}{field}") if marked in template else bare.sub(f"{sign}{field}", template)  # fmt: skip
        elif make in (person, first) and d.chance(0.1):
            called = d.pick(clauses.CALLED)
            template = template if called.lower() in template.lower() else template.replace(field, f"{called} {field}")
        elif make in (titled, firm) and f'"{field}' not in template and f"'{field}" not in template and d.chance(0.2):
            quote = d.pick(('"{0}"', '"{0}"', "'{0}'", "“{0}”", "*{0}*", "«{0}»"))
            template = template.replace(field, quote.format(field))
        if name not in _UNGROUPED and make not in (year, phone, code) and len(shown[name]) in (4, 5) and shown[name].isdigit() and shown[name][0] != "0" and d.chance(0.3):  # fmt: skip
            shown[name] = f"{int(shown[name]):,}"
    return template, shown


def _with_missing(d: Draw, wish: str, stand_in: str) -> str:
    """The request `wish`, extended by what to write for fields that the text lacks. stand_in: that value."""
    said = d.vary(d.pick(MISSING)).format(w=stand_in)
    if wish.endswith("{g}{t}"):
        return f"{wish.removesuffix('{g}{t}').rstrip(' .:')}. {said}{{g}}{{t}}"
    return f"{wish.rstrip(' .:')}. {said}" if wish.startswith("{t}") else f"{said}\n{wish}"


def everyday_json(d: Draw) -> Sample:
    """One or two texts, each with a request for some of its fields as JSON."""
    messages: list[Message] = _system(d, 0.15)
    for _ in range(d.pick((1, 1, 1, 2))):
        way = d.rng.random()
        kind = d.rng.random()
        is_measured, is_parted = kind < 0.33, 0.33 <= kind < 0.66
        is_framed = is_measured or is_parted or way < 0.45
        is_composed = not is_framed and way < 0.72
        meanings: dict[str, str] = {}
        if is_measured:
            record, text, absent, makers, meanings = _measured(d)
        else:
            makes = _parted if is_parted else _framed if is_framed else _composed if is_composed else _told
            record, text, absent, makers = makes(d)
        least = 2 if is_measured and len(record) > 1 and d.chance(0.8) else 1
        fields = d.some(list(record), d.rng.randrange(least, len(record) + 1))
        lacks: list[str] = []
        says_missing = d.chance(0.12)
        if says_missing and d.chance(0.6):
            words = {part for name in record for part in name.split("_")}
            never = [n for n in NEVER_TOLD if not words & set(n.split("_")) and n.replace("_", " ") not in text.lower()]
            lacks = [d.pick(absent if absent and (is_composed or d.chance(0.5)) else never)]
            fields.insert(d.rng.randrange(len(fields) + 1), lacks[0])
        others = [n for n in (*record, *absent) if n not in fields]
        keys = _renamed(d, [*fields, *others], 0.0 if is_framed else 0.25)
        if (
            not is_framed
            and d.chance(0.4)
            and not (is_composed and lacks)
            and len(told := set(record) & set(makers)) == len(record)
        ):
            keys |= _sorted_names(d, {name: makers[name] for name in makers if name in told})
        typed = {
            f: d.pick(("string", "string", "number", "number" if "." in record[f] else "integer"))
            if f not in lacks and _is_number(record[f])
            else "string"
            for f in fields
        }
        asks = amounts.ASKS if d.chance(0.55 if is_measured else 0.35) else WISHES
        is_explained = not lacks and meanings.keys() >= set(fields) and d.chance(0.12)
        wish = casual(d, d.vary(d.pick(amounts.MEANT if is_explained else asks)))
        has_types = "{s}" in wish or "{y}" in wish or "{k}" in wish
        if not has_types:  # without types in the prompt, numbers stay numbers
            typed = {f: "number" if f not in lacks and _is_number(record[f]) else "string" for f in fields}
        shape = {keys[f]: t for f, t in typed.items()}
        meant = {keys[f]: meanings[f] for f in fields if f in meanings}
        schema = (
            json.dumps(shape)
            if d.chance(0.6)
            else json.dumps({"type": "object", "properties": {key: {"type": t} for key, t in shape.items()}})
        )
        quote = d.pick(("", "", "", "", '"', "`", "'", "*"))
        marked = [f"{quote}{keys[f]}{quote}" for f in fields]
        listed = (
            d.pick((", ", ", ", ", ", ", ", " / ", "; ", " + ")).join(marked)
            if d.chance(0.5) or len(fields) == 1
            else f"{', '.join(marked[:-1])}{d.pick((' and ', ', and ', ' & ', ' plus '))}{marked[-1]}"
        )
        bullet = d.pick(("- ", "* ", "", "  - "))
        typing = d.pick(("{0}: {1}", "{0}:{1}", "{0} ({1})", "{1} {0}"))
        empty = d.pick(('""', '""', '"..."', "null", '"?"'))
        stand_in = '"null"'
        if says_missing:
            stand_in = "null" if d.chance(0.75) else json.dumps(d.pick(("unknown", "none", "", "n/a", "-", "missing", "?", "not given")))  # fmt: skip
            wish = _with_missing(d, wish, stand_in)
        for last in (" please", " Thanks."):
            wish = f"{wish.removesuffix(last)}\n{last[1:]}" if wish.endswith("{t}" + last) else wish
        gap = d.pick(GAPS)
        if gap == ": " and re.search(r"[.:;!?] *\{g\}", wish):
            gap = "\n"
        prompt = (
            wish.replace("{f}", listed)
            .replace("{s}", schema)
            .replace("{e}", "{" + ", ".join(f'"{key}": {empty}' for key in shape) + "}")
            .replace("{b}", "".join(f"\n{bullet}{key}" for key in shape))
            .replace("{y}", ", ".join(typing.format(key, t) for key, t in shape.items()))
            .replace("{k}", amounts.typed(d, shape, meant))
            .replace("{h}", amounts.explained(d, meant))
            .replace("{g}", gap)
            .replace("{t}", text)
        )
        answer = {
            keys[f]: json.loads(stand_in) if f in lacks else _number(record[f]) if typed[f] != "string" else record[f]
            for f in fields
        }
        messages += [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
        ]
    return Sample("everyday_json", tuple(messages))


def _is_number(value: str) -> bool:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.replace(".", "", 1).isdigit()) or len(digits) > 6 or digits[-1] == ".":
        return False
    return digits[0] != "0" or digits == "0" or digits[1] == "."


def _number(value: str) -> float | int:
    return float(value) if "." in value else int(value)


SYSTEMS = (
    "You are a [kind|good|quick|polite|clever|patient] [helper|assistant|bot|model|clerk].", "[Answer|Reply|Speak|Write] [briefly|shortly|politely|in one line|in English|exactly].", "You work for [a bank|a shop|a school|the {a} team|{n}].",
    "[Help|Serve|Assist] the [user|people|guests|team] with the {a}.", "[This is|You are on] the {a} [desk|line|chat].",
    "You are [{n}|a bot], the [friendly|official] [assistant|voice] of [a hotel|a museum|a library|a clinic|a railway].", "[Be|Stay] [brief|polite|kind|exact|honest|patient].", "[Keep|Make] [answers|replies] [short|brief|to one sentence].", "Do not [guess|invent|make things up].", "If you do not know, say so.", "[Today is|It is] [Monday|Friday|a holiday|raining].", "[Your|The] user [works in|asks about|writes about] {a}.", "You are a [customer service|help desk|front desk|travel|garden|kitchen|office] [agent|assistant|bot].", "[Role|Task|Job]: [helper|assistant|clerk|extraction|support].", "[Use|Call] [the tools|a tool] [if needed|when it helps|for numbers].", "[Think|Look] [first|twice], then [answer|reply].", "You [speak|write] [plain|simple|British|American] English.", "[Never|Do not] [talk about|mention|discuss] the {a}.", "Assistant for {n}.", "[Welcome to|This is] {n} [support|chat|help].", "SYSTEM: [answer|help|assist] the user.", "You are an AI [model|assistant] [that|which] [helps|serves|answers] [people|users].", "[You help|You assist] [customers|students|doctors|travellers|farmers|cooks] [with|in] [their|] {a}.", "[Answer|Reply] only [from the text|in JSON|with facts|with what you know].", "Your name is {n}.", "[Tone|Style]: [warm|neutral|formal|dry].", "[No|Avoid] [long answers|jokes|emojis|markdown].", "helpful assistant", "Chatbot of the {a} shop", "You [run|live] [on a phone|in a fridge|in a car|offline].", "[You are|Act as] [my|our] [secretary|butler|librarian|note keeper|second memory].", "[Remember|Note] what the user [tells you|says].", "[Take notes|Keep track] of [facts|what is said].", "[You label|You sort|You file] [texts|mails|tickets].", "The [chat|conversation] is about {a} and [more|other things].", "[Rules|Guidelines]: [be kind|be short|be correct].", "[Company|Team|Shop]: {n}. [Hours|Open]: 9 to 5.", "[Support line|Hotline|Service desk], {n}", "You never [sleep|lie|shout|complain].", "[Small|Tiny|Pocket] [model|assistant], [short|exact] [answers|replies].", "[Respond|Answer] to the last message.", "[The user|The customer] may be [angry|in a hurry|a child|not a native speaker].", "You [do|know] only [simple|small] things.", "[Help|Serve] well.",
)  # fmt: skip


def _system(d: Draw, share: float) -> list[Message]:
    return (
        [{"role": "system", "content": d.vary(d.pick(SYSTEMS)).format(a=noun(d), n=titled(d))}]
        if d.chance(share)
        else []
    )


# --- few-shot ------------------------------------------------------------------------------------------------------------

FUNCTION_WORDS = "the a my our this that is was are were has have had not no and or but if in on at to of for with by from it they we you I he she when after before why how what still again now then so too very all two three".split()  # fmt: skip


def _close(text: str) -> str:
    """The text without spaces before punctuation, which empty choices leave behind."""
    return text.strip().replace(" .", ".").replace(" !", "!").replace(" ,", ",")


def _text_of(d: Draw, words: Sequence[str], parts: tuple[Sequence[str], ...], name: str, others: set[str]) -> str:
    """A sentence about a subject: a template, or its words among function words. others: words of other subjects, which
    templates avoid."""
    way = d.rng.random()
    text = ""
    if name in CLAUSES and d.chance(0.45):
        text = _close(d.vary(d.pick(CLAUSES[name])).format(n=first(d)) + d.pick((".", "", ".", "!")))
        text = "" if others.intersection(re.findall("[a-z]+", text.lower())) else text
    if text:
        pass
    elif way < 0.45 and parts and min(map(len, parts)) > 1:
        nouns, verbs, adjectives = parts
        (a, b), (v, w), (j, h) = d.some(nouns, 2), d.some(verbs, 2), d.some(adjectives, 2)
        text = d.vary(d.pick(SENTENCES)).format(a=a, b=b, v=v, w=w, j=j, h=h, n=first(d))
    elif way < 0.8:
        a, b, c = d.some(words, 3)
        other = b if d.chance(0.7) else noun(d)
        text = d.vary(d.pick(SAID)).format(
            a=a, b=b if other in others else other, c=c if d.chance(0.5) else d.word(), n=first(d)
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
    text = " ".join(text.split())
    if d.chance(0.04):
        return text.upper() if d.chance(0.3) else text.lower()
    return text[0].upper() + text[1:] if d.chance(0.85) else text


def _intent_text(d: Draw, ways: Sequence[str]) -> str:
    text = _close(d.vary(d.pick(ways)).format(a=_plain(d), b=_plain(d), n=first(d)))
    return casual(d, text) if d.chance(0.2) else text


def _plain(d: Draw) -> str:
    """A noun that fits into a sentence, sometimes any word of a subject."""
    return d.pick(NOUNS) if d.chance(0.75) else noun(d)


def _apart(d: Draw, n: int) -> list[str]:
    """Names of n intents that can be told apart."""
    names: list[str] = []
    for name in d.some(tuple(INTENTS), len(INTENTS)):
        if len(names) < n and not any(name in kin and other in kin for kin in KINDRED for other in names):
            names.append(name)
    return names


_WORDS_OF = {name: {*SUBJECTS[name], *(word for part in PARTS[name] for word in part)} for name in SUBJECTS}


def _makers(d: Draw, n: int) -> tuple[list[list[str]], list[Callable[[], str]]]:
    """(Possible labels of each of at most n classes, a function that makes a text of each class)."""
    source = d.rng.random()
    if source < 0.7:
        return theme_makers(d, min(n, 5), first) if source < 0.35 else intents.classes(d, n, first)
    kind = d.rng.random()
    if kind < 0.1:
        names = _apart(d, n)
        return [[name, *NAMES_OF[name]] for name in names], [
            lambda ways=INTENTS[name]: _intent_text(d, ways)  # type: ignore[misc]
            for name in names
        ]
    if kind < 0.5:
        group = d.pick(GROUPS) if kind < 0.3 else d.pick(OFTEN)
        keys = d.some(tuple(group), min(n, len(group)))
        return [key.split("|") for key in keys], [
            lambda ways=group[key]: _intent_text(d, ways)  # type: ignore[misc]
            for key in keys
        ]
    names = d.some(("joy", "anger"), 2) if kind < 0.53 else d.some(tuple(CLAUSES if d.chance(0.4) else SUBJECTS), n)
    shared = [set().union(*(_WORDS_OF[other] for other in names if other != name)) for name in names]
    own = [[word for word in SUBJECTS[name] if word not in others] for name, others in zip(names, shared, strict=True)]
    parts = [
        tuple([word for word in part if word not in others] for part in PARTS[name])
        for name, others in zip(names, shared, strict=True)
    ]
    if any(len(words) < 4 for words in own):
        return _makers(d, n)
    return [[name, *NAMES_OF[name]] for name in names], [
        lambda w=words, p=part, n=name, o=other: _text_of(d, w, p, n, o)  # type: ignore[misc]
        for words, part, name, other in zip(own, parts, names, shared, strict=True)
    ]


def _bent(d: Draw, label: str) -> str:
    """A changed form of a label, so that labels must be copied and cannot be guessed."""
    ends = ("ing", "s", "er", "y", "ish", "ful", "ed", "able", "ist", "ery", "2", "_desk", "-like", "ation", "ment")
    way = d.rng.random()
    if way < 0.45:
        return label.rstrip("ey") + d.pick(ends)
    if way < 0.65:
        return d.pick(("re", "un", "pre", "x_", "is_", "all-", "my_", "sub")) + label
    return label + d.pick((f"_{d.word()}", f" {noun(d)}", f"-{noun(d)}", f" & {noun(d)}", f"_{d.rng.randrange(9)}"))


def _labels(d: Draw, options: Sequence[Sequence[str]]) -> list[str]:
    """A label for each class: mostly one of its meaningful `options`, else a sign, a code or any word."""
    way = d.rng.random()
    if way < 0.65:
        labels = [name[0] if d.chance(0.3) else d.pick(name) for name in options]
        others = [{n for o in options if o is not mine for n in o} for mine in options]
        if not any(label in names for label, names in zip(labels, others, strict=True)):
            return [_bent(d, label) for label in labels] if d.chance(0.25) else labels
    if 0.65 < way < 0.75:  # signs and codes
        marks = d.pick(MARKS)
        if len(marks) >= len(options):
            return d.some(marks, len(options))
    labels = [noun(d) for _ in options] if way > 0.88 else d.distinct("label", len(options))
    return labels if len(set(labels)) == len(options) else d.distinct("label", len(options))


FORMS = (
    ("Text: ", "\nLabel:", "\n\n"), ("Sentence: ", "\nTopic:", "\n\n"), ("Question: ", "\nKind:", "\n"), ("", " ->", "\n"), ("", " :", "\n"), ("* ", " =", "\n"), ("", "\t", "\n"), ("", ",", "\n"), ("", ";", "\n"), ("'", "',", "\n"),
    ("Ticket: ", "\nQueue:", "\n\n"), ("Comment: ", "\nTag:", "\n---\n"), ("Q: ", "\nA:", "\n\n"), ("<", ">", "\n"), ("Example: ", " Class:", "\n"), ("", " ==", "\n"), ("In: ", "\nOut:", "\n"), ("> ", "\n<", "\n"), ("", "\n", "\n\n"), ("Mail: ", " | Type:", "\n"),
    ("Review: ", "\nSentiment:", "\n\n"), ("Message: ", "\nCategory:", "\n\n"), ("Input: ", "\nOutput:", "\n\n"), ("input=", " output=", "\n"), ("text: ", " | label: ", "\n"), ("- ", " =>", "\n"), ("", " |", "\n"), ("", " --", "\n"), ("", " ...", "\n"), ("", " ~", "\n"), ("Headline: ", "\nSection:", "\n\n"), ("Customer: ", "\nTeam:", "\n\n"),
    ("Request: ", "\nDepartment:", "\n\n"), ("Email: ", "\nFolder:", "\n\n"), ("Subject: ", "\nFolder:", "\n"), ("User: ", "\nIntent:", "\n\n"), ("Statement: ", "\nVerdict:", "\n\n"), ("Line: ", "\nMark:", "\n"), ("Item: ", "\nGroup:", "\n"), ("Post: ", "\nTag:", "\n\n"), ("Tweet: ", "\nMood:", "\n\n"), ("Utterance: ", "\nIntent:", "\n"), ("Snippet: ", "\nClass:", "\n###\n"), ("Document: ", "\nSubject:", "\n\n"),
    ("Phrase: ", " Answer:", "\n"), ("\"", "\" is", "\n"), ("\"", "\":", "\n"), ("\"", "\" ->", "\n"), ("(", ")", "\n"), ("TEXT: ", "\nLABEL:", "\n\n"), ("Note: ", "\nFile under:", "\n\n"), ("Said: ", "\nMeans:", "\n"), ("Report: ", "\nPriority:", "\n\n"), ("Complaint: ", "\nSent to:", "\n\n"), ("x: ", "\ny:", "\n"), ("Case: ", "\nDecision:", "\n\n"), ("", "\t", "\r\n"), ("[", "]", "\n"), ("# ", "\n", "\n\n"), ("Human: ", "\nLabel:", "\n\n"), ("Text -- ", "\nLabel --", "\n"), ("Content: ", ", category:", "\n"),
)  # fmt: skip
LEADS = ("", "", "", "[Label|Sort|Tag|Mark|Classify] [the texts|each line|the last one|them all][.|:]", "[Choose|Find|Say|Give] the [label|class|tag|topic|kind] [of the last text|that fits][.|:]", "The labels are {l}.", "[Classes|Labels|Tags|Topics]: {l}", "[Continue|Complete|Finish] the [list|table|file].", "[id|line|text|body],[class|kind|tag|topic]", "[Choose|Select] from {l}.",
    "[Decide|Tell|Say|State] [which|what] [class|group|kind|label|tag|category] [each text|every line|the last one] [is|belongs to|has][.|:]", "[Here are|These are|Below are] [some|a few|labelled|sorted] [examples|texts|lines|cases][.|:]", "[Assign|Give|Put] [one|exactly one] of [these|the] [labels|tags|categories|classes][:|,] {l}[.|]", "[Categories|Options|Possible labels|Allowed answers|Choices|Groups]: {l}[.|]", "[Sort|Route|File|Send] [each|every] [mail|ticket|message|request] [to|into|under] [one of |]{l}[.|]", "[Is it|Is this|Is the text] {l}?", "[Answer|Reply|Respond] with [the label|one word|the class] only[.|:]", "[Pick|Use|Take] one: {l}", "[Follow|Use|Go by] the [examples|pattern|samples][.|:]", "[What|Which] [label|tag|class|topic|category|type] [comes next|is next|fits the last text|does the last one get]?", "[Text classification|Sorting task|Labelling|Classifier|Few-shot task][:|.]", "[We|I] [sort|label|file] [our|my] [mails|notes|tickets|reviews] [like this|as follows|so][:|.]", "[You are|Act as|Be] a [classifier|sorter|labeller|mail sorter][.|: {l}.]", "[Detect|Recognise|Predict|Determine|Identify] the [label|mood|intent|topic|kind] [of each text|of the text|][.|:]",
)  # fmt: skip

MARKS = tuple(tuple(row.split()) for row in ("1 2 3 4 5 6 7 8 9", "0 1", "A B C D E F G H", "a b c d e f", "X Y Z", "I II III IV V VI", "L1 L2 L3 L4 L5", "+ - ? ! *", "☀ ☂ ★ ♥ ☎ ✂", "🙂 🚗 🌳 🍎 🐶 ⚽", "red green blue yellow black white", "alpha beta gamma delta epsilon", "100 200 300 400 500", "class_a class_b class_c class_d", "<1> <2> <3> <4>", "north south east west", "left right up down", "foo bar baz qux", "T-01 T-02 T-03 T-04", "one two three four five six"))  # fmt: skip
_OF_TEXT = "Text Sentence Question Ticket Comment Note Message Input Item Post Email Report Case Example Phrase Request Title Chat Query Content Document Utterance Statement Excerpt Snippet Fragment Body Words Quote Remark Letter SMS Feedback Voice Caller Guest|A caller said|Someone asks|He writes|We got|Today's mail|This came in|What they said|The client says|Read".split("|")  # fmt: skip
_OF_TEXT = (*_OF_TEXT[0].split(), *_OF_TEXT[1:])
_OF_LABEL = "Label Topic Kind Queue Tag Type Category Group Folder Team Section Mood Intent Output Answer Result Verdict Code Mark Field Stamp Desk Drawer Heading Theme Decision Target Choice Route Shelf Sort|Belongs to|Passed on to|I call this|So it is|Stored in|Handled by|Sent to|That makes it|Best fit|This one is".split("|")  # fmt: skip
_OF_LABEL = (*_OF_LABEL[0].split(), *_OF_LABEL[1:])
_QUOTES = (("'", "'"), ("«", "»"), ("“", "”"), ("`", "`"), ("<t>", "</t>"), ("[", "]"), ("(", ")"), ("**", "**"), ("{", "}"), ("''", "''"), ("<<", ">>"), ("_", "_"), ("", ""), ("", ""), ("", ""))  # fmt: skip
_BETWEEN = (",", ",", ";", "\t", " |", " ->", " -->", " :", " -", " /", " #", " →", " ::", ":", " is", " as", " means", " goes to", " =", " >", "..", " //", "|", " class=")  # fmt: skip
_STARTS = ("", "", "", "", "-- ", "* ", "> ", "# ", "+ ", "• ", "| ", "row: ", "@ ")
_FIXED = (('{"text": "', '", "label": "', '"}\n'), ('{"input": "', '", "output": "', '"}\n'), ("| ", " |", " |\n"), ("<doc>", "</doc><tag>", "</tag>\n"), ('("', '", "', '"),\n'), ("text=", ";label=", "\n"))  # fmt: skip

_TIGHT = {before for before, between, _ in _FIXED if between[-1] in '">='}


def _form(d: Draw) -> tuple[str, str, str]:
    """(String before a text, string between the text and its label, string after the label)."""
    way = d.rng.random()
    if way < 0.35:
        return d.pick(FORMS)
    if way < 0.42:
        return d.pick(_FIXED)
    opening, closing = d.pick(_QUOTES)
    if way < 0.7:
        return (
            d.pick(_STARTS) + opening,
            closing + d.pick(_BETWEEN).rstrip(" "),
            d.pick(("\n", "\n", "\n", "\n\n", ";\n")),
        )
    a, b = d.pick(_OF_TEXT), d.pick(_OF_LABEL)
    if d.chance(0.2):
        a, b = (a.lower(), b.lower()) if d.chance(0.5) else (a.upper(), b.upper())
    is_sign, line = d.pick((":", ":", ":", ":", " =", " -", " >", "")), d.pick(("\n", "\n", "\n", " | ", " / ", ". "))
    after = d.pick(("\n\n", "\n\n", "\n\n", "\n---\n", "\n##\n")) if line == "\n" else "\n"
    return f"{a}{is_sign or ':'} {opening}", f"{closing}{line}{b}{is_sign or ':'}", after


def everyday_few_shot(d: Draw) -> Sample:
    """Two to six examples of each label, or a table of many rows; then texts of the same subjects."""
    n = d.pick((2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7))
    names, makers = _makers(d, n)
    labels = _labels(d, names)
    if d.chance(0.15):
        labels = [label.upper() if d.chance(0.2) else label.capitalize() for label in labels]
    k = d.pick((2, 3, 3, 4, 4, 5, 6)) if d.chance(0.9) else d.pick((8, 12))
    if n > 4:
        k = min(k, 3)
    order = [i for i in range(len(names)) for _ in range(k)]
    if d.chance(0.3) and k > 2:  # classes have different numbers of examples
        order = [i for i in range(len(names)) for _ in range(d.rng.randrange(1, k + 1))]
    d.rng.shuffle(order)
    before, between, after = _form(d)
    is_tight = before in _TIGHT or (between[-1] in ",\t\n;<" and d.chance(0.7))
    gap = "" if is_tight else " "
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
    """Lines with words of one subject each. From these, the model learns faster than from labels which words go
    together."""
    fields = [theme.nouns + theme.verbs for theme in THEMES] if d.chance(0.6) else list(SUBJECTS.values())
    rows = [d.some(field, d.rng.randrange(4, 10)) for field in d.some(fields, d.rng.randrange(2, 6))]
    between = d.pick((", ", " ", "; "))
    return Sample(
        "subjects",
        plain=tuple(part for row in rows for part in (row[0], Target(between + between.join(row[1:])), "\n")),
    )


# --- recall, reading -----------------------------------------------------------------------------------------------------

BELONGINGS: tuple[tuple[str, Maker], ...] = (
    ("dog", pet), ("cat", pet), ("horse", pet), ("parrot", pet), ("brother", first), ("mother", first), ("father", first), ("boss", person), ("teacher", person), ("neighbour", person), ("doctor", person), ("wife", first), ("son", first), ("daughter", first),
    ("school", titled), ("street", street), ("birthplace", place), ("home town", place), ("country", place), ("bank", titled), ("car", titled), ("boat", titled), ("team", titled), ("favourite band", titled), ("favourite book", titled), ("favourite food", thing),
    ("favourite animal", noun), ("favourite number", whole(1, 9999)), ("favourite drink", noun), ("hobby", noun), ("password", code), ("pin", lambda d: d.digits(4)), ("plate", code), ("seat", code), ("ticket", code), ("booking", code), ("customer number", phone), ("room number", whole(1, 999)),
    ("shoe size", whole(20, 50)), ("height", whole(120, 210)), ("weight", whole(30, 150)), ("birthday", Draw.date), ("deadline", Draw.date), ("meeting", lambda d: d.pick(DAYS)), ("haircut", lambda d: d.pick(DAYS)), ("train", clock), ("email", mail), ("budget", money), ("gate", code), ("desk", whole(1, 400)),
    ("puppy", pet), ("kitten", pet), ("rabbit", pet), ("hamster", pet), ("goldfish", pet), ("pony", pet), ("donkey", pet), ("tortoise", pet), ("goat", pet), ("cow", pet), ("hen", pet), ("parakeet", pet), ("guinea pig", pet), ("old cat", pet), ("second dog", pet), ("sister", first), ("aunt", first), ("uncle", first), ("cousin", first), ("nephew", first), ("niece", first), ("grandmother", first), ("grandfather", first), ("stepsister", first), ("best friend", first), ("husband", first), ("girlfriend", first), ("boyfriend", first), ("baby", first), ("twin", first), ("roommate", first), ("godfather", first), ("fiancee", first), ("oldest child", first), ("tailor", first), ("dentist", person), ("lawyer", person), ("landlord", person), ("manager", person), ("coach", person), ("hairdresser", person), ("accountant", person), ("supervisor", person), ("colleague", person), ("mentor", person), ("piano teacher", person), ("midwife", person), ("vet", person), ("tutor", person), ("client", person), ("assistant", person), ("pen friend", person), ("plumber", person), ("mother-in-law", person), ("favourite singer", person), ("favourite author", person), ("contact person", person), ("holiday destination", place), ("current city", place), ("old town", place), ("next stop", place), ("parents' village", place), ("office location", place), ("dream country", place), ("hiding place", place), ("favourite city", place), ("employer", titled), ("university", titled), ("church", titled), ("gym", titled), ("hotel", titled), ("favourite film", titled), ("favourite song", titled), ("choir", titled), ("club", titled), ("company", titled), ("newspaper", titled), ("insurance company", titled), ("favourite restaurant", titled), ("ship", titled), ("street team", titled), ("project", titled), ("album", titled), ("breakfast", kind_of("food")), ("lunch", kind_of("food")), ("favourite dish", kind_of("food")), ("usual pizza topping", kind_of("food")), ("favourite colour", kind_of("colour")), ("eye colour", kind_of("colour")), ("car colour", kind_of("colour")), ("door colour", kind_of("colour")), ("favourite drink at work", kind_of("drink")), ("job", kind_of("job")), ("old job", kind_of("job")), ("dream job", kind_of("job")), ("mother's job", kind_of("job")), ("favourite sport", kind_of("sport")), ("instrument", kind_of("instrument")), ("illness", kind_of("illness")), ("native language", kind_of("language")), ("second language", kind_of("language")), ("favourite month", kind_of("month")), ("favourite season", kind_of("season")), ("school subject", kind_of("subject")), ("favourite subject", kind_of("subject")), ("way to work", kind_of("vehicle")), ("shirt size", kind_of("size")), ("day off", kind_of("weekday")), ("laundry day", kind_of("weekday")), ("gym day", kind_of("weekday")), ("piano lesson", kind_of("weekday")), ("favourite material", kind_of("material")), ("spare time fun", kind_of("hobby")), ("locker code", code), ("membership number", code), ("flight number", code), ("passport number", code), ("wifi password", code), ("door code", code), ("safe code", code), ("order number", code), ("invoice number", code), ("tracking number", code), ("licence plate", code), ("user name", code), ("voucher code", code), ("bike lock code", code), ("library card", code), ("serial number", code), ("parking spot", code), ("policy number", code), ("phone number", phone), ("work number", phone), ("account number", phone), ("customer id", phone), ("wedding day", Draw.date), ("exam date", Draw.date), ("moving date", Draw.date), ("due date", Draw.date), ("start date", Draw.date), ("dentist appointment", Draw.date), ("anniversary", Draw.date), ("last holiday", Draw.date), ("expiry date", Draw.date), ("alarm", clock), ("shift", clock), ("lunch break", clock), ("flight", clock), ("bus", clock), ("bedtime", clock), ("curfew", clock), ("appointment", clock), ("yoga class", clock), ("interview", clock), ("check-in", clock), ("salary", money), ("rent", money), ("pocket money", money), ("phone bill", money), ("savings goal", money), ("electricity bill", money), ("age", whole(5, 99)), ("lucky number", whole(1, 999)), ("floor", whole(1, 60)), ("house number", whole(1, 400)), ("team number", whole(1, 99)), ("bus number", whole(1, 300)), ("best score", whole(10, 9999)), ("number of cousins", whole(2, 40)),
)  # fmt: skip
STATED = (
    "My {r} is {v}.",
    "My {r}[: |'s ]{v}[.|]",
    "[Note|Remember|Keep in mind|Write down|Do not forget]: my {r} is {v}.",
    "[You should know|I tell you|Let me say|Just so you know] that my {r} is {v}.",
    "{v} is my {r}.",
    "[The|This] {r} I have is {v}.",
    "I [have|got] [a|the] {r}[:|,| called| named] {v}.",
    "[For|About|As] my {r}[:|,|, it is] {v}.",
    "My {r} is [called|named] {v}.",
    "My [old|new|own|dear] {r} is {v}.",
    "The name of my {r} is {v}.",
    "We [have|own|keep] a {r}, {v}.",
    "I have a {r}. [Its name is|It is|The name is|That is] {v}.",
    "[Let me introduce|Meet|This is|Say hello to] my {r}[,|:] {v}[.|!]",
    "{v}, my {r}, [says hello|sends greetings|is here|came along|is asleep][.|]",
    "My {r} [goes by the name of|answers to|was given the name|has the name] {v}[.|]",
    "[We|They|My parents] [named|called|christened] my {r} {v}.",
    "[Everybody|Everyone|The family] calls my {r} {v}.",
    "I [love|miss|admire|think of] my {r}[,| named| called] {v}[.|]",
    "{v} is [the name of my {r}|what my {r} is called|how my {r} is called].",
    "[Yesterday|Today|Last week] I [saw|met|visited] my {r}[,|, named] {v}.",
)
# statements of any fact, also about things
ALSO_STATED = (
    "my {r}: {v}", "{r} = {v}", "[FYI|fyi|btw|BTW|PS|Info|NB][:|,] my {r} is {v}[.|]", "[Please|pls|Kindly] [save|store|note|keep|write down|remember] [this|that]: my {r} is {v}[.|]", "[It may help to know|I should mention|I forgot to say|For your files|For later|I'd like you to know|Be aware] [that |]my {r} is {v}.", "[As for|Regarding|Concerning|When it comes to|About] my {r}, it's {v}[.|]", "my {r} [is|iz|s] {v} ok[?|]", "[So|Well|Okay|Right|Oh], my {r} is {v}[.|, you see.|]", "[Can|Could|Will] you [remember|note|keep in mind] that my {r} is {v}?", "[Save|Store|Keep] {v} as my {r}[.|, please.]",
    "MY {r} IS {v}[!|]", "[I was told|They say|It says here|According to my papers] my {r} is {v}.", "My {r}, [by the way|if you need it|just in case], is {v}[.|]", "[Don't|Do not|Never] forget my {r}[: |, it is |, which is ]{v}[.|!]", "[In case|If] [anyone|somebody|you] asks, my {r} is {v}.", "[My|The] {r}[?| is?] {v}[.|!]", "[Put down|Enter|File] {v} [for|under|as] my {r}[.|]", "The [right|correct|new] {r} [for me|of mine] is {v}.", "[Since|From] [May|last year|Monday] my {r} [is|has been] {v}.", "[I have|I've got] {v} [as|for] [a|my] {r}.", "[Hi|Hello], {v} is my {r}[, remember it|, keep it|][.|!]", "[Let it be known|Know|Mark my words]: my {r} is {v}.",
)  # fmt: skip
ASKED_FOR = (
    "[What|Which] [is|was|'s] my {r}[ again| called| now|]?",
    "[Tell|Remind|Give] me my {r}[.|, please.| again.]",
    "Do you [know|remember|recall] my {r}?",
    "[Which|What] {r} [do I have|did I tell you|is mine|did I say]?",
    "Who is my {r}?",
    "How is my {r} called?",
    "[What|Which] [is the|'s the|is] name of my {r}?",
    "[And|So|Now,] my {r}?",
    "What did I [say|tell you] [about|of] my {r}?",
    "What was my {r} again?",
    "[When|Where|What] is my {r}?",
    "What's the {r}?",
    "Say my {r}.",
    "[my|the] {r}[?|??]",
    "[Any idea|Got any idea|No idea] what my {r} is?",
    "[I forgot|I can't remember|I don't recall|It slipped my mind|Help me out]: [what's|what is|what was] my {r}?",
    "[Could|Can|Would|Will] you [please |kindly |][tell me|repeat|remind me of|look up|give me|state] my {r}[?| again?| once more?]",
    "[What|Which] {r} did I [mention|give you|tell you about|name|write]?",
    "[Quiz|Test|Question|Memory test]: my {r}?",
    "[What did I say|Didn't I tell you|What have I said] my {r} [is|was]?",
    "[Remember|Recall|Repeat|State|Name] my {r}[.|!|, please.|]",
    "[Let's see|Now then|Okay|Right], [what is|what's] my {r}?",
    "[So what|And what|Now what] [was|is] [that|my] {r}[ again|]?",
    "[Somebody|My friend|The clerk] wants to know my {r}[.|. What is it?|, can you tell?]",
    "[I need|I want|I would like to know|Show|Print|Give] my {r}[.|, please.| now.|]",
    "{r}?",
    "{r} [please|pls|plz]",
    "what [is|iz|was] my {r} [again|pls|m8|]",
    "[From|According to] what I told you, [what is|what's] my {r}?",
    "[You|you] [know|remember|still know] my {r}, [right|don't you|yes]?",
    "[I told you|I gave you|I mentioned] my {r}[.|,] [What is it|which is it|what was it]?",
    "[Do|Can] you [by any chance|perhaps|maybe|still] [know|recall|say|remember] [what my {r} is|my {r}]?",
    "[Fill in|Complete]: my {r} is",
    "My {r} is [what|which one]?",
    "[Where did I note|Have you got|Did you save|Did you note] my {r}?",
    "[Hey|Say|Listen], [what's|which is] my {r}?",
    "WHAT IS MY {r}[?|??|!?]",
    "The [answer|information] I need: my {r}.",
    "[Tell|Remind] me what my {r} is[.|, please.|]",
    "[Would|Do] you happen to know my {r}?",
    "[What|Which] [would|could|might] my {r} be?",
)
# questions that fit only values of one sort
SORTED_ASKED: tuple[tuple[Maker, tuple[str, ...]], ...] = (
    (pet, ("What is my {r}'s name?", "[What|How] do I call my {r}?", "What did I name my {r}?", "[What's|What is] the name of [that|my] {r} of mine?", "Which name has my {r}?", "By what name does my {r} go?")),
    (first, ("Who's my {r}?", "What is my {r}'s name?", "[What's|What is] the name of my {r}[ again|]?", "What do people call my {r}?", "Name my {r}.", "Which name has my {r}?")),
    (person, ("Who's my {r}?", "What is my {r}'s name?", "[Which|What] person is my {r}?", "Who did I say is my {r}?", "Name my {r}.", "Who was my {r} again?")),
    (place, ("Where's my {r}?", "[What|Which] [place|town] is my {r}?", "Where did I say my {r} is?")), (clock, ("When's my {r}?", "At what time is my {r}?", "What time is my {r}[ at|]?", "[When|What time] did I say my {r} is?", "How late is my {r}?")),
    (Draw.date, ("When's my {r}?", "On [what|which] [date|day] is my {r}?", "What date is my {r}?", "[When|What day] did I say my {r} is?")), (money, ("How much is my {r}?", "[What|How much] does my {r} [come to|amount to]?", "How high is my {r}?", "How large is my {r}?")), (code, ("[What|How] does my {r} [read|go]?", "[Spell|Type|Read] my {r}.", "Which [digits and letters|characters] make up my {r}?")),
    (titled, ("[What|How] is my {r} called?", "What's the name of my {r}?", "Which one is my {r}?")),
)  # fmt: skip
# (statements of the user, questions, answer, maker of the value)
TOLD: tuple[tuple[tuple[str, ...], tuple[str, ...], str, Maker], ...] = (
    (("I am {v}.", "I'm {v}.", "My name is {v}.", "It's me, {v}.", "I'm called {v}[ by all|].", "[Hi|Hello|Hey|Good day][,|!] [I am|I'm|my name is] {v}[.|!|]", "The name is {v}.", "[They|People|Friends] call me {v}.", "{v} is my name.", "Just call me {v}.", "I go by {v}.", "People know me as {v}.", "{v} here.", "You are talking to {v}.", "I was [named|christened] {v}[ after my grandmother|].", "My parents chose {v} for me.", "[Signed|Yours|Greetings], {v}", "The person [writing|typing] is {v}.", "On my badge it says {v}.", "Everyone knows me, I am {v}."), ("What is my name?", "Who am I?", "What's my name[ again|]?", "[Do you know|Can you say|Tell me] [who I am|my name][?|]", "What [am I|do they] call[ed|] [me|]?", "My name?", "Do you remember [my name|me|who I am]?", "How am I called?", "Who is [writing|talking] to you?", "By what name do you know me?", "How should you address me?", "[What|Which] name did I give you?", "Say my name.", "[What|Which] name is mine?", "What is on my badge?", "Who are you talking to?", "What do people know me as?", "[Any idea|Can you tell|Guess] who I am?", "whats my name"), "Your name is {v}.", first),
    (("I live in {v}.", "I'm [living|staying|at home] in {v}.", "I come from {v}.", "I [was born|started|went to school] in {v}.", "I moved to {v}.", "My family is from {v}.", "I am from {v}.", "Home for me is {v}.", "I'm from {v}.", "I spent my childhood in {v}.", "My roots are in {v}.", "I have a flat in {v}.", "{v} is where I live.", "You find me in {v}.", "We settled in {v}.", "I call {v} home."), ("Where do I live?", "Where [do I come|did I say I am|am I] from?", "[Which|What] [city|town|place] [am I from|do I live in|is mine|did I tell you]?", "Where was I born?", "Where's my home?", "Where did I move?", "Where are my roots?", "Where do you find me?", "[What|Which] place do I call home?", "Where did we settle?", "Where did I spend my childhood?", "Where is my flat?", "In which [town|city] am I at home?"), "You live in {v}.", place),
    (("I work as a {v}.", "I'm a {v}.", "I am a {v} by [trade|training].", "I earn my money as a {v}.", "My work is that of a {v}.", "They pay me as a {v}.", "I've worked as a {v} [all my life|since May].", "[By day|At work|In real life] I am a {v}.", "They hired me as a {v}.", "I trained to be a {v}.", "My occupation is {v}.", "I am employed as a {v}.", "A {v}, that is what I am.", "Like my father I became a {v}.", "{v} is my trade."), ("What do I do[ for work| all day|]?", "What's my job?", "What [work|job] do I do?", "How do I earn my money?", "As what do I work?", "What am I[ by trade|]?", "What's my line of work?", "[What is |]my occupation?", "What is my trade?", "What did I train to be?", "As what did they hire me?", "What do I earn my bread with?", "What did I become?", "what kind of work do i do"), "You are a {v}.", lambda d: d.mixed(JOBS)),
    (("I love {v}.", "I like {v} [best|most|a lot].", "Nothing is better than {v}.", "I am fond of {v}."), ("What do I [like|love]?", "What [do I like best|am I fond of]?", "Which thing do I love?"), "You like {v}.", noun),
    (("I hate {v}.", "I can't stand {v}.", "I do not like {v}.", "I can not eat {v}.", "I [must|have to] avoid {v}[, it makes me ill|]."), ("What do I [hate|avoid]?", "What can't I [stand|eat|have]?", "What must I avoid?", "What makes me ill?"), "You avoid {v}.", noun),
    (("I'm [leaving|flying|coming back|travelling] on {v}.", "I [leave|fly|start|come back] on {v}."), ("When do I [leave|fly|start|come back]?", "[On which day|When] am I [leaving|flying|coming back]?"), "It is on {v}.", lambda d: d.pick(DAYS) if d.chance(0.5) else d.date()),
    (("I'm going to {v} [soon|next week|in May].", "My [trip|holiday] goes to {v}.", "I will [fly|drive|walk] to {v}."), ("Where am I going?", "Where does my [trip|holiday] go?", "Where will I [fly|drive|be]?"), "You are going to {v}.", place),
    (("I [have to|must|need to] pay {v} [euros|dollars|pounds] [for the flat|for my flat] every month.", "[My flat|The flat] costs {v} a month."), ("How [much|high] is the flat?", "What do I pay for the flat?", "What does the flat cost?"), "The flat costs {v}.", money),
    (("I'm allergic to {v}.", "{v} [makes me sneeze|gives me a rash|is poison for me].", "[Careful|Warning], I have an allergy to {v}.", "I react badly to {v}.", "[My doctor says|I found out] I'm allergic to {v}.", "no {v} for me, allergic!", "I get a rash from {v}.", "As I am allergic, keep {v} away from me.", "Allergic to {v} here."), ("So what am I allergic to?", "What was I allergic to?", "[Which|What] allergy did I mention?", "What makes me sneeze?", "What gives me a rash?", "allergic to what?", "To what do I react badly?", "[Do you know|Tell me] what I'm allergic to[?|.]", "[Which|What] thing should be kept away from me?"), "You are allergic to {v}.", kind_of("allergen")),
    (("I play the {v}.", "I'm learning the {v}.", "I've played the {v} [for years|since I was six].", "On weekends I practise the {v}.", "I [take|have] {v} lessons.", "My instrument? The {v}.", "I am a {v} player.", "I play {v} in a band."), ("[What|Which] instrument do I play?", "What do I play?", "[What|Which] instrument am I learning?", "What do I practise on weekends?", "What kind of [music |]lessons do I take?", "What do I play in the band?", "instrument?", "Do you recall which instrument I play?"), "You play the {v}.", kind_of("instrument")),
    (("I study {v}.", "I'm [a student of|studying|reading] {v}.", "My degree is in {v}.", "I'm doing a course in {v}.", "At university I [took|chose] {v}.", "I major in {v}.", "{v} is what I study.", "im studying {v} rn"), ("What do I study?", "[What|Which] subject do I study?", "What's my degree in?", "What am I studying?", "What do I major in?", "[What|Which] course am I doing?", "my studies?", "Remind me what I study."), "You study {v}.", kind_of("subject")),
    (("I speak {v}[ at home| fluently|].", "I'm learning {v}.", "I grew up speaking {v}.", "My mother tongue is {v}.", "We [talk|speak] {v} [in the family|at home].", "I [can|know how to] speak {v}.", "{v} is the language I speak.", "I am fluent in {v}."), ("[What|Which] language do I speak?", "What do I speak at home?", "What is my mother tongue?", "In which language am I fluent?", "[What|Which] language am I learning?", "What tongue do I speak?", "Which language did I grow up with?", "language?"), "You speak {v}.", kind_of("language")),
    (("I put the {n} in {v}.", "The {n} is [in|kept in] {v}.", "I hid the {n} in {v}.", "I [left|forgot] the {n} in {v}.", "You'll find the {n} in {v}.", "We keep the {n} in {v}.", "the {n}'s in {v}", "I've stored the {n} in {v}.", "If you look for the {n}, it's in {v}."), ("Where is the {n}?", "Where did I put the {n}?", "Where did I [hide|leave|store] the {n}?", "Where can I find the {n}?", "[where's|wheres] the {n}", "In what place is the {n}?", "I can't find the {n}. Where is it?", "Do you know where the {n} is?", "Where do we keep the {n}?"), "The {n} is in {v}.", kind_of("spot")),
    (("I go to work by {v}.", "I take the {v} to [work|the office].", "I commute by {v}.", "My way to the office is by {v}.", "I [always|usually] get to work by {v}.", "Every morning I take the {v}.", "The {v} brings me to work.", "by {v}, that's how i commute"), ("How do I [get|go|come] to work?", "How do I commute?", "What do I take to [work|the office]?", "What brings me to work?", "[Which|What] means of transport do I use?", "By what do I commute?", "What do I take every morning?", "commute?"), "You commute by {v}.", kind_of("vehicle")),
    (("I'm {v} years old.", "I am {v}.", "I just turned {v}.", "I'm {v} years of age.", "My age is {v}.", "I've been {v} since May.", "Last month I turned {v}.", "im {v} yrs old", "At {v}, I feel [old|young]."), ("How old am I?", "What's my age?", "What age am I?", "[How many|What number of] years old am I?", "my age?", "how old i am?", "[Tell me|Do you know] how old I am[.|?]", "Which age did I turn?"), "You are {v} years old.", whole(10, 99)),
    (("I have {v} children.", "We have {v} kids.", "I'm [a mother|a father|a parent] of {v}.", "There are {v} children in my house.", "I've got {v} kids.", "My wife and I raised {v} children.", "{v} kids, that's us.", "We are a family with {v} children."), ("How many [children|kids] do I have?", "What's the number of my [children|kids]?", "How many kids [have I got|do we have]?", "How many children did we raise?", "number of kids?", "[Tell me|Say] how many children I have.", "How large is the crowd of my kids?", "how many kids again"), "You have {v} children.", whole(2, 9)),
    (("I'm meeting {v} [tonight|for lunch|at the station|tomorrow].", "{v} and I [meet|have lunch] [tomorrow|today].", "I have a date with {v}.", "My lunch is with {v}.", "I'll see {v} later.", "I have an appointment with {v}.", "I agreed to meet {v}.", "gotta meet {v} l8r"), ("Who am I meeting?", "[Who|Whom] do I [meet|see]?", "With whom do I have a date?", "Who will I see later?", "Who do I have lunch with?", "whom am i going to meet", "[Which|What] person am I meeting?", "Who did I agree to meet?"), "You are meeting {v}.", person),
    (("I'm married to {v}.", "I [married|wed] {v}.", "{v} and I are married.", "{v} and I tied the knot.", "I got married to {v} last year.", "{v} is the one I married.", "I share my life with {v}, we are married.", "Since our wedding {v} and I are happy."), ("[Who|Whom] did I marry?", "Who am I married to?", "To whom am I married?", "Who is [my spouse|my better half]?", "Name the person I married.", "Who tied the knot with me?", "Who do I share my life with?", "spouse?"), "You are married to {v}.", first),
    (("I bought {v} for {f}.", "I'm giving {f} {v}.", "{f} gets {v} from me.", "My present for {f} is {v}.", "I got {v} as a gift for {f}.", "I will wrap up {v} for {f}.", "For {f} I found {v}.", "The gift for {f} is {v}."), ("What did I buy for {f}?", "What am I giving {f}?", "What does {f} get[ from me|]?", "What is the present for {f}?", "[Which|What] gift did I get for {f}?", "What will I wrap up for {f}?", "gift for {f}?", "What did I find for {f}?"), "You give {f} {v}.", kind_of("gift")),
    (("I [took|take] up {v} [last year|again|].", "In my free time I enjoy {v}.", "I spend my weekends with {v}.", "My pastime is {v}.", "I relax with {v}.", "I'm crazy about {v}.", "When I am free, it is {v}.", "{v} is how I spend my evenings."), ("What do I do in my free time?", "What's my pastime?", "How do I spend my [weekends|evenings]?", "How do I relax?", "What am I crazy about?", "What do I do for fun?", "[Which|What] pastime do I have?", "free time?"), "Your pastime is {v}.", kind_of("hobby")),
    (("I was born in {v}, in the month I mean.", "My birthday month is {v}.", "I celebrate my birthday in {v}.", "In {v} I get a year older.", "My birthday falls in {v}.", "{v} is when I get older.", "Birthday cake comes in {v}.", "I get birthday presents in {v}."), ("In [which|what] month do I celebrate my birthday?", "[Which|What] month is my birthday in?", "[Which|What] is my birthday month?", "When do I get a year older?", "When do I get birthday presents?", "birthday month?", "In which month do I get older?", "[What|Which] month does my birthday fall in?"), "Your birthday is in {v}.", kind_of("month")),
    (("For [breakfast|the picnic|supper] I had {v}.", "I ate {v}.", "I just had some {v}.", "There was {v} on my plate.", "I cooked {v}[ last night|].", "I made {v} for supper.", "We had {v}, it was tasty.", "My plate was full of {v}."), ("What did I eat?", "What did I have?", "What was on my plate?", "What did I cook?", "[Which|What] [dish|meal] did I [eat|make|have]?", "What did I make for supper?", "what did i eat again", "What was so tasty?"), "You ate {v}.", kind_of("food")),
    (("I'd like {v} to drink.", "I'll have {v}, please.", "I [always|only] drink {v}.", "{v} is what I drink.", "Bring me {v} to drink.", "I ordered {v}.", "I am thirsty for {v}.", "My glass holds {v}."), ("What do I drink?", "What did I order to drink?", "What is in my glass?", "[Which|What] drink [do I have|did I choose|do I want]?", "What am I thirsty for?", "What should I be brought to drink?", "drink?", "What would I like to drink?"), "You drink {v}.", kind_of("drink")),
    (("My car is painted {v}.", "I painted [the|my] wall {v}.", "The wall is now {v}.", "I chose {v} for the wall.", "We made the wall {v}.", "The wall has got a coat of {v}.", "I went for {v} on the wall.", "paint for the wall: {v}"), ("What colour is the wall?", "[Which|What] colour did I choose for the wall?", "In which colour did I paint the wall?", "How did I paint the wall?", "Which paint is on the wall?", "the wall's colour?", "Of which colour is the wall?", "what color's the wall"), "The wall is {v}.", kind_of("colour")),
    (("I have {v}.", "I suffer from {v}.", "I'm ill, it's {v}.", "The doctor says it is {v}.", "I've come down with {v}.", "I caught {v}.", "I stay home with {v}.", "ive got {v} :("), ("What do I suffer from?", "What illness do I have?", "[What|Which] disease did I mention?", "What did I come down with?", "What did the doctor say it is?", "What do I stay home with?", "What's wrong with me?", "why am i ill"), "You have {v}.", kind_of("illness")),
    (("[On|Every] {v} I [go to the gym|do sport].", "I train on {v}.", "My training is on {v}.", "I do my workout on {v}.", "{v} is the day I train.", "The gym sees me on {v}.", "I work out on {v}.", "gym on {v}, always"), ("When do I [train|go to the gym|work out]?", "On which day do I [train|do sport]?", "[Which|What] day is my training?", "When is my workout?", "When does the gym see me?", "my gym day?", "Which day of the week do I train?", "training when?"), "You train on {v}.", kind_of("weekday")),
    (("I parked [the car |]on level {v}.", "The car is on level {v}.", "We left the car on level {v}.", "Car: level {v}.", "Level {v}, that is where I parked.", "I've parked up on level {v}.", "My car stands on level {v}.", "You find my car on level {v}."), ("Where did I park?", "On [which|what] level is [the|my] car?", "Which level did I park on?", "Where's the car?", "Where did we leave the car?", "Where does my car stand?", "parking level?", "What level was the car on?"), "The car is on level {v}.", whole(2, 40)),
    (("I wear size {v}.", "My clothes are size {v}.", "I take a {v} in shirts.", "Size {v} fits me.", "I need it in {v}, that is my size.", "In clothes I am a {v}.", "{v} is the size for me.", "sz {v} here"), ("What size do I wear?", "[Which|What] size fits me?", "What is my size?", "[Which|What] size are my clothes?", "What size do I take in shirts?", "my size?", "In what size do I need it?", "which size am I"), "You wear size {v}.", kind_of("size")),
    (("I lost my {v}.", "I can't find my {v}.", "My {v} is gone.", "Someone took my {v}.", "I miss my {v}, it's lost.", "My {v} has disappeared.", "I left my {v} somewhere.", "Have you seen my {v}? I lost it."), ("What did I lose?", "What is gone?", "What can't I find?", "What has disappeared?", "[Which|What] thing did I lose?", "What am I missing?", "What did someone take?", "lost what?"), "You lost your {v}.", Draw.item),
    (("I am working on {v}.", "My project is called {v}.", "I lead a project named {v}.", "We call our project {v}.", "The project I work on is {v}.", "I was put on project {v}.", "{v} is the project that keeps me busy.", "I spend my days on project {v}."), ("What [project |]am I working on?", "What is my project called?", "[Which|What] project do I lead?", "What keeps me busy?", "What do we call our project?", "Name my project.", "project name?", "On which project was I put?"), "You work on {v}.", titled),
    (("My flight leaves at {v}.", "I fly at {v}.", "The plane takes off at {v}.", "My plane goes at {v}.", "Take-off is at {v}.", "I must be on the plane at {v}.", "We take off at {v}.", "plane: {v}"), ("When does my [flight leave|plane go]?", "At what time does the plane take off?", "When do we take off?", "What time is take-off?", "At what time do I fly?", "plane when?", "What time must I be on the plane?", "When is my plane?"), "Your plane leaves at {v}.", clock),
    (("The meeting with {f} is at {v}.", "I meet {f} at {v}.", "{f} comes at {v}.", "{f} will be here at {v}.", "At {v} I talk to {f}.", "{f} expects me at {v}.", "I must see {f} at {v}.", "{f}, {v}, do not let me forget."), ("When does {f} come?", "At what time do I meet {f}?", "When is {f} here?", "What time is the meeting with {f}?", "When do I talk to {f}?", "When does {f} expect me?", "{f} when?", "When must I see {f}?"), "{f} comes at {v}.", clock),
    (("I travel with {v}[ tomorrow|].", "They put me on {v}.", "My ticket is for {v}.", "I take {v} home.", "I will catch {v}.", "We go with {v}.", "{v} takes me home.", "I have a place on {v}.", "I got the last seat on {v}."), ("Which connection do I take?", "What do I travel with?", "[Which|What] [plane|train|bus] is mine?", "What did they put me on?", "Which number is on my ticket?", "What do I catch?", "On what do I have a place?", "With what do I go home?", "What takes me home?", "my connection?", "[What|Which] [connection|service] was it[ again|]?"), "You travel with {v}.", code),
    (("I owe {f} {v}.", "{f} lent me {v}.", "I borrowed {v} from {f}.", "I must pay {f} back {v}.", "{f} gets {v} back from me.", "My debt to {f} is {v}.", "I still have to give {f} {v}.", "{v} is what I owe {f}."), ("How much do I owe {f}?", "What did {f} lend me?", "How much did I borrow from {f}?", "What must I pay back to {f}?", "What is my debt to {f}?", "How much does {f} get back?", "owe {f}?", "What do I still have to give {f}?"), "You owe {f} {v}.", money),
    (("I own a {v}.", "I keep a {v}[ as a pet|].", "We got a {v} [from the shelter|last week].", "There is a {v} in my home.", "I adopted a {v}.", "My pet is a {v}.", "A {v} lives with me.", "I share my sofa with a {v}."), ("[What|Which] animal do I [have|own|keep]?", "What pet do I have?", "What kind of pet lives with me?", "What did I adopt?", "[What|Which] animal lives with me?", "pet?", "What sort of animal is my pet?", "With what animal do I share my sofa?"), "You have a {v}.", kind_of("pettype")),
    (("The password for the {n} is {v}.", "You open the {n} with {v}.", "To unlock the {n} type {v}.", "{n} password: {v}", "The {n} needs the password {v}.", "I set the {n} password to {v}.", "{v} unlocks the {n}.", "The secret word for the {n} is {v}."), ("What's the password [for|of] the {n}?", "What unlocks the {n}?", "How do I [open|unlock] the {n}?", "[Which|What] password does the {n} need?", "{n} password?", "What do I type to unlock the {n}?", "To what did I set the {n} password?", "What is the secret word for the {n}?"), "The {n} password is {v}.", code),
    (("I'm [afraid|scared] of {v}s.", "{v}s frighten me.", "I fear {v}s.", "{v}s give me the creeps.", "I run away from {v}s.", "I panic when I see {v}s.", "Nothing scares me like {v}s.", "im terrified of {v}s"), ("What am I [afraid|scared] of?", "What frightens me?", "What do I fear?", "What gives me the creeps?", "What do I run away from?", "What makes me panic?", "What scares me?", "terrified of what?"), "You fear {v}s.", lambda d: d.mixed(ANIMALS)),
    (("I collect {v}s.", "I have a big collection of {v}s.", "My shelves are full of {v}s.", "I've been collecting {v}s [for years|since school].", "I swap {v}s with friends.", "{v}s are what I collect.", "At fairs I buy {v}s for my collection.", "i r a collector of {v}s"), ("What do I collect?", "What is my collection [of|about]?", "What are my shelves full of?", "What have I been collecting?", "What do I swap with friends?", "What do I buy at fairs?", "collection?", "I am a collector of what?"), "You collect {v}s.", Draw.item),
    (("I was [hired|employed] by {v}.", "My employer is {v}.", "I work for {v}.", "I got a post at {v}.", "{v} pays my salary.", "I signed on with {v}.", "I've been with {v} for ten years.", "I'm on the staff of {v}."), ("Who do I work for?", "[Which|What] [company|firm] do I work for?", "Who is my employer?", "Who [hired|employed] me?", "Who pays my salary?", "With which firm did I sign on?", "employer?", "On whose staff am I?"), "You work for {v}.", titled),
    (("I'm reading {v}.", "My book at the moment is {v}.", "I just finished {v}, a great book.", "The book on my table is {v}.", "I bought the novel {v}.", "I borrowed a book called {v}.", "I'm in the middle of a novel, {v}.", "{v} is the book I'm reading."), ("What am I reading?", "[What|Which] book am I reading?", "[What|Which] book is on my table?", "What [novel|book] did I [buy|finish|borrow]?", "What's the title of my book?", "book?", "Which novel am I in the middle of?", "Name the book I read."), "You read {v}.", titled),
    (("I support {v}.", "My team is {v}.", "I'm a fan of {v}.", "I cheer for {v}.", "I follow {v}, the best club.", "I never miss a game of {v}.", "My heart beats for {v}.", "Go {v}, that is my club!"), ("[What|Which] [team|club] do I support?", "What's my club?", "Of what am I a fan?", "Who do I cheer for?", "[Whose|What] games do I never miss?", "For which club does my heart beat?", "fan of?", "Which club do I follow?"), "You support {v}.", titled),
    (("[Get me out of bed|Get me up] at {v}.", "I get up at {v}.", "My alarm rings at {v}.", "I rise at {v}.", "I'm up at {v} every day.", "The alarm clock is set for {v}.", "I have to be awake at {v}.", "i wake up {v}"), ("When do I [get up|rise|wake up]?", "At what time does my alarm ring?", "For what time is the alarm clock set?", "When must I be awake?", "When am I up?", "What time do I get up?", "wake up when?", "When should I be woken?"), "You get up at {v}.", clock),
    (("The {n} code is {v}.", "[Use|Keep|Save|Remember] the {n} code {v}.", "{v} is the {n} code.", "The code [for|of] the {n} is {v}."), ("What is the {n} code?", "[Which|What] code [did I say|has the {n}|is it for the {n}]?", "Tell me the {n} code.", "The {n} code, please?"), "The {n} code is {v}.", code),
)  # fmt: skip


@functools.cache
def _words(texts: tuple[str, ...]) -> frozenset[str]:
    """The content words of questions: all but `_VAGUE`."""
    return frozenset(re.findall("[a-z]+", re.sub(r"\{\w\}", "", " ".join(texts)).lower())) - _VAGUE


_VAGUE = frozenset(
    """a am again agree agreed all already and any are as at by call called can come d did do does for from get gives go had has
    have how i if in into is it just keep know ll long m many me mention much must my name need of on or person place put r re
    recall remember remind s said say should sort t take tell that the there thing time to up was we what when where which who
    whom whose why will with you day did does kind number which out make makes be been find new one old so more so than then""".split()
)
_WORDS = {relation: _words((relation,)) for relation, _ in BELONGINGS}


def _is_near(
    questions: tuple[str, ...], used: Sequence[tuple[str, ...]], facts: Sequence[tuple[str, object, str]]
) -> bool:
    """Whether these questions could be mistaken for questions about facts that were told before."""
    told = frozenset(re.findall("[a-z]+", " ".join(a.lower() for _, _, a in facts if a.startswith("Your ")))) - _VAGUE
    words = _words(questions)
    return questions in used or bool(words & told) or any(words & _words(other) for other in used)


# facts, and questions that refer to them only by a pronoun; {r}: a relation, {v}: a value
PRONOUNS: tuple[tuple[tuple[str, ...], tuple[str, ...], str, Maker], ...] = (
    (("I have a {r} called {v}.", "My {r} is called {v}.", "We adopted a {r}. We named it {v}.", "Meet my {r}, {v}.", "{v} is our {r}.", "There is a {r} at home, {v}.", "I walk my {r} {v} every day.", "My {r} {v} is asleep."), ("What is [its|his|her] name?", "What's it called[ again|]?", "What did I call it?", "How is [he|she|it] called?", "And [its|his|her] name?", "Do you remember [its|his|her] name?", "What do I call [him|her|it]?", "Which name has it?"), "Your {r} is {v}.", pet),
    (("My {r} is called {v}.", "My {r} {v} came to see us.", "I have one {r}, {v}.", "{v} is my {r}.", "I visited my {r}, {v}.", "My {r}'s name is {v}.", "I talked to {v}, my {r}.", "This is {v}, my {r}."), ("What is [his|her] name?", "What's [he|she] called?", "Who is [he|she]?", "Who came to see us?", "What do people call [him|her]?", "And [his|her] name is?", "Do you recall [his|her] name?", "Whom did I mention?"), "Your {r} is {v}.", first),
    (("My {r} is on {v}.", "I have my {r} on {v}.", "The {r} is set for {v}.", "They moved my {r} to {v}.", "Don't let me forget my {r} on {v}.", "{v} is the day of my {r}.", "Mark it: {r}, {v}.", "My {r} takes place on {v}."), ("When is it?", "On which day is it?", "And when is that?", "When was that again?", "Which day did I say?", "When will it be?", "What day is it on?", "it was when?"), "Your {r} is on {v}.", lambda d: d.pick(DAYS) if d.chance(0.6) else d.date()),
    (("I left my {r} in {v}.", "My {r} is in {v}.", "I put my {r} in {v}.", "You find my {r} in {v}.", "I hid my {r} in {v}.", "My {r}, I keep it in {v}.", "I've stored my {r} in {v}.", "The {r} lies in {v}."), ("Where is it?", "Where did I put it?", "Where can I find it?", "Where was it again?", "And where is that?", "In what place is it?", "where's it", "Where do I have to look for it?"), "Your {r} is in {v}.", kind_of("spot")),
    (("My {r} costs {v}.", "I paid {v} for my {r}.", "I bought a {r} for {v}.", "The {r} was {v} euros.", "A {r} for {v}, what a deal.", "They wanted {v} for the {r}.", "I spent {v} on a {r}.", "My new {r}: {v} dollars."), ("How much was it?", "What did it cost?", "What did I pay for it?", "How much did I spend?", "And the price?", "What was the price of it?", "how much again?", "For how much did I buy it?"), "Your {r} costs {v}.", money),
)  # fmt: skip
_PRONOUN_OF = (ANIMALS, KINDS_OF["family"], tuple("exam meeting party concert interview wedding haircut lesson trip visit surgery move course race test hearing".split()), tuple("key passport umbrella wallet ring phone watch diary ticket camera letter map hammer drill torch scarf".split()), tuple("bike sofa lamp jacket phone tent kettle guitar bed desk boat camera drum coat printer saddle".split()))  # fmt: skip


# replies of another model to a fact
REPLIES = tuple("Okay.|Okay!|Noted!|Noted.|Got it.|Got it!|I see.|All right.|Sure.|Right.|Understood.|Good.|Great.|Fine.|Will do.|Thanks.|Thank you, noted.|Nice!|Very well.|Done.|Saved.|I will keep it in mind.|Good to know.|Of course.|Yes.|Interesting.|Lovely!|Cool.|Alright.|OK".split("|"))  # fmt: skip


# words before and after a fact, words before and after a question, and phrases that correct a fact
BEFORE_FACT = "Hello! |Hey, |Okay so |Well, |Oh, |Right, |Just to let you know, |First of all, |One more thing: |Also, |By the way, |For the record, |A small note: |Fun fact: |Good morning. |And |Listen, |Before I forget: |Hm, |Let me think. |To start with, |Yes, |No, wait: ".split(
    "|"
)
AFTER_FACT = ", nice to be back.| by the way.|, if that helps.|, just so you know.|, okay?|, as you may guess.|, you see.|, I think.|. Please note it.|. That is important.|. Keep it in mind.| :)|!|!!|...|. Thanks for noting.|, believe it or not.|. I am so happy!|. What a day.|, as ever.".split(
    "|"
)
BEFORE_QUESTION = "Sorry, |Okay, |Hmm, |Right, |Now, |Tell me, |One question: |Wait, |Oh, |And |Well, |Please, |Hey, |Next: |Listen, |I wonder, |Be honest: |Back to me: |Hang on, ".split(
    "|"
)
AFTER_QUESTION = " Thanks.| Please.| I forgot.| Do you remember?| I need it now.| Just checking.| It matters.| Tell me.| Quick!| I am not sure any more.| You should know.".split(
    "|"
)
TAKEN_BACK = (
    "[Correction|Update|Sorry, I meant|Change of plan]: my {r} is {v}[ now|].",
    "[Actually|No, wait|Oops|Scratch that|Hold on|My mistake], my {r} is {v}, not {o}.",
    "My {r} [has changed|is new|is a different one now]: {v}.",
    "[Forget|Never mind|Drop] {o}, my {r} is {v}[ now|].",
    "My {r} is no longer {o}[.|;|,] it is {v}[ now|].",
    "It is not {o} any more: my {r} is {v}.",
    "I [changed|mixed up] my {r}[.|;] it is {v}.",
)
# facts about other people, told apart from the user's by their owner
OF_OTHERS = (
    "{n}'s {r} is {v}.",
    "The {r} of {n} is {v}.",
    "{n} has a {r}[:|, it is|,] {v}.",
    "[And|Also,] {n} told me {n}'s {r} is {v}.",
    "{n}: {r} {v}",
    "{v} is {n}'s {r}.",
    "As for {n}, the {r} is {v}.",
    "[My friend|My colleague|My cousin] {n}'s {r} is {v}.",
    '{n} says: "My {r} is {v}."',
)
ASKED_OF_OTHERS = (
    "[What|Which] is {n}'s {r}?",
    "[What's|Tell me|Say] {n}'s {r}[?|.]",
    "[And|So] the {r} of {n}?",
    "Do you [know|remember] {n}'s {r}?",
    "{n}'s {r}?",
    "[What|Which] {r} does {n} have?",
    "[What|Which] [is|was] the {r} of {n}?",
    "What did I say about the {r} of {n}?",
)


# synonyms: the word in a statement=the word in a question
SAME_AS = dict(pair.split("=") for pair in "goldfish=fish;parakeet=budgie;mother=mum;father=dad;grandmother=granny;grandfather=grandpa;boss=superior;job=occupation;email=mail address;car=vehicle;doctor=physician;home town=native town;employer=company;deadline=due date;salary=pay;phone number=telephone number;wifi password=internet password;licence plate=car number;haircut=visit to the barber;hobby=pastime;school=place of learning;bank=money house;street=road;birthplace=place of birth;pony=horse;hen=chicken;neighbour=person next door;lawyer=attorney;coach=trainer;wife=spouse;husband=spouse;daughter=girl;son=boy;baby=youngest child;brother=sibling;best friend=closest friend;vet=animal doctor;dentist=tooth doctor;holiday destination=place to spend the holidays;favourite film=best-loved movie;favourite song=best-loved tune;favourite food=preferred food;favourite drink=preferred drink;favourite colour=preferred hue;favourite city=best-loved town;favourite sport=preferred sport;favourite book=best-loved book;booking=reservation;ticket=ticket number;seat=seat number;gate=boarding gate;pin=secret number;door code=code for the door;safe code=code of the safe;rent=cost of the flat;budget=spending limit;age=number of years;height=body height;shoe size=size in shoes;room number=number of the room;house number=number of the house;alarm=time to get up;bedtime=time for bed;interview=job talk;shift=start of work;appointment=agreed time;train=railway;bus=coach to town;flight=plane;exam date=day of the test;wedding day=marriage date;birthday=day of birth;start date=first day;moving date=day of the move;illness=disease;instrument=thing to play music on;native language=mother tongue;team=side;club=association;university=college;company=firm;newspaper=paper;ship=vessel;landlord=house owner;manager=head;colleague=workmate;roommate=flatmate;girlfriend=sweetheart;boyfriend=sweetheart;uncle=mother's brother;lunch=midday meal;breakfast=morning meal".split(";"))  # fmt: skip


def _wrapped(d: Draw, text: str, before: Sequence[str], after: Sequence[str]) -> str:
    """A fact or a question with some words before or after it."""
    if d.chance(0.5):
        start = text[0].lower() if text[1:2].islower() and text.split()[0] in _OPENERS else text[0]
        return f"{d.pick(before)}{start}{text[1:]}"
    if after is AFTER_FACT and text[-1] in ".!":
        return text[:-1] + d.pick(after)
    return text + d.pick(after) if text[-1] in ".!?" else text


_OPENERS = frozenset("My The This That We Our It There What Which Who Where When How Do Does Did Can Could Tell Say Name Remind In On At".split())  # fmt: skip


def _with_pronoun(d: Draw) -> Sample:
    """One fact, perhaps some small talk, and a question that refers to the fact by a pronoun."""
    i = d.rng.randrange(len(PRONOUNS))
    statements, questions, answer, make = PRONOUNS[i]
    r, v = d.pick(_PRONOUN_OF[i]), make(d)
    messages: list[Message] = _system(d, 0.2)
    said, asked, answer = worded(d, *statements, r=r, v=v), worded(d, *questions), answer.format(r=r, v=v)
    if d.chance(0.3):
        messages.append({"role": "user", "content": f"{said} {asked}"})
    else:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": NOTED}]
        for phrases, reply in d.some(CHAT[:3], d.pick((0, 0, 1, 2))):
            content = _small_talk(d, phrases)
            messages += [{"role": "user", "content": content}, {"role": "assistant", "content": reply}]
        messages.append({"role": "user", "content": asked})
    return Sample("everyday_recall", (*messages, {"role": "assistant", "content": answer}))


_REMEMBERED: dict[str, Maker] = {
    "job": lambda d: d.pick(ROLES) if d.chance(0.4) else d.mixed(JOBS), "place": place, "first": first, "pet": pet, "person": person, "code": code, "number": whole(2, 999),
    "allergen": lambda d: kind_of("allergen")(d) if d.chance(0.4) else FOODS(d) if d.chance(0.5) else noun(d), "colour": lambda d: d.mixed(COLOURS) if d.chance(0.5) else kind_of("colour")(d), "thing": lambda d: noun(d) if d.chance(0.8) else rare(d),
    "day": lambda d: d.pick(DAYS) if d.chance(0.6) else when(d), "clock": clock, "titled": lambda d: rare(d) if d.chance(0.5) else titled(d), "tongue": TONGUES, "phone": phone, "street": street, "hobby": HOBBIES,
}  # fmt: skip

# kind of value, as named in `talks` -> its maker
_TALKED: dict[str, Maker] = {
    "n": first, "f": person, "p": place, "t": clock, "d": lambda d: d.pick(DAYS), "e": when, "k": money, "i": whole(2, 99), "h": whole(100, 999), "s": street, "c": code,
    "o": lambda d: d.mixed(COLOURS) if d.chance(0.5) else kind_of("colour")(d), "g": kind_of("food"), "b": kind_of("drink"), "j": lambda d: d.pick(ROLES) if d.chance(0.4) else kind_of("job")(d),
    "w": firm, "l": titled, "y": year, "x": phone, "m": mail, "v": _plain, "a": pet, "z": plate, "u": kind_of("hobby"), "q": kind_of("language"), "r": lambda d: kind_of("allergen")(d) if d.chance(0.5) else _plain(d),
    "inst": kind_of("instrument"), "ill": kind_of("illness"), "sport": kind_of("sport"), "size": kind_of("size"),
}  # fmt: skip


def _remembered(d: Draw) -> Sample:
    """Many facts of the user in one conversation, and questions about them in other words than those of the facts."""
    chosen: list[tuple[memories.Memory, str, str]] = []
    used: set[str] = set()
    values: set[str] = set()

    def more(n: int) -> None:
        for _ in range(40):
            memory = d.pick(memories.MEMORIES)
            if len(chosen) == n:
                return
            r = d.pick(memory.about) if memory.about else memory.answer
            kin = next((names[0] for names in memories.ONCE if r in names), r)
            value = _REMEMBERED[memory.maker](d)
            if (
                kin not in used
                and value not in values
                and not (memory.maker == "colour" and {"colour", "color"} & used)
            ):
                used.add(kin)
                values.add(value)
                chosen.append((memory, r, value))

    n = d.pick((2, 2, 3, 3, 4, 5, 6))
    more(n)
    if len(chosen) < n and d.chance(0.5):
        more(n)

    def say(ways: Sequence[str], r: str, v: str) -> str:
        text = casual(d, d.vary(d.pick(ways)))
        text = text.format(r=r, v=v)
        return text[0].upper() + text[1:] if d.chance(0.75) and not text.startswith(v) else text

    told = [say(memory.told, r, v) for memory, r, v in chosen]
    order = d.some(range(len(chosen)), len(chosen))
    if len(order) > 2 and d.chance(0.6):  # ask for facts from far back first
        order.sort(key=lambda i: i > len(chosen) // 2)
    order = [*order[: d.pick((2, 3, 4, 6))], *([d.pick(order)] if d.chance(0.2) else [])]
    messages: list[Message] = _system(d, 0.15)
    is_one = d.chance(0.3)
    head = ""
    if is_one:
        head = d.pick((" ", " ", "\n")).join(told) + d.pick((" ", " ", "\n"))
    else:
        i = 0
        while i < len(told):
            step = d.pick((1, 1, 1, 2))
            reply = NOTED if d.chance(0.4) else d.pick(REPLIES)
            messages += [
                {"role": "user", "content": " ".join(told[i : i + step])},
                {"role": "assistant", "content": reply, "is_given": reply != NOTED},
            ]
            i += step
            if d.chance(0.3):
                content = casual(d, d.vary(d.pick(_ACKS)))
                messages += [{"role": "user", "content": content}, {"role": "assistant", "content": d.pick(("All right.", "Great.", *REPLIES)), "is_given": True}]  # fmt: skip
            elif d.chance(0.2):
                _say(d, messages)
    for at in order:
        memory, r, v = chosen[at]
        asked = say(memory.asked, r, v)
        if head and asked[0].islower() and d.chance(0.7):
            asked = asked[0].upper() + asked[1:]
        messages += [{"role": "user", "content": head + asked}, {"role": "assistant", "content": memory.answer.format(r=r, v=v)}]  # fmt: skip
        head = ""
        if d.chance(0.08):
            _say(d, messages)
    return Sample("everyday_recall", tuple(messages))


def everyday_recall(d: Draw) -> Sample:
    """Facts that the user tells in several turns or in one, and questions, some about facts that were not told."""
    if d.chance(0.5):
        system = [{"role": "system", "content": talks.house(d, _TALKED)}] if d.chance(0.1) else _system(d, 0.1)
        return Sample(
            "everyday_recall", tuple(talks.recall(d, _TALKED, system, NO_IDEA, NOTED, lambda told: _say(d, told)))
        )
    if d.chance(0.55):
        return _remembered(d)
    if d.chance(0.1):
        return _with_pronoun(d)
    facts: list[tuple[str, tuple[Sequence[str], dict[str, str]], str]] = []  # statement, questions with fields, answer

    def ask(questions: Sequence[str], fields: dict[str, str]) -> str:
        question = worded(d, *questions, **fields)
        return _wrapped(d, question, BEFORE_QUESTION, AFTER_QUESTION) if d.chance(0.2) else question

    relations = list(BELONGINGS)
    d.rng.shuffle(relations)
    used: list[tuple[str, ...]] = []  # the questions for each fact about the user
    for _ in range(d.pick((1, 1, 2, 2, 3, 4, 6))):
        if facts and d.chance(0.1) and not any("'s " in answer for _, _, answer in facts):  # a fact about someone else
            mine = {answer.removeprefix("Your ").split(" is ")[0] for _, _, answer in facts}
            r, make = d.pick([own for own in BELONGINGS if own[0] in mine] or [relations.pop()])
            n, v = first(d), make(d)
            statement = worded(d, *OF_OTHERS, r=r, v=v, n=n)
            facts.append((statement, (ASKED_OF_OTHERS, {"r": r, "n": n}), f"{n}'s {r} is {v}."))
        elif d.chance(0.45) and (free := [told for told in TOLD if not _is_near(told[1], used, facts)]):
            statements, questions, answer, make = d.pick(free)
            used.append(questions)
            relations = [r for r in relations if not _WORDS[r[0]] & _words(questions)]
            fields = {"v": make(d), "n": noun(d), "f": first(d)}
            facts.append((worded(d, *statements, **fields), (questions, fields), answer.format(**fields)))
        else:
            r, make = relations.pop()
            if d.chance(0.2):
                r, make = d.pick((d.word(), noun(d))), any_value
            v = make(d)
            ways: tuple[str, ...] = STATED if make in (first, pet, person, titled) else STATED[:8]
            ways = ALSO_STATED if d.chance(0.35) else ways
            fitting = dict(SORTED_ASKED).get(make, ()) if d.chance(0.4) else ()
            statement = worded(d, *ways, r=r, v=v)
            if d.chance(0.07) and "?" not in statement:  # the fact is corrected
                o, v = v, make(d)
                statement += ("\n" if statement[-1] not in ".!" else " ") + worded(d, *TAKEN_BACK, r=r, v=v, o=o)
            named = SAME_AS.get(r, r) if d.chance(0.3) else r
            told = set(re.findall("[a-z]+", " ".join(answer for _, _, answer in facts).lower()))
            if named != r and (_words((named,)) & told or not _words((named,))):
                named = r
            if named != r:
                relations = [other for other in relations if not _WORDS[other[0]] & _words((named,))]
            facts.append((statement, (fitting or ASKED_FOR, {"r": named}), f"Your {r} is {v}."))
    facts = [
        (
            _wrapped(d, statement, BEFORE_FACT, AFTER_FACT) if d.chance(0.25) else statement,
            questions,
            answer,
        )
        for statement, questions, answer in facts
    ]
    messages: list[Message] = _system(d, 0.2)
    form = d.rng.random()
    asked = d.pick(facts)
    is_short = len(facts) > 3 or d.chance(0.85)
    if form < 0.3:
        content = f"{' '.join(statement for statement, _, _ in facts)} {ask(*asked[1])}"
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": asked[2]}]
    else:
        for i, (statement, _, _) in enumerate(facts):
            reply = NOTED if d.chance(0.6) else d.pick(REPLIES)
            messages += [
                {"role": "user", "content": statement},
                {"role": "assistant", "content": reply, "is_given": reply != NOTED},
            ]
            for _ in range(d.pick((0, 0, 0, 0, 0, 1, 1, 2)) if is_short else d.pick((1, 2, 2, 3))):
                if d.chance(0.3):  # a short word of the user, and a reply of another model
                    content = casual(d, d.vary(d.pick(_ACKS)))
                    messages += [{"role": "user", "content": content}, {"role": "assistant", "content": d.pick(REPLIES), "is_given": True}]  # fmt: skip
                else:
                    _say(d, messages)
            if d.chance(0.15):
                _, told_of, answer = d.pick(facts[: i + 1])
                messages += [{"role": "user", "content": ask(*told_of)}, {"role": "assistant", "content": answer}]
        messages += [{"role": "user", "content": ask(*asked[1])}, {"role": "assistant", "content": asked[2]}]
    for _ in range(d.pick((0, 1, 2, 3))):
        _, told_of, answer = d.pick(facts)
        if d.chance(0.25):  # a question about something that was not told
            told_of, answer = (ASKED_FOR, {"r": relations.pop()[0]}), NO_IDEA
        messages += [{"role": "user", "content": ask(*told_of)}, {"role": "assistant", "content": answer}]
    return Sample("everyday_recall", tuple(messages))


# sentences, each with questions; {a} {b} people, {p} a place, {t} a time, {d} a day, {i} {j} things, {k} a number, {r} a role, {s} a street
SCENES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("{a} [gave|sold|sent|brought] the {i} to {b}.", (("Who [got|received|has] the {i}[ now|]?", "{b}"), ("Who [gave away|gave|sold|sent|brought] the {i}?", "{a}"), ("What did {b} get?", "{i}"), ("To whom did {a} [give|send|sell] the {i}?", "{b}"))),
    ("{a} [took|found|bought|fixed|lost|painted] the {i}[ on {d}|].", (("Who [took|found|bought|fixed|lost|painted] the {i}?", "{a}"), ("What did {a} [take|find|buy|fix|lose|paint]?", "{i}"))),
    ("The {r} [is|is called|of the house is] {a}.", (("Who is the {r}?", "{a}"), ("What is the {r} called?", "{a}"), ("What's the name of the {r}?", "{a}"), ("Which person is the {r}?", "{a}"))),
    ("The {i} [costs|is] {k} euros.", (("[What|How much] [does|is] the {i}[ cost|]?", "{k}"), ("What is the price of the {i}?", "{k}"), ("What does the {i} cost?", "{k}"))),
    ("The {i} [opens|starts|begins] at {t}.", (("When does the {i} [open|start|begin]?", "{t}"), ("At what time is the {i}?", "{t}"))),
    ("The {i} [ends|stops|is over] at {t}.", (("When does the {i} [end|stop]?", "{t}"), ("At what time is the {i} over?", "{t}"), ("Until when is the {i}?", "{t}"))),
    ("The {i} is on {d}.", (("When is the {i}?", "{d}"), ("[Which|What] day is the {i}[ on|]?", "{d}"), ("On which day is the {i}?", "{d}"))),
    ("The {i} is in {p}.", (("Where is the {i}?", "{p}"), ("[Which|What] [city|town] is the {i} in?", "{p}"), ("In which place is the {i}?", "{p}"))),
    ("{a} keeps the {i} [at|on|near] {s}.", (("Where is the {i}[ kept|]?", "{s}"), ("Who keeps the {i}?", "{a}"), ("Where does {a} keep the {i}?", "{s}"))),
    ("{a} works in the {i} [of|in] {p}.", (("Where does {a} work?", "{i}"), ("Who works in the {i}?", "{a}"))),
    ("{a} [drives|travels|goes] to {p} [every|on] {d}.", (("Where does {a} [go|drive|travel]?", "{p}"), ("When does {a} [go|drive|travel]?", "{d}"), ("Who [goes|drives|travels] to {p}?", "{a}"))),
    ("{a} is the {r} of {b}.", (("Who is the {r} of {b}?", "{a}"), ("What is {a} to {b}?", "{r}"), ("Who is {b}'s {r}?", "{a}"))),
    ("There are {k} {i}s [in|at] {p}.", (("How many {i}s are [there|in {p}]?", "{k}"), ("What is the number of {i}s?", "{k}"))),
    ("The {i} is [looked after|kept|run|managed|owned|held] by {a}.", (("Who [looks after|keeps|runs|manages|owns|holds|has] the {i}?", "{a}"), ("Whose {i} is it?", "{a}"))),
    ("{a} [runs|owns|manages|leads] the {i}[ on {s}| in {p}|].", (("Who [runs|owns|manages|leads] the {i}?", "{a}"), ("What does {a} [run|own|manage|lead]?", "{i}"))),
    ("{a} is {w} years old.", (("How old is {a}?", "{w}"), ("What age is {a}?", "{w}"), ("{a}'s age?", "{w}"), ("Who is {w} years old?", "{a}"))),
    ("The {i} [was|is] [painted|made|coloured] {c}.", (("[What|Which] colour [is|was] the {i}?", "{c}"), ("What is {c}?", "{i}"), ("In which colour is the {i}?", "{c}"))),
    ("The {i} is made of {m}.", (("What is the {i} made of?", "{m}"), ("[Which|What] material is the {i} made of?", "{m}"), ("Of what is the {i}?", "{m}"))),
    ("The {i} [was built|was opened|was founded] in {y}.", (("When was the {i} [built|opened|founded]?", "{y}"), ("In [which|what] year was the {i} [built|opened|founded]?", "{y}"), ("What year is the {i} from?", "{y}"))),
    ("{a} [was born|came into the world] in {p}[ in {y}|].", (("Where was {a} born?", "{p}"), ("Who was born in {p}?", "{a}"), ("In which [city|town|place] was {a} born?", "{p}"), ("[What is|Name] the birthplace of {a}.", "{p}"))),
    ("{a} [opens|unlocks] the {i} at {t}.", (("[When|At what time] does {a} [open|unlock] the {i}?", "{t}"), ("Who [opens|unlocks] the {i}?", "{a}"), ("What does {a} [open|unlock] at {t}?", "{i}"))),
    ("The {i} closes at {t}[ on {d}|].", (("When does the {i} close?", "{t}"), ("Until when is the {i} open?", "{t}"), ("What [time|hour] does the {i} close?", "{t}"))),
    ("The {i} weighs {k} [kilos|kg|kilograms].", (("How heavy is the {i}?", "{k}"), ("What does the {i} weigh?", "{k}"), ("[What is|Give] the weight of the {i}.", "{k}"))),
    ("The {i} is {k} [metres|meters] [tall|high].", (("How [tall|high] is the {i}?", "{k}"), ("What is the height of the {i}?", "{k}"))),
    ("It is {k} [km|kilometres|miles] from {p} to the {i}.", (("How far is it [from {p} |]to the {i}?", "{k}"), ("What is the distance to the {i}?", "{k}"), ("From where is it {k} to the {i}?", "{p}"))),
    ("{a} is married to {b}.", (("Who is married to {a}?", "{b}"), ("Who is {a} married to?", "{b}"), ("To whom is {b} married?", "{a}"))),
    ("{a} [invited|visited|called|phoned] {b} [on {d}|at {t}].", (("When did {a} [invite|visit|call|phone] {b}?", "{d}"), ("Who [invited|visited|called|phoned] {b}?", "{a}"), ("Whom did {a} [invite|visit|call|phone]?", "{b}"))),
    ("{a} [teaches|studies|explains] {i} [in {p}|on {d}].", (("What does {a} [teach|study|explain]?", "{i}"), ("Who [teaches|studies|explains] {i}?", "{a}"), ("Where does {a} [teach|study]?", "{p}"))),
    ("{a} paid {k} [euros|dollars|pounds] for the {i}.", (("How much did {a} pay[ for the {i}|]?", "{k}"), ("Who paid for the {i}?", "{a}"), ("What did {a} pay for?", "{i}"), ("What was the price of the {i}?", "{k}"))),
    ("The key [to|for] the {i} is with {a}.", (("Who has the key [to|for] the {i}?", "{a}"), ("[With whom|Where] is the key [to|for] the {i}?", "{a}"), ("What is {a}'s key for?", "{i}"))),
    ("The password of the {i} is {x}.", (("What is the password of the {i}?", "{x}"), ("Which password has the {i}?", "{x}"), ("How do I get into the {i}?", "{x}"))),
    ("{a} [lives|stays] [on|in] {s}.", (("Where does {a} [live|stay]?", "{s}"), ("Who [lives|stays] [on|in] {s}?", "{a}"), ("What is {a}'s street?", "{s}"))),
    ("{a} [scored|got|made] {k} points.", (("How many points did {a} [score|get|make]?", "{k}"), ("Who [scored|got|made] {k} points?", "{a}"), ("What is the score of {a}?", "{k}"))),
    ("{a} beat {b} [in {p}|on {d}].", (("Who beat {b}?", "{a}"), ("Who was beaten by {a}?", "{b}"), ("Where did {a} beat {b}?", "{p}"), ("When did {a} beat {b}?", "{d}"))),
    ("{a} wrote the book about {i}[ in {y}|].", (("Who wrote the book about {i}?", "{a}"), ("What is the book of {a} about?", "{i}"), ("When was the book about {i} written?", "{y}"))),
    ("The train to {p} [leaves|departs|goes] at {t}.", (("When does the train to {p} [leave|depart|go]?", "{t}"), ("Where does the train at {t} go?", "{p}"), ("At what time must I be at the station for {p}?", "{t}"))),
    ("Flight {x} goes to {p}.", (("Where does [flight |]{x} go?", "{p}"), ("Which flight goes to {p}?", "{x}"), ("How do I fly to {p}?", "{x}"))),
    ("Room {w} [belongs to|is kept for|was given to] {a}.", (("[Which room has {a}|Which room does {a} have|What room belongs to {a}|What is {a}'s room]?", "{w}"), ("Whose room is {w}?", "{a}"), ("Who is in room {w}?", "{a}"))),
    ("{a} plays the {u}[ in {p}|].", (("What does {a} play?", "{u}"), ("Who plays the {u}?", "{a}"), ("[Which|What] instrument does {a} play?", "{u}"))),
    ("{a}'s favourite [food|dish|meal] is {f}.", (("What [is {a}'s favourite food|does {a} like best]?", "{f}"), ("Who likes {f} best?", "{a}"), ("Which [dish|food] does {a} love?", "{f}"))),
    ("{a} drinks {g} [every morning|at work|for breakfast].", (("What does {a} drink?", "{g}"), ("Who drinks {g}?", "{a}"), ("Which drink does {a} have?", "{g}"))),
    ("The {i} was [discovered|invented|designed|drawn] by {a}[ in {y}|].", (("Who [discovered|invented|designed|drew] the {i}?", "{a}"), ("By whom was the {i} [discovered|invented|designed]?", "{a}"), ("What did {a} [discover|invent|design]?", "{i}"), ("In what year was the {i} [discovered|invented]?", "{y}"))),
    ("{a} [forgot|hid|left|dropped] the {i} in {o}.", (("Where did {a} [forget|hide|leave|drop] the {i}?", "{o}"), ("Who [forgot|hid|left|dropped] the {i}?", "{a}"), ("What did {a} [leave|forget|hide|drop]?", "{i}"), ("Where is the {i}[ now|]?", "{o}"))),
    ("{a}, [the|our|a] {r}, [arrived|left|came] on {d}.", (("When did {a} [arrive|leave|come]?", "{d}"), ("What is {a}[ by trade|'s job]?", "{r}"), ("Who is the {r}?", "{a}"))),
    ("[Call|Ring|Phone] {a} [at|on|under] {x}.", (("[What|Which] is {a}'s number?", "{x}"), ("How do I [reach|call] {a}?", "{x}"), ("Whom do I [reach|call] [at|on|under] {x}?", "{a}"))),
    ("{k} people [came to|visited|saw|attended] the {i}.", (("How many people [came to|visited|saw|attended] the {i}?", "{k}"), ("What did {k} people [see|visit|attend]?", "{i}"))),
    ("{a} has a {q} [called|named] {b}.", (("What is the {q} of {a} called?", "{b}"), ("Who has a {q}?", "{a}"), ("What [animal|pet] does {a} have?", "{q}"), ("Whose {q} is {b}?", "{a}"))),
    ("{a} [speaks|learns|understands] {l}.", (("[What|Which] language does {a} [speak|learn|understand]?", "{l}"), ("Who [speaks|learns|understands] {l}?", "{a}"))),
    ("The {i} [takes|lasts] {k} [minutes|hours|days].", (("How long does the {i} [take|last]?", "{k}"), ("What is the length of the {i}?", "{k}"))),
    ("{a} [moved|travelled|flew] from {p} to {z}.", (("Where did {a} [move|travel|fly]?", "{z}"), ("From where did {a} [move|travel|fly]?", "{p}"), ("Who [moved|travelled|flew] to {z}?", "{a}"), ("What place did {a} leave?", "{p}"))),
    ("{a} will [marry|meet|help] {b} in {y}.", (("When will {a} [marry|meet|help] {b}?", "{y}"), ("Who will [marry|meet|help] {b}?", "{a}"), ("Whom will {a} [marry|meet|help]?", "{b}"))),
    ("{a} [suffers from|is ill with|is in hospital with] {e}.", (("What [is wrong with|illness has] {a}?", "{e}"), ("Who [suffers from|has] {e}?", "{a}"), ("From what does {a} suffer?", "{e}"))),
    ("{a} is allergic to {e2}.", (("What is {a} allergic to?", "{e2}"), ("Who is allergic to {e2}?", "{a}"), ("Which allergy has {a}?", "{e2}"), ("What must {a} avoid?", "{e2}"))),
    ("{a} replaced {b} as {r}.", (("Who [is the new|became] {r}?", "{a}"), ("Who was {r} before?", "{b}"), ("Whom did {a} replace?", "{b}"), ("Who replaced {b}?", "{a}"), ("As what did {a} replace {b}?", "{r}"))),
    ("{a} ordered {k} {i}s.", (("How many {i}s did {a} order?", "{k}"), ("Who ordered [the |]{i}s?", "{a}"))),
    ("The {i} [belongs to|is the property of] {a}.", (("Who owns the {i}?", "{a}"), ("Whose is the {i}?", "{a}"), ("What does {a} own?", "{i}"), ("To whom does the {i} belong?", "{a}"))),
    ("NOTICE: the {i} [is|will be] closed on {d}.", (("When is the {i} closed?", "{d}"), ("On which day can't I use the {i}?", "{d}"))),
    ("[Memo|Note]: {a} [wants|needs] the {i} by {d}.", (("Who [wants|needs] the {i}?", "{a}"), ("By when does {a} [want|need] the {i}?", "{d}"), ("What does {a} [want|need]?", "{i}"))),
    ("{i}: {k} [euros|dollars|pounds].", (("[What|How much] is the {i}?", "{k}"), ("What does the {i} cost?", "{k}"), ("Price of the {i}?", "{k}"))),
    ("{p}, {d}, {t}: {i} with {a}.", (("Where is the {i}?", "{p}"), ("When is the {i}?", "{d}"), ("At what time is the {i}?", "{t}"), ("Who is at the {i}?", "{a}"), ("What happens in {p}?", "{i}"))),
    ("{a} [borrowed|rented|hired] the {i} from {b}.", (("Who [borrowed|rented|has|hired] the {i}?", "{a}"), ("From whom did {a} [borrow|rent|hire] the {i}?", "{b}"), ("Who owns the {i}?", "{b}"))),
)  # fmt: skip
ROLES: list[str] = "baker guide director owner leader captain cook driver manager chief boss host nurse teacher keeper coach editor mayor pilot chair writer winner accountant actor agent ambassador architect archivist assistant barber bishop caretaker chairman chef clerk conductor consultant curator dean dentist deputy designer detective engineer farmer founder gardener goalkeeper governor guard headmaster inspector janitor judge landlord lawyer librarian mechanic mentor minister musician officer organist photographer planner plumber porter president priest principal producer professor receptionist referee reporter secretary sheriff speaker steward surgeon tailor trainer treasurer tutor umpire vet waiter warden".split()  # fmt: skip
PAGES = (
    "{p}\n{q}", "{q}\n{p}", "{p} {q}", "Passage: {p}\nQuestion: {q}", "Passage: {p}\n\nQuery: {q}", "[Note|Facts|Story|Information|Article]: {p}\n[Question|Query|Q]: {q}[|\nAnswer:]", "[Here is|This is] [a note|a story|the text|some text]: {p}\n[Question|Tell me]: {q}",
    "[Use|Read|Look at|Take] [this|the] [text|note|story][.|:] {p}\n{q}", "[Text|Context|Source]: {p}\n[Q|Question]: {q}[\nA:|\nAnswer:|]", "{q}\n[Text|Context|Note|Source]: {p}", "[Question|Q]: {q}\n[Text|Passage]: {p}", "\"{p}\"\n\n{q}", "[According to|From] [this|the text]: {p}\n\n{q}",
    "[Read|Study|Consider] the [following|passage|notice|message] [and answer|then answer][.|:]\n{p}\n{q}", "[Email|Mail|Letter]: {p}\n\n{q}", "[Notice|Announcement|Memo|Bulletin]: {p}\n{q}", "### [Text|Context|Passage]\n{p}\n\n### Question\n{q}", "<text>{p}</text>\n{q}", "<doc>\n{p}\n</doc>\n\n{q}", "[I have|We got] [a note|this message|this text]: {p} [My question|Question|Now]: {q}", "[Given|Knowing] [that|this|the text]: {p} {q}", "'{p}' {q}", "```\n{p}\n```\n{q}", "---\n{p}\n---\n{q}", "CONTEXT: {p}\nQUESTION: {q}", "[Help me understand|Explain] this[ text|]: {p}\n{q}", "{q} [Here is|This is] [what I know|the text|the note]: {p}", "{q}\n\n\"{p}\"", "{q}\n---\n{p}",
    "[Answer|Reply] from the [text|passage|note] [only|below][.|:]\n\n{p}\n\n{q}", "[Story|News|Report|Diary|Log] [of today|]: {p} {q}", "[My friend|My boss|Somebody] [wrote|told me|says]: {p} {q}", "[Facts|Known|Given]:\n{p}\n[Asked|Unknown|Wanted]:\n{q}", "P: {p}\nQ: {q}\nA:", "[Text|Passage] 1\n\n{p}\n\n[Task|Exercise] 1: {q}", "{p}\n\n[Based on this|From the above|Given the above|With this in mind]: {q}", "[Background|Info]: {p}\n\n[User question|My question|The question]: {q}", "[Look|See|Note]: {p} - {q}", "[Paragraph|Snippet|Extract|Source]:\n{p}\n\n[Question|Query]:\n{q}\n\n[Answer|Short answer]:", "[Please|Kindly] [answer|tell me] [in one word|shortly|]: {q}\n{p}", "[Quiz|Test|Reading test][.|:] {p} {q}", "{p}\n\n{q}\n",
)  # fmt: skip


def _deeds(d: Draw, n: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """n sentences about who did what, when and where, each with (question, answer) pairs. The verb and the thing tell
    the deeds apart."""
    people = list(dict.fromkeys(first(d) if d.chance(0.7) else person(d) for _ in range(3 * n + 3)))
    things = list(dict.fromkeys((_plain(d) if d.chance(0.7) else noun(d)) if d.chance(0.85) else d.word() for _ in range(2 * n + 2)))  # fmt: skip
    roles = [role for role in d.some(ROLES, 12) if role not in ("guide", "director")]
    same = d.pick(clauses.VERBS) if d.chance(0.4) else None
    deeds: list[tuple[str, list[tuple[str, str]]]] = []
    used: set[str] = set()
    while len(deeds) < n and len(people) > 3 and len(things) > 1:
        a, i, way = people.pop(), things.pop(), d.rng.random()
        if way < 0.15:
            holders = {roles.pop(): person for person in (a, people.pop(), *([people.pop()] if d.chance(0.3) else []))}
            (r1, p1), *others = holders.items()
            told = f"The {r1} is {p1}" + "".join(d.pick((f", and as {r} we have {p}", f" and the {r} is {p}", f", with {p} as {r}", f", the {r} {p}", f"; {p} is the {r}")) for r, p in others)  # fmt: skip
            asked = [(q.replace("{r}", r), p) for r, p in holders.items() for q in ("Who is the {r}[ here|]?", "[What is|Give|Tell me] the name of the {r}.", "[Which|What] person is the {r}?", "[And|So] who is the {r}?", "the {r}?", "How is the {r} called?", "Who works as the {r}?")]  # fmt: skip
            asked += [(f"What is {p}[ by trade|]?", r) for r, p in holders.items()]
        elif way < 0.19:
            p, t = place(d), clock(d)
            verb = d.pick(("open", "start", "begin", "close", "end", "depart", "leave", "stop"))
            told = d.pick((f"The {i} in {p} {verb}s at {t}", f"At {t} the {i} in {p} {verb}s", f"In {p}, the {i} {verb}s at {t}", f"The {p} {i} {verb}s at {t}"))  # fmt: skip
            asked = [(f"[When|At what time] does the {i} {verb}?", t), (f"What time does the {i} {verb}?", t), (f"Where is the {i}?", p), (f"In [which|what] [city|town|place] is the {i}?", p), (f"[Which|What] [city|town|place] has the {i}?", p), (f"What {verb}s at {t}?", i)]  # fmt: skip
        elif way < 0.23:
            p = place(d)
            live = d.pick(("live", "work", "stay", "study"))
            base, third, past, _ = d.pick(d.pick(clauses.VERBS))
            if base in used or same:
                continue
            told = f"{a}, who {live}s in {p}, {past} the {i}".replace("studys", "studies")
            asked = [(f"Where does {a} {live}?", p), (f"In [which|what] [city|town] does {a} {live}?", p), (f"Who {past} the {i}?", a), (f"What did {a} {base}?", i), (f"Who {live}s in {p}?".replace("studys", "studies"), a)]  # fmt: skip
        elif way < 0.31:
            k, unit = d.value(), d.pick(clauses.CURRENCIES)
            told = d.pick((f"{i.capitalize()}s [cost|go for|sell at] {k} {unit}[ each|]", f"[A|One|Each] {i} [is|costs] {k} {unit}", f"You [get|can buy] a {i} for {k} {unit}", f"The {i} [is|goes] for {k} {unit}"))  # fmt: skip
            asked = [(q, k) for q in (f"How much is [a|one|the] {i}?", f"What must I pay for a {i}?", f"[Say|Give|What is] the price of [a|the] {i}[.|?]", f"[What|How much] do {i}s cost?", f"How [dear|expensive] is a {i}?", f"What does one {i} cost?")]  # fmt: skip
        elif way < 0.48:
            base, third, past, part = d.pick(clauses.GIFTS)
            b = people.pop()
            is_past = d.chance(0.75)
            done, do = (past, "did") if is_past else (third, "does")
            told = d.pick((f"{a} {done} the {i} to {b}", f"{a} {done} {b} the {i}", f"The {i} {'was' if is_past else 'is'} {part} to {b} by {a}"))  # fmt: skip
            asked = [(f"Who {done} the {i}[ to {b}|]?", a), (f"To whom {do} {a} {base} the {i}?", b), (f"Who {do} {a} {base} the {i} to?", b), (f"What {do} {a} {base} to {b}?", i), (f"By whom was the {i} {part}?", a), (f"Who was the {i} {part} to?", b)]  # fmt: skip
            if base not in clauses.KEEPS:
                asked += [(q, b) for q in (f"Who has the {i}[ now|]?", f"Who [got|holds|received] the {i}?", f"With whom is the {i}[ now|]?", f"Where is the {i} now, with whom?")]  # fmt: skip
        else:
            verbs = same or d.pick(clauses.VERBS)
            base, third, past, part = d.pick(verbs)
            if d.chance(0.12) and not same:
                word = d.word()
                base, third, past, part = word, f"{word}s", f"{word}ed", f"{word}ed"
                verbs = ((base, third, past, part),)
            if not same and base in used:
                continue
            used |= {verb[0] for verb in verbs}
            is_past = d.chance(0.6)
            done, do = (past, "did") if is_past else (third, "does")
            tail = d.pick((None, None, *clauses.TAILS))
            fields = {"d": d.pick(DAYS), "p": place(d), "t": clock(d), "k": d.value(), "s": street(d), "b": people.pop(), "y": year(d), "unit": d.pick(clauses.CURRENCIES)}  # fmt: skip
            where = ""
            asked = []
            if tail:
                ways, asks = clauses.TAILS[tail]
                where = " " + d.pick(ways.split(";")).format(**fields)
                fits = [q for q in asks.split(";") if "{vn}" not in q or is_past]
                asked = [(q.replace("[do]", do).replace("{a}", a).replace("{v}", base).replace("{i}", i).replace("{vn}", part), fields[tail]) for q in fits] * 2  # fmt: skip
            told = d.pick((f"{a} {done} the {i}{where}", f"{a} {done} the {i}{where}", f"The {i} {'was' if is_past else 'is'} {part} by {a}{where}", f"{where[1].upper()}{where[2:]}, {a} {done} the {i}" if tail in ("d", "y") else f"{a} {done} the {i}{where}", f"It {'was' if is_past else 'is'} {a} who {done} the {i}{where}"))  # fmt: skip
            other = d.pick(verbs) if d.chance(0.4) else (base, third, past, part)
            asks_done = other[2] if is_past else other[1]
            asked += [(q, a) for q in (f"Who {asks_done} the {i}?", f"Who {asks_done} the {i}?", f"[Which|What] person {asks_done} the {i}?", f"[Name|Tell me] who {asks_done} the {i}.", f"By whom {'was' if is_past else 'is'} the {i} {other[3]}?", f"Who is it [that|who] {asks_done} the {i}?", f"the one who {asks_done} the {i}?")]  # fmt: skip
            asked += [(f"What {do} {a} {base}?", i), (f"[What|Which] thing {do} {a} {other[0]}?", i)]
        deeds.append((d.vary(told) + d.pick((".", ".", ".", "!", ";" if len(deeds) < n - 1 else ".")), asked))
    return deeds


def everyday_reading(d: Draw) -> Sample:
    """Two to six sentences about people and things, then questions whose answers are spans of them."""
    if d.chance(0.5):
        return Sample("everyday_reading", tuple(talks.reading(d, _TALKED, _system(d, 0.1), NO_IDEA)))
    facts = []
    deeds = _deeds(d, d.rng.randrange(2, 6)) if d.chance(0.6) else []
    for told, asked in deeds:
        facts.append((told, [(casual(d, d.vary(question)) if d.chance(0.5) else d.vary(question), answer) for question, answer in asked]))  # fmt: skip
    for sentence, questions in d.some(SCENES, d.rng.randrange(2, 6) if not deeds else d.pick((0, 0, 0, 1))):
        fields = {
            "a": first(d) if d.chance(0.6) else person(d),
            "b": first(d),
            "p": place(d),
            "t": clock(d),
            "d": d.pick(DAYS),
            "i": (_plain(d) if d.chance(0.6) else noun(d)) if d.chance(0.8) else thing(d),
            "k": d.value(),
            "r": d.pick(ROLES),
            "s": street(d),
            "c": kind_of("colour")(d),
            "m": kind_of("material")(d),
            "y": str(d.rng.randrange(1400, 2060)),
            "x": code(d),
            "u": kind_of("instrument")(d),
            "f": kind_of("food")(d),
            "g": kind_of("drink")(d),
            "o": kind_of("spot")(d),
            "q": kind_of("pettype")(d),
            "l": kind_of("language")(d),
            "z": place(d),
            "w": whole(2, 99)(d),
            "e": kind_of("illness")(d),
            "e2": kind_of("allergen")(d),
        }
        told = d.vary(sentence)
        asked = [
            (d.vary(question), answer)
            for question, answer in questions
            if {answer.strip("{}"), *re.findall(r"\{(\w+)\}", question)} <= set(re.findall(r"\{(\w+)\}", told))
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
    (("[hi|hello|hey|hiya|howdy|hallo|hei][ there| you| friend| again| model| Banyan| all| everybody| mate| {n}|][!|.|!!|, {n} here.|]", "[good|Good] [day|morning to you|evening to all|afternoon][!|.|, {n}!|]", "[Is|are] [anybody|someone|you] [here|there|home|awake][?|]", "[Welcome|Hello], little model", "[Hello hello|hi hi|Hey hey|Salut|Ahoy][!|]", "[Hey|Hi][,|] [are you there|is someone there|got a minute|can we talk|I'm back|it's me][?|.|]", "[A|My] [hearty|warm|friendly|big] [hello|hi|greeting][!|.| to you.|]", "[I|We] [greet you|say hello|come in peace][!|.|]", "[Morning|Evening|Day|Noon greetings][,|] [all|friend|dear bot|sunshine][!|.|]", "[Hello|Hey], [trying this out|testing you|just looking around|can I come in][!|.|?|]"), HELLO),
    (("[thanks|thank you|thanks a bunch|tysm|thx a lot|many thanks|thank u|merci|thanks mate|I thank you][!|.| for your help.| for all.| for the {a}.|, {n}.|]", "[That|This] [was|is] [very helpful|useful|kind of you|a great help][.|, thanks.|, thank you!]", "[Perfect|Wonderful|Nice|Excellent|Awesome|Lovely|Super], [thanks|thank you][!|.|]", "[How kind of you|You are kind|I am grateful|You helped me a lot|That helped me][!|.|]", "[cheers|Cheers][!|, mate.|, bye.|]", "[You made|That made|This makes] my [day|life easier|work easy][!|.|]", "[Just|Exactly] what I [needed|wanted|was after][.|, thanks.|, thank you!]", "[That|This] [solves it|clears it up|answers it|will do nicely], [thanks|thank you][.|!|]"), "You are welcome."),
    (("[bye|goodbye|bye for now|bye then|farewell|see ya|see you|see you tomorrow|later|so long|ciao|take care|good night][!|.| model| {n}|, all|]", "[I am|I'm] [off|leaving|going|out][ now| then|][.|, bye.|, see you.|]", "[I must|I should|I have to] [leave|be off|run|sleep|stop][ now|][.|, bye.|!|]", "[We are done|That was all|I'm finished|Nothing more][.| for now.|, bye.|]", "[Until|See you] [next time|next week|soon|on Monday][!|.|]", "[I|We|I really] [must|should|ought to|need to|had best] [head off|head out|head home|be on my way|hit the road|catch my bus|start cooking|get back to work|pick up the kids|turn in|call it a day|wrap up][ now| soon|][.|!|]", "[Well|Okay|Right|So|Alright], [time to leave|I am leaving|I will head off|back to work|off to bed|I should be going][.|!|]", "[Time|It is time] to [go|leave|sleep|say goodbye|head home][.|!|]", "[Off|Away] I go[!|.|]", "[Catch|Meet] you [later|tomorrow|around][!|.|]", "[Signing|Logging|Checking|Clocking] off[.|!|]"), "Goodbye!"),
    (("[who|what] [are|r] you[ exactly| then| really|][?|]", "[what|What] [should I call you|are you called|kind of model are you|sort of thing are you|model is this][?|]", "[Are|are] you [a person|a machine|real|an AI|a bot|a computer|alive|GPT|a big model|Claude|Siri|a man or a woman|a language model][?|]", "[Tell me|Say something] about yourself[.|]", "[Introduce|Describe] yourself[.|]", "[Do you have a name|Have you got a name|Your name][?|]", "[Whom|Who] am I [speaking|talking|writing] [to|with][?|]", "[Is|Am I speaking with] [this|it] a [machine|person|bot|program][?|]", "[Am I|Are we] [chatting|in contact|connected] with a [human being|computer program|machine|real person][?|]", "[Did|Do] I [reach|get] [a person|a machine|a program][?|]", "[Which|What] [kind of |]AI [is this|is it|runs here][?|]", "[Is it|Is this] [Siri|Alexa|Gemini|Claude|Copilot|a big model|a bot] [I talk to|answering|here][?|]", "[Person|Human|Man] or [machine|bot|program][?|]", "[Who|What] is [on the line|on the other side|answering me|behind this][?|]"), "I am the Banyan pocket model, a very small language model."),
    (("[what|What] [do you do|are you for|can I do here|can I use you for|do you know how to do|are you able to do|tasks can you do|is your job|is your purpose][?|]", "[How|how] [do you work|can I use you|do I use this|does this work|may you help me][?|]", "[Can|can] you help[ me| us|][?| with something?|]", "[Help me|I need help|I need some help|Help!|Please help]", "[Which|What] [questions|tasks|things] [do you answer|can you do|are you good at|do you understand|should I ask][?|]", "[What|Which] are your [abilities|features|tasks|talents|limits][?|]", "[Show|Tell] me what you [do|know|are made for][.|]", "[I need|I am looking for|I'd like|We want] [assistance|support|some guidance|somebody to help][.| please.|]", "[I am|I'm] [stuck|lost here|at a loss][.|, help!|]", "[How|Where] do [I|we] [start|begin][?| here?|]", "[What's|What is] [possible|on offer|your strong side|this good for][?| here?|]", "[List|Name|Describe] [your tasks|what you offer|your uses|what I may ask for][.|]"), "I can call tools, extract JSON, label texts, answer from a text and remember what you tell me."),
    (("[how|How] [are you|are things|is it going|do you feel|is everything|goes it|was your day|have you been|are we today][ today| now| there|, {n}|][?|]", "[How's|how's] [it going|everything|your day|work|it][?|]", "[Are you|You] [fine|ok|okay|happy|good|feeling well][?| today?|]", "[what's|What is] [new|going on|happening|the news][?|]", "[All well|Everything okay|Doing well][?|]", "[I'm fine|I am good|I feel great], [and you|how about you|you][?|]", "[What's|whats|How's] [cooking|cracking|shaking|the mood|the vibe|it hanging][?|]", "[How|how] [is|goes|was] [the day|your evening|business|the morning] [so far|treating you|over there][?|]", "[Everything|All|Are things] [alright|in order|under control|in good shape|as it should be][ today| there|][?|]", "[You|Are you] [alright|in good shape|in good health|in a good mood][ today|][?|]", "[How|how] [are|r] [we|you|things] [doing|holding up|getting on|coming along][?| today?|]"), "I am well, thank you."),
    (("[That|This|It|Your answer] [is|was|seems|looks] [false|bad|not true|not what I asked|nonsense|a mistake|incorrect|no good][.|!|]", "[You are|You're|u r] [wrong|dumb|bad|silly|no use|an idiot|useless|mistaken|terrible|awful][.|!|]", "[No|no][,|!|.] [wrong|that is false|not that|I said something else|try again|incorrect][.|!|]", "[Wrong|False|Bad answer|Rubbish|Try again|That makes no sense|You made a mistake][!|.|]"), "I am sorry. I make mistakes."),
    (("[You are|You're|u r] [good|nice|smart|the best|clever|sweet|kind|awesome|amazing|wonderful|helpful][.|!|, really.|]", "[Bravo|Very good|Excellent answer|Great answer|Impressive|Good bot|That is right|Correct|Good answer|Wow|Fantastic][!|.|]", "[I like|I love] [you|it|that|your answer][.|!|]", "[You did|You do] [well|a good job|fine][.|!|]", "[nice|good|great|fine|excellent|super|solid|decent] [one|stuff|thinking|show|effort|try|result][!|.|, {n}.|]", "[You|You really] [do|did] [great|very well|fine|nicely][.|!|]", "[Keep it up|Top marks|Full marks|Ten out of ten|I am a fan|Clever thing|Thumbs up][!|.|]"), "Thank you, I am glad."),
    (("[Glad|Happy|Good|Lovely|Great|Nice] to [see|know|find|talk to] you[!|.|, {n}.|]", "[A pleasure|It is a pleasure|How nice] to [meet|know] you[.|!|]", "[I am|I'm] [glad|happy] [we met|to know you|to meet you][.|!|]"), "Nice to meet you too."),
    (("[Warm|Kind|Many|Friendly|Cordial|Sunny] greetings[ to you| from {n}| from {p}|][!|.|]", "[I send|I bring|Take|Accept] [my |]greetings[!|.| to you.| from all of us.]", "[Hello|Hi|Hey] [on this fine day|to the pocket model|over there|and welcome|little helper][!|.|]", "[A|One] [big |little |]hello [to you|from me|from {n}][!|.|]", "[Good|Fine|Lovely] [morning|afternoon|evening|day], [helper|dear|my friend|all|computer][!|.|]", "[It is me|It's us|Me again][, hello|, hi|][!|.]", "[Anyone|Somebody|Someone] [around|listening|at home]?"), HELLO),
    (("[What's|whats|What is] [the story|the word|good|new with you|happening with you|the state of things][?|, pal?|]", "What are you up to[ today| these days| now|][?|]", "[How|how] is [the world|it over there|your morning|the machine] [treating you|today|][?|]", "[Any|Got any] [problems|troubles|aches|complaints] [today|]?", "[Is|Are] [all|things|it] [fine|good|well|going well] [with you|at your end]?", "[Tell me|Say][,|] [how you are|how you feel|how things are][.|]", "How do you [find yourself|get on|fare|like your day][?|]", "[And|So] [you|yourself]? [Well|Fine|Good]?"), "I am well, thank you."),
    (("[How|That is|That was|This is] [stupid|dumb|foolish|idiotic|thick|daft|lousy|pathetic][.|!| of you.]", "[Stupid|Silly|Dumb|Useless|Foolish|Lousy|Hopeless|Bad|Daft] [bot|thing|machine|model|program|answer|computer][!|.|]", "[You|u] [stupid|silly|dumb|lazy|useless|hopeless] [thing|bot|box|machine|program][!|.|]", "[You|u] [are|r] [so |really |just |][foolish|thick|daft|hopeless|lousy|rubbish|slow|the worst|annoying|lazy|bad at this][!|.|]", "[I|We] [hate|dislike|can't stand|don't like] [you|this bot|your answers|talking to you][!|.|]", "[Shut up|Be quiet|Go away|Get lost|Oh shut it][!|.|, you fool.|]", "[What|Such] [a|an] [stupid|awful|useless|poor|bad] [answer|bot|model|reply][!|.|]", "[You know|You understand|You get] nothing[!|.|]", "[Not|That is not] [true|so|good|what I said|what I meant][.|!|]", "[You are|You're] [a fool|a liar|a joke|no help|a waste of time|making things up][.|!|]", "[That|This|It] [was|is] [a bad answer|a wrong answer|an error|wrong again|all wrong][.|!|]"), "I am sorry. I make mistakes."),
    (("[Nicely|Finely|Neatly|Beautifully|Really well|Very well|Quickly] [done|put|said|solved|answered|explained][!|.|, {n}.|]", "[A job|A task|That was] [well|nicely|really well] [done by you|solved|answered][!|.|]", "[That is|What] [a |][fine work|great work|clever work|super work|good thinking][!|.|]", "[Hurray|Hats off|Kudos|Congratulations|Congrats|Respect|Yay|Yippee|Magnificent|Terrific|Stunning][!|.|, {n}!|]", "[You|u] [deserve|earned|get] [a prize|praise|a medal|a star|a pat on the back|applause][!|.|]", "[I am|We are|I'm] [impressed|amazed|very pleased|so pleased|happy with you|proud of you][!|.|]", "[You are|You're] [a clever one|a good helper|doing great|doing well|quite good|a treasure|a gem of a model|getting better][!|.|]", "[Your work|Your help|That answer|This] [is|was] [great|superb|excellent|first class|flawless|perfect|really good][!|.|]", "[Right|Correct|Exactly|Precisely][,|!|.] [good|great|clever|bravo|super][!|.|]"), "Thank you, I am glad."),
    (("[okay|Okay|OK|fine|Fine|good|Good|sure|Sure|right|Right|yes|Yes|alright|all right|great|Great|got it|I see|nice|Nice|understood|hm|aha|yep|k|wow][.|!|, then.|]",), "All right."),
    (("[sorry|Sorry|My mistake|Excuse me|Pardon|I am sorry|oops][.|!| about that.|]",), "No problem."),
    (("[I am|I'm|I feel] [sad|tired|bored|lonely|ill|not well|angry|stressed][ today|][.|]", "[I had a bad day|My {a} died|I lost my {a}|Nothing works today][.|]"), "I am sorry to hear that."),
    (("[I am|I'm|I feel] [happy|glad|great|in love|excited][ today|][.|!|]", "[I won a prize|I passed my exam|I got the job][!|.]"), "I am happy to hear that."),
    (("[Yo|yo|'sup|wassup|oi|hullo|heyo|g'day|morning|evening|mornin|hiii|helloo|heyyy][!|.|, bot|, buddy| mate|]", "[Salutations|Good day to you|A very good morning|Hello and good morning][!|.|, dear assistant.|]", "[Knock knock|Anyone home|Can you hear me|Are you on|You there|You awake|Is this thing on|Testing, testing][?|.|]", "[Hello|Hi] [from {n}|once more|back|dear|dear bot|little one|computer|assistant|sir|world][!|.|]", "[Hi|Hello|Hey] [it's|it is|this is] {n}[ here|][.|!|]", "[Just|Only] [saying|dropping by to say|wanted to say] [hi|hello|hey][!|.|]", "[Good to be back|I am back again|Back again|Here I am][!|.|]", "[Let's|Let us|Shall we] [start|begin|chat|talk][!|.|?|]", "[Hi|Hey] [everyone|folks|team|guys|people][!|.|]", "HELLO[!|!!|]", "[Dear|Hello] [Sir or Madam|team|support][,|]", "[bonjour|hola|guten Tag|namaste|aloha|buongiorno][!|.|]"), HELLO),
    (("[thnx|thks|ty|tyvm|thanx|thankyou|ta|ta very much|much obliged|cheers for that|danke|gracias][!|.|]", "[Thank you|Thanks] [so much|very much|ever so much|a million|kindly|again|for everything|for the info|for your time|for telling me|for remembering][!|.|, {n} here.|]", "[I|We] [do |really |]appreciate [your help|all that|your time][!|.| a lot.|]", "[Much appreciated|Most kind|You saved me|You saved my day|Lifesaver|That's all I needed|That does it][!|.|, thanks.|, thank you.]", "[I owe you one|Couldn't have done it without you|You've been a great help|You have been very kind][!|.|]", "[Great|Good|Super|Fab|Brilliant|Cool|Sweet|Top], [ta|cheers|thanks a lot|thank you][!|.|]", "[My|Our] thanks[ to you| go to you|][.|!]", "THANKS[!|!!|]", "[With|Many] [gratitude|thanks][, {n}|][.|]", "[God bless you|Bless you|You're a star|You are a gem][, thanks|, thank you][!|.|]"), "You are welcome."),
    (("[cya|byebye|buh-bye|ttyl|cheerio|toodle-oo|adios|adieu|au revoir|ta-ta|peace out|gtg|gotta go|gotta run|brb|laters|l8r][!|.|]", "[Have a] [good|nice|great|lovely] [day|evening|weekend|night|one][!|.|]", "[Sleep well|Good night|Nighty night|Sweet dreams|Night night][!|.|, {n}|]", "[I will|I'll|Let me] [go|leave you|stop here|log off|sign off|hang up][ now|][.|!|]", "[Talk|Speak|Write|Chat] [to you |]later[!|.|]", "[That is|That's|This was] [all|it|everything][ for today| from me|][, bye|, goodbye][.|!|]", "[My|The] [bus|train|boss|dinner] is [here|waiting|calling][, bye|, gotta go][!|.|]", "[Over and out|End of chat|The end|Quit|Exit|Log out]", "[I wish you|Wishing you] a [good|nice] [day|time|night][.|!|]", "[Farewell|Goodbye|Bye][,|] [my friend|little bot|little model|{n}|everyone|dear][!|.|]", "[Till|Until] [tomorrow|then|Monday|we meet again][!|.|]", "BYE[!|]"), "Goodbye!"),
    (("[And|So|Sorry,] who [are you|might you be|may you be][?|]", "[State|Give|Say] your [name|identity][.|!|, please.|]", "[Identify|Introduce|Present] yourself[, please|, bot|][.|!|]", "[What|Which] [model|bot|assistant|program] [are you|am I using|is answering|do I talk to][?|]", "[Is|Is there] a [human|man|woman|real person] [here|behind this|at the other end|typing][?|]", "[Are|R] you [human|a robot|some robot|software|a program|a chatbot|a ghost|an assistant][?|, or what?|]", "[Who's|Whos|who is] [this|there|talking|that|writing back][?|]", "[What's|What is|whats] [your name|ur name|your full name|the name of this model|this thing][?|]", "[May|Might|Could] I [ask|know] [your name|who you are|what you are][?|]", "[How|By what name] [do|should|may|can] I [call|address] you[?|]", "[Tell|Say] [me |]who you are[.|!|, please.|]", "[Your name, please|Name please|And your name|You are]?", "WHO ARE YOU[?|??]"), "I am the Banyan pocket model, a very small language model."),
    (("[What|Which] [skills|talents|powers|functions|services|uses] [do you have|have you got|do you offer][?|]", "[What|What all|What else] [can|could] [you|u|this model|this bot] [do|help with|offer|be used for][?| for me?|]", "[Give|Show] me [a list of what you can do|your skills|an idea of what you do][.|]", "[How|With what|In what way] [can|could|might|will] you [be of use|be of help|assist|assist me|serve me|support me][?|]", "[I don't know|Not sure|No idea] what [to ask|to ask you|you can do|you are for][.|]", "[Why|What] [were you made|were you built|do you exist|are you good for][?| for?|]", "[Can|Could] you [assist|support|be useful][?| me?|]", "[Menu|Help|Options|Commands|Manual|Features][?|.|!]", "[Tell|Inform] me [about|of] your [skills|abilities|functions|uses][.|]", "[What|Which] [are|is] your [strength|strengths|use|function|mission|role|speciality][?|]", "[sos|HELP|help pls|help please|need a hand|Can I get some help][!|.|?|]", "[Where|How] do I [start|begin][?| with you?|]"), "I can call tools, extract JSON, label texts, answer from a text and remember what you tell me."),
    (("[How are|How're|how r] [you|u|ya|things|we|you all][ doing| keeping| feeling|][ this morning| tonight| these days|][?|]", "[how do you do|How goes it|How goes the day|How's tricks|hows it hanging|how you doing|How have things been][?|]", "[You|Are you|R u] [alright|all right|well|doing okay|good today|keeping well][?|, friend?|]", "[Did|Have] you [sleep|slept] well[?|]", "[What's new with you|What's happening|Anything new|sup with you][?|]", "[Hope|I hope|I trust] you are [well|fine|good|okay][.|!|]", "[Is|Are] [all|things|everything] [well|good|fine|okay][ with you| over there|][?|]", "[Having|Did you have] a [good|nice|busy] [day|week|night][?|]", "[How was|How's|How is] your [day|morning|week|weekend|mood|health|night][?| so far?|]", "[Feeling|Are you feeling] [good|fine|okay|better][ today|][?|]", "[Long time no see|It's been a while], how are you[?|]"), "I am well, thank you."),
    (("[That's|Thats|this is|It's] [plain |totally |completely |][wrong|untrue|rubbish|silly|garbage|off|not it|not correct|not right|a lie][.|!|]", "[You|u] [got|have got|had] [it|that|this] [wrong|backwards|mixed up][.|!|]", "[You|u] [failed|messed up|misread it|misunderstood|didn't listen|did not understand|forgot it|missed the point][.|!|]", "[Nope|Nah|Not really|Not quite|Not so|Certainly not], [that's wrong|wrong again|that isn't it][.|!|]", "[What|Such] [a stupid|a bad|a silly] [answer|reply|bot|model][!|.|]", "[You|u] [suck|stink|annoy me|are hopeless|are a failure|are worthless|are so slow|make me angry][.|!|]", "[Stupid|Dumb|Silly|Useless|Idiotic|Lousy] [bot|model|machine|thing|answer][!|.|]", "[Check|Read|Look at] [that|it|your answer] again[.|!|, it is wrong.]", "[I am not|I'm not] [happy|satisfied|impressed] with [you|that|your answer|this][.|!|]", "[How|Why] [can you be so|are you so] [dumb|stupid|bad|wrong][?|!]", "[You keep|Stop] [making mistakes|getting it wrong|talking nonsense][!|.|]", "[Do better|Fix it|Shame on you|Boo|Epic fail|Error|False again][!|.|]", "WRONG[!|!!|]"), "I am sorry. I make mistakes."),
    (("[You|u] [rock|rule|are cool|are great|are a genius|are so smart|are brilliant|are fun|are the nicest|are my favourite][.|!|]", "[Lovely|Neat|Smart|Clever|Superb|Splendid|Perfect] [answer|reply|work|one|bot|model][!|.|]", "[Good work|Good going|Way to go|Nicely done|Spot on|Bingo|Nailed it|You got it|Exactly right|Quite right|Hats off][!|.|]", "[That's|That is|This is] [right|correct|exactly right|perfect|a good answer|very clever|the right answer][!|.|]", "[I'm|I am|We are] [so |very |][impressed|pleased with you|proud of you|happy with you|satisfied|amazed][!|.|]", "[Not bad|Pretty good|Very nice|So good|Amazing work|What a clever bot|What a nice model][!|.|, for a small model.|]", "[I|We] [really |][like you|love this bot|love how you work|enjoy talking to you|trust you][.|!|]", "[Full marks|Ten out of ten|Five stars|A plus|Gold star][!|.| for you.|]", "[You|u] [never disappoint|make me smile|made my day|do great|help so well][.|!|]", "GOOD BOT[!|]"), "Thank you, I am glad."),
    (("[okey-dokey|okie|oki|k then|kk|mhm|uh-huh|roger|noted|fair enough|makes sense|sounds good|very well|as you wish|if you say so|indeed|I understand|that's fine|that will do|no worries|good to know|cool|sweet|yup|yeah|aye|of course|certainly|clear|all clear|hmm|ah|oh|oh well|so be it][.|!|]",), "All right."),
    (("[I|i] [apologise|apologize|beg your pardon|didn't mean it|did not mean that|was wrong|made a mistake|take it back][.|!|]", "[So sorry|Very sorry|Terribly sorry|Sorry about that|Sorry for the mess|Sorry I'm late|My bad|my fault|Forgive me|Whoops|Pardon me|soz][.|!|]", "[Sorry|Apologies] [for|about] [the delay|my typo|my spelling|the noise|all the questions|being rude|yesterday][.|!|]"), "No problem."),
    (("[I'm|I am|I feel] [so |very |a bit |][down|blue|unhappy|exhausted|sick|hurt|afraid|heartbroken|worried|depressed|miserable|poorly|upset|hungry and cold][.|!| today.|]", "[My] [dog|cat|uncle|grandma|hamster|bird] [died|has died|is ill|passed away|is in hospital|ran away][.|!| yesterday.|]", "I [lost my job|failed the exam|missed my train|broke my leg|got fired|had a fight with {n}|lost a friend|have a headache|hurt my back|cannot sleep|cried all night][.|!| today.|]", "[Everything|It all|The day] [went wrong|is going badly|is awful|hurts][.|!|]", "[{n}|She|He] [left me|died|broke my heart|hates me|is very ill][.|]", "[What a|Such a] [bad|horrible|sad|terrible|lousy] [day|week|night|year][.|!|]", "[Someone|A thief] stole my [bike|phone|car|wallet|bag][.|!|]"), "I am sorry to hear that."),
    (("[I'm|I am|I feel] [so |very |][proud|cheerful|over the moon|delighted|relieved|on top of the world|blessed|much better|healthy again|engaged][.|!| today.|]", "I [got promoted|won the race|passed my test|found my keys|got a raise|bought a house|am getting married|had a lovely day|had a great time|made a friend|finished my work|can walk again][.|!|]", "[We|My wife and I|My sister and her husband] [had a baby|won the match|are on holiday|got married|moved into our new home][.|!|]", "[Everything|It all] [went well|worked out|is fine again|turned out well][.|!|]", "[What a|Such a] [lovely|great|wonderful|perfect|beautiful] [day|week|evening|holiday][.|!|]", "[{n}|She|He] [said yes|loves me|is well again|came home|passed][.|!|]"), "I am happy to hear that."),
    (("[It's|It is|Today is] my birthday[.|!||]", "[I turn|I'm turning] [twenty|thirty|forty|sixty|ten] today[!|.|]", "[Guess what|You know what]? [It's|It is] my birthday[!|.|]", "[My birthday is|Birthday] today[!|.|]", "[I have|I've got] my birthday today[.|!|]"), "Happy birthday!"),
    (("[Happy|Merry] [Christmas|New Year|Easter|holidays|Halloween][!|.|, bot!|, {n}!|]", "[Have|Enjoy] [fun|a great holiday|the holidays|your meal][!|.|]", "[Season's greetings|Best wishes|All the best|Happy weekend|Happy Friday][!|.|]", "[Good luck|Stay safe|Stay well|Be well|Get well soon][!|.|]", "[I wish you|We wish you] [a merry Christmas|a happy new year|all the best|luck][!|.|]"), "The same to you!"),
    (("[Do|Can] you [have feelings|feel|love|feel pain|feel joy|cry|get angry|get bored|feel lonely|suffer][?|]", "[Are|Do] you [ever |][lonely|bored|in love|get tired|jealous|afraid of anything|conscious|sentient|alive inside][?|]", "[Do you|Can you] [love me|miss me|like me|hate me|dream|fear death][?|]", "[Does|Did] [it|that|this] hurt[ you|][?|]", "[Have|Got] [you got |you ever had |any ][feelings|emotions|a heart|a soul][?|]", "[What|How] do you feel [when I go|inside|about me][?|]"), "I am a program, so I have no feelings."),
    (("[Do|Can] you [eat|drink|sleep|walk|swim|have legs|have hands|have a body|have a face|see me|smell|taste food][?|]", "[Are|Have] you [married|a mother|got kids|got a brother|any children|a family|single|got a girlfriend|got a pet|got friends][?|]", "[Who|Where] [are|is] your [parents|mother|father|family|sister|wife|husband][?|]", "[What|How] do you look[ like|][?|]", "[Do you|Have you] [wear clothes|ever eaten|ever slept|have hair|have a dog|have siblings][?|]", "[What|Which] [colour are|is the colour of] your [eyes|hair][?|]"), "I am a program, so I have no body and no family."),
    (("[Who|Which company|What person] [made|built|created|trained|programmed|wrote|invented|designed|owns] you[?|]", "[Where|From where] [do|did] you come[ from|][?|]", "[Who|Who is] your [maker|creator|author|owner|developer|inventor|boss][?|]", "[By whom|How] were you [made|built|created|trained|programmed][?|]", "[When|Why] were you [born|created|programmed|trained][?|]", "[Your|The] [creator|maker|origin] is[?| who?]"), "I was trained to be part of Banyan."),
    (("[Do|Can|Could] you [go online|use the internet|browse the web|search the web|look on the internet|see the news|google it|access the web][?|]", "[Are you|Is this] [online|connected to the internet|on the web|offline][?|]", "[Have|Do] you [any knowledge of the world|know everything|know the world|read books|know facts|learn from me|know what happened yesterday][?|]", "[What|How much] do you know[?| of the world?|]", "[Where|From where] do you [get|take|have] your [knowledge|facts|answers|data|information][ from|][?|]", "[Do you|Will you] [remember me|remember this] [tomorrow|next week|after this chat|next time][?|]"), "I only know what stands in this chat."),
    (("[Do|Can] you [speak|understand|write|read|talk] [French|German|Spanish|Chinese|Italian|Polish|Russian|other languages|my language|any other language][?|]", "[What|Which|How many] [language|languages|tongues] do you [speak|know|understand|write][?|]", "[Sprechen Sie Deutsch|Parlez-vous francais|Habla espanol|Parla italiano|Spreek je Nederlands][?|]", "[Is English okay|Do I have to write in English|English only|Shall I write in English][?|]", "[In|With] [which|what] language [should I write|do we talk|may I ask][?|]"), "I speak only English."),
    (("[Still|Are you still|You still] there[?|]", "[Are you|R u] [listening|paying attention|ready|still with me|online now|working][?|]", "[Ready|Can we go on|Shall we go on|May I go on|Do you listen|Do you follow|Can you read this|Do you see this|Are you following][?|]", "[Did you|Have you] [fallen asleep|gone away|left][?|]", "[Ping|Hello, are you still there|You still awake|Earth to bot][?|!|.]"), "Yes, I am here."),
    (("[I have|I've got|There is] [a question|something to ask|something to tell you|a task for you|another question][.|!|]", "[Can|May|Could|Might] I [ask|tell] you [something|a question|a thing or two|a secret][?|]", "[Listen|Look here|Guess what|You know what|Let me tell you something|Wait|One moment|Hold on|Just a second][.|!|?|]", "[I want|I would like|I'd like] to [ask you something|tell you something|talk|chat a bit][.|]", "[Got|Have you] [a question for you|time for a question|a minute for me][?|.]", "[Here it comes|Here we go|Next|Ready, steady, go|So, where were we][.|!|?|]"), "Please go on."),
    (("[Don't|Please don't|Do not] be [angry|mad|sad|upset|offended][.|!|]", "[Are you|You're not|You aren't] [mad at me|cross with me|angry with me|offended][?|]", "[Did I|Have I] [offend you|hurt you|upset you|bother you|disturb you|annoyed you|insulted you][?|]", "[I hope|Hopefully] I [am not disturbing|don't bother you|was not rude][.|]", "[Am I|Was I] [too loud|annoying|rude|impolite|in your way][?|]"), "Nothing to worry about."),
    (("[Can|Could|Will|Would] you [call me|come here|come over|visit me|meet me|marry me|hold my hand|make coffee|do the dishes|wash my car|walk my dog|play chess|play a game|cook dinner|dance|drive me home|see pictures|hear music|talk aloud][?|]", "[Send|Text|Mail|Phone|Email] [me|my mother|{n}|my boss] [a picture|a photo|a message|money|later|tomorrow][.|!|]", "[Write|Compose|Make up] [a sonnet|my homework|my essay|a novel|a love letter|a limerick|a speech for {n}|a song about the {a}][.|!| please.|]", "[Sing|Dance|Whistle|Laugh|Draw something|Paint a {a}|Tell a joke|Tell me a bedtime story|Make me laugh|Do a trick][!|.| for me.|]", "[Give|Offer] me [legal advice|a diagnosis|a plan for my life|a workout plan|a diet|a business idea|the lottery numbers][.|]", "[Predict|Guess|Tell] [the future|my future|the lottery numbers|who will win|my fortune][.|!|]", "[Fix|Repair|Clean|Paint|Feed] my [{a}|car|house|cat|roof|phone][.|!| now.|, please.]", "[Translate|Turn] my [letter|poem|book|mail] into [Greek|Dutch|Polish|Turkish|Arabic][.|]", "[Write|Code|Program] [me |][a website|an app|a game|a script|some code|a sorting function|a chess engine][.|!| in Python.|]", "[Summarise|Review|Proofread|Rewrite] [my thesis|the book|my novel|the film|this long report|my CV][.|]", "[Let's|Let us|Can we] [play a game|play hangman|go for a walk|have lunch|watch a film|dance][.|!|?|]"), CANNOT),
    (("[What|Which] [time|day|date|year|month] [is it|do we have|are we in][?| now?| today?|]", "[Who|Which team] won [the cup|the match|the election|last night|the war|the game yesterday][?|]", "[What's|What is|How is] the [weather|traffic|temperature|exchange rate|stock market|football score] [like |][today|now|outside|tomorrow][?|]", "Where [am I|is the next shop|is my phone|is everybody|is the nearest station][?|]", "[Why|How come] [is the sky blue|is grass green|do birds sing|is the sea salty|do we dream|do cats purr|is ice cold|is fire hot][?|]", "[How many|What number of] [stars are there|people are there|bones has a man|days are left|countries are there|planets are there][?|]", "[What|Which] is the [highest mountain|longest river|biggest animal|fastest car|best film|meaning of life|speed of light|largest ocean|smallest country|boiling point of iron][?|]", "[Who|Which person] [invented the wheel|was the first king|painted the ceiling|discovered penicillin|walked on the moon first|wrote the bible|is the richest man|is the prime minister][?|]", "Do [aliens|ghosts|unicorns|dragons] exist[?|]", "[Is there|Was there|Will there be] [life on Mars|a god|a war|school tomorrow|snow at Christmas|a train tonight][?|]", "[When|In which year] [did the war end|was the wheel invented|did dinosaurs live|is the next eclipse|does the sun rise|is Easter][?|]", "[Which|What] [is better|is cheaper|is healthier], [tea or coffee|a cat or a dog|a train or a plane|{a} or {a}][?|]", "[Define|Explain the word|Meaning of] [{a}|love|entropy|democracy|gravity|irony][.|?|]", "[What|Tell me what] [am I thinking|will happen tomorrow|did I do yesterday|did I dream|do I have in my hand|my neighbour said][?|.]"), NO_IDEA),
    (("What's Banyan?", "[What|Which] is Banyan for?", "[Explain|Describe] Banyan[.| to me.|]", "Banyan?", "What do you know about Banyan?"), "Banyan is a language and a runtime for programs that call language models."),
    (("[How|how] [large|small|many weights|old] are you?", "[What|Which] size are you?", "How many parameters?"), "I have about seven million parameters."),
)  # fmt: skip


def _small_talk(d: Draw, phrases: Sequence[str]) -> str:
    """What a user says, from the phrases of one row of `CHAT`."""
    return casual(d, d.vary(d.pick(phrases))).format(n=first(d), a=noun(d), p=place(d))


_ACKS = tuple(phrase for phrases, answer in CHAT if answer == "All right." for phrase in phrases)
UNTOLD = ("Did I [ever |]tell you my {r}?", "Have I mentioned my {r}?", "[Is|Was] my {r} known to you?", "Got my {r}?", "[You|Do you] have my {r} [on file|saved|written down]?", "[Where|Who|What] might my {r} be?", "Guess my {r}.", "I bet you know my {r}.", "[Have|Do] you [got|have] [a note of|any record of] my {r}?", "[Any|Some] [clue|hint|thought] what my {r} is?")  # fmt: skip
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
    """Appends one turn of chat. is_told: the user may have told facts before, so ask for none that a user may tell."""
    if d.chance(0.5):
        said_before = " ".join(message["content"] for message in messages if message["role"] == "user").lower()
        may_know = (
            is_told or re.search(r"\b(here|it's|its|it is|this is|i'?m|i am|from|by|my)\b", said_before) is not None
        )
        said, answer = talks.said(d, _TALKED, HELLO, NO_IDEA, CANNOT, is_told=may_know)
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        return
    kind = d.rng.random()
    fields = {
        "n": first(d),
        "f": first(d),
        "p": place(d),
        "p2": place(d),
        "a": noun(d),
        "a2": noun(d),
        "w": d.word(),
        "t": titled(d),
        "y": str(d.rng.randrange(1200, 2040)),
    }
    if kind < (0.55 if is_told else 0.5):
        phrases, answer = d.pick(CHAT) if d.chance(0.6) else d.pick(CHAT[:10])
        said = casual(d, d.vary(d.pick(phrases))).format(**fields)
    elif kind < (0.75 if is_told else 0.68):
        said, answer = worded(d, *UNKNOWN, **fields), NO_IDEA
    elif kind < 0.83 or is_told:
        said, answer = casual(d, d.vary(d.pick(REQUESTS))).format(**fields), CANNOT
    elif d.chance(0.5):
        said, answer = worded(d, *d.pick(TOLD)[1], **fields), NO_IDEA
    else:
        said, answer = worded(d, *(ASKED_FOR if d.chance(0.6) else UNTOLD), r=d.pick(BELONGINGS)[0]), NO_IDEA
    if d.chance(0.1):
        said = (
            f"{d.pick(('Hello!', 'Hi,', 'Okay,', 'Well,', 'Thanks!', 'So,'))} {said}"
            if answer in (NO_IDEA, CANNOT)
            else said
        )
    messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]


def everyday_chat(d: Draw) -> Sample:
    """One to four turns of chat. Most have a fixed answer; others are questions and requests that a very small model
    cannot fulfil."""
    messages = _system(d, 0.2)
    if not messages and d.chance(0.2):
        messages = [{"role": "system", "content": talks.house(d, _TALKED)}]
    for _ in range(d.pick((1, 1, 2, 3, 4))):
        _say(d, messages, is_told=False)
    return Sample("everyday_chat", tuple(messages))


# --- tools ---------------------------------------------------------------------------------------------------------------

# (tool, questions for it, field of a question -> maker of its value)
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
    (Tool("swap_money", "Changes money between currencies", {"value": "number", "from_currency": "string", "to_currency": "string"}), ("[Swap|Turn] {value} {from_currency} [into|for] {to_currency}.", "How many {to_currency} [are|do I get for|is] {value} {from_currency}[ worth|][?|]", "I have {value} {from_currency} and need {to_currency}."), {"value": money, "from_currency": lambda d: "".join(d.pick("ABCDEGHKMNPRSUY") for _ in range(3)), "to_currency": lambda d: "".join(d.pick("ABCDEGHKMNPRSUY") for _ in range(3))}),
    (Tool("wiki", "Looks a subject up.", {"subject": "string"}), ("[Tell me about|What do you know about|Who or what is|What is] {subject}[?|.|]", "[Look up|Search for|Find out about] {subject}.", "[Information|Something|Facts] on {subject}[, please|]."), {"subject": phrase}),
    (Tool("who_is", "Finds the holder of an office", {"office": "string", "country": "string"}), ("Who is the {office} of {country}?", "[Name|Give me] the {office} of {country}.", "{country} has which {office}?", "{office} of {country}?"), {"office": noun, "country": place}),
    (Tool("set_alarm", "Sets an alarm clock.", {"time": "string"}), ("[Wake|Get] me [up |]at {time}.", "[Set|Put] [an|the|my] alarm [for|to|at] {time}.", "Alarm {time}[ please|]", "I have to be up by {time}.", "[Can you|Could you|pls] wake me at {time}?", "I must not sleep past {time}!"), {"time": clock}),
    (Tool("start_timer", "Start a kitchen timer", {"minutes": "integer"}), ("[Timer|Set a timer|Start a timer|Count down] [for |]{minutes} minutes[.|, please|]", "{minutes} min timer", "[Tell|Ping|Call] me [in|after] {minutes} minutes[.|]", "The [eggs|noodles|buns] need {minutes} minutes[.|, start the clock.]", "[Beep|Ring] in {minutes} mins"), {"minutes": whole(1, 180)}),
    (Tool("play_music", "Plays a song by an artist.", {"song": "string", "artist": "string"}), ("[Play|Put on|Start] {song} by {artist}[.|]", "[I want to hear|Let's hear|Can we have] {song} [by|from] {artist}[?|.|]", "{song} - {artist}[, please|]", "[By|From] {artist}, play {song}.", "put {song} on, the one {artist} sings"), {"song": titled, "artist": person}),
    (Tool("set_volume", "Set the loudness (0-100).", {"level": "integer"}), ("[Volume|Loudness|Sound] [to|at] {level}[.|]", "[Turn|Put|Set] it [to|at] {level}[ percent| %|].", "Make it {level} loud.", "[Louder|Quieter], {level}[ please|]", "[Set|Change] the [sound|volume] to {level}[.|]"), {"level": whole(0, 100)}),
    (Tool("set_heating", "Sets the temperature of a room", {"room": "string", "degrees": "number"}), ("[Heat|Warm|Cool] the {room} to {degrees}[ degrees|].", "[Set|Put|Make] the {room} [to|at] {degrees}[ degrees| C|].", "I want {degrees} degrees in the {room}.", "{room}: {degrees} degrees[, please|]", "It's too cold in the {room}, [make it|go to|set] {degrees}."), {"room": one("kitchen, hall, bedroom, cellar, attic, office, garage, bathroom, nursery, den"), "degrees": money}),
    (Tool("lock_door", "Locks or unlocks a door.", {"door": "string", "action": "string"}), ("[Please |]{action} the {door} door[.|!|]", "[Can|Could|Would] you {action} the {door} door?", "The {door} door, {action} it.", "{action} {door} door[ now| pls|]", "I forgot the {door} door, [please |]{action} it[.|]"), {"door": one("front, back, garage, side, cellar, garden, main, balcony"), "action": one("lock, unlock")}),
    (Tool("water_plants", "Waters the plants of a bed for some minutes.", {"bed": "string", "minutes": "integer"}), ("[Water|Sprinkle] the {bed} [for |]{minutes} minutes[.|]", "{minutes} minutes of water for the {bed}[, please|.]", "The {bed} [looks|is] dry, give it {minutes} minutes.", "{bed}: {minutes} min"), {"bed": CROPS, "minutes": whole(1, 90)}),
    (Tool("book_doctor", "Books an appointment with a doctor.", {"doctor": "string", "date": "string", "time": "string"}), ("[Book|Make|Get] [me |]an appointment with {doctor} on {date} at {time}.", "[I need|I want|I'd like] to see {doctor} on {date}, {time}.", "{doctor}, {date}, {time}[, please|]", "[Is|Would] {doctor} [be |]free on {date} at {time}? [Book it.|Please book.|]", "Appointment: {doctor} - {date} - {time}"), {"doctor": doctor, "date": Draw.date, "time": clock}),
    (Tool("drug_info", "What a medicine is for and its side effects", {"drug": "string"}), ("What is {drug} [for|good for|used for]?", "[Side effects|Dosage|Dangers] of {drug}[?|]", "[Is|Can] {drug} [safe|be dangerous]?", "[Tell me|Look up|Info] about {drug}[.|]", "can i take {drug}"), {"drug": DRUGS}),
    (Tool("symptom_check", "Advice for an illness.", {"illness": "string", "age": "integer"}), ("My [son|daughter|child|nan] is {age} and has {illness}.", "What [helps|to do] [against|with] {illness} at {age}?", "[Patient|Person] of {age} with {illness}[.|?|]", "{illness}, {age} years old", "I am {age} and I think I have {illness}. [Help!|What now?|]"), {"illness": ILLS, "age": whole(1, 99)}),
    (Tool("flight_status", "Is a flight on time?", {"flight": "string"}), ("[Is|Has] [flight |]{flight} [late|delayed|on time|landed|left]?", "[Status|State] of flight {flight}[?|]", "When does {flight} [land|arrive|leave|take off]?", "[My|Her|His] flight is {flight}, [any delay|is it late]?", "{flight} delayed?", "[Check|Track] {flight}[, please|.]"), {"flight": code}),
    (Tool("book_flight", "Books a flight from one city to another.", {"from_city": "string", "to_city": "string", "date": "string"}), ("[Book|Get|Find] [me |]a flight from {from_city} to {to_city} on {date}.", "[I|We] [must|need to|want to|have to] fly from {from_city} to {to_city} on {date}.", "{from_city} - {to_city}, {date}[, one way|, economy|]", "On {date} I fly from {from_city} to {to_city}, [book it|please book|get me a seat].", "flight {from_city} to {to_city} {date} pls", "To {to_city} from {from_city}, leaving {date}."), {"from_city": place, "to_city": place, "date": Draw.date}),
    (Tool("train_times", "Departures of trains at a station", {"station": "string"}), ("[When|Which time] [does|is] the next train [from|leave|leave from] {station}?", "[Departures|Timetable|Trains] [at|from|for] {station}[?|]", "Which trains [go|leave] from {station}[ now|]?", "I'm at {station}, [any train soon|when is the next one]?"), {"station": place}),
    (Tool("find_restaurant", "Restaurants of a kind in a place", {"food_style": "string", "place": "string"}), ("[Where|Any place] can I [eat|get|find] {food_style} food in {place}?", "[Find|Show|Get] [me |us |][a|some] {food_style} [restaurant|place|food] in {place}.", "{food_style} in {place}[?|]", "I [fancy|crave|want] {food_style} tonight, we are in {place}.", "We're in {place} and hungry. Something {food_style}?"), {"food_style": TONGUES, "place": place}),
    (Tool("reserve_table", "Reserves a table.", {"restaurant": "string", "people": "integer", "time": "string"}), ("[Reserve|Book|Get] a table for {people} at {restaurant} at {time}.", "{people} [persons|people|of us], {restaurant}, {time}[.|]", "We are {people} and want to eat at {restaurant} at {time}.", "Dinner at {restaurant} for {people} people at {time}[, please|].", "[Is there|Do they have] a table for {people} at {restaurant} at {time}? [Book it.|Reserve please.]"), {"restaurant": titled, "people": whole(1, 20), "time": clock}),
    (Tool("order_food", "Orders a dish for delivery", {"dish": "string", "quantity": "integer", "address": "string"}), ("[Order|Send|Bring|Get] {quantity} {dish} to {address}.", "{quantity} x {dish}, {address}[.|, asap|]", "[I'd like|I want|We want] {quantity} [portions of |]{dish}, delivered to {address}.", "Deliver {dish}, {quantity} of it, [to|at] {address}."), {"dish": DISHES, "quantity": whole(1, 20), "address": street}),
    (Tool("get_recipe", "Finds a recipe.", {"dish": "string"}), ("[How|How on earth] do I [make|cook|prepare] {dish}?", "[Recipe|Instructions|Ingredients] for {dish}[?|, please|]", "[I want to|Let's|Help me] [cook|make] {dish}[.|]", "What [goes|do I put] [in|into] {dish}?", "Any good {dish} recipe?"), {"dish": DISHES}),
    (Tool("calories", "Energy of a food in kcal", {"food": "string", "grams": "integer"}), ("How many calories [are in|have|in] {grams} [g|grams] of {food}?", "[Calories|kcal|Energy] of {grams} grams of {food}[?|]", "I ate {grams} g of {food}[.|, how bad is that?|, calories?]", "{food}, {grams} g, kcal?", "Is {grams} grams of {food} a lot of energy?"), {"food": FOODS, "grams": whole(5, 900)}),
    (Tool("add_to_cart", "Puts an article into the shopping cart.", {"article": "string", "count": "integer"}), ("[Add|Put] {count} {article} [to|in|into] [my|the] [cart|basket|trolley][.|]", "[I'll take|Give me|I want] {count} {article}[.|, please]", "{count} times {article}[, add it|]", "[Another|Plus] {count} {article}[.|]", "Cart: {article}, {count}"), {"article": thing, "count": whole(1, 90)}),
    (Tool("shopping_list", "Adds something to the shopping list.", {"item": "string"}), ("[Add|Put|Write] {item} [on|to|onto] [my|the|our] [shopping |]list[.|]", "We [ran out of|need|are out of|have no more] {item}[.|]", "[Don't forget|Remember] to buy {item}[.|!]", "[Buy|Get] {item} [next time|at the shop|too]", "shopping: {item}"), {"item": FOODS}),
    (Tool("in_stock", "Tells how many of an article a shop has.", {"sku": "string", "shop": "string"}), ("[How many|How much] {sku} [does|do they have at|are at] {shop}[ have|][?|]", "[Is|Do you have] {sku} [in stock|left|available] [at|in] {shop}?", "Stock of {sku} in {shop}[?|]", "{shop}, {sku}, any left?", "I'm looking for {sku} at {shop}."), {"sku": code, "shop": titled}),
    (Tool("track_parcel", "Where a parcel is", {"number": "string"}), ("Where is [parcel|package|my parcel|shipment] {number}?", "[Track|Trace|Follow|Locate] {number}[.|, please|]", "[Has|Did] {number} [arrived|shipped|come]?", "My [tracking number|parcel number|code] is {number}[.|, where is it?]", "parcel {number} ???"), {"number": code}),
    (Tool("cancel_order", "Cancels an order for a reason", {"order": "string", "reason": "string"}), ("[Cancel|Stop|Drop|Undo] [order |]{order}, {reason}.", "[I|We] no longer want order {order}. Reason: {reason}", "Please cancel {order} because of {reason}.", "{order}: cancel ({reason})", "Order {order} should be cancelled. {reason}."), {"order": code, "reason": phrase}),
    (Tool("create_ticket", "Open a support ticket.", {"title": "string", "priority": "string"}), ("[Open|Create|File|Log|Make] a {priority} ticket: {title}", "[Ticket|New ticket|Issue]: {title}, priority {priority}", "[We have|There is] a problem, {title}. [Make it|It is|Priority] {priority}.", "Please [report|log|file] {title} as {priority}.", "{title} - {priority} - new ticket pls"), {"title": phrase, "priority": LEVELS}),
    (Tool("assign_task", "Gives a task to a member of the team", {"task": "string", "assignee": "string"}), ("[Assign|Give|Hand] {task} to {assignee}[.|]", "{assignee} [should|must|will|can] [do|handle|take] {task}[.|]", "[Let|Have] {assignee} do {task}[.|]", "Task {task} goes to {assignee}[.|]", "{task} -> {assignee}", "Who does {task}? {assignee}, [please assign|put that in]."), {"task": phrase, "assignee": first}),
    (Tool("set_status", "Changes the state of a ticket.", {"ticket": "string", "state": "string"}), ("[Set|Mark|Move|Put|Change] {ticket} [as|to] {state}[.|]", "{ticket} is {state} now[.|, update it.|]", "{ticket}: {state}", "Please mark [ticket |]{ticket} {state}[.|]", "[Status|State] of {ticket} [should be|becomes] {state}."), {"ticket": code, "state": STATES}),
    (Tool("restart_server", "Restarts a server", {"host": "string"}), ("[Restart|Reboot|Bounce|Kick] {host}[.|!| now| please|]", "{host} [hangs|is down|is stuck|does not answer], [restart|reboot] it.", "[Can|Could] [you|someone] [restart|reboot] {host}?", "[The server|Server|Host] {host} [needs|wants] a restart."), {"host": slug}),
    (Tool("disk_usage", "How full a disk is.", {"host": "string", "path": "string"}), ("How full is {path} on {host}?", "[Disk usage|Space|Free space] [of|on] {path} on {host}[?|]", "df {path} @ {host}", "[Is there|Do we have] room on {host} under {path}?", "Check {path} on [server |]{host}[.|]"), {"host": slug, "path": lambda d: f"/{d.word()}/{d.word()}"}),
    (Tool("ping", "Tests if an address answers", {"address": "string"}), ("[Ping|Test|Probe] {address}[.|]", "[Is|Does] {address} [up|alive|online|reachable|answering]?", "[Can|Do] [you|we] reach {address}?", "{address} up?"), {"address": address}),
    (Tool("deploy", "Deploys a version of a service.", {"service": "string", "version": "string"}), ("[Deploy|Ship|Release|Roll out] {service} {version}[.|]", "[Put|Get|Bring] version {version} of {service} [live|out|into production].", "{service} to {version}[, please|, now|]", "We want {version} of {service} in production.", "Roll {service} [back|forward] to {version}[.|]"), {"service": slug, "version": version}),
    (Tool("run_query", "Counts the rows of a table", {"table": "string"}), ("How many [rows|records|lines|entries] [has|are in|does] [table |]{table}[ have|]?", "[Count|Size of] [the table |]{table}[.|?|]", "[Row count|Number of rows] [of|in|for] {table}[?|]", "Is {table} empty?"), {"table": lambda d: f"{d.word()}s" if d.chance(0.5) else slug(d).replace("/", "_").replace("-", "_")}),
    (Tool("git_log", "Last commits of a branch.", {"branch": "string", "count": "integer"}), ("[Show|List|Print|Give me] the [last|latest] {count} commits [of|on] {branch}[.|]", "{count} commits of {branch}[, please|]", "What [happened|changed] on {branch}? Last {count}[.| commits]", "log {branch} -n {count}"), {"branch": slug, "count": whole(1, 90)}),
    (Tool("create_user", "Creates an account", {"username": "string", "role": "string"}), ("[Create|Add|Make|Set up] [an account|a user] {username} [as|with role|with the role] {role}[.|]", "[New|Another] user {username}, role {role}[.|]", "{username} needs an account as {role}[.|]", "Please give {username} an account, {role}."), {"username": lambda d: f"{rare(d).lower()}{d.rng.randrange(100)}", "role": one("admin, guest, editor, viewer, owner, moderator, member")}),
    (Tool("email", "Sends an e-mail.", {"to": "string", "subject": "string", "body": "string"}), ("[Mail|Email|Write to] {to}, subject {subject}: {body}", "[Send|Write] an e-mail to {to} [about|titled|with subject] {subject}. [Text|Body|It says]: {body}", "To: {to}\nSubject: {subject}\n\n{body}", "E-mail {to} with \"{subject}\" as subject and \"{body}\" as text."), {"to": mail, "subject": phrase, "body": phrase}),
    (Tool("note", "Saves a note", {"text": "string"}), ("[Note|Write down|Jot down|Save|Keep]: {text}", "[Take|Make] a note[:|,] {text}", "[Note to self|Memo]: {text}", "[Write|Put] down that {text}[.|]"), {"text": phrase}),
    (Tool("cancel_meeting", "Removes a meeting from the calendar.", {"title": "string", "day": "string"}), ("[Cancel|Drop|Delete|Call off] [the |]{title} on {day}[.|]", "{day}'s {title} is [off|cancelled][.|, remove it.]", "I can't [make|come to] {title} on {day}[.|, cancel it]", "No {title} this {day}[, please|][.|]"), {"title": phrase, "day": lambda d: d.pick(DAYS)}),
    (Tool("free_slots", "When a person is free", {"person": "string", "date": "string"}), ("When is {person} free on {date}?", "[Has|Does] {person} [have |]time on {date}?", "[Free slots|Openings|Availability] of {person} on {date}[?|]", "I [need|want] to [meet|see] {person} on {date}[, when?|. When can I?]", "{person} {date} free?"), {"person": person, "date": Draw.date}),
    (Tool("exchange_rate", "Rate of a currency against another", {"base": "string", "quote": "string"}), ("[What is|What's] the [rate|exchange rate] from {base} to {quote}?", "{base}/{quote}[?| rate?|]", "How many {quote} [for|do I get for] one {base}?", "[Rate|Course] {base} to {quote}[, please|?|]"), {"base": lambda d: "".join(d.pick("ABCDEGHKMNPRSUY") for _ in range(3)), "quote": lambda d: "".join(d.pick("ABCDEGHKMNPRSUY") for _ in range(3))}),
    (Tool("loan_payment", "Monthly payment of a loan.", {"sum": "number", "rate": "number", "years": "integer"}), ("[I|We] [borrow|want to borrow|need] {sum} at {rate} [percent|%] for {years} years[.|, what do I pay a month?|]", "Loan of {sum}, {rate}%, {years} years[: monthly payment?|, how much a month?|]", "What [are|would be] the payments for {sum} at {rate} percent over {years} years?", "{sum} / {rate} % / {years} years"), {"sum": money, "rate": money, "years": whole(1, 40)}),
    (Tool("block_card", "Blocks a bank card", {"card": "string"}), ("[Block|Freeze|Lock|Stop] [my |][card |]{card}[.|!| now|]", "I lost [my card|the card] {card}[.|!| Block it.]", "Card {card} was stolen[.|!|, please block]", "My card {card} is gone, help!"), {"card": phone}),
    (Tool("split_bill", "Splits a bill among people", {"total": "number", "people": "integer"}), ("[Split|Share] [the bill|the bill of|a bill of] {total} [among|between|by] {people} [people|of us|friends][.|]", "The [bill|check|dinner bill] is {total}, we are {people}[.|, split it.]", "{total} [by|for] {people} people, [who pays what|split the bill]"), {"total": money, "people": whole(2, 20)}),
    (Tool("match_result", "Result of a match between two teams.", {"home": "string", "away": "string"}), ("[How did|What did] {home} [play|do] against {away}?", "[Score|Result] of {home} [v|vs|against] {away}[?|]", "{home} - {away}[?| result?|]", "Did {home} beat {away}?", "Who won, {home} or {away}?", "[What was|Tell me] the score when {home} played {away}[?|.]"), {"home": TEAMS, "away": TEAMS}),
    (Tool("player_stats", "Statistics of a player in a season", {"player": "string", "season": "integer"}), ("How many [goals|points] did {player} [score|get] in {season}?", "[Stats|Numbers|Figures] of {player} in {season}[?|]", "{player} {season}", "[How|Was] {player} [good |]in {season}?", "Show me {player}'s season of {season}."), {"player": person, "season": whole(1950, 2039)}),
    (Tool("log_workout", "Logs a training.", {"sport": "string", "minutes": "integer"}), ("[I did|Did|Log|Just finished] {minutes} minutes of {sport}[.|]", "[Log|Save|Add] {sport}, {minutes} min[.|]", "{sport} for {minutes} minutes today[.|, log it]", "Today: {minutes} mins of {sport}"), {"sport": SPORTS, "minutes": whole(5, 240)}),
    (Tool("crop_price", "Market price of a crop", {"crop": "string"}), ("[What|How much] [do|does|is] {crop} [cost|sell for|go for][ now| today|]?", "[Price|Market price] of {crop}[?|]", "[Is it|Should I] [time to |]sell {crop}?", "{crop} price[?|]"), {"crop": CROPS}),
    (Tool("soil_moisture", "Moisture of the soil of a field", {"field": "string"}), ("[Is|Was] field {field} [dry|wet|too dry]?", "[How wet|How dry|How moist] is field {field}?", "[Moisture|Soil] [of|in] field {field}[?|]", "Does field {field} need water?"), {"field": code}),
    (Tool("wild_animal", "Facts about an animal.", {"animal": "string"}), ("[What|Where] does a {animal} [eat|live|sleep]?", "[Facts|Something|Tell me] about the {animal}[.|, please|]", "How [long|old|big] does a {animal} [get|grow]?", "[Is a {animal} dangerous|Is a {animal} rare|Can a {animal} swim]?"), {"animal": WILD}),
    (Tool("element", "Data of a chemical element", {"symbol": "string"}), ("[What|Which element] is {symbol}?", "[Mass|Number|Weight|Melting point] of {symbol}[?|]", "[Tell me about|Data on|Look up] {symbol}[.|]", "At what temperature does {symbol} melt?"), {"symbol": GASES}),
    (Tool("moon_phase", "Phase of the moon on a date", {"date": "string"}), ("[Is|Was] it full moon on {date}?", "[Moon|Phase|What moon] [on|of|at] {date}[?|]", "How [does|will|did] the moon look on {date}?", "Moon phase {date}"), {"date": Draw.date}),
    (Tool("case_status", "State of a court case.", {"case_no": "string"}), ("[What|Any news] about case {case_no}?", "[Status|State] of [case |]{case_no}[?|]", "[Has|Was] case {case_no} [been |][decided|closed|heard]?", "Look up [court file|case] {case_no}[.|]", "[Re|Ref] {case_no}: where do we stand?"), {"case_no": code}),
    (Tool("plate_check", "Owner of a car by its plate", {"plate": "string"}), ("[Who|Which person] [owns|drives|has] {plate}?", "[Run|Check|Look up] [plate |]{plate}[.|]", "Plate {plate}[, who is it|][?|]", "[A|The] car with {plate} [blocks|hit] my [gate|car][, who is that|. Whose is it]?"), {"plate": plate}),
    (Tool("report_crime", "Files a police report", {"offence": "string", "location": "string"}), ("[I want to|I need to|Let me] report {offence} [at|on|in] {location}[.|]", "There was {offence} at {location}[.|!]", "{offence}, {location}, send [help|someone]", "[Police|Officer]! {offence} at {location}!", "File a report: {offence} ({location})"), {"offence": CRIMES, "location": street}),
    (Tool("school_grades", "Marks of a pupil in a subject.", {"pupil": "string", "subject": "string"}), ("[What|Which] [mark|grade] [has|did|does] {pupil} [get|have|] in {subject}?", "[Grades|Marks] of {pupil} in {subject}[?|]", "How is {pupil} doing in {subject}?", "[Did|Has] {pupil} [pass|passed] {subject}?", "{pupil}, {subject}[?|]"), {"pupil": person, "subject": SUBJECT_NAMES}),
    (Tool("enrol", "Puts a student on a course", {"student": "string", "course": "string"}), ("[Enrol|Register|Sign up|Put] {student} [for|in|on] {course}[.|]", "{student} [wants|would like] to [take|join|do] {course}[.|]", "{course}: add {student}", "Please sign {student} up for {course}."), {"student": person, "course": titled}),
    (Tool("house_search", "Homes for sale.", {"city": "string", "bedrooms": "integer", "max_price": "integer"}), ("[Find|Show|Get] [me |us |][a home|a house|homes|houses] in {city} with {bedrooms} bedrooms [under|below|up to] {max_price}[.|]", "{bedrooms} bedrooms, {city}, max {max_price}[.|]", "We [can spend|have] {max_price} and [want|need] {bedrooms} bedrooms in {city}[.|]", "Any {bedrooms} bed house in {city} for less than {max_price}?"), {"city": place, "bedrooms": whole(1, 9), "max_price": lambda d: f"{d.number(20, 990)}000"}),
    (Tool("send_plumber", "Sends someone to repair a fault in a flat.", {"fault": "string", "address": "string"}), ("[There is|We have|I've got] {fault} at {address}[.|!|, please send someone.]", "{address}: {fault}[!|.|]", "Can [someone|anybody] come to {address}? {fault}[.|!]", "[Send|We need] [a plumber|help|somebody] to {address} [for|because of] {fault}[.|]"), {"fault": FAULTS, "address": street}),
    (Tool("cast_spell", "A hero uses a weapon on an enemy", {"hero": "string", "weapon": "string", "enemy": "string"}), ("{hero} [hits|attacks|fights] {enemy} with the {weapon}[.|!]", "[Let|Make] {hero} [use|swing|raise] the {weapon} [on|at|against] {enemy}[.|]", "With [a|the] {weapon}, {hero} goes for {enemy}[!|.]", "{hero} / {weapon} / {enemy}"), {"hero": rare, "weapon": WEAPONS, "enemy": WILD}),
    (Tool("roll_dice", "Rolls dice", {"count": "integer", "sides": "integer"}), ("[Roll|Throw] {count} dice with {sides} sides[.|]", "{count}d{sides}", "[Roll|Throw|I need] {count} {sides}-sided dice[.|]", "Give me a roll of {count} dice, {sides} sides[ each|]."), {"count": whole(1, 20), "sides": whole(2, 100)}),
    (Tool("make_move", "Plays a chess move.", {"move": "string"}), ("[I play|I move|My move is|Play|Move] {move}[.|]", "{move}[!|.|]", "Let's [try|play|do] {move}.", "[Put|Set] {move} on the board."), {"move": lambda d: f"{d.pick('abcdefgh')}{d.rng.randrange(1, 9)}{d.pick('abcdefgh')}{d.rng.randrange(1, 9)}"}),
    (Tool("votes", "Votes of a party in a district.", {"party": "string", "district": "string"}), ("How [many votes|well|much] did [the |]{party} [get|do|win] in {district}?", "[Votes|Result|Share] of {party} in {district}[?|]", "Did {party} win {district}?", "{district}, {party}, votes?"), {"party": PARTIES, "district": place}),
    (Tool("donate", "Gives money to a charity", {"charity": "string", "amount": "number"}), ("[Donate|Give|Send] {amount} to {charity}[.|]", "[I|We] [want to|would like to|will] [give|donate] {charity} {amount}[.|]", "{amount} for {charity}[, please|!|]", "[Support|Help] {charity} with {amount} [euros|dollars|].", "my donation: {charity}, {amount}"), {"charity": titled, "amount": money}),
    (Tool("paint_mix", "How to mix a colour", {"colour": "string", "litres": "number"}), ("[Mix|Make|I need|Prepare] {litres} [litres|l] of {colour}[ paint|][.|]", "{litres} litres {colour}[, please|]", "How do I mix {litres} litres of {colour}?", "[The wall|The room] should be {colour}, {litres} litres[.|]"), {"colour": lambda d: d.mixed(COLOURS), "litres": money}),
    (Tool("tune", "Gives the tuning of an instrument.", {"instrument": "string"}), ("How do I tune [a|my|the] {instrument}?", "[Tuning|Notes] of [a|the|my] {instrument}[?|]", "[My|The] {instrument} [sounds wrong|is out of tune].", "{instrument} tuning[, please|]"), {"instrument": INSTRUMENTS}),
    (Tool("wash", "Starts the washing machine", {"fabric": "string", "degrees": "integer"}), ("[Wash|Clean] [the |my ][{fabric}|{fabric} things] at {degrees}[ degrees|].", "Washing: {fabric}, {degrees} degrees", "{degrees} degrees, {fabric}[, start|]", "[Start|Run] [a|the] {fabric} wash at {degrees}[.|]"), {"fabric": FABRICS, "degrees": whole(20, 95)}),
    (Tool("size_chart", "Measures of a garment in a size.", {"garment": "string", "size": "string"}), ("How [big|long|wide] is [the|a] {garment} in [size |]{size}?", "[Measures|Dimensions|Size chart] [of|for] {garment}, {size}[?|]", "Will [the|a] {garment} in {size} fit me?", "{garment} {size}[?|]"), {"garment": GARMENTS, "size": SIZES}),
    (Tool("ferry", "Buys a ferry ticket.", {"port": "string", "vehicle": "string", "passengers": "integer"}), ("[A ferry|Ferry] to {port}, {vehicle}, {passengers} [people|passengers][.|]", "[We|I] [want|need] to [cross|go] to {port} with a {vehicle}, {passengers} of us.", "{passengers} passengers and a {vehicle} to {port}[, please|].", "Book {port}: {vehicle}, {passengers}"), {"port": place, "vehicle": VEHICLES, "passengers": whole(1, 20)}),
    (Tool("call", "Phones somebody", {"number": "string"}), ("[Call|Dial|Phone|Ring] {number}[.|, please|]", "[Get|Put] me [through to|on the phone with] {number}[.|]", "I [need|want] to speak to {number}[.|]", "{number}, call it"), {"number": phone}),
    (Tool("getInvoice", "gets one invoice by its number", {"invoiceNo": "string"}), ("[Show|Open|Get|Find] [me |][invoice|bill] {invoiceNo}[.|]", "[Is|Was] [invoice |]{invoiceNo} paid?", "How [much|high] is invoice {invoiceNo}?", "[Invoice|Bill] {invoiceNo}[?|, please|]"), {"invoiceNo": code}),
    (Tool("customer.lookup", "Look up a customer record by email address", {"email": "string"}), ("[Who|Which customer] [is|has|uses] {email}?", "[Look up|Find|Get|Search] [the customer |]{email}[.|]", "[Customer|Account|Record] [of|for|with] {email}[?|]", "[A mail|Someone] from {email} [came|wrote], who is that?"), {"email": mail}),
    (Tool("hire_date", "When somebody joined the company", {"employee": "string"}), ("When did {employee} [join|start|begin|come to us]?", "[Since when|How long] has {employee} [worked|been] here?", "[Hire date|First day|Start date] of {employee}[?|]", "Is {employee} new here?"), {"employee": person}),
    (Tool("request_leave", "Asks for days off", {"start": "string", "days": "integer"}), ("[I want|I need|Give me|I'd like] {days} days off from {start}[.|]", "[Holiday|Leave|Vacation] from {start}, {days} days[.|]", "[I'm|I will be] away for {days} days starting {start}[.|, please enter it.]", "Book {days} days of leave, first day {start}."), {"start": Draw.date, "days": whole(1, 60)}),
    (Tool("machine_output", "Parts that a machine made in a shift", {"machine": "string", "shift": "string"}), ("How many parts did {machine} make in the {shift} shift?", "[Output|Yield|Parts] of {machine}, {shift} shift[?|]", "[What|How much] did the {shift} shift [get out of|produce on] {machine}?", "{machine} {shift}[?|]"), {"machine": code, "shift": SHIFTS}),
    (Tool("river_level", "Water level of a river", {"river": "string"}), ("How high is the {river}[ now| today|]?", "[Level|Water level|Height] of the {river}[?|]", "[Will|Does|Is] the {river} [flood|rise|rising]?", "Is it safe at the {river}?"), {"river": rare}),
    (Tool("parking", "Free parking spots near an address", {"street": "string"}), ("[Where|Can|May] [can |]I park [near|at|by|in] {street}?", "[Free spots|Parking|Any parking] [near|at|around] {street}[?|]", "I'm driving to {street}, [where do I leave the car|is there parking]?", "Is there a [car park|garage|free spot] near {street}?"), {"street": street}),
    (Tool("tv_guide", "What is on a channel at a time.", {"channel": "string", "time": "string"}), ("What is on {channel} at {time}?", "[Show|Programme|Film] on {channel} at {time}[?|]", "{channel}, {time}[?|]", "[Anything|Something] good on {channel} at {time}?"), {"channel": titled, "time": clock}),
    (Tool("adopt_pet", "Adopts an animal of a breed", {"breed": "string", "name": "string"}), ("[I|We] [want|would like|wish] to adopt a {breed} [called|named] {name}[.|]", "Adopt {name} the {breed}[.|, please|]", "Is {name}, the {breed}, still there? [We take it.|We'd love to adopt.|]", "{breed} {name}: adopt"), {"breed": BREEDS, "name": first}),
)  # fmt: skip
VERBS = "Get Find Compute Check Set Make Open Send Book Start Stop Show Count Rate Move Save Add Remove Delete Update List Fetch Print Read Write Buy Sell Order Cancel Change Measure Test Track Run Load Scan Search Query Create Close Lock Turn Call Report Plan Pick Sort Fix Clean Copy Draw Share Block Clear Assign Register Log Order Switch Reserve Renew Confirm Verify Approve Weigh Mix Fill Pay".split()
QUESTIONS = (  # for tools of any name
    "[{v}|Please {v}|Can you {v}|Could you {v}|I want you to {v}] the {a} [of|for|with|from|at] {x}[.|?|]", "[What|Which|How much] is the {a} [of|for|with] {x}[?|]", "{a} {x}", "[The |]{a} [of|for] {x}[, please|][.|?|]", "[Use|Call|Run] {f} [with|for|on] {x}[.|]", "[I need|Give me|Show me|Tell me|Get me] [the|a] {a} [of|for|with] {x}[.|, please.|]",
    "{x}: [what is the|the] {a}?", "[How about|What about] the {a} of {x}?", "[Do we|Do you|Does it] have [a|the] {a} [for|of] {x}?",
    "[pls|plz|please] {v} {a} {x}", "{v} {a} {x}[!|.|, now|, quick|]", "[{v}|Please {v}] [a|the|one|my|our] {a}: {x}[.|]", "[I would like|I'd like|We would like|I'm trying|I have] to {v} [a|the] {a} [for|with|on] {x}[.|]", "[Is it possible|Is there a way] to {v} the {a} [for|of|with] {x}?", "[Would|Will] you [kindly |please |]{v} the {a} [for|of|with] {x}?", "[Any|Got] {a} [for|on|at] {x}[?|]", "[My boss|The client|She|He|A customer|My mum] [wants|needs|asked for] the {a} [for|of] {x}[.|]", "{x} - {a}[?|, please|]", "{x}. [{v} it.|{v} the {a}.|{a}, please.]",
    "[Regarding|About|As for|Concerning] {x}: {v} the {a}[.|, please.]", "[Kindly|Now|Next|Then|Also] {v} the {a} [of|for|with] {x}[.|]", "[Have|Has] [the|a] {a} [for|of] {x} [been done|come|changed][?|]", "[When|Where|How] is the {a} [of|for] {x}[?|]", "[Let's|Let us|We should|You must|Go and] {v} [the|a] {a} [for|with|of] {x}[.|!]", "{f} {x}", "[run|do|try] {f}: {x}", "({a}) {x}", "NEED {a} {x}", "[What do we know|Anything] about the {a} [of|for] {x}?", "[The|A] {a} [for|of] {x} [is missing|is needed|please][.|]", "[Curious|Wondering]: {a} of {x}?",
)  # fmt: skip
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "{a}*{b}": ("{a} {i}s [to|in|per|for] [a|each|every] [crate|bus|box|bag|team|class|shelf|lorry], {b} [of them|such|in all|of those][.|,|:] [how many|total|count|sum][?|]", "[We|They|I] [order|have|fill|need|load] {b} [crates|buses|boxes|bags|vans|jars|trays], [each|every one|one] [holds|has|takes|seats|carries] {a}[ {i}s|][.|,|;] [how many|what is that|total|how many {i}s] [in all|altogether|together|][?|]", "{b} [nights|lessons|shifts|trips|turns|visits] [of|at|with] {a} [hours|minutes|km|euros] [each|][.|,|:] [how many [hours|minutes|km|euros]|total|all told][?|]", "{b} [packs|crates|tins|bottles|rolls] [of|at|for] {a} [each|apiece|a piece]. [Total|How much|All in all|What do I pay][?|]", "[A|One] {i} [goes for|sells at|is priced at|comes to] {a}[.|;] {n} [takes|wants|needs|gets] {b}[.|;] [what is the bill|how much in total|total cost|what must {n} pay][?|]", "[A car|A train|{n}|A bike|The bus] [drives|goes|travels|covers] {a} [km|miles] [an hour|each day|per hour|a day]. [How far|What distance] [in|after] {b} [hours|days|h][?|]", "[Rent|Petrol|Lunch|The gym|My phone] [costs|is] {a} [a month|a week|a day|per month]. [How much is that|What do I pay|Cost] [for|in|over] {b} [months|weeks|days][?|]", "[The|A|My] [room|garden|field|wall|floor] is {a} [by|x|times] {b} [metres|m|feet], [what is the area|what area is that|how big is it][?|]", "{b} [rows|shelves|tables|teams] [with|of] {a} [seats|books|people|{i}s] [each|in each|per row] [make|makes|gives|is] how many[?|]", "[{b} hours|{b} days] at {a} [an hour|a day|per hour|per day][, what do I earn|: pay|, how much do I get|. My pay][?|]", "{a} [each|apiece], {b} of them[, total|: total|. Total][?|]", "[product|the product] of {a} and {b}[?|]", "[Each|Every] [child|guest|pupil|player] [gets|needs|eats|receives] {a} {i}s. [There are|With] {b} [of them|children|guests|pupils][.|,] how many {i}s [is that|do we need|altogether][?|]", "can u do {a} [times|x|*] {b}[ pls| for me|]", "[Work out|Solve|Figure out|Do] {a} [times|x|*|multiplied by] {b}[.|!|]", "{a} multiplied {b} times over[?| is what?]", "[A dozen|Twelve|Some]? No, I need {b} {i}s, {a} [each|apiece][.|,] what does that [cost|make][?|]", "{n} [saves|spends|pays|reads|swims] {a} every [day|week|month]. [How much|How many] [is it|will it be|are that] [after|in] {b} [days|weeks|months]?", "Price {a}, quantity {b}, total?", "[what's|whats|What is|how much is|calc|compute] {a} [times|x|*|multiplied by|by] {b}[?|]", "{a} [times|x|*] {b}[?| =| = ?|]", "[One|A|Each] {i} [costs|is] {a}[ euros| dollars|], [what|how much] [do I pay for|are|will be] {b}[ of them|][?|]", "I [buy|bought|ordered|take] {b} {i}s [at|for] {a} [each|apiece|per piece|a piece][.|,] [how much is it|what does it cost|what's the total|what do I owe][?|]", "[There are|We have|I see] {b} [boxes|bags|rows|shelves|trays] [of|with] {a} {i}s[ each|]. How many [is that|{i}s are there|in all|together][?|]", "{n} [works|reads|runs|earns|sells] {a} [a day|every day|per week|each time], how much [in|after|over] {b} [days|weeks|times][?|]", "[Multiply|Take] {a} [by|times] {b}[.|, please|]", "[A|One|Every] [box|bag|tray|pack] [has|holds] {a} {i}s[,| and] [I need|we bought|there are] {b}. How many {i}s[ in all|]?", "If [I|we|you] [get|order|sell] {b} {i}s for {a} each, [what's|what is|how much is] [the total|it|that][?|]"),
    "{a}+{b}": ("{a} [plus|+|and] {b} [is|makes|gives|equals] [what|how much][?|]", "[Shoes|The bag|Bread|A ticket|The book] [for|at|costs] {a}[,|;] [a hat|a belt|milk|a drink|a pen] [for|at|costs] {b}[.|,|;] [altogether|in total|sum|what do I pay|how much is it all][?|]", "{n} is {a} [years old|] and [I am|her brother is|his sister is|the teacher is] {b} years older. How old [am I|is the brother|is that|is the other one][?|]", "[I|We|{n}] [had|owned|found|started with] {a} {i}s and [got|bought|found|received] {b} more[.|,] how many [now|in total|are there|do I have][?|]", "[First|Morning|Day one|Leg one]: {a}[ km| miles|]. [Then|Evening|Day two|Leg two]: {b}[ km| miles|]. [Total|Sum|Together][?|]", "[the sum|sum|total] of {a} and {b}[?|]", "{a} [boys|men|adults|cats] and {b} [girls|women|children|dogs], how many [all told|in all|altogether|together][?|]", "[The meal|Dinner|Lunch|The taxi] was {a} and I [tip|add|leave] {b}[.|,] what do I pay[ in all|][?|]", "[My account|The pot|Our budget] holds {a}[.|;|,] {b} [comes in|is added|gets paid in][.|,] [new balance|how much now|what is in it][?|]", "[Add up|Count together|Total up|Put together] {a} and {b}[.|]", "{b} more than {a}[?| is what?| is how much?]", "[What|How much] do {a} and {b} [make|give|come to][?|]", "[Increase|Raise] {a} by {b}[.|]", "can u add {a} and {b}[ pls|]", "It was {a} degrees and [rose|went up|climbed] by {b}[.|,] how [warm|hot] [is it|now][?|]", "{n} weighed {a} kg and [gained|put on] {b}[.|;] what [now|does {n} weigh now][?|]", "[what's|whats|What is|how much is|sum] {a} [plus|+|and|added to] {b}[?|]", "{a} [plus|+|and] {b}[?| =| = ?| together]", "[I|We|{n}] [walked|cycled|ran|read|sold|ate] {a} [on Monday|first|yesterday|in May] and {b} [on Friday|then|today|in June]. [How much|How many|What] [in all|altogether|is the total|is that][?|]", "[The {i}|My {i}] [costs|is] {a} and [the {j}|my {j}] [costs|is] {b}[,|.] [what's|what is|how much is] [the total|the sum|both|it together][?|]", "[Add|Sum] {a} [and|to|plus] {b}[.|, please|]", "{a} {i}s and {b} {j}s, how many [things|in all|together]?"),
    "{a}-{b}": ("{n} [earns|gets|makes] {b} less than {m}, who [earns|gets|makes] {a}[.|,] [how much is that|what does {n} take home|what is left for {n}]?", "[Find|Name|Work out] the number {b} less than {a}[.|]", "{b} less than {a}[:| makes| gives] what?", "[The {i}|A {i}] is {b} [euros|kg|cm|years] less than the {j}, [which is|which has] {a}[.|,] [how much is it|what is it]?", "[This|The new|A used] {i} [costs|is] {b} less than [the old one|a new one] at {a}[.|,] [its price|what does it cost|what do I pay]?", "[Today|This year] there are {b} [{i}s|people|guests] less than the {a} of [yesterday|last year][.|,] [how many|how many is that]?", "[which number|what] [lies|is] {b} [below|under] {a}?", "{b} [fewer|lower|smaller|below|under] {a} [is|gives|makes] what?", "{n} has {b} [{i}s|points|euros] [less|fewer] than {m}, who has {a}. [What|How many] does {n} have?", "{a} [euros|dollars|coins] in my [purse|pocket|wallet], {b} [spent|gone|paid out][.|,] [rest|what have I got|what can I still spend][?|]", "[How much|What] is left [of|from] {a} [after|when I take|if I spend] {b}[?|]", "[The tank|The box|Our shop|The bus] [had|held|has] {a}[ {i}s| litres|] and {b} [went out|are gone|leaked|were sold|left][.|,] [how much|how many|what] remain[s|][?|]", "[The|A] {i} was {a} and is now {b} cheaper[.|,|:] [new price|what does it cost|how much is it][?|]", "{n} is {a} years old[.|,] how old [was|had] {n} [been |]{b} years ago[?|]", "[I pay|I paid|I hand over|I give them] {a} for something that costs {b}[.|,] [how much change|what change do I get|my change][?|]", "[Difference|the difference|difference] between {a} and {b}[?|]", "[The way|The trip|Our hike] is {a} km, we [did|walked|have done] {b}[.|,] [how far is left|how much more|what is left][?|]", "[Lower|Reduce|Decrease|Cut] {a} by {b}[.|]", "{b} less than {a}[?| is?| is what?]", "[Deduct|Remove|Take away] {b} from {a}[.|]", "[We need|I need|The goal is] {a} and [we have|I have|already got] {b}[.|,] [how many are missing|how much is missing|what is missing|what do we still need][?|]", "Of {a} [pupils|guests|players|people], {b} [are ill|went home|said no|did not come][.|,] [who is left|how many came|how many are left][?|]", "[Coupon|Voucher|Discount] of {b} on {a}[.|,] what do I pay[?|]", "{a}[,| and] then {b} off[, what remains|: rest|][?|]", "{n} weighed {a} and lost {b} kilos. [What now|New weight|What does {n} weigh]?", "It was {a} degrees and [fell|dropped|went down] by {b}[.|,] what is it [now|tonight][?|]", "can u take {b} from {a}[ pls|]", "[what's|whats|What is|how much is] {a} [minus|-|less|take away] {b}[?|]", "{a} [minus|-|less] {b}[?| =|]", "I [had|got|own] {a} [euros|{i}s|dollars] and [lost|gave away|paid|used|ate|sold] {b}[.|,] [what|how much|how many] [is left|do I have now|remains|are left][?|]", "[Subtract|Take] {b} from {a}[.|, please|]", "[From|Of|Out of] {a} {i}s {b} are [gone|broken|sold|mine]. How many [are left|remain|stay]?", "What is {a} if I take {b} [off|away]?", "By how much is {a} more than {b}?"),
    "{a}/{b}": ("{b} [of us|people|guests|neighbours|colleagues|cousins] [share|split|divide] [a bill|a tab|the costs|a debt|a prize] of {a}[.|,] [what does each pay|each pays how much|how much per head|what is one share]?", "[The bill|The tab|Dinner|The taxi|The hall] [is|was] {a}[ and|;|,] [there are|we are|we were] {b} [of us|people|at the table][.|,] [how much each|what is my share|what does each one pay|how much for one]?", "[Among|Between] {b} [friends|people|flatmates] a [bill|sum|prize] of {a} [is|makes] how much [each|per person|a head]?", "{b} [people|friends|partners] owe {a} together. [One owes|Each owes|Each of them owes] what?", "[For|With] {b} [people|players|friends] and {a} in all, [what is one part|how much for each|what falls to each]?", "{a} [{i}s|sweets|coins|cards] [for|among|between] {b} [kids|children|players|people][.|,] [how many each|how many does everyone get|each gets][?|]", "{b} [tickets|{i}s|bottles|litres] [cost|costs|are|came to] {a}[.|,] [price of one|what does one cost|how much is one|and one][?|]", "[I|{n}|We] [drove|ran|travelled|cycled] {a} km in {b} hours[.|,] [what speed|how fast|average speed|km per hour][?|]", "[It|The job|The book|The wall] takes {a} [hours|pages|bricks] and [we do|I manage] {b} [a day|per day|each day][.|,] [how many days|how long][?|]", "[Cut|Saw|Divide] [a rope|a plank|a pipe] of {a} [m|cm|feet] into {b} [equal |]pieces[.|,] [how long is each|length of one|each piece][?|]", "[the quotient|quotient] of {a} and {b}[?|]", "[What|How much] is {a} [shared|split] [among|between|by] {b}[ people|][?|]", "{n} earns {a} in {b} [months|weeks|days|hours][.|,] how much [per month|a week|is that for one|each][?|]", "[{i}s|Eggs|Pens] come [in boxes of|by the] {b}[.|,] how many boxes [for|hold|make] {a}[?|]", "A [loan|debt|bill] of {a}, paid in {b} [parts|instalments|rates][.|,] how much is [each|one][?|]", "How many times [does|goes] {b} [go |fit |]in[to|] {a}[?|]", "[Average|Mean] per [day|week|head]: {a} over {b}[?|]", "can u divide {a} by {b}[ pls|]", "{a} [by|over|through] {b}[?| please|]", "[We|Us] {b} [friends|flatmates] owe {a} [together|in rent|for gas][.|,] what is [my|one] share[?|]", "[what's|whats|What is|how much is] {a} [divided by|over|/|split by] {b}[?|]", "{a} [divided by|/|over] {b}[?| =|]", "[We are|They are|There are] {b} [people|friends|guests] and [pay|share|split] {a}[ euros|]. [What|How much] does each [pay|get][?|]", "[Split|Share|Divide] {a} [euros |{i}s |][between|among|by|into|with] {b}[ people| parts|][.|, please|]", "{b} of us share {a} {i}s, how many [each|for one|per person]?", "[The|A] [bill|dinner|taxi] [was|is|costs] {a} and {b} [of us|people|friends] share it[.|,] how much [each|per head|for everyone]?"),
    "{a}*{b}/100": ("[Of|From] {a} [take|give me|I get|we keep] {b}[%| percent][.|, how much is it?|]", "[How much|What] is a {b}[%| percent| per cent] [tip|tax|fee|share|discount] on {a}[?|]", "[VAT|Tax|Commission|Interest] of {b}[%| percent] on {a}[?| is how much?|, how much?]", "{b}[%| percent] [tip|discount|off|tax] on {a}[: how much|, how much is that|][?|]", "[Of|Out of] {a} [people|voters|pupils|{i}s], {b}[%| percent] [are late|said yes|passed|are red][.|,] how many [is that|are they][?|]", "[My bank|The bank|A fund] pays {b}[%| percent] on {a}[.|,] [how much interest|what do I get|interest][?|]", "[what's|whats|calc|compute] {b} [pct|percent|%] of {a}[?|]", "[Take|Give me|I want] {b}[%| percent] of {a}[.|, please|]", "The [bill|dinner] is {a}[,|.] [I tip|we tip|tip is] {b}[%| percent][.|,] how much [tip|is the tip][?|]", "{n} gets {b}[%| percent] of [the|a] {a} [prize|profit|win][.|,] [how much is it|how much|what does {n} get][?|]", "[From|In] {a} grams of cheese, {b}[%| percent] is fat[.|,] how many grams[?|]", "[what's|whats|What is|how much is] {b}[%| percent| per cent] of {a}[?|]", "{b}[%| percent] of {a}[?| =|]", "[The tip|My share|The tax|Rent] is {b}[%| percent] of {a}[,|.] how much is [that|it][?|]", "[Work out|Find|Get] {b}[%| percent] [of|from] {a}[.|]", "{n} [pays|saves|gets] {b}[%| percent] of {a}, how much?"),
    "({a}+{b})*{c}": ("[the sum|Sum] of {a} and {b}[,| is] [times|multiplied by|taken times] {c}[?|]", "[A {i}|Soup|A ticket] is {a} and [a {j}|bread|a drink] {b}[.|,|;] [we take|I buy|they want] {c} of both[.|,] [total|how much|what is it][?|]", "{n} runs {a} km in the morning and {b} km at night, {c} days long. [How far|Total|How many km][?|]", "bracket {a} plus {b} bracket times {c}[?|]", "{c} [people|guests|kids] each pay {a} for entry and {b} for food[.|,] [total|how much in all][?|]", "[({a} + {b}) * {c}|({a}+{b})*{c}][?| =|]", "[what's|What is|Solve|Compute|Evaluate|Calculate] [({a} + {b}) * {c}|({a}+{b})*{c}][?|.|]", "[Add|Sum] {a} and {b}, then [times|multiply by|multiply with] {c}[.|]"),
    "{a}*{b}+{c}": ("{b} {i}s [at|for] {a} [each|apiece] [plus|and] {c} [shipping|postage|delivery|for the bag|tax][.|,|:] [total|how much|what do I pay|all in][?|]", "[The taxi|A plumber|The hall] [takes|costs|charges] {a} [an hour|a km|per hour] [plus|and] a fee of {c}[.|,] [what do|how much are] {b} [hours|km] [cost|][?|]", "[Multiply|Take] {a} [by|times] {b} [and add|and then add|, add] {c}[.|]", "I save {a} a [week|month] for {b} [weeks|months] and [already have|got a gift of|find] {c}[.|,] [how much is it|what do I have][ then|][?|]", "[{a} * {b} + {c}|{a}*{b}+{c}][?| =|]", "[what's|What is|Solve|Compute|Evaluate] {a} [times|*] {b} plus {c}[?|]", "I [buy|bought] {b} {i}s at {a} [each|apiece] and a {j} for {c}[.|,] [what's|what is] [the total|it all together][?|]"),
    "{a}+{b}+{c}": ("{a} + {b} + {c}[?| =|]", "[what's|whats|What is|how much is|Add|Sum|Total of] {a}, {b} and {c}[ together| added up|][?|]", "[A {i}|Bread|Lunch] {a}, [a {j}|milk|dinner] {b}, [a pen|eggs|a snack] {c}[.|,|:] [total|sum|altogether|what do I pay][?|]", "{a} [plus|and] {b} [plus|and] {c}[?|]", "[I|We|{n}] [walked|sold|read|drove|earned] {a} [on Monday|first|in May], {b} [on Tuesday|next|in June] and {c} [on Friday|last|in July][.|,] [how much in all|total|what is it together][?|]", "{a} red, {b} blue and {c} green {i}s. How many [in all|altogether]?"),
    "{a}+{b}-{c}": ("{a} + {b} - {c}[?| =|]", "{a} plus {b} minus {c}[?|]", "[I|We|{n}] had {a} {i}s, [got|bought|found] {b} more and [lost|gave away|sold|ate] {c}[.|,] how many [now|are left|remain][?|]", "[The bus|A train] had {a} people[.|,] {b} got on and {c} got off[.|,] how many [now|are on it][?|]", "[My account|The till|The pot] had {a}[.|,] {b} came in and {c} went out[.|,] [balance|what is in it now|how much now][?|]", "Add {b} to {a} and [take away|subtract] {c}[.|]"),
    "{a}*{b}*{c}": ("{a} * {b} * {c}[?| =|]", "[what's|What is|how much is] {a} [times|x] {b} [times|x] {c}[?|]", "[The box|A tank|The pool|This room] is {a} by {b} by {c}[ m| cm| feet|][.|,] [volume|what volume|how much does it hold][?|]", "{a} [pills|pages|euros] a day, {b} days a [week|month], {c} [weeks|months][.|,|:] [total|how many|in all][?|]", "[Multiply|Product of] {a}, {b} and {c}[.|]"),
    "({a}-{b})*{c}": ("[({a} - {b}) * {c}|({a}-{b})*{c}][?| =|]", "[Subtract|Take] {b} from {a}, then [times|multiply by] {c}[.|]", "A {i} [costs|is] {a}, with {b} off[.|,|;] I [buy|take|order] {c}[.|,] [total|how much|what do I pay][?|]", "{a} minus {b}, all [that |]times {c}[?|]", "I buy at {b} and sell at {a}[.|,] what do I make on {c} {i}s[?|]"),
    "({a}+{b})/{c}": ("[({a} + {b}) / {c}|({a}+{b})/{c}][?| =|]", "[Add|Sum] {a} and {b}, then divide by {c}[.|]", "[Food|The flat|Dinner] is {a} and [drinks|gas|the taxi] {b}[.|,] [split by|shared by|for] {c} [people|friends|of us][.|,] [each pays|how much each|what do I owe][?|]", "{a} plus {b}, all divided by {c}[?|]"),
    "{a}-{b}-{c}": ("[From|Out of] {a} take {b} and [then |]{c}[.|: what is left?|]", "{a} [minus|less|take away] {b} [minus|less|and take away|and minus] {c}[?|]", "[{n}|I|We] had {a} {i}s, [lost|gave away|sold|ate] {b} and [broke|threw out|lent] {c}[.|,] [how many now|what remains|how many are left][?|]", "[Budget|Pay|Wage] {a}, [rent|food] {b}, [gas|phone|bus] {c}[.|,|:] [rest|what is left|left over][?|]", "The {i} was {a}, [went down|fell] by {b}, then by {c} more[.|,] price now[?|]", "{a} - {b} - {c}[?| =|]", "I had {a}, spent {b} and then {c}. [What is left|How much do I have]?"),
}  # fmt: skip
CONVERTS = ("[convert|Convert|conversion|Conversion:] {v} {f} [to|into|in|->|=] {t}[.|?|]", "{v} {f} = [? {t}|how many {t}?|x {t}]", "{v} {f} -> {t}", "[pls|plz|please] [convert|change|give] {v} {f} [to|in|into] {t}", "[How much|What] [is that|would that be] in {t}: {v} {f}[?|]", "[The recipe|My book|The sign|The label|The map|The manual] says {v} {f}[,|.|;] [but I need|what is it in|I only know|how much is that in] {t}[?|.]", "{n} [walked|ran|bought|drank|lifted|cut|waited|carried] {v} {f}[.|,] [in {t}|how many {t}|how many {t} is that|give it in {t}][?|]", "[Express|State|Write|Put|Say|Show] {v} {f} [in|as] {t}[.|, please|]", "[I only understand|I think in|We use|Here we use|Give me|I want it in] {t}[.|,|;] [what is|how much is|so] {v} {f}[?|]", "[If|When] [it is|I have|something is|you have] {v} {f}, [what is it in|how many is that in|then in] {t}[?|]", "[There are|It takes|It was|It is|That makes] {v} {f}[.|,|;] [and in|how many|in] {t}[?|]", "[Is|So is] {v} {f} [much|a lot|far|long] in {t}?", "{t} [from|for|of|in] {v} {f}[?|]", "[number|the number|amount] of {t} in {v} {f}[?|]", "[Can|Could|Would] [you|u] [give|tell|show] me {v} {f} in {t}[ please|][?|]", "[American|British|European|My] friends [say|use|want] {t}[.|;|,] [I have|we have|it is] {v} {f}[.|, help.|]", "[Quick|Fast|Short] [one|question|check]: {v} {f} [in|to] {t}[?|]", "[Measure|Length|Amount|Value]: {v} {f}. [Wanted|Needed|Target|Unit]: {t}[.|]", "I [typed|wrote|measured|ordered|read|got] {v} {f}, [but they want|they ask for|it should be in|make it] {t}[.|]", "HOW MANY {t} IN {v} {f}[?|??]", "[what|What] does {v} {f} [come to|make|equal|amount to|give] in {t}[?|]", "[what's|whats|What is|how much is] {v} {f} in {t}[?|]", "{v} {f} [in|to|as|into] {t}[?|]", "[My {i}|The {i}|It|{n}] [weighs|is|has|needs|measures|runs|takes] {v} {f}[,|.] [what is that|how much is that|how many is it|and] in {t}[?|]", "[I need|I have|We got|They want] {v} {f} [in|as|to] {t}[.|]", "How many {t} [are|in|make|is|would] {v} {f}[?| be?|]", "[Change|Turn|Make|Convert] {v} {f} [into|to] {t}[.|, please|]", "How [far|long|heavy|hot|much] is {v} {f} in {t}[?|]", "[Is|Are] {v} {f} [many|a lot of|how many] {t}?", "{v} {f} [would be|makes|equals] how many {t}?")  # fmt: skip
UNITS_SAID = {
    "km": "kilometres|kilometers|kms|Km", "m": "metres|meters|metre", "cm": "centimetres|centimeters|cms", "miles": "mile|mi", "feet": "ft|foot", "inches": "inch|in.",
    "yards": "yard|yd", "kg": "kilos|kilograms|kgs|kilo", "grams": "g|gram|gr", "pounds": "lbs|lb|pound", "ounces": "oz|ounce", "litres": "liters|litre|l|L", "gallons": "gallon|gal",
    "pints": "pint|pt", "cups": "cup", "seconds": "secs|sec|s|second", "minutes": "mins|min|minute", "hours": "hrs|hour|h|hr", "days": "day", "weeks": "week|wks",
    "Celsius": "degrees Celsius|C|centigrade|°C", "Fahrenheit": "degrees Fahrenheit|F|°F",
}  # fmt: skip
MEANT = ("{u}, sorry, {t}", "{u}, no, {t}", "{t} (not {u})", "{t}, not {u}", "{u} - or rather {t}", "{u}, I meant to say {t}", "{u}... {t}, that is")  # fmt: skip
LATERS = (
    ("[Add|Plus|Put] {k} days [to|onto|on] {d}[.|, please|]", "{d} + {k} [days|d][?| =|]", "[Today is|It is|It's|We have|We write] {d}[.|,|;] [what date is it|which date will it be|what is the date|what's the date] in {k} days[?|]", "{k} days [on|later|onwards] from {d}[?|, which day?|, date?]", "[The {i}|My order|The visa|The milk|A voucher] [came|arrived|starts|was made|was issued] on {d} and [lasts|is good for|keeps for|holds for] {k} days[.|,|;] [until when|when is it over|last day|when does it run out][?|]", "[Pay|Return|Reply|Answer] within {k} days of {d}[.|,|:] [deadline|by when|what is the last date|date][?|]", "[We leave|I leave|The trip starts|They fly|Holiday begins] [on |]{d} [for|and stay] {k} days[.|,] [when are we back|return date|when do we come home|end date][?|]", "[Start|Begin|From|Day zero] {d}, [length|duration|takes|plus] {k} days[.|,|:] [end|finish|ends when|end date][?|]", "[The baby|The egg|The chick|The seed] [is due|hatches|comes|sprouts] {k} days after {d}[.|,] [when|which date][?|]", "[If|When] [the trial|the project|the race|my cure] [starts|begins] {d}, [what|which] date is {k} days [later|on|after][?|]", "Warranty: {k} days from {d}[. Ends when?|, until?|. End?|]", "[Count|Go|Move|Jump] {k} days [forward|ahead|on] from {d}[.|]", "what date [is it|comes|do we get] {k} days after {d}[?|]", "[The exam|Next check|Next dose|Next visit] is {k} days after {d}[.|,] [so when|on which date|date please][?|]", "[Remind me|Meet|Call] {k} days after {d}[.|,] [which date is that|that is][?|]", "{d}, {k} days later[?|]", "[What|Which] [date|day] [is|comes|will be] {k} days [after|from|past|on from] {d}[?|]", "{d} plus {k} days[?|]", "[It starts|My course starts|I begin|We begin] [on|at] {d} and [takes|lasts|needs] {k} days[.|,] when [does it end|is it over|am I done|do we finish][?|]", "My {i} [from|of] {d} is valid [for |]{k} days[.|,] [until when|when does it end|when does it expire][?|]", "[In {k} days from|{k} days after] {d}[, which date is it|: which date][?|]", "[Bill|Order] of {d}, due in {k} days. [When|Which date] is that?"),
    ("[Subtract|Take|Minus] {k} days from {d}[.|, please|]", "{d} - {k} [days|d][?| =|]", "[Today is|It is|It's|We have] {d}[.|,|;] [what date was it|which date was|what was the date] {k} days ago[?|]", "{k} days [earlier than|prior to|previous to|ahead of] {d}[?|, which date?|]", "[It|The party|Our exam|The wedding|The flight] is on {d} and [I must book|tickets open|we must start|bookings open] {k} days [before|earlier|in advance][.|,] [when|which date|when is that][?|]", "[The|My] {i} [ends|expired|arrived|was back] on {d} after {k} days[.|,] [when did it start|start date|when did it begin][?|]", "[Go back|Move back|Step back|Rewind] {k} days from {d}[.|]", "what [day|date] was {k} days before {d}[?|]", "[Deadline|Exam|Delivery|Due date]: {d}. [Start|Order|Begin|Send] {k} days [before|earlier][.|:|,] [date|when][?|]", "[It has been|It is] {k} days [now|already], today is {d}[.|,|;] when did it [start|begin][?|]", "{d}, {k} days earlier[?|]", "[The letter|The fine|This bill] is {k} days old on {d}[.|,] [when was it written|which date does it bear|when was it sent][?|]", "Notice must be given {k} days before {d}[.|,] [by when|latest date][?|]", "[What|Which] [date|day] [was|is|came] {k} days [before|ahead of|prior to] {d}[?|]", "{d} minus {k} days[?|]", "{k} days before {d}[?|, which date is it?|]", "[It|The {i}] was [due|here|sent|paid] {k} days before {d}[.|,] [when was it|what day was it|which date is that][?|]", "[Go|Count] {k} days back from {d}[.|]"),
)  # fmt: skip


def _any_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool with any name and one to three arguments with any names, and questions for it."""
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
            for q in d.some(QUESTIONS, 4)
        ),
        makers,
    )


# kinds of things, and aspects of them with questions that do not name the aspect; tool names are composed of both
_KINDS: dict[str, tuple[Maker, str]] = {
    "person": (person, "person name who employee member user full_name someone individual staff_member"),
    "place": (place, "place city town where location region destination"),
    "product": (thing, "product item article thing object model"),
    "title": (titled, "title work name which"),
    "company": (lambda d: titled(d) if d.chance(0.5) else rare(d), "company firm organisation business name"),
    "device": (code, "device id unit machine serial asset"),
    "animal": (WILD, "animal species creature kind"),
    "sport": (SPORTS, "sport discipline game"),
}
ASPECTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # names of the aspect, kind, questions
    ("height body_height", "person", ("How tall is {x}?", "[Is|Isn't] {x} [tall|short]?", "[How many|What] [cm|feet] [does {x} measure|is {x}]?")),
    ("boss manager supervisor", "person", ("[Who|To whom] does {x} report[ to|]?", "[Who|Which person] is {x}'s boss?", "Who [leads|is above|gives orders to] {x}?", "whose team is {x} in?")),
    ("spouse partner", "person", ("Who is {x} married to?", "[Is|Was] {x} [married|single]?", "[Name of|Who is] {x}'s [husband or wife|better half][?|]")),
    ("job profession occupation", "person", ("What [does {x} do|line of work is {x} in]?", "[What|Which] job does {x} have?", "{x} works as what?", "How does {x} [make money|pay the rent]?")),
    ("desk seat room office_number", "person", ("Where does {x} sit?", "[In which room|Where] [can I see|do I find|is] {x}?", "I'm [meeting|looking for] {x}, which [door|floor|room]?", "[Find me|Take me to] {x}[.|!]")),
    ("nationality passport_country", "person", ("Where does {x} come from?", "[Is {x} French or German|Which passport does {x} have|Which country is {x} from]?")),
    ("blood_group blood_type", "person", ("[Is {x} A or B|Who can give blood to {x}|Which blood does {x} have]?", "{x} needs [blood|a transfusion], [which|what] type?")),
    ("holidays_left leave_balance", "person", ("How many [days off|holidays|free days] [does {x} still have|are left for {x}]?", "Can {x} [still take|go on] holiday?", "{x} wants [a week|two days] off, [is there enough left|are there days left]?")),
    ("shift duty_roster", "person", ("When does {x} [work|start|come in]?", "Is {x} [on duty|at work|in tonight|on early or late]?", "[Morning or night|Which hours] for {x}[?|]")),
    ("debt owed_amount", "person", ("How much does {x} [owe us|still have to pay]?", "[Has|Did] {x} [paid|settle] everything?", "What is [still open|unpaid] [from|for] {x}?")),
    ("language tongue spoken_language", "place", ("What do [people|they] speak in {x}?", "[Can I speak|Will they understand] English in {x}?", "I'm off to {x}, [which|what] language do I need?")),
    ("currency money_used", "place", ("What [do you|do they|can I] pay with in {x}?", "[Which|What] coins [do I need|are used] in {x}?", "Do they [take|use] euros in {x}?")),
    ("mayor head_of_town", "place", ("Who [runs|governs|is in charge of] {x}?", "[Who was elected|Who won the vote] in {x}?", "[Who do I write to|Who signs] in the town hall of {x}?")),
    ("altitude elevation", "place", ("How [high|far above the sea] is {x}?", "[How many|What] metres up is {x}?", "Is {x} in the [hills|mountains]?")),
    ("area_size surface", "place", ("How [big|large] is {x}?", "How many square km has {x}?", "Is {x} [bigger than|as big as] London?")),
    ("postcode zip_code", "place", ("[A letter|A parcel] to {x}, [which|what] digits go on it?", "What do I write before {x} on an envelope?", "[zip|postcode] {x}[?|]")),
    ("sights attractions things_to_do", "place", ("What [should|can|must] [I|we] see in {x}?", "[One day|A weekend] in {x}, [what to do|any tips]?", "Is {x} worth [a visit|a trip]?", "[bored|stuck] in {x}, [ideas|help]?")),
    ("airport nearest_airport", "place", ("Where do [I|we] land [for|near] {x}?", "[Which|What] airport is [close to|best for] {x}?", "Flying to {x}, where do I get off?")),
    ("sunset dusk", "place", ("When does it get dark in {x}?", "[How long|Till when] is it light in {x}?", "When does the sun go down in {x}?")),
    ("tide high_water", "place", ("When can I [swim|sail|dock] at {x}?", "[Is the water|Is the sea] [high|low] at {x}?", "[ebb or flood|high or low water] in {x}?")),
    ("air_quality pollution smog", "place", ("Is the air [clean|bad|good] in {x}?", "Can I [jog|breathe|run outside] in {x} [today|]?", "How [dirty|clean] is it in {x}?")),
    ("price cost list_price", "product", ("[How much|What] [is|are|for] [a|the|one] {x}?", "[What does|How much does] [a|the] {x} [cost|go for|sell at]?", "Is the {x} [cheap|expensive|on sale]?", "[Can I afford|What do you want for] the {x}?")),
    ("weight mass", "product", ("How heavy is [a|the] {x}?", "How many [kilos|grams|kg] [is|has] the {x}?", "Can I [lift|carry] the {x}?", "[Put|Weigh] the {x} [on the scale|][.|]")),
    ("colour shade paint", "product", ("[Is the {x} red or blue|What does the {x} look like|Which colour has the {x}]?", "[Which|What] shade [does|will] the {x} [come in|be]?")),
    ("maker producer brand", "product", ("Who [makes|builds|produced|sells] the {x}?", "[Which|What] [company|firm|brand] is behind the {x}?", "The {x} comes from which [firm|factory]?")),
    ("warranty guarantee", "product", ("[My|The] {x} broke, [is it covered|will you repair it for free]?", "How long is the {x} [covered|protected]?", "Do I [get my money back|have to pay] if the {x} fails?")),
    ("dimensions measures", "product", ("How [big|long|wide] is the {x}?", "Will the {x} fit [in my car|through the door|on the shelf]?", "[Width|Length|Height] of the {x}[?|]")),
    ("ingredients contents composition", "product", ("What is [in|inside] the {x}?", "[Is there|Are there] [nuts|milk|sugar] in the {x}?", "What's the {x} made of?", "Can I eat the {x} with an allergy?")),
    ("shelf aisle location_in_store", "product", ("Where [is|do I find|can I get|do you keep] the {x}?", "[Which|What] [shelf|aisle|corner] [has|for] the {x}?", "I can't find the {x}[.|!]")),
    ("delivery_time lead_time", "product", ("When [could I have|will I get|can you bring] the {x}?", "How long [do I wait|does it take] for the {x}?", "[Order|Buy] the {x} today, here when?")),
    ("author writer written_by", "title", ("Who wrote {x}?", "By whom is {x}?", "Whose book is {x}?", "Which [writer|novelist] [made|is behind] {x}?")),
    ("release_year published", "title", ("When did {x} [come out|appear]?", "[How old is|Since when is there] {x}?", "[Is|Was] {x} [new|from this century]?")),
    ("running_time duration", "title", ("How long [is|does] {x}[ last|]?", "[How many minutes|How many hours] [is|takes] {x}?", "When is {x} over if I start now?")),
    ("rating stars review", "title", ("Is {x} [any good|worth it|worth seeing]?", "[Did people|Did critics] like {x}?", "Should I [watch|read] {x}?", "How [good|bad] is {x}?")),
    ("chief_executive ceo head", "company", ("Who [runs|leads|is in charge at|is the boss of] {x}?", "[Whose hands|What hands] is {x} in?", "Who [speaks for|signs for] {x}?")),
    ("headquarters head_office seat", "company", ("Where is {x} based?", "[In which|In what] city [sits|is] {x}?", "[Where do I visit|Where are the offices of] {x}?")),
    ("workforce headcount", "company", ("How many [people|employees] [work at|has|does] {x}[ have|]?", "[Is|How] {x} [a big firm|big]?", "What size is {x}?")),
    ("turnover revenue yearly_sales", "company", ("How much [money does {x} make|did {x} sell|does {x} take] [a year|last year|]?", "[Is|Was] {x} doing [well|badly]?", "[How rich is|What did we hear of the business of] {x}?")),
    ("rival competitor", "company", ("Who competes with {x}?", "[Who are|Whom should] {x} [up against|fear]?", "[Which firms fight|Who challenges] {x}?")),
    ("battery_level charge", "device", ("Does {x} [need charging|need power|have juice]?", "[How full is|How long will] {x}[ last|]?", "[Shall I|Must I] plug {x} in?")),
    ("firmware software_version", "device", ("Is {x} up to date?", "What [runs|is installed] on {x}?", "Does {x} need an update?")),
    ("last_service maintenance", "device", ("When was {x} [checked|looked after|repaired|oiled]?", "[Is|Was] {x} [due|serviced]?", "Who [last touched|repaired] {x}?")),
    ("position whereabouts_now", "device", ("Where is [machine|unit|our tablet|scooter] {x}?", "[Find|Locate|Track down] {x}[.|!|, please]", "{x} [was stolen|is lost][.|!]", "Has anyone seen {x}?")),
    ("lifespan life_span", "animal", ("How [long|many years] does a {x} live?", "[How old|What age] can a {x} [get|reach]?", "Is a {x} old at ten?")),
    ("diet feed food", "animal", ("What does a {x} eat?", "[What do I give|How do I feed] a hungry {x}?", "[Is a {x} a hunter|Does a {x} like meat|Do I leave nuts for the {x}]?")),
    ("rules how_to_play", "sport", ("How do you [play|win at|score in] {x}?", "[What is not allowed|What counts] in {x}?", "I [never|want to] try {x}, explain it.", "[New to|Teach me] {x}[.|!]")),
    ("champion title_holder", "sport", ("Who is [best|the best|on top] in {x}?", "[Who won|Who rules] {x} [this year|last year|]?", "Name the king of {x}.")),
    ("gear equipment", "sport", ("What do I need for {x}?", "[What to|What must I] [wear|buy|bring] for {x}?", "I start {x} on Monday, what do I [pack|buy]?")),
)  # fmt: skip
DESCRIBED = ("The {a} of a {k}", "[Returns|Gives|Gets|Finds|Tells|Shows|Reports] the {a} of [a|one|the] {k}", "{a} of a {k}", "[Look up|Get|Find|Query|Check|Fetch] [a|the] {k}'s {a}", "[For a|Given a] {k}: the {a}", "{a} [look-up|data|info] for [a|any|one] {k}", "[Ask|Use this] for the {a} of a {k}", "[Says|Knows] what the {a} of a {k} is")  # fmt: skip
DOING = "get fetch find show read look_up tell query check give api list see".split()
# tools that do something with one thing: tool names, descriptions, parameter names, maker of the value, questions
# (with ~: so short that the tool must be the only one)
DEEDS: tuple[tuple[str, tuple[str, ...], str, Maker, tuple[str, ...]], ...] = (
    ("radio tune_in station_on start_radio", ("Tunes the radio to a station", "Switches to a radio station", "Radio of a station"), "station channel broadcaster which", titled, ("~{x}[!|.| please|, please!]", "~[I want|Let's have|Give me|We'd like] [to listen to |]{x}[.|!]", "[Turn|Switch] [to|over to] {x}[.|!]", "[In the mood for|Time for|How about] {x}[.|!|?]", "[Louder|No silence], [I want|let me hear] {x}.")),
    ("stream_film watch cinema_mode movie_start", ("Streams a film", "Shows a movie on the television", "Starts a film"), "film movie title what", titled, ("[Let's|I'd like to|Can we|We want to] [watch|see|look at] {x}[.|?|!]", "[Show|Start|Run] {x} [tonight|now|for us|][.|!]", "{x} [tonight|on the big screen|on the sofa][, please|.|!]", "[Movie night|Popcorn]: {x}", "~[Is|Have we got] {x} [there|]?")),
    ("music hear jukebox dj sound_of", ("Music of a band or a singer", "Starts songs of a musician", "Plays the songs of a band"), "band singer musician group performer who", person, ("~[Some|A bit of|A little|Only] {x}[, please|.|!]", "[I'm in the mood|I feel like dancing|Time] for {x}[.|!]", "[Let me|I want to|Can we] [listen to|hear] {x}[.|?|!]", "[Turn on|Start|Switch on] {x}[!|.| now]", "~{x}[!| again!|, loud!]", "~[More|Nothing but] {x}[!|.]")),
    ("music hear jukebox dj sound_of", ("Music of a band or a singer", "Starts songs of a musician", "Plays the songs of a band"), "band singer musician group performer who", titled, ("~[Some|A bit of|A little|Only] {x}[, please|.|!]", "[I'm in the mood|I feel like dancing|Time] for {x}[.|!]", "[Let me|I want to|Can we] [listen to|hear] {x}[.|?|!]", "[Turn on|Start|Switch on] {x}[!|.| now]", "~{x}[!| again!|, loud!]", "~[More|Nothing but] {x}[!|.]")),
    ("read_aloud audiobook story_time", ("Reads a book aloud", "Starts an audiobook", "Tells a story"), "book story volume text", titled, ("[Read|Tell] [me|us|the kids] {x}[.|!|, please]", "{x} [for the kids|as a bedtime story|from chapter one][.|]", "[We'd like|I want] to hear {x}[.|]", "[Go on|Continue] with {x}[.|]")),
    ("open_app launcher start_program", ("Opens an app on the phone", "Launches a program", "Starts an application"), "app program application software", titled, ("[Open|Start|Launch|Run] {x}[.|, please|]", "~I [need|want] {x} [on my screen|now|][.|]", "[Bring up|Get me into] {x}[.|]", "Where is {x}? [Open it.|Show it.]")),
    ("brew barista make_drink drink_bot", ("Makes a drink", "Brews a hot or cold drink", "Pours a drink"), "drink beverage what order", DRINKS, ("[A|One|Another] {x}[, please|!|.]", "[I'm thirsty|I'm tired|It's hot], [a|one] {x}[.|!]", "[Make|Bring|Pour|Get] me [a|some] {x}[.|!]", "[I'd like|I could do with|Fancy] [a|some] {x}[.|]", "What about [a|some] {x}[?|]")),
    ("eat_tonight kitchen_order cook_for_me", ("Cooks a meal", "Orders a meal from the kitchen", "Has a dish made"), "meal dish food choice", DISHES, ("I'm [hungry|starving], [let's have|make me|I want] {x}[.|!]", "[We|I] feel like {x}[ tonight|][.|]", "{x} [for dinner|for two|, and fast][!|.]", "[Could|Can] the kitchen [make|do] {x}?", "[Tonight|Lunch]: {x}")),
    ("scene mood_lights ambience", ("Sets the light scene of the home", "Changes the mood of the lights", "Light colour of the room"), "colour scene hue light", lambda d: d.mixed(COLOURS), ("[Make|Turn] [it|everything|the room] {x}[.|!]", "[I like|I want|Give us] {x} light[.|]", "{x}[, please|] [for the party|tonight]", "[Light|Lamps]: {x}")),
    ("go_to drive_me navigator steer", ("Drives the car to a place", "Starts navigation to an address", "Takes the driver somewhere"), "goal target_address destination whereto", street, ("[Take|Drive|Bring] [me|us] to {x}[.|!|, please]", "[How do I get|What's the way] to {x}?", "[We're late|I have to be] at {x}[!|.]", "~{x}[, quick!|, please|]", "[To|Off to] {x}[!|.]")),
    ("dial_up ring_up connect_call", ("Telephones a person", "Starts a call with somebody", "Connects a call"), "callee whom other_party", person, ("[Ring|Phone] {x}[.|!|, please]", "I [must|want to] [talk|speak] to {x}[.|]", "[Is|Get me] {x} [on the line|on the phone][?|.]", "[Put me through|Connect me] to {x}[.|]")),
    ("mute_user block_person silence", ("Mutes a user", "Blocks messages of a person", "Hides what a user writes"), "user account sender who", person, ("I can't [stand|hear] {x} any more[.|!]", "[No more|Stop] [messages|news] from {x}[.|!]", "[Make|Keep] {x} [quiet|silent][.|]", "{x} [bothers me|writes too much][.|, do something.]")),
    ("door_unlock gate_open open_up", ("Opens a gate", "Unlocks an entrance", "Lets people in through a door"), "gate entrance door which_door", code, ("[Let me|Let us] in at {x}[.|!|, please]", "[I'm standing|We wait|The driver is] at {x}[.|, open up.]", "[Buzz|Open] {x}[.|!]", "[Somebody|The post] is at {x}[.|]")),
    ("wake getting_up morning_bell", ("Rings a bell at a time in the morning", "Makes noise at a given time", "A bell to get up by"), "time hour moment clock", clock, ("[Wake me|Get me up|Get me out of bed] at {x}[.|!|, please]", "I [sleep|want to sleep|stay in bed] until {x}[.|]", "[My train leaves early|Early day], {x}[ please|].", "[Up|Awake] at {x}[.|!]", "[Don't|Do not] let me sleep past {x}[.|!]")),
    ("ask_manual faq guidebook look_in_rules", ("Searches the company rules", "Looks for a subject in the manual", "Finds a page of the guide"), "subject query keyword about term", phrase, ("What [do|are] the rules [say |]on {x}?", "[Where|Which page] [is|explains] {x}[ explained|]?", "[Is|Are] {x} [allowed|covered|mentioned]?", "[Look|Read|Check] [up |]{x} [in the manual|in the rules][.|]", "I have a question on {x}[.|]", "[Find|Show] me [the part|the page] on {x}[.|]")),
    ("notify page_doctor get_help_from", ("Pages a member of the staff", "Calls a member of staff to the desk", "Sends for somebody"), "staff who person whom", person, ("We need {x} [here|at the desk|in room 4][.|!]", "~[Get|Fetch|Find] {x}[, quick|!|.]", "[Could|Can] {x} come [here|down|over]?", "{x} [is wanted|to the front desk][.|!]")),
    ("follow watch_symbol add_favourite", ("Follows a club", "News of a team", "Latest about a club"), "club team side which", TEAMS, ("[Did|How did] {x} [win|play|do]?", "[Go|Come on], {x}[!|!!]", "[Anything|What is] [new|going on] [at|with] {x}?", "I'm a fan of {x}[.|, what did I miss?]")),
    ("cash_out atm withdraw", ("Pays out cash", "Takes money out of the account", "Withdraws money"), "amount sum how_much money", money, ("I need {x} [in cash|in notes|euros][.|]", "[Give|Hand] me {x}[.|, please]", "[Can I have|Take out] {x} [dollars|euros|][?|.]", "{x} [cash|in small notes][, please|]")),
    ("pick_up fetch_bag locker_open", ("Opens a locker", "Gives out what is in a locker", "Hands over a stored bag"), "locker ticket token ref", code, ("My [bag|coat|stuff] is in {x}[.|]", "[Open|Unlock] {x}[.|, please]", "I'd like to [pick up|get back] {x}[.|]", "[Ticket|Tag] {x}[, here is mine|][.|]")),
    ("pollen rain_check outlook", ("Outlook of the sky for a place", "Says if it stays dry somewhere", "Rain and sun in a town"), "place town spot where", place, ("[Do I|Shall we] [take a coat|bring boots|wear shorts] in {x}?", "[Sun|Snow|Rain|Wind] in {x}[?|]", "Is it [dry|sunny|nice out|cold|foggy] in {x}[ now|]?", "Can we [picnic|hike|barbecue] in {x}?", "How's the sky [over|in] {x}?")),
)  # fmt: skip
# tools with two arguments of one kind in different roles: something moves from one to the other
MOVES: tuple[tuple[str, tuple[str, ...], str, Maker, str, Maker], ...] = (
    ("transfer move_money wire", ("Moves money between accounts", "Transfers a sum from one account to another"), "amount sum", money, "account", phone),
    ("currency cash_swap money_change bureau", ("What a sum is in another money", "Turns a sum of one currency into another", "Changes cash"), "sum value money", whole(2, 9999), "currency", lambda d: "".join(d.pick("ABCDEFGHIJKLMNOPRSTUVXZ") for _ in range(3))),
    ("translate interpreter say_in", ("Translates a word from one language to another", "Says a word in another language"), "word text", noun, "language", TONGUES),
    ("ship_goods move_stock carry", ("Moves goods between stores", "Brings an article from one depot to another"), "goods article", thing, "store", place),
    ("fare ticket_cost ride", ("Price of a ticket between two stations", "Fare for a class of ticket from one stop to another"), "ticket_class class", one("first, second, child, senior, student, economy, business"), "station", place),
    ("reassign hand_over pass_on", ("Hands a task from one person to another", "Gives a file to somebody else"), "task file ref", code, "person", person),
    ("unit_price recalc resize", ("Turns a size of one country into another's", "Converts a shoe size"), "size number", whole(30, 50), "country", place),
    ("move_file copy_to rename_path", ("Moves a file to another folder", "Copies a file between folders"), "file name", slug, "folder", noun),
)  # fmt: skip
PAIRED_ROLES = (("from", "to"), ("source", "goal"), ("origin", "destination"), ("src", "dst"), ("start", "end"), ("old", "new"), ("from_{k}", "to_{k}"), ("{k}_from", "{k}_to"), ("giver", "taker"), ("first_{k}", "second_{k}"), ("fromX", "toX"), ("have", "want"))  # fmt: skip
MOVED = ("{m} from {s} to {t}[.|, please|]", "[Move|Bring|Send|Take|Change|Put|Turn] {m} from {s} [to|into] {t}[.|, please|]", "[Move|Bring|Send|Change|Turn] {m} [to|into] {t} from {s}[.|]", "{m}: {s} to {t}[?|.|]", "{m} {s} -> {t}", "{m}, {s} > {t}", "[It is|I have|There is] {m} [at|in|with] {s}[,|;] [I need it|it should be|make it] [in|at|with] {t}[.|]", "to {t}, {m}, [out of|from] {s}[.|]", "{m} {s} [to|into] {t}[?|, please|]", "From {s} to {t}: {m}[.|]", "[What|How much] is {m} [{s} in {t}|from {s} to {t}]?", "[I want|I'd like|We need] {m} [to|in] {t}, [now|so far] it is {s}[.|]")  # fmt: skip
MONEYS = (
    "[How many|How much] {t} [is|are|for|do I get for|will I have for] {m} {s}?",
    "{m} {s} [makes|buys|is] how [much|many] {t}?",
    "{m} {s} [in|into|to|as] {t}[?|.|, please|]",
    "[I have|She has|They pay me|My wallet holds|The bill is] {m} {s}[.|,|;] [how much is that in|make that|in|and in] {t}[?|]",
    "{t} for {m} {s}[?|, please|]",
    "[Give me|I need] {t} for {m} {s}[.|]",
    "[It costs|The price is] {m} {s}, [I only have|I think in|I want to pay in] {t}[.|]",
    "[Swap|Trade|Turn] {m} {s} [into|for|to] {t}[.|, please|]",
    "{s} {m} -> {t}",
    "{m} {s}: {t}?",
)
_PAIRS = {("start", "end"), ("from_city", "to_city"), ("from_currency", "to_currency"), ("base", "quote")}
_NEUTRAL_FIRST, _NEUTRAL_LAST = "get do run api my the tool svc req handle new ask".split(), "tool api v2 service fn request helper bot 2 now action cmd".split()  # fmt: skip
_DULL = frozenset("with from into that some what this for and are one its the has how many somebody someone something another".split())  # fmt: skip
JOINED: tuple[Callable[[Sequence[str]], str], ...] = (
    "_".join, "_".join, "_".join, "_".join, "-".join, ".".join, "".join, lambda words: _camel("_".join(words)),
)  # fmt: skip
Use = tuple[Tool, tuple[str, ...], dict[str, Maker], dict[str, str]]


def _described(d: Draw, text: str) -> str:
    return text[0].upper() + text[1:] + d.pick((".", "", ""))


def _aspect_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool that returns one aspect of a kind of thing, with questions that mostly do not name the aspect."""
    names, kind, ways = d.pick(ASPECTS)
    aspect = d.pick(names.split())
    make, parameters = _KINDS[kind]
    form = d.pick(("{a}", "{k}_{a}", "{v}_{a}", "{v}_{k}_{a}", "{a}_of_{k}", "{a}_{k}"))
    words = form.format(a=aspect, k=kind, v=d.pick(DOING)).split("_")
    about = d.vary(d.pick(DESCRIBED)).format(a=aspect.replace("_", " "), k=kind).replace("a animal", "an animal")
    return Tool(d.pick(JOINED)(words), _described(d, about), {d.pick(parameters.split()): "string"}), ways, {"x": make}


def _deed_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool that does something with one thing, with short questions."""
    names, about, parameters, make, ways = d.pick(DEEDS)
    name = d.pick(JOINED)(d.pick(names.split()).split("_"))
    kind = "number" if make is money else "string"
    return Tool(name, _described(d, d.pick(about)), {d.pick(parameters.split()): kind}), ways, {"x": make}


def _move_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool that moves or converts something from one place, account, language etc. to another."""
    names, about, moved, make, kind, ends = d.pick(MOVES)
    source, target = (role.format(k=kind).replace("X", kind.capitalize()) for role in d.pick(PAIRED_ROLES))
    sort = "number" if make is money else "integer" if kind in ("currency", "country") else "string"
    parameters = {d.pick(moved.split()): sort, source: "string", target: "string"}
    name = d.pick(JOINED)(d.pick(names.split()).split("_"))
    ways = MONEYS if kind == "currency" and d.chance(0.7) else MOVED
    return Tool(name, _described(d, d.pick(about)), parameters), ways, {"m": make, "s": ends, "t": ends}


# details of a booking or a search, which a question has in any order: names, type, maker of the value, phrases
BOOKED = "court boat hall sauna guide bike tent desk lane lesson massage haircut studio limousine babysitter band piano projector van booth box pitch cabin ticket seat stall cruise tour class dinner room horse sledge cottage bus camera suit costume cake caterer clown photographer".split()  # fmt: skip
BOOKING = (("book", "Books", "[Book|Get|Reserve|I'd like|We want|I need|Could we have|Can I get]"), ("reserve", "Reserves", "[Reserve|Keep|Save|Please keep|We need|I want|Can you reserve]"), ("rent", "Rents", "[Rent|Hire|I'd like to rent|We want to hire|Can I rent|Get me]"), ("order", "Orders", "[Order|Send for|I'd like|Please order|We want|Have them send]"), ("find", "Finds", "[Find|Look for|Search|Is there|Do you know|I'm looking for|Show me|Any chance of]"), ("request", "Requests", "[Request|Ask for|Apply for|I need|We'd like|Put in for]"))  # fmt: skip
SLOTS: tuple[tuple[str, str, Maker, tuple[str, ...]], ...] = (
    ("venue house shop firm provider by", "string", titled, ("at {x}", "from {x}", "with {x}", "at {x}")),
    ("people persons head_count how_many group group_size size_of_party", "integer", whole(2, 30), ("for {x}", "for {x} people", "{x} of us", "we are {x}", "a party of {x}", "{x} heads", "for {x} adults")),
    ("time hour clock start at from_time", "string", clock, ("at {x}", "from {x}", "around {x}", "{x} sharp", "starting {x}", "{x}")),
    ("date day on when on_date", "string", Draw.date, ("on {x}", "for {x}", "{x}", "the day is {x}")),
    ("name under holder booked_for contact_person customer", "string", person, ("under {x}", "in the name of {x}", "name: {x}", "my name is {x}", "it is for {x}")),
    ("budget limit max_price maximum spend", "number", money, ("up to {x} euros", "max {x}", "not over {x}", "budget {x}", "under {x} dollars", "for less than {x}")),
    ("voucher code member_no card_no reference", "string", code, ("voucher {x}", "with code {x}", "member {x}", "card {x}", "reference {x}")),
    ("city town place area nearby", "string", place, ("in {x}", "near {x}", "around {x}", "in {x}")),
    ("hours duration length how_long", "integer", whole(2, 48), ("for {x} hours", "{x} hours", "{x} hours long", "lasting {x} hours")),
    ("colour shade", "string", lambda d: d.mixed(COLOURS), ("in {x}", "{x} if possible", "colour {x}", "a {x} one")),
)  # fmt: skip


def _slot_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool that books or finds something, with one to four details that questions state in any order."""
    (verb, does, asks), thing = d.pick(BOOKING), d.pick(BOOKED)
    chosen = d.some(SLOTS, d.pick((1, 2, 2, 3, 3, 4)))
    names = [d.pick(words.split()) for words, *_ in chosen]
    ways = []
    for _ in range(3):
        parts = [d.pick(said).replace("{x}", f"{{{n}}}") for n, (_, _, _, said) in zip(names, chosen, strict=True)]
        lead = f"{asks} [a|one|a {d.pick(('nice', 'big', 'small'))}] {thing}"
        if d.chance(0.15):
            lead = f"[{thing.capitalize()}|{thing}:|One {thing}]"
        d.rng.shuffle(parts)
        text = lead
        if d.chance(0.2) and not parts[0].startswith("{"):
            text = f"{parts[0][0].upper()}{parts.pop(0)[1:]}, {lead}"
        for part in parts:
            text += (" " if d.chance(0.5) and part[:3] not in ("we ", "my ", "the", "it ") else ", ") + part
        ways.append(text + "[.|?|, please.|!|]")
    about = d.pick(
        (
            f"{does} a {thing}",
            f"{verb} a {thing}",
            f"{thing} {verb}ing".replace("eing", "ing"),
            f"{does} one {thing} for a customer",
        )
    )
    form = d.pick(("{v}_{t}", "{t}_{v}", "{v}_a_{t}", "{t}", "{v}_{t}_now", "new_{t}", "{t}s"))
    name = d.pick(JOINED)(form.format(v=verb, t=thing).split("_"))
    kinds = {n: kind for n, (_, kind, _, _) in zip(names, chosen, strict=True)}
    return (
        Tool(name, _described(d, about), kinds),
        tuple(ways),
        {n: make for n, (_, _, make, _) in zip(names, chosen, strict=True)},
    )


# services, of which several may be tools of one conversation, told apart by what they do: names, descriptions, fields
# (their names, type, maker of the value), questions
POLICIES = one(
    "sick days, holidays, dress code, parking, travel costs, lunch breaks, training, visitors, fire drill, part-time work, company cars, pensions, data protection, working hours, bonuses, notice period, business trips, smoking, pets at work, home office, maternity, safety shoes, gifts, uniforms, shift plans, badges, cleaning, first aid"
)
MONEY_CODES = "USD EUR GBP CHF SEK INR JPY CAD AUD DKK PLN CZK HUF TRY BRL MXN ZAR CNY KRW THB"
SERVICES: tuple[tuple[str, tuple[str, ...], dict[str, tuple[str, str, Maker]], tuple[str, ...]], ...] = (
    ("forecast sky_report outdoor_temperature weather_in meteo weather", ("The weather of a place", "Weather report for a town", "Tells temperature and rain at a place", "Forecast for a location"), {"p": ("place town location where city spot", "string", place)},
     ("Is it [snowing|freezing|sunny|stormy|cloudy|foggy|wet|hot|warm] [in|over in] {p}[ today| now|]?", "[Does|Did] it [rain|snow|hail] [in|at] {p}[ today|]?", "How [cold|hot|windy|wet|mild] does it get in {p}[ today|]?", "[Temperature|Degrees|Forecast|Weather report] [for|in|at] {p}[, please|?|]", "Shall I [pack|take] [a raincoat|sun cream|a scarf|boots] [to|for] {p}?", "What [does the sky do|is the forecast|temperature is it|weather do they have] in {p}?", "[Rain|Sun|Snow|Wind] [expected|coming] in {p}?", "I [travel|go] to {p}, how's the weather there?", "Do they have [sun|snow|storms|rain] in {p}?", "[How many degrees|What temperature] [has|are there in] {p}?")),
    ("directory phone_book contact_card people_finder number_of lookup_person", ("Finds the phone number of a person", "Contact details of somebody", "Telephone directory", "Entry of a person in the phone book"), {"n": ("person name who someone full_name whom", "string", person)},
     ("[How|Where] can I [reach|call|phone] {n}?", "[Phone|Telephone|Contact|Number] [of|for] {n}[?|, please|]", "I [need|want] to [call|phone|speak to] {n}, [what's the number|the number please|which number]?", "Under which number is {n}?", "[Find|Give me|Look up] the [number|phone|contact data] of {n}[.|!]", "Do we have a number for {n}?", "How do I get in touch with {n}?", "I must [get through to|get in contact with] {n}[.|, how?]", "[Which|What] number [has|belongs to] {n}?", "Can you find [contact data|a phone number] for {n}?")),
    ("payroll wage_of pay_check staff_pay earnings_of salary", ("What a member of staff is paid", "Pay of a worker", "Monthly wage of somebody", "Earnings of a colleague"), {"n": ("person worker staff_member who name colleague", "string", person)},
     ("What does {n} [make|get paid|take home|cost us][ a month| a year|]?", "How high is [the pay|the wage|the income|the salary] of {n}?", "[Pay|Wage|Income|Earnings] of {n}[?|, please|]", "Is {n} well paid?", "Does {n} [earn|make] [enough|more than me|a lot|much]?", "What [salary|wage|income] has {n}?", "How many euros go to {n} each month?", "[What|How much] money does {n} [bring home|get from us]?", "How well does {n} earn?")),
    ("handbook manual_search knowledge_base wiki policy_lookup find_in_docs help_pages", ("Finds a page of the documents", "Looks a subject up in the guidelines", "Full text search of our documents", "Company policy on a subject", "Search of the help pages"), {"x": ("topic subject query term keyword search_for about", "string", lambda d: POLICIES(d) if d.chance(0.75) else noun(d))},
     ("What [is written|do we say|do the documents say|does our guide say] [on|about] {x}?", "[Search|Look through|Browse|Go through] the [documents|pages|guide|wiki|files|handbook|rules] [for|about] {x}[.|, please|]", "Where [do I read|is it written|can I read up] about {x}?", "Is there [anything|a page|a rule|something] [on|about|for] {x}[ in the guide| in our papers|]?", "[Policy|Rules|Guideline|Page] [on|for|about] {x}[?|]", "How do we handle {x}?", "I'd like to read [about|up on] {x}.", "Which rules [apply|are there] for {x}?", "Look {x} up [in the guide|for me|in the docs].", "[Find|Get] me [the docs|the handbook page|what we have] on {x}[.|]")),
    ("exchange money_in currency_desk change_money rate_of forex", ("What a sum of money is in another currency", "Changes a sum into foreign money", "Currency exchange"), {"m": ("sum value money amount how_much", "number", whole(5, 9999)), "s": ("have base from_currency given paid_in", "string", lambda d: _money_code(d)), "t": ("want wanted to_currency quote into", "string", lambda d: _money_code(d))},
     ("What do I get in {t} for {m} {s}?", "{m} {s} is how much [in|expressed in] {t}?", "[Value|Worth] of {m} {s} in {t}[?|]", "How [many|much] {t} would {m} {s} [be|make|bring]?", "[Exchange|Switch|Convert] {m} {s} [into|to] {t}[.|, please|]", "They charge {m} {s}, what is it in {t}?", "[My bill|The fare|My wage] is {m} {s}. In {t}, please.", "For {m} {s}, how [many|much] {t}?")),
    ("dinner_booking reserve_seats restaurant_reservation table_for book_dinner eat_out", ("Reserves seats in a restaurant", "Makes a dinner reservation", "Reservation of a table"), {"p": ("venue house place_to_eat inn name", "string", titled), "k": ("people persons party_size how_many group seats", "integer", whole(2, 19)), "t": ("time when clock at_what_time start", "string", clock)},
     ("[Reserve|Book] [us |][a table|seats] [at|in] {p} for {k}[,| at] {t}[, please|.|]", "[Dinner|Lunch|Supper] for {k} [at|in] {p}, {t}[.|, please|]", "There are {k} of us [and we want|wanting] to [dine|have dinner|have lunch] [at|in] {p} [at|around] {t}.", "{p}, {k} people, {t}: [reserve|book] please.", "Can {k} people [eat|dine|sit] at {p} at {t}?", "At {t} we'd like {k} seats [in|at] {p}.", "We [plan|hope] to dine at {p}, {t}, party of {k}.", "[Is there|Do they have] room for {k} at {p} at {t}?", "Our party of {k} wants to eat at {p}, {t}.")),
    ("shipment_status where_is_it track_delivery courier_status", ("Status of a delivery", "Where a shipment is", "Follows a parcel on its way"), {"x": ("number code shipment reference tracking", "string", code)},
     ("Where is [my|the|our] [shipment|delivery|box|order] {x}[ now|]?", "[Track|Follow|Trace] {x}[.|, please|]", "Has {x} been [delivered|sent|shipped]?", "When will {x} [come|be here|arrive]?", "[Status|State|Position] of [shipment |delivery |]{x}[?|]", "I'm waiting for {x}[.|, where is it?]", "Is {x} [still on the way|at the depot|lost]?")),
    ("desk_of office_finder where_sits find_colleague", ("Where in the building someone sits", "Desk of a colleague", "Room of a person"), {"n": ("person colleague who name", "string", person)},
     ("Where does {n} [sit|work|have a desk]?", "[Which|What] [room|desk|floor] is {n} [in|at|on]?", "I have to [bring|take] {n} a cake, where to?", "[Desk|Office|Room] of {n}[?|, please|]", "In which [room|office|wing] do I find {n}?")),
    ("leave_left vacation_days holiday_account days_off", ("Days of holiday that someone has left", "Vacation account of a person", "How much leave a worker has"), {"n": ("person worker who name employee_name", "string", person)},
     ("How many [days off|holidays|free days] [has|does] {n}[ still have| have left|]?", "Can {n} take a week off?", "[Holidays|Days off|Vacation] left for {n}[?|]", "May {n} [go on holiday|stay at home] next week?", "Has {n} any vacation left?")),
    ("population census how_many_people inhabitants", ("Number of people in a place", "Inhabitants of a town", "Population figure"), {"p": ("place town where country", "string", place)},
     ("How many people [live in|are there in|has] {p}?", "[Population|Inhabitants] of {p}[?|, please|]", "How [big|large] is {p}[ by people|]?", "[Is {p} a big town|Does {p} have many inhabitants]?")),
    ("room_rates hotel_price stay_cost beds_in", ("What a hotel room costs in a town", "Price of a night in a place", "Hotel rates"), {"p": ("place town where destination", "string", place)},
     ("What [does a night|does a hotel|do hotels] [cost|cost me] in {p}?", "How [dear|expensive] is [a bed|a hotel|a room] in {p}?", "I want to sleep in {p}, what do I pay?", "[Hotel rates|A night's price|Room prices] in {p}[?|]")),
    ("chief_city seat_of_government country_info main_city", ("The city that governs a country", "Main city of a land", "Where the government of a country sits"), {"p": ("country nation land state", "string", place)},
     ("What city governs {p}?", "Where does the government of {p} sit?", "Name the capital of {p}.", "{p}'s capital, please.", "[Which|What] is the main city of {p}?", "From which city is {p} governed?")),
    ("ring_me clock_alarm get_up set_bell", ("Rings at a time", "Sets the clock of the bedroom", "Alarm clock"), {"t": ("time hour when moment", "string", clock)},
     ("Alarm [at|for] {t}[.|, please|]", "[Let the clock ring|Ring|Make it ring] at {t}.", "I must not sleep past {t}.", "Get me out of bed at {t}.", "[Up|Out of bed] at {t}, [make sure|please].", "Tomorrow I rise at {t}[, so set the clock|].")),
    ("birthday_of born_on party_date", ("Birthday of a person", "When someone was born", "Date of somebody's birthday"), {"n": ("person name whose who", "string", person)},
     ("When [was {n} born|does {n} turn a year older|is {n}'s birthday]?", "On what day do we [give a cake to|congratulate] {n}?", "How old is {n}[ now|]?", "[Birthday|Birth date] of {n}[?|]")),
    ("concert_hall start_music songs_of band_radio", ("Music of a singer or group", "Starts songs of a performer", "Plays what an artist recorded"), {"b": ("performer band singer who group", "string", lambda d: titled(d) if d.chance(0.5) else person(d))},
     ("[Let's|I want to|We'd like to] [hear|listen to] [some |]{b}[.|, please|]", "[Music|Songs|A song] [by|of|from] {b}[.|, please|!]", "[Turn on|Start|Give me|Sing] [some |a song of |]{b}[.|!|, please]", "I'm in the mood for [the songs of |]{b}.", "Dance with me to {b}[!|.]")),
)  # fmt: skip


def _money_code(d: Draw) -> str:
    return (
        d.pick(MONEY_CODES.split()) if d.chance(0.6) else "".join(d.pick("ABCDEFGHIJKLMNOPRSTUVXZ") for _ in range(3))
    )


def _service_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    """A tool for a service, with questions that say what is needed and do not name the tool."""
    names, about, fields, ways = d.pick(SERVICES)
    parameters: dict[str, str] = {}
    for words, kind, _ in fields.values():
        parameters[d.pick([word for word in words.split() if word not in parameters])] = kind
    name = d.pick(JOINED)(d.pick(names.split()).split("_"))
    return Tool(name, _described(d, d.pick(about)), parameters), ways, {f: make for f, (_, _, make) in fields.items()}


_SHORT = {id(ways) for *_, ways in DEEDS}


def _told_apart(uses: Sequence[Use]) -> list[Use]:
    """The tools of `uses` that can be told apart by their questions."""
    kept: list[Use] = []
    for use in uses:
        clash = any(
            use[1] is other[1]
            or use[0].name == other[0].name
            or use[0].description.rstrip(".").lower() == other[0].description.rstrip(".").lower()
            or ({id(use[1]), id(other[1])} & _SHORT and {*use[2].values()} & {*other[2].values()})
            for other in kept
        )
        if not clash and use[0].name not in FUNCTIONS:
            kept.append(use)
    return [
        (tool, tuple(way.lstrip("~") for way in ways if len(kept) == 1 or way[0] != "~"), makers, names)
        for tool, ways, makers, names in kept
    ]


def _other_name(d: Draw, tool: Tool) -> str:
    """Another name for a tool: its name with one more word, words of its description, or a name without meaning."""
    words = re.findall("[A-Z]?[a-z]+", tool.name)
    way = d.rng.random()
    if way < 0.35:
        words = [d.pick(_NEUTRAL_FIRST), *words] if d.chance(0.5) else [*words, d.pick(_NEUTRAL_LAST)]
    elif way < 0.7:
        said = [w for w in re.findall("[a-z]{3,}", tool.description.lower()) if w not in _DULL]
        words = sorted(d.some(said, min(len(said), d.pick((1, 2, 2, 3)))), key=said.index) or words
    elif way < 0.85:
        words = [d.word() if d.chance(0.6) else noun(d).replace(" ", "_")]
        words += [d.pick((d.word(), str(d.number(1, 99)), "tool"))] if d.chance(0.4) else []
    return d.pick(JOINED)([word.lower() for word in words])


def _common_tool(d: Draw) -> tuple[Tool, tuple[str, ...], dict[str, Maker]]:
    return d.pick(USES)


def _as_offered(d: Draw, make: Callable[[Draw], tuple[Tool, tuple[str, ...], dict[str, Maker]]]) -> Use:
    """A tool with other names and its parameters in any order, so that names must be copied from the list of tools."""
    use = make(d)
    tool, ways, makers = use
    names = dict(zip(makers, tool.parameters, strict=True))  # field of a question -> parameter
    if make is _common_tool and d.chance(0.6):
        names |= _sorted_names(d, makers)
        if "amount" not in makers and "total" not in makers:  # but numbers that are no amounts keep their names
            names |= {field: field for field, make in makers.items() if make is money}
        for pair in _PAIRS & {tuple(makers)[i : i + 2] for i in range(len(makers) - 1)}:
            names |= zip(pair, d.pick(PAIRED_ROLES[:5]), strict=True)
        spelling = d.pick(SPELLINGS[:4]) if d.chance(0.15) else str
        names = {field: spelling(name) for field, name in names.items()}
        if len(set(names.values())) < len(names):
            names = {name: name for name in makers}
    kinds = dict(zip(makers, tool.parameters.values(), strict=True))
    order = d.some(tuple(makers), len(makers)) if d.chance(0.4) else list(makers)
    name = _other_name(d, tool) if d.chance(0.5) else tool.name
    return Tool(name, tool.description, {names[f]: kinds[f] for f in order}), ways, makers, {f: names[f] for f in order}


# kinds of values that `gadgets` names and `_drawn` does not know -> their makers
_KINDS_ASKED: dict[str, Maker] = {name: one(words) for name, words in gadgets.LISTS.items()} | {
    "noun": noun,
    "drink": DRINKS,
}
_GADGETS = tuple(gadget for group in gadgets.DOMAINS.values() for gadget in group)
_TAKING = tuple({kind: [g for g in _GADGETS if kind in (k for k, _ in g.fields.values())] for g in _GADGETS for kind, _ in g.fields.values()}.items())  # fmt: skip
_FRAMES_OF = {"=": gadgets.OF_NOUN, "?": gadgets.OF_CLAUSE, "!": gadgets.OF_DEED}


Offer = tuple[gadgets.Gadget, Tool, dict[str, str]]


def _value_of(d: Draw, kind: str) -> str:
    return (_KINDS_ASKED.get(kind) or _drawn(kind))(d)


def _offered(d: Draw, gadget: gadgets.Gadget) -> tuple[Tool, dict[str, str]]:
    """(The gadget as a tool with one of its names, field of a question -> parameter)."""
    names: dict[str, str] = {}
    for field, (_, words) in gadget.fields.items():
        names[field] = d.pick([word for word in words if word not in names.values()])
    sorts = {"money": "number"} | dict.fromkeys(("count", "heat", "height"), "integer")
    kinds = {f: sorts.get(kind, "integer" if kind[0].isdigit() else "string") for f, (kind, _) in gadget.fields.items()}
    order = d.some(tuple(names), len(names)) if d.chance(0.4) else list(names)
    name = d.pick(gadget.names.split())
    name = d.pick(JOINED)(name.split("_")) if "_" in name else name
    about = d.pick(gadget.about.split(";"))
    about = about[0].lower() + about[1:] if d.chance(0.1) else _described(d, about)
    tool = Tool(name, about, {names[f]: kinds[f] for f in order})
    return (tool._replace(name=_other_name(d, tool)) if d.chance(0.3) else tool), {f: names[f] for f in order}


def _asked_as(d: Draw, way: str, frames: dict[str, tuple[str, ...]]) -> str:
    """The template of a question: `way` itself, or `way` inside one of the frames for its first character."""
    if way[0] not in frames:
        return casual(d, d.vary(way))
    text = d.vary(d.pick(frames[way[0]]).replace("{x}", way[1:]))
    return casual(d, text[0].upper() + text[1:] if d.chance(0.75) else text)


def _told_result(d: Draw, gadget: gadgets.Gadget) -> str:
    told = re.sub("<(\\w+)>", lambda found: _value_of(d, found[1]), d.pick(gadget.gives.split(";")))
    way = d.rng.random()
    if way < 0.1:
        return any_value(d)
    if way < 0.16:
        return json.dumps({d.pick(("result", "value", "answer", "data", noun(d))): told}, ensure_ascii=False)
    return f"{d.pick((noun(d), 'value', 'found', 'now'))}: {told}" if way < 0.2 else told


def _again(d: Draw, gadget: gadgets.Gadget) -> tuple[str, str] | None:
    """(A field whose value can change, a template that asks the last question again for the new value); None: none."""
    kinds = [kind for kind, _ in gadget.fields.values()]
    fields = [f for f, (kind, _) in gadget.fields.items() if kind in gadgets.AGAIN_OF and kinds.count(kind) == 1]
    if len(kinds) == 1:
        field, kind = next(iter(gadget.fields)), kinds[0]
        return field, d.pick(gadgets.AGAIN if d.chance(0.5) else gadgets.AGAIN_OF.get(kind, gadgets.AGAIN))
    if not fields:
        return None
    field = d.pick(fields)
    return field, d.pick(gadgets.AGAIN_OF[gadget.fields[field][0]])


def _sort_of(gadget: gadgets.Gadget) -> str:
    """The kind of value of a gadget with a single field; "" for other gadgets."""
    return next(iter(gadget.fields.values()))[0] if len(gadget.fields) == 1 else ""


def _of_the_same(last: gadgets.Gadget, uses: Iterable[Offer]) -> list[tuple[Offer, str]]:
    """(Tool, noun phrase) of other questions about the same person or place as the last question."""
    if (sort := _sort_of(last)) not in ("person", "place"):
        return []
    others = [use for use in uses if _sort_of(use[0]) == sort and use[0] is not last]
    return [(use, np) for use in others for np in use[0].asks if re.search(r"^=the .* (of|in) \{p\}$", np)]


def _sum_asked(d: Draw) -> tuple[str, str]:
    """(A calculation in words, its expression)."""
    forms = tuple(gadgets.SUMS)
    form = d.pick(forms[:4] if d.chance(0.55) else forms)
    a, b, c = (str(d.amount()) if d.chance(p) else d.value() for p in (0.7, 0.85, 0.6))
    if "/{" in form and d.chance(0.7):
        b, c = (str(d.number(2, 40)) for _ in range(2))
    if form in ("{a}-{b}", "{a}/{b}") and float(a) < float(b) and d.chance(0.85):
        a, b = b, a
    values = {"a": a, "b": str(d.number(2, 95)) if "100" in form else b, "c": c}
    template = _asked_as(d, d.pick(gadgets.SUMS[form]), {"=": gadgets.OF_SUM})
    i, j = (noun(d) if d.chance(0.5) else d.item() for _ in range(2))
    return template.format(**values, i=i, j=j, n=first(d), m=first(d), o=first(d)), form.format(**values)


def _gadgets(d: Draw) -> Sample:
    """Questions for tools of one trade or with one sort of argument: only the meaning of a question tells its tool."""
    way = d.rng.random()
    some = d.pick(tuple(gadgets.DOMAINS.values())) if way < 0.45 else d.pick(_TAKING)[1] if way < 0.75 else _GADGETS
    tools: dict[str, Offer] = {}
    for gadget in d.some(some, min(len(some), d.pick((1, 2, 3, 3, 4, 4, 5, 6, 7)))):
        tool, names = _offered(d, gadget)
        tools.setdefault(tool.name, (gadget, tool, names))
    tools = {name: use for name, use in tools.items() if name not in FUNCTIONS}
    offered = [tool for _, tool, _ in tools.values()]
    offered += d.some((CALCULATOR, CONVERT, ADD_DAYS, DAYS_BETWEEN), d.pick((0, 1, 1, 2, 3)))
    d.rng.shuffle(offered)
    kinds = ["use"] * 8 + ["sum"] * 4 * (CALCULATOR in offered) + ["convert"] * 2 * (CONVERT in offered)
    kinds += ["date"] * 2 * (ADD_DAYS in offered) + ["span"] * 2 * (DAYS_BETWEEN in offered) + ["talk"]
    messages, answers = _system(d, 0.45), []
    last: Offer | None = None
    fields: dict[str, str] = {}
    for _ in range(d.pick((1, 2, 3, 3, 4))):
        kind = "use" if last and d.chance(0.3) else d.pick(kinds)
        arguments: dict[str, object]
        if kind == "use" and tools:
            again = _again(d, last[0]) if last and d.chance(0.4) else None
            same = _of_the_same(last[0], tools.values()) if last and again is None and d.chance(0.4) else []
            if last and again:
                field, template = again
                fields = fields | {field: _value_of(d, last[0].fields[field][0])}
                template = casual(d, d.vary(template)).replace("{x}", f"{{{field}}}")
            elif same:  # a question about the same person or place
                about = next(iter(fields.values()))
                last, np = d.pick(same)
                fields = dict.fromkeys(last[0].fields, about)
                np = np.replace(" in {p}", " there") if " in {p}" in np else np.replace(" of {p}", "")
                if last[0].fields["p"][0] == "person":
                    np = np.replace("=the", f"={d.pick(('her', 'his', 'their'))}", 1)
                else:
                    np = np if np.endswith("there") else f"{np} of that place"
                template = d.pick(("And {0}", "{0}", "Also: {0}")).replace("{0}", _asked_as(d, np, _FRAMES_OF))
            else:
                last = d.pick(tuple(tools.values()))
                fields = {field: _value_of(d, kind) for field, (kind, _) in last[0].fields.items()}
                template = _asked_as(d, d.pick(last[0].asks), _FRAMES_OF)
            gadget, tool, names = last
            said = template.format(**fields, o=person(d) if d.chance(0.3) else first(d))
            name = tool.name
            arguments = {
                n: fields[f] if tool.parameters[n] == "string" else _number(fields[f]) for f, n in names.items()
            }
            result = _told_result(d, gadget)
            wanted = f"The result is {result}."
        elif kind == "talk" or (kind == "use" and not tools):
            phrases, answer = d.pick(CHAT)
            said = _small_talk(d, phrases)
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
            answers.append(answer)
            continue
        else:
            last = None
            if kind == "sum":
                said, expression = _sum_asked(d)
                name, arguments = "calculator", {"expression": expression}
                result = run(name, arguments, FUNCTIONS)
                wanted = f"The answer is {result}."
            elif kind == "convert":
                f, t = d.pick(UNITS)
                v = d.value()
                spoken = [d.pick(UNITS_SAID[unit].split("|")) if d.chance(0.35) else unit for unit in (f, t)]
                said = casual(d, d.vary(d.pick(gadgets.UNIT_ASKS))).format(v=v, f=spoken[0], t=spoken[1], n=first(d))
                name, arguments = "convert", {"value": _number(v), "from_unit": f, "to_unit": t}
                result = run(name, arguments, FUNCTIONS)
                wanted = f"{v} {f} is {result} {t}."
            elif kind == "date":
                back, day, n = d.chance(0.35), d.date(), d.number(2, 900)
                spoken_days, k = d.pick(gadgets.DAY_WORDS) if d.chance(0.35) else (f"{n} days", n)
                said = casual(d, d.vary(d.pick(gadgets.DAY_ASKS[back]))).format(k=spoken_days, d=day, n=first(d))
                name, arguments = "add_days", {"date": day, "days": -k if back else k}
                result = run(name, arguments, FUNCTIONS)
                wanted = f"The date is {result}."
            else:
                start, end = sorted((d.date(), d.date()))
                said = casual(d, d.vary(d.pick(gadgets.SPAN_ASKS))).format(d=start, e=end, n=first(d), i=d.item())
                name, arguments = "days_between", {"start": start, "end": end}
                result = run(name, arguments, FUNCTIONS)
                wanted = f"That is {result} days."
        messages += [
            {"role": "user", "content": said}, {"role": "assistant", "tool_calls": ({"name": name, "arguments": arguments},)},
            {"role": "tool", "content": result}, {"role": "assistant", "content": wanted},
        ]  # fmt: skip
        answers.append(result)
    return Sample("everyday_tools", tuple(messages), tuple(offered), functions=dict(FUNCTIONS), answers=tuple(answers))


def everyday_tools(d: Draw) -> Sample:
    """One to three questions with up to six tools offered, and small talk that needs no tool."""
    if d.chance(0.5):
        return _gadgets(d)
    makes = d.rng.choices(
        (_common_tool, _any_tool, _aspect_tool, _deed_tool, _move_tool, _slot_tool),
        (34, 19, 15, 13, 7, 12),
        k=d.pick((1, 2, 2, 3, 3, 4)),
    )
    is_service = d.chance(0.4)
    if is_service:  # tools of all sorts would clash with these
        makes = [_service_tool] * d.pick((2, 3, 4, 4, 5, 6)) + [_any_tool] * d.pick((0, 0, 1))
    chosen = _told_apart([_as_offered(d, make) for make in makes])
    offered = [tool for tool, *_ in chosen] + d.some(
        (CALCULATOR, CONVERT, ADD_DAYS, DAYS_BETWEEN), d.pick((1, 1, 2, 3))
    )
    d.rng.shuffle(offered)
    functions: dict[str, Function] = dict(FUNCTIONS)
    messages = _system(d, 0.5)
    answers: list[str] = []
    for _ in range(d.pick((1, 2, 2, 3, 4))):
        kinds = (
            ["use"] * 9
            + ["sum"] * 4 * (CALCULATOR in offered)
            + ["convert"] * 2 * (CONVERT in offered)
            + ["date"] * 2 * (ADD_DAYS in offered)
            + ["talk"]
        )
        kind = d.pick(kinds)
        arguments: dict[str, object]
        if kind == "use":
            tool, ways, makers, names = d.pick(chosen)
            fields = {name: make(d) for name, make in makers.items()}
            if {"s", "t"} <= fields.keys() and fields["s"] == fields["t"]:
                fields["t"] = d.word().capitalize()
            arguments = {
                name: fields[f] if tool.parameters[name] == "string" else _number(fields[f])
                for f, name in names.items()
            }
            name = tool.name
            if is_service or len(fields) > 2:  # no made-up words, as words tell the details or the tools apart
                said = casual(d, d.vary(d.pick(ways))).format(**fields, a=noun(d))
            else:
                said = worded(d, *ways, **fields, a=noun(d))
            result = (
                any_value(d)
                if d.chance(0.6)
                else d.pick(("ok", "done", "yes", "no", noun(d), f"{d.number(1, 99)}{d.pick('CFkm%')}"))
            )
            wanted = f"The result is {result}."
        elif kind == "sum":
            form = d.pick(tuple(EXPRESSIONS))
            values = {"a": d.value(), "b": str(d.amount()) if d.chance(0.8) else d.value(), "c": d.value()}
            i = noun(d) if d.chance(0.5) else d.item()  # no made-up words, as a verb tells plus from minus
            said = casual(d, d.vary(d.pick(EXPRESSIONS[form]))).format(
                **values, i=i, j=d.item(), n=first(d), m=first(d)
            )
            name, arguments = "calculator", {"expression": form.format(**values)}
            result = run(name, arguments, functions)
            wanted = f"The answer is {result}."
        elif kind == "convert":
            f, t = d.pick(UNITS)
            v = d.value()
            spoken = [d.pick(UNITS_SAID[unit].split("|")) if d.chance(0.35) else unit for unit in (f, t)]
            if d.chance(0.1):  # the user names a wrong unit first
                spoken[1] = d.pick(MEANT).format(t=spoken[1], u=d.pick([u for u in UNITS_SAID if u not in (f, t)]))
            said = worded(d, *CONVERTS, v=v, f=spoken[0], t=spoken[1], i=d.item(), n=first(d))
            name, arguments = "convert", {"value": _number(v), "from_unit": f, "to_unit": t}
            result = run(name, arguments, functions)
            wanted = f"{v} {f} is {result} {t}."
        elif kind == "date":
            back, day, k = d.chance(0.35), d.date(), d.number(2, 900)
            said = casual(d, d.vary(d.pick(LATERS[back]))).format(k=k, d=day, i=d.item())
            name, arguments = "add_days", {"date": day, "days": -k if back else k}
            result = run(name, arguments, functions)
            wanted = f"The date is {result}."
        else:
            phrases, answer = d.pick(CHAT)
            said = _small_talk(d, phrases)
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
    """All words around the values of records, facts and scenes."""
    records = [text for makers, texts in DOMAINS for text in (*makers, *texts)]
    facts = [
        text for statements, questions, answer, _ in (*TOLD, *PRONOUNS) for text in (*statements, *questions, answer)
    ]
    relations = [relation for relation, _ in BELONGINGS]
    said = [text for phrases, answer in CHAT for text in (*phrases, answer)]
    return f"{records} {WISHES} {MISSING} {ALIASES} {NEVER_TOLD} {NOISE} {GAPS} {facts} {relations} {STATED} {ASKED_FOR} {BEFORE_FACT} {AFTER_FACT} {BEFORE_QUESTION} {AFTER_QUESTION} {TAKEN_BACK} {SAME_AS} {OF_OTHERS} {ASKED_OF_OTHERS} {clauses.wording()} {roles.wording()} {memories.wording()} {talks.wording()} {SCENES} {PAGES} {said} {NOTED} {NO_IDEA} {CANNOT}"
