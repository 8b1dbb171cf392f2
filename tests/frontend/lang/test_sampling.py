"""Sampling options: validation, merging of run and gen options, and their fields on the wire."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

import banyan as bn
from banyan.lang.sampling import RUN_OPTIONS, GenOptions, Options, mix
from banyan.runtime.protocol import wire

# option, non-default value, wire field, expected wire value
OPTIONS: list[tuple[str, Any, str, Any]] = [
    ("max_tokens", 7, "max_tokens", 7),
    ("max_tokens", 16.0, "max_tokens", 16),
    ("min_tokens", 3, "min_tokens", 3),
    ("n", 2, "n", 2),
    ("stop", ["a", "b"], "stop", ("a", "b")),
    ("stop", "a", "stop", ("a",)),
    ("stop_token_ids", [4, 5], "stop_token_ids", (4, 5)),
    ("temperature", 0, "temperature", 0.0),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 3, "top_k", 3),
    ("top_k", 3.0, "top_k", 3),
    ("min_p", 0.1, "min_p", 0.1),
    ("frequency_penalty", -1, "frequency_penalty", -1.0),
    ("presence_penalty", 2.0, "presence_penalty", 2.0),
    ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
    ("logit_bias", {3: 1.5}, "logit_bias", {3: 1.5}),
    ("ignore_eos", True, "ignore_eos", True),
    ("seed", 11, "seed", 11),
    ("return_logprob", True, "logprobs", True),
    ("logprob_start_len", 2, "logprob_start", 2),
    ("top_logprobs_num", 2, "top_logprobs", 2),
    ("stop_regex", ["a+", "b"], "stop_regex", ("a+", "b")),
    ("stop_regex", "a+", "stop_regex", ("a+",)),
]


@bn.function
def single_gen(s: bn.State, gen_options: dict[str, Any]) -> None:
    s += bn.gen("x", **gen_options)


def sampling(mock: bn.Mock) -> wire.Sampling:
    op = mock.calls[-1].op
    assert isinstance(op, wire.Gen)
    return op.sampling


def test_defaults_are_those_of_sglang(mock: bn.Mock) -> None:
    single_gen.run({})
    assert sampling(mock) == wire.Sampling(max_tokens=128, temperature=1.0, top_p=1.0, top_k=-1, n=1)


@pytest.mark.parametrize(("name", "value", "wire_field", "expected"), OPTIONS)
def test_gen_option_is_sent(mock: bn.Mock, name: str, value: Any, wire_field: str, expected: Any) -> None:
    single_gen.run({name: value})
    assert getattr(sampling(mock), wire_field) == expected


@pytest.mark.parametrize(("name", "value", "wire_field", "expected"), [o for o in OPTIONS if o[0] != "seed"])
def test_run_option_is_sent(mock: bn.Mock, name: str, value: Any, wire_field: str, expected: Any) -> None:
    single_gen.run({}, **{name: value})
    single_gen.run({}, opts=bn.Options(**{name: value}))
    for call in mock.calls:
        assert isinstance(call.op, wire.Gen)
        assert getattr(call.op.sampling, wire_field) == expected


def test_gen_option_overrides_the_run_option(mock: bn.Mock) -> None:
    single_gen.run({"temperature": 0.5, "stop": []}, temperature=0.1, top_p=0.9, stop="x")
    assert (sampling(mock).temperature, sampling(mock).top_p, sampling(mock).stop) == (0.5, 0.9, ())


def test_model_defaults_apply_to_options_that_are_not_given(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a") + bn.gen("b", temperature=0.0)

    mock.welcome = msgspec.structs.replace(mock.welcome, sampling=wire.Sampling(temperature=0.6, top_k=20))
    record = bn.Record(mock, tmp_path / "tape")
    program.run(backend=record, top_k=-1).sync()
    program.run(backend=record).sync()
    asked = [call.op.sampling for call in mock.calls]
    assert [(one.temperature, one.top_k) for one in asked] == [(0.6, -1), (0.0, -1), (0.6, 20), (0.0, 20)]
    record.close()
    program.run(backend=bn.Replay(tmp_path / "tape")).sync()


def test_keyword_overrides_opts(mock: bn.Mock) -> None:
    single_gen.run({}, temperature=0.5, opts=bn.Options(temperature=0.1, top_p=0.9))
    assert (sampling(mock).temperature, sampling(mock).top_p) == (0.5, 0.9)


def test_adapter_is_sent_with_gens_and_selects(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("b", adapter="songs") + bn.gen("c", adapter="")
        s += bn.select("d", ["<d>"]) + bn.select("e", ["<e>"], adapter="songs") + bn.gen("f", choices=["<f>"])

    program.run(backend=mock).sync()
    program.run(backend=mock, adapter="poems").sync()
    asked = [call.op.adapter for call in mock.calls]
    assert asked[:6] == ["", "songs", "", "", "songs", ""]
    assert asked[6:] == ["poems", "songs", "", "poems", "songs", "poems"]
    bn.compile(program).run(backend=mock, adapter="poems").sync()
    assert [call.op.adapter for call in mock.calls[12:]] == asked[6:]
    with pytest.raises(bn.BadProgram, match="adapter"):
        bn.gen("a", adapter=3)  # type: ignore[arg-type]
    with pytest.raises(bn.Unsupported, match=r"^adapter: "):
        program.run(backend=bn.Mock("x", refuses={"adapter"}), adapter="poems").sync()


def test_chat_template_kwargs_are_sent_with_gens_and_selects(mock: bn.Mock) -> None:
    own: Any = {"enable_thinking": False, "who": "é"}

    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("b", chat_template_kwargs=own) + bn.gen("c", chat_template_kwargs={})
        s += bn.select("d", ["<d>"]) + bn.select("e", ["<e>"], chat_template_kwargs='{"x": 1}')
        s += bn.gen("f", choices=["<f>"], chat_template_kwargs=own)

    text = '{"enable_thinking": false, "who": "é"}'
    program.run(backend=mock).sync()
    program.run(backend=mock, chat_template_kwargs={"x": [None]}).sync()
    asked = [call.op.chat_template_kwargs for call in mock.calls]
    assert asked[:6] == ["", text, "{}", "", '{"x": 1}', text]
    assert asked[6:] == ['{"x": [null]}', text, "{}", '{"x": [null]}', '{"x": 1}', text]
    bn.compile(program).run(backend=mock, chat_template_kwargs={"x": [None]}).sync()
    assert [call.op.chat_template_kwargs for call in mock.calls[12:]] == asked[6:]
    program.bind(opts=bn.Options(chat_template_kwargs={"x": 2})).run(backend=mock, temperature=0).sync()
    assert mock.calls[-6].op.chat_template_kwargs == '{"x": 2}'
    for wrong in ({"x": object()}, {"x": float("nan")}, {"x": "y" * 20_000}, 3):
        with pytest.raises(bn.BadProgram, match="chat_template_kwargs"):
            bn.gen("a", chat_template_kwargs=wrong)  # type: ignore[arg-type]
    with pytest.raises(bn.Unsupported, match=r"^chat_template_kwargs: "):
        program.run(backend=bn.Mock("x", refuses={"chat_template_kwargs"})).sync()


def test_every_gen_option_is_a_run_option() -> None:
    assert RUN_OPTIONS - {"stream", "backend", "use_thread", "retries", "durable"} == set(GenOptions.__struct_fields__)
    tested_here = {name for name, *_ in OPTIONS}
    tested_below = {"max_new_tokens", "adapter", "chat_template_kwargs"}
    elsewhere = {"return_text_in_logprobs", "timeout", "budget", "priority", "deadline"}
    # test_lazy_value.py, test_run_limits.py, test_urgency.py
    assert tested_here | tested_below | elsewhere == set(GenOptions.__struct_fields__)


@pytest.mark.parametrize(
    ("gen_options", "match"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, r"option n=0: expected `int` >= 1"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("inf")}, "temperature is inf; it must be finite"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf; it must be finite"),
        ({"deadline": float("inf")}, "deadline is inf; it must be finite"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop": ["a", ""]}, "empty string"),
        ({"stop": 5}, "stop"),
        ({"stop_regex": [""]}, "empty string"),
        ({"stop_regex": 5}, "stop_regex"),
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"seed": "x"}, "seed"),
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 1, "max_tokens": 1}, "max_tokens and max_new_tokens are the same"),
    ],
)
def test_invalid_option_is_refused(mock: bn.Mock, gen_options: dict[str, Any], match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.gen("x", **gen_options)
    with pytest.raises(bn.BadProgram, match=match):
        single_gen.run({}, **gen_options)
    assert mock.submits == []


def test_incompatible_options_are_refused(mock: bn.Mock) -> None:
    with pytest.raises(bn.BadProgram, match="min_tokens is 9"):
        single_gen.run({"min_tokens": 9, "max_tokens": 8})


def test_both_names_of_max_tokens_work_everywhere(mock: bn.Mock) -> None:
    for name in ("max_tokens", "max_new_tokens"):
        single_gen.run({name: 7})
        single_gen.run({}, **{name: 7})
        single_gen.run({}, opts=bn.Options(**{name: 7}))
        single_gen.run({}, opts=bn.Options(max_tokens=5), **{name: 7})
        single_gen.run_batch([({},)], **{name: 7})
        assert bn.gen_int("x", **{name: 7}) == bn.gen("x", 7, dtype=int)
    assert [call.op.sampling.max_tokens for call in mock.calls if isinstance(call.op, wire.Gen)] == [7] * 10


@pytest.mark.parametrize(
    ("run_options", "gen_options", "expected"),
    [
        ({}, {"top_logprobs_num": 2}, (True, 2, -1)),
        ({}, {"logprob_start_len": 0}, (True, 0, 0)),
        ({"top_logprobs_num": 2}, {}, (True, 2, -1)),
        ({"return_logprob": False}, {"top_logprobs_num": 2}, (True, 2, -1)),
        ({"top_logprobs_num": 2, "logprob_start_len": 0}, {"return_logprob": False}, (False, 0, -1)),
        ({"return_logprob": False, "top_logprobs_num": 2}, {}, (False, 0, -1)),
        ({"return_logprob": False, "top_logprobs_num": 2}, {"return_logprob": True}, (True, 0, -1)),
    ],
)
def test_alternatives_imply_logprobs_unless_these_are_off(
    mock: bn.Mock, run_options: dict[str, Any], gen_options: dict[str, Any], expected: tuple[bool, int, int]
) -> None:
    single_gen.run(gen_options, **run_options)
    sent = sampling(mock)
    assert (sent.logprobs, sent.top_logprobs, sent.logprob_start) == expected


def test_run_without_thread_waits_for_all_gens(mock: bn.Mock) -> None:
    assert single_gen.run({}, use_thread=True)["x"] == "<x>"
    state = single_gen.run({}, use_thread=False, backend=bn.Mock("late", latency=0.05))
    assert state._transcript.last is not None
    assert state._transcript.last.is_done
    with pytest.raises(bn.ProgramError, match="out of paper"):
        single_gen.run({}, use_thread=False, backend=bn.Mock(ValueError("out of paper")))
    with pytest.raises(bn.Unsupported, match="use_thread=False waits for the end"):
        single_gen.run({}, use_thread=False, stream=True)


# ---- seeds ---------------------------------------------------------------------------------------------------------


def test_mix_is_stable_and_collision_free() -> None:
    assert mix(None, 1) is None
    seeds = [mix(seed, i) for seed in range(8) for i in range(8)]
    assert len(set(seeds)) == 64
    assert seeds[0] == mix(0, 0) == 4713302051363070676
    assert all(seed is not None and 0 <= seed < 1 << 63 for seed in seeds)


@bn.function
def branching(s: bn.State, read: bool) -> None:
    s += bn.gen("a")
    if read:
        assert s.text()
    forks = s.fork(2)
    forks += bn.gen("b") + bn.gen("c", seed=5)
    s += bn.select("d", ["<d>", "x"], temperature=1.0)


def seeds(mock: bn.Mock) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for call in mock.calls:
        op = call.op
        found.setdefault(call.name, []).append(op.seed if isinstance(op, wire.Select) else op.sampling.seed)
    return found


def test_run_seed_gives_each_gen_its_own_seed(mock: bn.Mock) -> None:
    branching.run(False, seed=1)
    run_seeds = seeds(mock)
    assert run_seeds.pop("c") == [5, 5], "a gen's own seed is used unchanged"
    seed_list = [seed for name in run_seeds for seed in run_seeds[name]]
    assert len(set(seed_list)) == len(seed_list) == 4
    assert None not in seed_list


def test_seeds_do_not_depend_on_reads(mock: bn.Mock) -> None:
    branching.run(False, seed=1)
    expected = seeds(mock)
    mock.calls.clear()
    branching.run(True, seed=1)
    assert seeds(mock) == expected


def test_batch_items_have_different_reproducible_seeds(mock: bn.Mock) -> None:
    def item_seeds() -> list[int | None]:
        mock.calls.clear()
        single_gen.run_batch([{"gen_options": {}}] * 3, seed=1, num_threads=1)
        return seeds(mock)["x"]

    first = item_seeds()
    assert len(set(first)) == 3
    assert item_seeds() == first


def test_run_without_seed_sends_none(mock: bn.Mock) -> None:
    branching.run(False)
    assert {seed for name, found in seeds(mock).items() if name != "c" for seed in found} == {None}


def test_options_do_not_keep_the_backend_alive() -> None:
    backend = bn.Mock("x")
    backend_ref = weakref.ref(backend)
    options = Options(backend=backend, stop_token_ids=[1])  # type: ignore[arg-type]
    assert options.over(wire.Sampling()).stop_token_ids == [1]
    del backend, options
    gc.collect()
    assert backend_ref() is None
