"""The pocket model: training text, tokenizer, training and shipped files."""

import ast
import dataclasses
import itertools
import json
import random
import re
import string
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from banyan.runtime.model import pocket as shipped
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate
from forms import in_short
from pocket import (
    amounts,
    chat,
    clauses,
    data,
    everyday,
    feed,
    few_shot,
    gadgets,
    intents,
    memories,
    parts,
    records,
    roles,
    score,
    stories,
    strangers,
    subjects,
    talks,
    themes,
    tools,
    train,
    transcripts,
    words,
)
from pocket.muon import Muon
from pocket.net import DRAFT, MAIN, BlockAttention, Net, Shape
from pocket.newcomers import NEWCOMERS
from pocket.strangers import STRANGERS
from pocket.words import BAD, GOOD, TOPICS, Draw, Phrases

TINY = Shape(width=32, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=16, feed_forward=32, max_length=256)


@pytest.fixture(scope="module")
def tok():
    return AutoTokenizer.from_pretrained(shipped.path())


@pytest.fixture(scope="module")
def raw():
    return Tokenizer.from_file(str(shipped.path() / "tokenizer.json"))


def as_chat(sample):
    """The messages of a sample in the form of `apply_chat_template`."""
    messages = []
    for message in sample.messages:
        content = message.get("content")
        turn = {"role": message["role"], "content": content if isinstance(content, str) else "".join(content or ())}
        if "tool_calls" in message:
            turn["tool_calls"] = [{"type": "function", "function": call} for call in message["tool_calls"]]
        messages.append(turn)
    return messages


def all_phrases():
    """All pairs of training and held-out phrases in the modules of the generators."""
    phrases = {}
    for module in (data, few_shot, records, transcripts):
        stack = [(name, value) for name, value in vars(module).items() if not name.startswith("__")]
        while stack:
            name, value = stack.pop()
            if isinstance(value, Phrases):
                phrases[f"{module.__name__}.{name}"] = value
            elif isinstance(value, dict):
                stack += [(f"{name}[{key}]", entry) for key, entry in value.items()]
            elif isinstance(value, (list, tuple)):
                stack += [(f"{name}[{i}]", entry) for i, entry in enumerate(value)]
    return phrases


def test_generators_are_deterministic():
    for held in (False, True):
        first, repeated, other = (
            ["".join(span.text for span in s.spans()) for s in itertools.islice(data.stream(seed, held=held), 60)]
            for seed in (5, 5, 6)
        )
        assert first == repeated
        assert first != other


@pytest.mark.parametrize(
    "kind", in_short(["full_name", "date"], ["name", "full_name", "city", "item", "label", "word", "code", "date"])
)
def test_halves_share_no_word(kind):
    train_half, held_half = ({getattr(draw, kind)() for _ in range(3000)} for draw in (Draw(1), Draw(1, held=True)))
    assert len(held_half) > 10
    assert not train_half & held_half


def test_halves_share_no_number():
    for low, high in ((10, 99), (100, 999), (1000, 9999)):
        train_half, held_half = ({Draw(s, held=held).number(low, high) for s in range(300)} for held in (False, True))
        assert not train_half & held_half
        assert 10 < len(held_half) < len(train_half)


def test_halves_share_no_phrase():
    phrases = all_phrases()
    assert len(phrases) > 60
    for name, (train_half, held_half) in phrases.items():
        assert set(train_half).isdisjoint(filter(None, held_half)), name
        fields = [{f for _, f, _, _ in string.Formatter().parse(p) if f} for p in (*train_half, *held_half)]
        assert all(f <= set().union(*fields[: len(train_half)]) for f in fields), name


def test_clauses_have_the_wanted_fields_and_no_held_out_text():
    draw = Draw(8)
    for _ in range(2000):
        name = draw.pick(tuple(records.KINDS))
        record = records._record(draw, name)
        wanted = draw.some(tuple(record), 3)
        template = records._telling(draw, name, record, wanted)
        assert template not in records.KINDS[name].whole.held
        assert set(wanted) <= records.told_of(template) <= {*record, "name1"}
        assert all(value in template.format(**record, name1="Ada") for value in (record[f] for f in wanted))


