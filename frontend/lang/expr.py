"""What can be appended to a state: frozen values that say what should happen, and do nothing by themselves.

    gen("a") + "text" + select("b", ["x", "y"])     a sequence
    user("Hi") + assistant(gen("a"))                turns
    f"Because {gen('why')}, so {gen('what')}."      inside f-strings too

A plain `str` is text, and text is data: whatever it holds, it never becomes a control token. `raw` opts out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from banyan.lang import fstring, images, output_types
from banyan.lang.choices import Method, checked_choices, checked_method, token_length_normalized
from banyan.lang.sampling import MAX_RETRIES, GenOptions, make
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol.wire import ChoicesMethod, ConstraintSpec, Reasoning, Sampling

if TYPE_CHECKING:
    from banyan.lang.lazy_value import LazyValue


class Expr:
    """Base of all that can be appended, but for plain strings."""

    __slots__ = ()

    def __add__(self, other: Expression) -> Seq:
        return Seq((*_parts(self), *_parts(other)))

    def __radd__(self, other: Expression) -> Seq:
        return Seq((*_parts(other), *_parts(self)))

    def __format__(self, spec: str) -> str:
        """What stands for this expression inside an f-string, or in `str(...)`, until that is appended."""
        if spec:
            raise BadProgram(f"an expression inside an f-string takes no format, but has {spec!r}")
        return "".join(part if isinstance(part, str) else _seals.seal(part) for part in _parts(self))

    def __str__(self) -> str:
        return format(self)


class _Node(Expr, msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of the expressions that are plain values."""


class RawExpr(_Node, frozen=True):
    """Text whose control tokens are meant."""

    text: str


class ImageExpr(_Node, frozen=True):
    """A picture: the bytes of its file, and what kind of file that is."""

    data: bytes
    kind: str


class RoleBegin(_Node, frozen=True):
    """A turn of `role` begins."""

    role: str


class RoleEnd(_Node, frozen=True):
    """The turn of `role` ends."""

    role: str


class GenExpr(_Node, frozen=True):
    """Generate here. `name`: the variable it makes, if any.

    answer: what its text is to be. retries: how often it may try again where it is not. tools: what the model may call.
    """

    name: str | None = None
    options: GenOptions = GenOptions()
    answer: Any = None
    """A typed.Answer."""
    retries: int | None = None
    tools: Any = None
    """A tools.Toolbox."""
    reasoning: Reasoning | None = None
    """How it marks what it thinks, where that is told apart."""

    def sampling(self, base: Sampling) -> Sampling:
        """`base`, with what this gen wants in its place."""
        merged = self.options.over(base)
        if self.answer is None:
            return merged
        stop = tuple(dict.fromkeys((*merged.stop, *self.answer.stop)))
        spec: ConstraintSpec | None = self.answer.spec
        if spec is not None and self.reasoning is not None:  # it thinks as it likes
            spec = msgspec.structs.replace(spec, after=(self.reasoning.end,))
        return msgspec.structs.replace(merged, constraint=spec, stop=stop)


class SelectExpr(_Node, frozen=True):
    """Append the best of `choices`."""

    choices: tuple[str, ...]
    name: str | None = None
    method: ChoicesMethod = token_length_normalized
    temperature: float = 0.0
    seed: int | None = None
    timeout: float | None = None
    decide: Any = None
    """A method of the user's, which decides by the scores."""


class Seq(_Node, frozen=True):
    """Expressions one after the other."""

    parts: tuple[Any, ...]
    """str and Leaf: sequences in sequences are flat."""


DRAWS = (GenExpr, SelectExpr)
"""What makes a value. A tuple: to look for one in a union makes the union first, and that is done for every piece."""

Leaf: TypeAlias = "RawExpr | ImageExpr | RoleBegin | RoleEnd | GenExpr | SelectExpr | LazyValue"
Expression: TypeAlias = str | Expr | Sequence["str | Expr"]


# ---- the constructors that users write -----------------------------------------------------------------------------


N_REMEMBERED = 1024


