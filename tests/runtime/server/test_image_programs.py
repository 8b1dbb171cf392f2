"""Programs with images, from the language and over HTTP: this process -> server -> engine with a tiny model -> back."""

from __future__ import annotations

import base64
import io
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest
from PIL import Image
from tiny_images import Oracle, make_image_model, png, turn

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.protocol import wire

pytestmark = pytest.mark.long  # transformers is loaded in the server's process for images, in the engine and here
N = 6
CAT, DOG = png(90, 60, 1), png(90, 60, 2)


class Served:
    """A server with a tiny model that takes images, its HTTP process, and transformers as the oracle."""

    def __init__(self, path: Path, tiny: ModuleType) -> None:
        make_image_model(path, "llava", tiny)
        self.oracle = Oracle(path, "llava")
        options = config.make(model=str(path), threads=1, kv_memory="4000 tokens", device="cpu", context=512)
        self.server = launch.start(options, timeout=100)
        self.gateway = launch.start_gateway(config.HTTPConfig(socket=str(self.server.socket), address="0"))

    def expected(self, *parts: str | bytes) -> str:
        ids = self.oracle.greedy(parts, N)
        text: str = self.oracle.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def close(self) -> None:
        self.gateway.close()
        self.server.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny: ModuleType) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("images") / "model", tiny)) as found:
        yield found


@bn.function
def look(s: Any, image: bytes, questions: list[str]) -> None:
    s += bn.user_begin() + bn.image(image)
    forks = s.fork(len(questions))
    for fork, question in zip(forks, questions, strict=True):
        fork += question + bn.user_end() + bn.assistant(bn.gen("answer", max_tokens=N, temperature=0, ignore_eos=True))
    s["answers"] = [fork["answer"] for fork in forks]


def test_forks_share_an_image(served: Served) -> None:
    questions = [f"{i}?" for i in range(8)]
    with bn.connect(served.server.socket) as backend:
        state = look.run(CAT, questions, backend=backend)
        assert [str(one) for one in state["answers"]] == [served.expected(CAT, q) for q in questions]
        usage = state.usage
        n_prompt = usage.prompt // len(questions)
        assert usage.computed < n_prompt + 12 * len(questions)  # an image has 16 rows


def test_image_is_refused_with_a_reason(served: Served) -> None:
    with bn.connect(served.server.socket) as backend:
        with pytest.raises(bn.BadProgram, match=r"an image of 200 bytes: 90 x 60 pixels, which cannot be decoded"):
            str(look.run(CAT[:200], ["?"], backend=backend)["answers"][0])
        assert str(look.run(DOG, ["?"], backend=backend)["answers"][0]) == served.expected(DOG, "?")


def test_tokens_of_a_prompt_with_an_image(served: Served) -> None:
    with closing(client.connect(served.server.socket)) as one:
        program = one.program()
        program.submit([wire.Append(0, turn(CAT, "?")), wire.Read(0, 0, tokens=True)], last=True)
        value = program.future(0).result(60)
    assert value.tokens is not None
    ids = memoryview(value.tokens.ids).cast("i").tolist()
    text = "<|im_start|>user:<image>?<|im_end|>\n<|im_start|>assistant\n"
    assert ids == served.oracle.inputs(text, [Image.open(io.BytesIO(CAT))])["input_ids"][0].tolist()


def test_openai_and_anthropic_take_images(served: Served) -> None:
    data = base64.b64encode(CAT).decode()
    with openai.OpenAI(base_url=f"{served.gateway.url}/v1", api_key="none", max_retries=0) as one:
        answer = one.chat.completions.create(
            model="model", max_tokens=N, temperature=0, extra_body={"ignore_eos": True},
            messages=[{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
                {"type": "text", "text": "what?"},
            ]}],
        )  # fmt: skip
        assert answer.choices[0].message.content == served.expected(CAT, "what?")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 16
    import anthropic

    with anthropic.Anthropic(base_url=served.gateway.url, api_key="none", max_retries=0) as two:
        source: Any = {"type": "base64", "media_type": "image/png", "data": data}
        message = two.messages.create(
            model="model", max_tokens=N, extra_body={"temperature": 0},
            messages=[{"role": "user", "content": [{"type": "image", "source": source},
                                                    {"type": "text", "text": "what?"}]}],
        )  # fmt: skip
        block: Any = message.content[0]
        assert block.text
        assert served.expected(CAT, "what?").startswith(block.text)  # which may have ended earlier
        assert message.usage.cache_read_input_tokens == answer.usage.prompt_tokens - 1


def test_image_survives_the_death_of_the_engine(served: Served) -> None:
    with closing(client.connect(served.server.socket)) as one, bn.connect(served.server.socket) as backend:
        look.run(CAT, ["?"], backend=backend)["answers"][0]
        os.kill(one.ask("info")["engine_pid"], signal.SIGKILL)
        assert str(look.run(CAT, ["where?"], backend=backend)["answers"][0]) == served.expected(CAT, "where?")
