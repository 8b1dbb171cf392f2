"""Names of SGLang's language for what is not done here: each says what to use in its place."""

from __future__ import annotations

from typing import Any, NoReturn

from banyan.runtime.errors import Unsupported


class _Elsewhere:
    """A backend that is not here."""

    instead = ""

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:
        """Unsupported, with what to write."""
        raise Unsupported(f"{cls.__name__}: there is no such backend; {cls.instead}")


class Anthropic(_Elsewhere):
    """Refused: use `OpenAI` with Anthropic's OpenAI-compatible address."""

    instead = (
        "Anthropic serves OpenAI's API too: bn.OpenAI(model_name, base_url='https://api.anthropic.com/v1/', "
        "api_key=...), without select"
    )


class LiteLLM(_Elsewhere):
    """Refused: use `OpenAI` with the address of LiteLLM's proxy."""

    instead = "start LiteLLM's proxy and write bn.OpenAI(model_name, base_url='http://localhost:4000', api_key=...)"


class VertexAI(_Elsewhere):
    """Refused: use `OpenAI` with Vertex AI's OpenAI-compatible address."""

    instead = (
        "Vertex AI serves OpenAI's API too: bn.OpenAI('google/' + model_name, "
        "base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi'"
        ", api_key=ACCESS_TOKEN)"
    )


class Crusoe(_Elsewhere):
    """Refused: use `OpenAI` with Crusoe's address."""

    instead = "Crusoe serves OpenAI's API: bn.OpenAI(model_name, base_url=..., api_key=...)"


def video(path: str, num_frames: int) -> NoReturn:
    """Refused: no model here looks at videos."""
    raise Unsupported(
        f"video({path!r}, {num_frames}): no backend takes videos; append some of its frames with bn.image(...)"
    )
