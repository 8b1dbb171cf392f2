"""Names of SGLang without an equivalent here. Each raises an error that says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from banyan.runtime.errors import Unsupported


class FixedChatTemplate:
    """The attribute `chat_template` of a backend, which SGLang's programs read and assign. Reading it returns the texts
    around turns. Assigning it raises Unsupported."""

    def __init__(self, instead: str) -> None:
        """instead: what to write instead, for the error message."""
        self._instead = instead

    def __get__(self, backend: Any, owner: type) -> Any:
        if backend is None:
            return self
        from banyan.sglang.turn_format import TurnFormat  # here: programs do not need it

        return TurnFormat(backend.welcome.model, backend.welcome.chat)

    def __set__(self, backend: object, template: object) -> NoReturn:
        raise Unsupported(f"chat_template cannot be assigned: {self._instead}")


class _Elsewhere:
    """A backend of SGLang that does not exist here. Its constructor raises Unsupported with the class's docstring."""

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:
        """Raises Unsupported, which says what to write instead."""
        raise Unsupported(f"{cls.__name__}: {' '.join(str(cls.__doc__).split())}")


class Anthropic(_Elsewhere):
    """Not supported. Anthropic has an OpenAI-compatible API, without select: bn.OpenAI(model_name,
    base_url='https://api.anthropic.com/v1/', api_key=...)."""


class LiteLLM(_Elsewhere):
    """Not supported. Start LiteLLM's proxy, and write bn.OpenAI(model_name, base_url='http://localhost:4000',
    api_key=...)."""


class VertexAI(_Elsewhere):
    """Not supported. Vertex AI has an OpenAI-compatible API: bn.OpenAI('google/' + model_name, api_key=ACCESS_TOKEN,
    base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi')."""


class Crusoe(_Elsewhere):
    """Not supported. Crusoe has OpenAI's API: bn.OpenAI(model_name, base_url=..., api_key=...)."""


def video(path: str, num_frames: int) -> NoReturn:
    """Not supported: no model here reads videos. Use `image` for single frames."""
    raise Unsupported(
        f"video({path!r}, {num_frames}): no backend supports videos; append some of its frames with bn.image(...)"
    )
