"""Expressions: what can be appended to a state. An expression is a frozen value; creating one runs nothing.

    gen("a") + "text" + select("b", ["x", "y"])     a sequence
    user("Hi") + assistant(gen("a"))                turns
    f"Because {gen('why')}, so {gen('what')}."      inside f-strings too

The text of a plain `str` never becomes a control token, such as <|im_end|>. Use `raw` for text with control tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import msgspec
from msgspec.structs import replace

from banyan.execution.source_line import warn
from banyan.lang import fstring, images, output_types
from banyan.lang.choices import Method, checked_choices, checked_method, token_length_normalized
from banyan.lang.sampling import MAX_RETRIES, GenOptions, make
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol.reasoning_formats import REASONING_FORMATS, THINK_TAGS
from banyan.runtime.protocol.roles import check_role
from banyan.runtime.protocol.wire import ChoicesMethod, ConstraintSpec, Reasoning, Sampling
from banyan.tools.toolbox import Toolbox


class Expr:
    """Base class of everything that can be appended, except plain strings."""

    __slots__ = ()

    def __add__(self, other: Expression) -> Seq:
        return Seq((*_parts(self), *_parts(other)))

    def __radd__(self, other: Expression) -> Seq:
        return Seq((*_parts(other), *_parts(self)))

    def __format__(self, spec: str) -> str:
        """Returns a string with this expression embedded, for f-strings and `str(...)`."""
        if spec:
            raise BadProgram(f"an expression inside an f-string takes no format, but has {spec!r}")
        return "".join(part if isinstance(part, str) else _embedder.embed(part) for part in _parts(self))

    def __str__(self) -> str:
        return format(self)


class _Node(Expr, msgspec.Struct, frozen=True, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """Base class of the expressions that are frozen structs: all except LazyValue and ArgumentSlot."""

    def __repr__(self) -> str:
        parts = super().__repr__().replace(fstring.MARK, "")  # the parts of a sequence each end with the mark
        return f"<{parts}{fstring.MARK}>"


class RawExpr(_Node, frozen=True):
    """Text in which control tokens are recognised."""

    text: str


class ImageExpr(_Node, frozen=True):
    """An image. data: the contents of its file; kind: its media type."""

    data: bytes
    kind: str


class RoleBegin(_Node, frozen=True):
    """Begins a turn of `role`."""

    role: str


class RoleEnd(_Node, frozen=True):
    """Ends the turn of `role`."""

    role: str


class GenExpr(_Node, frozen=True):
    """Generates text. name: the variable that will hold the text, if any."""

    name: str | None = None
    options: GenOptions = GenOptions()
    output_type: Any = None
    """An OutputType that the text must match, or None."""
    retries: int | None = None
    """How often the model may try again if the text does not match; None: the run's value."""
    tools: Any = None
    """A Toolbox of tools that the model may call, or None."""
    reasoning: Reasoning | None = None
    """How the model marks its reasoning; None: the reasoning is not separated from the text."""

    def sampling(self, base: Sampling) -> Sampling:
        """The sampling parameters of this gen: those of the run, `base`, overridden by its options and its type."""
        merged = self.options.over(base)
        if self.output_type is None:
            return merged
        spec: ConstraintSpec | None = self.output_type.spec
        if spec is not None and self.reasoning is not None:
            # only the text after the reasoning is constrained; the type's stop strings would cut the reasoning
            spec = replace(spec, after=(self.reasoning.end + self.reasoning.answer,))
            return replace(merged, constraint=spec)
        stop = tuple(dict.fromkeys((*merged.stop, *self.output_type.stop)))
        return replace(merged, constraint=spec, stop=stop)


class SelectExpr(_Node, frozen=True):
    """Appends the best of `choices`. decide: the user's own method, which gets the scores and returns the choice."""

    choices: tuple[str, ...]
    name: str | None = None
    method: ChoicesMethod = token_length_normalized
    temperature: float = 0.0
    seed: int | None = None
    timeout: float | None = None
    decide: Any = None
    adapter: str | None = None
    chat_template_kwargs: str | None = None


