"""For constraints.py and tests: random schemas, requests for JSON, a large vocabulary, and an engine without a
server."""

from __future__ import annotations

import json
import string
import sys
import sysconfig
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jsonschema
import tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from constraint_random import CHECKED

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.model.load import load
from banyan.runtime.model.spec import resolve
from banyan.runtime.protocol.wire import ConstraintSpec, Run, Sampling
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer
from pocket.chat import GENERATE, render
from pocket.data import samples

_PATTERNS = (r"^[A-Z]{2}-\d{3}$", r"^(a|bc)*d$", r"^[^\"\\]{0,8}$", r"^\w+@\w+$", r"^[\u00e0-\u00ff]{1,4}$", r"^-?\d+$")
_FORMATS = tuple(CHECKED.checkers)


def random_schema(chance: Random, depth: int = 3) -> Any:
    """A schema of a few levels whose values are mostly short."""
    if depth == 3 and chance.random() < 0.1:
        below = {"v": random_schema(chance, 1), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}
        node = {"type": "object", "properties": below, "required": ["v", "next"], "additionalProperties": False}
        return {"$ref": "#/$defs/n", "$defs": {"n": node}}
    nested = (_object, _object, _object, _array, _tuple, _union, _condition, _dictionary)
    plain = (_string, _string, _pattern, _format, _integer, _number, _enum, _constant, _union, _text_but_not)
    return chance.choice(nested if depth > 1 and chance.random() < 0.7 else plain)(chance, depth - 1)


def _name(chance: Random) -> str:
    return "".join(chance.choices(string.ascii_lowercase + '_é "', k=chance.randint(1, 8)))


def _object(chance: Random, depth: int) -> Any:
    names = sorted({_name(chance) for _ in range(chance.randint(1, 4))})
    schema: Any = {"type": "object", "properties": {name: random_schema(chance, depth) for name in names}}
    if needed := [name for name in names if chance.random() < 0.6]:
        schema["required"] = needed
    schema["additionalProperties"] = False
    if chance.random() < 0.2:
        schema["dependentRequired"] = {names[0]: [names[-1]]}
    if chance.random() < 0.2:
        schema["minProperties"] = 1
    return schema


def _dictionary(chance: Random, depth: int) -> Any:
    value = random_schema(chance, 0)
    if chance.random() < 0.5:
        return {"type": "object", "additionalProperties": value, "propertyNames": {"maxLength": 5}}
    return {"type": "object", "patternProperties": {"^[a-z]{1,4}$": value}, "additionalProperties": False}


def _array(chance: Random, depth: int) -> Any:
    minimum = chance.randint(0, 2)
    maximum = minimum + chance.randint(0, 3)
    if chance.random() < 0.15:
        return {"type": "array", "items": {"enum": ["a", 1, None]}, "uniqueItems": True}
    return {"type": "array", "items": random_schema(chance, depth), "minItems": minimum, "maxItems": maximum}


def _tuple(chance: Random, depth: int) -> Any:
    items = [random_schema(chance, depth) for _ in range(chance.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": chance.randint(0, len(items))}


def _union(chance: Random, depth: int) -> Any:
    kinds = [random_schema(chance, depth) for _ in range(chance.randint(1, 3))]
    return {"anyOf": [*kinds, {"type": "null"}]}


def _condition(chance: Random, depth: int) -> Any:
    kinds = [chance.choice("xyz"), "w"]
    one, other = random_schema(chance, 0), random_schema(chance, 0)
    kind = {"properties": {"kind": {"const": kinds[0]}}}
    if chance.random() < 0.5:
        return {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": name}, "value": value},
                 "required": ["kind", "value"], "additionalProperties": False}
                for name, value in zip(kinds, (one, other), strict=True)
            ]
        }  # fmt: skip
    return {
        "type": "object", "properties": {"kind": {"enum": kinds}, "a": one, "b": other}, "required": ["kind"],
        "additionalProperties": False, "if": kind, "then": {"required": ["a"]}, "else": {"required": ["b"]},
    }  # fmt: skip


def _string(chance: Random, _: int) -> Any:
    minimum = chance.randint(0, 3)
    return {"type": "string", "minLength": minimum, "maxLength": minimum + chance.randint(0, 9)}


def _pattern(chance: Random, _: int) -> Any:
    return {"type": "string", "pattern": chance.choice(_PATTERNS)}


def _format(chance: Random, _: int) -> Any:
    return {"type": "string", "format": chance.choice(_FORMATS)}


def _integer(chance: Random, _: int) -> Any:
    minimum = chance.randint(-1000, 1000)
    schema = {"type": "integer", "minimum": minimum, "maximum": minimum + 12 + chance.randint(0, 10**6)}
    return schema | ({"multipleOf": chance.randint(2, 12)} if chance.random() < 0.3 else {})


def _number(chance: Random, _: int) -> Any:
    minimum = round(chance.uniform(-50, 50), 2)
    bound = chance.choice(["minimum", "exclusiveMinimum"])
    return {"type": ["number", "boolean"], bound: minimum, "maximum": round(minimum + chance.uniform(1, 99), 3)}


def _enum(chance: Random, _: int) -> Any:
    return {"enum": chance.sample(["red", "green", 1, 2.5, True, None, "", 'a"b\\', "ü🙂", [1, {"a": []}]], 3)}


def _constant(chance: Random, _: int) -> Any:
    return {"const": chance.choice(["a constant text", 42, None, {"k": [1, "two", False]}])}


