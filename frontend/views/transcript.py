"""The items that were appended to a state, in order: the client's copy of the prompt, for messages and streams.

The server owns the prompt itself. The transcript holds the same pieces, with a lazy value in place of each output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from banyan.execution.feed import Feed
from banyan.lang.expr import ImageExpr, RawExpr, RoleBegin, RoleEnd
from banyan.lang.images import message_part
from banyan.lang.lazy_value import LazyValue
from banyan.runtime.protocol.wire import ChatMarkers

Item: TypeAlias = str | RawExpr | ImageExpr | RoleBegin | RoleEnd | LazyValue


class Transcript:
    """The items of one state. A fork copies no items: it refers to the lists of its ancestors, and stores for each list
    how many of its items it inherits.

    own: the items of this state itself. role: the role of the open turn; None outside of turns. role_at_fork: the role
    when the state was forked. last: the newest lazy value. n_draws: how many gens, selects and forks there were so far;
    seeds are derived from this number. n_before_timed: how many own items come before the newest own gen or select with
    a timeout.
    """

    __slots__ = ("_inherited", "last", "n_before_timed", "n_draws", "own", "role", "role_at_fork")

    def __init__(self, parent: Transcript | None = None) -> None:
        self.own: Feed[Item] = Feed()
        self._inherited: tuple[tuple[list[Item], int], ...] = ()
        self.role: str | None = None
        self.last: LazyValue | None = None
        self.n_draws = self.n_before_timed = 0
        if parent is not None:
            self._inherited = (*parent._inherited, (parent.own.items, len(parent.own.items)))
            self.role, self.last = parent.role, parent.last
        self.role_at_fork = self.role

    def copy_from(self, other: Transcript, replaced: Callable[[Any], Any]) -> None:
        """Fill this empty transcript with `replaced(item)` for each item of `other`."""
        self.own.extend([replaced(item) for item in other])
        self.last = None if other.last is None else replaced(other.last)
        self.role, self.n_draws = other.role, other.n_draws

    def _before(self) -> Iterator[Item]:
        return chain.from_iterable(islice(items, n) for items, n in self._inherited)

    def __iter__(self) -> Iterator[Item]:
        """The inherited items, and the own items that exist now."""
        return chain(self._before(), tuple(self.own.items))

    def since_timed(self) -> Iterable[Item]:
        """The items from the newest own gen or select with a timeout on; without one, all. That gen waits for the items
        before it, so a later one need not."""
        return self.own.items[self.n_before_timed :] if self.n_before_timed else self

    def adopt(self, branch: Transcript) -> bool:
        """Continue as `branch`: take its later items, open role, last lazy value and seed counter. False: it was not
        forked from this transcript, directly or over other branches, or items were appended here after that fork."""
        for k, (items, n) in enumerate(branch._inherited):
            if items is self.own.items and n == len(items):
                between = chain.from_iterable(islice(*one) for one in branch._inherited[k + 1 :])
                self.own.extend([*between, *branch.own.items])
                self.role, self.last, self.n_draws = branch.role, branch.last, branch.n_draws
                return True
        return False

    def follow(self, until_end: bool) -> Iterator[Item]:
        """The items so far and, if `until_end`, those appended until the body ends. Raises the error of the body."""
        return chain(self._before(), self.own) if until_end else iter(self)

    async def follow_async(self, until_end: bool) -> AsyncIterator[Item]:
        for item in self._before() if until_end else self:
            yield item
        if until_end:
            async for item in self.own:
                yield item


def role_markers(chat: ChatMarkers | None, role: str, is_first: bool = False) -> tuple[str, str]:
    """The texts that the chat template writes before and after a turn of `role`: (before, after).

    is_first: whether the turn is the first one. Before a first turn whose role is not system, the template may write
    a default system prompt; this is then part of the text before the turn. If the template does not know the role, the
    turn gets no markers, and the server will fail it.
    """
    if chat is None:
        return "", ""
    begin, end = chat.roles.get(role, ("", ""))
    if is_first and role != "system" and chat.default_system:
        before, after = chat.roles.get("system", ("", ""))
        begin = f"{before}{chat.default_system}{after}{begin}"
    return begin, end


def messages(items: Transcript, chat: ChatMarkers | None) -> list[dict[str, Any]]:
    """The finished turns as `{"role": ..., "content": ...}`. Waits for their values. White space at the start of a
    content is removed. A content with images is a list of parts, as in OpenAI's API. The template's default system
    prompt is a turn too."""
    turns: list[dict[str, Any]] = []
    content: list[str | ImageExpr] | None = None
    role = ""
    for item in items:
        if isinstance(item, RoleBegin):
            role = item.role
            if not turns and role != "system" and chat is not None and chat.default_system:
                turns.append({"role": "system", "content": chat.default_system})
            content = []
        elif isinstance(item, RoleEnd):
            turns.append({"role": item.role, "content": _content(content or [])})
            content = None
        elif content is None:
            continue  # outside of turns
        elif isinstance(item, ImageExpr):
            content.append(item)
        else:
            if isinstance(item, LazyValue) and item.caller is not None:
                item.wait()
                for text, calls in item.caller.rounds:
                    turns.append({"role": role, "content": _content([*content, text])})
                    turns += ({"role": "tool", "content": call.result} for call in calls)
                    content = []
            content.append(item if isinstance(item, str) else item.text() if isinstance(item, LazyValue) else item.text)
    return turns


def _content(items: list[str | ImageExpr]) -> str | list[dict[str, Any]]:
    """The content of a message: a text; with images, a list of texts and images in their order."""
    parts: list[dict[str, Any]] = []
    text = ""
    for item in items:
        if isinstance(item, str):
            text += item
            continue
        if text := text if parts else text.lstrip():
            parts.append({"type": "text", "text": text})
        parts.append(message_part(item.data, item.kind))
        text = ""
    if not parts:
        return text.lstrip()
    return [*parts, {"type": "text", "text": text}] if text else parts


class Renderer:
    """Converts items, in order, to the text that they have in the server's prompt. Returns lazy values unchanged."""

    def __init__(self, chat: ChatMarkers | None) -> None:
        self._chat = chat
        self._is_first = True

    def __call__(self, item: Item) -> str | LazyValue:
        match item:
            case RoleBegin(role=role):
                text, _ = role_markers(self._chat, role, self._is_first)
                self._is_first = False
                return text
            case RoleEnd(role=role):
                return role_markers(self._chat, role)[1]
            case RawExpr(text=text):
                return text
            case ImageExpr():
                return ""
            case _:
                return item
