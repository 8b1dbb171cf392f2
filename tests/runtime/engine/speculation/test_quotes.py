"""Quote drafts: spans that an output copies from its prompt, predicted from where other outputs copied theirs."""

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
    """Token ids of words separated by bars: "the| order| of"."""
    return [WORDS.index(word) for word in text.split("|")]


def make_tree() -> TreeDrafter:
    tree = TreeDrafter()
    tree.set_vocabulary(SPELLING, [END])
    return tree


def started(fake: ModuleType, prompt: Sequence[int], output: Sequence[int], rid: int = 0, **fields: Any) -> Request:
    r = Request(fake.run(rid, prompt, SAMPLING, **fields), 1 << 20)
    r.n_cached = 0
    r.extend(output)
    r.guide = fake.Pattern([None] * 100)
    return r


def learn(fake: ModuleType, tree: TreeDrafter, text: str, output: str, rid: int, **fields: Any) -> None:
    tree.end(started(fake, ids(text), ids(output), rid, **fields))


def quoted(tree: TreeDrafter, r: Request, n: int = 16) -> list[int]:
    """The tokens that are proposed as quotes."""
    return [token for proposal in tree.propose(r, n) if proposal.kind == QUOTED for token in proposal.tokens]


ORDER, RECORD = "the| order| of| {}| has| Rome", '{{|"name":| "|{}|"}}'


def test_quote_is_proposed_from_its_context(fake: ModuleType) -> None:
    tree = make_tree()
    new = started(fake, ids(ORDER.format("Flo")), ids('{|"name":'), 9)
    assert quoted(tree, new) == []
    learn(fake, tree, ORDER.format("Ada"), RECORD.format("Ada"), 0)
    assert quoted(tree, new) == ids(' "|Flo|"}'), "one text suffices; the leading space is dropped"
    learn(fake, tree, "the| order| of| Bo| has| Oslo", RECORD.format("Bo"), 1)
    learn(fake, tree, "the| order| of| Cy| has| Oslo| Oslo", RECORD.format("Cy"), 2)
    assert quoted(tree, started(fake, ids("the| order| of| Flo| Di| has"), ids('{|"name":'), 10)) == ids(
        ' "|Flo| Di|"}'
    ), "quotes may have any length"
    inside = started(fake, ids(ORDER.format("Ed")), ids('{|"name":| "'), 11)
    assert quoted(tree, inside) == ids('Ed|"}'), "also after its opening quotation mark"


def test_last_of_two_matches_is_quoted(fake: ModuleType) -> None:
    tree = make_tree()
    for rid, name in enumerate(("Ada", "Bo")):
        learn(fake, tree, ORDER.format(name), RECORD.format(name), rid)
    text = f"{ORDER.format('Cy')}|<end>|{ORDER.format('Di')}"
    assert quoted(tree, started(fake, ids(text), ids('{|"name":'), 9)) == ids(' "|Di|"}')


def test_quote_ends_at_the_learned_boundary(fake: ModuleType) -> None:
    """Before the first match of the context that follows, or before the last match if quotes contained that context."""
    new = ids("the| order| of| Flo| has| Di| has| Lima")
    for between, output in (("", ' "|Flo|"}'), ("| has| Cy", ' "|Flo| has| Di|"}')):
        tree = make_tree()
        for rid, (name, city) in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Ed", "Bonn"))):
            text = f"the| order| of| {name}{between}| has| {city}"
            learn(fake, tree, text, f'{{|"name":| "|{name}{between}|"}}', rid)
        assert quoted(tree, started(fake, new, ids('{|"name":'), 9)) == ids(output)


def test_rules_keep_only_context_shared_by_texts(fake: ModuleType) -> None:
    """Context that differs between texts is not part of a rule."""
    tree = make_tree()
    for rid, (name, city) in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Cy", "Lima"))):
        learn(fake, tree, f"the| {name}| lives| in| {city}|.", f'{{|"city":| "|{city}|"}}', rid)
    new = started(fake, ids("| ".join(("the", "Ed", "Di", "lives", "in", "Bonn")) + "|."), ids('{|"city":'), 9)
    assert quoted(tree, new) == ids(' "|Bonn|"}')
    elsewhere = started(fake, ids("the| Ed| has| Bonn| Oslo"), ids('{|"city":'), 10)
    assert quoted(tree, elsewhere) == []


