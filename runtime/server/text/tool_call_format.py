"""The format in which a model writes tool calls. It is detected from the chat template and used to parse outputs.

The template renders a conversation in which the assistant makes a call. The rendered call must have one of the
following formats, and parsing the rendered text must return the same call.

    <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>   a mark before each call in JSON (Hermes, Qwen)
    {"name": "f", "parameters": {"x": 1}}                         the whole turn is JSON (Llama 3)
    [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]           a mark before a list (Mistral)
    [TOOL_CALLS]f[ARGS]{"x": 1}                                   the name between two marks (later Mistral models)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram, ToolError
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT
from banyan.runtime.protocol.wire import WireToolCall
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate
from banyan.runtime.server.text.tokenizer import Tokenizer

_decode = json.JSONDecoder(strict=False).raw_decode
_BETWEEN = re.compile(r"[\s,;]*")
_END = "</think>"
_ARGUMENTS = ("arguments", "parameters")
"""The keys of arguments that are accepted in any format, because models also write the key of another format."""
N_CALLS = 32
"""Maximum number of calls of one turn. Further calls are answered with an error."""
ANY = {"type": "object"}
_COMBINES = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not")
"""Keywords with which a schema may describe properties that its own `properties` do not list."""
Scope = Literal["must", "may", "repeat", "at_once"]
_TOKENS = re.compile(r'\\.?|["{}\[\]\x00-\x1f]', re.DOTALL)


class ArgumentsText:
    """The arguments of a call, piece by piece: the JSON that the model writes, up to its end. Control characters in
    strings, which JSON does not allow, are escaped.

    is_over: whether the JSON is complete."""

    def __init__(self) -> None:
        self.is_over = self._is_string = False
        self._depth = 0
        self._held = ""  # a backslash whose escape is not complete

    def feed(self, text: str) -> tuple[str, str]:
        """Take more of the output. Returns more of the arguments, and the text after them."""
        text = self._held + text
        self._held = ""
        found: list[str] = []
        start, end = 0, len(text)
        for match in _TOKENS.finditer(text):
            token = match[0]
            if token == "\\":
                self._held, end = token, match.start()
            elif token == '"':
                self._is_string = not self._is_string
            elif self._is_string:
                if token < " ":
                    found += text[start : match.start()], json.dumps(token)[1:-1]
                    start = match.end()
            elif token in "{[":
                self._depth += 1
            elif token in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.is_over, end = True, match.end()
                    break
        return "".join((*found, text[start:end])), "" if self._held else text[end:]


class Form(NamedTuple):
    """A format of tool calls.

    mark: the text before a call; "" if the whole turn is the call. name, arguments: the keys of the call's JSON. If
    name is None, the tool's name is the text before `split`, and the JSON holds only the arguments. close: the text
    after a call. is_list: whether the template writes calls as a list. A single call without a list is accepted too.
    is_hidden: whether mark or split is a control token, which the text of an output does not show. is_plain: whether a
    turn with calls renders like a turn whose text is these calls. If not, the template gets the calls as data."""

    mark: str
    name: str | None = "name"
    arguments: str = "arguments"
    split: str = ""
    close: str = ""
    is_list: bool = False
    is_hidden: bool = False
    is_plain: bool = True
    style: Literal["spaced", "compact"] = "spaced"

    def read(
        self, shown: str, spelled: str, n_before: int = 0, names: Sequence[str] = (), is_separated: bool = False
    ) -> tuple[WireToolCall, ...]:
        """Returns the tool calls of an assistant turn, in order. If the text after a call mark is no valid call, the
        returned call has an `error`.

        shown: the text of the turn. spelled: the same text with its control tokens written out. n_before: how many
        calls the conversation had before this turn; the ids of the calls are numbered from there. names: the names of
        the tools. is_separated: whether the reasoning was already removed from the text."""
        text = self._answer(shown, spelled, is_separated)
        found = self._marked(text) if self.mark else self._bare(text, names)
        if len(found) > N_CALLS:
            more = f"a turn can make {N_CALLS} calls, and this is one more"
            found[N_CALLS:] = [replace(call, error=more) for call in found[N_CALLS:]]
        # Mistral's templates require ids of nine digits.
        return tuple(replace(call, id=f"{n_before + k:09d}") for k, call in enumerate(found))

    def text_before(self, shown: str, spelled: str, is_separated: bool = False) -> str | None:
        """The text of a turn before its first call mark; None: it has none. shown, spelled: the text without and with
        its control tokens. is_separated: whether the reasoning was already removed from it."""
        text = self._answer(shown, spelled, is_separated)
        if not self.mark or self.mark not in text:
            return None
        before = text.partition(self.mark)[0]
        return before if before.strip() else ""

    def opening(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Patterns for the text after a call mark: up to the name of the tool, which is the group, and from there up to
        the arguments. They match a call whose keys have the order of the format."""
        if self.name is None:
            split = re.escape(self.split) if self.split else r"(?=\{)"
            return re.compile(f"(.*?){split}", re.DOTALL), re.compile(r"[\s,;]*(?=\{)")
        name, arguments = re.escape(json.dumps(self.name)), re.escape(json.dumps(self.arguments))
        to_name = rf'[\s,;]*(?:\[\s*)?\{{\s*{name}\s*:\s*"([^"\\\x00-\x1f]*)"'
        return re.compile(to_name), re.compile(rf"\s*,\s*{arguments}\s*:\s*(?=\{{)")

    def _answer(self, shown: str, spelled: str, is_separated: bool) -> str:
        """Returns the text of a turn after its reasoning; only this part can have calls. An end mark of reasoning that
        stands inside the JSON of a call is ignored. shown, spelled: the text without and with its control tokens.
        is_separated: whether the reasoning was already removed from it."""
        text = spelled if self.is_hidden else shown
        start = at = 0
        while not is_separated and (end := text.find(_END, at)) >= 0:
            if (mark := text.find(self.mark, at, end)) >= 0:
                at = mark + len(self.mark)
                try:
                    if self.name is None:
                        at = text.index(self.split or "{", at, end) + len(self.split)
                    _, at = _decode(text, _skip(text, at))
                    continue
                except (ValueError, RecursionError):
                    if self.mark:
                        continue
            start = at = end + len(_END)
        return text[start:]

    def constraint(
        self, specs: tuple[str, ...], since: str, is_strict: bool, scope: Scope = "repeat", is_checked: bool = False
    ) -> wire.ConstraintSpec | None:
        """Returns a constraint on the text after the mark of each call; None: a constraint cannot find calls of this
        format in the text.

        since: the mark that ends the model's reasoning; "": it does not reason. is_strict: whether arguments must match
        the schema of the tool's parameters; otherwise any object is allowed. scope: as in ConstraintSpec; "at_once":
        the prompt already ends with the mark, so the output begins inside the call. is_checked: whether keywords that
        cannot be enforced are left out, and not refused."""
        if self.name is None and (not self.split or self.is_hidden):
            return None
        if not self.mark and scope != "at_once":
            return None
        tools = []
        for one in specs:
            function = json.loads(one)["function"]
            parameters = function.get("parameters")
            has_schema = is_strict and isinstance(parameters, dict) and parameters.get("type") == "object"
            closed = {} if not has_schema or any(map(parameters.get, _COMBINES)) else {"additionalProperties": False}
            tools.append((function["name"], closed | parameters if has_schema else ANY))
        kind: Literal["grammar", "json_schema"] = "json_schema" if self.name is not None else "grammar"
        if kind == "grammar":
            ways = (f"{json.dumps(f'{name}{self.split}')} %json {json.dumps(schema)}" for name, schema in tools)
            text = f"start: {' | '.join(ways)}"
        else:
            text = json.dumps(self._call_schema(tools))
        if scope == "at_once":
            return wire.ConstraintSpec(kind, text, self.style, end=self.close, is_checked=is_checked)
        return wire.ConstraintSpec(
            kind, text, self.style, (self.mark,), scope=scope, end=self.close, since=since, is_checked=is_checked
        )

    def _call_schema(self, tools: list[tuple[str, Any]]) -> Any:
        """The schema of one call, or of a list of calls. The parameters of each tool get an `$id` (in draft 4 an `id`),
        so that a reference such as "#/$defs/Point" leads to the tool's own definition. If the tools name one draft, it
        applies."""
        calls = []
        drafts = {schema["$schema"] for _, schema in tools if isinstance(schema.get("$schema"), str)}
        draft = {"$schema": drafts.pop()} if len(drafts) == 1 else {}
        key = "id" if "draft-04" in draft.get("$schema", "") else "$id"
        given = Counter(str(schema.get(key)).removesuffix("#") for _, schema in tools)
        for k, (name, schema) in enumerate(tools):
            own, new = str(schema.get(key)).removesuffix("#"), {key: f"tool:{k}"}
            is_shared = given[own] > 1 or own.startswith("tool:")  # it could lead to another tool's definitions
            fields = {self.name or "": {"const": name}, self.arguments: schema | new if is_shared else new | schema}
            calls.append(
                {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
            )
        call: Any = {"anyOf": calls}
        if self.is_list:
            call = {"type": "array", "items": call, "minItems": 1, "maxItems": N_CALLS}
        return call | draft

    def _marked(self, text: str) -> list[WireToolCall]:
        found: list[WireToolCall] = []
        at = 0
        while (start := text.find(self.mark, at)) >= 0:
            begin = at = start + len(self.mark)
            name = None
            try:
                if self.name is None:
                    end = text.index(self.split or "{", at)
                    name, at = text[at:end], end + len(self.split)
                value, at = _decode(text, _skip(text, at))
            except (ValueError, RecursionError) as e:
                found.append(WireToolCall("", "", error=f"the call cannot be read, its JSON is broken: {_reason(e)}"))
                continue
            values = value if isinstance(value, list) and name is None else [value]
            calls = [self._call(one, name) for one in values]
            found += [self._as_written(call, text, begin) for call in calls[:1]] + calls[1:]
        return found

    def _as_written(self, call: WireToolCall, text: str, at: int) -> WireToolCall:
        """Returns the call with the name and the arguments as the model wrote them, which a stream may have passed on.
        If its keys are in a different order from those of the format, the call is returned as it is. at: the index
        after the call mark."""
        to_name, to_arguments = self.opening()
        if call.error or (name := to_name.match(text, at)) is None:
            return call
        if (found := to_arguments.match(text, name.end())) is None:
            return call
        return replace(call, name=name[1].strip(), arguments=ArgumentsText().feed(text[found.end() :])[0])

    def _bare(self, text: str, names: Sequence[str]) -> list[WireToolCall]:
        """Returns the tool calls of a text without call marks. The whole text must consist of JSON objects that are
        calls, or of lists of them; otherwise it has no calls."""
        found: list[WireToolCall] = []
        at = _skip(text, 0)
        while at < len(text):
            try:
                value, at = _decode(text, at)
            except (ValueError, RecursionError):
                return []
            values = value if isinstance(value, list) else [value]
            if not all(self._is_call(one, names) for one in values):
                return []
            found += map(self._call, values)
            at = _skip(text, at)
        return [] if any(call.error for call in found) else found

    def _is_call(self, value: Any, names: Sequence[str]) -> bool:
        """Whether a JSON value without a call mark is a tool call, and not an answer in JSON.

        It is a call if it has arguments, and no keys that a call does not have. Its name may be wrong: the model then
        gets an error. It is also a call if it has nothing but the name of a tool."""
        if not isinstance(value, dict):
            return False
        if value.keys() == {self.name}:
            return value[self.name] in names
        keys = {self.arguments, *_ARGUMENTS}
        return not keys.isdisjoint(value) and value.keys() <= keys | {self.name, "id", "type"}

    def _call(self, value: Any, name: str | None = None) -> WireToolCall:
        arguments = value
        if name is None:
            if not isinstance(value, dict) or not isinstance(name := value.get(self.name), str):
                return WireToolCall("", "", error=f"the call names no tool; it must be an object with {self.name!r}")
            key = next((key for key in (self.arguments, *_ARGUMENTS) if key in value), "")
            arguments = value.get(key, {})
        name = name.strip()
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments, strict=False)
            except (ValueError, RecursionError) as e:
                return WireToolCall("", name, error=f"the arguments cannot be read, their JSON is broken: {_reason(e)}")
        if not isinstance(arguments, dict):
            return WireToolCall("", name, error="the arguments must be a JSON object")
        if not _is_unicode(name):
            return WireToolCall("", "", error="the name of the tool has a lone surrogate")
        try:
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except ValueError:  # 1e999 too
            return WireToolCall("", name, error="the arguments have a number that is not finite, which is not JSON")
        return WireToolCall("", name, text if _is_unicode(text) else json.dumps(arguments))


