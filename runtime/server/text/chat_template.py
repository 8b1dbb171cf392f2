"""The model's chat template: renders conversations, and finds what it writes around each turn.

The Jinja environment is that of Hugging Face, so that templates render to the same text; see template_sandbox.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import count, islice
from typing import Any, NamedTuple

from banyan.runtime.errors import BadModel, BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.reasoning_formats import format_in
from banyan.runtime.protocol.roles import ASSISTANT, read_arguments
from banyan.runtime.server.text.bounded_cache import BoundedCache
from banyan.runtime.server.text.template_sandbox import (
    BASE,
    PER_CHARACTER,
    PER_MESSAGE,
    BudgetSpent,
    TemplateEnvironment,
    TemplateError,
    budget,
)

ROLES = frozenset(
    {"system", "developer", "user", ASSISTANT, "model", "tool", "function", "ipython", "observation", "environment"}
)
"""The roles that chat templates usually support."""

MAX_SOURCE = 1 << 20

CACHE_BYTES, ENTRY = 16 << 20, 512
"""CACHE_BYTES: most bytes of all cached markers and tool specs. ENTRY: bytes that an entry takes besides its text."""

N_EXACT, N_LAST = 16, 4
"""`endings` renders all turns of a conversation of at most N_EXACT turns; of a longer one, the last N_LAST turns."""

_GIVEN = ("messages", "add_generation_prompt", "tools", "documents", "strftime_now")
"""The variables that the server sets for each rendering, besides the special tokens."""

_SIGN = re.compile("\ue000[0-9]+\ue001")


class ChatMessage(NamedTuple):
    """A turn of a chat.

    content: a text; or, if the turn has images, a tuple of texts and of None in place of each image, in order. calls:
    the tool calls of an assistant turn. answers: if the turn is the result of a tool call, this call."""

    role: str
    content: str | tuple[str | None, ...] = ""
    calls: tuple[wire.WireToolCall, ...] = ()
    answers: wire.WireToolCall | None = None

    @property
    def n_chars(self) -> int:
        texts = (self.content,) if isinstance(self.content, str) else self.content
        return sum(len(text or "") for text in texts) + sum(len(call.name) + len(call.arguments) for call in self.calls)

    @property
    def n_texts(self) -> int:
        """The number of texts in the content. A chat template writes each of them between two markers."""
        return 1 if isinstance(self.content, str) else sum(text is not None for text in self.content)

    def filled(self, texts: Iterator[str]) -> ChatMessage:
        """The message with its content's texts replaced by the next items of `texts`."""
        if isinstance(self.content, str):
            return self._replace(content=next(texts))
        return self._replace(content=tuple(None if text is None else next(texts) for text in self.content))

    def as_dict(self, in_parts: bool = False) -> dict[str, Any]:
        """The message as the dict that templates read. Keys without a value are left out, because templates check
        whether a key exists. in_parts: whether a content that is one text also becomes a list of parts. BadProgram: the
        arguments of a call are not a JSON object."""
        content: Any = self.content
        if not isinstance(content, str) or in_parts:
            texts = (content,) if isinstance(content, str) else content
            content = [{"type": "image"} if text is None else {"type": "text", "text": text} for text in texts]
        turn: dict[str, Any] = {"role": self.role, "content": content}
        if self.calls:
            turn["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": read_arguments(c)}}
                for c in self.calls
            ]
        if self.answers is not None:
            turn |= {"tool_call_id": self.answers.id, "name": self.answers.name}
        return turn


def message(turn: str | ChatMessage) -> ChatMessage:
    """The message of a turn: `turn` itself or, if `turn` is only a role, a message of this role without content."""
    return ChatMessage(turn) if isinstance(turn, str) else turn


