"""Gens with a constraint are sent to the engine after the constraint is checked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from banyan.runtime.errors import ConstraintUnsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, ConstraintSpec, Fork, Gen
from banyan.runtime.server.text.chat_template import ChatTemplate

SUBMITTED = ConstraintSpec("json_schema", '{"title": "n", "type": "integer"}')
CHECKED = ConstraintSpec("json_schema", '{"type": "integer"}')
CONSTRAINED = wire.Sampling(max_tokens=3, temperature=0.0, constraint=SUBMITTED)


def test_gen_is_sent_to_the_engine_after_its_check(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("a",)), Gen(0, 0, CONSTRAINED), Append(0, ("b",)))
    b.submit(Append(0, ("a",)), Gen(0, 0, wire.Sampling(max_tokens=2)), program=1)
    b.run()
    assert len(b.engine.runs) == 1, "the other program does not wait"
    ((spec, owner, on_verdict),) = b.checks
    assert spec == SUBMITTED
    assert owner == b.engine.runs[0].client
    on_verdict(CHECKED)
    assert b.engine.runs[-1].sampling == msgspec.structs.replace(CONSTRAINED, constraint=CHECKED)
    b.run()
    assert b.value(0).samples[0].finish_reason == "length"


def test_samples_share_one_check_of_their_constraint(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("a",)), Gen(0, 0, msgspec.structs.replace(CONSTRAINED, n=3)))
    ((_, _, on_verdict),) = b.checks
    on_verdict(CHECKED)
    assert [run.sampling.constraint for run in b.engine.runs] == [CHECKED] * 3


def test_refused_constraint_fails_the_gen_with_its_error(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("hello",)), Gen(0, 0, CONSTRAINED), Fork(0, (1,)), Gen(1, 1, wire.Sampling(max_tokens=1)))
    b.checks[0][-1](ConstraintUnsupported("not this"))
    failed = b.failed(0)
    assert (failed.code, failed.message) == ("constraint_unsupported", "not this")
    assert b.failed(1).code == "constraint_unsupported", "later ops fail with the same error"
    assert b.engine.runs == []


def test_verdict_after_cancel_is_ignored(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("a",)), Gen(0, 0, CONSTRAINED))
    b.programs.cancel(b"me", wire.Cancel(program=0, seq=1))
    b.checks[0][-1](CHECKED)
    assert b.engine.runs == []


OPENING = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:"


@pytest.mark.parametrize(
    ("source", "after", "expected"),
    [
        ("<think>{% if off %}</think>{% endif %}\n{% endif %}", ("</think>",), ()),  # as Qwen3.5 and GLM have it
        ("{% if off %}<think></think>{% endif %}{% endif %}", (), ()),
        ("{% if off %}<think>{% else %}</think>{% endif %}{% endif %}", (), ("</think>",)),  # as DeepSeek V3.1 has it
    ],
)
def test_constraint_applies_after_the_reasoning_that_kwargs_open_or_close(
    bench: Any, source: str, after: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    spec = msgspec.structs.replace(SUBMITTED, after=after)
    gen = Gen(0, 0, msgspec.structs.replace(CONSTRAINED, constraint=spec), reasoning=wire.Reasoning())
    for kwargs, asked in (("", after), ('{"off": true}', expected)):
        b = bench(template=ChatTemplate(OPENING + source, {}))
        b.submit(
            Append(0, (wire.BeginTurn("user"), "a", wire.EndTurn(), wire.BeginTurn("assistant"))),
            msgspec.structs.replace(gen, chat_template_kwargs=kwargs),
        )
        constraint = b.engine.runs[0].sampling.constraint
        assert constraint == msgspec.structs.replace(spec, after=asked)


@pytest.mark.parametrize("limit", ["", "x"])
def test_ignore_eos_with_a_constraint_is_refused(bench: Any, limit: str) -> None:
    b = bench()
    sampling = msgspec.structs.replace(CONSTRAINED, ignore_eos=True, stop=(limit,) if limit else ())
    b.submit(Append(0, ("a",)), Gen(0, 0, sampling))
    assert b.failed(0).code == "bad_program"
    assert "ignore_eos cannot be combined with a constraint" in b.failed(0).message
