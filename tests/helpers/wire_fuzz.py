"""Fuzzed messages, generated from the types of `wire`: valid ones, values at the borders of every field, and garbage.

`Values` makes single messages of any type. `ClientModel` makes the messages of one client, which knows its programs,
states, refs, marks and templates, so that the server accepts most of them. All draws come from the given `Random`.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from banyan.runtime.protocol import wire

MAX_BYTES = 1 << 20
"""Size limit of a fuzzed message."""
N_CHARS, N_ITEMS = 1 << 16, 4096
"""Length of a long text, and of a long list."""
MAX_PROGRAMS, MAX_TEMPLATES = 6, 4
"""Programs and templates of one client at a time."""
P_BORDER, P_GARBAGE = 0.15, 0.05
"""Shares of the messages with a value at a border, and of bytes that are no message."""
ADD_ENGINE = "add"
"""An `Ask` that starts an engine, which stays when its client has left. Fuzzed messages leave it out."""

SURROGATE = "\ue123"
"""Stands for a lone surrogate, which Python cannot encode; `encode` replaces its bytes."""
CONTROL = "<|im_end|>"
INTS = (-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, -1.0, 1e-308, 1e308, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "\0", SURROGATE, CONTROL, "é🙂" * 50, "{" * 300, "(x+x+)+y", "\ud7ff", "{{7*7}}")

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }};{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template that writes tools."""

_TOOL = json.dumps({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})
_SEED = (None, 0, 7)
VALID: dict[str, Sequence[Any]] = {
    "Arg.i": (0,),
    "BeginTurn.role": ("user", "system"),
    "CacheHint.pin": (None, 0.0, 1.0),
    "CacheHint.steps": (None, 3.0),
    "ConstraintSpec": (
        wire.ConstraintSpec("regex", "[a-f]{1,4}"),
        wire.ConstraintSpec("choices", '["a", "bc"]'),
        wire.ConstraintSpec("json_schema", '{"type": "integer"}', style="compact"),
    ),
    "Gen.adapter": ("",),
    "Gen.budget": (0, 100),
    "Gen.chat_template_kwargs": ("", "", '{"enable_thinking": false}'),
    "Gen.line": ("a.py:1",),
    "Gen.priority": (None, -1, 1),
    "ProgramLimits.priority": (0, 1),
    "Gen.tools": (None,),  # only in a turn of the assistant
    "Hello.version": (wire.VERSION,),
    "Hello.token": ("",),
    "ProgramLimits.budgets": (
        (),
        (wire.TokenLimit(500),),
        (wire.TokenLimit(10_000, 0, "batch"), wire.TokenLimit(500, 1)),
    ),
    "ProgramLimits.durable": ("", "", "", "d"),
    "ProgramLimits.left": (9.0,),
    "ProgramLimits.timeout": (0.0, 10.0),
    "Sampling.logit_bias": ({}, {7: -1.0}),
    "Sampling.logprob_start": (-1, 0, 2),
    "Sampling.max_tokens": (0, 1, 2, 5),
    "Sampling.min_p": (0.0, 0.1),
    "Sampling.n": (1, 1, 2),
    "Sampling.repetition_penalty": (1.0, 1.2),
    "Sampling.seed": _SEED,
    "Sampling.stop": ((), ("e",), ("zz", "the")),
    "Sampling.stop_regex": ((), ("[0-9]{2}",)),
    "Sampling.stop_token_ids": ((), (9,)),
    "Sampling.top_k": (-1, 1, 5),
    "Sampling.top_logprobs": (0, 2),
    "Sampling.top_p": (1.0, 0.9),
    "Select.adapter": ("",),
    "Select.chat_template_kwargs": ("", "", '{"enable_thinking": false}'),
    "Select.choices": (("a",), ("a", "bc", " d")),
    "Select.method": ("token_length_normalized", "unconditional_likelihood_normalized"),
    "Select.seed": _SEED,
    "Tools": (wire.Tools((_TOOL,), 2),),
}
"""Valid values of whole structs, and of fields that do not take every value of their type."""


def encode(message: Any) -> bytes:
    """The message as bytes, with lone surrogates. OverflowError: a number is too large for MessagePack."""
    return wire.encode(message).replace(SURROGATE.encode(), b"\xed\xa0\x80")


