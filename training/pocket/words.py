"""Words, names and numbers of the pocket model's training text, split into a training and a held-out set.

`Draw` draws the pieces of a sample for one of the two sets, which never share a name, word, label, phrase or number:

* a made-up or listed word is held out if `is_held(word)`: one word in six, by its checksum;
* a number of two digits or more is held out by the same rule, a year if it is in `HELD_YEARS`;
* a phrase is held out if it is in the `held` half of its `Phrases`.

Numbers below 10 and function words are shared, as they are not copied.
"""

# Word lists and phrases are long lines and strings that are split into words.
# ruff: noqa: E501, SIM905

import datetime
import functools
import random
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

HELD_YEARS = (1993, 2004, 2016, 2023, 2031)
_YEARS = range(1985, 2045)


class Phrases(NamedTuple):
    """Sentence templates with `str.format` fields, for training and held out."""

    train: tuple[str, ...]
    held: tuple[str, ...]


def is_held(word: str) -> bool:
    """Whether a word, name or number is held out (one in six)."""
    return zlib.crc32(word.lower().encode()) % 6 == 0


FIRST_NAMES = tuple(
    """Ada Adam Alice Amir Anna Arun Ben Bella Boris Carla Carlos Chen Clara Dana Daniel David Diego Ella Emil Emma Eric
    Eva Fatima Felix Finn Frida George Grace Hana Hanna Hassan Helen Hugo Ida Igor Ines Ivan Jack Jacob James Jana Jane
    Jasper John Jonas Julia Karim Kate Kenji Lara Laura Lena Leo Liam Lina Lucas Lucy Maria Mark Marta Mary Mateo Maya
    Mei Mia Milan Mina Mohamed Nadia Nils Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Peter Petra Priya Rania Rosa
    Ruth Sam Samir Sara Sofia Sven Tara Theo Tom Vera Victor Wei Yara Yuki Zoe""".split()
)
LAST_NAMES = tuple(
    """Adler Baker Bauer Brown Carter Castro Cohen Costa Cruz Dubois Evans Fischer Garcia Green Haas Hansen Hill Ito Jansen
    Jones Kaur Keller Khan Kim Klein Kumar Larsen Lee Lopez Martin Meyer Mori Moreau Novak Okafor Olsen Patel Perez
    Petrov Reed Rossi Sato Schmidt Silva Singh Smith Stone Tanaka Torres Turner Vogel Walker Weber White Wong Young""".split()
)
CITIES = tuple(
    """Accra Amsterdam Athens Austin Berlin Bern Bogota Boston Brussels Cairo Chicago Copenhagen Dakar Delhi Denver Dublin
    Geneva Hamburg Hanoi Havana Helsinki Istanbul Jakarta Kyoto Lagos Lima Lisbon London Lyon Madrid Manila Milan Munich
    Nairobi Naples Osaka Oslo Paris Porto Prague Quito Riga Rome Seattle Seoul Sofia Stockholm Sydney Tokyo Toronto Tunis
    Turin Utrecht Vienna Warsaw Zagreb Zurich""".split()
)
ITEMS = tuple(
    """lamp desk chair table pen pencil book bag box bottle mug plate spoon knife bowl clock mirror carpet pillow blanket
    towel brush comb candle basket bucket ladder hammer screw nail rope chain wheel tent kettle pan pot oven fan heater
    radio camera phone tablet screen cable battery printer keyboard helmet glove scarf jacket shirt sock shoe boot hat belt
    ring watch wallet ticket stamp card notebook folder poster map globe puzzle kite drum flute violin guitar apple pear
    lemon melon onion carrot potato tomato cookie muffin sandwich coin brick tile plank marble ribbon button needle""".split()
)
JOBS = tuple(
    """baker teacher nurse doctor farmer painter driver pilot lawyer singer dancer writer tailor plumber gardener carpenter
    chemist engineer librarian waiter cook judge sailor mechanic dentist clerk florist potter miner weaver""".split()
)
COLOURS = tuple("red blue green yellow black white orange purple brown grey pink silver golden violet".split())
ANIMALS = tuple("cat dog horse parrot rabbit hamster turtle goat pony canary lizard goose".split())
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
EVENTS = tuple(
    """concert workshop meeting lecture exhibition picnic wedding seminar festival dinner race auction parade rehearsal
    conference reading""".split()
)
LABELS = tuple(
    """alpha beta gamma delta north south east west urgent normal spam ham positive negative neutral accept reject open
    closed sports music travel food weather money health school science garden animal history work home fun bug feature
    question praise complaint order refund billing support sales yes no good bad high low left right oak pine elm maple
    iron copper zinc ruby pearl amber jade comet planet star moon river lake hill valley""".split()
)
TOPICS = {
    "food": "soup bread cheese pasta rice salad sauce butter pepper garlic stew noodles pancake omelette dumpling pizza cake pie honey",
    "sport": "goal referee stadium tennis football coach league match racket sprint marathon trophy medal hockey goalkeeper penalty",
    "music": "song melody piano orchestra singer chorus rhythm album choir trumpet symphony lyrics concerto cello opera tune",
    "travel": "airport flight hotel luggage passport tourist train ferry visa suitcase cruise hostel itinerary boarding beach map",
    "weather": "rain storm snow cloud thunder fog hail breeze sunshine drizzle blizzard lightning frost humidity forecast gale",
    "money": "bank loan invoice tax salary budget interest mortgage stock dividend payment currency debt savings credit receipt",
    "health": "doctor fever medicine hospital vaccine cough surgery patient nurse clinic headache bandage diagnosis allergy pill",
    "school": "teacher homework exam lesson pupil classroom essay grade textbook spelling semester blackboard quiz lecture tutor",
    "computers": "server software keyboard browser laptop password compiler database monitor router download firmware kernel cache",
    "garden": "seed flower soil tulip hedge compost lawn rake shovel rose weeds orchard greenhouse pruning watering daisy",
    "animals": "lion elephant tiger giraffe wolf zebra monkey bear kangaroo otter whale penguin leopard camel hippo dolphin",
    "cars": "engine brake tyre gearbox clutch garage windscreen bumper petrol steering mechanic headlight exhaust mileage bonnet",
    "space": "rocket astronaut orbit galaxy telescope comet asteroid satellite spaceship nebula lunar eclipse shuttle mars",
    "house": "roof kitchen bedroom window ceiling stairs bathroom sofa balcony wallpaper attic fireplace cellar curtain chimney",
    "law": "judge court lawyer verdict trial witness jury contract crime evidence prison sentence appeal police attorney",
    "clothes": "shirt dress trousers scarf jacket sweater skirt socks collar sleeve zipper coat blouse fabric pyjamas",
}
GOOD = tuple(
    "great excellent lovely wonderful brilliant delightful superb pleasant perfect charming fantastic helpful".split()
)
BAD = tuple("awful terrible horrible dreadful boring broken disappointing useless poor nasty dull annoying".split())

