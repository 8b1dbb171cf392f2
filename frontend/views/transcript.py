"""What was appended to a state, in order: the language's own account of the prompt, for messages and streams.

The prompt itself is the server's. This holds the same pieces, with values in the making where values will stand.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from banyan.execution.feed import Feed
from banyan.lang.expr import ImageExpr, RawExpr, RoleBegin, RoleEnd
from banyan.lang.lazy_value import LazyValue
from banyan.runtime.protocol.wire import ChatMarkers

Item: TypeAlias = str | RawExpr | ImageExpr | RoleBegin | RoleEnd | LazyValue


class Transcript:
    """The items of one state. A fork copies nothing: it knows how far its parents had come, and goes on from there.

    role: of the open turn. last: the newest value in the making. n_draws: gens, selects and forks so far.
    """

    __slots__ = ("_inherited", "last", "n_draws", "own", "role")

    def __init__(self, parent: Transcript | None = None) -> None:
        self.own: Feed[Item] = Feed()
        """What this state itself was given."""
        self._inherited: tuple[tuple[list[Item], int], ...] = ()
        self.role: str | None = None
        self.last: LazyValue | None = None
        self.n_draws = 0
        if parent is not None:
            self._inherited = (*parent._inherited, (parent.own.items, len(parent.own.items)))
            self.role, self.last = parent.role, parent.last

    def take(self, other: Transcript, replaced: Callable[[Any], Any]) -> None:
        """Make this empty one like `other`, with another item in the place of each."""
        self.own.extend([replaced(item) for item in other])
        self.last = None if other.last is None else replaced(other.last)
        self.role, self.n_draws = other.role, other.n_draws

    def _before(self) -> Iterator[Item]:
        return chain.from_iterable(islice(items, n) for items, n in self._inherited)

    def __iter__(self) -> Iterator[Item]:
        """The items that are there now."""
        return chain(self._before(), tuple(self.own.items))

    def since(self, ancestor: Transcript) -> list[Item] | None:
        """What came after all that `ancestor` has; None if this did not go on from there."""
        for k, (items, n) in enumerate(self._inherited):
            if items is ancestor.own.items:
                between = chain.from_iterable(islice(*one) for one in self._inherited[k + 1 :])
                return [*between, *self.own.items] if n == len(items) else None
        return None

    def go_on_as(self, other: Transcript) -> None:
        self.role, self.last, self.n_draws = other.role, other.last, other.n_draws

    def follow(self, to_its_end: bool) -> Iterator[Item]:
        """The items that are there and, if `to_its_end`, those that come until the body ends; raises what it raised."""
        return chain(self._before(), self.own) if to_its_end else iter(self)

    async def follow_async(self, to_its_end: bool) -> AsyncIterator[Item]:
        for item in self._before() if to_its_end else self:
            yield item
        if to_its_end:
            async for item in self.own:
                yield item


def messages(items: Transcript, chat: ChatMarkers | None) -> list[dict[str, Any]]:
    """The finished turns as `{"role": ..., "content": ...}`, contents stripped on the left. Waits for their values.

    A content with pictures is a list of parts, as in OpenAI's API. The system text that the template puts in front
    where a conversation has none is a turn too.
    """
    turns: list[dict[str, Any]] = []
    content: list[str] | None = None
    images: list[ImageExpr] = []
    role = ""
    for item in items:
        if isinstance(item, RoleBegin):
            role = item.role
            if not turns and item.role != "system" and chat is not None and chat.default_system:
                turns.append({"role": "system", "content": chat.default_system})
            content = []
        elif isinstance(item, RoleEnd):
            text = "".join(content or ()).lstrip()
            turns.append({"role": item.role, "content": _with_images(text, images) if images else text})
            content, images = None, []
        elif isinstance(item, ImageExpr):
            images.append(item)
        elif content is not None:
            if isinstance(item, LazyValue) and item.caller is not None:
                item.wait()
                for said, calls, _ in item.caller.rounds:
                    turns.append({"role": role, "content": "".join((*content, said)).lstrip()})
                    turns += ({"role": "tool", "content": call.result} for call in calls)
                    content = []
            content.append(item if isinstance(item, str) else item.text() if isinstance(item, LazyValue) else item.text)
    return turns


def _with_images(text: str, images: list[ImageExpr]) -> list[dict[str, Any]]:
    urls = [f"data:{image.kind};base64,{base64.b64encode(image.data).decode()}" for image in images]
    return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


class Renderer:
    """Items to text, one by one, as the server's prompt has them. Values in the making are left as they are."""

    def __init__(self, chat: ChatMarkers | None) -> None:
        self._chat = chat or ChatMarkers({})
        self._is_first = True

    def __call__(self, item: Item) -> str | LazyValue:
        match item:
            case RoleBegin(role=role):
                text = self._markers(role)[0]
                if self._is_first and role != "system" and self._chat.default_system:
                    before, after = self._markers("system")
                    text = f"{before}{self._chat.default_system}{after}{text}"
                self._is_first = False
                return text
            case RoleEnd(role=role):
                return self._markers(role)[1]
            case RawExpr(text=text):
                return text
            case ImageExpr():
                return ""
            case _:
                return item

    def _markers(self, role: str) -> tuple[str, str]:
        return self._chat.roles.get(role, ("", ""))  # a role that the template lacks fails on the server, by name
