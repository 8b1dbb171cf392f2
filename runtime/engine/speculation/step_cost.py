"""What a step costs, as it was measured: seconds by how many requests and how many rows it had."""

from __future__ import annotations

MEMORY = 0.99
"""How much of what was known counts when a step is added: a hundred steps."""
SURPRISE = 2.0
"""Times the expected: what took longer was held up by others, and counts as this."""
UPWARDS = 0.2
"""The weight of a step that took longer than expected, against one that took less: a lower curve, as a step that the
machine did not disturb says more than one that it did."""

KNOWN, SELDOM = 64, 4
"""After so many steps, of those without a row more one in so many is noted: most say nothing new, and a note costs 4 us
beside a model that empties the caches."""


class Cost:
    """seconds = a + b n_requests + c n_extra, n_extra: rows beyond each request's one. Fitted by least squares of the
    relative error, with weights that fade; and held near the prior until there is evidence."""

    def __init__(self, a: float = 16.0, b: float = 1.0, c: float = 1.0, trust: float = 0.5) -> None:
        """a, b, c: the prior, any unit until `note` is first called. trust: how many steps it is worth."""
        self._theta = (a, b, c)
        self._prior = (a, b, c)
        self._trust = trust
        self._n = self._n_told = 0  # steps that were noted; those without a row more that were told
        self._sums = (0.0,) * 9  # weighted, of what `_fit` needs

    @property
    def per_row(self) -> float:
        """Seconds of a row more."""
        return self._theta[2]

    def step(self, n_requests: int, n_extra: int) -> float:
        """Seconds of a step."""
        a, b, c = self._theta
        return a + b * n_requests + c * n_extra

    def note(self, n_requests: int, n_extra: int, seconds: float) -> None:
        """A step took so long."""
        self._n_told += not n_extra
        if seconds <= 0 or (not n_extra and self._n_told % SELDOM and self._n > KNOWN):
            return
        if not self._n:  # the prior says how the parts compare, and this how large they are
            scale = seconds / self.step(n_requests, n_extra)
            self._theta = self._prior = tuple(x * scale for x in self._prior)  # type: ignore[assignment]
        self._n += 1
        expected = self.step(n_requests, n_extra)
        weight = (1.0 if seconds <= expected else UPWARDS) / expected**2
        seconds = min(seconds, SURPRISE * expected)
        w, r, e, m = weight, n_requests, n_extra, MEMORY
        n, nr, ne, rr, re, ee, y, yr, ye = self._sums  # in one line each: this runs in every step
        self._sums = (
            m * n + w, m * nr + w * r, m * ne + w * e, m * rr + w * r * r, m * re + w * r * e, m * ee + w * e * e,
            m * y + w * seconds, m * yr + w * r * seconds, m * ye + w * e * seconds)  # fmt: skip
        if self._n % 8 == 0:
            self._fit()

    def _fit(self) -> None:
        """Solve, with the prior as observations of each part alone. What comes out negative is next to nothing."""
        n, nr, ne, rr, re, ee, *y = self._sums
        s = [[n, nr, ne], [nr, rr, re], [ne, re, ee]]
        for i, part in enumerate(self._prior):
            ridge = self._trust / max(part, 1e-12) ** 2
            s[i][i] += ridge
            y[i] += ridge * part
        a, b, c = _solve(s, y)
        least = 0.01
        self._theta = tuple(max(x, least * part) for x, part in zip((a, b, c), self._prior, strict=True))  # type: ignore[assignment]


def _solve(s: list[list[float]], y: list[float]) -> list[float]:
    """s x = y, for a symmetric positive definite s, by elimination."""
    n = len(y)
    for i in range(n):
        for j in range(i + 1, n):
            factor = s[j][i] / s[i][i]
            for k in range(i, n):
                s[j][k] -= factor * s[i][k]
            y[j] -= factor * y[i]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (y[i] - sum(s[i][k] * x[k] for k in range(i + 1, n))) / s[i][i]
    return x
