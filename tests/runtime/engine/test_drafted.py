"""What a constraint forces is told as a draft that was right, token by token, all the way to the client's value."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from banyan.runtime.protocol.wire import Sampling

FREE = None  # of a pattern: any token


def drafted(fake: ModuleType, pattern: Sequence[int | None], **options: Any) -> Any:
    e = fake.engine()
    sampling = Sampling(temperature=0.0, max_tokens=options.pop("max_tokens", 20), **options)
    e.scheduler.take(fake.run(0, range(1, 9), sampling), guide=fake.Pattern(pattern))
    outputs: dict[int, Any] = {}
    for _ in range(50):
        fake.step(e, outputs)
        e.scheduler.check()
    return outputs[0]


def test_forced_tokens_are_drafts_that_were_right(fake: ModuleType) -> None:
    output = drafted(fake, [7, 8, FREE, FREE, 9, 10, 11, FREE])
    assert len(output.ids) == 8
    assert [output.ids[i] for i in (0, 1, 4, 5, 6)] == [7, 8, 9, 10, 11]
    assert array("i", output.finish.drafted).tolist() == [0, 1, 4, 5, 6]
    assert (output.finish.n_drafted, output.finish.n_accepted) == (5, 5)


def test_what_the_model_draws_is_no_draft(fake: ModuleType) -> None:
    assert drafted(fake, [FREE] * 4).finish.drafted == b""
    assert drafted(fake, [7, 8], logprobs=True).finish.n_drafted == 0, "who asks for logprobs draws each token"


def test_a_length_ends_a_draft_too(fake: ModuleType) -> None:
    output = drafted(fake, [7] * 9, max_tokens=3)
    assert output.ids == [7, 7, 7]
    assert output.finish.n_drafted == 3
