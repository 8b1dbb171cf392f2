"""Log-probabilities of a prompt's tokens, with the alternatives to each."""

from __future__ import annotations

from array import array
from types import ModuleType

import numpy as np
import pytest

from banyan.runtime.protocol.wire import Sampling


@pytest.mark.parametrize("step_tokens", [7, 512])
def test_scores_include_alternatives_only_if_requested(fake: ModuleType, step_tokens: int) -> None:
    ids = [(7 * k * k + 3) % 50 for k in range(45)]
    e = fake.engine(step_tokens=step_tokens)
    s = Sampling(max_tokens=1, temperature=0, logprobs=True, top_logprobs=3)
    plain = Sampling(max_tokens=1, temperature=0)
    runs = [fake.run(0, ids, s, score_from=20), fake.run(1, ids, plain, score_from=20)]
    finish, other = (fake.drive(e, runs, check=True)[rid].finish for rid in (0, 1))
    assert other.tops == ()
    assert [top.logprob for top in finish.tops] == array("f", finish.scores).tolist()
    for n, top in enumerate(finish.tops, 20):
        row = np.array(fake.logits_after(ids[:n]), np.float64)
        row -= np.log(np.exp(row).sum())
        best = np.argsort(-row)[:3]
        assert array("i", top.top_ids).tolist() == best.tolist()
        np.testing.assert_allclose(array("f", top.top_logprobs), row[best], atol=1e-5)