class Seq(_Node, frozen=True):
    """A flat sequence of strings and expressions."""

    parts: tuple[Any, ...]

    if not TYPE_CHECKING:  # type checkers should report it

        def __enter__(self) -> NoReturn:
            raise BadProgram("a turn as a block is a method of the state: write `with s.user():`, not `bn.user()`")

        def __exit__(self, *error: object) -> None: ...


class Appended(_Node, frozen=True):
    """An expression that appends nothing. `s.user("x")` appends its turn at once and returns this expression, so that
    `s += s.user("x")` adds the turn once. `leaves` refuses `s += "a" + s.user("x")`: Python would run the call first,
    and "a" would come after the turn."""


APPENDED = Appended()
NOTHING = Seq(())
"""Appends nothing."""
Leaf: TypeAlias = Expr
"""An expression that is not a Seq."""
Expression: TypeAlias = str | Expr | Sequence["str | Expr"]


# ---- constructors for users ------------------------------------------------------------------------------------------


def cached(make: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the frozen values that `make` returns for hashable arguments, so that a gen in a loop is built once.

    A gen with a function among its arguments (tools, choices_method) is not cached: a function that the body of a
    program defines may keep all objects of its run alive.
    """

    @lru_cache(1024, typed=True)
    def cached_make(_: str, *args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    @wraps(make)
    def get(*args: Any, **kwargs: Any) -> Any:
        if "tools" not in kwargs and not callable(kwargs.get("choices_method")):
            try:
                return cached_make(output_types.spelling(kwargs.get("type", str)), *args, **kwargs)
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
    max_new_tokens: int | None = None,
    schema: str | dict[str, Any] | None = None,
    whitespace: str | None = None,
    order: str | None = None,
    repetition_penalty: float | None = None,
    logit_bias: dict[int, float] | None = None,
    seed: int | None = None,
    adapter: str | None = None,
    chat_template_kwargs: dict[str, Any] | str | None = None,
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
    """Generate text and store it in the variable `name`.

    `Options` describes the options. An option that is left out has the value that the run gives it. With `choices` (and
    choices_method), `gen` is `select`, its temperature is 0 unless one is given, and options of SGLang that do not
    apply to a select are ignored, with a warning.

    Each of the following constrains the text while it is generated. `s[name]` is the text, `s.value(name)` the object:

    type         int, float, bool, date, Literal, Enum: written as plain text; str: any text. list, dict, TypedDict,
                 dataclass, msgspec.Struct, pydantic models: written as JSON and validated. Also the types of the
                 outlines package. An int or a float has the stop strings " " and "\\n", where the number ends
    json_schema  text or a dict; also called schema; the object is what json.loads returns
    regex        in Rust's syntax, without look-around; the object is the text
    grammar      context-free, in Lark's notation or GBNF; the object is the text
    dtype        as in SGLang: int, float, bool or str (letters, digits, _ and white space, in quotes)

    whitespace: the whitespace in JSON: "spaced" ({"a": 1, "b": 2}), "compact" ({"a":1,"b":2}), "either" (one of these
    throughout; the default) or "any". order: the order of optional properties in JSON: "schema" (as the schema lists
    them; the default), or "any" (any order, after the required ones).

    retries: how often the model may try again if its text is not a valid object in spite of the constraint (a pydantic
    validator refused it, or max_tokens cut it). Before each try the model is told what is wrong. The prompt keeps only
    the last answer.

    tools: functions that the model may call, made by `@tool`. The gen must be in an assistant's turn. The calls run in
    this process, concurrently. Their results, or errors, go back to the model as tool turns, until the model answers
    without a call. This last answer is the value of the gen. `s.tool_calls(name)` returns the calls. max_rounds: the
    most turns with calls (default: 4); if the model makes calls in one more turn, the gen fails with ToolError.
    tool_timeout: seconds per call (60). max_tool_output: characters kept of each result (8,192). max_tokens applies to
    each turn.

    BadProgram: an invalid value. Unsupported: a type together with tools; ask for the type in a second gen.
    """
    asked = {key: value for key, value in locals().items() if value is not None}  # the first line: locals are arguments
    asked.pop("name", None)
    return _gen(name, asked)


if not TYPE_CHECKING:  # type checkers should see the signature of `gen`
    gen = cached(gen)


def _gen(name: str | None, asked: dict[str, Any]) -> GenExpr | SelectExpr:
    if (choices := asked.pop("choices", None)) is not None:
        asked.pop("return_logprob", None)  # the meta info of a select always has log-probabilities
        if spare := [key for key in asked if key in _SPARE]:
            warn(f"gen with choices ignores {', '.join(spare)}: a choice is scored, not generated")
            asked = {key: value for key, value in asked.items() if key not in _SPARE}
        options = {
            key: asked.pop(key)
            for key in ("temperature", "choices_method", "seed", "timeout", "adapter", "chat_template_kwargs")
            if key in asked
        }
        if asked:
            raise BadProgram(f"gen with choices does not take {', '.join(asked)}: choices are scored, not generated")
        return select(name, choices, **options)
    if "choices_method" in asked:
        raise BadProgram("choices_method needs choices")
    output_types.refuse_type("max_tokens", asked.get("max_tokens"))  # gen("x", int)
    tools, output_type, retries = _take_tools(asked), output_types.take(asked), asked.pop("retries", None)
    if output_type is not None and output_type.note:
        warn(output_type.note)
    if retries and output_type is None:
        raise BadProgram("retries applies to gens with a type; add type=")
    if retries is not None and (not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES):
        raise BadProgram(f"retries is {retries!r}; it must be a number from 0 to {MAX_RETRIES}")
    gen_options = make(GenOptions, asked) if asked else _NO_OPTIONS
    name = None if name is None else checked_name(name)
    return GenExpr(name, gen_options, output_type, retries, tools)


_SPARE = frozenset(
    (
        *("max_tokens", "max_new_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex", "top_p", "top_k"),
        *("min_p", "frequency_penalty", "presence_penalty", "ignore_eos", "logprob_start_len", "top_logprobs_num"),
        *("return_text_in_logprobs", "dtype", "regex", "json_schema", "schema"),
    )
)
"""Options of SGLang's `gen` that have no effect with `choices`. Programs written for SGLang may give them."""


def _take_tools(asked: dict[str, Any]) -> Toolbox | None:
    """Remove the tools and their limits from `asked`; returns them as a Toolbox."""
    limits = {key: asked.pop(key) for key in ("max_rounds", "tool_timeout", "max_tool_output") if key in asked}
    if "tools" not in asked:
        if limits:
            raise BadProgram(f"{', '.join(limits)} applies to gens with tools, but this gen has none")
        return None
    if others := sorted({"type", "dtype", "regex", "json_schema", "schema", "grammar"} & asked.keys()):
        raise Unsupported(
            f"{', '.join(others)} with tools: a constrained gen cannot call tools; let this gen answer in text, and "
            "ask for the object in a second gen"
        )
    if asked.get("n", 1) != 1:
        raise BadProgram("a gen with tools has one sample; for several, use fork")
    return Toolbox(asked.pop("tools"), **limits)


def gen_int(
    name: str | None = None, max_tokens: int | None = None, n: int | None = None, stop: Any = None, **options: Any
) -> GenExpr | SelectExpr:
    """The same as `gen(name, dtype=int)`."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **options)


def gen_string(
    name: str | None = None, max_tokens: int | None = None, n: int | None = None, stop: Any = None, **options: Any
) -> GenExpr | SelectExpr:
    """The same as `gen(name, dtype=str)`."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: Method = token_length_normalized,
    *,
    seed: int | None = None,
    timeout: float | None = None,
    adapter: str | None = None,
    chat_template_kwargs: dict[str, Any] | str | None = None,
) -> SelectExpr:
    """Append the choice with the highest score and store it in the variable `name`.

    temperature: if above 0, the choice is drawn from softmax(score / temperature), with `seed`. choices_method: how
    choices are scored: the name of a method, or your own ChoicesSamplingMethod. Your own method takes the decision, so
    it cannot be combined with temperature and seed. timeout, adapter, chat_template_kwargs: as for `gen`.
    """
    # raises BadProgram if an option is invalid
    asked = {"temperature": temperature, "seed": seed, "timeout": timeout, "adapter": adapter}
    kwargs: Any = make(GenOptions, asked | {"chat_template_kwargs": chat_template_kwargs}).chat_template_kwargs
    method, decide = checked_method(choices_method)
    if decide is not None and (temperature or seed is not None):
        raise BadProgram("your own choices_method decides by itself; leave out temperature and seed")
    name = None if name is None else checked_name(name)
    return SelectExpr(
        *(checked_choices(choices), name, method, float(temperature or 0.0), seed, timeout, decide, adapter, kwargs)
    )


