"""The chat template of a backend in the form of SGLang's `get_chat_template`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from banyan.runtime.protocol.wire import ChatMarkers
from banyan.views.transcript import role_markers


class TurnFormat(NamedTuple):
    """What a model's chat template writes around turns. Its attributes and methods have the names of SGLang's
    ChatTemplate. name: the name of the model.

    Programs do not need this class: the server renders their turns, even if the template rewrites earlier turns.
    """

    name: str
    markers: ChatMarkers | None

    @property
    def default_system_prompt(self) -> str | None:
        """The system prompt that the template adds if the first turn is not a system turn."""
        return (self.markers.default_system if self.markers else "") or None

    @property
    def role_prefix_and_suffix(self) -> dict[str, tuple[str, str]]:
        """Role -> (the text before a turn, the text after it); {} for a model without a chat template."""
        return dict(self.markers.roles) if self.markers else {}

    @property
    def stop_str(self) -> tuple[str, ...]:
        """The texts that end a turn of the assistant."""
        return self.markers.stop if self.markers else ()

    def get_prefix_and_suffix(self, role: str, hist_messages: Sequence[Any] = ()) -> tuple[str, str]:
        """The texts before and after a turn of `role` that follows `hist_messages`."""
        return role_markers(self.markers, role, is_first=not hist_messages)

    def get_prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of `messages`. A content of None leaves the turn open. A system message with content None gets the
        template's default system prompt; if the template has none, the message is left out."""
        text = ""
        for i, message in enumerate(messages):
            role, content = message["role"], message["content"]
            if role == "system" and content is None:
                content = self.default_system_prompt
                if content is None:
                    continue
            prefix, suffix = self.get_prefix_and_suffix(role, messages[:i])
            text += prefix if content is None else prefix + content + suffix
        return text