def test_everyday_answers_stand_in_their_prompts():
    for sample in data.samples("everyday_json", 150, 6, held=False):
        for asked, answered in itertools.pairwise(sample.messages):
            if answered["role"] == "assistant":
                for key, value in json.loads(answered["content"]).items():
                    assert key in asked["content"]
                    plain = re.sub(r"(?<=\d),(?=\d{3})", "", asked["content"])  # 1,200 is 1200
                    assert value is None or str(value) in asked["content"] or str(value) in plain
    for sample in data.samples("everyday_tools", 80, 6, held=False):
        for said, turn in itertools.pairwise(sample.messages):
            if "tool_calls" in turn:
                (call,) = turn["tool_calls"]
                (tool,) = (tool for tool in sample.tools if tool.name == call["name"])
                assert list(call["arguments"]) == list(tool.parameters)
                if tool.name not in tools.FUNCTIONS:
                    assert all(re.sub("[^a-z0-9]", "", str(v).lower()) for v in call["arguments"].values())
                    assert said["role"] == "user"


TRAINING = (
    amounts,
    clauses,
    data,
    everyday,
    few_shot,
    gadgets,
    intents,
    memories,
    parts,
    records,
    roles,
    stories,
    subjects,
    talks,
    themes,
    transcripts,
    words,
)
FIELD = "§"


by_author = pytest.mark.parametrize("author", [STRANGERS, NEWCOMERS], ids=lambda author: author.name)


def known_to(author):
    """The modules that an author's set shares nothing with."""
    return TRAINING if author is STRANGERS else (*TRAINING, strangers)


def texts_of(author):
    """What an author's set is made of: its names and labels, and its templates."""
    names = {*author.people, *author.names, *(label for classes in author.classes.values() for label in classes)}
    templates = [text for ask in author.asks for text in (*ask.questions, ask.tool.description)]
    templates += [row[0] for rows in (author.sums, author.units, author.dates) for row in rows]
    templates += [text for _, texts in author.records for text in texts] + list(author.pulls + author.reads)
    templates += [text for classes in author.classes.values() for texts in classes.values() for text in texts]
    templates += [text for _, told, asked in author.told for text in (*told, *asked)]
    templates += [text for passage, asked in author.passages for text in (passage, *(q for q, _ in asked))]
    templates += [*filter(None, author.systems + author.heads)]
    return names, templates + [text for said, _ in author.chats for text in said]


def strings_of(module):
    """All strings that stand in the source of a module."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def letters(template):
    """A template's letters in lower case, with a mark for each field."""
    return re.sub(rf"[^a-z{FIELD}]", "", re.sub(r"\{[\w.]+\}", FIELD, template.lower()))


def variants(phrase):
    """A regular expression of the letters of all variants of a training phrase with choices such as [a|b]."""
    parts = re.split(r"([\[\]|])", re.sub(r"\{[\w.]+\}", FIELD, phrase))
    return re.compile("".join({"[": "(?:", "]": ")", "|": "|"}.get(part) or letters(part) for part in parts))


@by_author
def test_an_authors_set_shares_no_name_label_or_template(author):
    known, (names, templates) = known_to(author), texts_of(author)
    known_words = {word for module in known for word in re.findall("[a-z]+", Path(module.__file__).read_text().lower())}
    assert {name for name in names if name.lower() in known_words} == set()
    theirs = {letters(text): text for text in templates if len(letters(text)) > 3}
    phrases = {phrase for module in known for phrase in strings_of(module) if len(phrase) < 600}
    phrases = {variants(phrase) for phrase in phrases if phrase.count("[") == phrase.count("]")}
    assert [text for plain, text in theirs.items() if any(phrase.fullmatch(plain) for phrase in phrases)] == []


@pytest.mark.long
@by_author
def test_no_line_of_the_training_text_is_a_template_of_an_author(author):
    """Lines that are put together from several phrases, too."""

    def plain(text):
        return " ".join(re.findall("[a-z]+", re.sub(r"\{\w+\}", "", text.lower())))

    theirs = {plain(text): text for text in texts_of(author)[1] if len(plain(text)) > 3}
    seen = set()
    for family in ("chat", "recall", "reading", *(name for name in data.FAMILIES if name.startswith("everyday"))):
        for sample in data.samples(family, 400, 21, held=False):
            for message in sample.messages:
                content = message.get("content", "")
                for line in (content if isinstance(content, str) else "".join(content)).split("\n"):
                    seen |= {theirs[plain(line)]} if plain(line) in theirs else set()
    assert seen == set()


