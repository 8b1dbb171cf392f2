"""SGLang names that Banyan does not support raise errors that name the replacement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import banyan as sgl
from banyan.sglang.global_config import GlobalConfig, global_config


@pytest.mark.parametrize("name", ["Anthropic", "LiteLLM", "VertexAI", "Crusoe"])
def test_unsupported_backend_names_the_replacement(name: str) -> None:
    with pytest.raises(sgl.Unsupported, match=rf"{name}: .*bn\.OpenAI\("):
        getattr(sgl, name)("model", chat_template="x", timeout=3)


def test_video_names_the_replacement() -> None:
    with pytest.raises(sgl.Unsupported, match=r"video\('a.mp4', 4\): .*bn\.image"):
        sgl.video("a.mp4", 4)


@pytest.fixture
def config() -> Iterator[GlobalConfig]:
    yield global_config
    global_config.verbosity = 0


@sgl.function
def hello(s: sgl.State, n: int = 0) -> None:
    s += "Hello" + sgl.gen("x")


def test_verbosity_2_prints_the_text_of_each_run(config: GlobalConfig, capsys: pytest.CaptureFixture[str]) -> None:
    backend = sgl.Mock(" there")
    hello.run(backend=backend)
    config.verbosity = 1
    hello.run(backend=backend)
    assert capsys.readouterr().out == ""
    config.verbosity = 2
    hello.run(backend=backend)
    hello.run_batch([(1,), (2,)], backend=backend)
    assert capsys.readouterr().out == "Hello there\n" * 3


def test_global_config_shares_the_default_backend(config: GlobalConfig) -> None:
    backend = sgl.Mock("!")
    sgl.global_config.default_backend = backend
    assert hello.run()["x"] == "!"
    assert config.default_backend is backend
    sgl.set_default_backend(None)
    assert config.default_backend is None


def test_fixed_options_cannot_be_changed(config: GlobalConfig) -> None:
    assert config.skip_special_tokens_in_output
    assert not config.enable_parallel_encoding
    config.enable_precache_with_tracing = True
    config.enable_parallel_encoding = False
    for name in ("skip_special_tokens_in_output", "enable_precache_with_tracing"):
        with pytest.raises(sgl.Unsupported, match=f"{name} = False"):
            setattr(config, name, False)
    with pytest.raises(sgl.BadProgram, match="verbosity"):
        config.verbosity = -1
    with pytest.raises(AttributeError, match="no option 'verbose'"):
        config.verbose = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no option 'verbose'"):
        config.verbose  # noqa: B018