ASIDES = (
    "Hi! {q}",
    "OK. {q}",
    "Now: {q}",
    "{q} Thanks!",
    "Please: {q}",
    "Next question: {q}",
    "Tell me: {q}",
    "And {q}",
    "Well, {q}",
    "{q} Please.",
    "I ask you: {q}",
    "Another one: {q}",
)
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_CONTENT = re.compile(r"(?<![{\w])[A-Za-z]{4,}(?![}\w])")
# Words that distinguish values or say what to do with them; without them a phrase means something else.
KEPT = frozenset(
    """with from years year aged euros euro grams gram seats people order number email what which when where does have
    many much more plus minus times over less divided multiplied added days date before after between table prices price
    stock cost costs each together total left remain remains equally percent share shares split sells sold gives away
    lost loses gets bought buys rows boxes bags than then this that there these those first called named name fields
    json text extract schema answer will were been into until later back today sum product difference""".split()
)
_ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl pr sh sl st th tr ch qu".split()
_VOWELS = "a e i o u a e i o ai ea ou".split()
_CODAS = ["", "", "", "l", "n", "r", "t", "m", "k", "nd", "th", "sk", "x"]  # no ending looks like a plural
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@functools.cache
def split(words: tuple[str, ...], held: bool) -> tuple[str, ...]:
    """The training or the held-out part of a word list (at least two words each)."""
    chosen = tuple(w for w in words if is_held(w) == held)
    assert len(chosen) > 1, words[:3]
    return chosen


@functools.cache
def _numbers(low: int, high: int, held: bool) -> tuple[int, ...]:
    """The numbers of [low, high] in this half of the split; all numbers of the range if this half has none."""
    inside = [n for n in range(low, high + 1) if n < 10 or is_held(str(n)) == held]
    return tuple(inside) or tuple(range(low, high + 1))


