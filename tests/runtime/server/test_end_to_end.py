"""The real path: this process -> server process -> engine process with a tiny random model -> back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.client.client import Client
from banyan.runtime.errors import BanyanError, PromptTooLong
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, BeginTurn, CacheHint, EndTurn, Fork, Gen, Join, Read, Select
from waits import wait_until

GREEDY = wire.Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llama(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def real(llama: Path) -> Iterator[Client]:
    server = launch.start(config.make(model=str(llama), threads=1, kv_memory="16MB", device="cpu"), timeout=100)
    yield client.connect(server.socket, timeout=60)
    server.close()


def test_conversation_matches_transformers(real: Client, llama: Path, reference: Callable[[Path], Any]) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(llama, local_files_only=True)
    program = real.program()
    program.submit(
        [
            Append(0, (BeginTurn("user"), "hello there", EndTurn(), BeginTurn("assistant"))),
            Gen(0, 0, GREEDY),
            Append(0, (EndTurn(), BeginTurn("user"), "another thing", EndTurn(), BeginTurn("assistant"))),
            Gen(0, 1, GREEDY),
        ],
        last=True,
    )
    model = reference(llama)
    messages = [{"role": "user", "content": "hello there"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    for ref, follow in ((0, "<|im_end|>\n<|im_start|>user\nanother thing<|im_end|>\n<|im_start|>assistant\n"), (1, "")):
        out = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=12, eos_token_id=None, pad_token_id=0, use_cache=True
        )[0].tolist()
        value = program.future(ref).result(60)
        assert value.samples[0].text == tokenizer.decode(out[len(ids) :], skip_special_tokens=True)
        assert value.usage.prompt == len(ids)
        ids = out + tokenizer.encode(follow, add_special_tokens=False)
    assert value.usage.cached > 20, "the first turn is cached"


def test_fork_select_and_join_share_prefixes_and_free_their_pages(real: Client) -> None:
    program = real.program()
    children = (1, 2, 3)
    program.submit(
        [
            Append(0, ("the quick brown fox jumps over the lazy dog. " * 4,)),
            Fork(0, children),
            *(Append(c, (f" {c}",)) for c in children),
            *(Gen(c, c, GREEDY) for c in children),
            Join(0, children),
            Select(0, 10, (" yes", " no", " another")),
            Read(0, 11),
        ],
        last=True,
    )
    whole = program.future(11).result(60).samples[0].text
    texts = [program.future(c).result(60).samples[0].text for c in children]
    chosen = program.future(10).result(60)
    assert whole.endswith("".join(f" {c}{t}" for c, t in zip(children, texts, strict=True)) + chosen.samples[0].text)
    usages = [program.future(c).result().usage for c in children]
    assert sum(u.prompt - u.cached for u in usages) < usages[0].prompt + 3 * 8, "the common prefix is computed once"
    assert chosen.scores is not None
    assert (
        max(chosen.scores.normalized)
        == chosen.scores.normalized[(" yes", " no", " another").index(chosen.samples[0].text)]
    )
    assert real.ask("check") == {}
    stats = real.ask("stats")
    assert stats["cache"]["n_leased"] == 0
    assert stats["server"]["requests"] == 0
    assert {"token_ids", "stop_ids", "constraints", "chat_markers"} == set(stats["kept_by_server"])
    assert {"draft_texts", "quote_rules", "constraints", "kv_hints", "images"} == set(stats["kept_by_engine"])
    for kept in ("token_ids", "draft_texts"):
        now, most = (stats["kept_by_server"] | stats["kept_by_engine"])[kept]
        assert 0 < now < most


def test_too_long_prompt_fails_with_the_numbers(real: Client) -> None:
    program = real.program("long")
    program.submit([Append(0, ("x y z " * 400,)), Gen(0, 0, GREEDY, name="a", line="f.py:1")])
    with pytest.raises(PromptTooLong, match=r"(?s)\d+ tokens.*512.*gen 'a', f\.py:1"):
        program.future(0).result(60)


def test_invalid_sampling_value_fails_the_program(real: Client) -> None:
    program = real.program()
    program.submit([Append(0, ("x",)), Gen(0, 0, wire.Sampling(top_p=7.0))])
    with pytest.raises(BanyanError, match="top_p"):
        program.future(0).result(60)


def test_cache_hints_reach_the_radix_tree(real: Client) -> None:
    number = real.ask("events")["next"]
    before = real.ask("stats")["cache"]["n_handles"]
    program = real.program("keeper")
    program.submit([Append(0, ("the lazy dog and the quick brown fox. " * 4,)), Gen(0, 0, GREEDY)])
    n_prompt = program.future(0).result(60).usage.prompt
    program.submit([CacheHint(0, pin=60.0)])
    cache = real.ask("stats")["cache"]
    assert cache["n_handles"] > before
    assert cache["n_held"] >= n_prompt // 16
    answer = real.ask("events", since=number)
    stored = [digest for event in answer["events"] for digest in event["digests"] if event["kind"] == "stored"]
    assert len(stored) >= n_prompt // 16
    assert not answer["is_all"]
    program.submit([CacheHint(0, pin=0.0)])
    program.cancel()
    wait_until(lambda: real.ask("stats")["cache"]["n_handles"] == before, "the end of the program's holds")
    real.ask("check")


# ---- a second tier -------------------------------------------------------------------------------------------------


def generate(c: Client, texts: list[str]) -> list[tuple[str, int]]:
    """The output and the number of cached prompt tokens of each text, one after the other."""
    outputs = []
    for text in texts:
        program = c.program()
        program.submit([Append(0, (text,)), Gen(0, 0, GREEDY)], last=True)
        value = program.future(0).result(60)
        outputs.append((value.samples[0].text, value.usage.cached))
    return outputs


@pytest.mark.long
def test_restarted_server_reuses_its_kv_file(llama: Path, tmp_path: Path) -> None:
    texts = [f"{name} is what the quick brown fox jumps over. " * 4 for name in ("abc", "the", "dog", "lazy", "hello")]
    options: dict[str, Any] = {"model": str(llama), "threads": 1, "device": "cpu", "context": 256, "kv_memory": "1MB"}
    outputs = {}
    for run in ("cold", "warm"):
        server_config = config.make(**options, host_memory="8MB", host_file=str(tmp_path / "kv"))
        server = launch.start(server_config, timeout=100)
        try:
            c = client.connect(server.socket, timeout=60)
            outputs[run] = generate(c, texts)
            cache = c.ask("stats")["cache"]
            c.ask("check")
            c.close()
        finally:
            server.close()
    assert [text for text, _ in outputs["warm"]] == [text for text, _ in outputs["cold"]]
    assert max(n for _, n in outputs["cold"]) < 16
    assert min(n for _, n in outputs["warm"]) >= 32, "whole pages of each prompt are cached"
    assert cache["n_host_hit_tokens"] > 0
    assert cache["n_moved_in"] > 0