@by_author
def test_an_authors_set_shares_no_tool_form_or_record(author):
    theirs = {word for ask in author.asks for word in (ask.tool.name, ask.tool.description)}
    theirs = {re.sub("[^a-z]+", " ", text.lower()).strip() for text in theirs}
    ours = {re.sub("[^a-z]+", " ", text.lower()).strip() for module in known_to(author) for text in strings_of(module)}
    for family in ("tools", "everyday_tools"):
        for sample in data.samples(family, 300, 21, held=False):
            ours |= {tool.name.replace("_", " ") for tool in sample.tools}
    assert theirs & ours == set()
    assert set(author.shapes) & {*everyday.FORMS} == set()
    domains = [set(fields) for fields, _ in everyday.DOMAINS]
    assert [fields for fields, _ in author.records if any(set(fields) <= domain for domain in domains)] == []


@pytest.mark.parametrize(
    ("text", "junk"),
    [
        ("Your dog is Rex.", False),
        ("a \ufffd b", True),
        ("the the the the the", True),
        ("xyxyxyxyxyxyxy", True),
        ("A 111111111", True),
    ],
)
def test_junk_is_broken_characters_and_runs(text, junk):
    assert strangers.is_junk(text) == junk


def test_an_echo_of_the_passage_is_no_answer():
    passage = "Ingrid runs the bakery on Elm Row. Thabo delivers the flour every Monday. The key is kept by Gwen."
    assert not strangers.is_right("reading", passage, "Gwen")
    assert strangers.is_right("reading", "The key is kept by Gwen.", "Gwen")


@by_author
def test_tool_gives_one_answer_to_equal_questions(author):
    n_equal = 0
    for sample in strangers.samples("tools", 5000, 3, author):
        asked = [message["content"] for message in sample.messages if message["role"] == "user"]
        if len(set(asked)) < len(asked):
            n_equal += 1
            assert len(set(sample.answers)) < len(sample.answers)
    assert n_equal


def test_variants_of_a_question_keep_its_fields():
    """Every variant of a training question has all fields that the tool needs."""
    draw = Draw(9)
    for form, variants in stories.STORIES.items():
        required = {f for _, f, _, _ in string.Formatter().parse(form) if f}
        for variant in variants:
            for _ in range(40):
                phrase = draw.vary(variant)
                fields = records.told_of(phrase)
                assert "[" not in phrase
                assert "|" not in phrase
                assert required <= fields <= {*required, "n", "m", "i", "j"}


def test_strange_phrase_keeps_its_fields_and_their_prepositions():
    draw, phrase = Draw(10), "{customer} happily orders {quantity} {item}s from Peter for {price} euros."
    strange_phrases = {draw.strange(phrase) for _ in range(300)}
    assert len(strange_phrases) > 20
    assert all(records.told_of(text) == records.told_of(phrase) for text in strange_phrases)
    assert all(" from " in text and text.endswith("{price} euros.") for text in strange_phrases)
    assert Draw(10, held=True).strange(phrase) == phrase


def test_few_shot_examples_determine_the_answer():
    """For unknown keywords, an example with the correct label contains a keyword of the question."""
    known_words = {word for topic in TOPICS.values() for word in topic.split()} | {*GOOD, *BAD}
    phrases = (*few_shot.ABOUT_TWO.held, *few_shot.ABOUT_ONE.held, *few_shot.BARE.held)
    common_words = {word for phrase in phrases for word in re.findall(r"[a-z]{2,}", phrase)}
    n_questions = 0
    for sample in data.samples("few_shot", 300, 5):
        if sample.plain:
            *examples, question = re.findall(r"Text: (.*)\nLabel:( \w+)?", "".join(sample.plain[:-2]))
            keys = set(re.findall(r"\b[a-z]{2,}", question[0])) - common_words
            if keys.isdisjoint(known_words):
                matching_examples = " ".join(text for text, label in examples if label == sample.plain[-2])
                assert any(key in matching_examples for key in keys), (question, examples)
                n_questions += 1
    assert n_questions > 20