def test_longer_equal_text_is_continued(fake: ModuleType) -> None:
    tree = make_tree()
    longer = '{{|"name":| "|{0}|",|"city":| "|Rome|",|"name":| "|{0}|"}}'
    for rid, name in enumerate(("Ada", "Bo")):
        learn(fake, tree, ORDER.format(name), longer.format(name), rid)
    again = started(fake, ids(ORDER.format("Bo")), ids('{|"name":'), 9)
    assert list(tree.propose(again, 16)[0].tokens) == ids(longer.format("Bo"))[2:]
    other = started(fake, ids(ORDER.format("Cy")), ids('{|"name":'), 10)
    assert quoted(tree, other) == ids(' "|Cy|",'), "the request's own prompt is preferred where texts differ"


def test_quotes_separate_namespaces(fake: ModuleType) -> None:
    tree = make_tree()
    learn(fake, tree, ORDER.format("Ada"), RECORD.format("Ada"), 0, namespace=b"a")
    prompt, output = ids(ORDER.format("Flo")), ids('{|"name":')
    assert quoted(tree, started(fake, prompt, output, 1, namespace=b"b")) == []
    assert quoted(tree, started(fake, prompt, output, 2, namespace=b"a")) != []


def test_quote_contains_no_turn_marker(fake: ModuleType) -> None:
    tree = make_tree()
    learn(fake, tree, ORDER.format("Ada"), RECORD.format("Ada"), 0)
    assert quoted(tree, started(fake, ids("the| order| of| Bo|<end>| Di| has"), ids('{|"name":'), 1)) == []


def test_repeatedly_wrong_quotes_are_rarely_proposed(fake: ModuleType) -> None:
    tree, n_proposed = make_tree(), 0
    learn(fake, tree, ORDER.format("Ada"), RECORD.format("Ada"), 0)
    for rid in range(1, 2 * quotes.RARELY):
        r = started(fake, ids(ORDER.format("Flo")), ids('{|"name":'), rid)
        n_proposed += bool(quoted(tree, r))
        r.extend(ids(' "|Di'))  # not in the prompt
        tree.propose(r, 8)
        tree._readers.pop(rid)
    assert 2 < n_proposed < 8


def test_rules_are_bounded(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "N_KEYS", 20)
    tree, rng = TreeDrafter(), random.Random(0)
    for rid in range(50):
        prompt = [rng.randrange(1000) for _ in range(60)]
        tree.end(started(fake, prompt, [*prompt[10:14], 5, *prompt[30:33], 6, *prompt[40:44], 7], rid))
    assert len(tree._quotes._rules) == 20
    assert all(len(rules.items) <= quotes.N_RULES for rules in tree._quotes._rules.values())


def test_quote_is_a_span_of_the_prompt(fake: ModuleType) -> None:
    """Except for a leading space of its first token. The vocabulary is small, so that matches are frequent."""
    rng, index, n_found = random.Random(1), QuoteIndex(), 0
    index.set_vocabulary([b"a", b" a", b"b", b" b", b"c", b"1", b" ", b","], ())
    for rid in range(300):
        prompt = [rng.randrange(8) for _ in range(rng.randrange(2, 40))]
        r = started(fake, prompt, [rng.randrange(8) for _ in range(rng.randrange(30))], rid)
        quoting = QuoteState(r)
        quote = index.find(r.ids[-3:], quoting, b"")
        if quote is not None:
            n_found += 1
            run = list(quote.tokens[quote.n_lead :])
            runs = [prompt[i : i + len(run)] for i in range(len(prompt))]
            plain = {1: 0, 3: 2}
            assert any(found == run or [plain.get(found[0], found[0]), *found[1:]] == run for found in runs)
        index.learn(r.ids, r.n_prompt, b"")
    assert n_found > 100