@cache
def fields_of(kind: type[Any]) -> tuple[tuple[inspect.Field, Sequence[Any]], ...]:
    """(Field, its values in VALID), for the fields of a struct."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return tuple((field, VALID.get(f"{kind.__name__}.{field.name}", ())) for field in info.fields)


def kinds(of: inspect.Type) -> set[type[Any]]:
    """The structs in a type."""
    match of:
        case inspect.UnionType(types=types):
            return set().union(*map(kinds, types))
        case inspect.VarTupleType(item_type=item):
            return kinds(item)
        case inspect.StructType(cls=cls, fields=fields):
            return {cls}.union(*(kinds(field.type) for field in fields))
    return set()


def simple(kind: inspect.Type) -> Any:
    """A short value of a type. A struct has only its required fields."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.StrType():
            return "a"
        case inspect.BytesType():
            return b"aaaa"
        case inspect.BoolType():
            return True
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.UnionType(types=types):
            return simple(types[0])
        case inspect.VarTupleType(item_type=item):
            return (simple(item),)
        case inspect.DictType(key_type=key, value_type=value):
            return {simple(key): simple(value)}
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: simple(field.type) for field in fields if field.required})
    return None


def long(kind: inspect.StrType | inspect.BytesType | inspect.VarTupleType, otherwise: int) -> tuple[int, ...]:
    """The largest allowed length, and one more. Only `otherwise` if there is no limit, or one above `otherwise`."""
    most = kind.max_length
    return (otherwise,) if most is None or most > otherwise else (most, most + 1)


def borders(kind: inspect.Type) -> tuple[Any, ...]:
    """The values at the borders of a type, valid or not."""
    match kind:
        case inspect.IntType(ge=least, le=most):
            ends = {end for limit in (least, most) if limit is not None for end in (limit - 1, limit, limit + 1)}
            return (*INTS, *sorted(end for end in ends.difference(INTS) if INTS[0] < end < INTS[-1]))
        case inspect.FloatType():
            return FLOATS
        case inspect.StrType():
            return (*TEXTS, *("a" * n for n in long(kind, N_CHARS)))
        case inspect.BytesType():
            return (b"", b"\xff" * 3, *(b"\0" * n for n in long(kind, N_CHARS)))
        case inspect.BoolType():
            return (False, True, 2)
        case inspect.LiteralType(values=values):
            return (*(value for value in values if value != ADD_ENGINE), "zzz")
        case inspect.UnionType(types=types):
            return tuple(border for one in types for border in borders(one))
        case inspect.VarTupleType(item_type=item):
            one = simple(item)
            lists = ((one,) * n for n in long(kind, N_ITEMS))
            return ((), *lists, *((border,) for border in borders(item)), *((one, border) for border in borders(item)))
        case inspect.DictType(key_type=key, value_type=value):
            many = dict.fromkeys(range(N_ITEMS) if isinstance(key, inspect.IntType) else "abc", simple(value))
            keys = [{border: simple(value)} for border in borders(key)]
            return ({}, many, *keys, *({simple(key): border} for border in borders(value)))
        case inspect.StructType():
            return (simple(kind),)
    return (None, [])


