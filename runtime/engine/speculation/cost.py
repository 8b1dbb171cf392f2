"""What a step costs, as it was measured: seconds by how many requests and how many rows it had."""

from __future__ import annotations

MEMORY = 0.99
"""How much of what was known counts when a step is added: a hundred steps."""
SURPRISE = 2.0
"""Times the expected: what took longer was held up by others, and counts as this."""
UPWARDS = 0.2
"""The weight of a step that took longer than expected, against one that took less: a lower curve, as a step that the
machine did not disturb says more than one that it did."""


class Cost:
    """seconds = a + b n_requests + c n_extra, n_extra: rows beyond each request's one. Fitted by least squares of the
    relative error, with weights that fade; and held near the prior until there is evidence."""

    def __init__(self, a: float = 16.0, b: float = 1.0, c: float = 1.0, trust: float = 0.5) -> None:
        """a, b, c: the prior, any unit until `note` is first called. trust: how many steps it is worth."""
        self._theta = (a, b, c)
        self._prior = (a, b, c)
        self._trust = trust
        self._n = 0
        self._s = [[0.0] * 3 for _ in range(3)]
        self._y = [0.0] * 3

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
        if seconds <= 0:
            return
        if not self._n:  # the prior says how the parts compare, and this how large they are
            scale = seconds / self.step(n_requests, n_extra)
            self._theta = self._prior = tuple(x * scale for x in self._prior)  # type: ignore[assignment]
        self._n += 1
        expected = self.step(n_requests, n_extra)
        weight = (1.0 if seconds <= expected else UPWARDS) / expected**2
        seconds = min(seconds, SURPRISE * expected)
        x = (1.0, float(n_requests), float(n_extra))
        for i in range(3):
            row = self._s[i]
            for j in range(3):
                row[j] = MEMORY * row[j] + weight * x[i] * x[j]
            self._y[i] = MEMORY * self._y[i] + weight * x[i] * seconds
        if self._n % 8 == 0:
            self._fit()

    def _fit(self) -> None:
        """Solve, with the prior as observations of each part alone. What comes out negative is next to nothing."""
        s = [row[:] for row in self._s]
        y = self._y[:]
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