def raw(text: str) -> RawExpr:
    """Text in which control tokens are recognised, such as `raw("<|im_end|>")`. Never pass untrusted text."""
    if not isinstance(text, str):
        raise BadProgram(f"raw takes a string, not {type(text).__name__}")
    fstring.refuse(text, "raw takes plain text, but this contains an expression; append the expression separately")
    return RawExpr(text)


def image(expr: Any) -> ImageExpr:
    """An image, given as the path of its file, as bytes or as a PIL image. A prompt may hold several images.

    BadProgram: the image cannot be read. Appending it to a program whose model takes only text raises Unsupported.
    """
    data = images.read(expr)
    return ImageExpr(data, images.kind_of(data))


def role(name: str, expr: Expression = NOTHING) -> Seq:
    """A turn of any role that the model's chat template knows, such as "tool"; without `expr`, an empty turn.

    BadProgram: the name does not consist of 1 to 64 letters, digits, spaces and `_.-`, or `expr` is None.
    """
    check_role(name)
    return Seq((RoleBegin(name), *_parts(expr), RoleEnd(name)))


def system(expr: Expression = NOTHING) -> Seq:
    """Returns a turn of the system that contains `expr`; without `expr`, an empty turn."""
    return role("system", expr)


def user(expr: Expression = NOTHING) -> Seq:
    """Returns a turn of the user that contains `expr`; without `expr`, an empty turn."""
    return role("user", expr)