@cache
def places(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """(field, border) for all borders of all fields of a struct."""
    return tuple((field.name, border) for field, _ in fields_of(kind) for border in borders(field.type))


Path = tuple[str | int, ...]


def structs(value: Any, path: Path = ()) -> Iterator[tuple[Path, type[Any]]]:
    """(Path, type) of each struct in `value`, including `value`."""
    if isinstance(value, msgspec.Struct):
        yield path, type(value)
        for name in value.__struct_fields__:
            yield from structs(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from structs(one, (*path, i))


def put(value: Any, path: Path, new: Any) -> Any:
    """`value` with `new` at `path`."""
    if not path:
        return new
    at, rest = path[0], path[1:]
    if isinstance(at, int):
        return (*value[:at], put(value[at], rest, new), *value[at + 1 :])
    return replace(value, **{at: put(getattr(value, at), rest, new)})


class Values:
    """Random values of the types of `wire`."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.n_border_rounds: Counter[type[Any]] = Counter()
        """Struct types -> how many times each border of each of its fields has been used."""
        self._borders: dict[type[Any], deque[tuple[str, Any]]] = {}

    def make(self, kind: type[Any], p_border: float = 0.0, **fields: Any) -> Any:
        """A random struct. p_border: the chance that a valid leaf is replaced by a border. fields: given values."""
        if kind.__name__ in VALID and not fields:
            return self.rng.choice(VALID[kind.__name__])
        draw = self.rng.random
        for field, valid in fields_of(kind):
            name = field.name
            if name not in fields and (field.required or draw() < 0.15):
                is_border = p_border and draw() < p_border
                fields[name] = self.rng.choice(valid) if valid and not is_border else self.value(field.type, p_border)
        return kind(**fields)

    def value(self, kind: inspect.Type, p_border: float = 0.0) -> Any:
        rng = self.rng
        match kind:
            case inspect.UnionType(types=types):
                return self.value(rng.choice(types), p_border)
            case inspect.VarTupleType(item_type=item):
                return tuple(self.value(item, p_border) for _ in range(rng.randrange(4)))
            case inspect.StructType(cls=cls):
                return self.make(cls, p_border)
        if p_border and rng.random() < p_border:
            return rng.choice(borders(kind))
        match kind:
            case inspect.IntType():
                return rng.randint(0, 4)
            case inspect.FloatType():
                return rng.choice((0.0, 0.5, 1.0))
            case inspect.StrType():
                return rng.choice(("a", "bc", " d", "the quick brown fox", "e?"))
            case inspect.BytesType():
                return array("i", (rng.randrange(45) for _ in range(rng.randint(1, 12)))).tobytes()
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.LiteralType(values=values):
                return rng.choice([value for value in values if value != ADD_ENGINE])
            case inspect.DictType(key_type=key, value_type=value):
                return {self.value(key): self.value(value) for _ in range(rng.randrange(3))}
        return None

    def with_border(self, message: Any) -> Any:
        """The message with the next border in one of its structs. Over many calls, each field of each struct type gets
        each of its borders."""
        found = list(structs(message))
        self.rng.shuffle(found)
        path, kind = min(found, key=lambda one: (self.n_border_rounds[one[1]], -len(places(one[1]))))
        queue = self._borders.setdefault(kind, deque())
        if not queue:
            queue.extend(self.rng.sample(every := places(kind), len(every)) or [("", None)])
        name, border = queue.popleft()
        self.n_border_rounds[kind] += not queue
        return put(message, (*path, name), border) if name else message

    def garbage(self, valid: bytes) -> bytes:
        """Bytes that are probably no message. valid: a message, which may be damaged."""
        rng = self.rng
        match _pick(rng, {"damaged": 8, "cut": 4, "bytes": 4, "deep": 1, "large": 1}):
            case "damaged":
                data = bytearray(valid)
                for _ in range(rng.randint(1, 4)):
                    at = rng.randrange(len(data) + 1)
                    data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
                return bytes(data)
            case "cut":
                return valid[: rng.randrange(len(valid) + 1)]
            case "deep":
                return rng.choice((b"\x91", b"\x81\xa1a")) * rng.randint(1, 5000)
            case "large":
                head = rng.choice((b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xf0"))
                return head + rng.randbytes(rng.randrange(60_000))
        return rng.randbytes(rng.choice((0, 1, 2, 7, 40, 1000)))


# ---- a client that knows what it has on the server -----------------------------------------------------------------


class Numbers:
    """The numbers (states, refs, marks) that a program, or a template, has used."""

    def __init__(self, n_args: int = 0) -> None:
        self.n_args = n_args
        """Number of arguments of a template."""
        self.seq, self.n_states, self.n_refs, self.n_marks = 0, 1, 0, 0
        self.states = [0]
        """States that are not dropped."""
        self.refs: dict[int, int] = {}
        """ref -> the state of the op that makes it."""
        self.marks: dict[int, list[int]] = {}

    def ref(self, state: int) -> int:
        self.refs[self.n_refs] = state
        self.n_refs += 1
        return self.n_refs - 1


class Template(NamedTuple):
    numbers: Numbers
    n_draws: int


_OPS = {
    "append": 40, "turn": 5, "gen": 5, "answer": 2, "select": 1, "fork": 4, "join": 3, "mark": 6, "read": 4,
    "drop": 2, "hint": 2, "use": 3,
}  # fmt: skip
"""Relative frequency of each kind of op (above) and of message (below)."""
_MESSAGES = {
    "submit": 40, "results": 12, "cancel": 12, "ping": 15, "ask": 8, "acknowledge": 6, "define": 4, "undefine": 2,
    "hello": 1,
}  # fmt: skip


def _pick(rng: Random, weights: dict[str, int]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


class ClientModel:
    """Makes the messages of one client. Call `receive` with each message that the server sent."""

    def __init__(self, values: Values) -> None:
        self._values, self._rng = values, values.rng
        self._programs: dict[int, Numbers] = {}
        self._templates: dict[int, Template] = {}
        self._called: deque[wire.Called] = deque(maxlen=8)
        self._n_programs = self._n_templates = 0

    def message(self) -> wire.ClientMessage:
        """The next valid message."""
        rng, make = self._rng, self._values.make
        match _pick(rng, _MESSAGES):
            case "results" if self._called:
                return self._results(self._called.popleft())
            case "cancel" if self._programs:
                number = rng.choice(list(self._programs))
                return wire.Cancel(number, self._programs.pop(number).seq)
            case "ping":
                return wire.Ping()
            case "ask":
                return make(wire.Ask)
            case "acknowledge":
                return wire.Acknowledge(rng.randint(max(0, self._n_programs - 4), self._n_programs))
            case "define":
                return self._define()
            case "undefine" if self._templates:
                number = rng.choice(list(self._templates))
                del self._templates[number]
                return wire.Undefine(number)
            case "hello":
                return make(wire.Hello)
        return self._submit()

    def receive(self, message: wire.ServerMessage) -> None:
        match message:
            case wire.Failed(ref=None, program=number):
                self._programs.pop(number, None)
            case wire.Called():
                self._called.append(message)

    def _submit(self) -> wire.Submit:
        rng = self._rng
        is_new = not self._programs or (len(self._programs) < MAX_PROGRAMS and rng.random() < 0.35)
        if is_new:
            number, self._n_programs = self._n_programs, self._n_programs + 1
            self._programs[number] = Numbers()
        else:
            number = rng.choice(list(self._programs))
        numbers = self._programs[number]
        ops = tuple(op for _ in range(rng.randint(1, 3)) for op in self._ops(numbers))
        is_last = rng.random() < 0.25
        if is_last:
            del self._programs[number]
        limits = self._values.make(wire.ProgramLimits) if is_new and rng.random() < 0.2 else None
        numbers.seq += 1
        return wire.Submit(number, numbers.seq - 1, ops, is_last, rng.choice(("", "p")), limits)

    def _results(self, called: wire.Called) -> wire.ClientMessage:
        numbers = self._programs.get(called.program)
        if numbers is None or called.ref not in numbers.refs:
            return wire.Ping()
        texts: tuple[str, ...] = tuple("r" for _ in called.calls)
        if called.scores is not None:
            texts = ("a",)
        elif not called.calls:
            texts = self._rng.choice(((), ("again",)))
        op = wire.Results(numbers.refs[called.ref], called.ref, called.round, texts)
        numbers.seq += 1
        return wire.Submit(called.program, numbers.seq - 1, (op,))

    def _define(self) -> wire.Define:
        number = self._n_templates % MAX_TEMPLATES
        self._n_templates += 1
        numbers = Numbers(n_args=self._rng.randrange(3))
        ops = [wire.Append(0, tuple(map(wire.Arg, range(numbers.n_args))))]
        ops += [op for _ in range(self._rng.randint(1, 5)) for op in self._ops(numbers, is_template=True)]
        n_draws = sum(
            (isinstance(op, wire.Gen) and op.sampling.seed is None) or (isinstance(op, wire.Select) and op.seed is None)
            for op in ops
        )
        self._templates[number] = Template(numbers, n_draws)
        return wire.Define(number, tuple(ops))

    def _ops(self, numbers: Numbers, is_template: bool = False) -> list[Any]:
        """Ops that are valid after the ones before."""
        rng, make = self._rng, self._values.make
        state = rng.choice(numbers.states)
        match _pick(rng, _OPS):
            case "turn":
                return [wire.Append(state, (make(wire.BeginTurn), *self._parts(numbers), wire.EndTurn()))]
            case "gen":
                return [self._gen(numbers, state)]
            case "answer":
                has_tools = rng.random() < 0.5
                gen = self._gen(numbers, state)
                if has_tools:
                    sampling = replace(gen.sampling, n=1, constraint=None)
                    gen = replace(gen, tools=make(wire.Tools), retries=0, reasoning=None, sampling=sampling)
                begin = wire.Append(state, (wire.BeginTurn("assistant"),))
                return [begin, gen, wire.Append(state, (wire.EndTurn(),))]
            case "select":
                before = wire.Append(state, ("?",))  # a select cannot be the first thing in a state
                return [before, make(wire.Select, state=state, ref=numbers.ref(state), timeout=0.0)]
            case "fork":
                children = tuple(range(numbers.n_states, numbers.n_states + rng.randint(1, 3)))
                numbers.n_states += len(children)
                numbers.states = [*numbers.states, *children][-6:]
                numbers.marks |= {child: list(numbers.marks.get(state, ())) for child in children}
                return [wire.Fork(state, children)]
            case "join" if others := [other for other in numbers.states if other != state]:
                return [wire.Join(state, tuple(rng.sample(others, rng.randint(1, len(others)))))]
            case "mark":
                numbers.marks.setdefault(state, []).append(numbers.n_marks)
                numbers.n_marks += 1
                return [wire.Mark(state, numbers.n_marks - 1)]
            case "read":
                mark = rng.choice((None, *numbers.marks.get(state, ())[-2:]))
                return [wire.Read(state, numbers.ref(state), mark, tokens=mark is None and rng.random() < 0.3)]
            case "drop" if len(numbers.states) > 1:
                numbers.states.remove(state)
                return [wire.Drop(state)]
            case "hint":
                return [make(wire.CacheHint, state=state)]
            case "use" if self._templates and not is_template:
                return [self._use(numbers, state)]
        return [wire.Append(state, self._parts(numbers))]

    def _use(self, numbers: Numbers, state: int) -> wire.Use:
        number = self._rng.choice(list(self._templates))
        template, n_draws = self._templates[number]
        child, ref, mark = numbers.n_states, numbers.n_refs, numbers.n_marks
        numbers.n_states += template.n_states - 1
        numbers.n_marks += template.n_marks
        for k, of in template.refs.items():
            numbers.refs[ref + k] = child + of - 1 if of else state
        numbers.n_refs += template.n_refs
        seeds = tuple(range(n_draws)) if self._rng.random() < 0.5 else ()
        args = tuple("x" * k for k in range(template.n_args))
        return wire.Use(state, number, args, child, ref, mark, seeds)

    def _gen(self, numbers: Numbers, state: int) -> wire.Gen:
        rng = self._rng
        sampling = self._values.make(wire.Sampling)
        retries = rng.choice((0, 0, 0, 1))
        if retries:
            sampling = replace(sampling, n=1)
        if sampling.constraint is not None:
            sampling = replace(sampling, ignore_eos=False)
        fields = {"sampling": sampling, "retries": retries, "reasoning": None, "timeout": 0.0}
        if rng.random() < 0.1:
            fields |= {"reasoning": wire.Reasoning(), "timeout": 5.0}
        return self._values.make(wire.Gen, state=state, ref=numbers.ref(state), **fields)

    def _parts(self, numbers: Numbers) -> tuple[wire.Part, ...]:
        rng = self._rng
        parts: list[wire.Part] = [rng.choice(("a", " the", "quick brown", CONTROL, "é", "x" * 60))]
        if rng.random() < 0.2:
            parts.append(wire.Raw(rng.choice((CONTROL, "b"))))
        if numbers.refs and rng.random() < 0.2:
            parts.append(wire.Ref(rng.choice(list(numbers.refs))))
        if rng.random() < 0.05:
            parts.append(wire.TokenIds(rng.choice((b"\1\0\0\0" * 3, b"\1\0\0\0", b"", b"\1", b"\xff" * 4))))
        if rng.random() < 0.01:
            parts.append(wire.Image(b"data", "image/png"))  # refused: the model takes only text
        return tuple(parts)