def _text_but_not(chance: Random, _: int) -> Any:
    return {"type": "string", "maxLength": 6, "not": {"enum": chance.sample(["a", "the", "no", "is"], 2)}}


def judge(schema: Any, text: str) -> str:
    """What is wrong with the text, according to the jsonschema package; "valid" if nothing is."""
    try:
        value = json.loads(text)
    except ValueError as e:
        return f"not JSON ({e}): {text!r}"
    wrong = next(jsonschema.Draft202012Validator(schema, format_checker=CHECKED).iter_errors(value), None)
    return "valid" if wrong is None else f"{text!r} does not fit {json.dumps(schema)}: {wrong.message}"


class Extraction(NamedTuple):
    """A prompt with a text from which the model extracts a record as JSON, and the record's schema."""

    prompt: str
    schema: Any


MAX_TOKENS = 96
"""Maximum number of tokens of an answer."""
_TYPES = {str: "string", int: "integer", float: "number"}


def extractions(n: int) -> list[Extraction]:
    """Held-out samples of a task that the pocket model was trained for: it answers in JSON with a constraint or
    without, so that both generate the same text."""
    found = []
    for sample in samples("json", n, "constraints"):
        *before, answer = sample.messages
        fields = {name: {"type": _TYPES[type(value)]} for name, value in json.loads(answer["content"]).items()}
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        found.append(Extraction("".join(span.text for span in render(before, sample.tools)) + GENERATE, schema))
    return found


N_LARGE = 128_000
_SOURCE = 40_000_000
"""Bytes of Python source on which the tokenizer is trained."""


def large_vocabulary(file: Path) -> Path:
    """Trains a tokenizer of N_LARGE tokens on this machine's Python source, unless the folder has one; takes
    minutes."""
    if not (file / "tokenizer.json").exists():
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=N_LARGE, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        tokenizer.train_from_iterator(_source(), trainer)
        file.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        (file / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer.save(str(file / "tokenizer.json"))
    return file


def _source() -> Iterator[str]:
    left = _SOURCE
    for root in (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]):
        for file in sorted(Path(root).rglob("*.py")):
            if left > 0 and (size := file.stat().st_size) < 400_000:
                left -= size
                yield file.read_text(encoding="utf-8", errors="replace")


@dataclass
class Output:
    """The result of a run in the engine. reason: the finish reason or an error code. steps: the engine steps in which
    it got tokens."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    reason: str = ""
    steps: list[int] = field(default_factory=list)


class Bench:
    """A model with its tokenizer, and an engine in this process."""

    def __init__(self, model: str = "pocket", threads: int = 1, **options: Any) -> None:
        directory = resolve(model)
        self.tokenizer, loaded = Tokenizer(directory, Files.read(directory)), load(directory)
        context = min(1024, loaded.spec.max_context)
        resolved = Resolved(device="cpu", dtype="float32", context=context, n_pages=8192, threads=threads, decisions=())
        self.engine = EngineLoop(configs.make(**options), loaded, resolved)
        self.engine.take(self.tokenizer.vocabulary())
        self._n_runs = 0

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode([TextSpan(text, meant=True)])

    def begin(self, prompt: str, sampling: Sampling, seed: int = 0) -> int:
        """Start a run. Returns its rid, by which `finish` knows it."""
        self._n_runs += 1
        ends = () if sampling.ignore_eos else sorted(self.tokenizer.eos_ids)
        ids, stops = (array("i", some).tobytes() for some in (self.ids(prompt), ends))
        self.engine.take(Run(self._n_runs, ids, sampling, stops, seed=seed, order=(0, self._n_runs)))
        return self._n_runs

    def finish(self, rids: Iterable[int]) -> dict[int, Output]:
        """Step until these runs have ended. Other runs continue too, but their output is lost."""
        outputs = {rid: Output() for rid in rids}
        n_steps, engine = 0, self.engine
        while not all(one.reason for one in outputs.values()):
            step = engine.step()
            n_steps += 1
            ids = iter(array("i", step.ids))
            for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
                new = [next(ids) for _ in range(n)]
                if rid in outputs:
                    outputs[rid].ids += new
                    outputs[rid].steps.append(n_steps)
            for finish in step.finished:
                if finish.rid in outputs:
                    outputs[finish.rid].reason = finish.reason
            for failed in engine.failed:
                if failed.program in outputs:
                    outputs[failed.program].reason = failed.code
            engine.failed.clear()
            if engine.scheduler.is_idle:
                time.sleep(0.0005)  # a constraint is still being compiled
        for one in outputs.values():
            one.text = self.tokenizer.text_of(one.ids)
        return outputs


def sampled(bench: Bench, seeds: Iterable[int], n_samples: int, temperature: float = 1.5) -> Counter[str]:
    """Samples outputs under random schemas and counts the results: "valid", "length" (cut by max_tokens), or what is
    wrong."""
    schemas, found = {}, Counter[str]()
    for seed in seeds:
        schema = random_schema(Random(seed))
        spec = canonical(ConstraintSpec("json_schema", json.dumps(schema)))
        for i in range(n_samples):
            sampling = Sampling(temperature=temperature, max_tokens=100, constraint=spec)
            schemas[bench.begin("the answer is", sampling, seed * n_samples + i)] = schema
    for rid, out in bench.finish(schemas).items():
        found[judge(schemas[rid], out.text) if out.reason == "stop" else out.reason] += 1
    return found