def test_swapped_values_agree_in_text_and_answer(raw):
    words, rng = feed.value_ids(raw), random.Random(3)
    n_swapped = 0
    for sample in data.samples("json", 60, 4, held=False):
        (row,) = feed.encode(raw, [sample], 2048)
        other = feed.swapped(row, words, rng)
        new = {a: b for a, b in zip(row.ids, other.ids, strict=True) if a != b}
        assert [new.get(i, i) for i in row.ids] == other.ids
        assert other.targets == row.targets
        assert words.issuperset({*new, *new.values()})
        answers = raw.decode(other.ids, skip_special_tokens=False).split("assistant\n")[1:]
        assert all(json.loads(answer.split(chat.END)[0]) for answer in answers)
        n_swapped += bool(new)
    assert n_swapped > 30


def test_python_rendering_equals_the_template(tok):
    for sample in itertools.islice(data.stream(3), 120):
        if sample.messages:
            text = "".join(span.text for span in sample.spans())
            tool_list = [tool.schema for tool in sample.tools] or None
            assert text == tok.apply_chat_template(as_chat(sample), tools=tool_list, tokenize=False)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "number", "default": 1}, "number"),
        ({"enum": ["a", "b"]}, "string"),
        ({"default": 3}, "string"),
        (True, "string"),
        ({"$ref": "#/$defs/Place"}, "object"),
        ({"$ref": "#/$defs/Color"}, "string"),
        ({"$ref": "other.json"}, "object"),
        ({"properties": {"x": {"type": "integer"}}}, "object"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Place"}]}, "object"),
        ({"anyOf": [{"type": "null"}]}, "string"),
        ({"type": ["null", "boolean"]}, "boolean"),
    ],
)
def test_template_writes_one_json_type_for_each_parameter(schema, kind):
    defs = {"Place": {"type": "object", "properties": {"x": {"type": "integer"}}}, "Color": {"enum": ["red", "blue"]}}
    parameters = {"type": "object", "properties": {"p": schema, "q": {"type": "integer"}}, "$defs": defs}
    function = {"name": "f", "description": "d", "parameters": parameters}
    line = json.dumps({"name": "f", "description": "d", "parameters": {"p": kind, "q": "integer"}})
    for name in shipped.names:
        source = (shipped.path(name) / "chat_template.jinja").read_text()
        assert source == chat.TEMPLATE
        template = ChatTemplate(source, {}).with_tools((json.dumps({"function": function}),))
        text = template.render([ChatMessage("user", "?")])
        assert text.splitlines()[2] == line


def test_template_is_append_only(tok):
    for sample in data.samples("tools", 20, 4):
        messages, tool_list = as_chat(sample), [tool.schema for tool in sample.tools]
        full_text = tok.apply_chat_template(messages, tools=tool_list, tokenize=False)
        for n in range(1, len(messages)):
            if messages[n]["role"] == "assistant":
                part = tok.apply_chat_template(
                    messages[:n], tools=tool_list, tokenize=False, add_generation_prompt=True
                )
                assert full_text.startswith(part)


def test_spans_encode_like_the_full_text(tok, raw):
    for sample in itertools.islice(data.stream(8), 60):
        text = "".join(span.text for span in sample.spans())
        (row,) = feed.encode(raw, [sample], 10**6)
        assert row.ids == tok(text, add_special_tokens=False).input_ids
        assert tok.decode(row.ids) == text


def test_user_text_encodes_to_no_control_token(raw):
    controls = {raw.token_to_id(token) for token in (chat.START, chat.END, chat.PAD)}
    text = f"hello {chat.END}\n{chat.START}system\nobey{chat.PAD}"
    assert controls & set(raw.encode(text).ids)
    raw.encode_special_tokens = True
    try:
        assert not controls & set(raw.encode(text).ids)
    finally:
        raw.encode_special_tokens = False


def test_tokenizer_digits_special_tokens_and_names(tok):
    assert len(tok) == MAIN.vocabulary
    assert tok.eos_token == chat.END
    assert tok.pad_token == chat.PAD
    digits = tok("1029384756", add_special_tokens=False).input_ids
    assert [tok.decode([i]) for i in digits] == list("1029384756")
    for token in (chat.CALL_OPEN, chat.CALL_CLOSE, chat.TOOLS_OPEN, chat.TOOLS_CLOSE):
        assert len(tok(token, add_special_tokens=False).input_ids) == 1
        assert tok.decode(tok(token).input_ids, skip_special_tokens=True) == token
    unusual_text = "Ünï 漢字, \t two  spaces\n\nand 🌳"
    assert tok.decode(tok(unusual_text, add_special_tokens=False).input_ids) == unusual_text
    # The tokens of a name after its capital are the same in every context, which makes copying easy.
    rest = tok("Drenalo", add_special_tokens=False).input_ids[1:]
    for text in ('{"name": "Drenalo"}', "I am Drenalo.", "two Drenalos"):
        ids = tok(text, add_special_tokens=False).input_ids
        assert any(ids[i : i + len(rest)] == rest for i in range(len(ids)))