def test_constraint_supplies_text_between_quotes(fake: ModuleType) -> None:
    """A value, the forced text behind it and the next value form one draft. The guide is rolled back."""
    tree = make_tree()
    text, output = "the| order| of| {}| has| lives| in| {}|.", '{{|"name":| "|{}|",|"city":| "|{}|"}}'
    for rid, pair in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Cy", "Lima"))):
        learn(fake, tree, text.format(*pair), output.format(*pair), rid)
    form = [*ids(' "'), None, *ids('",|"city":| "'), None, *ids('"}')]
    r = started(fake, ids(text.format("Ed", "Kiew")), ids('{|"name":'), 9)
    r.guide = fake.Pattern(form)
    assert quoted(tree, r) == ids(' "|Ed|",|"city":| "|Kiew|"}')
    assert r.guide.at == 0
    (whole,) = tree.propose(r, 16)
    assert whole.uncertain == [1, 2, 5, 6], "the start and end of each quote"
    assert tree.propose(r, 6)[0].uncertain == [1, 2, 5]
    r.guide.accept(whole.tokens[:3])
    r.extend(whole.tokens[:3])
    (rest,) = tree.propose(r, 16)
    assert (rest.tokens, rest.uncertain) == (whole.tokens[3:], [2, 3])
    learn(fake, tree, ORDER.format("Di"), RECORD.format("Di"), 3)
    r = started(fake, ids(text.format("Ed", "Kiew")), ids('{|"name":'), 10)
    r.guide = fake.Pattern([*ids(' "'), None, *ids('",')])
    assert quoted(tree, r) == ids(' "|Ed|",'), "the learned continuation, as far as the constraint allows it"


def test_constraint_truncates_a_long_quote(fake: ModuleType) -> None:
    """It takes only what the constraint allows, as a number takes 63 of "63 euros", and the draft goes on behind it."""
    tree = make_tree()
    text, record = "the| order| of| {}| has| lives| in| {}|.", '{{|"name":| "|{}|",|"city":| "|{}|"}}'
    for rid, pair in enumerate((("Ada", "Rome"), ("Bo", "Oslo"), ("Cy", "Lima"))):
        learn(fake, tree, text.format(*pair), record.format(*pair), rid)
    r = started(fake, ids(text.format("Ed| Flo", "Kiew")), ids('{|"name":'), 9)
    r.guide = fake.Pattern([*ids(' "'), None, *ids('",|"city":| "'), None, *ids('"}')])
    (chain,) = tree.propose(r, 16)
    assert (list(chain.tokens), chain.uncertain) == (ids(' "|Ed|",|"city":| "|Kiew|"}'), [1, 2, 5, 6])
    r = started(fake, ids(text.format("Ed", "Kiew")), ids('{|"name":'), 10)
    r.guide = fake.Pattern([*ids(' "|",'), None])
    output, uncertain = tree._quotes.propose(QuoteState(r), r, 16, 0.5)
    assert (list(output), uncertain, r.guide.at) == (ids(' "'), [], 0), "the quote is not allowed, so the draft ends"


def test_rule_is_used_while_its_record_is_good() -> None:
    rules = RuleSet()
    assert rules.is_worth(quotes.FIRST_RATE)
    rules.judge(False)
    assert not rules.is_worth(quotes.FIRST_RATE)
    for _ in range(4):
        rules.judge(True)
    assert rules.is_worth(quotes.FIRST_RATE)


@pytest.mark.long
def test_pocket_model_json_is_unchanged_in_half_the_steps() -> None:
    """With drafts, outputs under a JSON Schema are the same and take less than half the steps, though their texts are
    new."""
    directory = pocket.path()
    tokenizer = Tokenizer(directory, Files.read(directory))
    (end,) = tokenizer.encode([TextSpan("<|im_end|>", meant=True)])

    def generate(speculate: str) -> tuple[list[list[int]], int]:
        config = configs.make(device="cpu", threads=1, kv_memory="32MB", speculate=speculate, max_running=4)
        e = build(config)
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
                ids = iter(array("i", step.ids))
                for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
                    out[rid] += [next(ids) for _ in range(n)]
                n_left -= len(step.finished)
                assert not e.failed
            n_steps = e.scheduler.counts["steps"] - n_before
        return list(out.values()), n_steps

    (plain, n_plain), (drafted, n_drafted) = generate("off"), generate("tree,grammar")
    assert drafted == plain
    assert n_drafted < n_plain / 2
