"""Tokens forced by a constraint are reported as accepted drafts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from banyan.runtime.protocol.wire import Abort, Sampling

FREE = None  # any token of a pattern


def run_pattern(fake: ModuleType, pattern: Sequence[int | None], **options: Any) -> Any:
    e = fake.engine()
    sampling = Sampling(temperature=0.0, max_tokens=options.pop("max_tokens", 20), **options)
    e.scheduler.take(fake.run(0, range(1, 9), sampling), guide=fake.Pattern(pattern))
    outputs: dict[int, Any] = {}
    for _ in range(50):
        fake.step(e, outputs)
        e.scheduler.check()
    return outputs[0]


def test_forced_tokens_are_reported_as_accepted_drafts(fake: ModuleType) -> None:
    output = run_pattern(fake, [7, 8, FREE, FREE, 9, 10, 11, FREE])
    assert len(output.ids) == 8
    assert [output.ids[i] for i in (0, 1, 4, 5, 6)] == [7, 8, 9, 10, 11]
    assert array("i", output.finish.drafted).tolist() == [0, 1, 4, 5, 6]
    assert (output.finish.n_drafted, output.finish.n_accepted) == (5, 5)


def test_drawn_tokens_are_not_reported_as_drafts(fake: ModuleType) -> None:
    assert run_pattern(fake, [FREE] * 4).finish.drafted == b""
    assert run_pattern(fake, [7, 8], logprobs=True).finish.n_drafted == 0, "with logprobs every token is drawn"


def test_forced_tokens_stop_at_max_tokens(fake: ModuleType) -> None:
    output = run_pattern(fake, [7] * 9, max_tokens=3)
    assert output.ids == [7, 7, 7]
    assert output.finish.n_drafted == 3


def test_trial_computes_its_token_even_if_it_is_forced(fake: ModuleType) -> None:
    """A trial shows that a request kills no engine; without a computation, one that does would pass."""
    e = fake.engine()
    sampling = Sampling(temperature=0.0, max_tokens=1)
    e.scheduler.take(fake.run(0, range(1, 9), sampling, is_trial=True), guide=fake.Pattern([7, 8, 9, 10]))
    plan = e.scheduler.plan(0.0)
    assert plan is not None
    assert [work.n_new for work in plan.works] == [8]
    step, _ = e.scheduler.report()
    assert (step.ids, step.finished) == (b"", ())


def test_forced_start_is_reported_with_the_end_of_the_prefill(fake: ModuleType) -> None:
    """Only then is it known how many tokens of the prompt were cached."""
    e = fake.engine(step_tokens=4)
    prompt = list(range(1, 23))
    fake.drive(e, [fake.run(0, prompt[:11], Sampling(max_tokens=0))])
    guide = fake.Pattern([7, 8, FREE, FREE, FREE])
    e.scheduler.take(fake.run(1, prompt, Sampling(temperature=0.0, max_tokens=4)), guide=guide)
    for _ in range(3):
        step = e.step()
        assert step.ids == b""
    step = e.step()
    assert array("i", step.ids).tolist() == [7, 8, *fake.greedy([*prompt, 7, 8], 1)]
    assert array("i", step.counts).tolist() == [3]
    assert step.cached == {1: 11}
    assert e.step().cached == {}


def test_forced_start_of_a_request_that_ends_before_its_prefill_is_reported(fake: ModuleType) -> None:
    e = fake.engine()
    e.scheduler.take(fake.run(0, range(1, 9), Sampling(max_tokens=3)), guide=fake.Pattern([7, FREE, FREE]))
    assert e.scheduler.report()[0].ids == b""
    e.take(Abort(0))
    step, _ = e.scheduler.report()
    assert array("i", step.ids).tolist() == [7]
    assert [finish.reason for finish in step.finished] == ["abort"]