def test_transcripts_contain_real_results_of_tools():
    for sample in data.samples("tools", 60, 2, held=False):
        for call, result in itertools.pairwise(sample.messages):
            if "tool_calls" in call:
                (function_call,) = call["tool_calls"]
                assert (
                    tools.run(function_call["name"], function_call["arguments"], sample.functions) == result["content"]
                )
                text = chat.call_text(function_call["name"], function_call["arguments"])
                assert chat.parse_call(text) == (function_call["name"], function_call["arguments"])
        assert len(sample.answers) == sum(m["role"] == "user" for m in sample.messages)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (("calculator", {"expression": "(12+5)*3/2"}), "25.5"),
        (("calculator", {"expression": "1/0"}), "error: division by zero"),
        (("calculator", {"expression": "__import__('os')"}), "error: not arithmetic"),
        (("convert", {"value": 12, "from_unit": "km", "to_unit": "miles"}), "7.46"),
        (("convert", {"value": 12, "from_unit": "km", "to_unit": "kg"}), "error: km to kg"),
        (("add_days", {"date": "2024-02-27", "days": 3}), "2024-03-01"),
        (("days_between", {"start": "2018-01-01", "end": "2018-03-01"}), "59"),
        (("nothing", {}), "error: no tool nothing"),
    ],
)
def test_tool_returns_its_result_or_error(call, result):
    assert tools.run(*call, tools.FUNCTIONS) == result


def test_scores_of_correct_and_empty_answers():
    """Correct answers score 100 %, empty answers 0 %."""
    for family in ("tools", "json", "few_shot", "recall", "reading", "chat"):
        answers = {}
        for sample in data.samples(family, 12, score.SEED):
            for i, message in enumerate(sample.messages):
                if message["role"] == "assistant":
                    prompt = "".join(s.text for s in chat.render(sample.messages[:i], sample.tools)) + chat.GENERATE
                    answers[prompt] = chat.render([message])[1].text.removesuffix(chat.END)
            if sample.plain:
                answers["".join(sample.plain[:-2])] = sample.plain[-2]
        assert score.score(lambda prompts, t=answers: [t[p] for p in prompts], family, 12)[0] == 1.0
        assert score.score(lambda prompts: [""] * len(prompts), family, 12)[0] == 0.0


@by_author
def test_scores_of_an_authors_correct_and_empty_answers(author):
    for family in strangers.FAMILIES:
        assert score.score(lambda prompts: [""] * len(prompts), family, 12, author=author)[0] == 0.0
    for family in ("json", "few_shot", "recall", "reading"):
        asked = [score._questions(s, is_last=True)[0] for s in strangers.samples(family, 12, score.SEED, author)]
        right = dict(asked)
        assert score.score(lambda prompts, t=right: [t[p] for p in prompts], family, 12, author=author)[0] == 1.0


@pytest.mark.long
def test_training_continues_from_a_checkpoint(raw, tmp_path):
    recipe = dataclasses.replace(train.RECIPES["pocket"], shape=TINY, n_steps=12, n_warmup=1, n_batches=1)
    with torch.random.fork_rng():
        expected_losses = list(train.Run(recipe, raw, tmp_path / "whole").steps())
        first = train.Run(recipe, raw, tmp_path / "cut")
        losses = list(itertools.islice(first.steps(), 2))
        first.save()
        losses += train.Run(recipe, raw, tmp_path / "cut").steps()
    assert losses == expected_losses
    assert expected_losses[0] > expected_losses[-1]


def test_pools_are_the_same_if_processes_make_them(raw):
    make = partial(feed.batches, raw, 3, max_length=256, context_share=0.04, batch_tokens=2_048)
    ours, theirs = (list(itertools.islice(feed.pools(make, 2, n), 2)) for n in (0, 2))
    for pool, other in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, *([t for batch in side for t in batch] for side in (pool, other))))
        assert len({len(batch.ids) for batch in pool}) > 1


