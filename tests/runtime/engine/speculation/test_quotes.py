"""Quotes: what an output copies of its prompt is foreseen where it begins, by what others copied there from theirs."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime import config as configs
from banyan.runtime.engine.process import build
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation import quotes
from banyan.runtime.engine.speculation.quotes import QuoteIndex, QuoteState, RuleSet
from banyan.runtime.engine.speculation.tree import QUOTED, TreeDrafter
from banyan.runtime.model import pocket
from banyan.runtime.protocol.wire import ConstraintSpec, Run, Sampling
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer
from pocket.chat import render
from pocket.data import samples

SAMPLING = Sampling(max_tokens=10_000)
WORDS = (
    *("the", " order", " of", " has", " lives", " in", ".", '"name":', ' "', '",', '"}', "{", '"city":', "<end>"),
    *(f"{space}{name}" for name in ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Rome", "Oslo", "Lima", "Bonn", "Kiew")
      for space in ("", " ")),
)  # fmt: skip
SPELLING = [word.encode() for word in WORDS]
END = WORDS.index("<end>")


def ids(text: str) -> list[int]:
    """Words, with a bar before each: "the| order| of"."""
    return [WORDS.index(word) for word in text.split("|")]


def told() -> TreeDrafter:
    tree = TreeDrafter()
    tree.set_vocabulary(SPELLING, [END])
    return tree


def begun(fake: ModuleType, prompt: Sequence[int], said: Sequence[int], rid: int = 0, **fields: Any) -> Request:
    r = Request(fake.run(rid, prompt, SAMPLING, **fields), 1 << 20)
    r.n_cached = 0
    r.extend(said)
    r.guide = fake.Pattern([None] * 100)
    return r


def teach(fake: ModuleType, tree: TreeDrafter, text: str, said: str, rid: int, **fields: Any) -> None:
    tree.end(begun(fake, ids(text), ids(said), rid, **fields))


def foreseen(tree: TreeDrafter, r: Request, n: int = 16) -> list[int]:
    """What is proposed as a quote."""
    return [token for proposal in tree.propose(r, n) if proposal.kind == QUOTED for token in proposal.tokens]


ORDER, SAYS = "the| order| of| {}| has| Rome", '{{|"name":| "|{}|"}}'


def test_a_quote_is_foreseen_by_what_stands_beside_it(fake: ModuleType) -> None:
    tree = told()
    new = begun(fake, ids(ORDER.format("Flo")), ids('{|"name":'), 9)
    assert foreseen(tree, new) == []
    teach(fake, tree, ORDER.format("Ada"), SAYS.format("Ada"), 0)
    assert foreseen(tree, new) == ids(' "|Flo|"}'), "one text is enough; and a word in prose begins with a space"
    teach(fake, tree, "the| order| of| Bo| has| Oslo", SAYS.format("Bo"), 1)
    teach(fake, tree, "the| order| of| Cy| has| Oslo| Oslo", SAYS.format("Cy"), 2)
    assert foreseen(tree, begun(fake, ids("the| order| of| Flo| Di| has"), ids('{|"name":'), 10)) == ids(
        ' "|Flo| Di|"}'
    ), "of any length"
    inside = begun(fake, ids(ORDER.format("Ed")), ids('{|"name":| "'), 11)
    assert foreseen(tree, inside) == ids('Ed|"}'), "also where its quotation mark is there already"


def test_of_two_places_the_last_is_quoted(fake: ModuleType) -> None:
    tree = told()
    for rid, name in enumerate(("Ada", "Bo")):
        teach(fake, tree, ORDER.format(name), SAYS.format(name), rid)
    text = f"{ORDER.format('Cy')}|<end>|{ORDER.format('Di')}"
    assert foreseen(tree, begun(fake, ids(text), ids('{|"name":'), 9)) == ids(' "|Di|"}')


def test_a_quote_ends_where_it_did_before(fake: ModuleType) -> None:
    """Before the first place of what stood behind it; or before the last, where quotes had that in themselves."""
    new = ids("the| order| of| Flo| has| Di| has| Lima")
    for between, said in (("", ' "|Flo|"}'), ("| has| Cy", ' "|Flo| has| Di|"}')):
        tree = told()
        for rid, (name, city) in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Ed", "Bonn"))):
            text = f"the| order| of| {name}{between}| has| {city}"
            teach(fake, tree, text, f'{{|"name":| "|{name}{between}|"}}', rid)
        assert foreseen(tree, begun(fake, new, ids('{|"name":'), 9)) == ids(said)


def test_rules_agree_on_what_several_texts_have(fake: ModuleType) -> None:
    """What differs from text to text is no part of a rule: neither names beside a value, nor which came before."""
    tree = told()
    for rid, (name, city) in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Cy", "Lima"))):
        teach(fake, tree, f"the| {name}| lives| in| {city}|.", f'{{|"city":| "|{city}|"}}', rid)
    new = begun(fake, ids("| ".join(("the", "Ed", "Di", "lives", "in", "Bonn")) + "|."), ids('{|"city":'), 9)
    assert foreseen(tree, new) == ids(' "|Bonn|"}')
    elsewhere = begun(fake, ids("the| Ed| has| Bonn| Oslo"), ids('{|"city":'), 10)
    assert foreseen(tree, elsewhere) == []


def test_a_text_that_says_the_same_and_more_is_gone_on_with(fake: ModuleType) -> None:
    tree = told()
    longer = '{{|"name":| "|{0}|",|"city":| "|Rome|",|"name":| "|{0}|"}}'
    for rid, name in enumerate(("Ada", "Bo")):
        teach(fake, tree, ORDER.format(name), longer.format(name), rid)
    again = begun(fake, ids(ORDER.format("Bo")), ids('{|"name":'), 9)
    assert list(tree.propose(again, 16)[0].tokens) == ids(longer.format("Bo"))[2:]
    other = begun(fake, ids(ORDER.format("Cy")), ids('{|"name":'), 10)
    assert foreseen(tree, other) == ids(' "|Cy|",'), "where they differ the own prompt is likelier"


def test_nothing_of_another_namespace_is_told(fake: ModuleType) -> None:
    tree = told()
    teach(fake, tree, ORDER.format("Ada"), SAYS.format("Ada"), 0, namespace=b"a")
    prompt, said = ids(ORDER.format("Flo")), ids('{|"name":')
    assert foreseen(tree, begun(fake, prompt, said, 1, namespace=b"b")) == []
    assert foreseen(tree, begun(fake, prompt, said, 2, namespace=b"a")) != []


def test_a_mark_between_turns_is_in_no_quote(fake: ModuleType) -> None:
    tree = told()
    teach(fake, tree, ORDER.format("Ada"), SAYS.format("Ada"), 0)
    assert foreseen(tree, begun(fake, ids("the| order| of| Bo|<end>| Di| has"), ids('{|"name":'), 1)) == []


def test_what_is_wrong_again_and_again_is_seldom_proposed(fake: ModuleType) -> None:
    tree, n_proposed = told(), 0
    teach(fake, tree, ORDER.format("Ada"), SAYS.format("Ada"), 0)
    for rid in range(1, 2 * quotes.RARELY):
        r = begun(fake, ids(ORDER.format("Flo")), ids('{|"name":'), rid)
        n_proposed += bool(foreseen(tree, r))
        r.extend(ids(' "|Di'))  # in no prompt
        tree.propose(r, 8)
        tree._readers.pop(rid)
    assert 2 < n_proposed < 8


def test_rules_are_bounded(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "N_KEYS", 20)
    tree, chance = TreeDrafter(), random.Random(0)
    for rid in range(50):
        prompt = [chance.randrange(1000) for _ in range(60)]
        tree.end(begun(fake, prompt, [*prompt[10:14], 5, *prompt[30:33], 6, *prompt[40:44], 7], rid))
    assert len(tree._quotes._rules) == 20
    assert all(len(rules.items) <= quotes.N_RULES for rules in tree._quotes._rules.values())


def test_a_quote_stands_in_the_prompt(fake: ModuleType) -> None:
    """Whatever the rules: what is found is a run of the prompt, if not for the space of its first token. Few tokens, so
    that all stand everywhere."""
    chance, made, n_found = random.Random(1), QuoteIndex(), 0
    made.set_vocabulary([b"a", b" a", b"b", b" b", b"c", b"1", b" ", b","], ())
    for rid in range(300):
        prompt = [chance.randrange(8) for _ in range(chance.randrange(2, 40))]
        r = begun(fake, prompt, [chance.randrange(8) for _ in range(chance.randrange(30))], rid)
        quoting = QuoteState(r)
        quote = made.find(r.ids[-3:], quoting, b"")
        if quote is not None:
            n_found += 1
            run = list(quote.tokens[quote.n_lead :])
            runs = [prompt[i : i + len(run)] for i in range(len(prompt))]
            plain = {1: 0, 3: 2}
            assert any(found == run or [plain.get(found[0], found[0]), *found[1:]] == run for found in runs)
        made.learn(r.ids, r.n_prompt, b"")
    assert n_found > 100


def test_a_constraint_says_what_stands_between_quotes(fake: ModuleType) -> None:
    """Value, forced text and the next value are one draft; the guide stands where it stood."""
    tree = told()
    text, said = "the| order| of| {}| has| lives| in| {}|.", '{{|"name":| "|{}|",|"city":| "|{}|"}}'
    for rid, pair in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Cy", "Lima"))):
        teach(fake, tree, text.format(*pair), said.format(*pair), rid)
    form = [*ids(' "'), None, *ids('",|"city":| "'), None, *ids('"}')]
    r = begun(fake, ids(text.format("Ed", "Kiew")), ids('{|"name":'), 9)
    r.guide = fake.Pattern(form)
    assert foreseen(tree, r) == ids(' "|Ed|",|"city":| "|Kiew|"}')
    assert r.guide.at == 0
    (whole,) = tree.propose(r, 16)
    assert whole.uncertain == [1, 2, 5, 6], "where a quote begins and where it ends"
    assert tree.propose(r, 6)[0].uncertain == [1, 2, 5]
    r.guide.accept(whole.tokens[:3])
    r.extend(whole.tokens[:3])
    (rest,) = tree.propose(r, 16)
    assert (rest.tokens, rest.uncertain) == (whole.tokens[3:], [2, 3])
    teach(fake, tree, ORDER.format("Di"), SAYS.format("Di"), 3)
    r = begun(fake, ids(text.format("Ed", "Kiew")), ids('{|"name":'), 10)
    r.guide = fake.Pattern([*ids(' "'), None, *ids('",')])
    assert foreseen(tree, r) == ids(' "|Ed|",'), "of what came behind such quotes, what the constraint has"


def test_of_a_quote_that_is_too_long_the_constraint_has_a_part(fake: ModuleType) -> None:
    """Of "63 euros" a number takes 63; and the draft goes on behind that."""
    tree = told()
    text, record = "the| order| of| {}| has| lives| in| {}|.", '{{|"name":| "|{}|",|"city":| "|{}|"}}'
    for rid, pair in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Cy", "Lima"))):
        teach(fake, tree, text.format(*pair), record.format(*pair), rid)
    r = begun(fake, ids(text.format("Ed| Flo", "Kiew")), ids('{|"name":'), 9)
    r.guide = fake.Pattern([*ids(' "'), None, *ids('",|"city":| "'), None, *ids('"}')])
    (chain,) = tree.propose(r, 16)
    assert (list(chain.tokens), chain.uncertain) == (ids(' "|Ed|",|"city":| "|Kiew|"}'), [1, 2, 5, 6])
    r = begun(fake, ids(text.format("Ed", "Kiew")), ids('{|"name":'), 10)
    r.guide = fake.Pattern([*ids(' "|",'), None])
    said, uncertain = tree._quotes.propose(QuoteState(r), r, 16, 0.5)
    assert (list(said), uncertain, r.guide.at) == (ids(' "'), [], 0), (
        "nothing of the quote: nobody knows what comes next"
    )


def test_records_of_rules() -> None:
    rules = RuleSet()
    assert rules.is_worth(quotes.FIRST_RATE)
    rules.judge(False)
    assert not rules.is_worth(quotes.FIRST_RATE)
    for _ in range(4):
        rules.judge(True)
    assert rules.is_worth(quotes.FIRST_RATE)


def test_records_of_the_pocket_model_are_the_same_and_take_fewer_steps() -> None:
    """New texts under a JSON Schema: token for token what is said without drafts, with most of it foreseen."""
    directory = pocket.path()
    tokenizer = Tokenizer(directory, Files.read(directory))
    (end,) = tokenizer.encode([TextSpan("<|im_end|>", meant=True)])

    def said(speculate: str) -> tuple[list[list[int]], int]:
        made = configs.make(device="cpu", threads=1, kv_memory="32MB", speculate=speculate, max_running=4)
        e = build(made)
        e.take(tokenizer.vocabulary())
        out: dict[int, list[int]] = {}
        n_steps = 0
        for seed in (0, 1):
            for sample in samples("json", 8, seed):
                known = json.loads(sample.messages[-1]["content"])
                kinds = {int: "integer", float: "number", str: "string", bool: "boolean"}
                schema = {
                    "type": "object",
                    "properties": {key: {"type": kinds[type(value)]} for key, value in known.items()},
                    "required": list(known),
                    "additionalProperties": False,
                }
                text = "".join(span.text for span in render(sample.messages[:-1], sample.tools))
                prompt = tokenizer.encode([TextSpan(f"{text}<|im_start|>assistant\n", meant=True)])
                sampling = Sampling(max_tokens=96, constraint=ConstraintSpec("json_schema", json.dumps(schema)))
                rid = len(out)
                out[rid] = []
                e.take(Run(rid, array("i", prompt).tobytes(), sampling, array("i", [end]).tobytes(), order=(rid,)))
            n_left, n_before = 8, e.scheduler.counts["steps"]
            while n_left:
                step = e.step()
                said = iter(array("i", step.ids))
                for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
                    out[rid] += [next(said) for _ in range(n)]
                n_left -= len(step.finished)
                assert not e.failed
            n_steps = e.scheduler.counts["steps"] - n_before
        return list(out.values()), n_steps

    (plain, n_plain), (drafted, n_drafted) = said("off"), said("tree,grammar")
    assert drafted == plain
    assert n_drafted < n_plain / 2