def _is_unicode(text: str) -> bool:
    """Whether a text contains no lone surrogates. (JSON escapes can spell them.)"""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return at if match is None else match.end()


def _reason(error: Exception) -> str:
    return "it is too deep" if isinstance(error, RecursionError) else str(error)


# ---- detection -----------------------------------------------------------------------------------------------------

_NAME, _KEY, _VALUE = "zqnamezq", "zqkeyzq", "zqvaluezq"
_SPEC = {"name": _NAME, "description": "?", "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}}}
_SPECS = (json.dumps({"type": "function", "function": _SPEC}),)


def _sample(k: int) -> WireToolCall:
    return WireToolCall(f"{k:09d}", f"{_NAME}{k}", json.dumps({_KEY: f"{_VALUE}{k}"}))


def form_of(template: ChatTemplate | None, tokenizer: Tokenizer) -> Form:
    """The format of a template's tool calls. ToolError: the template does not support tools, or the format is
    unknown."""
    if template is None:
        raise ToolError("the model has no chat template, and so no format for tool calls")
    question = ChatMessage("user", "?")
    with_tools = template.with_tools(_SPECS)
    try:
        if with_tools.render([question]) == template.render([question]):
            raise ToolError(
                "the model's chat template does not support tools; the model was not made for them. For output of a "
                "given form, constrain its text: response_format, Anthropic's output_config.format, or gen(type=...)"
            )
        one = with_tools.calling((_sample(0),))
        form = _form(one)
    except BadProgram as e:
        raise ToolError(f"the model's chat template refuses tool calls: {e.message}") from e
    if form is None or not _reads(form, one, 1):
        raise ToolError(f"the model's chat template writes a tool call in an unsupported format: {one!r}")
    try:
        two = with_tools.calling((_sample(0), _sample(1)))
    except BadProgram:  # some templates support one call a turn
        two = ""
    if two and not _reads(form, two, 2):
        raise ToolError(f"the model's chat template writes two tool calls in an unsupported format: {two!r}")
    hidden = any(token in tokenizer.special for *_, token in tokenizer.controls(form.mark + form.split))
    return form._replace(is_hidden=hidden, is_plain=_is_plain(with_tools, one))


def _form(written: str) -> Form | None:
    """Returns the format of a rendered tool call; None: no known format. written: what the template wrote for the
    call."""
    at = written.find(_NAME)
    for start in (k for k, character in enumerate(written[: max(at, 0)]) if character in "[{"):
        try:
            value, end = _decode(written, start)
        except ValueError:
            continue
        is_list = isinstance(value, list) and len(value) == 1
        value = value[0] if is_list else value
        if end > at and isinstance(value, dict):
            name = next((k for k, v in value.items() if isinstance(v, str) and v.startswith(_NAME)), None)
            arguments = next((k for k, v in value.items() if isinstance(v, dict) or _KEY in str(v)), None)
            if name is not None and arguments is not None:
                style: Literal["spaced", "compact"] = "spaced" if f'"{name}": ' in written else "compact"
                mark, close = written[:start].strip(), written[end:].rstrip()
                return Form(mark, name, arguments, close=close, is_list=is_list, style=style)
    mark, found, rest = written.partition(f"{_NAME}0")
    start = rest.find("{")
    if not (found and mark.strip() and start >= 0):
        return None
    try:
        _, end = _decode(rest, start)
    except ValueError:
        return None
    style = "spaced" if f'"{_KEY}": ' in rest else "compact"
    return Form(mark.strip(), None, "", split=rest[:start].strip(), close=rest[end:].rstrip(), style=style)


def _reads(form: Form, written: str, n: int) -> bool:
    return form.read(written, written) == tuple(_sample(k) for k in range(n))


def _is_plain(template: ChatTemplate, written: str) -> bool:
    """Whether the template renders an assistant turn whose text is `written` like a turn with the same tool call as
    data. written: the call as the template wrote it."""
    call = _sample(0)
    conversations = [
        [
            ChatMessage("user", "?"),
            turn,
            ChatMessage("tool", "1", answers=call),
            ChatMessage(ASSISTANT, "yes"),
            ChatMessage("user", "!"),
        ]
        for turn in (ChatMessage(ASSISTANT, written), ChatMessage(ASSISTANT, calls=(call,)))
    ]
    try:
        as_text, as_call = map(template.render, conversations)
    except BadProgram:
        return False
    return as_text == as_call


def example(form: Form) -> str:
    """Returns a tool call in this format, as an example for people: a call of the tool f with x = 1."""
    if form.name is None:
        return f'{form.mark}f{form.split}{{"x": 1}}{form.close.strip()}'
    call = f'{{"{form.name}": "f", "{form.arguments}": {{"x": 1}}}}'
    return f"{form.mark}{f'[{call}]' if form.is_list else call}{form.close.strip()}"