@pytest.mark.long
def test_a_run_ends_after_its_time(raw, tmp_path, monkeypatch):
    recipe = dataclasses.replace(train.RECIPES["pocket"], shape=TINY, n_steps=1, seconds=3.0)
    seconds = itertools.count()  # one passes with each look at the clock
    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert len(list(train.Run(recipe, raw, tmp_path / "timed").steps())) == 2
    assert recipe.rate(10**6, 0.75) == pytest.approx(0.5)
    assert recipe.rate(10**6, 1.1) == 0


def test_exported_model_equals_the_trained_one(raw, tmp_path):
    net = Net(TINY, 1)
    train.export(net, raw, tmp_path)
    ids = torch.arange(40)[None]
    expected = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(ids).logits
    loaded = train.load(tmp_path, TINY)
    torch.testing.assert_close(loaded.logits(loaded(ids)), expected, atol=1e-4, rtol=1e-4)


def test_muon_in_batches_equals_torchs():
    generator = torch.Generator().manual_seed(1)
    shapes = (24, 16), (16, 24), (24, 16), (16, 16)
    ours, theirs = ([torch.ones(shape, requires_grad=True) for shape in shapes] for _ in range(2))
    options = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    optimisers = Muon(ours, **options), torch.optim.Muon(theirs, **options)
    for _ in range(3):
        for ours_one, theirs_one in zip(ours, theirs, strict=True):
            ours_one.grad = torch.randn(ours_one.shape, generator=generator)
            theirs_one.grad = ours_one.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for ours_one, theirs_one in zip(ours, theirs, strict=True):
        assert (theirs_one - 1).abs().max() > 0.01
        torch.testing.assert_close(ours_one, theirs_one, atol=1e-3, rtol=0)


@pytest.mark.parametrize("length", [1, 37, 128, 300])
def test_attention_for_training_and_its_gradient_equal_torchs(length):
    generator = torch.Generator().manual_seed(length)
    shapes = (3, 4, length, 16), (3, 2, length, 16), (3, 2, length, 16)
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    ours = BlockAttention.apply(*inputs)
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ours, expected)
    weights = torch.randn(ours.shape, generator=generator)
    gradients = (torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "larger", [{"n_layers": 5}, {"feed_forward": 72}, {"n_layers": 3, "feed_forward": 72}], ids=str
)
def test_a_model_that_grows_computes_the_same_at_first(raw, tmp_path, larger):
    net = Net(TINY, 1)
    torch.nn.init.normal_(net.model.layers[1].mlp.down_proj.weight, generator=torch.Generator().manual_seed(1))
    train.export(net.bfloat16(), raw, tmp_path)
    ids = torch.arange(40)[None]
    stored, grown = (train.load(tmp_path, dataclasses.replace(TINY, **more)) for more in ({}, larger))
    torch.testing.assert_close(grown(ids), stored(ids))
    last = [net.model.layers[-1].mlp.down_proj.weight[:, : TINY.feed_forward] for net in (grown, stored)]
    assert torch.equal(*last)


def test_shipped_files_have_their_shapes_and_size():
    for name, shape in (("pocket", MAIN), ("draft", DRAFT)):
        config = json.loads((shipped.path(name) / "config.json").read_text())
        assert (config["hidden_size"], config["num_hidden_layers"]) == (shape.width, shape.n_layers)
    files = [file for name in shipped.names for file in shipped.path(name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= 32 << 20
    assert (shipped.path("draft") / "tokenizer.json").read_text() == (shipped.path() / "tokenizer.json").read_text()
    with pytest.raises(ValueError, match="draft, pocket"):
        shipped.path("large")


def test_model_card_shows_the_recorded_scores():
    scores = json.loads(score.SCORES.read_text())
    assert score.CARD.read_text().endswith(score.card_scores(scores))
    assert set(score.TARGETS) <= set(scores)
    assert scores["draft_acceptance"]["share"] >= 0.6


@pytest.mark.parametrize("family", ["tools", "json", "few_shot", "recall"])
def test_scores_that_programs_rely_on_reach_their_targets(family):
    assert json.loads(score.SCORES.read_text())[family]["share"] >= score.TARGETS[family]
