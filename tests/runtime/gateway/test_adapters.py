"""Adapters over HTTP: their names stand for models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import openai
import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError
from banyan.runtime.model.spec import SHIPPED

if TYPE_CHECKING:
    import anthropic  # which takes a second of CPU time

HELLO: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def poems(
    pocket: launch.ServerProcess, module_at: Callable[[Path], ModuleType], tmp_path: Path
) -> Iterator[client.Client]:
    """An operator's client of a server with the adapter `poems`, which changes the model much."""
    files = module_at(Path(__file__).parents[2] / "helpers" / "lora_files.py")
    files.write(tmp_path, SHIPPED / "pocket", size=2.0)
    with closing(client.connect(pocket.socket)) as found:
        found.ask("load_adapter", name="poems", path=str(tmp_path))
        yield found
        if "poems" in found.ask("info")["adapters"]:
            found.ask("unload_adapter", name="poems")


@pytest.mark.long
def test_adapter_is_a_model(
    poems: client.Client, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    listed = openai_client.models.list().data
    assert [one.id for one in listed] == ["pocket", "poems"]
    assert openai_client.models.retrieve("poems").to_dict()["parent"] == "pocket"

    def chat(model: str) -> tuple[str, str | None]:
        reply = openai_client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=8)
        return reply.model, reply.choices[0].message.content

    assert chat("poems") != chat("pocket")
    assert chat("poems")[1] == chat("pocket:poems")[1] != chat("pocket")[1]
    assert chat("poems")[0] == "poems"
    text = openai_client.completions.create(model="poems", prompt="Once", temperature=0, max_tokens=8)
    base = openai_client.completions.create(model="pocket", prompt="Once", temperature=0, max_tokens=8)
    assert text.model == "poems"
    assert text.choices[0].text != base.choices[0].text
    response = openai_client.responses.create(model="poems", input="Say hello.", temperature=0, max_output_tokens=8)
    assert response.output_text == chat("poems")[1]
    greedy = {"temperature": 0}
    message = anthropic_client.messages.create(model="poems", messages=HELLO, max_tokens=8, extra_body=greedy)
    assert message.model == "poems"
    assert message.content[0].text == chat("poems")[1]  # type: ignore[union-attr]


@pytest.mark.usefixtures("poems")
def test_names_given_for_the_model_replace_its_own(pocket: launch.ServerProcess) -> None:
    http = config.HTTPConfig(socket=str(pocket.socket), address="0", models="gpt-4o, team:small")
    with closing(launch.start_gateway(http)) as gateway:
        found = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        assert [one.id for one in found.models.list().data] == ["gpt-4o", "team:small", "poems"]
        assert found.models.retrieve("team:small").id == "team:small"
        assert found.models.retrieve("poems").to_dict()["parent"] == "gpt-4o"
        for name in ("gpt-4o", "team:small", "poems", "gpt-4o:poems", "team:small:poems"):
            reply = found.chat.completions.create(model=name, messages=HELLO, temperature=0, max_tokens=8)
            assert reply.model == name
        for name in ("pocket", "pocket:poems", "team", "gpt-4o:"):
            with pytest.raises(openai.NotFoundError, match="runs 'gpt-4o' and its adapters poems, not"):
                found.chat.completions.create(model=name, messages=HELLO, max_tokens=8)


def test_unknown_or_unloaded_adapter_is_not_found(poems: client.Client, openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="runs 'pocket' and its adapters poems, not 'songs'"):
        openai_client.completions.create(model="songs", prompt="x")
    with pytest.raises(BanyanError, match="there is an adapter 'poems' already"):
        poems.ask("load_adapter", name="poems", path="/")
    poems.ask("unload_adapter", name="poems")
    with pytest.raises(openai.NotFoundError, match="this server runs 'pocket', not 'poems'"):
        openai_client.completions.create(model="poems", prompt="x")
    with pytest.raises(BanyanError, match="there is no adapter 'poems'; this server has none"):
        poems.ask("unload_adapter", name="poems")


def test_response_whose_adapter_was_replaced_can_be_continued(
    poems: client.Client, openai_client: openai.OpenAI, module_at: Callable[[Path], ModuleType], tmp_path: Path
) -> None:
    options: Any = {"model": "poems", "temperature": 0, "max_output_tokens": 4}
    first = openai_client.responses.create(input="Say hello.", **options)
    poems.ask("unload_adapter", name="poems")
    files = module_at(Path(__file__).parents[2] / "helpers" / "lora_files.py")
    files.write(other := tmp_path / "other", SHIPPED / "pocket", size=1.0)
    poems.ask("load_adapter", name="poems", path=str(other))
    again = openai_client.responses.create(input="Again.", previous_response_id=first.id, **options)
    assert again.output_text


@pytest.mark.usefixtures("poems")
def test_an_adapter_with_a_name_of_the_model_is_listed_once(pocket: launch.ServerProcess) -> None:
    http = config.HTTPConfig(socket=str(pocket.socket), address="0", models="small, poems")
    with closing(launch.start_gateway(http)) as gateway:
        found = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        assert [one.id for one in found.models.list().data] == ["small", "poems"]