class Draw:
    """A seeded source of the pieces of a sample, from the training half or the held-out half."""

    def __init__(self, seed: int | str, *, held: bool = False) -> None:
        self.rng = random.Random(f"{seed}-{held}")
        self.held = held

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, things: Sequence[T]) -> T:
        return things[int(self.rng.random() * len(things))]

    def some(self, things: Sequence[T], n: int) -> list[T]:
        return self.rng.sample(list(things), n)

    def say(self, phrases: Phrases, **fields: object) -> str:
        """A phrase of this half with its fields filled in."""
        return self.pick(phrases.held if self.held else phrases.train).format(**fields)

    def vary(self, phrase: str) -> str:
        """Expands `phrase`: chooses one part of each `[a|b|c]` in it, innermost first."""
        while (changed := _CHOICE.sub(lambda found: self.pick(found[1].split("|")), phrase)) != phrase:
            phrase = changed
        return phrase

    def said(self, phrases: Phrases, ways: Sequence[str], **fields: object) -> str:
        """A phrase of this half; in training mostly an expansion of one of `ways` that is not held out."""
        if self.held:
            return self.say(phrases, **fields)
        phrase = self.pick(phrases.train)
        if self.chance(0.55):
            while (phrase := self.vary(self.pick(ways))) in phrases.held:
                pass
        return self.strange(phrase).format(**fields)

    def strange(self, phrase: str) -> str:
        """In training, sometimes replaces dispensable words of a phrase by made-up ones.

        A model that only knows the words of the training phrases would take an unknown verb for a value.
        """
        if self.held or not self.chance(0.2):
            return phrase

        def other(found: re.Match[str]) -> str:
            if found[0].lower() in KEPT or not self.chance(0.4):
                return found[0]
            word = self.word() + ("s" if found[0].endswith("s") else "")
            return word.capitalize() if found[0][0].isupper() else word

        return _CONTENT.sub(other, phrase)

    def asked(self, question: str) -> str:
        """In training, sometimes adds words before or after a question."""
        if self.held or self.chance(0.7):
            return question
        return self.pick(ASIDES).format(q=question)

    def listed(self, words: tuple[str, ...]) -> str:
        """A word of the list, from this half."""
        return self.pick(split(words, self.held))

    def mixed(self, words: tuple[str, ...]) -> str:
        """A word of the list or, as often, a made-up one, so that values must be copied and cannot be guessed."""
        return self.listed(words) if self.chance(0.5) else self.word()

    def word(self) -> str:
        """A made-up lower-case word of 2-3 syllables, such as `drenalo`."""
        while True:
            n = 2 if self.rng.random() < 0.7 else 3
            word = "".join(self.pick(_ONSETS) + self.pick(_VOWELS) for _ in range(n)) + self.pick(_CODAS)
            if is_held(word) == self.held:
                return word

    def name(self) -> str:
        return self.listed(FIRST_NAMES) if self.chance(0.3) else self.word().capitalize()

    def full_name(self) -> str:
        last = self.listed(LAST_NAMES) if self.chance(0.3) else self.word().capitalize()
        return f"{self.name()} {last}"

    def city(self) -> str:
        return self.listed(CITIES) if self.chance(0.4) else self.word().capitalize()

    def item(self) -> str:
        return self.mixed(ITEMS)

    def label(self) -> str:
        return self.listed(LABELS) if self.chance(0.4) else self.word()

    def distinct(self, make: "str", n: int) -> list[str]:
        """n different results of the method `make`."""
        found: dict[str, None] = {}
        while len(found) < n:
            found[getattr(self, make)()] = None
        return list(found)

    def number(self, low: int, high: int) -> int:
        return self.pick(_numbers(low, high, self.held))

    def amount(self) -> int:
        """A whole number of one to four digits."""
        low, high = self.pick(((2, 9), (10, 99), (10, 99), (100, 999), (1000, 9999)))
        return self.number(low, high)

    def decimal(self) -> str:
        """A number with one or two decimals, such as `12.5`."""
        whole = self.number(*self.pick(((1, 9), (10, 99), (100, 999))))
        return f"{whole}.{self.pick('123456789')}" if self.chance(0.6) else f"{whole}.{self.pick('0123456789')}5"

    def value(self) -> str:
        return self.decimal() if self.chance(0.25) else str(self.amount())

    def code(self) -> str:
        letters = "".join(self.pick(_LETTERS) for _ in range(self.pick((1, 2, 2, 3))))
        digits = "".join(self.pick("0123456789") for _ in range(self.pick((2, 3, 4, 4))))
        code = f"{letters}-{digits}" if self.chance(0.6) else f"{letters}{digits}"
        return code if is_held(code) == self.held else self.code()

    def digits(self, n: int) -> str:
        text = "".join(self.pick("0123456789") for _ in range(n))
        return text if is_held(text) == self.held else self.digits(n)

    def date(self) -> str:
        """An ISO date; the years of `HELD_YEARS` are held out."""
        year = self.pick(HELD_YEARS) if self.held else self.pick([y for y in _YEARS if y not in HELD_YEARS])
        return (datetime.date(year, 1, 1) + datetime.timedelta(days=self.rng.randrange(365))).isoformat()

    def time(self) -> str:
        return f"{self.rng.randrange(7, 23):02d}:{self.pick(('00', '05', '10', '15', '20', '30', '40', '45', '50'))}"