def remembered(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, which gives the same frozen value for the same arguments: a loop pays for its gen once.

    By their types too, for 1 is not 1.0. What cannot be hashed is made anew.
    """
    made = lru_cache(N_REMEMBERED, typed=True)(make)

    @wraps(make)
    def get(*args: Any, **kwargs: Any) -> Any:
        try:
            return made(*args, **kwargs)
        except TypeError:
            pass
        return make(*args, **kwargs)

    return get


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: Method | None = None,
    regex: str | None = None,
    json_schema: str | dict[str, Any] | None = None,
    *,
    repetition_penalty: float | None = None,
    logit_bias: dict[int, float] | None = None,
    seed: int | None = None,
    timeout: float | None = None,
    budget: int | None = None,
    priority: int | None = None,
    deadline: float | None = None,
    type: Any = None,
    grammar: str | None = None,
    retries: int | None = None,
    tools: Sequence[Any] | None = None,
    max_rounds: int | None = None,
    tool_timeout: float | None = None,
    max_tool_output: int | None = None,
) -> GenExpr | SelectExpr:
    """Generate text where this is appended, and call it `name`.

    Every option that is left out is as the run says (see `Options` for what each one means). With `choices`, this is
    `select`, at temperature 0 unless one is given.

    One of these holds the text to a form while it is generated. `s[name]` is the text, `s.value(name)` the object:

    type         int, float, bool, str, date, Literal, Enum: as they stand in a text. list, dict, TypedDict, dataclass,
                 msgspec.Struct, pydantic models, and all that they hold: as JSON, and checked. Types of outlines.
    json_schema  the object is what json.loads gives
    regex        Rust's syntax, without look-around. grammar: context-free, in Lark's notation. The object is the text
    dtype        SGLang's int, float, bool and str (in quotes, letters and spaces)

    retries: so often the model is told what is wrong with its text, where that is no such object after all (a check of
    pydantic's says no, or max_tokens cut it), and asked again, beside the prompt, which keeps only the last answer.

    tools: functions that the model may call, made by `@tool`; the gen stands in an assistant's turn. What it calls runs
    in this process, side by side, and what that gives goes back to it as turns of tools, until it answers: the variable
    is the turn in which it calls nothing. A call that fails tells it so. `s.tool_calls(name)` are the calls.
    max_rounds: turns with calls (4); beyond them, ToolError. tool_timeout: seconds for each call (60).
    max_tool_output: characters of each result (8,192); what is more is cut. max_tokens is of each turn.

    BadProgram: a value that cannot be. Unsupported: a type with tools; ask for it in a gen behind.
    """
    asked = {key: value for key, value in locals().items() if value is not None}  # the first line: locals are arguments
    asked.pop("name", None)
    return _gen(name, asked)


if not TYPE_CHECKING:  # to whom it stays the function it is
    gen = remembered(gen)


def _gen(name: str | None, asked: dict[str, Any]) -> GenExpr | SelectExpr:
    """What was asked for as an expression."""
    if (choices := asked.pop("choices", None)) is not None:
        asked.pop("return_logprob", None)  # those of choices are in the meta info anyway
        wishes = {key: asked.pop(key) for key in ("temperature", "choices_method", "seed", "timeout") if key in asked}
        if asked:
            raise BadProgram(f"gen with choices takes no {', '.join(asked)}: a choice is scored, not generated")
        return select(name, choices, **wishes)
    if "choices_method" in asked:
        raise BadProgram("choices_method says how choices are scored, but there are no choices")
    limits: dict[str, Any] = {
        key: asked.pop(key) for key in ("max_rounds", "tool_timeout", "max_tool_output") if key in asked
    }
    toolbox = _toolbox(asked, limits) if limits or "tools" in asked else None
    answer, retries = output_types.asked(asked), asked.pop("retries", None)
    if retries and answer is None:
        raise BadProgram("retries says how often an answer of the wrong form may be given anew; say the form: type=")
    if retries is not None and (not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES):
        raise BadProgram(f"retries is {retries!r}; it must be a number from 0 to {MAX_RETRIES}")
    return GenExpr(
        None if name is None else checked_name(name),
        make(GenOptions, asked) if asked else _NO_WISHES,
        answer,
        retries,
        toolbox,
    )


def _toolbox(asked: dict[str, Any], limits: dict[str, Any]) -> Any:
    """Takes the tools from `asked`."""
    from banyan.tools.toolbox import toolbox  # here: most programs have none

    if "tools" not in asked:
        raise BadProgram(f"{', '.join(limits)} is of gens with tools, and this one has none")
    if others := sorted({"type", "dtype", "regex", "json_schema", "grammar"} & asked.keys()):
        raise Unsupported(
            f"{', '.join(others)} with tools: a form would leave no room for calls; let this gen answer in words, and "
            "ask for the object in a gen behind it"
        )
    if asked.get("n", 1) != 1:
        raise BadProgram("a gen with tools has one sample; fork for several")
    return toolbox(asked.pop("tools"), **limits)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **options: Any,
) -> GenExpr | SelectExpr:
    """`gen(name, dtype=int)`."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **options)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **options: Any,
) -> GenExpr | SelectExpr:
    """`gen(name, dtype=str)`."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: Method = token_length_normalized,
    *,
    seed: int | None = None,
    timeout: float | None = None,
) -> SelectExpr:
    """Append the likeliest of `choices`, and call it `name`.

    temperature 0 takes the best score; above, the choice is drawn from softmax(score / temperature) with `seed`.
    choices_method: what the score is, by name, or a ChoicesSamplingMethod of your own, which takes no temperature.
    timeout: seconds from its turn on after which it raises DeadlineExceeded.
    BadProgram: no choices, one that is empty, or one that stands there twice.
    """
    if not temperature >= 0.0:
        raise BadProgram(f"temperature is {temperature}; it must be 0 or more")
    if timeout is not None:
        make(GenOptions, {"timeout": timeout})  # says what is wrong with it
    method, decide = checked_method(choices_method)
    if decide is not None and (temperature or seed is not None):
        raise BadProgram("a choices_method of your own decides by itself; leave out temperature and seed")
    return SelectExpr(
        checked_choices(choices),
        None if name is None else checked_name(name),
        method,
        float(temperature),
        seed,
        timeout,
        decide,
    )


def raw(text: str) -> RawExpr:
    """Text whose control tokens are meant, such as `raw("<|im_end|>")`. Never put the words of others in it."""
    if not isinstance(text, str):
        raise BadProgram(f"raw takes a string, not {type(text).__name__}")
    fstring.refuse(text, "raw takes text, and an expression stands in this; append it beside it")
    return RawExpr(text)


def image(expr: Any) -> ImageExpr:
    """A picture: the path of its file, its bytes, or a PIL image. As many as a prompt needs.

    BadProgram: no picture. Where it is appended, Unsupported: the model takes text alone.
    """
    data = images.read(expr)
    return ImageExpr(data, images.kind_of(data))


def role(name: str, expr: Expression | None = None) -> Seq:
    """A turn of any role that the model's chat template knows, such as "tool"."""
    if not isinstance(name, str) or not name:
        raise BadProgram(f"a role is a name, such as 'tool', not {name!r}")
    return Seq((RoleBegin(name), *(() if expr is None else _parts(expr)), RoleEnd(name)))


def system(expr: Expression | None = None) -> Seq:
    """A turn of the system."""
    return role("system", expr)


def user(expr: Expression | None = None) -> Seq:
    """A turn of the user."""
    return role("user", expr)


def assistant(expr: Expression | None = None) -> Seq:
    """A turn of the assistant."""
    return role("assistant", expr)


def system_begin() -> RoleBegin:
    """The first half of `system`."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """The second half of `system`."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """The first half of `user`."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """The second half of `user`."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """The first half of `assistant`."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """The second half of `assistant`."""
    return RoleEnd("assistant")


_OF_TOOLS = ("max_rounds", "tool_timeout", "max_tool_output")
_NO_WISHES = GenOptions()
NOTHING = Seq(())
"""What appends nothing: `s.user("x")` has done its work when it returns, so `s += s.user("x")` adds no second turn."""


def checked_name(name: object) -> str:
    """`name`, if a variable can be called so; BadProgram if not."""
    if isinstance(name, str):
        if name and not name.startswith("__"):
            return name
        why = "names that begin with two underscores are reserved" if name else "it is empty"
        raise BadProgram(f"{name!r} cannot be the name of a variable: {why}")
    raise BadProgram(f"the name of a variable is a string, not {name!r}")


# ---- taking expressions apart --------------------------------------------------------------------------------------


def leaves(expr: Expression) -> list[str | Leaf]:
    """The expression as a flat list, those inside f-strings too.

    BadProgram: something that is no expression, or a name that two gens of this one expression share. (Over several
    appends a later gen takes the name over: loops do that.)
    """
    flat: list[str | Leaf] = []
    for part in _parts(expr):
        if not isinstance(part, str):
            flat.append(part)
        elif fstring.holds(part):
            flat += _seals.unseal(part)
        elif part:
            flat.append(part)
    names = [part.name for part in flat if isinstance(part, DRAWS) and part.name is not None]
    if len(names) > 1 and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadProgram(f"two gens of one expression are both called {twice!r}; only one of them could be read")
    return flat


def _parts(expr: Any) -> Iterable[Any]:
    if isinstance(expr, str):
        return (expr,)
    if isinstance(expr, Seq):
        return expr.parts
    if isinstance(expr, Expr):
        return (expr,)
    if isinstance(expr, list | tuple):
        return [part for item in expr for part in _parts(item)]
    if expr is None:
        raise BadProgram("None was appended; a function that forgot its return?")
    instead = getattr(expr, "_instead", "if its text is meant, use str(...)")
    kind = type(expr).__name__
    raise BadProgram(f"a value of type {kind} cannot be appended, only strings and expressions; {instead}")


_seals = fstring.Seals(RawExpr | ImageExpr | RoleBegin | RoleEnd | GenExpr | SelectExpr)