def assistant(expr: Expression = NOTHING) -> Seq:
    """Returns a turn of the assistant that contains `expr`; without `expr`, an empty turn."""
    return role("assistant", expr)


def system_begin() -> RoleBegin:
    """Returns an expression that begins a turn of the system; `system_end()` ends the turn."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """Returns an expression that ends a turn of the system."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """Returns an expression that begins a turn of the user; `user_end()` ends the turn."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """Returns an expression that ends a turn of the user."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """Returns an expression that begins a turn of the assistant; `assistant_end()` ends the turn."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """Returns an expression that ends a turn of the assistant."""
    return RoleEnd("assistant")


def separate_reasoning(expr: Expression = NOTHING, model_type: str | None = None) -> Seq:
    """Make the gens of `expr` separate reasoning from the answer. For a gen named x, the variable x and the prompt get
    the answer, and the variable `x_reasoning_content` gets the reasoning.

    model_type: the kind of model, which determines the marks around the reasoning: "deepseek-r1", "qwen3" and so on;
    None: <think>...</think>.
    """
    marks = THINK_TAGS if model_type is None else REASONING_FORMATS.get(str(model_type).lower())
    if marks is None:
        raise Unsupported(f"unknown model_type {model_type!r}; choose one of {', '.join(sorted(REASONING_FORMATS))}")
    if expr is NOTHING:
        return NOTHING
    flat = leaves(expr)
    if not any(isinstance(leaf, GenExpr) and leaf.name is not None for leaf in flat):
        raise BadProgram("separate_reasoning needs a gen that has a name")
    return Seq(tuple(replace(leaf, reasoning=marks) if isinstance(leaf, GenExpr) else leaf for leaf in flat))


REASONING_SUFFIX = "_reasoning_content"
"""The reasoning of the gen `x` is in the variable `x_reasoning_content`."""

_NO_OPTIONS = GenOptions()


def checked_name(name: object) -> str:
    """Returns `name`. BadProgram: it is not a valid name of a variable."""
    if not isinstance(name, str):
        raise BadProgram(f"the name of a variable is a string, not {fstring.shown(name)}")
    fstring.refuse(name, "the name of a variable is plain text, but this contains an expression")
    if not name or name.startswith("__"):
        why = "names that begin with two underscores are reserved" if name else "it is empty"
        raise BadProgram(f"{name!r} cannot be the name of a variable: {why}")
    return name


# ---- flattening expressions ------------------------------------------------------------------------------------------


def leaves(expr: Expression) -> list[str | Leaf]:
    """Returns the expression as a flat list, including expressions inside f-strings.

    BadProgram: a value cannot be appended, text stands before a call that has already appended its own text (see
    Appended), or two gens of the expression have the same name. (In separate appends, the later gen replaces the
    variable.)
    """
    flat: list[str | Leaf] = []
    for part in _parts(expr):
        if not isinstance(part, str):
            flat.append(part)
        elif fstring.holds_expression(part):
            flat += _embedder.extract(part)
        elif part:
            flat.append(part)
    appended = [i for i, part in enumerate(flat) if type(part) is Appended]
    if appended:
        if appended[-1] >= len(appended):
            raise BadProgram(
                "a call that appends at once, such as s.user(...) or inline, would put its text before the text to its "
                "left; make it its own statement, inside `with s.user():` if it belongs to a turn"
            )
        del flat[: len(appended)]
    # Here and in _append, `type() is`: isinstance with a struct's class takes 0.1 us if the answer is no.
    draws = [part for part in flat if type(part) is GenExpr or type(part) is SelectExpr]
    names = [part.name for part in draws if part.name is not None]
    if len(names) > 1 and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadProgram(f"two gens of one expression are both called {twice!r}; only one of them could be read")
    return flat


def _parts(expr: Any) -> Iterable[Any]:
    if isinstance(expr, str):
        return (expr,)
    if isinstance(expr, Seq):
        return expr.parts
    if isinstance(expr, Appended):
        return (APPENDED,)  # without the fields of a subclass, such as Inlined
    if isinstance(expr, Expr):
        return (expr,)
    if isinstance(expr, list | tuple):
        return [part for item in expr for part in _parts(item)]
    if expr is None:
        raise BadProgram("None was appended; does a function lack its return?")
    kind, instead = type(expr).__name__, getattr(expr, "_instead", None) or _advice(expr)
    raise BadProgram(f"a value of type {kind} cannot be appended, only strings and expressions; {instead}")


def _advice(value: object) -> str:
    """How to append a value of an unsupported type, for the end of an error message."""
    if output_types.is_type(value):
        return "to generate a text of this type, use gen(name, type=...)"
    if callable(value):
        return "to append what it returns, call it; a program is called with prog.inline(s, ...)"
    match value:
        case Awaitable():
            return "to append its result, await it, in an `async def`"
        case AsyncIterator():
            return "to append its items, use [item async for item in ...], in an `async def`"
        case Iterator():
            return "to append its items, use list(...)"
        case bytes() | bytearray():
            return "to append its text, use .decode()"
        case {"role": _, "content": _}:
            return "to append a turn m of a chat, use bn.role(m['role'], m['content'])"
    return "to append its text, use str(...)"


_embedder = fstring.Embedder(Appended | RawExpr | ImageExpr | RoleBegin | RoleEnd | GenExpr | SelectExpr)