class ChatTemplate:
    """A compiled chat template.

    names: the variables of special tokens, such as bos_token -> the token's text. BadModel: the template cannot be
    compiled, or takes too much time or memory.

    All methods raise BadProgram, with the template's message, if the template refuses the conversation.
    """

    def __init__(self, source: str, names: dict[str, str]) -> None:
        if len(source) > MAX_SOURCE:
            raise BadModel(f"the model's chat template has {len(source)} characters; the limit is {MAX_SOURCE}")
        environment = TemplateEnvironment()
        try:
            with budget(BASE):
                self._template = environment.from_string(source)
                read = environment.variables(source)
        except (TemplateError, RecursionError) as e:
            raise BadModel(f"the model's chat template cannot be compiled: {e}") from e
        self._names = names
        self._reads_effort = "reasoning_effort" in source
        self._thinking_switch = next((name for name in ("enable_thinking", "thinking") if name in read), "")
        self._uses_time = "strftime_now" in source
        self._reasoning = format_in(source)
        self._tools: list[Any] | None = None
        self._kwargs: dict[str, Any] = {}
        self._n_given_chars = 0  # of the tools and the kwargs
        self.cache: BoundedCache[Any] = BoundedCache(CACHE_BYTES)  # markers and tool specs
        self._serials = count()
        self._serial = next(self._serials)  # in cache keys; each copy with tools or kwargs has another serial
        self._in_parts = False
        self._in_parts = self._wants_parts()
        self._try_out()

    def with_tools(self, specs: tuple[str, ...], kwargs: str = "") -> ChatTemplate:
        """The same template for conversations with these tools (wire.Tools.specs) and variables
        (wire.Gen.chat_template_kwargs). BadProgram: the variables are not valid."""
        if not specs and not kwargs:
            return self
        template: ChatTemplate | None = self.cache.get((specs, kwargs))
        if template is None:
            template = copy.copy(self)
            template._tools = [json.loads(spec) for spec in specs] or None
            template._kwargs = self._variables(kwargs)
            template._n_given_chars = sum(map(len, specs)) + len(kwargs)
            template._serial = next(self._serials)
            # the text, and the objects that json makes from it
            self.cache.put((specs, kwargs), template, 8 * template._n_given_chars)
        return template

    def _variables(self, kwargs: str) -> dict[str, Any]:
        try:
            found = json.loads(kwargs or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise BadProgram(f"chat_template_kwargs must be a JSON object, not {kwargs[:80]!r}")
        if taken := found.keys() & {*_GIVEN, *self._names, *self._template.globals}:
            names = ", ".join(map(repr, sorted(taken)))
            raise BadProgram(f"chat_template_kwargs cannot set {names}, which the server gives to the chat template")
        return found

    def render(self, messages: Sequence[ChatMessage], prompt: bool = False, now: datetime | None = None) -> str:
        """The conversation as text. prompt: whether the beginning of an assistant turn follows at the end."""
        clock = (now or datetime.now()).replace(tzinfo=None)  # as in transformers: %z and %Z are empty
        turns = [m.as_dict(self._in_parts) for m in messages]
        units = BASE + PER_CHARACTER * (self._n_given_chars + sum(m.n_chars for m in messages))
        try:
            with budget(units + PER_MESSAGE * len(messages)):
                context = self._template.new_context(
                    {
                        "messages": turns,
                        "add_generation_prompt": prompt,
                        "tools": self._tools,
                        "documents": None,
                        "strftime_now": clock.strftime,
                        **self._names,
                        **self._kwargs,
                    }
                )
                # Not `render`, which puts frames of its own into the traceback of an error, in a reference cycle.
                return "".join(self._template.root_render_func(context))
        except BudgetSpent as e:
            raise BadProgram(f"the model's chat template fails on these {len(messages)} turns: {e.message}") from e
        except TemplateError as e:
            raise BadProgram(f"the model's chat template refuses this conversation: {e.message or e}") from e
        except Exception as e:  # the template's own code may raise anything
            raise BadProgram(f"the model's chat template fails on this conversation: {type(e).__name__}: {e}") from e

    def _wants_parts(self) -> bool:
        """Whether the template writes texts only as parts of a list, as some templates for images do."""
        shown = []
        for self._in_parts in (False, True):
            try:
                shown.append("?+?" in self.render([ChatMessage("user", "?+?")]))
            except BadProgram:
                shown.append(False)
        return shown == [False, True]

    def _try_out(self) -> None:
        """Render usual conversations. BadModel: one takes more than the budget of a rendering."""
        try:
            for n in (1, 2, 8):
                self.render([ChatMessage("user" if k % 2 == 0 else ASSISTANT, "?") for k in range(n)], prompt=True)
        except BadProgram as e:
            if isinstance(e.__cause__, BudgetSpent):
                raise BadModel(f"the model's chat template cannot be used: {e.__cause__.message}") from e

    def markers(
        self, roles: tuple[str | ChatMessage, ...], opening: str | None = None, now: datetime | None = None
    ) -> tuple[str, ...] | None:
        """Returns the markers: the texts that the template writes before the content of each turn and after the last
        content.

        They do not depend on the contents. A turn with images has a marker before each of its texts, and the markers
        contain the image marks. Returns None if the template does not write the content of each turn exactly once and
        in order.

        roles: the turns; a turn may be only its role. opening: the role of a turn that begins after these turns; the
        last marker then ends where the content of that turn starts."""
        now = now if self._uses_time else None
        key = self._serial, roles, opening, now
        if (found := self.cache.get(key)) is None:
            found = (self._find_markers(roles, opening, now),)
            texts = set(found[0] or ())
            n_bytes = ENTRY * (1 + len(texts) + sum(not isinstance(role, str) for role in roles))
            self.cache.put(key, found, n_bytes + 4 * sum(map(len, texts)) + 16 * len(roles))
        return found[0]

    def _find_markers(
        self, roles: Sequence[str | ChatMessage], opening: str | None, now: datetime | None
    ) -> tuple[str, ...] | None:
        turns = [message(role) for role in roles]
        signs = [f"\ue000{k}\ue001" for k in range(sum(turn.n_texts for turn in turns if not turn.calls))]
        left = iter(signs)
        messages = [turn if turn.calls else turn.filled(left) for turn in turns]
        text = self.prefix(messages, opening, now) if opening is not None else self.render(messages, now=now)
        if _SIGN.findall(text) != signs:
            return None
        parts, at, left = [], 0, iter(signs)
        known: dict[str, str] = {}  # most markers of a conversation are the same text, and are kept once
        contents = (  # calls stand in place of the content
            content
            for turn in turns
            for content in ([self.calling(turn.calls, now)] if turn.calls else islice(left, turn.n_texts))
        )
        for content in contents:
            start = text.find(content, at)
            if start < 0:
                return None
            parts.append(known.setdefault(text[at:start], text[at:start]))
            at = start + len(content)
        return (*parts, text[at:])

    def calling(self, calls: tuple[wire.WireToolCall, ...], now: datetime | None = None) -> str:
        """Returns the text that the template writes as the content of an assistant turn with these calls. An empty
        reasoning block at its start is removed."""
        question = ChatMessage("user", "?")
        before = self.prefix([question], ASSISTANT, now)
        whole = self.render([question, ChatMessage(ASSISTANT, "", calls)], now=now)
        if not whole.startswith(before):
            raise BadProgram("the model's chat template begins a turn with calls differently from other turns")
        written = whole[len(before) :]
        reasoning, mark, rest = written.partition("</think>")
        if mark and reasoning.strip() in ("", "<think>"):
            written = rest
        return written.strip().removesuffix(self.ending(("user", ASSISTANT), now).strip()).rstrip()

    def check_role(self, role: str, controls: Callable[[str], Iterable[tuple[int, int, int]]]) -> None:
        """Check the name of a role. Raises BadProgram if the template turns the name into a control token: a template
        that writes `<|NAME|>` would turn `end` into `<|end|>`. The usual roles are allowed in any case.

        controls: finds the control tokens in a text, like Tokenizer.controls."""
        if role in ROLES:
            return
        key = self._serial, role
        if (forged := self.cache.get(key)) is None:
            # "q" stands for a name that no template knows, and that occurs in no control token.
            found, expected = (
                [text[start:end] for text in self._try((name,)) or () for start, end, _ in controls(text)]
                for name in (role, "q" * len(role))
            )
            forged = next((token for token in found if role in token and token not in expected), "")
            forged = forged or next((token for token in found if role in token and found != expected), "")
            self.cache.put(key, forged, ENTRY)
        if forged:
            raise BadProgram(
                f"the role {role!r} would become the control token {forged!r} in the model's chat template"
            )

    def prefix(self, messages: Sequence[ChatMessage], opening: str, now: datetime | None = None) -> str:
        """The conversation up to the start of the content of a new turn of role `opening`."""
        sign = "\ue000+\ue001"
        closed = ""
        if opening == ASSISTANT and messages:
            closed = self.render(messages, now=now)
            prompted = self.render(messages, prompt=True, now=now)
            if prompted != closed:
                return prompted
        before, found, _ = self.render([*messages, ChatMessage(opening, sign)], now=now).partition(sign)
        if closed and not (before.startswith(closed) and before[len(closed) :].strip()):
            # The template has neither a generation prompt nor a marker of this role. White space is left to the model.
            return closed
        if not found:
            raise BadProgram(f"the model's chat template does not write the turns of role {opening!r}")
        return before

    def ending(self, roles: tuple[str | ChatMessage, ...], now: datetime | None = None) -> str:
        """What the template writes after the last of these turns if another turn follows; "" if that is unclear."""
        found = self._try(roles, None, now)
        after = self._try(roles, "user" if message(roles[-1]).role == ASSISTANT else ASSISTANT, now)
        if found is None or after is None or after[-1].startswith(found[-1]):
            return found[-1] if found else ""
        # Some templates write an end-of-text token after the last turn only.
        shorter = (found[-1].removesuffix(name) for name in self._names.values() if name)
        return next((end for end in shorter if end and after[-1].startswith(end)), "")

    def endings(self, roles: tuple[str | ChatMessage, ...], ends: Sequence[int], now: datetime | None) -> list[str]:
        """Returns, for each k in `ends`, what `ending(roles[:k])` returns.

        Rendering all turns before each k takes time quadratic in the number of turns. Most turns in the middle of a
        long conversation are therefore left out. The turns around this gap are chosen so that the order of the roles
        stays valid."""
        found = []
        first = {message(roles[k]).role: k for k in range(min(len(roles), N_EXACT - N_LAST) - 1, -1, -1)}
        for k in ends:
            known = roles[:k]
            if k > N_EXACT and (same := first.get(message(roles[k - N_LAST - 1]).role)) is not None:
                known = (*roles[: same + 1], *roles[k - N_LAST : k])
            elif k > N_EXACT and self._try(roles[k - N_LAST : k], None, now) is not None:
                known = roles[k - N_LAST : k]
            found.append(self.ending(known, now))
        return found

    def chat_markers(self) -> wire.ChatMarkers:
        """The prefix and suffix of each role that the template supports, and the strings that end an assistant turn."""
        pair = self._try(("user", ASSISTANT, "user"))
        if pair is None:
            return wire.ChatMarkers(roles={})
        user_end, assistant_end = self.ending(("user",)), self.ending(("user", ASSISTANT))
        opened = self._try(("user",), ASSISTANT)
        roles = {
            "user": (pair[2].removeprefix(assistant_end), user_end),
            ASSISTANT: ((opened or pair)[1].removeprefix(user_end), assistant_end),
        }
        default = ""
        if (systemic := self._try(("system", "user"))) is not None:
            roles["system"] = systemic[0], systemic[1].removesuffix(roles["user"][0])
            alone = self._try(("user",))
            if alone and alone[0].startswith(systemic[0]) and alone[0].endswith(systemic[1]):
                default = alone[0][len(systemic[0]) : len(alone[0]) - len(systemic[1])]
        call = wire.WireToolCall("000000000", "f")
        for talk in (
            ("user", ASSISTANT, "tool"),
            ("user", ChatMessage(ASSISTANT, calls=(call,)), ChatMessage("tool", answers=call)),
        ):
            if (m := self._try(talk)) is not None:
                roles["tool"] = m[2].removeprefix(assistant_end), self.ending(talk)
                break
        stop = assistant_end.strip()
        stops = (stop,) if stop else ()
        return wire.ChatMarkers(
            roles=roles,
            default_system=default,
            stop=stops,
            reasoning=self._reasoning,
            reads_effort=self._reads_effort,
            thinking_switch=self._thinking_switch,
        )

    def _try(
        self, roles: tuple[str | ChatMessage, ...], opening: str | None = None, now: datetime | None = None
    ) -> tuple[str, ...] | None:
        try:
            return self.markers(roles, opening, now)
        except BadProgram:
            return None
